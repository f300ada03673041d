//! Sync and checkpoints: the dirty pages of one file reach it, after the log that they wait for,
//! and are durable.

use std::ops::Range;

use super::Core;
use super::file::File;
use super::writeback::CHUNK;
use crate::cache::{
    DirtyLsn, FailuresBefore, FileEntry, PageKey, SyncError, ToldOf, WriteBackOutcome,
};
use crate::units::{FilePage, Pages, Pfn};

impl File {
    /// Writes all dirty pages back, after the log that they wait for
    /// ([`WriteGate`](crate::WriteGate)), and makes the file durable. After `Ok`, everything
    /// written before the call is on storage, whichever thread wrote it back, except after a
    /// failure that this handle has reported, or that occurred before it was opened.
    ///
    /// No error is lost: a page whose write-back failed, in this call or another, stays dirty, and
    /// every sync retries it until it succeeds. A failure to make pages durable (errseq), in
    /// whichever call it occurred, is reported once by each handle that was open then
    /// ([`SyncError::Earlier`]).
    ///
    /// # Cost
    ///
    /// A lookup for each page of the file, or for a large file a load for each frame of the pool,
    /// plus the I/O. Waits for syncs and resizes of the file in progress, and for holders of the
    /// latches of its dirty pages: the calling thread holds none of them. Nothing for memory
    /// without a file.
    ///
    /// # Errors
    ///
    /// When a page could not be written: it stays dirty, and the next sync tries again. When pages
    /// could not be made durable, now or since this handle's last sync.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// map.write(1)?[..5].copy_from_slice(b"hello");
    /// file.sync()?;
    /// assert_eq!(&std::fs::read(source.path())?[4096..4101], b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync(&self) -> Result<(), SyncError> {
        self.sync_pages(|core, entry| core.cache.dirty_pages_of(entry.id()))
    }

    /// As [`sync`](Self::sync), for a range of pages. Other pages that were written back before
    /// become durable, too.
    ///
    /// # Cost
    ///
    /// As [`sync`](Self::sync), also in what it waits for; at most a lookup for each page of the
    /// range.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync), for pages of the range.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// map.write(0)?[0] = 8;
    /// map.write(2)?[0] = 9;
    /// file.sync_range(0..2)?;
    /// assert_eq!(std::fs::read(source.path())?[0], 8);
    /// assert_eq!(file.dirty_pages().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sync_range(&self, pages: Range<impl Into<FilePage>>) -> Result<(), SyncError> {
        let pages = FilePage::range(pages);
        self.sync_pages(|core, entry| core.cache.dirty_pages_in(entry, &pages))
    }

    /// Returns the dirty pages, in the file's order, each with its recovery LSN: the LSN of the
    /// first change since it was clean ([`PageWrite::set_lsn`](crate::PageWrite::set_lsn)), or 0 if
    /// none was set. Beside writers it is cautious: a change whose record was appended before the
    /// call, with its page latched for writing, is on storage, or its page is listed, with that LSN
    /// or a lower one. Of memory, the pages that were written since they were last in swap, but for
    /// zeros that reclaim has taken.
    ///
    /// # Cost
    ///
    /// As [`sync`](Self::sync), without the I/O, and the latch of each clean page in turn: waits
    /// for threads that hold one for writing, so the calling thread must hold none.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{FilePage, Manager};
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// for lsn in [5, 6] {
    ///     let mut page = map.write(2)?;
    ///     page[0] += 1;
    ///     page.set_lsn(lsn);
    /// }
    /// assert_eq!(file.dirty_pages(), [(FilePage(2), 5)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dirty_pages(&self) -> Vec<(FilePage, u64)> {
        let dirty = self.core().cache.dirty_lsns_of(self.entry());
        let page = |dirty: DirtyLsn| (dirty.key.page(), dirty.recovery);
        let mut pages: Vec<_> = dirty.into_iter().map(page).collect();
        pages.sort_unstable();
        // One that was evicted and dirtied anew during the search may be found twice.
        pages.dedup_by_key(|(page, _)| *page);
        pages
    }

    /// Returns the lowest recovery LSN of the dirty pages, as [`dirty_pages`](Self::dirty_pages)
    /// finds them; `None` if no dirty page has one. A redo from there on, or from the log's end
    /// before the call if that is lower, finds all changes that are not in the file.
    ///
    /// # Cost
    ///
    /// As [`dirty_pages`](Self::dirty_pages).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// map.write(2)?.set_lsn(9);
    /// map.write(0)?.set_lsn(4);
    /// assert_eq!(file.oldest_dirty_lsn(), Some(4));
    /// file.sync_range(0..1)?;
    /// assert_eq!(file.oldest_dirty_lsn(), Some(9));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn oldest_dirty_lsn(&self) -> Option<u64> {
        let dirty = self.core().cache.dirty_lsns_of(self.entry());
        let set = dirty
            .iter()
            .map(|dirty| dirty.recovery)
            .filter(|&lsn| lsn > 0);
        set.min()
    }

    /// Takes one step of a fuzzy checkpoint, beside writers: writes back up to `at_most` pages of
    /// the file's size whose recovery LSN is below `lsn`, the lowest first, after the log that they
    /// wait for; makes the file durable; and returns the LSN from which a recovery of this file may
    /// start. That is `lsn` once no such page is left, so the program repeats the call, at its own
    /// pace:
    ///
    /// ```
    /// # use highwater::{Manager, Pages};
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// for lsn in 1..4 {
    ///     map.write(lsn - 1)?.set_lsn(lsn);
    /// }
    /// let next = 4; // the LSN of the next record
    /// assert_eq!(file.checkpoint(next, Pages(2))?, 3);
    /// while file.checkpoint(next, Pages(2))? < next {
    ///     std::thread::sleep(std::time::Duration::from_millis(10)); // 200 pages a second
    /// }
    /// assert_eq!(file.oldest_dirty_lsn(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// `lsn` is at most that of the next record of the log, and each record is appended while its
    /// page is latched for writing. Pages without LSN are left to [`sync`](Self::sync). A page that
    /// is dirtied anew has an LSN of `lsn` or above, so the repetition ends, however fast others
    /// write. Where a crash may tear pages, and images in the log mend them, only the last result
    /// is a start ([building an engine](crate::docs::engine#checkpoints-without-a-pause)).
    ///
    /// # Cost
    ///
    /// As [`dirty_pages`](Self::dirty_pages), the I/O of the pages, and that of making the file
    /// durable, in each step.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync), for the pages of the step; all of them are tried. After
    /// [`SyncError::Durability`] or [`SyncError::Earlier`], pages that count as written may be
    /// lost: only the LSN that an earlier step returned is good for a recovery.
    pub fn checkpoint(&self, lsn: u64, at_most: Pages) -> Result<u64, SyncError> {
        if self.entry().id().kind().is_swap_backed() {
            return Ok(lsn);
        }
        // The pages are found before the file is made durable: one that is clean when it is looked
        // at is in the file by then.
        let (core, before) = (self.core(), self.entry().failures_before());
        let mut old = core.cache.dirty_lsns_of(self.entry());
        old.retain(|dirty| (1..lsn).contains(&dirty.recovery));
        old.sort_unstable_by_key(|dirty| (dirty.recovery, dirty.key));
        let count = usize::try_from(at_most.0).map_or(old.len(), |count| count.min(old.len()));
        let (now, later) = old.split_at(count);
        let mut pages: Vec<_> = now.iter().map(|dirty| (dirty.key, dirty.pfn)).collect();
        pages.sort_unstable();
        core.sync(self.entry(), &pages, (self.told(), before))?;
        Ok(later.first().map_or(lsn, |dirty| dirty.recovery))
    }

    fn sync_pages(
        &self,
        dirty: impl FnOnce(&Core, &FileEntry) -> Vec<(PageKey, Pfn)>,
    ) -> Result<(), SyncError> {
        // Memory has no durable storage.
        if self.entry().id().kind().is_swap_backed() {
            return Ok(());
        }
        let (core, before) = (self.core(), self.entry().failures_before());
        let pages = dirty(core, self.entry());
        core.sync(self.entry(), &pages, (self.told(), before))
    }
}

