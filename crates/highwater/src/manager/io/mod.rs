//! Asynchronous reads: pages that storage fills while no thread waits for them, for tasks,
//! prefetching and readahead.
//!
//! Storage takes a flight over ([`Core::launch`]), and the thread that learns of its end lands it
//! ([`Core::land`]): its pages become resident, or absent again, and the task that it was for is
//! woken. A task that is dropped changes nothing about its flight.
//!
//! | pages | are read by |
//! |---|---|
//! | of a system file, also that of `Builder::swap` | io_uring, if the system has it |
//! | of other storage; and reads that io_uring refused, cut short or failed | a thread of the [`ReadThreads`], as a blocking fault reads them |
//!
//! The ring is created and the threads are started when the first flight needs them.
//!
//! # Reaping
//!
//! These threads take the ring's completions: a thread in `Manager::block_on`, which *drives*,
//! between its polls and instead of sleeping; a thread that waits for a file's flights to end; and
//! the *reaper*, a thread of the manager that sleeps until called. It is called whenever a page
//! of a flight may be waited for by a thread that does not drive: when a future is polled outside
//! `block_on`; when a blocking read launches readahead; when one or a task waits for a page that
//! another thread fills, for memory, or for a file's flights to end; and when a driver leaves. It
//! serves until nothing is in flight, or until a driver has taken over.
//!
//! # Waking
//!
//! A waker is the program's code, and may close a file, which waits for the flights of the file. So
//! none is called while a flight is half landed ([`Woken::held_by`]), and a flight that has ended,
//! or that the ring has refused, is on no thread's stack until that thread lands or starts it.

mod drive;
mod reaper;
mod threads;

use std::collections::VecDeque;
use std::task::Waker;
use std::{fmt, io};

use super::Core;
use super::error::ReadError;
use super::fill::{Fills, InRead};
use super::flight::{Flight, Flights, TaskWait, Wanted};
use super::handler::survive;
use crate::cache::{FileId, Filling, PageKey, SwapSlot};
use crate::group::{GroupNode, KeptData};
use crate::memmap::{Frame, FrameRing};
use crate::sync::thread;
use crate::sync::{Arc, LockClass, Mutex, OnceLock, Rank, StatCell, Weak, Woken};
use reaper::Reaper;
use threads::ReadThreads;

static BACKLOG_LOCK: LockClass = LockClass::new("read_backlog", Rank::Leaf);
static ENDED_LOCK: LockClass = LockClass::new("read_ended", Rank::Leaf);

/// Reads that a driver hands to the system in the midst of its polls. Chosen by measurement
/// (`benches-external/larger-than-memory`, 64 in flight, a disk of 110,000 reads a second): 0.86 to
/// 0.96 of a bare ring's reads, and 0.77 to 0.82 where the disk waits for the end of the polls.
const SUBMIT_AT: usize = 16;

/// Asynchronous reads of one manager.
pub(super) struct Io {
    /// The manager's core, which the threads need.
    core: OnceLock<Weak<Core>>,
    engine: IoEngine,
    ring: OnceLock<Result<FrameRing<RingLoad>, String>>,
    /// The refusal after which the ring is not used any more.
    refusal: OnceLock<String>,
    threads: ReadThreads,
    reaper: Reaper,
    /// Flights that wait for room in the ring, or for threads if it is refused. Not on a thread's
    /// stack, as those that have ended.
    backlog: Mutex<VecDeque<Flight>>,
    /// Flights that the ring has ended, with the bytes read, until a thread lands them. Not on a
    /// thread's stack: landing one wakes tasks, and a waker may close the file of another.
    ended: Mutex<VecDeque<(Flight, usize)>>,
    pub(super) flights: Flights,
    stats: IoStats,
}

/// The way to read asynchronously.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IoEngine {
    /// `io_uring` where the system has it, and threads for the rest.
    Ring,
    /// Threads.
    Threads,
}

/// Events of asynchronous reads.
#[derive(Debug, Default)]
struct IoStats {
    /// Flights that the ring took.
    by_ring: StatCell,
    submits: StatCell,
    reaper_wakeups: StatCell,
}

