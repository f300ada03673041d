//! What an open system file is: which one, of which kind, and how long.

use std::fs::{File, Metadata};
use std::io::{self, Seek};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::memmap::open_flags;

/// A system file, by device and number there (inode).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    device: u64,
    number: u64,
}

impl FileIdentity {
    pub(super) fn of(metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            // Each of its nodes is the same device; no file has its number there.
            return Self {
                device: u64::MAX - 1,
                number: metadata.rdev(),
            };
        }
        Self {
            device: metadata.dev(),
            number: metadata.ino(),
        }
    }

    /// Returns the identity of a file that no device has.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn of_test(number: u64) -> Self {
        Self {
            device: u64::MAX,
            number,
        }
    }
}

/// Refuses a descriptor with one of some flags of open(2), or from which nothing can be read.
pub(super) fn check_flags(file: &File, refused: libc::c_int) -> io::Result<()> {
    let refuse = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    let flags = open_flags(file)?;
    if flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE == libc::O_WRONLY {
        return refuse("it was not opened for reading: open it with `read(true)`");
    }
    match flags & refused {
        0 => Ok(()),
        found if found & libc::O_APPEND != 0 => refuse(
            "it was opened to append (O_APPEND), so that the system would write each page at its \
             end: open it without",
        ),
        _ => refuse("it was opened with O_DIRECT: use `FileBacking::open_direct`"),
    }
}

/// Returns the length of a regular file or block device.
pub(super) fn len_of(mut file: &File, metadata: &Metadata) -> io::Result<u64> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(metadata.len());
    }
    if kind.is_block_device() {
        // Its position is used for nothing else.
        return file.seek(io::SeekFrom::End(0));
    }
    let text = "it is neither a regular file nor a block device";
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}
