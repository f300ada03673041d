//! The page index (page cache lookup): one hash table from page keys to frames, sized by the pool.
//!
//! Buckets hold the first frame of a chain; the chain runs through an array of entries indexed by
//! frame. The table costs 24 bytes a frame of address space, committed as frames are used, whatever
//! the size of the files.
//!
//! *Lookup* ([`Index::find`]) takes no lock. It walks the chain of the key's bucket and calls the
//! caller's closure for each frame; the closure decides by an exact source (the tag that a frame is
//! published under, or the key seen under the page's latch). A walk that races with an insertion or
//! removal may be led into another chain; it can then miss a page that is there, but never find one
//! that is not. It ends after [`WALK_MAX`] steps. After a miss the caller goes on to
//! [`Index::lookup`], which holds the shard's lock and is exact.
//!
//! *Changes* hold the lock of the key's shard (a run of buckets). States: see the module `cache`.
//!
//! Deviation from Linux, which keeps one tree per file: a table's memory is bounded by the pool,
//! whatever is mapped, and a lookup is two loads. The pages of a file are found by their keys, or
//! by a walk over the frames if those are fewer.

use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use super::key::PageKey;
use crate::memmap::zeroed;
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::sync::{CachePadded, Condvar, LockClass, Mutex, MutexGuard, Rank};
use crate::sync::{WakerList, WakerTicket, Woken};
use crate::units::{Pages, Pfn};

/// Class of every index shard's lock.
pub(super) static INDEX_LOCK: LockClass = LockClass::new("page_index", Rank::PageIndex);

/// Chosen: at a load of at most 2/3, a longer chain does not occur by chance.
const WALK_MAX: usize = 32;
/// Chosen: enough that two threads seldom contend, few enough to cost nothing.
const SHARDS_MAX: usize = 256;
/// End of a chain, empty bucket. Frame numbers are stored plus one.
const NIL: u32 = 0;

/// State of a frame's entry. Changed under the shard's lock.
mod state {
    pub(super) const ABSENT: u8 = 0;
    pub(super) const FILLING: u8 = 1;
    pub(super) const RESIDENT: u8 = 2;
    pub(super) const EVICTING: u8 = 3;
}

/// Result of [`PageCache::lookup`](super::PageCache::lookup).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The page is not in the cache.
    Absent,
    /// The page was resident in this frame when the lock was held.
    Resident(Pfn),
}

pub(super) struct Index {
    /// Written by: holders of the bucket's shard lock. Read by: any thread. Publishes: nothing; the
    /// caller of `find` decides by the frame's own word.
    buckets: Box<[AtomicU32]>,
    /// By frame.
    entries: Box<[FrameWords]>,
    shards: Box<[CachePadded<IndexShard>]>,
    /// The hash's upper bits are the bucket number.
    bucket_shift: u32,
    /// The bucket number's upper bits are the shard number.
    shard_shift: u32,
}

/// The words of one frame, all zero without a page: [`key`](Index::key), [`next`](Index::next),
/// [`state`](Index::state).
type FrameWords = (AtomicU64, AtomicU32, AtomicU8);

struct IndexShard {
    waiting: Mutex<ShardWaiters>,
    ended: Condvar,
}

/// Waiters for fills and evictions in one shard to end.
#[derive(Default)]
struct ShardWaiters {
    /// Number of threads that sleep.
    threads: usize,
    /// Tasks, each with the page that it waits for.
    tasks: WakerList<PageKey>,
}

impl Index {
    pub(super) fn new(frames: Pages) -> Self {
        let nr_frames = usize::try_from(frames.0).expect("frames fit memory");
        let nr_buckets = (nr_frames + nr_frames / 2).next_power_of_two().max(2);
        let nr_shards = SHARDS_MAX.min(nr_buckets / 2);
        let shard = || IndexShard {
            waiting: Mutex::new(&INDEX_LOCK, ShardWaiters::default()),
            ended: Condvar::new(),
        };
        Self {
            buckets: zeroed(nr_buckets), // all `NIL`
            entries: zeroed(nr_frames),  // all absent
            shards: (0..nr_shards).map(|_| CachePadded::new(shard())).collect(),
            bucket_shift: u64::BITS - nr_buckets.ilog2(),
            shard_shift: (nr_buckets / nr_shards).ilog2(),
        }
    }

