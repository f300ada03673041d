//! Page latches: reading and writing pages of writable files.
//!
//! A resident page's frame is stored in its latch. A thread that finds the frame by the index takes
//! the latch and then checks that the frame still holds the requested page: eviction takes the
//! frame out under the exclusive latch, so a page seen under the latch stays while it is held.
//!
//! A thread that waits for a latch keeps the page in its frame meanwhile, by a count that eviction
//! respects. Otherwise the frame's next page could be latched by a thread that in turn waits for a
//! latch of the waiting thread: a deadlock between threads that obey the embedder's lock order of
//! pages.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{PageCache, PageKey, Presence};
use crate::memmap::Frame;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{LockClass, OnceLock, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::units::{PAGE_SIZE, Pfn};

/// Class of every page's latch.
pub(super) static LATCH_LOCK: LockClass = LockClass::new("latch", Rank::Latch);

/// Frames whose latches are allocated together. Chosen: 16 MiB of frames, whose latches take 160
/// KiB.
const CHUNK_FRAMES: usize = 4096;

/// The latches of all frames, allocated in chunks as frames come to hold pages of writable files.
pub(super) struct Latches {
    chunks: Box<[OnceLock<Box<[Latch]>>]>,
    nr_frames: usize,
}

/// The latch of one frame.
#[derive(Debug)]
pub(super) struct Latch {
    /// The frame of a resident page of a writable file; `None` in every other state.
    pub(super) frame: RwLock<Option<Frame>>,
    /// Threads that are about to wait for the latch: the page stays until they have it.
    /// Written by: those, raised under the index shard's lock. Read by: eviction, after it has
    /// claimed the page under that lock. Publishes: nothing.
    pub(super) waiters: AtomicU32,
}

impl Latches {
    pub(super) fn new(nr_frames: usize) -> Self {
        let nr_chunks = nr_frames.div_ceil(CHUNK_FRAMES);
        Self {
            chunks: (0..nr_chunks).map(|_| OnceLock::new()).collect(),
            nr_frames,
        }
    }

    /// Returns the latch of a frame; allocates its chunk if it is the first.
    pub(super) fn of(&self, pfn: Pfn) -> &Latch {
        let chunk = pfn.index() / CHUNK_FRAMES;
        let latches = self.chunks[chunk].get_or_init(|| self.make(chunk));
        &latches[pfn.index() % CHUNK_FRAMES]
    }

    /// Returns the latch of a frame, if it is allocated.
    pub(super) fn get(&self, pfn: Pfn) -> Option<&Latch> {
        let latches = self.chunks[pfn.index() / CHUNK_FRAMES].get()?;
        Some(&latches[pfn.index() % CHUNK_FRAMES])
    }

    /// Returns every allocated latch.
    pub(super) fn made(&self) -> impl Iterator<Item = &Latch> {
        self.chunks.iter().filter_map(OnceLock::get).flatten()
    }

    #[cold]
    fn make(&self, chunk: usize) -> Box<[Latch]> {
        let latch = |_| Latch {
            frame: RwLock::new(&LATCH_LOCK, None),
            waiters: AtomicU32::new(0),
        };
        let first = chunk * CHUNK_FRAMES;
        let end = self.nr_frames.min(first + CHUNK_FRAMES);
        (first..end).map(latch).collect()
    }
}

/// A page of a writable file, latched for reading. Writers and write-back wait.
pub struct ReadLatch<'c> {
    cache: &'c PageCache,
    latch: RwLockReadGuard<'c, Option<Frame>>,
}

/// A page of a writable file, latched for writing. It is marked dirty before its first byte can
/// change.
pub struct WriteLatch<'c> {
    cache: &'c PageCache,
    latch: RwLockWriteGuard<'c, Option<Frame>>,
    key: PageKey,
    /// Whether this guard has marked the page: it stays dirty while the latch is held.
    is_marked: bool,
}

impl WriteLatch<'_> {
    /// Marks the page dirty; returns whether it was clean.
    pub fn mark_dirty(&mut self) -> bool {
        if self.is_marked {
            return false;
        }
        self.is_marked = true;
        let pfn = expect_frame(&self.latch).pfn();
        self.cache.mark_dirty(pfn, self.key)
    }

    /// Records the log record of a change; marks the page dirty, as its LSN is cleared with that
    /// mark. Returns whether the page was clean.
    pub fn set_lsn(&mut self, lsn: u64) -> bool {
        let was_clean = self.mark_dirty();
        if lsn > 0 {
            self.cache.lsns.raise(expect_frame(&self.latch).pfn(), lsn);
        }
        was_clean
    }
}

