//! Files: open, sync, close.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::error::{NoFrames, OpenError};
use super::paths::{OpenPath, StuckBy};
use super::{Core, Handle, Manager};
use crate::cache::{
    Access, Backing, FileBacking, FileEntry, FileIdentity, PageCache, PageKey, SyncError, ToldOf,
    TooManyFiles, WriteGate, order_of_size, pages_in,
};
use crate::sync::{Arc, thread};
use crate::units::{Estimate, Pages};

/// Looks for the end of a file that is still closing, a second in all, and the pause before each.
/// Chosen: longer than a thread that has its pages in hand waits for a busy CPU, and a reader
/// notices no pause.
const CLOSING_LOOKS: u32 = 2_000;
const CLOSING_PAUSE: Duration = Duration::from_micros(500);

/// A file whose pages are cached. Cheap to clone; closed with its last handle or mapping. Each
/// clone has its own errseq cursor: it reports once that the file could not be made durable
/// ([`sync`](Self::sync)).
#[derive(Clone, Debug)]
pub struct File {
    open: Arc<OpenFile>,
    told: ToldOf,
}

#[derive(Debug)]
pub(super) struct OpenFile {
    shared: Handle,
    entry: Arc<FileEntry>,
}

impl OpenFile {
    /// Returns another handle of a system file, for the same access.
    fn again(
        self: Arc<Self>,
        path: &Path,
        access: Access,
        backing: &FileBacking,
    ) -> Result<File, OpenError> {
        let open = self.entry.system_file().expect("opened by a path");
        let mut is = how(self.entry.id().access(), open);
        let mut wanted = how(access, backing);
        if open.order() != backing.order() {
            for (how, file) in [(&mut is, open), (&mut wanted, backing)] {
                *how += &format!(", in pages of {}", file.order().pages().bytes());
            }
        }
        if is != wanted {
            let path = path.display().to_string();
            return Err(OpenError::OpenOtherwise { path, is, wanted });
        }
        Ok(File {
            told: self.entry.told_of_failures(),
            open: self,
        })
    }
}

/// Describes how a system file is open.
fn how(access: Access, backing: &FileBacking) -> String {
    let access = match access {
        Access::ReadOnly => "to read",
        Access::ReadWrite => "to write",
    };
    let route = if backing.is_direct() {
        ", directly"
    } else {
        ""
    };
    format!("{access}{route}")
}

