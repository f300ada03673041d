//! A real file behind a slow disk: each transfer takes its time on a simulated clock, or sleeps.
//!
//! The disk knows on whose behalf it works: a write during a client's operation on another page is
//! one that the client waits for.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use highwater::units::FilePage;
use highwater::{Backing, FileBacking};

/// The work of the calling thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// None of a client's: a background thread.
    Background,
    /// A client reads a page.
    Read,
    /// A client updates a page.
    Update,
}

thread_local! {
    static WORK: Cell<Work> = const { Cell::new(Work::Background) };
}

/// Runs an operation of a client.
pub(super) fn as_client<T>(work: Work, operation: impl FnOnce() -> T) -> T {
    let before = WORK.replace(work);
    let result = operation();
    WORK.set(before);
    result
}

/// Times of transfers of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    pub(super) read: Duration,
    pub(super) write: Duration,
}

/// A disk.
#[derive(Debug)]
pub(super) struct Disk {
    speed: Speed,
    clock: Option<Mutex<Clock>>,
    /// The simulated time in nanoseconds, for the manager. Written by: the actor that runs. Read
    /// by: the manager. Publishes: nothing.
    time: Arc<AtomicU64>,
    counts: Counts,
}

/// A simulated clock: the time of the actor that runs, and when the disk has done all requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    pub(super) now: Duration,
    free_at: Duration,
}

/// Transfers. Written by: any thread. Read by: the end of a run. Publish: nothing.
#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
    /// Pages that were written while a client read another one.
    in_reads: AtomicU64,
    in_updates: AtomicU64,
}

/// Transfers of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Transfers {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) in_reads: u64,
    pub(super) in_updates: u64,
}

impl Disk {
    /// Creates a disk whose transfers take their time on a simulated clock.
    pub(super) fn simulated(speed: Speed) -> Arc<Self> {
        Arc::new(Self {
            speed,
            clock: Some(Mutex::default()),
            time: Arc::default(),
            counts: Counts::default(),
        })
    }

    /// Creates a disk whose transfers sleep; transfers of several threads overlap.
    pub(super) fn real(speed: Speed) -> Arc<Self> {
        Arc::new(Self {
            speed,
            clock: None,
            time: Arc::default(),
            counts: Counts::default(),
        })
    }

    /// Sets the time of the actor that runs from now on; returns that of the former one.
    pub(super) fn turn(&self, now: Duration) -> Duration {
        self.clock().map_or(Duration::ZERO, |mut clock| {
            self.tell(now);
            std::mem::replace(&mut clock.now, now)
        })
    }

    /// Returns the word that has the simulated time, if it is simulated.
    pub(super) fn time(&self) -> Option<Arc<AtomicU64>> {
        self.clock.is_some().then(|| Arc::clone(&self.time))
    }

    fn tell(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).expect("584 years");
        // Relaxed: one thread runs.
        self.time.store(nanos, Ordering::Relaxed);
    }

    fn clock(&self) -> Option<MutexGuard<'_, Clock>> {
        let clock = self.clock.as_ref()?;
        Some(clock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn transfers(&self, time: Duration) {
        match self.clock() {
            None => thread::sleep(time),
            Some(mut clock) => {
                // First come, first served.
                clock.free_at = clock.free_at.max(clock.now) + time;
                clock.now = clock.free_at;
                self.tell(clock.now);
            }
        }
    }

    pub(super) fn counts(&self) -> Transfers {
        let Counts {
            reads,
            writes,
            in_reads,
            in_updates,
        } = &self.counts;
        let [reads, writes, in_reads, in_updates] =
            [reads, writes, in_reads, in_updates].map(|count| count.load(Ordering::Relaxed));
        Transfers {
            reads,
            writes,
            in_reads,
            in_updates,
        }
    }
}

impl Transfers {
    pub(super) const fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            in_reads: self.in_reads - earlier.in_reads,
            in_updates: self.in_updates - earlier.in_updates,
        }
    }
}

/// A file on the disk.
#[derive(Debug)]
pub(super) struct OnDisk {
    pub(super) file: FileBacking,
    pub(super) disk: Arc<Disk>,
}

impl Backing for OnDisk {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_page(page, buf)?;
        self.disk.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.disk.transfers(self.disk.speed.read);
        Ok(got)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        let got = self.file.write_page(page, buf)?;
        let counts = &self.disk.counts;
        counts.writes.fetch_add(1, Ordering::Relaxed);
        match WORK.get() {
            Work::Read => _ = counts.in_reads.fetch_add(1, Ordering::Relaxed),
            Work::Update => _ = counts.in_updates.fetch_add(1, Ordering::Relaxed),
            Work::Background => {}
        }
        self.disk.transfers(self.disk.speed.write);
        Ok(got)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: transfers queue at the disk. Method: three actors whose times overlap.
    #[test]
    fn a_transfer_waits_for_those_before_it() {
        let ms = Duration::from_millis;
        let disk = Disk::simulated(Speed {
            read: ms(2),
            write: ms(5),
        });
        disk.turn(ms(10));
        disk.transfers(ms(2));
        assert_eq!(disk.turn(ms(11)), ms(12));
        disk.transfers(ms(5));
        assert_eq!(disk.turn(ms(30)), ms(17));
        disk.transfers(ms(2));
        assert_eq!(disk.turn(ms(0)), ms(32));
    }
}
