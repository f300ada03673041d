//! The configuration of a replay.

use std::path::PathBuf;

use highwater::frame::Tunables;
use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::{Bytes, Pages};
use serde::Serialize;

use crate::baselines::BackendKind;
use crate::trace::ReaderOptions;

/// Largest number of threads of a run. Chosen: more than any machine can use.
pub const THREADS_MAX: usize = 1024;

/// Largest number of reads in flight on a thread. Chosen: above the queue of any device.
pub const IN_FLIGHT_MAX: usize = 1024;

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
    /// Threads that access pages, 1 to [`THREADS_MAX`]. With one, and one read in flight, a run is
    /// a function of the traces and the seed.
    pub threads: usize,
    /// Reads in flight on each thread, 1 to [`IN_FLIGHT_MAX`]; with 1, each read blocks its thread.
    pub in_flight: usize,
    /// Back end of the frame pool; `None` for the manager's default.
    pub backend: Option<BackendKind>,
    /// Eviction policy.
    pub policy: PolicyKind,
    /// Knobs of the pool of frames.
    pub tunables: Tunables,
    /// Longest readahead window; 0 reads the pages that the traces name, and no others.
    pub readahead: Pages,
    /// The way of the data files' pages.
    pub io: DataIo,
    /// Random seed of page contents and of the order of tenants.
    pub seed: u64,
    /// Parent of the run's directory.
    pub dir: PathBuf,
}

/// The way of a data file's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DataIo {
    /// Past the kernel's page cache, or through it where the file system refuses that.
    #[default]
    Direct,
    /// Through the kernel's page cache.
    Buffered,
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
