//! Simulated clock that only the work of a few threads advances: they take turns, so that results
//! do not depend on the number and speed of CPUs, or on other programs.
//!
//! Each thread has a time of its own, to which it adds the cost of its work on the simulated
//! machine. The thread with the least time runs; a thread that gets ahead of another by more than
//! [`LEAD`] waits for it. The work itself is real: memory, locks, files, and the order of
//! operations on them.
//!
//! The library reports reclaim's part ([`Pacer`]): it scanned so many pages; or it needs a lock
//! that another thread holds, and the holder runs first.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use highwater::lab::reclaim::{Actor, Pacer};

/// How far a thread may get ahead before it waits for others. Chosen: a tenth of B's hold time, or
/// a fifth beside C; a smaller lead wakes threads more often.
const LEAD: Duration = Duration::from_micros(20);

/// The threads that take turns; at equal times, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    B,
    A,
    Reclaimer,
    C,
}

const ALL: [Who; 4] = [Who::B, Who::A, Who::Reclaimer, Who::C];

thread_local! {
    /// The calling thread's role, if it takes part.
    static ME: Cell<Option<Who>> = const { Cell::new(None) };
}

/// The clock.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
    called: [Condvar; ALL.len()],
    /// Cost of scanning a page.
    look: Duration,
}

#[derive(Debug)]
struct State {
    /// The time of each thread; `None` if it does not take part.
    times: [Option<Duration>; ALL.len()],
    turn: Who,
    /// Times for which reclaim waited for a held lock.
    blocked: Vec<Duration>,
}

impl State {
    fn time(&mut self, who: Who) -> &mut Duration {
        let time = self.times[who as usize].as_mut();
        time.expect("a thread that moves the clock takes part")
    }

    /// Returns the thread that runs next: the one with the least time, if `me` is ahead of it by
    /// more than `lead`.
    fn next(&self, me: Who, lead: Duration) -> Option<Who> {
        let times = ALL.map(|who| Some((self.times[who as usize]?, who)));
        let (least, who) = times.into_iter().flatten().min_by_key(|(time, _)| *time)?;
        let is_far = |mine: Duration| mine > least + lead;
        (who != me && self.times[me as usize].is_none_or(is_far)).then_some(who)
    }
}

impl Turns {
    /// Creates a clock at time 0, with A's turn first. `takes_part` selects the threads.
    pub(super) fn new(look: Duration, takes_part: impl Fn(Who) -> bool) -> Self {
        Self {
            state: Mutex::new(State {
                times: ALL.map(|who| takes_part(who).then_some(Duration::ZERO)),
                turn: Who::A,
                blocked: Vec::new(),
            }),
            called: Default::default(),
            look,
        }
    }

