//! Progress and cancellation of a run.

use std::sync::atomic::{AtomicBool, Ordering};

use highwater::lab::sync::StatCell;

use super::ExperimentError;

/// Shared between a run and the threads that watch it.
#[derive(Debug, Default)]
pub struct Control {
    /// Whether to stop. Written by any thread, read by the run between steps. Publishes nothing.
    is_stopped: AtomicBool,
    done: StatCell,
    total: StatCell,
}

/// Progress of a run, in steps of the experiment's own size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub done: u64,
    /// Steps known to be needed; the number may grow during the run.
    pub total: u64,
}

impl Control {
    /// Tells the run to stop: it ends with [`ExperimentError::Interrupted`] at its next step and
    /// leaves nothing behind.
    pub fn stop(&self) {
        // Relaxed: the flag publishes no other data.
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Returns whether the run was told to stop. For threads that cannot return an error
    /// themselves.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // Relaxed: as above.
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Returns the progress so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            done: self.done.get(),
            total: self.total.get(),
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
    /// [`ExperimentError::Interrupted`] when the run was told to stop; the caller passes it on.
    pub fn advance(&self, steps: u64) -> Result<(), ExperimentError> {
        self.done.add(steps);
        if self.is_stopped() {
            return Err(ExperimentError::Interrupted);
        }
        Ok(())
    }
}
