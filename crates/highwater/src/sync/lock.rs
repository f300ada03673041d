//! Parking locks with contention statistics and a checked lock order (lockdep).
//!
//! [`Rank`] is the lock-order table: a thread may take a lock only if its rank is above that of
//! every lock it holds. Debug builds track the held ranks of each thread and panic on a violation,
//! so that the first test that could deadlock finds it, not the first that does. A `try_`
//! acquisition may be out of order: it does not wait.
//!
//! Costs: an uncontended acquisition adds nothing in release builds. A contended one reads the
//! clock twice and adds to two statistics of the class.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::stat::StatCell;

/// The lock order of the whole library, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Contents of one frame. A thread may hold several, in an order that it chooses.
    Latch,
    /// One CPU's batch of pages to add to the lists.
    AddBatch,
    /// Open files of the manager.
    Files,
    /// Table of spaces.
    Spaces,
    /// Victim selection, one thread at a time.
    Selection,
    /// Shape of the group tree.
    Groups,
    /// One part of the names of groups.
    GroupNames,
    /// Flushing one group's statistics. A thread may hold several, of ancestors before descendants.
    Statistics,
    /// The embedder's handler for victims.
    Victim,
    /// Areas that map one file: its reverse map.
    Rmap,
    /// One shard of the page index.
    PageIndex,
    /// Shared position of the reclaimers of one target.
    ReclaimCursor,
    /// Table of lruvecs.
    Lruvecs,
    /// LRU lists of one group.
    Lruvec,
    /// Shadows of evicted pages.
    Shadows,
    /// Resizing a pool of frames.
    Balloon,
    /// Tunables of a pool of frames.
    Knobs,
    /// One CPU's list of free frames.
    Pcp,
    /// One zone's buddy allocator.
    Zone,
    /// Leaf locks: no other lock is taken under them. Wake-ups, registries of seats.
    Leaf,
}

impl Rank {
    /// Returns whether a thread may hold several locks of this rank at once.
    #[cfg(all(debug_assertions, not(loom)))]
    const fn is_nestable(self) -> bool {
        matches!(self, Self::Latch | Self::Statistics)
    }
}

/// A lock class: its name in reports, its rank, and its contention statistics.
pub struct LockClass {
    name: &'static str,
    #[cfg_attr(
        not(debug_assertions),
        expect(dead_code, reason = "ranks are checked in debug builds")
    )]
    rank: Rank,
    contended: StatCell,
    wait_ns: StatCell,
}

/// Contention of one lock class so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LockEvents {
    /// Name of the class.
    pub class: &'static str,
    /// Acquisitions that had to wait.
    pub contended: u64,
    /// Total time of those waits, in nanoseconds.
    pub wait_ns: u64,
}

impl LockClass {
    /// Creates a class named `name` at `rank`.
    #[must_use]
    pub const fn new(name: &'static str, rank: Rank) -> Self {
        Self {
            name,
            rank,
            contended: StatCell::new(),
            wait_ns: StatCell::new(),
        }
    }

    /// Returns the contention so far, over every lock of the class in this process.
    #[must_use]
    pub fn events(&self) -> LockEvents {
        LockEvents {
            class: self.name,
            contended: self.contended.get(),
            wait_ns: self.wait_ns.get(),
        }
    }

    #[cfg(not(loom))]
    pub(super) fn waited(&self, since: std::time::Instant) -> Duration {
        let waited = since.elapsed();
        self.contended.add(1);
        self.wait_ns
            .add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        waited
    }
}

impl fmt::Debug for LockClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.events().fmt(f)
    }
}

/// Ranks held by the current thread; dropping a token releases its rank.
#[cfg(all(debug_assertions, not(loom)))]
mod held {
    use std::cell::RefCell;

    use super::{LockClass, Rank};