/// A flight in the ring, which has its frames.
#[derive(Debug)]
struct RingLoad {
    keys: Vec<PageKey>,
    flight: Flight,
    /// The slot of the first page, if they come from swap.
    slot: Option<SwapSlot>,
}

/// What is left of a flight that has landed. It may be the last that has a task or the data of a
/// group, which may have a file, whose end waits for flights: dropped when this one is over.
struct Remains {
    waker: Option<Waker>,
    wanted: Option<Wanted>,
    group: GroupNode,
}

/// A thread that waits for pages that others fill, until dropped.
#[derive(Debug)]
pub(super) struct Announced<'a>(&'a Flights);

impl RingLoad {
    fn of(mut flight: Flight, slot: Option<SwapSlot>) -> (Vec<Frame>, Self) {
        let parts = flight.cargo.filling.drain(..).map(Filling::into_parts);
        let (keys, frames) = parts.unzip();
        (frames, Self { keys, flight, slot })
    }

    fn into_flight(self, frames: Vec<Frame>) -> Flight {
        let Self {
            keys, mut flight, ..
        } = self;
        debug_assert_eq!(keys.len(), frames.len(), "each page has its frame");
        let parts = keys.into_iter().zip(frames);
        let filling = parts.map(|(key, frame)| Filling::from_parts(key, frame));
        flight.cargo.filling.extend(filling);
        flight
    }
}

impl Io {
    pub(super) fn new(engine: IoEngine) -> Self {
        Self {
            core: OnceLock::new(),
            engine,
            ring: OnceLock::new(),
            refusal: OnceLock::new(),
            threads: ReadThreads::new(),
            reaper: Reaper::new(),
            backlog: Mutex::new(&BACKLOG_LOCK, VecDeque::new()),
            ended: Mutex::new(&ENDED_LOCK, VecDeque::new()),
            flights: Flights::new(),
            stats: IoStats::default(),
        }
    }

    /// Tells which core it works for, once that exists.
    fn work_for(&self, core: &Arc<Core>) {
        let is_first = self.core.set(Arc::downgrade(core)).is_ok();
        debug_assert!(is_first, "a manager is built once");
    }

    /// Ends the threads. Nothing is in flight: all files are closed.
    fn end(&self) {
        debug_assert_eq!(
            self.flights.nr_afloat(),
            0,
            "closing a file waits for its flights"
        );
        self.reaper.end();
        self.threads.end();
    }

    fn core(&self) -> Option<Arc<Core>> {
        self.core.get()?.upgrade()
    }

    /// Returns the number of flights that the ring took, and of the system calls that handed them
    /// over.
    pub(super) fn ring_counts(&self) -> (u64, u64) {
        (self.stats.by_ring.get(), self.stats.submits.get())
    }

    /// Returns the number of times that the reaper woke up.
    pub(super) fn nr_wakeups(&self) -> u64 {
        self.stats.reaper_wakeups.get()
    }

    /// Returns the ring, if it was created.
    fn ring(&self) -> Option<&FrameRing<RingLoad>> {
        self.ring.get()?.as_ref().ok()
    }

    /// Returns the ring for a new read; creates it for the first.
    fn ring_to_use(&self, core: &Core) -> Option<&FrameRing<RingLoad>> {
        let probe = || match self.engine {
            IoEngine::Threads => Err("the manager was built without it".into()),
            IoEngine::Ring => FrameRing::new(Arc::clone(&core.memory)).map_err(|error| {
                tracing::info!(%error, "no io_uring: threads read for asynchronous faults");
                error.to_string()
            }),
        };
        let ring = self.ring.get_or_init(probe).as_ref().ok()?;
        self.refusal.get().is_none().then_some(ring)
    }

    /// Has threads read from now on.
    fn refuse_ring(&self, error: &io::Error) {
        if self.refusal.set(error.to_string()).is_ok() {
            tracing::warn!(%error, "io_uring is refused: threads read for asynchronous faults");
        }
    }
}

/// The threads of asynchronous reads: they end when this is dropped.
pub(super) struct IoThreads(Arc<Core>);