impl PageCache {
    /// Latches a resident page of a writable file for reading.
    ///
    /// # Cost
    ///
    /// The page's latch: an atomic on the page's cache line. Waits while a writer or write-back
    /// holds it.
    pub fn try_read_latched(&self, key: PageKey) -> Option<ReadLatch<'_>> {
        self.try_read_latched_at(key, self.find_latched(key)?)
    }

    /// As [`try_read_latched`](Self::try_read_latched), for a page found in a frame.
    pub fn try_read_latched_at(&self, key: PageKey, pfn: Pfn) -> Option<ReadLatch<'_>> {
        let read = self.latch_at(key, pfn)?;
        self.mark_young(pfn);
        Some(read)
    }

    /// As [`try_read_latched_at`](Self::try_read_latched_at), for a caller that marks the access
    /// itself.
    pub fn latch_at(&self, key: PageKey, pfn: Pfn) -> Option<ReadLatch<'_>> {
        let frame = &self.latches.of(pfn).frame;
        let latch = match without_waiting(|| frame.try_read()) {
            Some(latch) => latch,
            None => {
                let _kept = self.keep_for_latch(key, pfn)?;
                frame.read()
            }
        };
        if latch.is_none() || self.index.key_of(pfn) != Some(key) {
            return None;
        }
        Some(ReadLatch { cache: self, latch })
    }

    /// Latches a resident page of a writable file for writing.
    ///
    /// # Cost
    ///
    /// The page's latch. Waits while any other thread holds it.
    pub fn try_write(&self, key: PageKey) -> Option<WriteLatch<'_>> {
        self.try_write_at(key, self.find_latched(key)?)
    }

    /// As [`try_write`](Self::try_write), for a page found in a frame.
    pub fn try_write_at(&self, key: PageKey, pfn: Pfn) -> Option<WriteLatch<'_>> {
        let write = self.latch_to_write_at(key, pfn)?;
        self.mark_young(pfn);
        Some(write)
    }

    /// As [`try_write_at`](Self::try_write_at), for a caller that marks the access itself.
    pub fn latch_to_write_at(&self, key: PageKey, pfn: Pfn) -> Option<WriteLatch<'_>> {
        let latch = self.latch_exclusively(key, pfn)?;
        Some(WriteLatch {
            cache: self,
            latch,
            key,
            is_marked: false,
        })
    }

    /// Takes the exclusive latch of a page, unless the page has left the frame.
    pub(super) fn latch_exclusively(
        &self,
        key: PageKey,
        pfn: Pfn,
    ) -> Option<RwLockWriteGuard<'_, Option<Frame>>> {
        let frame = &self.latches.of(pfn).frame;
        let latch = match without_waiting(|| frame.try_write()) {
            Some(latch) => latch,
            None => {
                let _kept = self.keep_for_latch(key, pfn)?;
                frame.write()
            }
        };
        (latch.is_some() && self.index.key_of(pfn) == Some(key)).then_some(latch)
    }

    /// Keeps a page in its frame while this thread waits for its latch; `None` if the page has
    /// left.
    fn keep_for_latch(&self, key: PageKey, pfn: Pfn) -> Option<KeptForLatch<'_>> {
        let mut kept = None;
        let presence = self.index.lookup_and(key, |at| {
            let waiters = &self.latches.of(at).waiters;
            // Relaxed: under the shard's lock.
            waiters.fetch_add(1, Ordering::Relaxed);
            kept = Some(KeptForLatch(waiters));
        });
        kept.filter(|_| presence == Presence::Resident(pfn))
    }

    /// Keeps a page that this thread has filled in its frame, as for a thread that waits for its
    /// latch. The page is on no list yet.
    pub fn keep_filled(&self, pfn: Pfn) -> KeptForLatch<'_> {
        let waiters = &self.latches.of(pfn).waiters;
        // Relaxed: eviction first takes the page off a list, whose lock orders this.
        waiters.fetch_add(1, Ordering::Relaxed);
        KeptForLatch(waiters)
    }

    fn find_latched(&self, key: PageKey) -> Option<Pfn> {
        debug_assert!(
            key.file().is_writable(),
            "pages of read-only files have no latch"
        );
        self.index.find(key, |pfn| {
            (self.index.key_of(pfn) == Some(key)).then_some(pfn)
        })
    }
}

/// Tries to take a latch. Always fails in models: loom takes a thread for blocked if it tries a
/// lock that another thread never releases; there, threads use the waiting path.
fn without_waiting<G>(try_lock: impl FnOnce() -> Option<G>) -> Option<G> {
    if cfg!(loom) { None } else { try_lock() }
}

/// Keeps a page in its frame, until dropped.
#[derive(Debug)]
#[must_use = "the page may leave its frame once this is dropped"]
pub struct KeptForLatch<'c>(&'c AtomicU32);

impl Drop for KeptForLatch<'_> {
    fn drop(&mut self) {
        // Relaxed: the latch is held by now, or was not waited for.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn expect_frame(latch: &Option<Frame>) -> &Frame {
    latch.as_ref().expect("seen when the latch was taken")
}

impl Deref for ReadLatch<'_> {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &Self::Target {
        self.cache.memory.bytes(expect_frame(&self.latch))
    }
}

impl Deref for WriteLatch<'_> {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &Self::Target {
        self.cache.memory.bytes(expect_frame(&self.latch))
    }
}

impl DerefMut for WriteLatch<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.mark_dirty();
        let frame = self.latch.as_mut().expect("seen when the latch was taken");
        self.cache.memory.bytes_mut(frame)
    }
}

impl fmt::Debug for ReadLatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadLatch({:?})", *self.latch)
    }
}

impl fmt::Debug for WriteLatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteLatch({:?})", *self.latch)
    }
}
