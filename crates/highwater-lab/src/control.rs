//! Progress and cancellation of a run: of an experiment, or of a replay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater::lab::sync::StatCell;
use thiserror::Error;

/// A request to stop. Clones are one request.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Written by: any thread, such as a signal's handler or a failing worker. Read by: the run
    /// between steps, and while it waits for input. Publishes nothing: the reason is passed
    /// elsewhere.
    is_requested: Arc<AtomicBool>,
}

impl Stop {
    /// Requests it.
    pub fn request(&self) {
        // Relaxed: the flag publishes no other data.
        self.is_requested.store(true, Ordering::Relaxed);
    }

    /// Returns whether it was requested.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        // Relaxed: see `request`.
        self.is_requested.load(Ordering::Relaxed)
    }

    /// Returns the flag, for a signal's handler to set.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_requested)
    }
}

/// Shared between a run and the threads that watch it.
#[derive(Debug, Default)]
pub struct Control {
    stop: Stop,
    done: StatCell,
    total: StatCell,
    page_accesses: StatCell,
}

/// Progress of a run, in steps: of the experiment's own size, or bytes of a replay's traces as
/// stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub done: u64,
    /// Steps known to be needed; the number may grow during the run.
    pub total: u64,
    /// Pages that a replay accessed.
    pub page_accesses: u64,
}

/// The run was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("interrupted")]
pub struct Interrupted;

impl Control {
    /// Creates the control of a run that also ends at this request.
    #[must_use]
    pub fn stopped_by(stop: Stop) -> Self {
        Self {
            stop,
            ..Self::default()
        }
    }

    /// Tells the run to stop: it ends with an error at its next step, after at most one page access
    /// of each worker of a replay, and leaves nothing behind.
    pub fn stop(&self) {
        self.stop.request();
    }

    /// Returns whether the run was told to stop. For threads that cannot return an error
    /// themselves.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stop.is_requested()
    }

    /// Returns the progress so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            done: self.done.get(),
            total: self.total.get(),
            page_accesses: self.page_accesses.get(),
        }
    }

    /// Adds `steps` to the steps that are needed.
    pub fn expect(&self, steps: u64) {
        self.total.add(steps);
    }

    /// Adds `steps` to the steps that are done. The run calls it every few milliseconds.
    ///
    /// # Errors
    ///
    /// When the run was told to stop; the caller passes the error on.
    pub fn advance(&self, steps: u64) -> Result<(), Interrupted> {
        self.done.add(steps);
        match self.is_stopped() {
            true => Err(Interrupted),
            false => Ok(()),
        }
    }

    /// Adds to the pages that a replay accessed.
    pub(crate) fn count_accesses(&self, pages: u64) {
        self.page_accesses.add(pages);
    }
}