impl Manager {
    /// Opens a file read-only. Its contents must not change while it is open.
    ///
    /// A file that is open already, by whichever path, gives another handle of the same pages.
    ///
    /// # Errors
    ///
    /// When the system returns an error, the file is too large, too many files are open, or the
    /// manager has no frames. When the file is open for another access or with pages of another
    /// size ([`OpenError::OpenOtherwise`]), or was closed with pages that could not be written back
    /// yet, or are in use for a second longer ([`OpenError::StillClosing`]).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let file = hw.open(source.path())?;
    /// assert_eq!(file.pages(), 3);
    /// assert!(hw.open("no/such/file").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File, OpenError> {
        self.open_path(path.as_ref(), Access::ReadOnly)
    }

    /// Opens an existing file for reading and writing. Its length changes only by
    /// [`set_len`](File::set_len) while it is open.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let file = hw.open_writable(source.path())?;
    /// let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// map.write(0)?[0] = 8;
    /// file.sync()?;
    /// assert_eq!(std::fs::read(source.path())?[0], 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_writable(&self, path: impl AsRef<Path>) -> Result<File, OpenError> {
        self.open_path(path.as_ref(), Access::ReadWrite)
    }

    /// Opens a file read-only, like [`open`](Self::open), and reads it past the kernel's page cache
    /// (`O_DIRECT`), except a partial last page: no other page is in memory twice, and the memory
    /// that reads need is all in the capacity. A miss always waits for the device.
    /// [When to use which](crate::docs::guide#past-the-kernels-page-cache).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); [`OpenError::NotDirect`] if the file system has no direct I/O for
    /// the file, or aligns it to more than 4 KiB.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// use highwater::OpenError;
    ///
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let file = match hw.open_direct(source.path()) {
    ///     Err(OpenError::NotDirect { .. }) => hw.open(source.path())?,
    ///     file => file?,
    /// };
    /// assert_eq!(file.pages(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_direct(&self, path: impl AsRef<Path>) -> Result<File, OpenError> {
        self.open_path_direct(path.as_ref(), Access::ReadOnly)
    }

    /// Opens an existing file for reading and writing, like [`open_writable`](Self::open_writable),
    /// past the kernel's page cache, like [`open_direct`](Self::open_direct). Write-back waits for
    /// the device; a [`sync`](File::sync) is still needed to make what was written durable.
    ///
    /// # Errors
    ///
    /// As [`open_direct`](Self::open_direct).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096 + 5])?;
    /// # let hw = Manager::builder().build()?;
    /// # if hw.open_direct(source.path()).is_err() { return Ok(()); }
    /// let file = hw.open_direct_writable(source.path())?; // 12,293 bytes
    /// let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// map.write(3)?[4] = 8;
    /// file.sync()?;
    /// assert_eq!(std::fs::read(source.path())?[12_292..], [8]); // and not longer than before
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_direct_writable(&self, path: impl AsRef<Path>) -> Result<File, OpenError> {
        self.open_path_direct(path.as_ref(), Access::ReadWrite)
    }

    /// Opens a system file as it is: buffered or direct, and with pages of its size
    /// ([`FileBacking::with_page_size`]). Its pages are read and written as those of
    /// [`open_direct_writable`](Self::open_direct_writable) and its like; under a wrapper of the
    /// program's, [`open_backing`](Self::open_backing) opens it.
    ///
    /// A page larger than 4 KiB is a block of neighbouring frames. When memory is free and no block
    /// is, the smaller pages of one block are evicted. See
    /// [pages larger than 4 KiB](crate::docs::guide#pages-larger-than-4-kib).
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); and when the file is open for reading alone and `access` is to
    /// write.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::{Access, Bytes, FileBacking, Manager};
    ///
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 40_000])?;
    /// # let open = std::fs::File::options().read(true).write(true).open(source.path())?;
    /// # if FileBacking::open_direct(source.path(), Access::ReadWrite).is_err() { return Ok(()); }
    /// let storage = FileBacking::open_direct(source.path(), Access::ReadWrite)?;
    /// let storage = storage.with_page_size(Bytes::kib(8))?;
    /// let hw = Manager::builder().build()?;
    /// let file = hw.open_file(storage, Access::ReadWrite)?; // 40,000 bytes
    /// let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// map.write(1)?[8_191] = 8;
    /// file.sync()?;
    /// assert_eq!(std::fs::read(source.path())?[16_383..16_385], [8, 7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_file(&self, file: FileBacking, access: Access) -> Result<File, OpenError> {
        self.core().require_frames()?;
        let path = match file.name() {
            "" => file.path_of_system().unwrap_or_else(|| "a file".into()),
            name => PathBuf::from(name),
        };
        if access == Access::ReadWrite {
            file.check_writable().map_err(|source| OpenError::Io {
                path: path.display().to_string(),
                source,
            })?;
        }
        self.open_system_file(&path, file, access)
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
        self.open_system_file(path, backing, access)
    }

    fn open_path_direct(&self, path: &Path, access: Access) -> Result<File, OpenError> {
        self.core().require_frames()?;
        let backing = FileBacking::open_direct(path, access).map_err(|source| {
            let path = path.display().to_string();
            match source.kind() {
                io::ErrorKind::Unsupported => OpenError::NotDirect { path, source },
                _ => OpenError::Io { path, source },
            }
        })?;
        self.open_system_file(path, backing, access)
    }

    /// Opens a system file, unless it is open.
    fn open_system_file(
        &self,
        path: &Path,
        backing: FileBacking,
        access: Access,
    ) -> Result<File, OpenError> {
        let (core, identity) = (self.core(), backing.identity());
        let stuck = || OpenError::StillClosing {
            path: path.display().to_string(),
        };
        let mut looks = 0;
        let found = loop {
            match core.paths.find(identity) {
                OpenPath::Stuck(by) if looks < by.looks_max() => {
                    looks += 1;
                    if !core.reap(identity) && by == StuckBy::Use {
                        thread::sleep(CLOSING_PAUSE);
                    }
                }
                found => break found,
            }
        };
        match found {
            OpenPath::Stuck(_) => Err(stuck()),
            OpenPath::Open(open) => open.again(path, access, &backing),
            OpenPath::Claimed(claim) => {
                // Another thread may have resized the file and closed it meanwhile.
                backing.renew_len().map_err(|source| OpenError::Io {
                    path: path.display().to_string(),
                    source,
                })?;
                let backing = backing.named(path);
                let file = self.open_entry(backing.page_size(), backing.len(), |cache| {
                    cache.open_system_file(backing, access)
                })?;
                claim.settle(&file.open);
                Ok(file)
            }
        }
    }

    /// Opens storage that the program provides. A page is zeroed before it is read into, so that
    /// bytes that the storage leaves out do not show earlier contents of the frame (system files,
    /// [`open`](Self::open), need no zeroing).
    ///
    /// # Errors
    ///
    /// When it is too large, its pages have a size that there is not, too many files are open, or
    /// the manager has no frames.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{io, sync::Arc};
    /// use highwater::{Access, Backing, FilePage, Manager};
    ///
    /// /// A page of sevens.
    /// #[derive(Debug)]
    /// struct Sevens;
    ///
    /// impl Backing for Sevens {
    ///     fn len(&self) -> u64 {
    ///         4096
    ///     }
    ///     fn read_page(&self, _page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
    ///         buf.fill(7);
    ///         Ok(buf.len())
    ///     }
    ///     fn write_page(&self, _page: FilePage, _buf: &[u8]) -> io::Result<usize> {
    ///         Err(io::ErrorKind::ReadOnlyFilesystem.into())
    ///     }
    ///     fn sync(&self) -> io::Result<()> {
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let hw = Manager::builder().build()?;
    /// let file = hw.open_backing(Arc::new(Sevens), Access::ReadOnly)?;
    /// let mut word = [0; 8];
    /// file.read_at(&hw.root(), 100, &mut word)?;
    /// assert_eq!(word, [7; 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_backing(
        &self,
        backing: Arc<dyn Backing>,
        access: Access,
    ) -> Result<File, OpenError> {
        let (page_size, len) = (backing.page_size(), backing.len());
        self.open_entry(page_size, len, |cache| cache.open(backing, access))
    }

    fn open_entry(
        &self,
        page_size: usize,
        len: u64,
        open: impl FnOnce(&PageCache) -> Result<Arc<FileEntry>, TooManyFiles>,
    ) -> Result<File, OpenError> {
        self.core().require_frames()?;
        let order = order_of_size(page_size);
        let order = order.ok_or(OpenError::PageSize { bytes: page_size })?;
        let (pages, max) = (pages_in(len, order), PageKey::pages_max_of(order));
        if pages > max {
            return Err(OpenError::TooLarge { pages, max });
        }
        self.core().reap_closing();
        Ok(File::new(&self.shared, open(&self.core().cache)?))
    }
}

