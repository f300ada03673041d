//! Errors of a run.

use std::io;
use std::path::PathBuf;

use highwater::units::Bytes;
use thiserror::Error;

use crate::control::Interrupted;
use crate::trace::{Format, TraceError};

/// Why there are no curves.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CurveError {
    /// The configuration names no tenant.
    #[error("no trace to read: name at least one")]
    NoTenants,
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
    /// A trace could not be opened or read.
    #[error("tenant `{tenant}`: {source}")]
    Trace {
        /// The tenant.
        tenant: String,
        /// The reader's error.
        source: TraceError,
    },
    /// A trace without a single request.
    #[error(
        "tenant `{tenant}`: {}: no record to read: the trace ended as `{format}` with {bad} bad records skipped and {empty} that touch no page; name its format with `--format`, see `highwater formats`",
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
    /// The accesses to sampled pages could not be kept.
    #[error(
        "tenant `{tenant}`: cannot keep its sample in {}: {source}; name another directory with `--dir`",
        .dir.display()
    )]
    Sample {
        /// The tenant.
        tenant: String,
        /// The directory of the temporary file.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A trace that is too long to be held in memory.
    #[error(
        "tenant `{tenant}`: more than {limit} page accesses: too many for `--exact`; leave it out, or name the beginning of the trace"
    )]
    TooLong {
        /// The tenant.
        tenant: String,
        /// The most that it may have.
        limit: u32,
    },
    /// The sizes that were asked for end before a share that the split may give.
    #[error(
        "tenant `{tenant}`: cannot split {total}: its curve ends at {largest}, and its trace has {footprint}; add a `--size` of {total}, or leave `--size` out"
    )]
    SizesEndEarly {
        /// The tenant.
        tenant: String,
        /// Memory to split.
        total: Bytes,
        /// The largest size of its curve.
        largest: Bytes,
        /// Memory that holds all pages of its trace.
        footprint: Bytes,
    },
    /// A size that has too few pages of a sample to be simulated.
    #[error(
        "tenant `{tenant}`: {size} is too small for a sample of its trace: give sizes of {least} or more, or `--exact`"
    )]
    SizeTooSmall {
        /// The tenant.
        tenant: String,
        /// The size.
        size: Bytes,
        /// The smallest size that the sample can stand for.
        least: Bytes,
    },
    /// The run was told to stop before its end.
    #[error("interrupted")]
    Interrupted,
}

impl From<Interrupted> for CurveError {
    fn from(Interrupted: Interrupted) -> Self {
        Self::Interrupted
    }
}
