//! The oracle of written pages: the number of writes of each page, kept apart from the cache.
//!
//! Invariant: `get(page)` is the number of writes that the replay has made to the page through the
//! cache. It holds because the page's latch is held while its contents and its version here change,
//! and while they are read.
//!
//! A version is 4 bytes in a sparse side file at 4 times the page number, read and written with one
//! system call each, so that memory does not grow with a trace's footprint.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Bytes of one version in the side file.
const ENTRY: u64 = 4;

/// The same, as the length of arrays.
const ENTRY_LEN: usize = size_of::<u32>();

const _: () = assert!(ENTRY_LEN as u64 == ENTRY);

/// Versions that the final walk reads at a time: 64 KiB.
const WALK_ENTRIES: usize = 16 * 1024;

/// The versions of one tenant's pages.
#[derive(Debug)]
pub(super) struct Versions {
    file: File,
    /// One more than the highest page written: the end of the final walk if the file system cannot
    /// skip holes. Written by: every worker (`fetch_max`). Read by: the walk, after the workers
    /// were joined. Publishes nothing: the versions are in the file.
    end: AtomicU64,
}

impl Versions {
    /// Creates an oracle over `file`, which is empty: no page was written.
    #[must_use]
    pub(super) fn new(file: File) -> Self {
        let end = AtomicU64::new(0);
        Self { file, end }
    }

    /// Returns the page's version; 0 if it was never written. The caller holds the page's latch.
    ///
    /// # Errors
    ///
    /// When the side file cannot be read.
    pub(super) fn get(&self, page: u64) -> io::Result<u32> {
        let mut entry = [0; ENTRY_LEN];
        match self.file.read_exact_at(&mut entry, page * ENTRY) {
            Ok(()) => Ok(u32::from_le_bytes(entry)),
            // Behind the last version that was ever stored.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Sets the page's version. The caller holds the page's latch for writing.
    ///
    /// # Errors
    ///
    /// When the side file cannot be written.
    pub(super) fn set(&self, page: u64, version: u32) -> io::Result<()> {
        // Relaxed: only read after the workers were joined, which orders it.
        self.end.fetch_max(page + 1, Ordering::Relaxed);
        self.file.write_all_at(&version.to_le_bytes(), page * ENTRY)
    }

    /// Calls `visit(page, version)` for every page that was written, in order.
    ///
    /// # Cost
    ///
    /// Reads the parts of the side file that hold data, in blocks of the file system.
    ///
    /// # Errors
    ///
    /// The first error of the side file or of `visit`.
    pub(super) fn walk<E: From<io::Error>>(
        &self,
        mut visit: impl FnMut(u64, u32) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut entries = vec![0; WALK_ENTRIES * ENTRY_LEN];
        // Relaxed: see `set`.
        let end = self.end.load(Ordering::Relaxed) * ENTRY;
        let mut at = 0;
        while let Some(data) = self.next_data(at, end)? {
            let length =
                usize::try_from(end - data).map_or(entries.len(), |n| n.min(entries.len()));
            self.file.read_exact_at(&mut entries[..length], data)?;
            let (versions, _) = entries[..length].as_chunks::<ENTRY_LEN>();
            for (page, version) in (data / ENTRY..).zip(versions) {
                match u32::from_le_bytes(*version) {
                    0 => {}
                    version => visit(page, version)?,
                }
            }
            at = data + length as u64;
        }
        Ok(())
    }

    /// Returns where data begins at or after `at`, below `end`.
    fn next_data(&self, at: u64, end: u64) -> io::Result<Option<u64>> {
        if at >= end {
            return Ok(None);
        }
        match seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) => Ok((data < end).then_some(data - data % ENTRY)),
            Err(Errno::NXIO) => Ok(None),
            // A file system without holes: everything is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the walk visits each written page once, in order, however far apart they are. Method:
    /// random pages over a wide range, against a map.
    #[test]
    fn the_walk_visits_what_was_written() {
        let seed = std::env::var("SEED").map_or(11, |seed| seed.parse().unwrap());
        let mut rng = fastrand::Rng::with_seed(seed);
        let versions = Versions::new(tempfile::tempfile().unwrap());
        let mut expected = std::collections::BTreeMap::new();
        for _ in 0..2_000 {
            let page = rng.u64(..) >> rng.u32(34..64);
            let version = versions.get(page).unwrap() + 1;
            versions.set(page, version).unwrap();
            *expected.entry(page).or_insert(0) += 1;
        }
        let mut seen = Vec::new();
        let walked: io::Result<()> = versions.walk(|page, version| {
            seen.push((page, version));
            Ok(())
        });
        walked.unwrap();
        assert!(seen.into_iter().eq(expected), "SEED={seed}");
    }

    #[test]
    fn nothing_written_is_nothing_visited() {
        let versions = Versions::new(tempfile::tempfile().unwrap());
        assert_eq!(versions.get(1 << 40).unwrap(), 0);
        let walked: io::Result<()> = versions.walk(|page, _| panic!("page {page}"));
        walked.unwrap();
    }
}
