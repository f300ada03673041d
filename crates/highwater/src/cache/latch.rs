//! Latched pages: reading and writing pages of writable files.
//!
//! A resident page's frame lies in its latch. Whoever finds the frame by the index takes the latch
//! and then makes sure that it still holds the page that was looked for: eviction takes the frame
//! out under the exclusive latch, so a page seen under the latch stays for as long as it is held.
//!
//! Who has to wait for a latch keeps the page in its frame meanwhile, by a count that eviction
//! respects. Otherwise the frame's next page could be latched by somebody who in turn waits for a latch
//! of the waiting thread: a deadlock between threads that keep to the embedder's order of pages.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{Page, PageCache, PageKey, Presence};
use crate::memmap::Frame;
use crate::sync::atomic::Ordering;
use crate::sync::{LockClass, Rank, RwLockReadGuard, RwLockWriteGuard};
use crate::units::{PAGE_SIZE, Pfn};

/// Class of every page's latch.
pub(super) static LATCH_LOCK: LockClass = LockClass::new("latch", Rank::Latch);

/// A page of a writable file, held for reading. Writers and write-back wait.
pub struct PageRead<'c> {
    cache: &'c PageCache,
    latch: RwLockReadGuard<'c, Option<Frame>>,
}

/// A page of a writable file, held for writing, and dirty from the moment it was taken.
pub struct PageWrite<'c> {
    cache: &'c PageCache,
    latch: RwLockWriteGuard<'c, Option<Frame>>,
    was_clean: bool,
}

impl PageWrite<'_> {
    /// Whether the page was clean before it was taken.
    #[must_use]
    pub fn was_clean(&self) -> bool {
        self.was_clean
    }
}

impl PageCache {
    /// Holds a resident page of a writable file for reading.
    ///
    /// # Cost
    ///
    /// The page's latch: an atomic on the page's line. Waits while a writer or write-back holds it.
    pub fn try_read_latched(&self, key: PageKey) -> Option<PageRead<'_>> {
        self.try_read_latched_at(key, self.find_latched(key)?)
    }

    /// As [`try_read_latched`](Self::try_read_latched), for a page found in a frame.
    pub fn try_read_latched_at(&self, key: PageKey, pfn: Pfn) -> Option<PageRead<'_>> {
        let read = self.latch_at(key, pfn)?;
        self.mark_young(pfn);
        Some(read)
    }

    /// As [`try_read_latched_at`](Self::try_read_latched_at), for a caller that marks the access itself.
    pub fn latch_at(&self, key: PageKey, pfn: Pfn) -> Option<PageRead<'_>> {
        let page = &self.pages[pfn.index()];
        let latch = match without_waiting(|| page.latch.try_read()) {
            Some(latch) => latch,
            None => {
                let _kept = self.keep_for_latch(key, pfn)?;
                page.latch.read()
            }
        };
        if latch.is_none() || self.index.key_of(pfn) != Some(key) {
            return None;
        }
        Some(PageRead { cache: self, latch })
    }

    /// Holds a resident page of a writable file for writing.
    ///
    /// # Cost
    ///
    /// The page's latch. Waits while anybody else holds it.
    pub fn try_write(&self, key: PageKey) -> Option<PageWrite<'_>> {
        self.try_write_at(key, self.find_latched(key)?)
    }

    /// As [`try_write`](Self::try_write), for a page found in a frame.
    pub fn try_write_at(&self, key: PageKey, pfn: Pfn) -> Option<PageWrite<'_>> {
        let write = self.latch_to_write_at(key, pfn)?;
        self.mark_young(pfn);
        Some(write)
    }

    /// As [`try_write_at`](Self::try_write_at), for a caller that marks the access itself.
    pub fn latch_to_write_at(&self, key: PageKey, pfn: Pfn) -> Option<PageWrite<'_>> {
        let latch = self.latch_exclusively(key, pfn)?;
        let was_clean = self.mark_dirty(pfn, key);
        Some(PageWrite {
            cache: self,
            latch,
            was_clean,
        })
    }

    /// The exclusive latch of a page, unless it has left the frame.
    pub(super) fn latch_exclusively(
        &self,
        key: PageKey,
        pfn: Pfn,
    ) -> Option<RwLockWriteGuard<'_, Option<Frame>>> {
        let page = &self.pages[pfn.index()];
        let latch = match without_waiting(|| page.latch.try_write()) {
            Some(latch) => latch,
            None => {
                let _kept = self.keep_for_latch(key, pfn)?;
                page.latch.write()
            }
        };
        (latch.is_some() && self.index.key_of(pfn) == Some(key)).then_some(latch)
    }

    /// Keeps a page in its frame while this thread waits for its latch; `None` when it has left.
    fn keep_for_latch(&self, key: PageKey, pfn: Pfn) -> Option<KeptForLatch<'_>> {
        let mut kept = None;
        let presence = self.index.lookup_and(key, |at| {
            let page = &self.pages[at.index()];
            // Relaxed: under the shard's lock.
            page.waiters.fetch_add(1, Ordering::Relaxed);
            kept = Some(KeptForLatch(page));
        });
        kept.filter(|_| presence == Presence::Resident(pfn))
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

/// Tries to take a latch. Not in models: there, who tries a lock that another thread holds for ever is
/// taken for blocked; they go the way of who has to wait.
fn without_waiting<G>(try_lock: impl FnOnce() -> Option<G>) -> Option<G> {
    if cfg!(loom) { None } else { try_lock() }
}

/// A page that stays in its frame while this lives.
struct KeptForLatch<'c>(&'c Page);

impl Drop for KeptForLatch<'_> {
    fn drop(&mut self) {
        // Relaxed: the latch is held by now, or was not waited for.
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

fn expect_frame(latch: &Option<Frame>) -> &Frame {
    latch.as_ref().expect("seen when the latch was taken")
}

impl Deref for PageRead<'_> {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &Self::Target {
        self.cache.memory.bytes(expect_frame(&self.latch))
    }
}

impl Deref for PageWrite<'_> {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &Self::Target {
        self.cache.memory.bytes(expect_frame(&self.latch))
    }
}

impl DerefMut for PageWrite<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        let frame = self.latch.as_mut().expect("seen when the latch was taken");
        self.cache.memory.bytes_mut(frame)
    }
}

impl fmt::Debug for PageRead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageRead({:?})", *self.latch)
    }
}

impl fmt::Debug for PageWrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageWrite({:?})", *self.latch)
    }
}
