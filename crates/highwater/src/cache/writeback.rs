//! Write-back: dirty pages reach their file, or stay dirty.
//!
//! Invariant: a page that was written is dirty until its bytes, as of the last write, were taken
//! whole by the file. The mark is cleared under the exclusive latch, after the file took the page;
//! nobody can write or evict the page meanwhile, and who finds it marked waits for the latch: a
//! sync that runs beside reclaim does not return before the page is in the file.
//!
//! Reclaim does not wait for a page that is under write-back, but awaits it (module `flags`). The
//! cache knows no lists: it says of each page that was awaited, and is in its file now, that it is
//! to be rotated, and whoever had it written sees to that.

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

/// Chosen: a lock and a walk of a chain somewhere in memory cost about as much as looking at so
/// many frames in order.
const LOOKS_PER_LOOKUP: u64 = 16;

static SYNC_FAILURES_LOCK: LockClass = LockClass::new("sync_failures", Rank::Leaf);

/// What became of a page that was to be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBack {
    /// It was dirty and is in the file now.
    Written,
    /// The same; and reclaim, which has come to it meanwhile, awaits it: whoever has had it written
    /// has it [rotated](crate::reclaim::Reclaim::rotate) too.
    Awaited(PageKey),
    /// There was nothing to write: clean, or not a page of that file any more.
    Clean,
    /// Its latch is held by somebody else.
    Latched,
    /// There is no place to write it to: no swap, or no slot free. It stays dirty.
    NoSlot,
}

/// A page could not be written back. It stays dirty.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteBackError {
    /// The file refused.
    #[error("writing page {page} back failed, it stays dirty: {source}")]
    Io {
        /// The page's number in its file.
        page: u64,
        /// The file's reason.
        source: io::Error,
    },
    /// The file took only part of the page.
    #[error(
        "writing page {page} back fell short, it stays dirty: {got} of {want} bytes were taken"
    )]
    Short {
        /// The page's number in its file.
        page: u64,
        /// Bytes taken.
        got: usize,
        /// Bytes given.
        want: usize,
    },
}

/// Not everything of a file is on its storage.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SyncError {
    /// Pages could not be written; they stay dirty and the next sync tries again.
    #[error("{failed} pages could not be written back and stay dirty; first: {first}")]
    WriteBack {
        /// How many.
        failed: u64,
        /// What happened to the first.
        first: WriteBackError,
    },
    /// Every page was written, but the file could not make that durable. The pages count as
    /// written: the next sync does not write them again, and may succeed without them (Linux
    /// reports a failed fsync once). Who needs them durable has to write them again.
    #[error("all pages were written, but making them durable failed: {0}")]
    Durability(#[source] Arc<io::Error>),
    /// Every page was written and made durable as far as the file says, but since this handle last
    /// heard of it, it failed at that for others. What was written before can be lost. Each handle
    /// that was open then is told once.
    #[error(
        "all is durable now, but making pages durable failed {failures} times since this handle's last sync, and some \
         can be lost; last: {last}"
    )]
    Earlier {
        /// How often.
        failures: u64,
        /// The last failure.
        last: Arc<io::Error>,
    },
}

/// Failures to make a file durable, so that each handle can be told of each: a number that grows
/// with them, and the last. A handle remembers how many it knows of.
///
/// Storage may report a failure to one of several that sync at a time, and to no other. One that
/// succeeds has therefore not succeeded before all that began earlier have said how they ended: it
/// waits for them.
///
/// Source: errseq of Linux. Deviation: a failure to write a page back is none, because the page
/// stays dirty and every sync tries it again.
#[derive(Debug)]
pub(super) struct SyncFailures {
    so_far: Mutex<SoFar>,
    /// A sync has ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SoFar {
    failures: u64,
    last: Option<Arc<io::Error>>,
    /// Syncs that have begun; the number of each is how many had with it.
    nr_begun: u64,
    /// Numbers of those that have not ended.
    under_way: Vec<u64>,
}

/// How many failures of its file's syncs a handle was told of. A clone has been told of the same.
#[derive(Debug)]
pub struct ToldOf {
    /// Written and read under the lock of the file's failures, but for clones. Publishes: nothing.
    failures: AtomicU64,
}

