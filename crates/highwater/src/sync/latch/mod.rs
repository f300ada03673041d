//! Latches: reader-writer locks of one word, with a version for optimistic readers (seqcount).
//!
//! The word of a [`Latch`] holds the number of readers, flags and a version:
//!
//! | bits | meaning |
//! |---|---|
//! | readers | shared holders |
//! | `EXCLUSIVE` | held exclusively |
//! | `PRESENT` | there is something behind the latch; without it, it is not taken |
//! | `QUEUED` | threads or tasks wait: readers do not pass them, and it stays present |
//! | `TURN` | the first of those was passed by another: writers do not pass it either |
//! | `KEPT` | it stays present, although it is not held |
//! | version | changes with each exclusive hold that wrote, and with each [`retire`](Latch::retire) |
//!
//! *Holders* take and release by one atomic step each. A thread that has to wait joins a queue, in
//! FIFO order, and sets `QUEUED` in the same word that shows the holder, so that the holder's
//! release sees it. A release wakes the first in the queue: one writer, or all readers up to the
//! next writer. They stay in the queue until they have the latch. A thread that did not wait may
//! be faster than one that was woken, which spares a context switch; it passes it once, as `TURN`
//! then keeps others out.
//!
//! *Optimistic readers* write nothing. They note the version, read, and look at the word again:
//! if the version is the same and it is not held exclusively, nothing changed in between. The
//! version has 41 bits, and an unchanged version is mistaken only by a reader that sleeps during
//! exactly a multiple of 2^41 changes, which takes hours of nothing else.
//!
//! Source: seqcount of Linux; H. Boehm, "Can seqlocks get along with programming language memory
//! models?" (2012) for the fences; optimistic lock coupling (Leis et al. 2016). Deviation: readers
//! that do wait have their place in the same word, and a hold that wrote nothing is not a change.

#[cfg(all(test, loom))]
mod loom;
mod wait;

use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::lock::{HeldRank, LockClass};
pub use wait::{LatchQueues, LatchWait};

const READER: u64 = 1;
const READERS: u64 = (1 << 18) - 1;
const EXCLUSIVE: u64 = 1 << 18;
const PRESENT: u64 = 1 << 19;
const QUEUED: u64 = 1 << 20;
const TURN: u64 = 1 << 21;
const KEPT: u64 = 1 << 22;
const VERSION: u64 = 1 << 23;
/// The bits in which an optimistic reader sees a change.
const SEEN: u64 = !(VERSION - 1) | EXCLUSIVE | PRESENT;

/// A latch. See the module.
///
/// Written by: holders, threads that wait. Read by: any thread. Publishes: the data behind the
/// latch.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Latch(AtomicU64);

/// A way to hold a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatchMode {
    /// With other readers.
    Shared,
    /// Alone.
    Exclusive,
}

/// The reason why a latch was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untaken {
    /// Others hold it, or wait for it.
    Held,
    /// There is nothing behind it.
    Absent,
}

const fn reason(seen: u64) -> Untaken {
    if seen & PRESENT == 0 {
        Untaken::Absent
    } else {
        Untaken::Held
    }
}

/// Returns whether a word lets another reader in, apart from threads that wait.
const fn admits_reader(seen: u64) -> bool {
    seen & EXCLUSIVE == 0 && seen & READERS != READERS
}

/// Returns whether a word lets a writer in, apart from threads that wait.
const fn admits_writer(seen: u64) -> bool {
    seen & (EXCLUSIVE | READERS) == 0
}

/// The data behind a latch at the end of an exclusive hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatchedData {
    /// As before: optimistic readers see no change.
    Unchanged,
    /// It may have been written.
    Changed,
}

impl LatchedData {
    /// Returns the addition to the word: a version, or none.
    const fn versions(self) -> u64 {
        match self {
            Self::Unchanged => 0,
            Self::Changed => VERSION,
        }
    }
}

