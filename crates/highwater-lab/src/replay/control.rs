//! How a replay is watched and stopped from outside: a flag that every worker polls, and counts for
//! a progress bar.

use std::sync::atomic::{AtomicBool, Ordering};

use highwater::sync::StatCell;

/// Shared between a run and those who watch it.
#[derive(Debug, Default)]
pub struct Control {
    /// Whether to stop. Written by anyone, a signal's watcher or a failing worker; read by workers
    /// between pages. Publishes nothing: the reason travels on its own way.
    is_stopped: AtomicBool,
    pub(super) page_accesses: StatCell,
    pub(super) bytes_read: StatCell,
    pub(super) bytes_total: StatCell,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunProgress {
    /// Pages accessed.
    pub page_accesses: u64,
    /// Bytes read of all traces, as stored.
    pub trace_bytes_read: u64,
    /// Bytes of all traces, as stored.
    pub trace_bytes_total: u64,
}

impl Control {
    /// Tells the run to stop: it ends with [`ReplayError::Interrupted`](super::ReplayError) after
    /// at most one page access of each worker, and cleans up.
    pub fn stop(&self) {
        // Relaxed: the flag alone is the message.
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the run was told to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // Relaxed: as above.
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// How far the run has come, a batch of requests at a time.
    #[must_use]
    pub fn progress(&self) -> RunProgress {
        RunProgress {
            page_accesses: self.page_accesses.get(),
            trace_bytes_read: self.bytes_read.get(),
            trace_bytes_total: self.bytes_total.get(),
        }
    }
}
