//! Replays access traces through the whole manager, under limits, and verifies every page.
//!
//! [`Replay::prepare`] builds a [`Manager`](highwater::Manager) and, for each tenant, a
//! group, a sparse data file and a mapping of it; [`Replay::run`] drives the traces through them
//! with real threads and returns an [`Outcome`]. The program `highwater replay` is this and its
//! arguments.
//!
//! Invariant: every byte that the cache returns is compared with the expected one. A page's
//! contents are a function of seed, tenant, page number and version (`content`), the file lays them
//! out when first touched (`backing`), writes raise the version, and the oracle of versions, which
//! the cache never sees, says which one is due (`versions`). At the end every written page is read
//! from the data file itself and verified again.
//!
//! Memory: nothing here grows with a trace's footprint or length. Traces are streamed, versions and
//! keys are kept on disk, latencies in histograms.
//!
//! | file | mechanism |
//! |---|---|
//! | `content` | the contents of a page |
//! | `backing` | the sparse data file of a tenant |
//! | `versions` | the oracle of written pages |
//! | `run_dir` | the directory of these files, and its cleanup |
//! | `schedule` | the order of requests |
//! | `engine` | the access loop and the final verification |
//! | `manifest`, `latency`, `report`, `table` | the report |

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

use highwater::frame::Tunables;
use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::Bytes;

use crate::baselines::BackendKind;
use crate::trace::ReaderOptions;

pub use control::{Control, RunProgress};
pub use error::{ManagerError, ReplayError};
pub use latency::LatencySummary;
pub use manifest::{Machine, Manifest, TraceReport};
pub use report::{Outcome, Report, TenantReport};
pub use setup::{Failure, Leaks, Replay};
pub use table::Table;

/// Largest number of threads of a run. Chosen: more than any machine can use.
pub const THREADS_MAX: usize = 1024;

/// Largest number of tenants of a run. Chosen: each holds two open files, besides its trace and its
/// keys.
pub const TENANTS_MAX: usize = 200;

/// Configuration of a replay.
#[derive(Clone, Debug)]
pub struct ReplayConfig {
    /// Tenants: at least one, with unique names.
    pub tenants: Vec<TenantConfig>,
    /// Memory for page frames.
    pub capacity: Bytes,
    /// Threads that access pages, 1 to [`THREADS_MAX`]. With one, a run is a function of the traces
    /// and the seed.
    pub threads: usize,
    /// Back end of the frame pool; `None` for the manager's default.
    pub backend: Option<BackendKind>,
    /// Eviction policy.
    pub policy: PolicyKind,
    /// Knobs of the pool of frames.
    pub tunables: Tunables,
    /// Random seed of page contents and of the order of tenants.
    pub seed: u64,
    /// Parent of the run's directory.
    pub dir: PathBuf,
}

/// One tenant: a trace and its limits.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// Unique among the tenants.
    pub name: String,
    /// Source of its requests.
    pub trace: TraceInput,
    /// Options of the trace's reader.
    pub options: ReaderOptions,
    /// The limit of the tenant's group.
    pub max: Option<Bytes>,
}

/// Location of a trace.
#[derive(Clone, Debug)]
pub enum TraceInput {
    /// A file.
    File(PathBuf),
    /// Standard input; at most one tenant of a run can have it.
    StandardInput,
    /// Bytes in the program itself.
    Embedded {
        /// Name in messages.
        name: &'static str,
        /// The trace's bytes, as in a file.
        bytes: &'static [u8],
    },
}