impl Latch {
    /// Takes it shared if that does not wait.
    #[inline]
    pub(crate) fn try_shared(&self) -> Result<(), Untaken> {
        // Acquire. Pairs with: the release of `retire`: a sync that finds a page gone makes durable
        // the bytes that were written of it before.
        let mut seen = self.0.load(Ordering::Acquire);
        // Terminates: a failed exchange is another thread's progress.
        loop {
            if seen & (PRESENT | QUEUED) != PRESENT || !admits_reader(seen) {
                return Err(reason(seen));
            }
            match self.exchange(seen, seen + READER) {
                Ok(()) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes it exclusively if that does not wait.
    #[inline]
    pub(crate) fn try_exclusive(&self) -> Result<(), Untaken> {
        self.try_exclusive_without(TURN)
    }

    /// As [`try_exclusive`](Self::try_exclusive), to make it absent: fails if it is waited for or
    /// kept.
    pub(crate) fn try_exclusive_to_retire(&self) -> Result<(), Untaken> {
        self.try_exclusive_without(TURN | QUEUED | KEPT)
    }

    #[inline]
    fn try_exclusive_without(&self, flags: u64) -> Result<(), Untaken> {
        // Acquire. Pairs with: as in `try_shared`.
        let mut seen = self.0.load(Ordering::Acquire);
        // Terminates: as in `try_shared`.
        loop {
            if seen & (PRESENT | flags) != PRESENT || !admits_writer(seen) {
                return Err(reason(seen));
            }
            match self.exchange(seen, seen | EXCLUSIVE) {
                Ok(()) => break,
                Err(now) => seen = now,
            }
        }
        self.begin_writes();
        Ok(())
    }

    #[inline]
    fn exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        // Acquire, also on failure, for `is_wanted`. Pairs with: the releases of former holders,
        // and of `put`.
        let acquire = Ordering::Acquire;
        self.0
            .compare_exchange(from, to, acquire, acquire)
            .map(|_| ())
    }

    /// Called by a new exclusive holder.
    #[inline]
    fn begin_writes(&self) {
        // Release. Pairs with: the fence of `is_unchanged`: an optimistic reader that sees a later
        // write sees the flag, or the next version.
        fence(Ordering::Release);
    }

    /// Turns a shared hold into an exclusive one, if there is no other holder.
    pub(crate) fn try_upgrade(&self) -> bool {
        // Relaxed: the exchange decides.
        let mut seen = self.0.load(Ordering::Relaxed);
        // Terminates: as in `try_shared`.
        while seen & READERS == READER {
            match self.exchange(seen, (seen - READER) | EXCLUSIVE) {
                Ok(()) => {
                    self.begin_writes();
                    return true;
                }
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Takes it exclusively if it is free and nothing has changed since `seen`.
    pub(crate) fn try_exclusive_since(&self, seen: Seen) -> bool {
        // Relaxed: the exchange decides.
        let mut word = self.0.load(Ordering::Relaxed);
        // Terminates: as in `try_shared`.
        while word & SEEN == seen.0 && admits_writer(word) && word & TURN == 0 {
            match self.exchange(word, word | EXCLUSIVE) {
                Ok(()) => {
                    self.begin_writes();
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }

    /// Turns an exclusive hold into a shared one.
    pub(crate) fn downgrade(&self, data: LatchedData, queues: &LatchQueues, id: usize) {
        // Wraps, if the version does.
        let less = (EXCLUSIVE - READER).wrapping_sub(data.versions());
        // Release. Pairs with: `exchange`, and the acquire of `see`.
        let was = self.0.fetch_sub(less, Ordering::Release);
        debug_assert!(was & EXCLUSIVE != 0 && was & READERS == 0, "{was:#x}");
        if was & QUEUED != 0 {
            queues.wake(id);
        }
    }

    /// Ends a shared hold.
    #[inline]
    pub(crate) fn release_shared(&self, queues: &LatchQueues, id: usize) {
        // Release. Pairs with: `exchange` of the next writer.
        let was = self.0.fetch_sub(READER, Ordering::Release);
        debug_assert!(was & READERS != 0, "{was:#x}");
        // The last one, or one of as many as there can be: a reader may wait for room.
        if was & QUEUED != 0 && matches!(was & READERS, READER | READERS) {
            queues.wake(id);
        }
    }

    /// Ends an exclusive hold, which is a change if it has written.
    #[inline]
    pub(crate) fn release_exclusive(&self, data: LatchedData, queues: &LatchQueues, id: usize) {
        // Wraps, if the version does.
        let less = EXCLUSIVE.wrapping_sub(data.versions());
        // Release. Pairs with: `exchange`, and the acquire of `see`.
        let was = self.0.fetch_sub(less, Ordering::Release);
        debug_assert!(was & EXCLUSIVE != 0 && was & READERS == 0, "{was:#x}");
        if was & QUEUED != 0 {
            queues.wake(id);
        }
    }

    /// Ends an exclusive hold and makes it absent, which is a change; false, without effect, if it
    /// is waited for or kept.
    pub(crate) fn retire(&self) -> bool {
        // Relaxed: the exchange decides.
        let mut seen = self.0.load(Ordering::Relaxed);
        // Terminates: as in `try_shared`.
        while seen & (QUEUED | KEPT) == 0 {
            debug_assert!(seen & EXCLUSIVE != 0, "{seen:#x}");
            let absent = (seen & !(EXCLUSIVE | PRESENT)).wrapping_add(VERSION);
            // Release. Pairs with: the acquire of `see`.
            let (retired, failed) = (Ordering::Release, Ordering::Relaxed);
            match self.0.compare_exchange(seen, absent, retired, failed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }

    /// Makes an absent latch present, and free.
    pub(crate) fn put(&self) {
        // Release. Pairs with: `exchange`, and the acquire of `see`.
        let was = self.0.fetch_or(PRESENT, Ordering::Release);
        let held = was & (PRESENT | EXCLUSIVE | READERS | QUEUED);
        assert_eq!(held, 0, "a latch was filled while there was something");
    }

    /// Returns whether there is something behind it at this moment.
    pub(crate) fn is_present(&self) -> bool {
        // Relaxed: for checks in quiescence.
        self.0.load(Ordering::Relaxed) & PRESENT != 0
    }

    /// Keeps it present until [`unkeep`](Self::unkeep). One thread at a time may do so.
    pub(crate) fn keep(&self) {
        // Relaxed: eviction first takes the page off a list, whose lock orders this.
        let was = self.0.fetch_or(KEPT, Ordering::Relaxed);
        debug_assert_eq!(was & KEPT, 0, "one keeps it at a time");
    }

    /// Undoes [`keep`](Self::keep).
    pub(crate) fn unkeep(&self) {
        // Relaxed: it orders nothing.
        let was = self.0.fetch_and(!KEPT, Ordering::Relaxed);
        debug_assert_ne!(was & KEPT, 0, "kept before");
    }

    /// Returns the version for an optimistic read; `None` while it is held exclusively or absent.
    #[inline(always)]
    pub(crate) fn see(&self) -> Option<Seen> {
        // Acquire. Pairs with: the releases of writers, and of `put`.
        let seen = self.0.load(Ordering::Acquire) & SEEN;
        (seen & (EXCLUSIVE | PRESENT) == PRESENT).then_some(Seen(seen))
    }

    /// Returns whether nothing has changed since `seen`.
    #[inline(always)]
    pub(crate) fn is_unchanged(&self, seen: Seen) -> bool {
        // Acquire. Pairs with: the fence of `begin_writes`, and of the owner of the frame that was
        // retired. The reads before it are over.
        fence(Ordering::Acquire);
        // Relaxed: the fence orders it.
        self.0.load(Ordering::Relaxed) & SEEN == seen.0
    }
}

/// The state of a latch that an optimistic reader has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl LockClass {
    /// Checks the lock order, as taking a lock of this class does.
    ///
    /// # Panics
    ///
    /// In debug builds, when a lock of the same or a higher rank is held.
    #[inline]
    pub(crate) fn check_order(&'static self) {
        drop(HeldRank::in_order(self));
    }

    /// Counts a wait for a lock of this class.
    fn timed<R>(&self, wait: impl FnOnce() -> R) -> R {
        #[cfg(not(loom))]
        let since = std::time::Instant::now();
        let result = wait();
        #[cfg(not(loom))]
        self.waited(since);
        result
    }
}
