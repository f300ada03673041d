//! Pages that storage fills while no thread waits; the task that a page is for; and the count of
//! flights.
//!
//! A *flight* is a run of neighbouring pages, marked as filling, with the charge and the frames
//! that they need. The module `io` has storage fill them, and lands them.
//!
//! A thread that waits for a page of a flight cannot know whether the thread that launched it will
//! take its result. So the count has two sides: a thread that waits announces itself and then looks
//! for flights; a thread that launches some counts them, queues them, and then looks for
//! announcements. At least one of them sees the other, and sees to it that the result is taken. The
//! flights are queued then: a launcher that looked between the count and the queue would leave them
//! to a waiter that finds nothing to submit.
//!
//! A task that a thread drives is not announced while the thread polls: most such tasks wait for
//! flights of that thread itself, which hands them over together. It is counted, and the thread
//! announces itself for the time that it sleeps.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::error::ReadError;
use super::source::FlightSource;
use crate::cache::{FileId, Filling, KeptForLatch};
use crate::group::NodeCharge;
use crate::memmap::{FrameMemory, Pinned};
use crate::reclaim::Afloat;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Arc, Condvar, LockClass, Mutex, Rank, StatCell};
use crate::sync::{WakerList, WakerTicket, Woken};
use crate::units::{MapPage, Pfn};

static FLIGHTS_LOCK: LockClass = LockClass::new("flights", Rank::Leaf);
static LANDING_LOCK: LockClass = LockClass::new("landing", Rank::Leaf);

/// Neighbouring pages that are being filled, and what they need to become resident. Must be landed,
/// never dropped.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) source: FlightSource,
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
        source: FlightSource,
        filling: Vec<Filling>,
        charge: NodeCharge,
        way: Afloat,
    ) -> Self {
        debug_assert!(!filling.is_empty(), "a flight has pages");
        Self {
            source,
            cargo: Cargo {
                filling,
                charge,
                way,
            },
            wanted: None,
        }
    }

    /// Delivers the first page to a task. Returns the place where the task waits for it.
    pub(super) fn deliver(&mut self, page: MapPage, flights: &Flights) -> Arc<Landing> {
        debug_assert!(self.wanted.is_none(), "a flight is for one task");
        let landing = Arc::new(Landing::new(&flights.nr_untaken));
        self.wanted = Some(Wanted {
            page,
            landing: Arc::clone(&landing),
        });
        landing
    }
}

/// A page that was brought in for a task.
#[derive(Debug)]
pub(super) enum Arrived {
    /// Pinned since before it could be evicted: of a file that is only read.
    Pinned(Pinned),
    /// The same for a page that has a latch: it stays until that is taken.
    Kept(KeptPage),
    /// Found in a frame, which it may have left: it has a latch.
    Found(Pfn),
}

/// A page with a latch that stays in its frame for a task.
pub(super) type KeptPage = KeptForLatch<Arc<FrameMemory>>;

/// Result of a delivery.
type Delivered = Result<Arrived, ReadError>;

/// Where a task waits for the page that it asked storage for. Shared by the task and the flight;
/// if the task is dropped, the flight lands all the same.
#[derive(Debug)]
pub(super) struct Landing {
    state: Mutex<LandingState>,
    /// The manager's count of deliveries that were not taken.
    nr_untaken: Arc<AtomicU64>,
}

#[derive(Debug)]
enum LandingState {
    Flying(Option<Waker>),
    Landed(Delivered),
    Taken,
}

impl Landing {
    fn new(nr_untaken: &Arc<AtomicU64>) -> Self {
        Self {
            state: Mutex::new(&LANDING_LOCK, LandingState::Flying(None)),
            nr_untaken: Arc::clone(nr_untaken),
        }
    }

