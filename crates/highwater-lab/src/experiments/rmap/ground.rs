//! The files that all rounds read.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use highwater::units::{PAGE_BYTES, PAGE_SIZE};
use highwater::{Access, Backing, FileBacking};

use super::clock::Clock;
use super::disk::{Disk, Pace, Paced};
use crate::experiments::ExperimentError;
use crate::report::text::to_f64;

/// A scenario of the discussion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// A and B.
    Mapped,
    /// And C.
    Read,
}

/// Pages of C's file, as a part of the pool: chosen, because the discussion does not state the
/// size. Under *vanilla* its C brought in 2.46 million pages (18.51 million were freed, 18.87
/// million brought in for A, 2.82 million stayed), of which 0.88 million were refaults (13.47
/// million, less A's 12.58). The other 1.58 million are 0.56 of the capacity. They stayed while A
/// streamed by, as active pages, of which the published machine keeps ten for each inactive one
/// (frames-and-reclaim specification, 9.5). The share here is a little larger, so that C does not
/// regain lost pages while A streams by faster than C reads.
const C_SHARE: (u64, u64) = (31, 50);

/// Disk bandwidth that A and C share. Chosen: less than A alone reads from the system's page cache,
/// so that both compete for the disk, as on the published machine (2.9 GiB/s), and not for the two
/// CPUs.
const DISK_BYTES_PER_S: f64 = 2000.0 * 1024.0 * 1024.0;

/// Anonymous files (unlinked): A's is twice as large as the pool.
#[derive(Debug)]
pub(super) struct Ground {
    /// Frames of the pool.
    pub(super) capacity: u64,
    a: File,
    /// C's file.
    c: Option<File>,
    /// The disk of both files, if there is a C.
    disk: Option<Arc<Disk>>,
    salt: u64,
}

impl Ground {
    pub(super) fn new(
        seed: u64,
        capacity: u64,
        scenario: Scenario,
    ) -> Result<Self, ExperimentError> {
        let make = |salt, pages| write_file(salt, pages).map_err(refused);
        let (c, disk) = match scenario {
            Scenario::Mapped => (None, None),
            Scenario::Read => (
                Some(make(!seed, capacity * C_SHARE.0 / C_SHARE.1)?),
                Some(Arc::new(Disk::new(DISK_BYTES_PER_S))),
            ),
        };
        Ok(Self {
            capacity,
            a: make(seed, 2 * capacity)?,
            c,
            disk,
            salt: seed,
        })
    }

    /// Returns the number of pages of A's file.
    pub(super) fn pages(&self) -> u64 {
        2 * self.capacity
    }

    pub(super) fn pages_f64(&self) -> f64 {
        to_f64(self.pages())
    }

    /// Returns whether there is a C.
    pub(super) fn has_c(&self) -> bool {
        self.c.is_some()
    }

    /// Opens A's file.
    pub(super) fn open_a(
        &self,
        hw: &highwater::Manager,
        clock: &Clock,
    ) -> Result<highwater::File, ExperimentError> {
        self.open(hw, &self.a, clock)
    }

    /// Opens C's file, if there is a C.
    pub(super) fn open_c(
        &self,
        hw: &highwater::Manager,
        clock: &Clock,
    ) -> Result<Option<highwater::File>, ExperimentError> {
        let file = self.c.as_ref().map(|file| self.open(hw, file, clock));
        file.transpose()
    }

    fn open(
        &self,
        hw: &highwater::Manager,
        file: &File,
        clock: &Clock,
    ) -> Result<highwater::File, ExperimentError> {
        let file = file.try_clone().and_then(FileBacking::new);
        let file = file.map_err(refused)?;
        let pace = match (clock, &self.disk) {
            (Clock::Simulated(turns), _) => Pace::Simulated(Arc::clone(turns)),
            (Clock::System(_), Some(disk)) => Pace::Disk(Arc::clone(disk)),
            (Clock::System(_), None) => Pace::System,
        };
        let backing: Arc<dyn Backing> = Arc::new(Paced { file, pace });
        let opened = hw.open_backing(backing, Access::ReadOnly);
        opened.map_err(|error| refused(io::Error::other(error)))
    }

    /// Returns whether `bytes` are those of a page of A's file.
    pub(super) fn is_of_a(&self, page: u64, bytes: &[u8]) -> bool {
        is_page(self.salt, page, bytes)
    }

    /// Returns whether `bytes` are those of a page of C's file.
    pub(super) fn is_of_c(&self, page: u64, bytes: &[u8]) -> bool {
        is_page(!self.salt, page, bytes)
    }
}

fn refused(source: io::Error) -> ExperimentError {
    ExperimentError::System {
        what: "write a file to read".to_owned(),
        source,
        remedy: "set TMPDIR to a directory with 700 MiB free",
    }
}

/// Returns the first and last word of a page.
fn word(salt: u64, page: u64) -> [u8; 8] {
    (salt ^ page.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes()
}

fn is_page(salt: u64, page: u64, bytes: &[u8]) -> bool {
    let word = word(salt, page);
    bytes.len() == PAGE_SIZE && bytes.starts_with(&word) && bytes.ends_with(&word)
}

fn write_file(salt: u64, pages: u64) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    let mut piece = Vec::new();
    for page in 0..pages {
        let begin = piece.len();
        piece.resize(begin + PAGE_SIZE, 0x5a);
        piece[begin..begin + 8].copy_from_slice(&word(salt, page));
        piece[begin + PAGE_SIZE - 8..].copy_from_slice(&word(salt, page));
        if piece.len() as u64 >= 256 * PAGE_BYTES || page + 1 == pages {
            file.write_all(&piece)?;
            piece.clear();
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Goal: a page is identified by its bytes. Method: pages of both files, in their own place and
    /// in each other's.
    #[test]
    fn pages_are_told_apart() {
        let ground = Ground::new(7, 200, Scenario::Read).unwrap();
        let mut bytes = [0; PAGE_SIZE];
        for page in [0, 1, 255, 256, 399] {
            ground
                .a
                .read_exact_at(&mut bytes, page * PAGE_BYTES)
                .unwrap();
            assert!(ground.is_of_a(page, &bytes));
            assert!(!ground.is_of_a(page + 1, &bytes) && !ground.is_of_c(page, &bytes));
            let c = ground.c.as_ref().unwrap();
            let page = page / 4;
            c.read_exact_at(&mut bytes, page * PAGE_BYTES).unwrap();
            assert!(ground.is_of_c(page, &bytes));
        }
        assert_eq!(ground.a.metadata().unwrap().len(), 400 * PAGE_BYTES);
    }
}
