//! Driving: a thread that runs a future and takes the ring's completions itself.

use std::cell::Cell;
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};

use super::{Announced, Io};
use crate::manager::{Core, Manager};
use crate::memmap::Bell;
use crate::sync::{Arc, Condvar, LockClass, Mutex, OnceLock, Rank};

static DRIVER_LOCK: LockClass = LockClass::new("driver", Rank::Leaf);

thread_local! {
    /// The `Io` that this thread drives: its address, or 0.
    static DRIVEN: Cell<usize> = const { Cell::new(0) };
}

/// Returns whether this thread is in [`Manager::block_on`] of the manager.
pub(super) fn is_driving(io: &Io) -> bool {
    DRIVEN.get() == std::ptr::from_ref(io).addr()
}

/// Wakes a driver.
#[derive(Debug)]
struct DriverSignal {
    state: Mutex<DriverSleep>,
    woken: Condvar,
    /// For its sleep in the ring.
    bell: OnceLock<Bell>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriverSleep {
    Awake,
    /// Until the condition variable is signalled.
    Parked,
    /// Until the bell is rung or the ring has a completion.
    InRing,
    Woken,
}

impl Wake for DriverSignal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let before = std::mem::replace(&mut *self.state.lock(), DriverSleep::Woken);
        match before {
            DriverSleep::Awake | DriverSleep::Woken => {}
            DriverSleep::Parked => self.woken.notify_one(),
            DriverSleep::InRing => self.bell.get().into_iter().for_each(Bell::ring),
        }
    }
}

impl DriverSignal {
    fn new() -> Self {
        Self {
            state: Mutex::new(&DRIVER_LOCK, DriverSleep::Awake),
            woken: Condvar::new(),
            bell: OnceLock::new(),
        }
    }

    /// Returns whether it was woken since the last call.
    fn take(&self) -> bool {
        let mut state = self.state.lock();
        debug_assert_ne!(*state, DriverSleep::Parked, "a driver sleeps while it runs");
        let was_woken = *state == DriverSleep::Woken;
        *state = DriverSleep::Awake;
        was_woken
    }

    /// Begins a sleep, unless it was woken.
    fn may_sleep(&self, how: DriverSleep) -> bool {
        let mut state = self.state.lock();
        debug_assert!(
            matches!(*state, DriverSleep::Awake | DriverSleep::Woken),
            "a driver is {state:?} before it sleeps"
        );
        let may = *state != DriverSleep::Woken;
        if may {
            *state = how;
        }
        may
    }

    /// Ends a sleep in the ring that no waker has ended.
    fn end_sleep(&self) {
        let mut state = self.state.lock();
        if *state == DriverSleep::InRing {
            *state = DriverSleep::Awake;
        }
    }

    fn park(&self) {
        if !self.may_sleep(DriverSleep::Parked) {
            return;
        }
        let mut state = self.state.lock();
        while *state == DriverSleep::Parked {
            self.woken.wait(&mut state);
        }
        debug_assert_eq!(*state, DriverSleep::Woken, "a wake alone ends the sleep");
    }

    /// Returns the bell, if the process may have another open file.
    fn bell(&self) -> Option<&Bell> {
        if self.bell.get().is_none() {
            let _ = self.bell.set(Bell::new().ok()?);
        }
        self.bell.get()
    }
}

/// This thread drives while this lives.
struct Driving<'a> {
    core: &'a Core,
    before: usize,
}

impl<'a> Driving<'a> {
    fn begin(core: &'a Core) -> Self {
        core.io.reaper.note_driver();
        let before = DRIVEN.replace(std::ptr::from_ref(&core.io).addr());
        Self { core, before }
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        debug_assert!(is_driving(&self.core.io), "the inner driver ends first");
        DRIVEN.set(self.before);
        self.core.io.reaper.note_driver_gone();
        // Reads that it leaves behind.
        self.core.submit_reads();
        self.core.see_to_it();
    }
}

