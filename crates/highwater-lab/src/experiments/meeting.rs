//! A barrier that a panic breaks, instead of leaving the other threads to wait forever.
//!
//! `std::sync::Barrier` waits forever for a thread that has panicked, and the panic's message is
//! lost in a run that does not end. Here the other threads panic too, and their scope propagates
//! the panic.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A barrier for a fixed number of threads, for many rounds.
#[derive(Debug)]
pub(super) struct Meeting {
    threads: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    /// Rounds completed.
    met: u64,
    is_broken: bool,
}

/// Membership of one thread; breaks the meeting when a panic drops it.
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

    /// Returns the calling thread's membership, which it keeps for as long as others may wait for
    /// it.
    pub(super) fn member(&self) -> Member<'_> {
        Member(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member<'_> {
    /// Waits until all members have arrived.
    ///
    /// # Panics
    ///
    /// When another member has panicked.
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

    /// Goal: no thread passes before all have arrived. Method: three threads count their steps and
    /// check the sum after each meeting.
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

    /// Goal: a panic ends the wait of the other threads, however early or late it comes. Method:
    /// one of three threads panics before or after the others arrive.
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
