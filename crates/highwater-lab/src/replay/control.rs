//! Progress and cancellation of a replay: a flag that every worker polls, and counts for a progress
//! bar.

use std::sync::atomic::{AtomicBool, Ordering};

use highwater::lab::sync::StatCell;

/// Shared between a run and the threads that watch it.
#[derive(Debug, Default)]
pub struct Control {
    /// Whether to stop. Written by: any thread, such as a signal's watcher or a failing worker.
    /// Read by: workers between pages. Publishes nothing: the reason is passed elsewhere.
    is_stopped: AtomicBool,
    pub(super) page_accesses: StatCell,
    pub(super) bytes_read: StatCell,
    pub(super) bytes_total: StatCell,
}

/// Progress of a run.
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
        // Relaxed: the flag publishes no other data.
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether the run was told to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // Relaxed: see `stop`.
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Returns the progress so far, which advances by batches of requests.
    #[must_use]
    pub fn progress(&self) -> RunProgress {
        RunProgress {
            page_accesses: self.page_accesses.get(),
            trace_bytes_read: self.bytes_read.get(),
            trace_bytes_total: self.bytes_total.get(),
        }
    }
}