    /// Key of the page, 0 without one.
    /// Written by: holders of the shard's lock. Read by: any thread (see `find`). Publishes: that
    /// the previous page is in its file as it was last written.
    fn key(&self, pfn: Pfn) -> &AtomicU64 {
        &self.entries[pfn.index()].0
    }

    /// Next frame of the chain plus one. Written and read as the key. Publishes: nothing.
    fn next(&self, pfn: Pfn) -> &AtomicU32 {
        &self.entries[pfn.index()].1
    }

    /// State of the page, see the module `cache`. Written and read under the shard's lock.
    fn state(&self, pfn: Pfn) -> &AtomicU8 {
        &self.entries[pfn.index()].2
    }

    /// Walks the frames that may hold a page until `visit` accepts one.
    #[inline]
    pub(super) fn find<R>(
        &self,
        key: PageKey,
        mut visit: impl FnMut(Pfn) -> Option<R>,
    ) -> Option<R> {
        // Relaxed, both loads: a stale link leads to a frame that `visit` refuses.
        let mut at = self.buckets[self.bucket(key)].load(Ordering::Relaxed);
        for _ in 0..WALK_MAX {
            if at == NIL {
                return None;
            }
            let pfn = Pfn(at - 1);
            if let Some(found) = visit(pfn) {
                return Some(found);
            }
            at = self.next(pfn).load(Ordering::Relaxed);
        }
        None
    }

    /// Returns the key of the page in a frame, as of now.
    pub(super) fn key_of(&self, pfn: Pfn) -> Option<PageKey> {
        // Acquire. Pairs with: the releases of `insert_filling` and `remove`: a sync that finds a
        // page gone makes durable the bytes that were written of it before. Exact only for callers
        // that keep the page from changing (latch, isolation).
        PageKey::from_word(self.key(pfn).load(Ordering::Acquire))
    }

    /// Looks a page up, after waiting for a fill or eviction of it to end.
    pub(super) fn lookup(&self, key: PageKey) -> Presence {
        let shard = self.shard(self.bucket(key));
        let mut waiting = shard.waiting.lock();
        loop {
            if let Some(presence) = self.presence_locked(key) {
                return presence;
            }
            // Terminates: every fill is finished or aborted, and an eviction takes a few
            // microseconds.
            waiting.threads += 1;
            shard.ended.wait(&mut waiting);
            waiting.threads -= 1;
        }
    }

    /// As [`lookup`](Self::lookup), but waits once, and at most so long: `None` if the fill or
    /// eviction may go on.
    pub(super) fn lookup_for(&self, key: PageKey, at_most: Duration) -> Option<Presence> {
        let shard = self.shard(self.bucket(key));
        let mut waiting = shard.waiting.lock();
        self.presence_locked(key).or_else(|| {
            waiting.threads += 1;
            shard.ended.wait_for(&mut waiting, at_most);
            waiting.threads -= 1;
            self.presence_locked(key)
        })
    }

    /// Returns the presence of a page whose shard the caller has locked: `None` during a fill or
    /// eviction.
    fn presence_locked(&self, key: PageKey) -> Option<Presence> {
        let Some(pfn) = self.find_locked(key) else {
            return Some(Presence::Absent);
        };
        (self.state_of(pfn) == state::RESIDENT).then_some(Presence::Resident(pfn))
    }

    /// Returns the frame of a page, also of one that is being filled or evicted.
    pub(super) fn frame_of(&self, key: PageKey) -> Option<Pfn> {
        let _locked = self.shard(self.bucket(key)).waiting.lock();
        self.find_locked(key)
    }

