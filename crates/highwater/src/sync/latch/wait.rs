//! Waiting for a latch: the queues, and a wait as a future that may be suspended between polls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::{EXCLUSIVE, Latch, LatchMode, PRESENT, QUEUED, READER, TURN, Untaken};
use super::{admits_reader, admits_writer};
use crate::sync::atomic::Ordering;
use crate::sync::block::block_on;
use crate::sync::lock::{LockClass, Mutex, Rank};
use crate::sync::{CachePadded, Woken};

static WAITERS_LOCK: LockClass = LockClass::new("latch waiters", Rank::Leaf);

/// Queues of different latches share a shard. Chosen: two threads seldom wait in one.
const SHARDS: usize = if cfg!(loom) { 1 } else { 64 };

/// Looks at a held latch before a thread joins the queue. Chosen: less than a microsecond.
const SPINS: u32 = if cfg!(loom) { 0 } else { 30 };

/// The queues of many latches, each named by a number.
#[derive(Debug)]
pub struct LatchQueues {
    shards: Box<[CachePadded<Mutex<Queue>>]>,
}

/// The waiters of some latches, in order.
#[derive(Debug, Default)]
struct Queue {
    waiters: Vec<LatchWaiter>,
    next_ticket: u64,
}

#[derive(Debug)]
struct LatchWaiter {
    latch: usize,
    ticket: u64,
    mode: LatchMode,
    /// Whether its waker unparks a thread, and runs no code of the program.
    is_thread: bool,
    was_woken: bool,
    waker: Waker,
}

/// Those that may take a latch, to be woken when the queue's lock is released.
#[derive(Default)]
struct Leading {
    threads: Vec<Waker>,
    tasks: Vec<Waker>,
}

impl Leading {
    /// Takes the waker of a waiter, which leaves another when it polls. Not a clone: that would run
    /// the program's code under the queue's lock.
    fn push(&mut self, waiter: &mut LatchWaiter) {
        let waker = std::mem::replace(&mut waiter.waker, Waker::noop().clone());
        match waiter.is_thread {
            true => self.threads.push(waker),
            false => self.tasks.push(waker),
        }
    }

    fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.tasks.is_empty()
    }

    /// Wakes them: threads at once, because they may be waited for in the midst of the caller's
    /// work, and tasks when that is done ([`Woken::held_by`]), for theirs is the program's code.
    fn wake(self) {
        self.threads.into_iter().for_each(Waker::wake);
        drop(Woken::from_iter(self.tasks));
    }
}

impl Queue {
    /// Returns whether no waiter before position `at` keeps another from the latch: it is the
    /// first, or a reader behind readers.
    fn is_leading(&self, latch: usize, at: usize, mode: LatchMode) -> bool {
        let before = self.waiters[..at].iter();
        let mut before = before.filter(|waiter| waiter.latch == latch).peekable();
        before.peek().is_none()
            || mode == LatchMode::Shared && before.all(|waiter| waiter.mode == LatchMode::Shared)
    }

    /// Returns the wakers of those that may take a free latch now.
    fn leading(&mut self, latch: usize) -> Leading {
        let mut wakers = Leading::default();
        for waiter in self.waiters.iter_mut().filter(|it| it.latch == latch) {
            if waiter.mode == LatchMode::Exclusive && !wakers.is_empty() {
                break;
            }
            waiter.was_woken = true;
            wakers.push(waiter);
            if waiter.mode == LatchMode::Exclusive {
                break;
            }
        }
        wakers
    }

    fn position(&self, ticket: Option<u64>) -> Option<usize> {
        let mut waiters = self.waiters.iter();
        waiters.position(|waiter| Some(waiter.ticket) == ticket)
    }

