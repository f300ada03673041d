//! Errors that keep an experiment from running to its end.
//!
//! A check that does not hold is a result, not an error.

use std::io;

use highwater::frame::{PoolError, TunableError};
use highwater::lab::memmap::MapError;
use highwater::topology::{CPUS_MAX, ParseTopologyError};
use highwater::{BuildError, ReadError};
use thiserror::Error;

use crate::control::Interrupted;
use crate::replay::ReplayError;
use crate::rss_trace::RssTraceError;
use crate::trace::TraceError;

/// Why an experiment failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The machine has too few or too many CPUs for the experiment.
    #[error(
        "`{experiment}` on {cpus} CPUs: expected {min} to {max}; change `--cpus` or `--topology`"
    )]
    Cpus {
        /// The experiment.
        experiment: &'static str,
        /// CPUs of the machine.
        cpus: usize,
        /// The fewest.
        min: usize,
        /// The most.
        max: usize,
    },
    /// The number of CPUs is not one that a machine can have.
    #[error("a machine of {cpus} CPUs: expected 1 to {CPUS_MAX}; change `--cpus`")]
    MachineSize {
        /// The number as given.
        cpus: usize,
    },
    /// The topology cannot be parsed.
    #[error(transparent)]
    Topology(ParseTopologyError),
    /// The experiment lacks what was requested.
    #[error("`{experiment}` {reason}")]
    Unsupported {
        /// The experiment.
        experiment: &'static str,
        /// What it lacks, and the remedy.
        reason: &'static str,
    },
    /// A recorded trace cannot be read.
    #[error(transparent)]
    Trace(#[from] RssTraceError),
    /// A trace of accesses cannot be read.
    #[error("{trace}: {source}")]
    AccessTrace {
        /// The trace.
        trace: String,
        /// The reader's error.
        source: TraceError,
    },
    /// A trace could not be replayed.
    #[error("{trace}: {source}")]
    Replay {
        /// The trace.
        trace: String,
        /// The replay's error.
        source: Box<ReplayError>,
    },
    /// A recorded trace has more CPUs than a topology can have.
    #[error("{trace}: a trace of {cpus} CPUs: expected at most {max}")]
    TraceCpus {
        /// The trace.
        trace: String,
        /// CPUs in it.
        cpus: usize,
        /// The most.
        max: usize,
    },
    /// The number of threads is out of range.
    #[error("{threads} threads: expected 1 to {max}; change `--threads`")]
    Threads {
        /// The number as given.
        threads: u32,
        /// The most.
        max: u32,
    },
    /// The system refused to start a thread.
    #[error(
        "only {started} of {wanted} threads could be started: {source}; ask for fewer with `--threads`, or \
         raise its limits (`ulimit -u`, `vm.max_map_count`, `kernel.threads-max`)"
    )]
    TooManyThreads {
        /// Threads that were started; they have ended since.
        started: u32,
        /// Threads requested.
        wanted: u32,
        /// The system's error.
        source: io::Error,
    },
    /// The system refused a thread of the experiment's own.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    /// The library could not set up its memory.
    #[error("no manager for the experiment: {0}")]
    Manager(#[from] BuildError),
    /// The system refused to map the memory of a pool.
    #[error("no memory for the experiment: {0}")]
    Memory(#[from] MapError),
    /// A pool could not be set up.
    #[error("no pool for the experiment: {0}")]
    Pool(#[from] PoolError),
    /// A knob refused its value.
    #[error("{0}")]
    Knob(#[from] TunableError),
    /// A page could not be read through the library.
    #[error("a page of the experiment could not be read: {0}")]
    Page(#[from] ReadError),
    /// The system refused something that the experiment needs.
    #[error("cannot {what}: {source}; {remedy}")]
    System {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
        /// Advice to the user.
        remedy: &'static str,
    },
    /// The run was told to stop.
    #[error("interrupted")]
    Interrupted,
}

impl From<Interrupted> for ExperimentError {
    fn from(Interrupted: Interrupted) -> Self {
        Self::Interrupted
    }
}