    /// As [`lookup`](Self::lookup), without waiting: the task is woken when the fill or eviction in
    /// progress ends, and looks again. A task that no longer wants that
    /// [cancels](Self::cancel_lookup) it; `ticket` is `None` at first.
    pub(super) fn poll_lookup(
        &self,
        key: PageKey,
        ticket: &mut Option<WakerTicket>,
        context: &mut Context<'_>,
    ) -> Poll<Presence> {
        if let Some(presence) = self.lookup_now(key) {
            *ticket = None;
            return Poll::Ready(presence);
        }
        // Cloned before the lock is taken, and the former one dropped after: both may run any code.
        let waker = context.waker().clone();
        let mut waiting = self.shard(self.bucket(key)).waiting.lock();
        if let Some(presence) = self.presence_locked(key) {
            *ticket = None;
            return Poll::Ready(presence);
        }
        // No wake-up is lost: the end of the fill or eviction takes the wakers under this lock.
        let former = waiting.tasks.enter(ticket, key, waker);
        drop(waiting);
        drop(former);
        Poll::Pending
    }

    /// Forgets a task that waits in [`poll_lookup`](Self::poll_lookup), if it still does.
    pub(super) fn cancel_lookup(&self, key: PageKey, ticket: WakerTicket) {
        let mut waiting = self.shard(self.bucket(key)).waiting.lock();
        let waker = waiting.tasks.leave(ticket);
        drop(waiting);
        // Outside the lock: it may run any code.
        drop(waker);
    }

    /// As [`lookup`](Self::lookup), without waiting: `None` during a fill or eviction.
    pub(super) fn lookup_now(&self, key: PageKey) -> Option<Presence> {
        let _locked = self.shard(self.bucket(key)).waiting.lock();
        self.presence_locked(key)
    }

    /// Calls `look` while the page is absent and cannot be inserted; `None` if it is there, also
    /// during a fill or eviction.
    pub(super) fn while_absent<R>(&self, key: PageKey, look: impl FnOnce() -> R) -> Option<R> {
        let _locked = self.shard(self.bucket(key)).waiting.lock();
        self.find_locked(key).is_none().then(look)
    }

    /// Wakes those that wait for a page, to look again.
    pub(super) fn wake_waiting(&self, key: PageKey) -> Woken {
        let shard = self.shard(self.bucket(key));
        wake(shard, shard.waiting.lock(), key)
    }

    /// Inserts a page as filling; returns false if it is already in the index.
    pub(super) fn insert_filling(&self, key: PageKey, pfn: Pfn) -> bool {
        let bucket = self.bucket(key);
        let _locked = self.shard(bucket).waiting.lock();
        if self.find_locked(key).is_some() {
            return false;
        }
        let head = &self.buckets[bucket];
        assert_eq!(
            self.state_of(pfn),
            state::ABSENT,
            "{pfn} entered while it holds a page"
        );
        // Release. Pairs with: the acquire of `key_of`, as in `remove`.
        self.key(pfn).store(key.get(), Ordering::Release);
        // Relaxed, all below: written under the shard's lock; lock-free walkers decide by other
        // words.
        self.next(pfn)
            .store(head.load(Ordering::Relaxed), Ordering::Relaxed);
        self.state(pfn).store(state::FILLING, Ordering::Relaxed);
        head.store(pfn.0 + 1, Ordering::Relaxed);
        true
    }

    /// Ends a fill, or an eviction that did not happen.
    pub(super) fn set_resident(&self, pfn: Pfn) -> Woken {
        let (shard, waiting, key) = self.lock_page(pfn);
        debug_assert!(matches!(
            self.state_of(pfn),
            state::FILLING | state::EVICTING
        ));
        // Relaxed: under the shard's lock.
        self.state(pfn).store(state::RESIDENT, Ordering::Relaxed);
        wake(shard, waiting, key)
    }

    /// Claims a resident page for eviction: no other thread fills or evicts it until it is made
    /// resident again or removed.
    pub(super) fn begin_evict(&self, pfn: Pfn) -> Option<PageKey> {
        let key = self.key_of(pfn)?;
        let _locked = self.shard(self.bucket(key)).waiting.lock();
        if self.key_of(pfn) != Some(key) || self.state_of(pfn) != state::RESIDENT {
            return None;
        }
        // Relaxed: under the shard's lock.
        self.state(pfn).store(state::EVICTING, Ordering::Relaxed);
        Some(key)
    }

