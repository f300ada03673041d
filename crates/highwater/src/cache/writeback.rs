//! Write-back and sync: dirty pages reach their file, or stay dirty.
//!
//! Invariant: a page that was written is dirty until the file has taken its bytes, as of the last
//! write, completely. The mark is cleared under the exclusive latch, after the file took the page;
//! no thread can write or evict the page meanwhile, and a sync that finds it marked waits for the
//! latch: a sync beside reclaim does not return before the page is in the file.
//!
//! Reclaim does not wait for a page that is under write-back, but flags it as awaited (module
//! `flags`). The cache knows no lists: it returns each awaited page that is in its file now, and
//! the caller of write-back rotates it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use thiserror::Error;

use super::anon::{Anon, SwapOutError};
use super::file::Source;
use super::gather::IfHeld;
use super::{
    Access, Backing, FileBacking, FileEntry, FileId, FileKind, PageCache, PageKey, TooManyFiles,
    WriteBackOutcome,
};
use crate::group::StatItem;
use crate::memmap::Frame;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Condvar, LockClass, Mutex, Rank};
use crate::units::{PAGE_SIZE, Pages, Pfn};

/// Chosen: a lock and a walk of a chain, cold, cost about as much as looking at this many frames in
/// order.
const LOOKS_PER_LOOKUP: u64 = 16;

static SYNC_FAILURES_LOCK: LockClass = LockClass::new("sync_failures", Rank::Leaf);

/// Result of writing a page back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBack {
    /// It was dirty and is in the file now.
    Written,
    /// The same, and reclaim awaits it: the caller must [rotate](crate::reclaim::Reclaim::rotate)
    /// it.
    Awaited(PageKey),
    /// There was nothing to write: it is clean, or the frame no longer holds a page of that file.
    Clean,
    /// Another thread holds its latch.
    Latched,
    /// There is no swap area, or no free slot. It stays dirty.
    NoSlot,
}

/// A page could not be written back. It stays dirty.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteBackError {
    /// The file returned an error.
    #[error("writing page {page} back failed, it stays dirty: {source}")]
    Io {
        /// The page's number in its file.
        page: u64,
        /// The file's error.
        source: io::Error,
    },
    /// The file took only part of the page.
    #[error("short write-back of page {page}, it stays dirty: {got} of {want} bytes")]
    Short {
        /// The page's number in its file.
        page: u64,
        /// Bytes written.
        got: usize,
        /// Bytes given.
        want: usize,
    },
}

/// A sync failed: part of a file is not on its storage.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SyncError {
    /// Pages could not be written; they stay dirty and the next sync tries again.
    #[error("{failed} pages could not be written back and stay dirty; first: {first}")]
    WriteBack {
        /// Number of pages.
        failed: u64,
        /// Error of the first.
        first: WriteBackError,
    },
    /// Every page was written, but the file could not make that durable. The pages count as
    /// written: the next sync does not write them again, and may succeed without them (Linux
    /// reports a failed fsync once). To make them durable, write them again.
    #[error("all pages were written, but making them durable failed: {0}")]
    Durability(#[source] Arc<io::Error>),
    /// This sync succeeded, but since this handle's last report, a sync by another caller failed to
    /// make the file durable. Data that was written before can be lost. Each handle that was open
    /// then reports it once.
    #[error(
        "this sync succeeded, but {failures} others failed to make pages durable since this handle's last sync, and \
         data can be lost; last: {last}"
    )]
    Earlier {
        /// Number of failures.
        failures: u64,
        /// The last failure.
        last: Arc<io::Error>,
    },
}

/// Failures to make a file durable (errseq): a counter of failures, and the last error. Each handle
/// remembers the counter that it has reported.
///
/// Storage may report a failure to only one of several concurrent syncs. So a sync that succeeds
/// waits for all syncs that began earlier, to learn how they ended.
///
/// Source: errseq of Linux. Deviation: a failure to write a page back is not counted, because the
/// page stays dirty and every sync tries it again.
#[derive(Debug)]
pub(super) struct SyncFailures {
    so_far: Mutex<SoFar>,
    /// Signalled when a sync has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SoFar {
    failures: u64,
    last: Option<Arc<io::Error>>,
    /// Number of syncs that have begun; a sync's number is this count, itself included.
    nr_begun: u64,
    /// Numbers of the syncs in progress.
    under_way: Vec<u64>,
}

/// The errseq cursor of a handle: the number of failures that it has reported. A clone starts with
/// the same cursor.
#[derive(Debug)]
pub struct ToldOf {
    /// Written and read under the lock of the file's failures, but for clones. Publishes: nothing.
    failures: AtomicU64,
}