impl Manager {
    /// Runs a future on this thread, and asynchronous reads with it: between polls and instead of
    /// sleeping, the thread itself hands reads to the system and takes their results. Reads that
    /// the future starts in one poll go to the system together, unless a thread waits for a page
    /// that another one fills. Other runtimes need this for nothing: with them, a thread of the
    /// manager takes the results.
    ///
    /// # Cost
    ///
    /// With io_uring, a system call for the reads of a poll, and one for a sleep; two more if a
    /// waker ends the sleep. The first sleep opens a file (eventfd), which is closed at the end.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let pages = hw.block_on(async {
    ///     let reads = [2, 0].map(|page| map.read_async(page));
    ///     let mut pages = Vec::new();
    ///     for read in reads {
    ///         pages.push(read.await?);
    ///     }
    ///     Ok::<_, highwater::ReadError>(pages)
    /// })?;
    /// assert_eq!(*pages[0], [7; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let core = self.core();
        let signal = Arc::new(DriverSignal::new());
        let waker = Waker::from(Arc::clone(&signal));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        let _driving = Driving::begin(core);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            loop {
                // Also where the future has woken itself, or reads would wait for as long as it
                // does.
                let has_landed = core.pump_reads();
                if signal.take() {
                    break;
                }
                if !has_landed {
                    core.sleep_in_ring(&signal);
                }
            }
        }
    }
}

impl Core {
    /// Hands reads to the system, and lands what has ended; returns whether anything has.
    fn pump_reads(&self) -> bool {
        self.submit_reads();
        self.reap_reads() > 0
    }

    /// Sleeps until a read has ended, or a waker is called.
    fn sleep_in_ring(&self, signal: &DriverSignal) {
        let io = &self.io;
        // First, so that the number of flights is exact.
        let _announced = self.announce_driven();
        let Some(ring) = io.ring().filter(|_| io.flights.nr_afloat() > 0) else {
            return signal.park();
        };
        let Some(bell) = signal.bell() else {
            self.see_to_it();
            return signal.park();
        };
        if signal.may_sleep(DriverSleep::InRing) {
            let is_rung = ring.wait(bell);
            // From now on no waker rings: before the bell is silenced, and before reads land, whose
            // tasks are woken. One that rings just now ends the next sleep at once.
            signal.end_sleep();
            if is_rung {
                bell.silence();
            }
        }
    }

    /// Counts this thread as waiting, while it sleeps, for the pages that its tasks wait for, and
    /// has them filled: another driver may have queued them, and wait for what these tasks hold.
    fn announce_driven(&self) -> Option<Announced<'_>> {
        let flights = &self.io.flights;
        flights.is_any_driven().then(|| {
            // This thread takes their results; of later ones, the driver that launches them calls
            // the reaper.
            if flights.announce() {
                self.submit_reads();
            }
            Announced(flights)
        })
    }
}

#[cfg(all(test, loom))]
mod loom {
    //! Models: a driver's sleep. The sleep in the ring differs in the bell, which stays rung.

    use ::loom::{model, thread};

    use super::*;
    use crate::manager::flight::Flights;
    use crate::manager::flight::loom::a_file;
    use crate::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_wake_ends_the_sleep_or_prevents_it() {
        model(|| {
            let signal = Arc::new(DriverSignal::new());
            let waker = Waker::from(Arc::clone(&signal));
            let task = thread::spawn(move || waker.wake());
            while !signal.take() {
                signal.park();
            }
            task.join().unwrap();
        });
    }

    #[test]
    fn a_driver_does_not_sleep_beside_a_read_that_another_has_queued() {
        // Goal: the read is submitted, and its result is taken by the reaper or by the driver that
        // sleeps, although the other driver then blocks. Method: a read that the sleeper submits
        // ends its sleep in the ring; the reaper is the waker.
        model(|| {
            let flights = Arc::new(Flights::new());
            let queue = Arc::new(AtomicU64::new(0));
            let signal = Arc::new(DriverSignal::new());
            let waker = Waker::from(Arc::clone(&signal));
            flights.count_driven();
            let sleeper = (Arc::clone(&flights), Arc::clone(&queue));
            let sleeper = thread::spawn(move || {
                let (flights, queue) = sleeper;
                if flights.is_any_driven() && flights.announce() {
                    queue.swap(0, Ordering::Relaxed);
                }
                if flights.nr_afloat() == 0 {
                    signal.park();
                }
            });
            flights.launch(a_file());
            queue.swap(1, Ordering::Relaxed);
            if flights.is_waited_for() {
                queue.swap(0, Ordering::Relaxed);
                waker.wake();
            }
            sleeper.join().unwrap();
            assert_eq!(queue.load(Ordering::Relaxed), 0, "a read stays queued");
        });
    }
}