    /// Removes a page that is being filled or evicted.
    pub(super) fn remove(&self, pfn: Pfn) -> Woken {
        let (shard, waiting, key) = self.lock_page(pfn);
        debug_assert!(matches!(
            self.state_of(pfn),
            state::FILLING | state::EVICTING
        ));
        // Relaxed, all: under the shard's lock; lock-free walkers decide by other words.
        let next = self.next(pfn).load(Ordering::Relaxed);
        let mut link = &self.buckets[self.bucket(key)];
        while link.load(Ordering::Relaxed) != pfn.0 + 1 {
            let at = link.load(Ordering::Relaxed);
            assert_ne!(at, NIL, "{pfn} is not on the chain of {key:?}");
            link = self.next(Pfn(at - 1));
        }
        link.store(next, Ordering::Relaxed);
        // Release. Pairs with: the acquire of `key_of`, in a thread that finds the page gone.
        self.key(pfn).store(0, Ordering::Release);
        self.state(pfn).store(state::ABSENT, Ordering::Relaxed);
        wake(shard, waiting, key)
    }

    /// Locks the shard of a page whose state this thread may change.
    fn lock_page(&self, pfn: Pfn) -> (&IndexShard, MutexGuard<'_, ShardWaiters>, PageKey) {
        let key = self
            .key_of(pfn)
            .expect("its own fill or eviction keeps a page in the index");
        let shard = self.shard(self.bucket(key));
        (shard, shard.waiting.lock(), key)
    }

    /// Returns the frame of a page in any state. The shard's lock is held.
    fn find_locked(&self, key: PageKey) -> Option<Pfn> {
        let mut at = self.buckets[self.bucket(key)].load(Ordering::Relaxed);
        while at != NIL {
            let pfn = Pfn(at - 1);
            // Relaxed: under the shard's lock.
            if self.key(pfn).load(Ordering::Relaxed) == key.get() {
                return Some(pfn);
            }
            at = self.next(pfn).load(Ordering::Relaxed);
        }
        None
    }

    fn state_of(&self, pfn: Pfn) -> u8 {
        // Relaxed: under the shard's lock.
        self.state(pfn).load(Ordering::Relaxed)
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a bucket number fits the table's length"
    )]
    fn bucket(&self, key: PageKey) -> usize {
        // Fibonacci hashing: the odd multiplier spreads neighbouring pages over all buckets.
        (key.get().wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.bucket_shift) as usize
    }

    fn shard(&self, bucket: usize) -> &IndexShard {
        &self.shards[bucket >> self.shard_shift]
    }

    /// Checks chains and states; returns the number of pages in the index.
    ///
    /// # Panics
    ///
    /// When a page is on the wrong chain, on two, or in transition.
    pub(super) fn check_invariants(&self) -> u64 {
        let mut on_chains = 0;
        for bucket in 0..self.buckets.len() {
            let _locked = self.shard(bucket).waiting.lock();
            let mut at = self.buckets[bucket].load(Ordering::Relaxed);
            while at != NIL {
                let pfn = Pfn(at - 1);
                let key = self.key_of(pfn).expect("a frame on a chain has a key");
                assert_eq!(self.bucket(key), bucket, "{pfn} is on another page's chain");
                assert_eq!(
                    self.state_of(pfn),
                    state::RESIDENT,
                    "{pfn} ({key:?}) is in transition"
                );
                on_chains += 1;
                assert!(on_chains <= self.entries.len(), "a chain has a cycle");
                at = self.next(pfn).load(Ordering::Relaxed);
            }
        }
        let keyed = (0..)
            .map(Pfn)
            .take(self.entries.len())
            .filter(|&pfn| self.key_of(pfn).is_some());
        assert_eq!(
            keyed.count(),
            on_chains,
            "frames with a key and frames on chains"
        );
        on_chains as u64
    }
}

/// Wakes the threads that wait for a fill or eviction of a page to end, and returns the tasks.
fn wake(shard: &IndexShard, mut waiting: MutexGuard<'_, ShardWaiters>, key: PageKey) -> Woken {
    if waiting.threads > 0 {
        shard.ended.notify_all();
    }
    let mut woken = Woken::default();
    if !waiting.tasks.is_empty() {
        woken.extend(waiting.tasks.take(|of| *of == key));
    }
    woken
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index")
            .field("buckets", &self.buckets.len())
            .finish_non_exhaustive()
    }
}