impl File {
    pub(super) fn new(shared: &Handle, entry: Arc<FileEntry>) -> Self {
        let shared = shared.clone();
        Self {
            told: entry.told_of_failures(),
            open: Arc::new(OpenFile { shared, entry }),
        }
    }

    /// Returns the number of pages in the file.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let file = hw.open(source.path())?; // 12,288 bytes
    /// assert_eq!(file.pages(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.open.entry.pages()
    }

    /// Returns the number of resident pages of the file as an interval, in O(1).
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn resident(&self) -> Estimate<i64> {
        self.open.entry.resident()
    }

    /// Returns the number of resident pages of the file; exact if no thread adds or evicts pages.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn resident_precise(&self) -> i64 {
        self.open.entry.resident_precise()
    }

    /// Attaches the log that describes changes of the file's pages: from now on, no page is written
    /// back before the log is durable up to the page's LSN
    /// ([`PageWrite::set_lsn`](crate::PageWrite::set_lsn)). For all handles, until the file is
    /// closed. Attach it before the first page is written.
    ///
    /// # Panics
    ///
    /// When the file has a gate, is open read-only, or is memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::{io, sync::Arc};
    /// # use highwater::{Manager, WriteGate};
    /// /// A log that is made durable elsewhere, before the pages are changed.
    /// #[derive(Debug)]
    /// struct Written;
    ///
    /// impl WriteGate for Written {
    ///     fn durable_lsn(&self) -> u64 {
    ///         u64::MAX
    ///     }
    ///     fn flush(&self, _lsn: u64) -> io::Result<()> {
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # let hw = Manager::builder().build()?;
    /// let file = hw.open_writable(source.path())?;
    /// file.set_write_gate(Arc::new(Written));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_write_gate(&self, gate: Arc<dyn WriteGate>) {
        let id = self.entry().id();
        assert!(
            id.is_writable() && !id.kind().is_swap_backed(),
            "pages of {id:?} are never written to a file"
        );
        let is_first = self.entry().set_gate(gate);
        assert!(is_first, "{id:?} has a write gate");
    }

    /// Returns how many pages of the file were read ahead and evicted without an access.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn readahead_unread(&self) -> u64 {
        self.open.entry.nr_unread()
    }

    /// Runs `within` while this thread holds the file's rmap lock, as a long change of its mappings
    /// would: for measurements and tests of reclaim under a contended lock
    /// ([`RmapPolicy`](crate::reclaim::RmapPolicy)).
    ///
    /// `within` must not use the manager; with a policy under which reclaim waits for the lock, it
    /// must not wait for a thread that needs memory either: that deadlocks (a debug build panics).
    #[cfg(feature = "lab")]
    #[visibility::make(pub)]
    pub(crate) fn hold_rmap<R>(&self, within: impl FnOnce() -> R) -> R {
        let (core, entry) = (&self.open.shared.core, &self.open.entry);
        let result = core.cache.hold_rmap(entry, within);
        core.reclaim.settle_deferred(entry);
        result
    }

    /// Returns this handle's errseq cursor.
    pub(super) fn told(&self) -> &ToldOf {
        &self.told
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
        self.open.entry.id().access()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.shared.core.close(&self.entry);
    }
}