    /// Takes a waiter out, and the flags of the latch with the last one. Its waker is to be dropped
    /// outside the lock: that is the program's code.
    fn leave(&mut self, at: usize, latch: &Latch) -> LatchWaiter {
        let gone = self.waiters.remove(at);
        let is_first = |waiter: &LatchWaiter| waiter.latch == gone.latch;
        let flags = match self.waiters.iter().any(is_first) {
            true => TURN,
            false => TURN | QUEUED,
        };
        // Relaxed: under the queue's lock; a holder that still sees a flag looks into the queue.
        latch.0.fetch_and(!flags, Ordering::Relaxed);
        gone
    }
}

impl LatchQueues {
    /// Creates empty queues.
    #[cfg_attr(
        feature = "lab",
        expect(clippy::new_without_default, reason = "made in one place")
    )]
    pub fn new() -> Self {
        let shard = || CachePadded::new(Mutex::new(&WAITERS_LOCK, Queue::default()));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    fn shard(&self, latch: usize) -> &Mutex<Queue> {
        &self.shards[latch % SHARDS]
    }

    /// Wakes those that may take a latch that was released.
    #[cold]
    pub(super) fn wake(&self, latch: usize) {
        let wakers = self.shard(latch).lock().leading(latch);
        wakers.wake();
    }
}

/// Waits for a latch: true once it is held, false if it is absent or no longer wanted. Dropped
/// before, it leaves the queue.
#[derive(Debug)]
#[must_use = "nothing waits until it is polled"]
pub struct LatchWait<'l, F: Fn() -> bool> {
    latch: &'l Latch,
    queues: &'l LatchQueues,
    id: usize,
    mode: LatchMode,
    /// Whether the latch still guards the data that is wanted. Constant while it is present and
    /// waited for.
    is_wanted: F,
    ticket: Option<u64>,
    is_thread: bool,
}

impl<'l, F: Fn() -> bool + Unpin> LatchWait<'l, F> {
    /// Creates a wait for the latch with the number `id`.
    pub fn new(
        (latch, queues): (&'l Latch, &'l LatchQueues),
        id: usize,
        mode: LatchMode,
        is_wanted: F,
    ) -> Self {
        Self {
            latch,
            queues,
            id,
            mode,
            is_wanted,
            ticket: None,
            is_thread: false,
        }
    }

    /// Goes on with a wait that was suspended.
    pub fn resumed(mut self, ticket: Option<u64>) -> Self {
        debug_assert!(self.ticket.is_none(), "it has a place already");
        self.ticket = ticket;
        self
    }

    /// Suspends the wait: returns its place in the queue, which is kept.
    pub fn suspend(mut self) -> Option<u64> {
        self.ticket.take()
    }

    /// Blocks the thread until the wait is over; counts the time for `class`.
    #[cold]
    pub fn block(mut self, class: &'static LockClass) -> bool {
        for _ in 0..SPINS {
            let taken = match self.mode {
                LatchMode::Shared => self.latch.try_shared(),
                LatchMode::Exclusive => self.latch.try_exclusive(),
            };
            match taken {
                // The caller checks that it is the latch that it wants.
                Ok(()) => return true,
                Err(Untaken::Absent) => return false,
                Err(Untaken::Held) => std::hint::spin_loop(),
            }
        }
        self.is_thread = true;
        class.timed(|| block_on(self, None)).unwrap_or(false)
    }

    /// Takes the latch, or notes in its word that it is waited for.
    fn take_or_queue(&self, queue: &Queue, at: Option<usize>) -> Result<(), Untaken> {
        let before = at.unwrap_or(queue.waiters.len());
        let is_leading = queue.is_leading(self.id, before, self.mode);
        let was_passed = is_leading && at.is_some_and(|at| queue.waiters[at].was_woken);
        let turn = if was_passed { TURN } else { 0 };
        // Acquire. Pairs with: the release of `put`, for `is_wanted`.
        let mut seen = self.latch.0.load(Ordering::Acquire);
        // Terminates: as in `try_shared`.
        loop {
            if seen & PRESENT == 0 || !(self.is_wanted)() {
                return Err(Untaken::Absent);
            }
            let (is_admitted, held) = match self.mode {
                LatchMode::Shared => (admits_reader(seen), seen + READER),
                LatchMode::Exclusive => (admits_writer(seen), seen | EXCLUSIVE),
            };
            let takes = is_leading && is_admitted;
            let next = if takes { held } else { seen | QUEUED | turn };
            match self.latch.exchange(seen, next) {
                Ok(()) if takes => {
                    if self.mode == LatchMode::Exclusive {
                        self.latch.begin_writes();
                    }
                    return Ok(());
                }
                Ok(()) => return Err(Untaken::Held),
                Err(now) => seen = now,
            }
        }
    }
}

