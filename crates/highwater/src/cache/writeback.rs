//! Write-back and sync: dirty pages reach their file, or stay dirty.
//!
//! Invariant: a page that was written is dirty until the file has taken its bytes, as of the last
//! write, completely. Write-back takes the page's latch exclusively, so that one thread at a time
//! writes it, and turns it into a shared hold for the transfer: readers do not wait for storage.
//! The mark is cleared under that hold, after the file took the page; no thread can write or evict
//! the page meanwhile, and a sync that finds it marked waits for the exclusive latch: a sync beside
//! reclaim does not return before the page is in the file.
//!
//! Reclaim does not wait for a page that is under write-back, but flags it as awaited (module
//! `flags`). The cache knows no lists: it returns each awaited page that is in its file now, and
//! the caller of write-back rotates it.

use std::ops::Range;

use super::PageCache;
use super::anon::{Anon, SwapOutError};
use super::backing::guarded;
use super::errseq::{FailuresBefore, ToldOf};
use super::file::FileEntry;
use super::gather::IfHeld;
use super::key::{FileId, PageKey};
use super::outcome::{SyncError, WriteBackError, WriteBackOutcome, WrittenBack};
use super::seal::Image;
use crate::group::StatItem;
use crate::memmap::{FrameMemory, FrameWrite};
use crate::sync::{Untaken, Woken};
use crate::units::{FilePage, PAGE_SIZE, Pfn};

/// Chosen: a lock and a walk of a chain, cold, cost about as much as looking at this many frames in
/// order.
const LOOKS_PER_LOOKUP: u64 = 16;

impl PageCache {
    /// Writes a page back if it is dirty, its latch is free and its log permits it. Adds the tasks
    /// to wake that wait for the latch: the caller may have isolated the page.
    ///
    /// # Errors
    ///
    /// When the file returns an error or writes only a part; the page stays dirty.
    pub fn try_write_back(
        &self,
        pfn: Pfn,
        woken: &mut Woken,
    ) -> Result<WrittenBack, WriteBackError> {
        let key = self.key_of(pfn).filter(|key| key.file().is_writable());
        let Some((key, file)) = key.and_then(|key| Some((key, self.files.get(key.file())?))) else {
            return Ok(WrittenBack::Clean);
        };
        match self.memory.try_exclude(pfn, key.get()) {
            Ok(latch) => self.write_back_latched(key, &file, latch, woken),
            Err(Untaken::Held) => Ok(WrittenBack::Latched),
            Err(Untaken::Absent) => Ok(WrittenBack::Clean),
        }
    }

    /// Makes durable everything that a file has taken: after
    /// [`write_back_pages`](Self::write_back_pages) of all dirty pages, this is a sync.
    ///
    /// `told` is the cursor of the caller's handle ([`FileEntry::told_of_failures`]); it is
    /// advanced. `before` is from [`FileEntry::failures_before`], before the pages were looked for.
    ///
    /// # Cost
    ///
    /// The I/O; if it succeeds, waits for other syncs of the file that began before. Nothing for
    /// memory objects, which have no durable storage.
    ///
    /// # Errors
    ///
    /// When the file could not be made durable, or an earlier failure was not reported yet.
    pub fn make_durable(
        &self,
        file: &FileEntry,
        told: &ToldOf,
        before: FailuresBefore,
    ) -> Result<(), SyncError> {
        if file.id().kind().is_swap_backed() {
            return Ok(());
        }
        file.sync_failures.sync(file.backing(), told, before)
    }

    /// Returns the pages of a file that are dirty at this moment, with their frames, in the file's
    /// order.
    ///
    /// # Cost
    ///
    /// [`pages_of`](Self::pages_of), and a sort.
    #[must_use]
    pub fn dirty_pages_of(&self, file: FileId) -> Vec<(PageKey, Pfn)> {
        self.dirty_among(file, self.pages_of(file))
    }

    /// Returns those pages of a file that are dirty, of the frames `among`, in the file's order.
    pub(super) fn dirty_among(
        &self,
        file: FileId,
        among: impl Iterator<Item = Pfn>,
    ) -> Vec<(PageKey, Pfn)> {
        let pages = among.filter(|&pfn| self.is_dirty(pfn));
        let named = pages.filter_map(|pfn| Some((self.key_of(pfn)?, pfn)));
        let mut dirty: Vec<_> = named.filter(|(key, _)| key.file() == file).collect();
        dirty.sort_unstable();
        dirty
    }

    /// Writes back those of `pages` that are still in their frames and dirty, waiting for their
    /// latches; neighbours are written together. Tries all of them.
    pub fn write_back_pages(&self, pages: &[(PageKey, Pfn)]) -> WriteBackOutcome {
        let mut outcome = WriteBackOutcome::default();
        self.write_back_in_order(pages, IfHeld::Wait, &mut outcome);
        outcome
    }

