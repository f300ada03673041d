//! Where threads wait for each other, as at a barrier, but not for one that panicked.
//!
//! A barrier waits for ever for a thread that is gone, and the message of its panic is lost behind
//! a run that does not end. Here the others panic too, and the scope that they belong to hands the
//! panic on.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A place where a fixed number of threads meet, again and again.
#[derive(Debug)]
pub(super) struct Meeting {
    threads: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// Times that all have met.
    met: u64,
    is_broken: bool,
}

/// Breaks its meeting up if it is dropped by a panic.
#[derive(Debug)]
pub(super) struct Member<'a>(&'a Meeting);

impl Meeting {
    pub(super) fn new(threads: usize) -> Self {
        Self {
            threads,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// To be kept by each thread for as long as it may be waited for.
    pub(super) fn member(&self) -> Member<'_> {
        Member(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member<'_> {
    /// Waits until all are here.
    ///
    /// # Panics
    ///
    /// If one of them has panicked.
    pub(super) fn wait(&self) {
        let Self(meeting) = self;
        let mut state = meeting.state();
        let met = state.met;
        state.waiting += 1;
        if state.waiting == meeting.threads {
            state.waiting = 0;
            state.met += 1;
            meeting.changed.notify_all();
        }
        let waits = |state: &mut State| state.met == met && !state.is_broken;
        let state = meeting.changed.wait_while(state, waits);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let is_met = state.met != met;
        drop(state);
        assert!(is_met, "another thread of this round has panicked");
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.state().is_broken = true;
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Goal: nobody goes on before all are here. Method: three threads that count their steps, and
    /// look at the sum when all have met.
    #[test]
    fn all_meet() {
        let (meeting, steps) = (Meeting::new(3), AtomicU64::new(0));
        let walk = || {
            let member = meeting.member();
            for round in 1..=100 {
                steps.fetch_add(1, Ordering::Relaxed);
                member.wait();
                assert_eq!(steps.load(Ordering::Relaxed), 3 * round);
                member.wait();
            }
        };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(walk);
            }
        });
    }

    /// Goal: nobody waits for a thread that panicked, however early or late it does. Method: one of
    /// three panics before or after the others have come.
    #[test]
    fn a_panic_ends_the_meeting() {
        for is_late in [false, true] {
            let result = catch_unwind(|| {
                let meeting = Meeting::new(3);
                thread::scope(|scope| {
                    for number in 0..3 {
                        let meeting = &meeting;
                        scope.spawn(move || {
                            let member = meeting.member();
                            if number == 0 {
                                while is_late && meeting.state().waiting < 2 {
                                    thread::yield_now();
                                }
                                panic!("on purpose");
                            }
                            member.wait();
                        });
                    }
                });
            });
            assert!(result.is_err());
        }
    }
}
