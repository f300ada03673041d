//! Real files with a read rate limited to that of a disk, or with the read's cost on a simulated
//! clock.
//!
//! The bytes come from the system's page cache, because other programs use a test machine's disk
//! too. The rate is shared by all files on the disk, so that a tenant that reads more leaves less
//! bandwidth to the others, as on the published machine. Readers sleep while they wait, and use no
//! CPU.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use highwater::units::{FilePage, PAGE_SIZE};
use highwater::{Backing, FileBacking};

use super::clock::PAGE_IN;
use super::turns::Turns;
use crate::report::text::to_f64;

/// Read-ahead of an idle disk, as time. It makes up for sleeps that last longer than requested.
const AHEAD: Duration = Duration::from_millis(2);

/// Shorter waits are deferred: a sleep takes about as long by itself.
const SHORT: Duration = Duration::from_micros(200);

/// One disk; it does one transfer at a time.
#[derive(Debug)]
pub(super) struct Disk {
    bytes_per_s: f64,
    /// When it will have done all requests.
    done_at: Mutex<Instant>,
}

impl Disk {
    pub(super) fn new(bytes_per_s: f64) -> Self {
        Self {
            bytes_per_s,
            done_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits for a transfer, which is queued behind earlier requests.
    fn transfer(&self, bytes: usize) {
        thread::sleep(self.queue(bytes, Instant::now()));
    }

    /// Queues a transfer at the time `now`; returns how long to wait for it.
    fn queue(&self, bytes: usize, now: Instant) -> Duration {
        let takes = Duration::from_secs_f64(to_f64(bytes as u64) / self.bytes_per_s);
        let mut done_at = self.done_at.lock().expect("no thread panics with it");
        *done_at = now.checked_sub(AHEAD).unwrap_or(now).max(*done_at) + takes;
        let wait = done_at.saturating_duration_since(now);
        if wait < SHORT { Duration::ZERO } else { wait }
    }
}

/// Cost of a read.
#[derive(Clone, Debug)]
pub(super) enum Pace {
    /// The system's own time.
    System,
    /// A disk's time.
    Disk(Arc<Disk>),
    /// A cost for each page, on a simulated clock.
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

/// A file whose reads are paced.
#[derive(Debug)]
pub(super) struct Paced {
    pub(super) file: FileBacking,
    pub(super) pace: Pace,
}

impl Backing for Paced {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_page(page, buf)?;
        self.pace.transfer(got);
        Ok(got)
    }

    fn read_pages(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let got = self.file.read_pages(first, bufs)?;
        self.pace.transfer(got);
        Ok(got)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.file.write_page(page, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the disk transfers so many bytes in a second for all readers together and no more,
    /// except for its read-ahead. Method: a second's worth in pieces, by a clock of the test; then
    /// a pause, which adds at most [`AHEAD`].
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