impl IoThreads {
    pub(super) fn of(core: &Arc<Core>) -> Self {
        core.io.work_for(core);
        Self(Arc::clone(core))
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.0.io.end();
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.0.end_announcement();
    }
}

impl Core {
    /// Has storage fill the pages of flights, without waiting for it. A driver hands them to the
    /// system later, together with others.
    pub(super) fn launch(&self, flights: Vec<Flight>) {
        self.set_off(flights);
        if self.io.flights.is_waited_for() || !drive::is_driving(&self.io) {
            self.see_to_it();
        }
    }

    /// As [`launch`](Self::launch), for a thread that launches more and then [sees to
    /// it](Self::see_to_it).
    pub(super) fn set_off(&self, flights: Vec<Flight>) {
        for flight in flights {
            self.io.flights.launch(flight.source.file().id());
            self.start(flight);
        }
    }

    /// As [`launch`](Self::launch), for a thread that may wait and goes on to read other pages: the
    /// system has the flights at once.
    pub(super) fn launch_beside(&self, flights: Vec<Flight>) {
        self.set_off(flights);
        self.see_to_it();
    }

    /// Calls the reaper if pages are in flight.
    pub(super) fn see_to_it(&self) {
        if self.io.flights.nr_afloat() > 0 && self.io.ring().is_some() {
            self.submit_reads();
            self.call_reaper();
        }
    }