    /// Returns the frames that hold pages of a file at this moment, including pages that are being
    /// filled or evicted, and those that a shrink has left behind the end, or may give back.
    ///
    /// # Cost
    ///
    /// The lock of an index shard for each page of the file, in order, or if those are many, a look
    /// at each frame of the pool.
    pub fn pages_of(&self, id: FileId) -> impl Iterator<Item = Pfn> + '_ {
        let pages = self.files.get(id).map_or(0, |file| file.size.pages_max());
        self.pages_by_name(id, 0..pages)
    }

    /// As [`pages_of`](Self::pages_of), for pages of a range. Others may be among them.
    pub(super) fn pages_within(
        &self,
        file: &FileEntry,
        pages: &Range<FilePage>,
    ) -> impl Iterator<Item = Pfn> + '_ {
        let end = pages.end.0.min(file.size.pages_max());
        self.pages_by_name(file.id(), pages.start.0.min(end)..end)
    }

    /// Returns the pages of a range that are in the cache, with their frames, also pages that are
    /// being filled.
    pub(super) fn cached_in(&self, id: FileId, pages: Range<u64>) -> Vec<(Pfn, PageKey)> {
        let named = |pfn| Some((pfn, self.key_of(pfn)?));
        let cached = self.pages_by_name(id, pages.clone()).filter_map(named);
        let is_within = |key: &PageKey| key.file() == id && pages.contains(&key.page().0);
        cached.filter(|(_, key)| is_within(key)).collect()
    }

    fn pages_by_name(&self, id: FileId, pages: Range<u64>) -> impl Iterator<Item = Pfn> + '_ {
        let frames = self.groups.len() as u64;
        let count = pages.end - pages.start;
        let (names, frames) = match count.saturating_mul(LOOKS_PER_LOOKUP) <= frames {
            true => (pages, 0..0),
            false => (0..0, 0..self.groups.len()),
        };
        let named = names.filter_map(move |page| self.index.frame_of(PageKey::new(id, page)));
        let is_of_file = move |pfn: &Pfn| self.key_of(*pfn).is_some_and(|key| key.file() == id);
        named.chain((0..).map(Pfn).take(frames.len()).filter(is_of_file))
    }

    /// Writes a page back that this thread has latched. Adds the tasks to wake that wait for the
    /// latch.
    pub(super) fn write_back_latched(
        &self,
        key: PageKey,
        file: &FileEntry,
        latch: FrameWrite<&FrameMemory>,
        woken: &mut Woken,
    ) -> Result<WrittenBack, WriteBackError> {
        let pfn = latch.frame().pfn();
        let refusal = if !self.is_dirty(pfn) {
            Some(WrittenBack::Clean)
        } else if file.is_left_out(key.page()) {
            Some(WrittenBack::Latched)
        } else {
            (!self.is_logged_noting(file, pfn)).then_some(WrittenBack::HeldUp)
        };
        if let Some(refusal) = refusal {
            let ((), waiting) = Woken::held_by(|| drop(latch));
            woken.append(waiting);
            return Ok(refusal);
        }
        self.begin_writeback(pfn);
        let (page, waiting) = Woken::held_by(|| latch.downgrade());
        woken.append(waiting);
        // Always returns, also if the storage panics.
        let result = self.write_out(pfn, key, page.bytes(), file);
        let result = self.finish_writeback(pfn, key, result);
        let ((), waiting) = Woken::held_by(|| drop(page));
        woken.append(waiting);
        result
    }

    /// Ends the write-back; returns the same result, unless reclaim awaits the page.
    pub(super) fn finish_writeback(
        &self,
        pfn: Pfn,
        key: PageKey,
        result: Result<WrittenBack, WriteBackError>,
    ) -> Result<WrittenBack, WriteBackError> {
        match (self.end_writeback(pfn), result) {
            // A failed page is not rotated: reclaim would only find it dirty again.
            (true, Ok(WrittenBack::Written)) => Ok(WrittenBack::Awaited(key)),
            (_, result) => result,
        }
    }

    /// Records that a file has taken a page completely.
    pub(super) fn note_in_file(&self, pfn: Pfn, key: PageKey) {
        self.dirty.nr_written.add(key.order().pages().0);
        self.clear_dirty(pfn, key);
    }

    /// Writes a page to storage, and updates its marks.
    pub(super) fn write_out(
        &self,
        pfn: Pfn,
        key: PageKey,
        bytes: &[u8],
        file: &FileEntry,
    ) -> Result<WrittenBack, WriteBackError> {
        match file.anon() {
            Some(anon) if !self.swap_out(key, bytes, anon)? => return Ok(WrittenBack::NoSlot),
            Some(_) => self.clear_dirty(pfn, key),
            None => {
                let frames = key.order().pages().0.cast_signed();
                self.count_for_group(pfn, StatItem::FileWriteback, frames);
                let written = self.write_page(key, bytes, file);
                self.count_for_group(pfn, StatItem::FileWriteback, -frames);
                if let Err(error) = written {
                    self.dirty.nr_write_failed.add(1);
                    self.note_refused(pfn);
                    return Err(error);
                }
                self.note_in_file(pfn, key);
            }
        }
        Ok(WrittenBack::Written)
    }

    fn write_page(
        &self,
        key: PageKey,
        bytes: &[u8],
        file: &FileEntry,
    ) -> Result<(), WriteBackError> {
        let page = key.page();
        let write = || {
            let image = Image::of(page, bytes, file);
            let got = file.backing().write_page(page, image.bytes())?;
            Ok((got, image.bytes().len()))
        };
        match guarded(write) {
            Ok((got, want)) if got == want => Ok(()),
            Ok((got, want)) => Err(WriteBackError::Short { page, got, want }),
            Err(source) => Err(WriteBackError::Io { page, source }),
        }
    }

    /// Writes a page to swap; returns false if there is no slot for it.
    fn swap_out(&self, key: PageKey, bytes: &[u8], anon: &Anon) -> Result<bool, WriteBackError> {
        let page = key.page();
        let write = || match anon.swap_out(page, bytes) {
            Ok(got) => Ok(Some(got)),
            Err(SwapOutError::NoSlot) => Ok(None),
            Err(SwapOutError::Io(error)) => Err(error),
        };
        match guarded(write) {
            Ok(None) => Ok(false),
            Ok(Some(PAGE_SIZE)) => Ok(true),
            Ok(Some(got)) => {
                let want = PAGE_SIZE;
                Err(WriteBackError::Short { page, got, want })
            }
            Err(source) => Err(WriteBackError::Io { page, source }),
        }
    }
}