    thread_local! {
        static HELD: RefCell<Vec<(Rank, &'static str)>> = const { RefCell::new(Vec::new()) };
    }

    #[derive(Debug)]
    pub(in crate::sync) struct HeldRank(Rank, &'static str);

    impl HeldRank {
        pub(in crate::sync) fn in_order(class: &'static LockClass) -> Self {
            // Thread-local handles may be dropped after this thread-local: then nothing is checked.
            let _ = HELD.try_with(|held| {
                let held = held.borrow();
                if let Some(&(top, name)) = held.iter().max_by_key(|(rank, _)| *rank) {
                    let allowed = top < class.rank || (top == class.rank && top.is_nestable());
                    assert!(
                        allowed,
                        "lock order: `{}` ({:?}) taken while `{name}` ({top:?}) is held",
                        class.name, class.rank
                    );
                }
            });
            Self::any_order(class)
        }

        pub(super) fn any_order(class: &'static LockClass) -> Self {
            let _ = HELD.try_with(|held| held.borrow_mut().push((class.rank, class.name)));
            Self(class.rank, class.name)
        }
    }

    impl Drop for HeldRank {
        fn drop(&mut self) {
            // A guard may be dropped during thread-local destruction; nothing to do then.
            let _ = HELD.try_with(|held| {
                let mut held = held.borrow_mut();
                if let Some(at) = held.iter().rposition(|entry| *entry == (self.0, self.1)) {
                    held.swap_remove(at);
                }
            });
        }
    }
}

/// Release builds check nothing. Nor do models, whose threads all run on one system thread and
/// would share its thread-locals.
#[cfg(any(not(debug_assertions), loom))]
mod held {
    use super::LockClass;

    #[derive(Debug)]
    pub(in crate::sync) struct HeldRank;

    impl HeldRank {
        pub(in crate::sync) fn in_order(_: &'static LockClass) -> Self {
            Self
        }
        pub(super) fn any_order(_: &'static LockClass) -> Self {
            Self
        }
    }
}

pub(super) use held::HeldRank;

#[cfg(loom)]
use loom_raw as raw;
#[cfg(not(loom))]
use parking_lot as raw;

/// Loom's locks behind `parking_lot`'s signatures.
#[cfg(loom)]
mod loom_raw {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    pub(super) use loom::sync::{RwLockReadGuard, RwLockWriteGuard};

    #[derive(Debug)]
    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    /// The model's guard; a condition variable takes it out during a wait.
    #[derive(Debug)]
    pub(super) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }
        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("a model's thread panicked")))
        }
        pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("held except while waiting")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("held except while waiting")
        }
    }

    #[derive(Debug)]
    pub(super) struct Condvar(loom::sync::Condvar);

    /// Whether the wait timed out, which never happens in a model.
    pub(super) struct WaitTimeoutResult;

    impl WaitTimeoutResult {
        pub(super) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(super) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }
        pub(super) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("held except while waiting");
            guard.0 = Some(self.0.wait(held).expect("a model's thread panicked"));
        }
        pub(super) fn wait_for<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            _: Duration,
        ) -> WaitTimeoutResult {
            self.wait(guard);
            WaitTimeoutResult
        }
        pub(super) fn notify_one(&self) {
            self.0.notify_one();
        }
        pub(super) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    #[derive(Debug)]
    pub(super) struct RwLock<T>(loom::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(super) fn new(value: T) -> Self {
            Self(loom::sync::RwLock::new(value))
        }
        pub(super) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("a model's thread panicked")
        }
        pub(super) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("a model's thread panicked")
        }
        pub(super) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }
        pub(super) fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }
}

/// Takes a lock in order: first a trylock, then waiting, timed. Returns how long it waited.
macro_rules! acquire {
    ($class:expr, $try_lock:expr, $lock:expr) => {{
        let held = HeldRank::in_order($class);
        #[cfg(loom)]
        let (raw, waited) = ($lock, None::<Duration>);
        #[cfg(not(loom))]
        let (raw, waited) = match $try_lock {
            Some(raw) => (raw, None),
            None => {
                let since = std::time::Instant::now();
                let raw = $lock;
                (raw, Some($class.waited(since)))
            }
        };
        (raw, held, waited)
    }};
}

/// A mutual exclusion lock of a [`LockClass`].
pub struct Mutex<T> {
    class: &'static LockClass,
    raw: raw::Mutex<T>,
}

/// Holds a [`Mutex`]; dropping it unlocks.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    // Declared before `_held`: the lock is released before its rank.
    raw: raw::MutexGuard<'a, T>,
    _held: HeldRank,
}

impl<T> Mutex<T> {
    /// Creates an unlocked lock of `class` around `value`.
    pub fn new(class: &'static LockClass, value: T) -> Self {
        Self {
            class,
            raw: raw::Mutex::new(value),
        }
    }

    /// Takes the lock, parking while another thread holds it.
    ///
    /// # Panics
    ///
    /// In debug builds, when a lock of the same or a higher rank is held.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock_timed().0
    }

    /// As [`Mutex::lock`]; also returns how long it waited, if it did.
    ///
    /// # Panics
    ///
    /// As [`Mutex::lock`].
    pub fn lock_timed(&self) -> (MutexGuard<'_, T>, Option<Duration>) {
        let (raw, held, waited) = acquire!(self.class, self.raw.try_lock(), self.raw.lock());
        (MutexGuard { raw, _held: held }, waited)
    }

    /// Takes the lock if it is free. May be out of order.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let raw = self.raw.try_lock()?;
        Some(MutexGuard {
            raw,
            _held: HeldRank::any_order(self.class),
        })
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.raw
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("class", self.class)
            .finish_non_exhaustive()
    }
}