    /// Counts a thread as waiting for pages that others fill, and sees to it that they are filled.
    pub(super) fn wait_for_others(&self) -> Announced<'_> {
        if self.io.flights.announce() {
            self.see_to_it();
        }
        Announced(&self.io.flights)
    }

    /// As [`wait_for_others`](Self::wait_for_others) for a task; returns how it is counted.
    pub(super) fn wait_of_task(&self) -> TaskWait {
        if drive::is_driving(&self.io) {
            self.io.flights.count_driven();
            return TaskWait::Driven;
        }
        if self.io.flights.announce() {
            self.see_to_it();
        }
        TaskWait::Announced
    }

    /// Sees to it that flights land, unless this thread drives.
    pub(super) fn see_to_it_from_outside(&self) {
        if !drive::is_driving(&self.io) {
            self.see_to_it();
        }
    }

    fn start(&self, flight: Flight) {
        let has_file = flight.source.file().has_descriptor();
        match self.io.ring_to_use(self).filter(|_| has_file) {
            Some(ring) => {
                if let Err(flight) = self.offer(ring, flight) {
                    self.io.backlog.lock().push_back(flight);
                    self.feed(ring);
                }
            }
            None => self.start_in_thread(flight),
        }
    }

    /// Queues a flight in the ring; returns it if there is no room, or its queue is full. Pages of
    /// swap that were discarded meanwhile are left to a thread.
    fn offer(&self, ring: &FrameRing<RingLoad>, flight: Flight) -> Result<(), Flight> {
        let file = Arc::clone(flight.source.file());
        let Some((from, offset, slot)) = file.run_in_file(&flight.cargo.filling) else {
            self.start_in_thread(flight);
            return Ok(());
        };
        let (frames, load) = RingLoad::of(flight, slot);
        if let Err((frames, load)) = ring.read(from, offset, frames, load) {
            return Err(load.into_flight(frames));
        }
        self.io.stats.by_ring.add(1);
        if ring.nr_queued() >= SUBMIT_AT {
            self.submit_reads();
        }
        Ok(())
    }

    /// Moves flights from the backlog to the ring, or to threads if the ring is refused.
    fn feed(&self, ring: &FrameRing<RingLoad>) {
        // Terminates: each round queues a flight, or has seen the refusal, or empties the queue, or
        // finds that others have taken the room. None is left behind: the thread that makes room,
        // or is refused, comes here after that, and this one looks for room after it has put a
        // flight back.
        while ring.has_room() {
            let Some(flight) = self.io.backlog.lock().pop_front() else {
                return;
            };
            let is_refused = self.io.refusal.get().is_some();
            match self.offer(ring, flight) {
                Ok(()) => {}
                Err(flight) if is_refused => self.start_in_thread(flight),
                Err(flight) => {
                    self.io.backlog.lock().push_front(flight);
                    self.submit_reads();
                }
            }
        }
    }

    /// Has a thread read a flight: this one, if there is no other, or if all others are busy and
    /// this one is in a read, which may wait for the flight.
    fn start_in_thread(&self, flight: Flight) {
        if InRead::is_now() {
            let queued = self.io.threads.read_if_free(self, flight);
            return queued.unwrap_or_else(|flight| self.fly(flight));
        }
        match self.io.threads.read(self, flight) {
            Ok(left) => {
                // Those that wait may be all that can read it.
                let mut woken = Woken::default();
                left.into_iter()
                    .for_each(|key| woken.append(self.cache.wake_waiting(key)));
            }
            Err(flight) => self.fly(flight),
        }
    }

    /// Hands queued reads to the system.
    pub(super) fn submit_reads(&self) {
        let Some(ring) = self.io.ring() else {
            return;
        };
        let broken = match ring.submit() {
            Ok(count) => return self.io.stats.submits.add(u64::from(count > 0)),
            Err(broken) => broken,
        };
        self.io.refuse_ring(&broken.error);
        let unseen = broken.unseen.into_iter();
        let unseen = unseen.map(|(frames, load)| load.into_flight(frames));
        self.io.backlog.lock().extend(unseen);
        self.feed(ring);
    }

    /// Lands flights that the ring has ended, without waiting; returns their number.
    pub(super) fn reap_reads(&self) -> usize {
        let Some(ring) = self.io.ring() else {
            return 0;
        };
        let mut done = Vec::new();
        let nr_ended = ring.reap(&mut done);
        let ended = done.into_iter().map(|done| {
            let slot = done.load.slot;
            let mut flight = done.load.into_flight(done.frames);
            let got = done.result.unwrap_or(0);
            let got = slot.map_or(got, |slot| self.end_swapped(&mut flight, slot, got));
            (flight, got)
        });
        self.io.ended.lock().extend(ended);
        let (mut count, mut woken) = (0, Woken::default());
        // As many as it has ended, so that no thread lands those of others for ever; but one in any
        // case: another thread, or this one further up, may be busy with a waker.
        while count < nr_ended.max(1)
            && let Some((flight, got)) = self.next_ended()
        {
            woken.append(self.land_read(flight, got));
            count += 1;
        }
        if nr_ended > 0 || count > 0 {
            self.feed(ring);
            // As in `launch`, for what was in the backlog: a waker, or the next poll, may block.
            if self.io.flights.is_waited_for() {
                self.submit_reads();
            }
        }
        woken.wake();
        count
    }

    /// Completes a read of swap that began at a slot; returns the bytes that count as read.
    fn end_swapped(&self, flight: &mut Flight, slot: SwapSlot, got: usize) -> usize {
        let file = Arc::clone(flight.source.file());
        let (first, filling) = (flight.cargo.filling[0].page(), &mut flight.cargo.filling);
        let pages = filling
            .iter_mut()
            .map(|page| self.cache.filling_bytes(page));
        file.end_swapped_run((first, slot), got, &mut pages.collect::<Vec<_>>())
    }

    fn next_ended(&self) -> Option<(Flight, usize)> {
        self.io.ended.lock().pop_front()
    }

    /// Lands a flight of which the ring has read so many bytes; returns the tasks to wake.
    fn land_read(&self, mut flight: Flight, got: usize) -> Woken {
        if self.is_whole(&mut flight, got) {
            let pages = flight.cargo.filling.len();
            return self.land(flight, Ok(pages));
        }
        // A thread finds out how many pages can be read, and why not more.
        self.start_in_thread(flight);
        Woken::default()
    }

    /// Returns whether so many bytes are all of a flight's pages; zeroes the rest of the last.
    fn is_whole(&self, flight: &mut Flight, got: usize) -> bool {
        let last = flight.cargo.filling.last_mut().expect("a flight has pages");
        let len = flight.source.file().page_len(last.page());
        self.cache.filling_bytes(last)[len..].fill(0);
        let (whole, size) = (
            flight.cargo.filling.len() - 1,
            flight.source.file().order().size(),
        );
        debug_assert!(
            got <= (whole + 1) * size,
            "{got} bytes were read beyond a flight's frames"
        );
        got >= whole * size + len
    }

    /// Makes the first pages of a flight resident, as many as storage has filled, and the others
    /// absent; returns the tasks to wake, when nothing is half landed.
    fn land(&self, flight: Flight, read: Result<usize, ReadError>) -> Woken {
        // Also those of removed groups above, of which the flight may have the last bytes.
        let kept = KeptData::new();
        let (remains, mut woken) = Woken::held_by(|| self.end_flight(flight, read));
        let Remains {
            waker,
            wanted,
            group,
        } = remains;
        woken.extend(waker);
        survive(|| drop(wanted));
        survive(|| drop(group));
        survive(|| drop(kept));
        woken
    }

    /// As [`land`](Self::land); returns what of the flight may run the program's code.
    fn end_flight(&self, flight: Flight, read: Result<usize, ReadError>) -> Remains {
        let Flight {
            source,
            cargo,
            mut wanted,
        } = flight;
        let group = source.as_fill().group.clone();
        let aboard = self.io.flights.aboard(source.file().id());
        debug_assert!(
            !matches!(read, Ok(pages) if pages == 0 || pages > cargo.filling.len()),
            "{read:?} of {} pages",
            cargo.filling.len()
        );
        let mut fills = Fills::ashore(self, source.as_fill(), cargo);
        fills.give_up(*read.as_ref().unwrap_or(&0));
        let waker = match read {
            Ok(_) => match wanted.take_if(|wanted| wanted.is_awaited()) {
                Some(wanted) => fills.finish_for(wanted.page, |arrived| {
                    // Dropped before the flight has landed: it may be all that keeps the page.
                    let wanted = wanted;
                    wanted.landing.land(Ok(arrived))
                }),
                None => {
                    fills.finish_ahead();
                    None
                }
            },
            Err(error) => {
                drop(fills);
                match &wanted {
                    Some(wanted) => wanted.landing.land(Err(error)),
                    None => {
                        tracing::debug!(%error, "readahead gave up");
                        None
                    }
                }
            }
        };
        // First the source: the file's end waits for the flight, and then drops the storage.
        drop(source);
        drop(aboard);
        Remains {
            waker,
            wanted,
            group,
        }
    }

    /// Waits until no page is in flight, by looking again and again: for checks. The caller lets no
    /// new flight begin.
    pub(super) fn wait_for_all_flights(&self) {
        while self.io.flights.nr_afloat() > 0 {
            self.see_to_it();
            thread::sleep(reaper::PAUSE);
        }
    }

    /// Waits until no page of a file is in flight. The caller lets no new flight begin.
    pub(super) fn wait_for_flights(&self, file: FileId) {
        // Drivers submit at once what they queue meanwhile: this thread may be what they wait for.
        let _waiting = self.wait_for_others();
        // Terminates: storage ends each flight, and this thread or the reaper lands it.
        while self.io.flights.is_afloat(file) {
            self.submit_reads();
            if self.reap_reads() > 0 {
                continue;
            }
            // This thread may be in a waker, called by one that feeds: itself, further up.
            self.io.ring().into_iter().for_each(|ring| self.feed(ring));
            match self.io.threads.take(file) {
                // The threads may be busy with other files for long.
                Some(flight) => self.fly(flight),
                None => {
                    self.see_to_it();
                    self.io.flights.wait(file, self.io.pause());
                }
            }
        }
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io")
            .field("ring", &self.ring())
            .field("threads", &self.threads.nr_threads())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Io {
    /// Writes the engine and its reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.threads.nr_threads();
        match (self.ring.get(), self.refusal.get()) {
            (None, _) => write!(f, "not used yet"),
            (Some(Ok(_)), None) => write!(f, "io_uring, {threads} threads"),
            (Some(Ok(_)), Some(why)) => write!(f, "{threads} threads (io_uring refused: {why})"),
            (Some(Err(why)), _) => write!(f, "{threads} threads (no io_uring: {why})"),
        }
    }
}