impl StuckBy {
    /// How often an open looks whether the file has gone.
    const fn looks_max(self) -> u32 {
        match self {
            Self::Storage => 1,
            Self::Use => CLOSING_LOOKS,
        }
    }
}

impl Core {
    /// Fails if the manager has no frames.
    pub(super) fn require_frames(&self) -> Result<(), NoFrames> {
        match self.memory.pages() {
            Pages::ZERO => Err(NoFrames),
            _ => Ok(()),
        }
    }

    /// Evicts the pages of a closed file. Pages that cannot be evicted yet (pinned, or dirty with
    /// failing storage) keep the file until they can.
    fn close(&self, entry: &Arc<FileEntry>) {
        self.wait_for_flights(entry.id());
        if let Err(error) = self.try_close(entry) {
            match error {
                Some(error) => {
                    tracing::error!(file = ?entry.id(), %error, "dirty pages stay in the cache after their file's close");
                }
                None => {
                    tracing::warn!(file = ?entry.id(), "pages stay in the cache after their file's close");
                }
            }
            let mut closing = self.closing.lock();
            let is_listed =
                |entry: &Arc<FileEntry>| closing.iter().any(|it| Arc::ptr_eq(it, entry));
            debug_assert!(!is_listed(entry), "{:?} is closed once", entry.id());
            closing.push(Arc::clone(entry));
        }
    }

    /// Releases a file whose pages can all be evicted; otherwise notes it and returns the error of
    /// write-back, if that is the reason.
    fn try_close(&self, entry: &FileEntry) -> Result<(), Option<SyncError>> {
        let mut error = None;
        if entry.id().kind().is_swap_backed() {
            self.cache.discard_all(entry);
        } else if entry.id().is_writable() {
            error = self.write_back_file(entry).err();
        }
        let identity = entry.system_file().map(|system| system.identity());
        if !self.reclaim.evict_file(entry.id()) {
            if let Some(identity) = identity {
                let by = error.as_ref().map_or(StuckBy::Use, |_| StuckBy::Storage);
                self.paths.note_stuck(identity, by);
            }
            return Err(error);
        }
        self.cache.close(entry.id());
        if let Some(identity) = identity {
            self.paths.note_closed(identity);
        }
        Ok(())
    }

    /// Tries again to release one closed file. Returns whether it was released.
    fn reap(&self, file: FileIdentity) -> bool {
        self.reap_if(|entry| {
            let system = entry.system_file();
            system.is_some_and(|system| system.identity() == file)
        })
    }

    /// Tries again to release closed files. Returns whether any was released.
    pub(super) fn reap_closing(&self) -> bool {
        self.reap_if(|_| true)
    }

    fn reap_if(&self, is_meant: impl Fn(&FileEntry) -> bool) -> bool {
        let mut closing = self.closing.lock();
        let meant: Vec<_> = closing.extract_if(.., |entry| is_meant(entry)).collect();
        drop(closing);
        let is_left = |entry: &Arc<FileEntry>| self.try_close(entry).is_err();
        let (left, gone): (Vec<_>, Vec<_>) = meant.into_iter().partition(is_left);
        // Before the others are dropped: a storage that panicked then would take these along.
        self.closing.lock().extend(left);
        !gone.is_empty()
    }
}