impl<F: Fn() -> bool + Unpin> Future for LatchWait<'_, F> {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let this = &mut *self;
        // A waker is the program's code: it is cloned before anything is noted.
        let waker = context.waker().clone();
        let mut queue = this.queues.shard(this.id).lock();
        let at = queue.position(this.ticket);
        let taken = this.take_or_queue(&queue, at);
        if taken == Err(Untaken::Held) {
            let before = match at {
                Some(at) => Some(std::mem::replace(&mut queue.waiters[at].waker, waker)),
                None => {
                    queue.next_ticket += 1;
                    let ticket = queue.next_ticket;
                    this.ticket = Some(ticket);
                    queue.waiters.push(LatchWaiter {
                        latch: this.id,
                        ticket,
                        mode: this.mode,
                        is_thread: this.is_thread,
                        was_woken: false,
                        waker,
                    });
                    None
                }
            };
            drop(queue);
            drop(before);
            return Poll::Pending;
        }
        let (mut wakers, mut gone) = (Leading::default(), None);
        if let Some(at) = at {
            gone = Some(queue.leave(at, this.latch));
            // Readers that came after the wake-up share the latch.
            if this.mode == LatchMode::Shared || taken.is_err() {
                wakers = queue.leading(this.id);
            }
        }
        this.ticket = None;
        drop(queue);
        // A waker is the program's code: if it panicked, the latch would stay taken.
        let _ = catch_unwind(AssertUnwindSafe(|| drop((gone, waker))));
        wakers.wake();
        Poll::Ready(taken.is_ok())
    }
}

impl<F: Fn() -> bool> LatchWait<'_, F> {
    /// Leaves the queue.
    pub fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else {
            return;
        };
        let mut queue = self.queues.shard(self.id).lock();
        let at = queue.position(Some(ticket));
        let gone = at.map(|at| queue.leave(at, self.latch));
        // A wake-up that this waiter has got is for the next one.
        let wakers = queue.leading(self.id);
        drop(queue);
        wakers.wake();
        // Last: if the program's code panicked, none of those would be woken.
        drop(gone);
    }
}

impl<F: Fn() -> bool> Drop for LatchWait<'_, F> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::{Arc, LatchedData, thread};

    static CLASS: LockClass = LockClass::new("latch", Rank::Latch);

    // Goal: a thread that waits for a latch is not held back with tasks. Method: one that is waited
    // for within `held_by`.
    #[test]
    fn threads_are_woken_while_tasks_are_held_back() {
        let (latch, queues) = (Arc::new(Latch::default()), Arc::new(LatchQueues::new()));
        latch.put();
        latch.try_exclusive().expect("it is free");
        let waiting = {
            let (latch, queues) = (Arc::clone(&latch), Arc::clone(&queues));
            thread::spawn(move || {
                let wait = LatchWait::new((&latch, &queues), 0, LatchMode::Shared, || true);
                assert!(wait.block(&CLASS));
                latch.release_shared(&queues, 0);
            })
        };
        while queues.shard(0).lock().waiters.is_empty() {
            thread::yield_now();
        }
        let ((), woken) = Woken::held_by(|| {
            latch.release_exclusive(LatchedData::Unchanged, &queues, 0);
            waiting.join().expect("it has the latch");
        });
        drop(woken);
    }
}
