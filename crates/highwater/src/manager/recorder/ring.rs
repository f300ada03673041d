//! The ring file: creation, publication at its path, and appending records to it.
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
use crate::units::Bytes;

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
    /// Creates the file as `PATH.PID.new`, with all of its blocks, so that a full disk is an error
    /// here.
    pub(super) fn create(path: &Path, header: &FileHeader) -> io::Result<(Self, Unpublished)> {
        kept_as(path)?;
        let new = beside(path, &format!(".{}.new", std::process::id()));
        // Of a process that was killed here, which had this number: the first of a container always
        // has the same.
        if fs::symlink_metadata(&new).is_ok_and(|it| it.is_file()) {
            fs::remove_file(&new)?;
        }
        let file = OpenOptions::new().write(true).create_new(true).open(&new)?;
        let path = path.to_owned();
        let unpublished = Unpublished { file, new, path };
        write_all(&unpublished.file, header)?;
        let ring = Self {
            file: unpublished.file.try_clone()?,
            size: header.ring,
            seq: 1,
            at: 0,
        };
        Ok((ring, unpublished))
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

    /// Returns the size of the ring.
    pub(super) fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    /// Returns the position behind the newest record.
    pub(super) fn end(&self) -> u64 {
        self.at
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

/// The file of a recording that is not at its path yet; removed on drop.
#[derive(Debug)]
pub(in crate::manager) struct Unpublished {
    file: File,
    new: PathBuf,
    path: PathBuf,
}

impl Unpublished {
    /// Moves the recording to its path. A recording that is there is kept as `PATH.old`, in place
    /// of an earlier one; on an error it stays where it is. No file of another kind is replaced.
    pub(in crate::manager) fn publish(self) -> io::Result<()> {
        let old = kept_as(&self.path)?;
        if !self.is_own()? {
            return Err(exists("another process makes a recording of this name"));
        }
        replace(&self.path, &self.new, old.as_deref())
    }

    /// Returns whether the file of that name is this one: another process of the same number may
    /// make a recording at the same moment.
    fn is_own(&self) -> io::Result<bool> {
        let found = fs::symlink_metadata(&self.new)?;
        Ok(found.ino() == self.file.metadata()?.ino())
    }
}

impl Drop for Unpublished {
    fn drop(&mut self) {
        // A published file has left that name.
        if self.is_own().is_ok_and(|is_own| is_own) {
            // The error that led here says more than a failure to clean up would.
            let _ = fs::remove_file(&self.new);
        }
    }
}

/// Renames `new` to `path`, and the file that is there to `old`; on an error that stays.
fn replace(path: &Path, new: &Path, old: Option<&Path>) -> io::Result<()> {
    if let Some(old) = old {
        fs::rename(path, old)?;
    }
    let renamed = fs::rename(new, path);
    if let (Err(_), Some(old)) = (&renamed, old) {
        // The first error says more than a failure to move it back would.
        let _ = fs::rename(old, path);
    }
    renamed
}

/// Returns the name under which a recording at `path` is kept, if there is one.
fn kept_as(path: &Path) -> io::Result<Option<PathBuf>> {
    if !is_recording(path)? {
        return Ok(None);
    }
    let old = beside(path, ".old");
    is_recording(&old)?;
    Ok(Some(old))
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

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    // Goal: a recording that could not be put into the place of another one leaves that there.
    // Method: the new file is missing, so that the first rename succeeds and the second fails.
    #[test]
    fn a_recording_that_cannot_be_replaced_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flight.rec");
        let [new, old] = [".1.new", ".old"].map(|suffix| beside(&path, suffix));
        fs::write(&path, MAGIC).unwrap();
        let failed = replace(&path, &new, Some(&old)).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::NotFound);
        assert_eq!(fs::read(&path).unwrap(), MAGIC);
        assert!(!old.exists());
    }
}
