//! Pages that storage fills while no thread waits; the task that a page is for; and the count of
//! flights.
//!
//! A *flight* is a run of neighbouring pages, marked as filling, with the charge and the frames
//! that they need. The module `io` has storage fill them, and lands them.
//!
//! A thread that waits for a page of a flight cannot know whether the thread that launched it will
//! take its result. So the count has two sides: a thread that waits announces itself and then looks
//! for flights; a thread that launches one counts it and then looks for announcements. At least one
//! of them sees the other, and sees to it that the result is taken.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::error::ReadError;
use crate::cache::{FileId, Filling, VmArea};
use crate::group::NodeCharge;
use crate::memmap::Pinned;
use crate::reclaim::Afloat;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Condvar, LockClass, Mutex, Rank, StatCell};
use crate::units::MapPage;

static FLIGHTS_LOCK: LockClass = LockClass::new("flights", Rank::Leaf);
static LANDING_LOCK: LockClass = LockClass::new("landing", Rank::Leaf);

/// Neighbouring pages that are being filled, and what they need to become resident. Must be landed,
/// never dropped.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) area: Arc<VmArea>,
    pub(super) cargo: Cargo,
    /// The task that the first page is for.
    pub(super) wanted: Option<Wanted>,
}

/// Pages of a flight, their charge, and their count as pages in transit.
#[derive(Debug)]
pub(super) struct Cargo {
    pub(super) filling: Vec<Filling>,
    pub(super) charge: NodeCharge,
    pub(super) way: Afloat,
}

/// The task that waits for a page of a mapping.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) page: MapPage,
    pub(super) landing: Arc<Landing>,
}

impl Flight {
    pub(super) fn new(
        area: Arc<VmArea>,
        filling: Vec<Filling>,
        charge: NodeCharge,
        way: Afloat,
    ) -> Self {
        debug_assert!(!filling.is_empty(), "a flight has pages");
        Self {
            area,
            cargo: Cargo {
                filling,
                charge,
                way,
            },
            wanted: None,
        }
    }

    /// Delivers the first page to a task. Returns the place where the task waits for it.
    pub(super) fn deliver(&mut self, page: MapPage) -> Arc<Landing> {
        let landing = Arc::new(Landing::new());
        self.wanted = Some(Wanted {
            page,
            landing: Arc::clone(&landing),
        });
        landing
    }
}

/// Result of a delivery: the page, pinned since before it could be evicted.
type Delivered = Result<Pinned, ReadError>;

/// Where a task waits for the page that it asked storage for. Shared by the task and the flight;
/// if the task is dropped, the flight lands all the same.
#[derive(Debug)]
pub(super) struct Landing(Mutex<LandingState>);

#[derive(Debug)]
enum LandingState {
    Flying(Option<Waker>),
    Landed(Delivered),
    Taken,
}

impl Landing {
    fn new() -> Self {
        Self(Mutex::new(&LANDING_LOCK, LandingState::Flying(None)))
    }

    /// Returns the delivery, or wakes the task when it comes.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Delivered> {
        let mut state = self.0.lock();
        // No wake-up is lost: `land` takes the waker under this lock.
        if let LandingState::Flying(known) = &mut *state {
            let waker = context.waker();
            // A waker that is dropped runs the program's code: not under the lock.
            let before = match known {
                Some(known) if known.will_wake(waker) => None,
                _ => known.replace(waker.clone()),
            };
            drop(state);
            drop(before);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, LandingState::Taken) {
            LandingState::Landed(delivered) => Poll::Ready(delivered),
            _ => panic!("a delivery is taken once"),
        }
    }

    /// Delivers; returns the waker of the task, if it has been polled.
    pub(super) fn land(&self, delivered: Delivered) -> Option<Waker> {
        let before = std::mem::replace(&mut *self.0.lock(), LandingState::Landed(delivered));
        match before {
            LandingState::Flying(waker) => waker,
            _ => panic!("a flight lands once"),
        }
    }
}

impl Wanted {
    /// Returns whether the task still waits. It may be dropped right after.
    pub(super) fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.landing) > 1
    }
}

/// The flights of a manager that have not landed, and their waiters.
#[derive(Debug)]
pub(super) struct Flights {
    table: Mutex<FlightTable>,
    /// Signalled when a flight has landed and a thread waits for that.
    landed: Condvar,
    /// Number of threads and tasks that wait for pages that others fill.
    /// Written by: them. Read by: threads that have launched. Publishes: nothing.
    nr_waiting: AtomicU64,
    /// A copy of the count under the lock.
    /// Written by: holders of the lock. Read by: any thread. Publishes: nothing.
    nr_afloat: AtomicU64,
    nr_launched: StatCell,
    nr_landed: StatCell,
}

