//! The reaper: a thread that takes the ring's completions for threads that do not drive.
//!
//! It is started by the first call, and sleeps unless it serves. A call makes it serve the flights
//! that are afloat: it sleeps until the ring has completions, and lands them. It stops serving when
//! nothing is afloat; or when a driver is at work and as many flights have landed since the last
//! call as can be in the ring at once, so that two threads do not wake up for each completion. Then
//! it looks now and then whether flights land, because a driver's poll may itself wait for one.

use std::time::Duration;

use super::Io;
use crate::manager::Core;
use crate::memmap::{Bell, FrameRing};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, LockClass, Mutex, OnceLock, Rank};

static REAPER_LOCK: LockClass = LockClass::new("reaper", Rank::Leaf);

/// Pause of a thread that cannot sleep until the reaper has landed a flight, because it is the
/// reaper, or there is none. Chosen: about a read of a fast device.
pub(super) const PAUSE: Duration = Duration::from_micros(100);
/// Flights that a driver lands before the reaper leaves the ring to it. Chosen: as many as can be
/// in flight at once, so that those of the last call have landed, but for stragglers.
const HANDOVER: u64 = 512;

/// Time without a landing after which a driver counts as stuck. Chosen: longer than most reads, and
/// few wake-ups beside a driver that is not.
const STUCK: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Reaper {
    state: Mutex<ReaperState>,
    called: Condvar,
    /// Ends its sleep in the ring.
    bell: OnceLock<Bell>,
    /// Number of threads that drive.
    /// Written by: them. Read by: the reaper. Publishes: nothing; a driver that leaves calls it.
    drivers: AtomicU64,
}

#[derive(Debug, Default)]
struct ReaperState {
    thread: Option<JoinHandle<()>>,
    /// It could not be started.
    is_missing: bool,
    is_serving: bool,
    is_ending: bool,
    /// Flights that had landed at the last call.
    landed_at_call: u64,
}

impl Reaper {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(&REAPER_LOCK, ReaperState::default()),
            called: Condvar::new(),
            bell: OnceLock::new(),
            drivers: AtomicU64::new(0),
        }
    }

    /// Counts a thread that begins to drive.
    pub(super) fn note_driver(&self) {
        // Relaxed: see the field.
        self.drivers.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a thread that no longer drives.
    pub(super) fn note_driver_gone(&self) {
        // Relaxed: see the field.
        let before = self.drivers.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a thread drives before it leaves");
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        let thread = {
            let mut state = self.state.lock();
            debug_assert!(!state.is_ending, "the thread ends once");
            state.is_ending = true;
            state.thread.take()
        };
        self.called.notify_one();
        self.bell.get().into_iter().for_each(Bell::ring);
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            // As for the reclaim thread.
            let _ = thread.join();
        }
    }

    /// Returns whether a thread of its own takes the ring's completions, and not this one.
    fn is_another_thread(&self) -> bool {
        let state = self.state.lock();
        let thread = state.thread.as_ref().map(|it| it.thread().id());
        thread.is_some_and(|thread| thread != thread::current().id())
    }
}

impl Core {
    /// Makes the reaper serve the flights that are afloat.
    pub(super) fn call_reaper(&self) {
        let reaper = &self.io.reaper;
        let mut state = reaper.state.lock();
        state.landed_at_call = self.io.flights.nr_landed();
        if state.is_serving || state.is_ending {
            return;
        }
        if state.thread.is_none() && !state.is_missing {
            state.thread = self.start_reaper();
            state.is_missing = state.thread.is_none();
        }
        if !state.is_missing {
            debug_assert!(state.thread.is_some(), "a thread serves");
            state.is_serving = true;
            drop(state);
            reaper.called.notify_one();
            return;
        }
        drop(state);
        // Without the thread, the caller waits for the ring itself; not for other flights, of which
        // one may be further up on its stack. The ring is refused, so that it becomes empty.
        while self.io.has_reads_in_ring() {
            self.submit_reads();
            if self.reap_reads() == 0 {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Starts the thread. Where that fails, other threads read from now on, without the ring.
    fn start_reaper(&self) -> Option<JoinHandle<()>> {
        let works_on = self.io.core()?;
        let started = Bell::new().and_then(|bell| {
            let is_first = self.io.reaper.bell.set(bell).is_ok();
            debug_assert!(is_first, "the thread is started once");
            let builder = thread::Builder::new().name("highwater-reaper".into());
            builder.spawn(move || works_on.reap_for_ever())
        });
        started.inspect_err(|error| self.io.refuse_ring(error)).ok()
    }

    fn reap_for_ever(&self) {
        let bell = self.io.reaper.bell.get().expect("made before the thread");
        let ring = self.io.ring().expect("made before the thread");
        while self.io.reaper.is_called(&self.io) {
            self.serve(ring, bell);
        }
    }

    /// Lands what has ended; sleeps if nothing has.
    fn serve(&self, ring: &FrameRing<super::RingLoad>, bell: &Bell) {
        self.submit_reads();
        if self.reap_reads() == 0 {
            _ = ring.wait(bell);
            self.io.stats.reaper_wakeups.add(1);
        }
    }
}

impl Io {
    /// Returns whether the ring has reads that no thread lands yet.
    fn has_reads_in_ring(&self) -> bool {
        self.ring().is_some_and(|ring| ring.nr_in_flight() > 0) || !self.ended.lock().is_empty()
    }

    /// Returns the longest sleep of a thread that waits for a flight to land: any, unless it may
    /// have to land the flight itself.
    pub(super) fn pause(&self) -> Option<Duration> {
        match self.ring().is_none() || self.reaper.is_another_thread() {
            true => None,
            false => Some(PAUSE),
        }
    }
}

impl Reaper {
    /// Waits for a call, unless it still serves one; returns false at the end.
    fn is_called(&self, io: &Io) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.is_ending {
                return false;
            }
            debug_assert!(state.thread.is_some(), "the thread is known while it runs");
            if state.is_serving {
                // Relaxed: see the field.
                let is_driven = self.drivers.load(Ordering::Relaxed) > 0;
                let since_call = io.flights.nr_landed() - state.landed_at_call;
                let is_over = io.flights.nr_afloat() == 0 || is_driven && since_call > HANDOVER;
                if !is_over {
                    return true;
                }
                state.is_serving = false;
            }
            let nr_landed = io.flights.nr_landed();
            if io.flights.nr_afloat() == 0 {
                self.called.wait(&mut state);
                continue;
            }
            self.called.wait_for(&mut state, STUCK);
            if io.flights.nr_afloat() > 0 && io.flights.nr_landed() == nr_landed {
                (state.is_serving, state.landed_at_call) = (true, nr_landed);
            }
        }
    }
}
