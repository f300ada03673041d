//! The thread that flushes the root every two seconds during a round.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::baselines::flush::{Flushing, PERIOD};

/// Signals the end of a round to the threads that wait for it.
#[derive(Debug, Default)]
pub(super) struct End {
    is_over: Mutex<bool>,
    told: Condvar,
}

/// Tells of the end when it is dropped, also by a panic.
#[derive(Debug)]
pub(super) struct Ends<'a>(&'a End);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let Self(end) = self;
        *end.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        end.told.notify_all();
    }
}

impl End {
    pub(super) fn ends(&self) -> Ends<'_> {
        Ends(self)
    }

    /// Returns whether the round ended within `time`.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .told
            .wait_timeout_while(is_over, time, |is_over| !*is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Flushes the root once for each period that passes, until the end. Starts at period number
/// `period`, and returns the number of the next one.
pub(super) fn flush_until(
    end: &End,
    statistics: &dyn Flushing,
    mut period: u32,
    now: impl Fn() -> Duration,
) -> u32 {
    loop {
        let due = PERIOD * period;
        if end.wait(due.saturating_sub(now())) {
            return period;
        }
        if now() >= due {
            statistics.flush_periodic(now());
            period += 1;
        }
    }
}