impl Clone for ToldOf {
    fn clone(&self) -> Self {
        // Relaxed: a clone reports again the failures that its source reports meanwhile.
        let failures = self.failures.load(Ordering::Relaxed);
        Self {
            failures: AtomicU64::new(failures),
        }
    }
}

impl SyncFailures {
    pub(super) fn new() -> Self {
        Self {
            so_far: Mutex::new(&SYNC_FAILURES_LOCK, SoFar::default()),
            ended: Condvar::new(),
        }
    }

    /// Makes everything that was written durable; returns an error also for failures that the
    /// handle has not reported yet. Holds no lock during the I/O.
    fn sync(&self, backing: &dyn Backing, told: &ToldOf) -> Result<(), SyncError> {
        let number = self.begin();
        let result = guarded(|| backing.sync());
        self.end(number, result, told)
    }

    fn begin(&self) -> u64 {
        let mut so_far = self.so_far.lock();
        so_far.nr_begun += 1;
        let number = so_far.nr_begun;
        so_far.under_way.push(number);
        number
    }

    fn end(&self, number: u64, result: io::Result<()>, told: &ToldOf) -> Result<(), SyncError> {
        let mut so_far = self.so_far.lock();
        so_far.under_way.retain(|other| *other != number);
        self.ended.notify_all();
        if let Err(error) = result {
            let error = Arc::new(error);
            so_far.failures += 1;
            so_far.last = Some(Arc::clone(&error));
            // Relaxed: under the lock.
            told.failures.fetch_add(1, Ordering::Relaxed);
            return Err(SyncError::Durability(error));
        }
        let last = so_far.nr_begun;
        // Terminates: syncs that began before now end, and later ones are not waited for.
        while so_far.under_way.iter().any(|other| *other <= last) {
            self.ended.wait(&mut so_far);
        }
        // Relaxed: under the lock.
        let failures = so_far.failures - told.failures.swap(so_far.failures, Ordering::Relaxed);
        match so_far.last.clone().filter(|_| failures > 0) {
            Some(last) => Err(SyncError::Earlier { failures, last }),
            None => Ok(()),
        }
    }
}

impl FileEntry {
    /// Returns the cursor of a new handle: all earlier failures count as reported.
    #[must_use]
    pub fn told_of_failures(&self) -> ToldOf {
        let so_far = self.sync_failures.so_far.lock();
        ToldOf {
            failures: AtomicU64::new(so_far.failures),
        }
    }
}

impl PageCache {
    /// Opens a file over `backing`.
    ///
    /// # Errors
    ///
    /// When [`FileId::MAX`] files are open.
    pub fn open(
        &self,
        backing: Arc<dyn Backing>,
        access: Access,
    ) -> Result<Arc<FileEntry>, TooManyFiles> {
        self.files.open(Source::Backing(backing, access))
    }

