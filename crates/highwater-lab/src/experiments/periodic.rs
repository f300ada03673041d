//! The thread that flushes the root every two seconds, beside a round of work.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::baselines::flush::{Flushing, PERIOD};

/// Says that a round is over, and wakes who waits for it.
#[derive(Debug, Default)]
pub(super) struct End {
    is_over: Mutex<bool>,
    told: Condvar,
}

impl End {
    pub(super) fn tell(&self) {
        *self.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }

    /// Whether the round was over within `time`.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .told
            .wait_timeout_while(is_over, time, |is_over| !*is_over);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Flushes the root whenever another period has passed, until the end. Begins with number `period`,
/// and returns the number of the one that is due next.
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
