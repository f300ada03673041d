//! Write-back: dirty pages reach their file, or stay dirty.
//!
//! Invariant: a page that was written is dirty until its bytes, as of the last write, were taken
//! whole by the file. The mark is cleared under the exclusive latch, after the file took the page;
//! nobody can write or evict the page meanwhile, and who finds it marked waits for the latch: a sync
//! that runs beside reclaim does not return before the page is in the file.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use thiserror::Error;

use super::anon::{Anon, SwapOutError};
use super::file::Source;
use super::{Access, Backing, FileEntry, FileId, FileKind, PageCache, PageKey, TooManyFiles};
use crate::memmap::Frame;
use crate::sync::Arc;
use crate::sync::atomic::Ordering;
use crate::units::{PAGE_SIZE, Pages, Pfn};

/// What became of a page that was to be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBack {
    /// It was dirty and is in the file now.
    Written,
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
    /// Every page was written, but the file could not make that durable. The pages count as written:
    /// the next sync does not write them again, and may succeed without them (Linux reports a failed
    /// fsync once). Who needs them durable has to write them again.
    #[error("all pages were written, but making them durable failed: {0}")]
    Durability(#[source] io::Error),
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

    /// Writes a page back if it is dirty, waiting for its latch.
    ///
    /// # Errors
    ///
    /// When the file refuses or falls short; the page stays dirty.
    pub fn write_back(&self, pfn: Pfn, file: &FileEntry) -> Result<WrittenBack, WriteBackError> {
        let key = self.key_of(pfn).filter(|key| key.file() == file.id());
        let latch = key.and_then(|key| self.latch_exclusively(key, pfn));
        match latch {
            Some(mut latch) => self.write_back_latched(pfn, file, &mut latch),
            None => Ok(WrittenBack::Clean),
        }
    }

    /// Writes a page back if it is dirty and nobody holds its latch.
    ///
    /// # Errors
    ///
    /// As [`write_back`](Self::write_back).
    pub fn try_write_back(&self, pfn: Pfn) -> Result<WrittenBack, WriteBackError> {
        let file = self.key_of(pfn).and_then(|key| self.files.get(key.file()));
        let Some(file) = file else {
            return Ok(WrittenBack::Clean);
        };
        let Some(mut latch) = self.pages[pfn.index()].latch.try_write() else {
            return Ok(WrittenBack::Latched);
        };
        self.write_back_latched(pfn, &file, &mut latch)
    }

    /// Writes every dirty page of a file back and makes the file durable.
    ///
    /// # Cost
    ///
    /// One load per frame of the pool, plus the I/O. None for memory, which nothing makes durable.
    ///
    /// # Errors
    ///
    /// When any page could not be written (all are tried), or the file could not be made durable.
    pub fn sync(&self, file: &FileEntry) -> Result<(), SyncError> {
        if file.id().kind().is_swap_backed() {
            return Ok(());
        }
        self.write_back_file(file)?;
        file.backing().sync().map_err(SyncError::Durability)
    }

    /// Writes every dirty page of a file back.
    ///
    /// # Errors
    ///
    /// When any page could not be written; all are tried.
    pub fn write_back_file(&self, file: &FileEntry) -> Result<(), SyncError> {
        let dirty = self.pages_of(file.id()).filter(|&pfn| self.is_dirty(pfn));
        let mut errors = dirty.filter_map(|pfn| self.write_back(pfn, file).err());
        match errors.next() {
            Some(first) => Err(SyncError::WriteBack {
                failed: 1 + errors.count() as u64,
                first,
            }),
            None => Ok(()),
        }
    }

    /// Frames that hold pages of a file at this moment.
    pub fn pages_of(&self, id: FileId) -> impl Iterator<Item = Pfn> + '_ {
        let frames = (0..).map(Pfn).take(self.pages.len());
        frames.filter(move |&pfn| self.key_of(pfn).is_some_and(|key| key.file() == id))
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
        let is_written = match file.anon() {
            Some(anon) => self.swap_out(key, frame, anon)?,
            None => self.write_page(key, frame, file.backing()).map(|()| true)?,
        };
        if !is_written {
            return Ok(WrittenBack::NoSlot);
        }
        self.clear_dirty(pfn, key);
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

    /// Lets every page of an object's memory forget what it holds, for an object that nobody can reach any
    /// more: the pages can be evicted without I/O.
    pub fn discard(&self, file: &FileEntry) {
        let Some(anon) = file.anon() else { return };
        for pfn in self.pages_of(file.id()) {
            let key = self.key_of(pfn).filter(|key| key.file() == file.id());
            let Some(key) = key else { continue };
            // Reclaim may be writing it.
            let latch = self.latch_exclusively(key, pfn);
            if latch.is_some() && self.is_dirty(pfn) {
                anon.forget(key.page());
                self.clear_dirty(pfn, key);
            }
        }
    }

    /// Marks a page dirty. The exclusive latch is held.
    pub(super) fn mark_dirty(&self, pfn: Pfn, key: PageKey) {
        // Relaxed, both: ordered by the latch.
        if self.dirty[pfn.index()].load(Ordering::Relaxed) {
            return;
        }
        if key.file().kind().is_swap_backed() {
            // What lies in swap is not what the page will hold.
            let file = self.files.get(key.file());
            let file = file.expect("a file with pages in the cache is open");
            file.anon().iter().for_each(|anon| anon.forget(key.page()));
        } else {
            self.nr_dirty.add(1);
        }
        self.dirty[pfn.index()].store(true, Ordering::Relaxed);
    }

    /// Dirty pages of files are as many as are counted, and slots in use as many as pages have; none is a dirty
    /// page's.
    pub(super) fn check_dirty(&self) {
        let mut nr_dirty = Pages::ZERO;
        for pfn in (0..).map(Pfn).take(self.dirty.len()) {
            let Some(key) = self.key_of(pfn).filter(|_| self.is_dirty(pfn)) else {
                continue;
            };
            match self.files.get(key.file()) {
                Some(file) if file.anon().is_some() => {
                    assert!(
                        !file.is_stored(key.page()),
                        "{key:?} is dirty and has a slot"
                    );
                }
                _ => nr_dirty += Pages(1),
            }
        }
        assert_eq!(self.nr_dirty(), nr_dirty, "dirty marks and their count");
        if let Some(swap) = self.swap() {
            swap.check_invariants();
            let used = swap.used();
            assert_eq!(
                self.files.nr_places(),
                used,
                "pages in slots, and slots in use"
            );
        }
    }

    /// Clears the mark of a dirty page. The exclusive latch is held.
    fn clear_dirty(&self, pfn: Pfn, key: PageKey) {
        // Release. Pairs with: the acquire of `is_dirty`: a sync that finds the page clean without its
        // latch makes durable what was written here.
        self.dirty[pfn.index()].store(false, Ordering::Release);
        if !key.file().kind().is_swap_backed() {
            self.nr_cleaned.add(1);
        }
    }
}

/// Asks storage to write. Storage that panics has refused, whatever it was asked. Reclaim writes on behalf of
/// others, with pages isolated from their lists: it has to come back, and the page stays dirty like any other.
fn guarded<R>(write: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    catch_unwind(AssertUnwindSafe(write))
        .unwrap_or_else(|_| Err(io::Error::other("the storage panicked")))
}