    /// Returns the delivery, or wakes the task when it comes.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Delivered> {
        // Cloned before the lock is taken, and the former one dropped after: both may run the
        // program's code.
        let waker = context.waker().clone();
        let mut state = self.state.lock();
        // No wake-up is lost: `land` takes the waker under this lock.
        if let LandingState::Flying(known) = &mut *state {
            let before = known.replace(waker);
            drop(state);
            drop(before);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, LandingState::Taken) {
            LandingState::Landed(delivered) => {
                // Relaxed: see the field of `Flights`.
                let before = self.nr_untaken.fetch_sub(1, Ordering::Relaxed);
                debug_assert!(before > 0, "a delivery is counted before it is taken");
                Poll::Ready(delivered)
            }
            _ => panic!("a delivery is taken once"),
        }
    }

    /// Delivers; returns the waker of the task, if it has been polled.
    pub(super) fn land(&self, delivered: Delivered) -> Option<Waker> {
        // Relaxed: see the field of `Flights`. Before the delivery can be taken.
        self.nr_untaken.fetch_add(1, Ordering::Relaxed);
        let landed = LandingState::Landed(delivered);
        let before = std::mem::replace(&mut *self.state.lock(), landed);
        match before {
            LandingState::Flying(waker) => waker,
            _ => panic!("a flight lands once"),
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let LandingState::Landed(_) = &*self.state.lock() {
            // Relaxed: as in `poll`.
            let before = self.nr_untaken.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a delivery is counted before it is dropped");
        }
    }
}

impl Wanted {
    /// Returns whether the task still waits. It may be dropped right after.
    pub(super) fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.landing) > 1
    }
}

/// How a task is counted that waits for pages that others fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskWait {
    /// As a thread that waits.
    Announced,
    /// As driven: it is announced while a driver sleeps.
    Driven,
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
    /// Number of driven tasks that wait for pages that others fill.
    /// Written by: the threads that poll them. Read by: drivers before they sleep. Publishes:
    /// nothing; a driver finds those that it has counted itself.
    nr_driven: AtomicU64,
    /// A copy of the count under the lock.
    /// Written by: holders of the lock. Read by: any thread. Publishes: nothing.
    nr_afloat: AtomicU64,
    /// Number of deliveries that were not taken: their pages are pinned.
    /// Written by: the threads that land and take them. Read by: tasks that find no memory.
    /// Publishes: nothing; a task that reads too low a count waits as if there were none.
    nr_untaken: Arc<AtomicU64>,
    nr_launched: StatCell,
    nr_landed: StatCell,
}

#[derive(Debug, Default)]
struct FlightTable {
    count: u64,
    /// Their number by file; few files at once.
    of_files: Vec<(FileId, u64)>,
    /// Tasks to wake when one lands.
    tasks: WakerList<()>,
    /// Number of threads that sleep until one lands.
    threads: u64,
}

impl FlightTable {
    fn is_afloat(&self, file: FileId) -> bool {
        self.of_files.iter().any(|(of, _)| *of == file)
    }

