//! Files: opening, making durable, closing.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use thiserror::Error;

use super::{Core, Handle, Manager};
use crate::cache::{
    Access, Backing, FileBacking, FileEntry, PageCache, PageKey, SyncError, ToldOf, TooManyFiles,
};
use crate::sync::Arc;
use crate::units::{Estimate, Pages};

/// A file whose pages are cached. Cheap to clone; closed with its last handle or mapping. Each
/// clone is a handle of its own as far as errors are concerned ([`sync`](Self::sync)).
#[derive(Clone, Debug)]
pub struct File {
    open: Arc<OpenFile>,
    told: ToldOf,
}

#[derive(Debug)]
struct OpenFile {
    shared: Handle,
    entry: Arc<FileEntry>,
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
    /// The manager has no frames to cache pages in.
    #[error(transparent)]
    NoFrames(#[from] NoFrames),
}

/// The manager only accounts: it was built without frames
/// ([`Builder::frames`](super::Builder::frames)), and has no page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the manager has no frames to cache pages in: build it with `Builder::frames` above 0")]
pub struct NoFrames;

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
    /// When the system refuses, the file cannot be managed, or the manager has no frames.
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
        self.core().require_frames()?;
        let refused = |source| OpenError::Io {
            path: path.display().to_string(),
            source,
        };
        let is_writable = access == Access::ReadWrite;
        let file = OpenOptions::new().read(true).write(is_writable).open(path);
        let backing = file.and_then(FileBacking::new).map_err(refused)?;
        self.open_entry(backing.pages(), |cache| {
            cache.open_system_file(backing, access)
        })
    }

    /// Opens anything that pages can be read from and written to. A page is zeroed before it is
    /// read into (a file of the system, [`open`](Self::open), is not in need of that), so that what
    /// storage leaves out of it is nobody else's.
    ///
    /// # Errors
    ///
    /// When it is too large, too many files are open, or the manager has no frames.
    pub fn open_backing(
        &self,
        backing: Arc<dyn Backing>,
        access: Access,
    ) -> Result<File, OpenError> {
        self.open_entry(backing.pages(), |cache| cache.open(backing, access))
    }

    fn open_entry(
        &self,
        pages: u64,
        open: impl FnOnce(&PageCache) -> Result<Arc<FileEntry>, TooManyFiles>,
    ) -> Result<File, OpenError> {
        self.core().require_frames()?;
        let max = PageKey::PAGES_MAX;
        if pages > max {
            return Err(OpenError::TooLarge { pages, max });
        }
        self.core().reap_closing();
        Ok(File::new(&self.shared, open(&self.core().cache)?))
    }
}

impl File {
    pub(super) fn new(shared: &Handle, entry: Arc<FileEntry>) -> Self {
        let shared = Arc::clone(shared);
        Self {
            told: entry.told_of_failures(),
            open: Arc::new(OpenFile { shared, entry }),
        }
    }

    /// Pages in the file.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.open.entry.pages()
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

    /// Writes every dirty page back and makes the file durable. After `Ok`, what was written before
    /// this was called is on storage, whoever wrote it back, unless this handle was told otherwise
    /// before.
    ///
    /// No error is lost: a page that somebody could not write back, in this call or another, stays
    /// dirty, and every sync tries it until it succeeds. A failure to make pages durable, whoever
    /// met it, is told to each handle that was open then, once ([`SyncError::Earlier`]).
    ///
    /// # Cost
    ///
    /// A lookup for each page of the file, or if it is large, a load for each frame of the pool;
    /// plus the I/O; waits for syncs of the file that others have begun. Nothing for memory without
    /// a file.
    ///
    /// # Errors
    ///
    /// When any page could not be written; those stay dirty and the next sync tries again. When
    /// pages could not be made durable, now or since this handle's last sync.
    pub fn sync(&self) -> Result<(), SyncError> {
        let core = &self.open.shared.core;
        core.sync(&self.open.entry, &self.told)
    }

    /// Runs `within` while this thread holds the lock of the file's reverse map, as a long change
    /// of its mappings would: to measure and test what reclaim does then
    /// ([`RmapPolicy`](crate::reclaim::RmapPolicy)).
    ///
    /// `within` must not use the manager, nor, where reclaim waits for the lock, wait for a thread
    /// that needs memory: that would be a deadlock (a debug build panics).
    pub fn hold_rmap<R>(&self, within: impl FnOnce() -> R) -> R {
        let (core, entry) = (&self.open.shared.core, &self.open.entry);
        let result = core.cache.hold_rmap(entry, within);
        core.reclaim.settle_deferred(entry);
        result
    }

    pub(super) fn shared(&self) -> &Handle {
        &self.open.shared
    }

    pub(super) fn entry(&self) -> &Arc<FileEntry> {
        &self.open.entry
    }

    pub(super) fn core(&self) -> &Core {
        &self.open.shared.core
    }

    #[inline]
    pub(super) fn access(&self) -> Access {
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
    /// Refuses what needs frames in a manager that has none.
    pub(super) fn require_frames(&self) -> Result<(), NoFrames> {
        match self.memory.pages() {
            Pages::ZERO => Err(NoFrames),
            _ => Ok(()),
        }
    }

    /// Lets a file's pages go. Those that cannot leave yet (borrowed, or dirty and not writable)
    /// keep the file until they can.
    fn close(&self, entry: &Arc<FileEntry>) {
        if !self.try_close(entry) {
            tracing::warn!(file = ?entry.id(), "pages stay in the cache after their file's close");
            self.closing.lock().push(Arc::clone(entry));
        }
    }

    fn try_close(&self, entry: &FileEntry) -> bool {
        if entry.id().kind().is_swap_backed() {
            self.cache.discard_all(entry);
        } else if entry.id().is_writable()
            && let Err(error) = self.write_back_file(entry)
        {
            tracing::error!(file = ?entry.id(), %error, "dirty pages stay in the cache after their file's close");
        }
        let is_empty = self.reclaim.evict_file(entry.id());
        if is_empty {
            self.cache.close(entry.id());
        }
        is_empty
    }

    /// Tries again to let go of files that were closed; whether any has gone.
    pub(super) fn reap_closing(&self) -> bool {
        let closing = std::mem::take(&mut *self.closing.lock());
        let nr_closing = closing.len();
        let left: Vec<_> = closing
            .into_iter()
            .filter(|entry| !self.try_close(entry))
            .collect();
        let has_gone = left.len() < nr_closing;
        self.closing.lock().extend(left);
        has_gone
    }
}
