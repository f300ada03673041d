//! Errors that keep a replay from starting or from continuing.
//!
//! A page that does not verify and a leak are results, not errors: the report holds them.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use highwater::units::Bytes;
use thiserror::Error;

use super::{IN_FLIGHT_MAX, TENANTS_MAX, THREADS_MAX};
use crate::control::{Interrupted, Stop};
use crate::trace::{DirectoryError, Format, Op, TraceError};

/// An error of the manager, whatever the operation.
pub type ManagerError = Box<dyn Error + Send + Sync>;

/// Why a replay failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The configuration names no tenant.
    #[error("no trace to replay: name at least one")]
    NoTenants,
    /// More tenants than a run can hold.
    #[error("{tenants} tenants: a run holds at most {TENANTS_MAX}")]
    TooManyTenants {
        /// Tenants in the configuration.
        tenants: usize,
    },
    /// Two tenants of one name.
    #[error(
        "two tenants are named `{name}`: give each a name of its own with `--tenant NAME=TRACE`"
    )]
    DuplicateTenant {
        /// The name.
        name: String,
    },
    /// Two tenants that read standard input.
    #[error("two tenants read standard input: `-` can be the trace of one")]
    StandardInputTwice,
    /// A thread count out of range.
    #[error("{threads} threads: expected 1 to {THREADS_MAX}")]
    Threads {
        /// The count.
        threads: usize,
    },
    /// A number of reads in flight out of range.
    #[error("{in_flight} reads in flight: expected 1 to {IN_FLIGHT_MAX}")]
    InFlight {
        /// The number.
        in_flight: usize,
    },
    /// A limit under which no page can be resident.
    #[error("tenant `{tenant}`: max={max} holds no page: expected at least 4 KiB, or no max")]
    MaxTooSmall {
        /// The tenant.
        tenant: String,
        /// The limit.
        max: Bytes,
    },
    /// The run's files could not be made.
    #[error("cannot make the replay's files in {}: {source}; name another directory with `--dir`", .dir.display())]
    Directory {
        /// The parent directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A tenant's trace could not be opened or read.
    #[error("tenant `{tenant}`: {source}")]
    Trace {
        /// The tenant.
        tenant: String,
        /// The reader's error.
        source: TraceError,
    },
    /// A trace without a single request.
    #[error(
        "tenant `{tenant}`: {}: no record to replay: the trace ended as `{format}` with {bad} bad records skipped and {empty} that touch no page; name its format with `--format`, see `highwater formats`",
        .trace.display()
    )]
    NoRecord {
        /// The tenant.
        tenant: String,
        /// The trace.
        trace: PathBuf,
        /// The format as which it was read.
        format: Format,
        /// Bad records that were skipped.
        bad: u64,
        /// Records that touch no page.
        empty: u64,
    },
    /// The directory of a key trace, which is on disk, failed.
    #[error("tenant `{tenant}`: {source}")]
    Keys {
        /// The tenant.
        tenant: String,
        /// The directory's error.
        source: DirectoryError,
    },
    /// A page that the tenant's file cannot hold.
    #[error(
        "tenant `{tenant}`: page {page} does not fit a file of {pages} pages, the longest that the file system and RLIMIT_FSIZE (`ulimit -f`) allow: raise the limit, or name a directory on another file system with `--dir`"
    )]
    PageBeyondFile {
        /// The tenant.
        tenant: String,
        /// The last page of the request.
        page: u64,
        /// Pages in the file.
        pages: u64,
    },
    /// The manager refused the configuration.
    #[error("{0}")]
    Build(#[source] ManagerError),
    /// The manager refused a tenant's group, file or mapping.
    #[error("tenant `{tenant}`: cannot set up its {what}: {source}")]
    SetUp {
        /// The tenant.
        tenant: String,
        /// The part that was refused: group, file or mapping.
        what: &'static str,
        /// The manager's error.
        source: ManagerError,
    },
    /// A page could not be accessed.
    #[error("tenant `{tenant}`: a {} failed: {source}{}", name(*.op), because(.fault.as_deref()))]
    Access {
        /// The tenant.
        tenant: String,
        /// Whether the access was a read or a write.
        op: Op,
        /// The page.
        page: u64,
        /// The manager's error, which names the page.
        source: ManagerError,
        /// The first I/O error of the tenant's file, which may be the cause.
        fault: Option<String>,
    },
    /// Dirty pages could not be written back at the end.
    #[error("tenant `{tenant}`: writing dirty pages back failed: {source}{}", because(.fault.as_deref()))]
    WriteBack {
        /// The tenant.
        tenant: String,
        /// The manager's error.
        source: ManagerError,
        /// The first I/O error of the tenant's file, which may be the cause.
        fault: Option<String>,
    },
    /// The replay's own record of versions failed.
    #[error("tenant `{tenant}`: the record of written pages failed: {source}")]
    Versions {
        /// The tenant.
        tenant: String,
        /// The system's error.
        source: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start worker thread {index}: {source}; use fewer with `--threads`")]
    Spawn {
        /// Its index, from 0.
        index: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The thread that takes points over time could not be started.
    #[error("cannot start the thread that observes the run: {source}")]
    Sampler {
        /// The system's error.
        source: io::Error,
    },
    /// A worker met a broken invariant. The panic's message went to standard error.
    #[error("a worker thread panicked: this is a bug in Highwater, please report it")]
    WorkerPanicked,
    /// The run was told to stop before the traces ended.
    #[error("interrupted")]
    Interrupted,
}

fn name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
    }
}

fn because(fault: Option<&str>) -> String {
    fault.map_or_else(String::new, |fault| {
        format!("; first I/O error of its data file: {fault}")
    })
}

impl ReplayError {
    /// Returns the error of a trace that cannot be read: `Interrupted` if `stop` is the cause.
    pub(super) fn of_trace(tenant: &str, stop: &Stop, source: TraceError) -> Self {
        match stop.is_requested() {
            true => Self::Interrupted,
            false => Self::Trace {
                tenant: tenant.to_owned(),
                source,
            },
        }
    }
}

impl From<Interrupted> for ReplayError {
    fn from(Interrupted: Interrupted) -> Self {
        Self::Interrupted
    }
}