    /// Returns whether the counts may be right, in O(1): each file has a flight, and any flight
    /// has a file.
    fn is_counted(&self) -> bool {
        let nr_files = self.of_files.len() as u64;
        nr_files <= self.count && (nr_files > 0) == (self.count > 0)
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
            nr_driven: AtomicU64::new(0),
            nr_afloat: AtomicU64::new(0),
            nr_untaken: Arc::new(AtomicU64::new(0)),
            nr_launched: StatCell::new(),
            nr_landed: StatCell::new(),
        }
    }

    /// Counts a flight that is launched, before it is queued.
    pub(super) fn launch(&self, file: FileId) {
        self.nr_launched.add(1);
        let mut table = self.table.lock();
        table.count += 1;
        // Relaxed: the fence of `is_waited_for` orders it.
        self.nr_afloat.store(table.count, Ordering::Relaxed);
        match table.of_files.iter_mut().find(|(of, _)| *of == file) {
            Some((_, count)) => *count += 1,
            None => table.of_files.push((file, 1)),
        }
        debug_assert!(table.is_counted(), "a file is listed without a flight");
    }

    /// Returns whether a thread or task waits for pages that others fill. Called when the flights
    /// that the caller has launched are queued.
    pub(super) fn is_waited_for(&self) -> bool {
        // SeqCst. Pairs with: the fence of `announce`. With less, this thread and one that waits
        // could each read a count from before the other's change.
        fence(Ordering::SeqCst);
        // Relaxed: after the fence.
        self.nr_waiting.load(Ordering::Relaxed) > 0
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
        // Relaxed: the fence orders it.
        self.nr_waiting.fetch_add(1, Ordering::Relaxed);
        // SeqCst. Pairs with: the fence of `is_waited_for`. If this one is second, the flights that
        // were launched before that are counted here, and queued.
        fence(Ordering::SeqCst);
        self.nr_afloat() > 0
    }

    /// Undoes [`announce`](Self::announce).
    pub(super) fn end_announcement(&self) {
        // Relaxed: it ends a wait, and announces nothing.
        let before = self.nr_waiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "announced before");
    }

    /// Counts a driven task as waiting for pages that others fill.
    pub(super) fn count_driven(&self) {
        // Relaxed: see the field.
        self.nr_driven.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether driven tasks wait for pages that others fill.
    pub(super) fn is_any_driven(&self) -> bool {
        // Relaxed: see the field.
        self.nr_driven.load(Ordering::Relaxed) > 0
    }

    /// Ends the wait of a task.
    pub(super) fn end_task_wait(&self, wait: TaskWait) {
        match wait {
            TaskWait::Announced => self.end_announcement(),
            TaskWait::Driven => {
                // Relaxed: as in `end_announcement`.
                let before = self.nr_driven.fetch_sub(1, Ordering::Relaxed);
                debug_assert!(before > 0, "counted before");
            }
        }
    }

    /// Returns the number of flights that have not landed.
    pub(super) fn nr_afloat(&self) -> u64 {
        // Relaxed: a thread that must not miss a flight passes a fence before.
        self.nr_afloat.load(Ordering::Relaxed)
    }

    /// Returns whether tasks have deliveries to take.
    pub(super) fn is_any_untaken(&self) -> bool {
        // Relaxed: see the field.
        self.nr_untaken.load(Ordering::Relaxed) > 0
    }

    pub(super) fn nr_launched(&self) -> u64 {
        self.nr_launched.get()
    }

    pub(super) fn nr_landed(&self) -> u64 {
        self.nr_landed.get()
    }

    /// Wakes a task when the next flight lands, unless it [ends](Self::end_watch) that; returns
    /// false if none is afloat. `ticket` is `None` at first.
    pub(super) fn watch(
        &self,
        ticket: &mut Option<WakerTicket>,
        context: &mut Context<'_>,
    ) -> bool {
        // Outside the lock, as in `Landing::poll`.
        let waker = context.waker().clone();
        let mut table = self.table.lock();
        debug_assert!(
            table.count > 0 || table.tasks.is_empty(),
            "a task waits for no flight"
        );
        let is_any = table.count > 0;
        let former = match is_any {
            true => table.tasks.enter(ticket, (), waker),
            false => Some(waker),
        };
        drop(table);
        drop(former);
        is_any
    }

    /// Forgets a task that [`watch`](Self::watch) was to wake, if it still is.
    pub(super) fn end_watch(&self, ticket: WakerTicket) {
        let mut table = self.table.lock();
        let waker = table.tasks.leave(ticket);
        drop(table);
        // Outside the lock: wakers are the program's code.
        drop(waker);
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
        debug_assert!(table.count > 0, "a file's flights are counted");
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
        // Relaxed: as in `launch`; no thread acts on a flight that has landed.
        flights.nr_afloat.store(table.count, Ordering::Relaxed);
        let index = table.of_files.iter().position(|(of, _)| of == file);
        let index = index.expect("a flight is counted");
        table.of_files[index].1 -= 1;
        if table.of_files[index].1 == 0 {
            table.of_files.swap_remove(index);
        }
        debug_assert!(table.is_counted(), "a flight landed twice");
        let tasks = Woken::from_iter(table.tasks.take(|()| true));
        let is_waited_for = table.threads > 0;
        drop(table);
        if is_waited_for {
            flights.landed.notify_all();
        }
        // Outside the lock: wakers are the program's code.
        drop(tasks);
    }
}

