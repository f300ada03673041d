//! Errors of tracing, with the file and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::format::FormatError;
use super::page::PageError;

/// Why the kernel's tracing cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TracefsError {
    /// The file system is not mounted, and mounting it was refused.
    #[error("cannot mount tracefs: {source}")]
    Mount {
        /// The system's error.
        source: io::Error,
    },
    /// A file of tracefs could not be read, written, created or removed.
    #[error("cannot {action} `{}`: {source}", .path.display())]
    File {
        /// The operation, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The numbers of processes in this PID namespace are not those that the kernel's tracing
    /// compares, so that it would follow others.
    #[error(
        "this process is in a PID namespace of its own, whose numbers the kernel's tracing does \
         not know: run it outside the container, or in one with the machine's namespace \
         (`docker run --pid=host`)"
    )]
    Namespace,
    /// The kernel has had a fault (an oops). Its task was killed with the locks that it held: if
    /// they are tracing's, every process that traces waits for ever, and cannot be killed.
    #[error(
        "tracefs is not used: the kernel has had a fault since it was started (bit 7 of \
         /proc/sys/kernel/tainted), and may hold the locks of tracing for ever: see `dmesg`, and \
         start the machine again"
    )]
    Oops,
    /// This kernel has no such event.
    #[error("this kernel has no event {system}:{event}")]
    NoEvent {
        /// The event's system, such as `filemap`.
        system: String,
        /// Its name.
        event: String,
    },
    /// A format file that does not parse, or lacks a field.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The limit on open files is too small for the buffers of all CPUs.
    #[error(
        "cannot open the trace buffers of {cpus} CPUs: open files are limited by RLIMIT_NOFILE \
         (`ulimit -n`), which is {limit}: raise it"
    )]
    OpenFiles {
        /// CPUs that the kernel may use.
        cpus: u64,
        /// The soft limit.
        limit: u64,
    },
    /// A page of a ring buffer that does not decode.
    #[error("the trace buffer of CPU {cpu} does not decode: {source}")]
    Page {
        /// The CPU.
        cpu: u32,
        /// The decoder's error.
        source: PageError,
    },
}

impl TracefsError {
    pub(super) fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Returns whether the process lacks a right that root has.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        let (Self::Mount { source } | Self::File { source, .. }) = self else {
            return false;
        };
        source.kind() == io::ErrorKind::PermissionDenied
    }

    /// Returns whether the kernel lacks the event, as opposed to a failure to use it.
    #[must_use]
    pub const fn is_no_event(&self) -> bool {
        matches!(self, Self::NoEvent { .. })
    }
}