/// A reader-writer lock of a [`LockClass`].
pub struct RwLock<T> {
    class: &'static LockClass,
    raw: raw::RwLock<T>,
}

/// Holds a [`RwLock`] for reading.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    raw: raw::RwLockReadGuard<'a, T>,
    _held: HeldRank,
}

/// Holds a [`RwLock`] for writing.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    raw: raw::RwLockWriteGuard<'a, T>,
    _held: HeldRank,
}

impl<T> RwLock<T> {
    /// Creates an unlocked lock of `class` around `value`.
    pub fn new(class: &'static LockClass, value: T) -> Self {
        Self {
            class,
            raw: raw::RwLock::new(value),
        }
    }

    /// Takes the lock for reading, parking while a writer holds it.
    ///
    /// # Panics
    ///
    /// In debug builds, when a lock of the same or a higher rank is held.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.read_timed().0
    }

    /// As [`RwLock::read`]; also returns how long it waited, if it did.
    ///
    /// # Panics
    ///
    /// As [`RwLock::read`].
    pub(crate) fn read_timed(&self) -> (RwLockReadGuard<'_, T>, Option<Duration>) {
        let (raw, held, waited) = acquire!(self.class, self.raw.try_read(), self.raw.read());
        (RwLockReadGuard { raw, _held: held }, waited)
    }

    /// Takes the lock for writing, parking while any thread holds it.
    ///
    /// # Panics
    ///
    /// In debug builds, when a lock of the same or a higher rank is held.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let (raw, held, _) = acquire!(self.class, self.raw.try_write(), self.raw.write());
        RwLockWriteGuard { raw, _held: held }
    }

    /// Takes the lock for reading if that does not wait. May be out of order.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let raw = self.raw.try_read()?;
        Some(RwLockReadGuard {
            raw,
            _held: HeldRank::any_order(self.class),
        })
    }

    /// Takes the lock for writing if that does not wait. May be out of order.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let raw = self.raw.try_write()?;
        Some(RwLockWriteGuard {
            raw,
            _held: HeldRank::any_order(self.class),
        })
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.raw
    }
}

impl<T> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("class", self.class)
            .finish_non_exhaustive()
    }
}

/// A condition variable for a [`Mutex`].
#[derive(Debug)]
pub struct Condvar {
    raw: raw::Condvar,
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

impl Condvar {
    /// Creates a condition variable without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self {
            raw: raw::Condvar::new(),
        }
    }

    /// Releases the lock, waits for a notification, and takes the lock again. May wake spuriously.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        self.raw.wait(&mut guard.raw);
    }

    /// As [`Condvar::wait`], for at most `timeout`; returns true on a timeout.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        self.raw.wait_for(&mut guard.raw, timeout).timed_out()
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.raw.notify_one();
    }

    /// Wakes every waiter.
    pub fn notify_all(&self) {
        self.raw.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static OUTER: LockClass = LockClass::new("outer", Rank::Pcp);
    static INNER: LockClass = LockClass::new("inner", Rank::Zone);

    #[test]
    fn locks_nest_in_rank_order() {
        let (outer, inner) = (Mutex::new(&OUTER, 1), RwLock::new(&INNER, 2));
        let a = outer.lock();
        let b = inner.read();
        assert_eq!(*a + *b, 3);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order: `outer` (Pcp) taken while `inner` (Zone) is held")]
    fn taking_an_outer_lock_under_an_inner_one_panics() {
        let (outer, inner) = (Mutex::new(&OUTER, ()), Mutex::new(&INNER, ()));
        let _inner = inner.lock();
        let _outer = outer.lock();
    }

    #[test]
    fn trying_may_be_out_of_order_and_contention_is_counted() {
        let (outer, inner) = (Mutex::new(&OUTER, ()), Mutex::new(&INNER, ()));
        let inner_held = inner.lock();
        assert!(outer.try_lock().is_some());
        drop(inner_held);
        // The waiter must be waiting before the holder releases the lock; a loaded machine may need
        // retries.
        let before = INNER.events().contended;
        for _ in 0..200 {
            let held = inner.lock();
            std::thread::scope(|scope| {
                scope.spawn(|| drop(inner.lock()));
                std::thread::sleep(Duration::from_millis(5));
                drop(held);
            });
            if INNER.events().contended > before {
                return;
            }
        }
        panic!("a waiting thread was never counted");
    }
}