    /// As [`open`](Self::open), for a system file: its pages are read into frames that are not
    /// zeroed, because the system reports correctly how many bytes it has written; pages of other
    /// storage are zeroed first.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_system_file(
        &self,
        file: FileBacking,
        access: Access,
    ) -> Result<Arc<FileEntry>, TooManyFiles> {
        self.files.open(Source::System(file, access))
    }

    /// Creates a memory object of `pages` zeros, swapped out to the cache's swap area, if it has
    /// one.
    ///
    /// # Errors
    ///
    /// When [`FileId::MAX`] files are open.
    ///
    /// # Panics
    ///
    /// For [`FileKind::File`], which needs storage ([`open`](Self::open)).
    pub fn open_memory(
        &self,
        pages: Pages,
        kind: FileKind,
    ) -> Result<Arc<FileEntry>, TooManyFiles> {
        assert!(kind.is_swap_backed(), "files are opened over storage");
        let anon = Anon::new(pages, self.swap.clone());
        self.files.open(Source::Memory(anon, kind))
    }

    /// Closes a file. The caller has evicted all its pages.
    pub fn close(&self, id: FileId) {
        debug_assert!(
            self.pages_of(id).next().is_none(),
            "{id:?} closed with pages in the cache"
        );
        self.files.close(id);
    }

    /// Writes a page back if it is dirty and its latch is free.
    ///
    /// # Errors
    ///
    /// When the file returns an error or writes only a part; the page stays dirty.
    pub fn try_write_back(&self, pfn: Pfn) -> Result<WrittenBack, WriteBackError> {
        let file = self.key_of(pfn).and_then(|key| self.files.get(key.file()));
        let Some(file) = file else {
            return Ok(WrittenBack::Clean);
        };
        let Some(mut latch) = self.latches.of(pfn).frame.try_write() else {
            return Ok(WrittenBack::Latched);
        };
        self.write_back_latched(pfn, &file, &mut latch)
    }

    /// Makes durable everything that a file has taken: after
    /// [`write_back_pages`](Self::write_back_pages) of all dirty pages, this is a sync.
    ///
    /// `told` is the cursor of the caller's handle ([`FileEntry::told_of_failures`]); it is
    /// advanced.
    ///
    /// # Cost
    ///
    /// The I/O; if it succeeds, waits for other syncs of the file that began before. Nothing for
    /// memory objects, which have no durable storage.
    ///
    /// # Errors
    ///
    /// When the file could not be made durable, or an earlier failure was not reported yet.
    pub fn make_durable(&self, file: &FileEntry, told: &ToldOf) -> Result<(), SyncError> {
        if file.id().kind().is_swap_backed() {
            return Ok(());
        }
        file.sync_failures.sync(file.backing(), told)
    }

    /// Returns the pages of a file that are dirty at this moment, with their frames, in the file's
    /// order.
    ///
    /// # Cost
    ///
    /// [`pages_of`](Self::pages_of), and a sort.
    #[must_use]
    pub fn dirty_pages_of(&self, file: FileId) -> Vec<(PageKey, Pfn)> {
        let pages = self.pages_of(file).filter(|&pfn| self.is_dirty(pfn));
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
    /// filled or evicted.
    ///
    /// # Cost
    ///
    /// The lock of an index shard for each page of the file, in order, or if those are many, a look
    /// at each frame of the pool.
    pub fn pages_of(&self, id: FileId) -> impl Iterator<Item = Pfn> + '_ {
        let frames = self.groups.len() as u64;
        let pages = self.files.get(id).map_or(0, |file| file.pages());
        let (names, frames) = match pages.saturating_mul(LOOKS_PER_LOOKUP) <= frames {
            true => (0..pages, 0..0),
            false => (0..0, 0..self.groups.len()),
        };
        let named = names.filter_map(move |page| self.index.frame_of(PageKey::new(id, page)));
        let is_of_file = move |pfn: &Pfn| self.key_of(*pfn).is_some_and(|key| key.file() == id);
        named.chain((0..).map(Pfn).take(frames.len()).filter(is_of_file))
    }

    fn write_back_latched(
        &self,
        pfn: Pfn,
        file: &FileEntry,
        latch: &mut Option<Frame>,
    ) -> Result<WrittenBack, WriteBackError> {
        let key = self.key_of(pfn).filter(|key| key.file() == file.id());
        let (Some(key), Some(frame)) = (key, latch.as_ref()) else {
            return Ok(WrittenBack::Clean);
        };
        if !self.is_dirty(pfn) {
            return Ok(WrittenBack::Clean);
        }
        self.begin_writeback(pfn);
        // Always returns, also if the storage panics.
        let result = self.write_out(pfn, key, frame, file);
        self.finish_writeback(pfn, key, result)
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
        self.dirty.nr_written.add(1);
        self.clear_dirty(pfn, key);
    }

    /// Writes a page to storage, and updates its marks.
    pub(super) fn write_out(
        &self,
        pfn: Pfn,
        key: PageKey,
        frame: &Frame,
        file: &FileEntry,
    ) -> Result<WrittenBack, WriteBackError> {
        match file.anon() {
            Some(anon) if !self.swap_out(key, frame, anon)? => return Ok(WrittenBack::NoSlot),
            Some(_) => self.clear_dirty(pfn, key),
            None => {
                self.count_for_group(pfn, StatItem::FileWriteback, 1);
                let written = self.write_page(key, frame, file.backing());
                self.count_for_group(pfn, StatItem::FileWriteback, -1);
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
        frame: &Frame,
        backing: &dyn Backing,
    ) -> Result<(), WriteBackError> {
        let page = key.page();
        let write = || {
            let want = backing.page_len(page);
            let got = backing.write_page(page, &self.memory.bytes(frame)[..want])?;
            Ok((got, want))
        };
        match guarded(write) {
            Ok((got, want)) if got == want => Ok(()),
            Ok((got, want)) => Err(WriteBackError::Short { page, got, want }),
            Err(source) => Err(WriteBackError::Io { page, source }),
        }
    }

    /// Writes a page to swap; returns false if there is no slot for it.
    fn swap_out(&self, key: PageKey, frame: &Frame, anon: &Anon) -> Result<bool, WriteBackError> {
        let (page, bytes) = (key.page(), self.memory.bytes(frame));
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

/// Calls storage to write, and turns a panic into an error. Reclaim writes on behalf of other
/// requests, with pages isolated from their lists: it has to return, and the page stays dirty.
pub(super) fn guarded<R>(write: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    catch_unwind(AssertUnwindSafe(write))
        .unwrap_or_else(|_| Err(io::Error::other("the storage panicked")))
}
