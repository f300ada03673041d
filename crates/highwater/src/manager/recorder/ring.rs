//! The ring file: creation, and appending records to it.
//!
//! **Protocol.** One thread at a time writes (`Recorder` hands the ring over), each record by one
//! `pwrite`, then the hint. The bytes are in the kernel's page cache when the call returns, so they
//! survive the end of the process, a SIGKILL included; they are not synced, so a crash of the
//! machine may lose the last ones. A record that was cut short has a wrong checksum.
//!
//! A shared mapping would survive as well. Writes by system call need no unsafe code, and turn each
//! fault of the storage into an error of that write: a full or broken disk, or a file that another
//! program truncates, would be a SIGBUS through a mapping.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::format::{
    ALIGN, FileHeader, HINT_AT, Hint, Kind, MAGIC, RECORD_HEAD, RING_AT, RecordHead,
};

/// Bytes of zeros written at once.
const ZEROS: usize = 1 << 20;

/// A recording that is being written.
#[derive(Debug)]
pub(super) struct RingFile {
    file: File,
    size: u64,
    /// Number of the next record.
    seq: u64,
    /// Position of the next record.
    at: u64,
}

impl RingFile {
    /// Creates the file, with all of its blocks, so that a full disk is an error here. A recording
    /// that is there is kept as `PATH.old`, in place of an earlier one; on an error it stays where
    /// it is. No file of another kind is replaced.
    pub(super) fn create(path: &Path, header: &FileHeader) -> io::Result<Self> {
        let (is_there, old) = (is_recording(path)?, beside(path, ".old"));
        if is_there {
            is_recording(&old)?;
        }
        let new = beside(path, &format!(".{}.new", std::process::id()));
        // Of a process that was killed here, which had this number: the first of a container always
        // has the same.
        if fs::symlink_metadata(&new).is_ok_and(|it| it.is_file()) {
            fs::remove_file(&new)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).open(&new)?;
        // Another process of that number may do the same at this moment.
        let is_own = || {
            let found = fs::symlink_metadata(&new)?;
            Ok::<_, io::Error>(found.ino() == file.metadata()?.ino())
        };
        let written = write_all(&file, header).and_then(|()| {
            if !is_own()? {
                return Err(exists("another process makes a recording of this name"));
            }
            if is_there {
                fs::rename(path, old)?;
            }
            fs::rename(&new, path)
        });
        if let Err(error) = written {
            if is_own().is_ok_and(|is_own| is_own) {
                // The error says more than a failure to clean up would.
                let _ = fs::remove_file(&new);
            }
            return Err(error);
        }
        Ok(Self {
            file,
            size: header.ring,
            seq: 1,
            at: 0,
        })
    }

    /// Appends a record, whose payload stands behind room for the header, and overwrites the
    /// oldest ones.
    ///
    /// # Errors
    ///
    /// When the system refuses the write. The record is lost, and its number not used again.
    pub(super) fn append(
        &mut self,
        kind: Kind,
        time: Duration,
        record: &mut [u8],
    ) -> io::Result<()> {
        let len = record.len() as u64;
        debug_assert!(
            len <= self.size && len >= RECORD_HEAD as u64,
            "a record of {len} bytes in a ring of {}",
            self.size
        );
        let left = self.size - self.at % self.size;
        if len > left {
            self.at += left;
        }
        let head = RecordHead {
            kind,
            len: u32::try_from(record.len() - RECORD_HEAD).expect("a payload is below 4 GiB"),
            seq: self.seq,
            at: self.at,
            time,
        };
        head.seal(record);
        let offset = RING_AT + self.at % self.size;
        self.seq += 1;
        self.at = head.end();
        debug_assert!(self.at.is_multiple_of(ALIGN), "records are aligned");
        self.file.write_all_at(record, offset)
    }

    /// Replaces the file, for example by one whose writes fail; returns the one before.
    #[cfg(all(test, not(loom), not(miri)))]
    pub(super) fn replace_file(&mut self, file: File) -> File {
        std::mem::replace(&mut self.file, file)
    }

    /// Returns the number of the newest record; 0 if there is none.
    pub(super) fn newest(&self) -> u64 {
        self.seq - 1
    }

    /// Notes where the newest record ends.
    pub(super) fn hint(&self) -> io::Result<()> {
        let hint = Hint {
            seq: self.newest(),
            end: self.at,
        };
        self.file.write_all_at(&hint.encode(), HINT_AT)
    }
}

/// Returns whether there is a recording at `path`: to be kept. False if there is nothing, or an
/// empty file.
fn is_recording(path: &Path) -> io::Result<bool> {
    // Not opened if it is a pipe or a device, which could block.
    match fs::metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(exists("it is no regular file: give another path")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    }
    let mut start = Vec::new();
    let file = File::open(path)?;
    file.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    if start.is_empty() || start == MAGIC {
        return Ok(!start.is_empty());
    }
    let remedy = "it exists and is no recording: give another path, or remove it";
    Err(exists(remedy))
}

fn exists(remedy: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, remedy)
}

fn write_all(file: &File, header: &FileHeader) -> io::Result<()> {
    let zeros = vec![0; ZEROS];
    let (mut at, end) = (0, RING_AT + header.ring);
    while at < end {
        let len = usize::try_from(end - at).map_or(ZEROS, |left| left.min(ZEROS));
        file.write_all_at(&zeros[..len], at)?;
        at += len as u64;
    }
    file.write_all_at(&header.encode(), 0)
}

/// Returns the path with `suffix` behind its name.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}
