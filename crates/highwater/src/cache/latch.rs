//! Page latches: reading and writing pages of writable files.
//!
//! A resident page's frame is behind a latch (module `latched` of `memmap`), under the page's key.
//! A thread that finds the frame takes the latch and then checks the key: eviction takes the frame
//! out under the exclusive latch, so a page seen under the latch stays while it is held.
//!
//! A page also stays in its frame while a thread waits for its latch. Otherwise the frame's next
//! page could be latched by a thread that in turn waits for a latch of the waiting thread: a
//! deadlock between threads that obey the embedder's lock order of pages.
//!
//! An optimistic read ([`PageCache::glimpse_at`]) takes no latch and keeps no page: it learns
//! afterwards whether the page has changed or left meanwhile.

use std::fmt;
use std::ops::Deref;
use std::task::{Context, Poll};

use super::{PageCache, PageKey};
use crate::memmap::{
    FrameMemory, FrameRead, FrameWrite, Glimpse, LATCH_LOCK, LatchTurn, MemoryRef,
};
use crate::sync::{Arc, LatchMode, Untaken};
use crate::units::Pfn;

/// A page of a writable file, latched for reading. Writers and write-back wait.
pub struct ReadLatch<M: MemoryRef>(FrameRead<M>);

/// A page of a writable file, latched for writing. It is marked dirty before its first byte can
/// change.
pub struct WriteLatch<M: MemoryRef> {
    frame: FrameWrite<M>,
    /// Whether this guard has marked the page: it stays dirty while the latch is held.
    is_marked: bool,
}

impl<M: MemoryRef> ReadLatch<M> {
    /// Returns the page's key.
    ///
    /// # Panics
    ///
    /// Never: a latched page has a key.
    #[must_use]
    pub fn key(&self) -> PageKey {
        PageKey::from_word(self.0.key()).expect("a latched page has a key")
    }

    /// Returns the page's frame.
    #[must_use]
    pub fn pfn(&self) -> Pfn {
        self.0.pfn()
    }

    /// Turns it into a write latch, if no other thread holds the latch.
    ///
    /// # Errors
    ///
    /// The latch as it was, if another does.
    pub fn try_upgrade(self) -> Result<WriteLatch<M>, Self> {
        let frame = self.0.try_upgrade().map_err(Self)?;
        Ok(WriteLatch::new(frame))
    }
}

impl ReadLatch<&FrameMemory> {
    /// Turns it into the latch of a task.
    #[must_use]
    pub fn into_owned(self, memory: Arc<FrameMemory>) -> ReadLatch<Arc<FrameMemory>> {
        ReadLatch(self.0.into_owned(memory))
    }
}

impl<M: MemoryRef> WriteLatch<M> {
    fn new(frame: FrameWrite<M>) -> Self {
        let is_marked = false;
        Self { frame, is_marked }
    }

    fn pfn(&self) -> Pfn {
        self.frame.frame().pfn()
    }

    /// Marks the page dirty; returns whether it was clean.
    #[inline]
    pub fn mark_dirty(&mut self, cache: &PageCache) -> bool {
        !self.is_marked && self.mark_dirty_first(cache)
    }

    fn mark_dirty_first(&mut self, cache: &PageCache) -> bool {
        self.is_marked = true;
        let key = PageKey::from_word(self.frame.key()).expect("a latched page has a key");
        cache.mark_dirty(self.pfn(), key)
    }

    /// Returns the bytes to write; they are marked dirty.
    #[inline]
    pub fn bytes_mut(&mut self, cache: &PageCache) -> &mut [u8] {
        self.mark_dirty(cache);
        self.frame.bytes_mut()
    }

    /// Records the log record of a change; marks the page dirty, as its LSN is cleared with that
    /// mark. Returns whether the page was clean.
    pub fn set_lsn(&mut self, lsn: u64, cache: &PageCache) -> bool {
        let was_clean = self.mark_dirty(cache);
        if lsn > 0 {
            cache.lsns.raise(self.pfn(), lsn);
        }
        was_clean
    }

    /// Turns it into a read latch.
    #[must_use]
    pub fn downgrade(self) -> ReadLatch<M> {
        ReadLatch(self.frame.downgrade())
    }
}