#[derive(Debug, Default)]
struct FlightTable {
    count: u64,
    /// Their number by file; few files at once.
    of_files: Vec<(FileId, u64)>,
    /// Tasks to wake when one lands.
    tasks: Vec<Waker>,
    /// Number of threads that sleep until one lands.
    threads: u64,
}

impl FlightTable {
    fn is_afloat(&self, file: FileId) -> bool {
        self.of_files.iter().any(|(of, _)| *of == file)
    }
}

/// A flight that is about to land: it counts as afloat until this is dropped.
#[derive(Debug)]
pub(super) struct Aboard<'a> {
    flights: &'a Flights,
    file: FileId,
}

impl Flights {
    pub(super) fn new() -> Self {
        Self {
            table: Mutex::new(&FLIGHTS_LOCK, FlightTable::default()),
            landed: Condvar::new(),
            nr_waiting: AtomicU64::new(0),
            nr_afloat: AtomicU64::new(0),
            nr_launched: StatCell::new(),
            nr_landed: StatCell::new(),
        }
    }

    /// Counts a flight that is launched; returns whether a thread or task waits for pages that
    /// others fill.
    pub(super) fn launch(&self, file: FileId) -> bool {
        self.nr_launched.add(1);
        let mut table = self.table.lock();
        table.count += 1;
        // SeqCst. Pairs with: `announce`. With less, this thread and one that waits could each read
        // what the other had not written yet.
        self.nr_afloat.store(table.count, Ordering::SeqCst);
        match table.of_files.iter_mut().find(|(of, _)| *of == file) {
            Some((_, count)) => *count += 1,
            None => table.of_files.push((file, 1)),
        }
        drop(table);
        // SeqCst. Pairs with: `announce`.
        self.nr_waiting.load(Ordering::SeqCst) > 0
    }

    /// Returns a flight that is about to land.
    pub(super) fn aboard(&self, file: FileId) -> Aboard<'_> {
        Aboard {
            flights: self,
            file,
        }
    }

    /// Counts the caller as waiting for pages that others fill; returns whether any are afloat.
    pub(super) fn announce(&self) -> bool {
        // SeqCst. Pairs with: `launch`.
        self.nr_waiting.fetch_add(1, Ordering::SeqCst);
        self.nr_afloat() > 0
    }

    /// Undoes [`announce`](Self::announce).
    pub(super) fn end_announcement(&self) {
        // Relaxed: it ends a wait, and announces nothing.
        let before = self.nr_waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "announced before");
    }

    /// Returns the number of flights that have not landed.
    pub(super) fn nr_afloat(&self) -> u64 {
        // SeqCst. Pairs with: `launch`.
        self.nr_afloat.load(Ordering::SeqCst)
    }

    pub(super) fn nr_launched(&self) -> u64 {
        self.nr_launched.get()
    }

    pub(super) fn nr_landed(&self) -> u64 {
        self.nr_landed.get()
    }

    /// Wakes a task when the next flight lands; returns false if none is afloat.
    pub(super) fn watch(&self, context: &mut Context<'_>) -> bool {
        let mut table = self.table.lock();
        let waker = context.waker();
        if table.count > 0 && !table.tasks.iter().any(|it| it.will_wake(waker)) {
            table.tasks.push(waker.clone());
        }
        table.count > 0
    }

    /// Returns whether a flight of a file is afloat.
    pub(super) fn is_afloat(&self, file: FileId) -> bool {
        self.nr_afloat() > 0 && self.table.lock().is_afloat(file)
    }

    /// Sleeps until a flight has landed, if one of a file is afloat, but not longer than `at_most`.
    pub(super) fn wait(&self, file: FileId, at_most: Option<Duration>) {
        let mut table = self.table.lock();
        if !table.is_afloat(file) {
            return;
        }
        table.threads += 1;
        match at_most {
            Some(at_most) => _ = self.landed.wait_for(&mut table, at_most),
            None => self.landed.wait(&mut table),
        }
        table.threads -= 1;
    }
}

impl Drop for Aboard<'_> {
    fn drop(&mut self) {
        let Self { flights, file } = self;
        flights.nr_landed.add(1);
        let mut table = flights.table.lock();
        table.count -= 1;
        // SeqCst. Pairs with: nothing; it is a count in the order of `launch`.
        flights.nr_afloat.store(table.count, Ordering::SeqCst);
        let index = table.of_files.iter().position(|(of, _)| of == file);
        let index = index.expect("a flight is counted");
        table.of_files[index].1 -= 1;
        if table.of_files[index].1 == 0 {
            table.of_files.swap_remove(index);
        }
        let tasks = std::mem::take(&mut table.tasks);
        let is_waited_for = table.threads > 0;
        drop(table);
        if is_waited_for {
            flights.landed.notify_all();
        }
        // Outside the lock: wakers are the program's code.
        tasks.into_iter().for_each(Waker::wake);
    }
}
