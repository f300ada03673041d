//! Files and mappings: how the embedder reads and writes pages.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::path::Path;

use thiserror::Error;

use super::fault::ReadError;
use super::guard::Guard;
use super::space::Space;
use super::{Core, Handle, Manager};
use crate::cache::{
    Access, Backing, FileBacking, FileEntry, PageKey, PageRead, PageWrite, SyncError, TooManyFiles,
};
use crate::memmap::Pinned;
use crate::sync::Arc;
use crate::units::{Estimate, PAGE_SIZE};

/// A file whose pages are cached. Cheap to clone; closed with its last handle or mapping.
#[derive(Clone, Debug)]
pub struct File {
    open: Arc<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    shared: Handle,
    entry: Arc<FileEntry>,
}

/// A range of a file's pages in a space.
#[derive(Clone, Debug)]
pub struct Mapping {
    file: File,
    space: Space,
    pages: Range<u64>,
}

/// A page that stays readable for as long as this is held, across waiting and threads. Each costs
/// an atomic on the frame's word; while any is held, that page cannot be evicted.
#[derive(Debug)]
pub struct PinnedPage {
    pinned: Pinned,
    _file: File,
}

/// A file could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused.
    #[error("cannot open {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Its reason.
        source: io::Error,
    },
    /// The file has more pages than can be named.
    #[error("a file of {pages} pages is too large: at most {max} pages can be named")]
    TooLarge {
        /// Pages in the file.
        pages: u64,
        /// The most.
        max: u64,
    },
    /// Too many files are open.
    #[error(transparent)]
    TooMany(#[from] TooManyFiles),
}

/// A range is not within a file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("pages {start} to {end} (exclusive) are not within the file, which has {pages}")]
pub struct RangeError {
    /// Start of the range.
    pub start: u64,
    /// End of the range.
    pub end: u64,
    /// Pages in the file.
    pub pages: u64,
}

impl Manager {
    /// Opens a file to read. Its contents must not change while it is open.
    ///
    /// # Errors
    ///
    /// When the system refuses, or the file cannot be managed.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File, OpenError> {
        self.open_path(path.as_ref(), Access::ReadOnly)
    }

    /// Opens an existing file to read and write pages of. Its length is fixed while it is open.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_writable(&self, path: impl AsRef<Path>) -> Result<File, OpenError> {
        self.open_path(path.as_ref(), Access::ReadWrite)
    }

    fn open_path(&self, path: &Path, access: Access) -> Result<File, OpenError> {
        let refused = |source| OpenError::Io {
            path: path.display().to_string(),
            source,
        };
        let is_writable = access == Access::ReadWrite;
        let file = OpenOptions::new().read(true).write(is_writable).open(path);
        let backing = file.and_then(FileBacking::new).map_err(refused)?;
        self.open_backing(Arc::new(backing), access)
    }

    /// Opens anything that pages can be read from and written to.
    ///
    /// # Errors
    ///
    /// When it is too large, or too many files are open.
    pub fn open_backing(
        &self,
        backing: Arc<dyn Backing>,
        access: Access,
    ) -> Result<File, OpenError> {
        let (pages, max) = (backing.pages(), PageKey::PAGES_MAX);
        if pages > max {
            return Err(OpenError::TooLarge { pages, max });
        }
        self.core().reap_closing();
        let entry = self.core().cache.open(backing, access)?;
        Ok(File {
            open: Arc::new(OpenFile {
                shared: Arc::clone(&self.shared),
                entry,
            }),
        })
    }
}

impl File {
    /// Pages in the file.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.open.entry.backing().pages()
    }

    /// Pages of the file that are in the cache, as an interval, at once.
    #[must_use]
    pub fn resident(&self) -> Estimate<i64> {
        self.open.entry.resident()
    }

    /// Pages of the file that are in the cache; exact when nothing moves.
    #[must_use]
    pub fn resident_precise(&self) -> i64 {
        self.open.entry.resident_precise()
    }

    /// Writes every dirty page back and makes the file durable.
    ///
    /// # Cost
    ///
    /// One load per frame of the pool, plus the I/O.
    ///
    /// # Errors
    ///
    /// When any page could not be written; those stay dirty and the next sync tries again.
    pub fn sync(&self) -> Result<(), SyncError> {
        self.open.shared.core.cache.sync(&self.open.entry)
    }

    pub(super) fn shared(&self) -> &Handle {
        &self.open.shared
    }

    #[inline]
    fn access(&self) -> Access {
        if self.open.entry.id().is_writable() {
            Access::ReadWrite
        } else {
            Access::ReadOnly
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.shared.core.close(&self.entry);
    }
}

impl Core {
    /// Lets a file's pages go. Those that cannot leave yet (borrowed, or dirty and not writable)
    /// keep the file until they can.
    fn close(&self, entry: &Arc<FileEntry>) {
        if !self.try_close(entry) {
            tracing::warn!(file = ?entry.id(), "pages stay in the cache after their file's close");
            self.closing.lock().push(Arc::clone(entry));
        }
    }

    fn try_close(&self, entry: &FileEntry) -> bool {
        if entry.id().is_writable()
            && let Err(error) = self.cache.write_back_file(entry)
        {
            tracing::error!(file = ?entry.id(), %error, "dirty pages stay in the cache after their file's close");
        }
        let is_empty = self.reclaim.evict_file(entry.id());
        if is_empty {
            self.cache.close(entry.id());
        }
        is_empty
    }