impl WriteLatch<&FrameMemory> {
    /// Turns it into the latch of a task.
    #[must_use]
    pub fn into_owned(self, memory: Arc<FrameMemory>) -> WriteLatch<Arc<FrameMemory>> {
        let Self { frame, is_marked } = self;
        let frame = frame.into_owned(memory);
        WriteLatch { frame, is_marked }
    }
}

/// A task that waits for the latch of a page, which stays in its frame meanwhile. Dropped, it
/// leaves the queue.
#[derive(Debug)]
pub struct PageTurn(LatchTurn);

impl PageTurn {
    /// Returns the frame that the page was found in.
    #[must_use]
    pub fn pfn(&self) -> Pfn {
        self.0.pfn()
    }

    /// Takes the latch for reading, or has the task woken; `None` if the page has left the frame.
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Option<TaskRead>> {
        self.0.poll_share(context).map(|frame| frame.map(ReadLatch))
    }

    /// As [`poll_read`](Self::poll_read), for writing.
    pub fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Option<TaskWrite>> {
        let polled = self.0.poll_exclude(context);
        polled.map(|frame| frame.map(WriteLatch::new))
    }
}

/// The latch of a task, for reading.
pub type TaskRead = ReadLatch<Arc<FrameMemory>>;
/// The latch of a task, for writing.
pub type TaskWrite = WriteLatch<Arc<FrameMemory>>;

impl PageCache {
    /// Latches a resident page of a writable file for reading.
    ///
    /// # Cost
    ///
    /// The page's latch: an atomic on the page's cache line. Waits while a writer
    /// holds it, or has waited for longer.
    pub fn try_read_latched(&self, key: PageKey) -> Option<ReadLatch<&FrameMemory>> {
        let pfn = self.find_latched(key)?;
        let read = self.latch_at(key, pfn)?;
        self.mark_young(pfn);
        Some(read)
    }

    /// As [`try_read_latched`](Self::try_read_latched), for a page found in a frame, and a caller
    /// that marks the access itself.
    #[inline]
    pub fn latch_at(&self, key: PageKey, pfn: Pfn) -> Option<ReadLatch<&FrameMemory>> {
        LATCH_LOCK.check_order();
        let frame = match self.memory.try_share(pfn, key.get()) {
            Ok(frame) => frame,
            Err(Untaken::Absent) => return None,
            Err(Untaken::Held) => {
                self.assert_not_held_here(key, pfn);
                self.memory.share_later(pfn, key.get())?
            }
        };
        Some(ReadLatch(frame))
    }

    /// As [`latch_at`](Self::latch_at), but does not wait.
    #[inline]
    pub fn try_latch_at(&self, key: PageKey, pfn: Pfn) -> Option<ReadLatch<&FrameMemory>> {
        let frame = self.memory.try_share(pfn, key.get()).ok()?;
        Some(ReadLatch(frame))
    }

    /// Latches a resident page of a writable file for writing.
    ///
    /// # Cost
    ///
    /// The page's latch. Waits while any other thread holds it.
    pub fn try_write(&self, key: PageKey) -> Option<WriteLatch<&FrameMemory>> {
        let pfn = self.find_latched(key)?;
        let write = self.latch_to_write_at(key, pfn)?;
        self.mark_young(pfn);
        Some(write)
    }

    /// As [`try_write`](Self::try_write), for a page found in a frame, and a caller that marks the
    /// access itself.
    pub fn latch_to_write_at(&self, key: PageKey, pfn: Pfn) -> Option<WriteLatch<&FrameMemory>> {
        let frame = self.latch_exclusively(key, pfn)?;
        Some(WriteLatch::new(frame))
    }

    /// As [`latch_to_write_at`](Self::latch_to_write_at), but does not wait.
    pub fn try_latch_to_write_at(
        &self,
        key: PageKey,
        pfn: Pfn,
    ) -> Option<WriteLatch<&FrameMemory>> {
        let frame = self.memory.try_exclude(pfn, key.get()).ok()?;
        Some(WriteLatch::new(frame))
    }

