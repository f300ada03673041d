//! How an experiment is watched and stopped from outside.

use std::sync::atomic::{AtomicBool, Ordering};

use highwater::sync::StatCell;

use super::ExperimentError;

/// Shared between a run and those who watch it.
#[derive(Debug, Default)]
pub struct Control {
    /// Whether to stop. Written by anyone, read by the run between steps. Publishes nothing.
    is_stopped: AtomicBool,
    done: StatCell,
    total: StatCell,
}

/// How far a run has come, in steps of the experiment's own size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub done: u64,
    /// Steps known to be necessary; more may become known.
    pub total: u64,
}

impl Control {
    /// Tells the run to stop: it ends with [`ExperimentError::Interrupted`] at its next step, and
    /// leaves nothing behind.
    pub fn stop(&self) {
        // Relaxed: the flag alone is the message.
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Whether the run was told to stop. For threads that cannot return an error themselves.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // Relaxed: as above.
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// How far the run has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            done: self.done.get(),
            total: self.total.get(),
        }
    }

    /// Says that `steps` more will be done.
    pub fn expect(&self, steps: u64) {
        self.total.add(steps);
    }

    /// Says that `steps` have been done. To be called every few milliseconds.
    ///
    /// # Errors
    ///
    /// When the run was told to stop; to be passed on.
    pub fn advance(&self, steps: u64) -> Result<(), ExperimentError> {
        self.done.add(steps);
        if self.is_stopped() {
            return Err(ExperimentError::Interrupted);
        }
        Ok(())
    }
}