    /// Tries again to let go of files that were closed.
    pub(super) fn reap_closing(&self) {
        let closing = std::mem::take(&mut *self.closing.lock());
        for entry in closing {
            if !self.try_close(&entry) {
                self.closing.lock().push(entry);
            }
        }
    }
}

impl Mapping {
    pub(super) fn new(file: File, space: Space, pages: Range<u64>) -> Self {
        Self { file, space, pages }
    }

    /// Pages in the mapping.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages.end - self.pages.start
    }

    /// The mapped file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A page of a read-only file, if it is resident. Pages beyond the mapping are not.
    ///
    /// # Cost
    ///
    /// A few loads; no store to shared memory once the page is young.
    ///
    /// # Panics
    ///
    /// When the guard is of another manager.
    #[inline]
    pub fn try_read<'g>(&self, guard: &'g Guard<'_>, page: u64) -> Option<&'g [u8; PAGE_SIZE]> {
        let core = self.core();
        guard.assert_of(core);
        core.cache
            .try_read(guard.reader(), self.key(page, Access::ReadOnly).ok()?)
    }

    /// A page of a read-only file, read in if it is not resident. The last page of a file is zero
    /// beyond the file's end.
    ///
    /// # Cost
    ///
    /// As [`try_read`](Self::try_read) when resident; else the file's I/O, and reclaim if memory is
    /// short.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; nothing is cached or charged then.
    ///
    /// # Panics
    ///
    /// When the guard is of another manager.
    #[inline]
    pub fn read<'g>(
        &self,
        guard: &'g Guard<'_>,
        page: u64,
    ) -> Result<&'g [u8; PAGE_SIZE], ReadError> {
        let (core, reader) = (self.core(), guard.reader());
        guard.assert_of(core);
        let key = self.key(page, Access::ReadOnly)?;
        match core.cache.try_read(reader, key) {
            Some(bytes) => Ok(bytes),
            None => core.fault(self.entry(), self.space.payer(), key, |pfn| {
                core.cache.try_read_at(reader, key, pfn)
            }),
        }
    }

    /// A page of a read-only file, for as long as the result is held.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn pin(&self, page: u64) -> Result<PinnedPage, ReadError> {
        let key = self.key(page, Access::ReadOnly)?;
        let core = self.core();
        let pinned = match core.cache.try_pin(key) {
            Some(pinned) => pinned,
            None => core.fault(self.entry(), self.space.payer(), key, |pfn| {
                core.cache.try_pin_at(key, pfn)
            })?,
        };
        Ok(PinnedPage {
            pinned,
            _file: self.file.clone(),
        })
    }

    /// A page of a writable file, if it is resident, held for reading.
    #[must_use]
    pub fn try_read_latched(&self, page: u64) -> Option<PageRead<'_>> {
        self.core()
            .cache
            .try_read_latched(self.key(page, Access::ReadWrite).ok()?)
    }

    /// A page of a writable file, read in if it is not resident, held for reading.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_latched(&self, page: u64) -> Result<PageRead<'_>, ReadError> {
        let key = self.key(page, Access::ReadWrite)?;
        let core = self.core();
        match core.cache.try_read_latched(key) {
            Some(read) => Ok(read),
            None => core.fault(self.entry(), self.space.payer(), key, |pfn| {
                core.cache.try_read_latched_at(key, pfn)
            }),
        }
    }

    /// A page of a writable file, if it is resident, held for writing and dirty.
    #[must_use]
    pub fn try_write(&self, page: u64) -> Option<PageWrite<'_>> {
        self.core()
            .cache
            .try_write(self.key(page, Access::ReadWrite).ok()?)
    }

    /// A page of a writable file, read in if it is not resident, held for writing and dirty.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn write(&self, page: u64) -> Result<PageWrite<'_>, ReadError> {
        let key = self.key(page, Access::ReadWrite)?;
        let core = self.core();
        match core.cache.try_write(key) {
            Some(write) => Ok(write),
            None => core.fault(self.entry(), self.space.payer(), key, |pfn| {
                core.cache.try_write_at(key, pfn)
            }),
        }
    }

    /// The name of a page of the mapping, for calls that need files open in one way.
    #[inline]
    fn key(&self, page: u64, needs: Access) -> Result<PageKey, ReadError> {
        if page >= self.pages() {
            return Err(ReadError::OutOfRange {
                page,
                pages: self.pages(),
            });
        }
        if self.file.access() != needs {
            return Err(wrong_access(needs));
        }
        Ok(PageKey::new(self.entry().id(), self.pages.start + page))
    }

    fn entry(&self) -> &FileEntry {
        &self.file.open.entry
    }

    fn core(&self) -> &Core {
        &self.file.open.shared.core
    }
}

#[cold]
fn wrong_access(needs: Access) -> ReadError {
    match needs {
        Access::ReadOnly => ReadError::Access {
            is: "to write",
            needs: "to read only",
        },
        Access::ReadWrite => ReadError::Access {
            is: "to read only",
            needs: "to write",
        },
    }
}

impl PinnedPage {
    /// The page's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        self.pinned.bytes()
    }
}