    /// Begins an optimistic read of a page found in a frame, if no writer holds it.
    #[inline(always)]
    pub fn glimpse_at(&self, key: PageKey, pfn: Pfn) -> Option<Glimpse<'_>> {
        self.memory.glimpse(pfn, key.get())
    }

    /// Latches the page of an optimistic read for writing, if it has not changed since, and no
    /// thread holds it.
    pub fn write_unchanged<'c>(
        &'c self,
        glimpse: Glimpse<'c>,
    ) -> Option<WriteLatch<&'c FrameMemory>> {
        Some(WriteLatch::new(glimpse.try_exclude()?))
    }

    /// Takes the exclusive latch of a page, unless the page has left the frame.
    pub(super) fn latch_exclusively(
        &self,
        key: PageKey,
        pfn: Pfn,
    ) -> Option<FrameWrite<&FrameMemory>> {
        LATCH_LOCK.check_order();
        match self.memory.try_exclude(pfn, key.get()) {
            Ok(frame) => Some(frame),
            Err(Untaken::Absent) => None,
            Err(Untaken::Held) => {
                self.assert_not_held_here(key, pfn);
                self.memory.exclude_later(pfn, key.get())
            }
        }
    }

    /// Panics in debug builds if this thread is about to wait for a latch that it holds.
    fn assert_not_held_here(&self, key: PageKey, pfn: Pfn) {
        let is_held = self.memory.is_held_here(pfn, key.get());
        assert!(
            !is_held,
            "a thread would wait for itself: it holds the latch of {key:?}, which it takes again"
        );
    }

    /// Returns whether a page is pinned or latched at this moment.
    #[must_use]
    pub fn is_held(&self, pfn: Pfn, key: PageKey) -> bool {
        match key.file().is_writable() {
            true => self.memory.try_exclude(pfn, key.get()).is_err(),
            false => self.memory.is_pinned(pfn),
        }
    }

    /// Returns whether a page may become dirty now without waiting for write-back: it is dirty, it
    /// is in no file, or dirty pages are below their limit.
    #[must_use]
    pub fn may_dirty_now(&self, key: PageKey, pfn: Pfn) -> bool {
        !self.is_dirty_exceeded()
            || self.is_dirty(pfn)
            || key.file().kind().is_swap_backed()
            // A sync lowers the count without a look at the limit.
            || !self.look_at_dirty_limit()
    }

    /// Keeps a page that this thread has filled in its frame, as for a thread that waits for its
    /// latch. The page is on no list yet.
    pub fn keep_filled(&self, pfn: Pfn) -> KeptForLatch<&FrameMemory> {
        let memory = &*self.memory;
        memory.keep(pfn);
        KeptForLatch { memory, pfn }
    }

    /// Begins to wait for the latch of a page that was found in a frame, as a task.
    pub fn wait_for_latch(&self, key: PageKey, pfn: Pfn, mode: LatchMode) -> PageTurn {
        let memory = Arc::clone(&self.memory);
        PageTurn(LatchTurn::new(memory, pfn, key.get(), mode))
    }

    /// Returns the frame of a resident page of a writable file. It may leave it right after.
    pub fn find_latched(&self, key: PageKey) -> Option<Pfn> {
        debug_assert!(
            key.file().is_writable(),
            "pages of read-only files have no latch"
        );
        self.index.find(key, |pfn| {
            (self.index.key_of(pfn) == Some(key)).then_some(pfn)
        })
    }
}

/// Keeps a page in its frame, until dropped.
#[derive(Debug)]
#[must_use = "the page may leave its frame once this is dropped"]
pub struct KeptForLatch<M: MemoryRef> {
    memory: M,
    pfn: Pfn,
}

impl KeptForLatch<&FrameMemory> {
    /// Keeps it for a task.
    pub fn into_owned(self, memory: Arc<FrameMemory>) -> KeptForLatch<Arc<FrameMemory>> {
        debug_assert!(std::ptr::eq(self.memory, &raw const *memory));
        let pfn = std::mem::ManuallyDrop::new(self).pfn;
        KeptForLatch { memory, pfn }
    }
}

impl<M: MemoryRef> KeptForLatch<M> {
    /// Returns the page's frame.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }
}

impl<M: MemoryRef> Drop for KeptForLatch<M> {
    fn drop(&mut self) {
        self.memory.unkeep(self.pfn);
    }
}

impl<M: MemoryRef> Deref for ReadLatch<M> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &Self::Target {
        self.0.bytes()
    }
}

impl<M: MemoryRef> Deref for WriteLatch<M> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &Self::Target {
        self.frame.bytes()
    }
}

impl<M: MemoryRef> fmt::Debug for ReadLatch<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadLatch({:?})", self.0)
    }
}

impl<M: MemoryRef> fmt::Debug for WriteLatch<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteLatch({:?})", self.frame)
    }
}
