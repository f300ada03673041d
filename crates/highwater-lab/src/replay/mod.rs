//! Replays access traces through the whole manager, under limits, and verifies every page.
//!
//! [`Replay::prepare`] builds a [`Manager`](highwater::manager::Manager) and, for each tenant, a
//! group, a sparse data file and a mapping of it; [`Replay::run`] drives the traces through them
//! with real threads and returns an [`Outcome`]. The program `highwater replay` is this and its
//! arguments.
//!
//! Invariant: every byte that the cache returns is compared with what it must be. A page's contents
//! are a function of seed, tenant, page number and version (`content`), the file lays them out when
//! first touched (`backing`), writes raise the version, and the oracle of versions, which the cache
//! never sees, says which one is due (`versions`). At the end every written page is read from the
//! data file itself and verified again.
//!
//! Memory: nothing here grows with a trace's footprint or length. Traces are streamed, versions and
//! keys are kept on disk, latencies in histograms.
//!
//! | file | mechanism |
//! |---|---|
//! | `content` | what a page must hold |
//! | `backing` | the sparse data file of a tenant |
//! | `versions` | the oracle of written pages |
//! | `run_dir` | where these files live, and that none stays behind |
//! | `schedule` | which request next |
//! | `engine` | the access loop and the final verification |
//! | `manifest`, `latency`, `report`, `table` | what is reported |

mod backing;
mod content;
mod control;
mod engine;
mod error;
mod latency;
mod report;
mod manifest;
mod run_dir;
mod schedule;
mod setup;
mod table;
mod versions;

use std::path::PathBuf;

use highwater::frame::{BackendKind, Tunables};
use highwater::reclaim::policy::PolicyKind;
use highwater::units::Bytes;

use crate::trace::ReaderOptions;

pub use control::{Control, RunProgress};
pub use error::{ManagerError, ReplayError};
pub use latency::LatencySummary;
pub use manifest::{Machine, Manifest, TraceReport};
pub use report::{Outcome, Report, TenantReport};
pub use setup::{Failure, Leaks, Replay};
pub use table::Table;

/// Most threads of a run. Chosen: more than any machine has use for.
pub const THREADS_MAX: usize = 1024;

/// Most tenants of a run. Chosen: each holds two open files, besides its trace and its keys.
pub const TENANTS_MAX: usize = 200;

/// What to replay, and on what.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// At least one, each with a name of its own.
    pub tenants: Vec<TenantConfig>,
    /// Memory for page frames.
    pub capacity: Bytes,
    /// Threads that access pages, 1 to [`THREADS_MAX`]. With one, a run is a function of the traces
    /// and the seed.
    pub threads: usize,
    /// What keeps free frames; none for the manager's choice.
    pub backend: Option<BackendKind>,
    /// Which pages leave when memory is short.
    pub policy: PolicyKind,
    /// Knobs of the pool of frames.
    pub tunables: Tunables,
    /// Decides page contents and the order of tenants.
    pub seed: u64,
    /// Where the run's directory is made.
    pub dir: PathBuf,
}

/// One tenant: a trace and its limits.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// Unique among the tenants.
    pub name: String,
    /// Where its requests come from.
    pub trace: TraceInput,
    /// How the trace is read.
    pub options: ReaderOptions,
    /// The limit of the tenant's group.
    pub max: Option<Bytes>,
}

/// Where a trace is.
#[derive(Clone, Debug)]
pub enum TraceInput {
    /// In a file.
    File(PathBuf),
    /// What comes from standard input; one tenant of a run can have it.
    StandardInput,
    /// In the program itself.
    Embedded {
        /// What messages call it.
        name: &'static str,
        /// The trace as a file would hold it.
        bytes: &'static [u8],
    },
}