#[cfg(all(test, loom))]
pub(super) mod loom {
    //! Models: launching, landing, waiting and cancelling.

    use std::future::poll_fn;

    use ::loom::{model, thread};

    use super::*;
    use crate::cache::loom::Nothing;
    use crate::cache::{Access, PageCache};
    use crate::percpu::Regime;
    use crate::sync::block_on;
    use crate::topology::Topology;
    use crate::units::{FilePage, Pages};

    pub(in crate::manager) fn a_file() -> FileId {
        let memory = Arc::new(FrameMemory::new(Pages(1)).unwrap());
        let cache = PageCache::new(memory, &Topology::flat(1), Regime::Atomic);
        cache
            .open(Arc::new(Nothing), Access::ReadOnly)
            .unwrap()
            .id()
    }

    fn no_page() -> Delivered {
        let page = FilePage(0);
        let source = std::io::Error::from_raw_os_error(5 /* EIO */);
        Err(ReadError::Io { page, source })
    }

    #[test]
    fn a_delivery_reaches_its_task() {
        model(|| {
            let landing = Arc::new(Landing::new(&Arc::default()));
            let storage = Arc::clone(&landing);
            let storage = thread::spawn(move || {
                let waker = storage.land(no_page());
                waker.into_iter().for_each(Waker::wake);
            });
            let delivered = block_on(poll_fn(|context| landing.poll(context)), None);
            assert!(delivered.unwrap().is_err());
            storage.join().unwrap();
        });
    }

    #[test]
    fn a_cancelled_task_leaves_the_delivery_to_storage() {
        model(|| {
            let landing = Arc::new(Landing::new(&Arc::default()));
            let storage = Arc::clone(&landing);
            let storage = thread::spawn(move || {
                let waker = storage.land(no_page());
                waker.into_iter().for_each(Waker::wake);
                Arc::strong_count(&storage)
            });
            let mut context = Context::from_waker(Waker::noop());
            drop(landing.poll(&mut context));
            drop(landing);
            assert!(storage.join().unwrap() <= 2);
        });
    }

    #[test]
    fn a_launch_or_a_waiter_calls_the_reaper() {
        // Goal: no flight is left in the queue, or in the ring, while a thread waits for it.
        model(|| {
            let flights = Arc::new(Flights::new());
            let queue = Arc::new(AtomicU64::new(0));
            let file = a_file();
            let waiter = (Arc::clone(&flights), Arc::clone(&queue));
            let waiter = thread::spawn(move || {
                let (flights, queue) = waiter;
                let sees_flights = flights.announce();
                if sees_flights {
                    queue.swap(0, Ordering::Relaxed);
                }
                sees_flights
            });
            flights.launch(file);
            queue.swap(1, Ordering::Relaxed);
            let is_waited_for = flights.is_waited_for();
            if is_waited_for {
                queue.swap(0, Ordering::Relaxed);
            }
            let sees_flights = waiter.join().unwrap();
            assert!(is_waited_for || sees_flights);
            assert_eq!(queue.load(Ordering::Relaxed), 0, "a flight stays queued");
            drop(flights.aboard(file));
            flights.end_announcement();
            assert_eq!(flights.nr_afloat(), 0);
        });
    }

    #[test]
    fn a_landing_wakes_tasks_and_threads() {
        model(|| {
            let flights = Arc::new(Flights::new());
            let file = a_file();
            flights.launch(file);
            let closer = Arc::clone(&flights);
            let closer = thread::spawn(move || {
                while closer.is_afloat(file) {
                    closer.wait(file, None);
                }
            });
            let task = Arc::clone(&flights);
            let task = thread::spawn(move || {
                let mut ticket = None;
                let polled = poll_fn(|context| match task.watch(&mut ticket, context) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                });
                block_on(polled, None).unwrap();
            });
            drop(flights.aboard(file));
            closer.join().unwrap();
            task.join().unwrap();
        });
    }
}
