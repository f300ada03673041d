//! Growing and shrinking a file that is open.

use std::io;

use super::file::File;
use crate::cache::pages_in;
use crate::units::Bytes;

impl File {
    /// Changes the file's length, for all handles, beside readers and writers of its pages. Bytes
    /// that it gains are zero; those that it loses are gone, dirty or not. The length is durable
    /// with the next [`sync`](Self::sync).
    ///
    /// Mappings keep their ranges: pages that the file gains need a new mapping, unless an earlier
    /// one reached as far before; a page that it loses reads as
    /// [`ReadError::BehindEnd`](crate::ReadError::BehindEnd). What a writer leaves behind the end
    /// of a partial last page is not part of the file.
    ///
    /// # Cost
    ///
    /// The storage's, and a flush of the log before a shrink. A shrink waits until other threads
    /// release pages behind the new end that they have latched; it looks each such page up, or at
    /// each frame of the pool. Waits for syncs of the file in progress, as they wait for it, and
    /// both for latches: the calling thread must hold no latch of the file.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](io::ErrorKind::PermissionDenied) for a file open read-only,
    /// [`Unsupported`](io::ErrorKind::Unsupported) for memory and for storage of fixed length,
    /// [`FileTooLarge`](io::ErrorKind::FileTooLarge) above 2^44 pages, or 2^41 larger ones, and any
    /// error of the storage, or of the log that a shrink asks first
    /// ([`WriteGate::flush`](crate::WriteGate::flush)). Nothing has changed then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// use highwater::Bytes;
    ///
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let file = hw.open_writable(source.path())?; // 12,288 bytes
    /// file.set_len(Bytes(5 * 4096))?;
    /// let map = hw.space(&hw.root()).map_file(&file, 0..5)?;
    /// map.write(4)?[0] = 8;
    /// file.set_len(Bytes(2 * 4096))?;
    /// assert!(map.read_latched(4).is_err());
    /// assert_eq!(std::fs::metadata(source.path())?.len(), 2 * 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_len(&self, len: Bytes) -> io::Result<()> {
        let (core, entry) = (self.core(), self.entry());
        let id = entry.id();
        if id.kind().is_swap_backed() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the length of memory is fixed",
            ));
        }
        if !id.is_writable() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the file is open to read only",
            ));
        }
        if pages_in(len.0, id.order()) > id.pages_max() {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("a file has at most {} pages", id.pages_max()),
            ));
        }
        let resized = {
            // Pages behind the end may be afloat, and no other thread waiting for storage.
            let _waiting = core.wait_for_others();
            core.cache.resize(entry, len.0)?
        };
        // Those that another thread holds for a moment are zero, and age like others.
        core.reclaim.evict_pages(&resized.behind);
        core.cache.end_resize(resized);
        Ok(())
    }
}
