//! Real files, read no faster than a disk gives them, or for the time that it takes on a simulated
//! clock.
//!
//! The bytes come from the system's cache, because a test machine's disk is other programs' too.
//! What is the disk's is the pace: one for all files on it, so that who reads more leaves less to
//! others, as where the thread's tenants read. It is waited for asleep, and no CPU is taken for it.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use highwater::cache::{Backing, FileBacking};
use highwater::units::PAGE_SIZE;

use super::clock::PAGE_IN;
use super::turns::Turns;
use crate::report::text::to_f64;

/// What an idle disk has read ahead for whoever comes next, as time. It makes up for sleeping
/// longer than was asked for.
const AHEAD: Duration = Duration::from_millis(2);

/// Shorter waits are owed: sleeping takes about as long by itself.
const SHORT: Duration = Duration::from_micros(200);

/// One disk, which does one transfer after the other.
#[derive(Debug)]
pub(super) struct Disk {
    bytes_per_s: f64,
    /// When it has done all that it was asked for.
    done_at: Mutex<Instant>,
}

impl Disk {
    pub(super) fn new(bytes_per_s: f64) -> Self {
        Self {
            bytes_per_s,
            done_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits for a transfer, after those that others asked for before.
    fn transfer(&self, bytes: usize) {
        thread::sleep(self.queue(bytes, Instant::now()));
    }

    /// Asks for a transfer at the time `now`; how long to wait for it.
    fn queue(&self, bytes: usize, now: Instant) -> Duration {
        let takes = Duration::from_secs_f64(to_f64(bytes as u64) / self.bytes_per_s);
        let mut done_at = self.done_at.lock().expect("nobody panics with it");
        *done_at = now.checked_sub(AHEAD).unwrap_or(now).max(*done_at) + takes;
        let wait = done_at.saturating_duration_since(now);
        if wait < SHORT { Duration::ZERO } else { wait }
    }
}

/// What reading takes.
#[derive(Clone, Debug)]
pub(super) enum Pace {
    /// What the system takes.
    System,
    /// What a disk takes.
    Disk(Arc<Disk>),
    /// What a page takes, on a clock that work moves.
    Simulated(Arc<Turns>),
}

impl Pace {
    fn transfer(&self, bytes: usize) {
        match self {
            Self::System => {}
            Self::Disk(disk) => disk.transfer(bytes),
            Self::Simulated(turns) => {
                let pages = u32::try_from(bytes.div_ceil(PAGE_SIZE)).unwrap_or(u32::MAX);
                turns.adds(PAGE_IN.saturating_mul(pages));
            }
        }
    }
}

/// A file that is read at a pace.
#[derive(Debug)]
pub(super) struct Paced {
    pub(super) file: FileBacking,
    pub(super) pace: Pace,
}

impl Backing for Paced {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_page(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_page(page, buf)?;
        self.pace.transfer(got);
        Ok(got)
    }

    fn read_pages(&self, first: u64, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let got = self.file.read_pages(first, bufs)?;
        self.pace.transfer(got);
        Ok(got)
    }

    fn write_page(&self, page: u64, buf: &[u8]) -> io::Result<usize> {
        self.file.write_page(page, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whoever asks, the disk transfers so many bytes in a second and no more, but for what
    /// it has read ahead. Method: a second's worth in pieces by a clock of the test; then a pause,
    /// which gives no more than [`AHEAD`].
    #[test]
    fn transfers_take_their_time_together() {
        let disk = Disk::new(1e9);
        let begun = *disk.done_at.lock().unwrap();
        let wait = (0..10_000).map(|_| disk.queue(100_000, begun)).last();
        assert_eq!(wait, Some(Duration::from_secs(1)));
        let later = begun + Duration::from_secs(5);
        assert_eq!(disk.queue(1_000_000, later), Duration::ZERO);
        let wait = disk.queue(2_000_000, later);
        assert_eq!(wait, Duration::from_millis(3) - AHEAD);
    }
}