    /// Makes the calling thread take turns until the result is dropped.
    pub(super) fn join(&self, who: Who) -> Seat<'_> {
        ME.set(Some(who));
        self.wait_for_turn(self.lock(), who);
        Seat { turns: self, who }
    }

    /// Returns the time of the calling thread.
    pub(super) fn now(&self) -> Duration {
        let me = ME.get().expect("it takes part");
        *self.lock().time(me)
    }

    /// Adds the cost of the calling thread's work; no effect on a thread that does not take part.
    pub(super) fn takes(&self, time: Duration) {
        self.takes_within(time, LEAD);
    }

    /// As [`takes`](Self::takes), but keeps the turn: the calling thread holds something that
    /// others may need.
    pub(super) fn adds(&self, time: Duration) {
        if let Some(me) = ME.get() {
            *self.lock().time(me) += time;
        }
    }

    /// As [`takes`](Self::takes), but every thread with less time runs first.
    pub(super) fn sleeps(&self, time: Duration) {
        self.takes_within(time, Duration::ZERO);
    }

    /// Lets the other threads run, then polls again after `at_least`.
    pub(super) fn rests(&self, at_least: Duration) {
        let Some(me) = ME.get() else { return };
        let mut state = self.lock();
        let mine = *state.time(me);
        let others = ALL.into_iter().filter(|who| *who != me);
        let least = others.filter_map(|who| state.times[who as usize]).min();
        *state.time(me) = least.unwrap_or(mine).max(mine) + at_least;
        self.pass(state, me, LEAD);
    }

    /// Returns the times for which reclaim waited for a held lock.
    pub(super) fn blocked(&self) -> Vec<Duration> {
        self.lock().blocked.clone()
    }

    fn takes_within(&self, time: Duration, lead: Duration) {
        let Some(me) = ME.get() else { return };
        let mut state = self.lock();
        *state.time(me) += time;
        self.pass(state, me, lead);
    }

    fn pass(&self, mut state: MutexGuard<'_, State>, me: Who, lead: Duration) {
        let Some(next) = state.next(me, lead) else {
            return;
        };
        state.turn = next;
        self.called[next as usize].notify_one();
        if state.times[me as usize].is_some() {
            self.wait_for_turn(state, me);
        }
    }

    fn wait_for_turn(&self, mut state: MutexGuard<'_, State>, me: Who) {
        let called = &self.called[me as usize];
        while state.turn != me {
            state = called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pacer for Turns {
    fn looked(&self, _: Actor, pages: u64) {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        self.takes(self.look.saturating_mul(pages));
    }

    fn contended(&self) {
        let Some(me) = ME.get() else { return };
        let mut state = self.lock();
        // B's time is when it releases the lock.
        let free_at = *state.time(Who::B);
        let waited = free_at.saturating_sub(*state.time(me));
        state.blocked.push(waited);
        // B runs first, because it has less time.
        *state.time(me) += waited + Duration::from_nanos(1);
        self.pass(state, me, Duration::ZERO);
    }
}

/// The calling thread takes turns while this lives.
pub(super) struct Seat<'a> {
    turns: &'a Turns,
    who: Who,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        ME.set(None);
        let mut state = self.turns.lock();
        state.times[self.who as usize] = None;
        self.turns.pass(state, self.who, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    /// Goal: work is done in the order of its times, on any thread. Method: two threads note when
    /// they do work of different times, more than the lead; a third is late.
    #[test]
    fn who_is_behind_goes_first() {
        let turns = Turns::new(Duration::ZERO, |who| who != Who::C);
        let done = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for (who, takes) in [(Who::A, 100), (Who::B, 70), (Who::Reclaimer, 1000)] {
                let (turns, done) = (&turns, &done);
                scope.spawn(move || {
                    let _seat = turns.join(who);
                    for _ in 0..1000 / takes {
                        turns.takes(Duration::from_micros(takes));
                        done.lock().unwrap().push(turns.now());
                    }
                });
            }
        });
        let done = done.into_inner().unwrap();
        assert_eq!(done.len(), 10 + 14 + 1);
        let in_order = |pair: &[Duration]| pair[0] <= pair[1] + LEAD;
        assert!(done.windows(2).all(in_order), "{done:?}");
    }

    /// Goal: a thread that needs a held lock waits until its holder's time, and the holder runs
    /// first. Method: B holds a flag; the reclaimer asks again until it is down.
    #[test]
    fn a_held_lock_is_waited_for_until_its_holder_has_let_go() {
        let look = Duration::from_micros(1);
        let turns = Turns::new(look, |who| who != Who::C);
        let (is_held, held_until) = (AtomicBool::new(false), Duration::from_micros(500));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _seat = turns.join(Who::B);
                is_held.store(true, Ordering::Relaxed);
                turns.sleeps(held_until);
                is_held.store(false, Ordering::Relaxed);
                turns.sleeps(held_until);
            });
            scope.spawn(|| {
                let _seat = turns.join(Who::Reclaimer);
                turns.looked(Actor::Background, 100);
                assert_eq!(turns.now(), 100 * look);
                while is_held.load(Ordering::Relaxed) {
                    turns.contended();
                }
                assert!((held_until..2 * held_until).contains(&turns.now()));
            });
            let _seat = turns.join(Who::A);
            turns.takes(4 * held_until);
        });
        let blocked = turns.blocked();
        assert_eq!(blocked, [held_until - 100 * look]);
    }
}