impl Core {
    /// Writes back every page of a file that is dirty now, waiting for pages that are pinned or
    /// latched, and for the file's log. Tries all of them.
    pub(super) fn write_back_file(&self, entry: &FileEntry) -> Result<(), SyncError> {
        self.write_back_now(entry, &self.cache.dirty_pages_of(entry.id()))
    }

    /// As [`write_back_file`](Self::write_back_file), for pages of the file, in order.
    fn write_back_now(&self, entry: &FileEntry, pages: &[(PageKey, Pfn)]) -> Result<(), SyncError> {
        // A resize would have pages left out.
        let _turn = entry.begin_sync();
        let mut whole = WriteBackOutcome::default();
        let chunk = usize::try_from(CHUNK.0).expect("a small number");
        for pages in pages.chunks(chunk) {
            let outcome = self.cache.write_back_pages(pages);
            // Not to the end of the list: the threads that wait for them need memory now.
            self.reclaim.rotate(&outcome.awaited);
            whole += outcome;
        }
        // All at once: the log is asked to flush once.
        let held_up = std::mem::take(&mut whole.held_up);
        if !held_up.is_empty() {
            let outcome = self.cache.write_back_held_up(entry, &held_up);
            self.reclaim.rotate(&outcome.awaited);
            whole += outcome;
        }
        whole.all_written()
    }

    /// Writes pages of a file back and makes the file durable.
    fn sync(
        &self,
        entry: &FileEntry,
        pages: &[(PageKey, Pfn)],
        (told, before): (&ToldOf, FailuresBefore),
    ) -> Result<(), SyncError> {
        self.write_back_now(entry, pages)?;
        self.cache.make_durable(entry, told, before)
    }
}
