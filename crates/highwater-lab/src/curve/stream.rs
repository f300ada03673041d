//! The accesses to sampled pages, in order: three bytes each, in a small buffer and an unlinked
//! temporary file.
//!
//! Invariant: memory is two buffers of [`BUFFER`] bytes at most, whatever the length. A stream that
//! fits one buffer never touches the disk.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::reuse::Class;

/// Bytes of the buffer. Chosen: large enough that a system call costs nothing beside its accesses.
pub(super) const BUFFER: usize = ENTRY << 14;

/// Bytes of an entry: a slot and a class.
const ENTRY: usize = size_of::<u16>() + size_of::<Class>();

/// A sequence of slots and classes that is written once and read several times.
#[derive(Debug)]
pub(super) struct Stream {
    dir: PathBuf,
    buffer: Vec<u8>,
    /// The entries before those of the buffer.
    file: Option<File>,
    len: u64,
}

impl Stream {
    /// Creates an empty stream; its file, once it needs one, is in `dir`.
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            buffer: Vec::with_capacity(BUFFER),
            file: None,
            len: 0,
        }
    }

    /// Returns the directory of its file.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the number of entries.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    /// Adds an entry.
    pub(super) fn push(&mut self, slot: u16, class: Class) -> io::Result<()> {
        if self.buffer.len() == BUFFER {
            let file = match &mut self.file {
                Some(file) => file,
                None => self.file.insert(tempfile::tempfile_in(&self.dir)?),
            };
            file.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        let [low, high] = slot.to_le_bytes();
        self.buffer.extend_from_slice(&[low, high, class]);
        self.len += 1;
        Ok(())
    }

    /// Calls `visit` with all entries, in order, until it fails. Threads may do so at once.
    pub(super) fn for_each(
        &self,
        mut visit: impl FnMut(u16, Class) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut visit_all = |bytes: &[u8]| {
            let (entries, _) = bytes.as_chunks::<ENTRY>();
            let mut entries = entries.iter();
            entries
                .try_for_each(|[low, high, class]| visit(u16::from_le_bytes([*low, *high]), *class))
        };
        if let Some(file) = &self.file {
            let mut bytes = vec![0; BUFFER];
            // Whole buffers were written.
            let nr_buffers = self.len.div_ceil((BUFFER / ENTRY) as u64) - 1;
            for at in 0..nr_buffers {
                file.read_exact_at(&mut bytes, at * BUFFER as u64)?;
                visit_all(&bytes)?;
            }
        }
        visit_all(&self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: a stream returns its entries, in memory and on disk. Method: lengths around those at
    // which the buffer is full, read twice.
    #[test]
    fn entries_come_back_in_order() {
        let whole = BUFFER / ENTRY;
        for len in [0, 1, whole - 1, whole, whole + 1, 2 * whole, 2 * whole + 7] {
            let mut stream = Stream::new(&std::env::temp_dir());
            let written = (0..len).map(|at| {
                (
                    u16::try_from(at % 60_000).unwrap(),
                    (at % 97).try_into().unwrap(),
                )
            });
            (written.clone()).for_each(|(slot, class)| stream.push(slot, class).unwrap());
            for _ in 0..2 {
                let mut read = Vec::new();
                let visit = |slot, class| {
                    read.push((slot, class));
                    Ok(())
                };
                stream.for_each(visit).unwrap();
                assert!(read.iter().copied().eq(written.clone()), "{len} entries");
            }
            assert_eq!(stream.len(), len as u64);
            assert_eq!(stream.file.is_some(), len > whole);
            assert_eq!(stream.buffer.capacity(), BUFFER);
        }
    }
}