impl Clone for ToldOf {
    fn clone(&self) -> Self {
        // Relaxed: a clone is told again of what its source is told of meanwhile.
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

    /// Makes everything that was written durable; what the handle has not been told of yet is an
    /// error too. No lock is held meanwhile.
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
        // Ends: those that began before now do, and no later one is waited for.
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
    /// For a new handle: it has been told of all that happened before.
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

    /// As [`open`](Self::open), over a file of the system: its pages are read into frames as they
    /// are, because the system says how many bytes it has written there; those of other storage,
    /// into zeros.
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

    /// Makes memory of `pages` zeros, which is swapped out to the cache's area, if it has one.
    ///
    /// # Errors
    ///
    /// When [`FileId::MAX`] files are open.
    ///
    /// # Panics
    ///
    /// For the kind of files, which have storage of their own ([`open`](Self::open)).
    pub fn open_memory(
        &self,
        pages: Pages,
        kind: FileKind,
    ) -> Result<Arc<FileEntry>, TooManyFiles> {
        assert!(kind.is_swap_backed(), "files are opened over storage");
        let anon = Anon::new(pages, self.swap.clone());
        self.files.open(Source::Memory(anon, kind))
    }

    /// Forgets a file. The caller has evicted all its pages.
    pub fn close(&self, id: FileId) {
        debug_assert!(
            self.pages_of(id).next().is_none(),
            "{id:?} closed with pages in the cache"
        );
        self.files.close(id);
    }

    /// Writes a page back if it is dirty and nobody holds its latch.
    ///
    /// # Errors
    ///
    /// When the file refuses or falls short; the page stays dirty.
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

    /// Makes durable what a file has taken: with [`write_back_pages`](Self::write_back_pages) of
    /// all that is dirty before, a sync.
    ///
    /// `told` says what the caller's handle was told of ([`FileEntry::told_of_failures`]), and is
    /// brought up to date.
    ///
    /// # Cost
    ///
    /// The I/O; waits for other syncs of the file that began before this one has succeeded. None
    /// for memory, which nothing makes durable.
    ///
    /// # Errors
    ///
    /// When the file could not be made durable, or failed at that since.
    pub fn make_durable(&self, file: &FileEntry, told: &ToldOf) -> Result<(), SyncError> {
        if file.id().kind().is_swap_backed() {
            return Ok(());
        }
        file.sync_failures.sync(file.backing(), told)
    }

    /// Pages of a file that are dirty at this moment, in the file's order, and the frames that they
    /// are in.
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

    /// Writes those of some pages back that are in their frames and dirty, waiting for their
    /// latches: neighbours together, where they follow each other. All are tried.
    pub fn write_back_pages(&self, pages: &[(PageKey, Pfn)]) -> WriteBackOutcome {
        let mut outcome = WriteBackOutcome::default();
        self.write_back_in_order(pages, IfHeld::Wait, &mut outcome);
        outcome
    }

    /// Frames that hold pages of a file at this moment, also those that come or go.
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
        // Comes back whatever storage does, panics included.
        let result = self.write_out(pfn, key, frame, file);
        self.finish_writeback(pfn, key, result)
    }

    /// Ends what [`begin_writeback`](Self::begin_writeback) began; the same result, unless reclaim
    /// awaits the page.
    pub(super) fn finish_writeback(
        &self,
        pfn: Pfn,
        key: PageKey,
        result: Result<WrittenBack, WriteBackError>,
    ) -> Result<WrittenBack, WriteBackError> {
        match (self.end_writeback(pfn), result) {
            // What its storage did not take would only be met again, as dirty as it is.
            (true, Ok(WrittenBack::Written)) => Ok(WrittenBack::Awaited(key)),
            (_, result) => result,
        }
    }

    /// Takes note that a file has a page whole.
    pub(super) fn note_in_file(&self, pfn: Pfn, key: PageKey) {
        self.dirty.nr_written.add(1);
        self.clear_dirty(pfn, key);
    }

    /// Has storage take a page, and moves its marks accordingly.
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

    /// Writes a page to swap; false when there is no slot for it.
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

/// Asks storage to write. Storage that panics has refused, whatever it was asked. Reclaim writes on
/// behalf of others, with pages isolated from their lists: it has to come back, and the page stays
/// dirty like any other.
pub(super) fn guarded<R>(write: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    catch_unwind(AssertUnwindSafe(write))
        .unwrap_or_else(|_| Err(io::Error::other("the storage panicked")))
}
