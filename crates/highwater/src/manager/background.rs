//! The background reclaim thread (kswapd): keeps frames free ahead of allocations.
//!
//! It sleeps until an allocation leaves no more than the low watermark. Then it reclaims up to the
//! high watermark, or until [`FRUITLESS_MAX`] passes freed nothing; in that case it sleeps until it
//! is woken again, and allocations go through the slow path meanwhile. While it reclaims, per-CPU
//! lists keep few frames. It also does periodic work: it rings the alarms of waiting charges; every
//! 2 s it flushes the statistics of all groups, which bounds their staleness; in each decay
//! interval (1 s by default) it shrinks oversized per-CPU lists; and every second it checks the
//! cgroup limit if the capacity follows it.
//!
//! A program without the thread ([`Background::Off`]) can do the same in a thread of its own
//! ([`Manager::is_short`], [`Manager::balance`]).

use std::io;
use std::time::Duration;

use super::capacity::FOLLOW_PERIOD;
use super::events::{BackgroundRun, EventTimer};
use super::handler::survive;
use super::stat::FLUSH_PERIOD;
use super::{Core, Manager};
use crate::reclaim::{Actor, ScanControl};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, LockClass, Mutex, Rank};
use crate::units::Pages;

static WAKEUP_LOCK: LockClass = LockClass::new("wakeup", Rank::Leaf);
static POLLED_LOCK: LockClass = LockClass::new("polled work", Rank::Leaf);

/// Passes without progress before the thread goes to sleep. Chosen: as the kernel's.
const FRUITLESS_MAX: u32 = 16;
/// Limit on one pass, in high watermarks, while other threads allocate the frames it frees. Chosen:
/// short enough that periodic work is not late; each pass starts again at the first priority.
const PASS_MAX: u64 = 4;
/// Pause after such a pass: the threads that hold the pages need the CPU to release them.
const FRUITLESS_PAUSE: Duration = Duration::from_micros(100);

/// Upper bound on the passes that `wait_idle` waits for. Chosen: above the two runs that occur when
/// no new request comes in; new requests may keep the thread at work without end.
const STEPS_MAX: u64 = 64;

/// Whether threads reclaim, write back and read ahead of need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// No threads: allocations reclaim directly, dirty pages are written back on demand, and a
    /// thread that reads in order reads ahead itself. Only asynchronous reads start threads.
    Off,
    /// One thread that reclaims and one that writes dirty pages back, for the pool. Readahead goes
    /// on beside the thread that reads, except of buffered files, which the kernel reads ahead.
    Thread,
}

/// Wakes and stops the thread.
#[derive(Debug)]
pub(super) struct Wakeup {
    state: Mutex<ReclaimerState>,
    woken: Condvar,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct ReclaimerState {
    is_started: bool,
    /// A request since the thread last began a run.
    is_wanted: bool,
    is_running: bool,
    is_ending: bool,
    /// Deadlines changed since the thread last looked.
    is_nudged: bool,
    /// Completed passes and runs: at the end of each, the thread holds no pages.
    steps: u64,
}

impl Wakeup {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(&WAKEUP_LOCK, ReclaimerState::default()),
            woken: Condvar::new(),
            idle: Condvar::new(),
        }
    }

    /// Requests reclaim. Does nothing if there is no thread or a request is pending. A request
    /// during a run starts another run: the current one may already have checked the watermark for
    /// the last time.
    pub(super) fn notify(&self) {
        let mut state = self.state.lock();
        debug_assert!(
            state.is_started || !state.is_wanted,
            "a request is pending without a thread"
        );
        if state.is_started && !state.is_wanted {
            state.is_wanted = true;
            self.woken.notify_one();
        }
    }

    /// Returns whether the thread exists.
    pub(super) fn has_thread(&self) -> bool {
        self.state.lock().is_started
    }

    /// Makes the thread look at its deadlines again.
    pub(super) fn nudge(&self) {
        self.state.lock().is_nudged = true;
        self.woken.notify_one();
    }

    /// Waits as the thread does, ended by a nudge alone.
    #[cfg(all(test, loom))]
    pub(super) fn wait_for_nudge(&self) {
        assert_eq!(self.wait(Duration::MAX), ReclaimerWake::ByTheClock);
    }

    fn end(&self) {
        self.state.lock().is_ending = true;
        self.woken.notify_one();
    }

    /// Waits for a request and begins a run. Returns early after `at_most`, or when deadlines have
    /// changed.
    fn wait(&self, at_most: Duration) -> ReclaimerWake {
        let mut state = self.state.lock();
        debug_assert!(!state.is_running, "a run ends before the next begins");
        while !state.is_wanted && !state.is_ending {
            let is_late = !state.is_nudged && self.woken.wait_for(&mut state, at_most);
            if (is_late || state.is_nudged) && !state.is_wanted && !state.is_ending {
                state.is_nudged = false;
                return ReclaimerWake::ByTheClock;
            }
        }
        state.is_wanted = false;
        state.is_running = !state.is_ending;
        match state.is_ending {
            true => ReclaimerWake::ToEnd,
            false => ReclaimerWake::ToReclaim,
        }
    }

    /// Records the end of a pass.
    fn passed(&self) {
        self.state.lock().steps += 1;
        self.idle.notify_all();
    }

    /// Records the end of a run.
    fn done(&self) {
        let was_running = std::mem::replace(&mut self.state.lock().is_running, false);
        debug_assert!(was_running, "a run that ends has begun");
        self.passed();
    }

    /// Waits until the thread holds no pages: it sleeps, or does not exist. If new requests keep it
    /// at work, waits for [`STEPS_MAX`] steps: by then it has put back every page that it held at
    /// the call.
    pub(super) fn wait_idle(&self) {
        let mut state = self.state.lock();
        let last = state.steps + STEPS_MAX;
        // Terminates: a thread with a pending request or a run in progress takes steps.
        while (state.is_wanted || state.is_running) && state.steps < last {
            self.idle.wait(&mut state);
        }
    }

    fn is_ending(&self) -> bool {
        self.state.lock().is_ending
    }
}

/// Reason for the thread's wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReclaimerWake {
    ToReclaim,
    ByTheClock,
    ToEnd,
}

/// Periodic work that a program without the thread does by [`Manager::balance`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Polled {
    due: Due,
    /// Last write-back by the clock.
    written_at: Duration,
}

/// Deadlines of the thread's periodic work.
#[derive(Clone, Copy, Debug)]
struct Due {
    /// Next flush of statistics.
    flush_at: Duration,
    /// Last decay of per-CPU lists.
    decayed_at: Duration,
    /// Next check of the cgroup limit.
    follow_at: Duration,
    /// Whether usage exceeded the cgroup limit at the last check, which was reported then.
    is_above_cgroup: bool,
}

/// Marks the thread as dead when dropped, also by a panic: no more requests, and no waiting for it.
struct ReclaimerAlive<'a>(&'a Wakeup);

impl Drop for ReclaimerAlive<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.is_started, state.is_wanted, state.is_running) = (false, false, false);
        drop(state);
        self.0.idle.notify_all();
    }
}

/// The thread; stopped on drop, and joined unless dropped by the thread itself.
#[derive(Debug)]
pub(super) struct Reclaimer {
    wakeup: Arc<Wakeup>,
    thread: Option<JoinHandle<()>>,
}

impl Reclaimer {
    pub(super) fn start(background: Background, core: &Arc<Core>) -> io::Result<Self> {
        let wakeup = Arc::clone(&core.wakeup);
        let thread = match background {
            Background::Off => None,
            Background::Thread => {
                let core = Arc::clone(core);
                let builder = thread::Builder::new().name("highwater-kswapd".into());
                let thread = builder.spawn(move || core.kswapd())?;
                // The manager is not shared yet: no request can come before this.
                let was_started = std::mem::replace(&mut wakeup.state.lock().is_started, true);
                debug_assert!(!was_started, "a manager has one reclaim thread");
                Some(thread)
            }
        };
        Ok(Self { wakeup, thread })
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.wakeup.end();
            // A backing that holds the last handle may drop it in this thread, while the thread
            // writes to that backing. The thread cannot join itself; it keeps the core until it
            // ends.
            if thread.thread().id() == thread::current().id() {
                return;
            }
            // An error means that the thread panicked, which it has reported.
            let _ = thread.join();
        }
    }
}

impl Manager {
    /// Returns whether free frames are at or below the low watermark, at which the background
    /// thread would reclaim.
    ///
    /// # Cost
    ///
    /// One load for each zone.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn is_short(&self) -> bool {
        let pool = &self.core().pool;
        pool.managed() > Pages::ZERO && pool.nr_free() <= pool.watermarks().low
    }

    /// Does the work of the background threads in the calling thread, for programs without them
    /// ([`Background::Off`]): reclaims until the high watermark is free or no more progress is
    /// made, and then what is due by the clock. That is: each `dirty_writeback_centisecs`, writing
    /// back pages that have been dirty for too long or exceed the limits; each `decay_interval_ms`,
    /// shrinking oversized per-CPU lists; every second, following the cgroup limit
    /// ([`Builder::follow_cgroup`](super::Builder::follow_cgroup)); every 2 s, flushing statistics;
    /// and [recording](super::Builder::recorder). Call it a few times a second. With background
    /// threads it only reclaims.
    ///
    /// # Cost
    ///
    /// Bounded as a run of the background thread: 16 passes without progress, 100 µs apart, end the
    /// reclaim. The I/O of write-back.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::Background;
    /// use highwater::{Bytes, Manager};
    ///
    /// let hw = Manager::builder()
    ///     .capacity(Bytes::mib(1))
    ///     .background(Background::Off)
    ///     .build()?;
    /// hw.balance(); // in a loop of the program
    /// # Ok::<(), highwater::BuildError>(())
    /// ```
    pub fn balance(&self) {
        let core = self.core();
        if core.wakeup.has_thread() {
            return self.reclaim_ahead();
        }
        // Copied, so that no lock is held during the work. Threads that call this together may each
        // do what is due.
        let mut polled = *core.polled.lock();
        core.run_ahead(&mut polled.due);
        core.do_in_time(&mut polled.due);
        core.reclaim.note_writer();
        core.write_back_in_time(&mut polled.written_at);
        core.record_tick();
        *core.polled.lock() = polled;
    }

    /// Does the reclaim of [`balance`](Self::balance), and nothing by the clock.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn reclaim_ahead(&self) {
        let core = self.core();
        core.run_ahead(&mut Due::from(core.now()));
    }
}

impl Polled {
    /// Everything is due one period after the start of the manager's clock.
    pub(super) fn from_start() -> Mutex<Self> {
        let polled = Self {
            due: Due::from(Duration::ZERO),
            written_at: Duration::ZERO,
        };
        Mutex::new(&POLLED_LOCK, polled)
    }
}

impl Due {
    /// All work is due one period from now.
    fn from(now: Duration) -> Self {
        Self {
            flush_at: now + FLUSH_PERIOD,
            decayed_at: now,
            follow_at: now + FOLLOW_PERIOD,
            is_above_cgroup: false,
        }
    }

    /// Returns the earliest deadline, for this decay interval.
    fn next(&self, decay_interval: Duration) -> Duration {
        let decay_at = self.decayed_at + decay_interval;
        self.flush_at.min(self.follow_at).min(decay_at)
    }
}

impl Core {
    /// Reclaims as one run of the thread does.
    fn run_ahead(&self, due: &mut Due) {
        self.stats.pageoutrun.add(1);
        self.alarms.ring(self.now());
        self.balance(due);
    }

    /// The thread's main loop.
    fn kswapd(&self) {
        let _alive = ReclaimerAlive(&self.wakeup);
        let mut due = Due::from(self.now());
        loop {
            let next = due.next(self.decay_interval());
            let next = self.alarms.next().map_or(next, |alarm| alarm.min(next));
            match self.wakeup.wait(next.saturating_sub(self.now())) {
                ReclaimerWake::ToEnd => return,
                ReclaimerWake::ByTheClock => (),
                ReclaimerWake::ToReclaim => {
                    self.stats.pageoutrun.add(1);
                    survive(|| self.balance(&mut due));
                    self.wakeup.done();
                }
            }
            survive(|| self.do_in_time(&mut due));
        }
    }

    /// Does the periodic work that is due: alarms, flushing statistics, decay, following the cgroup
    /// limit.
    fn do_in_time(&self, due: &mut Due) {
        let now = self.now();
        self.alarms.ring(now);
        if now >= due.flush_at {
            // First, as those below: work that panics is not done again before it is due.
            due.flush_at = now + FLUSH_PERIOD;
            self.groups.flush_periodically(now);
        }
        if now >= due.decayed_at + self.decay_interval() {
            due.decayed_at = now;
            self.pool.decay_tick();
        }
        if now >= due.follow_at {
            due.follow_at = now + FOLLOW_PERIOD;
            let followed = self.follow_cgroup();
            let was_above = std::mem::replace(&mut due.is_above_cgroup, followed.is_err());
            if let Err(error) = followed
                && !was_above
            {
                tracing::warn!(%error, "usage exceeds the control group's limit");
            }
        }
        debug_assert!(
            due.flush_at > now && due.follow_at > now,
            "all that was due at {now:?} is done: {due:?}"
        );
    }

    fn decay_interval(&self) -> Duration {
        self.pool.tunables().decay_interval()
    }

    /// Reclaims until the high watermark is free, or no more progress is made. Flushes statistics
    /// on time meanwhile.
    fn balance(&self, due: &mut Due) {
        let _little_is_kept = self.pool.reclaiming();
        let timer = EventTimer::of_background_run(self);
        let mut run = BackgroundRun::default();
        self.reclaim_until_balanced(due, &mut run);
        self.report_background_run(&run, timer);
    }

    fn reclaim_until_balanced(&self, due: &mut Due, run: &mut BackgroundRun) {
        let root = self.groups.root();
        let mut fruitless = 0;
        while fruitless < FRUITLESS_MAX && !self.wakeup.is_ending() {
            let high = self.pool.watermarks().high;
            if self.pool.nr_free() >= high {
                return;
            }
            let control = ScanControl {
                nr_to_reclaim: Pages(high.0 * PASS_MAX),
                target: &root,
                actor: Actor::Background,
                first_priority: None,
                ignores_protection: false,
            };
            let outcome = self.reclaim.shrink(&control);
            let freed = outcome.nr_reclaimed;
            run.add(&outcome);
            if freed == 0 && fruitless == 0 && outcome.nr_wal_blocked > 0 {
                self.cache.ask_logs();
            }
            self.wakeup.passed();
            self.do_in_time(due);
            if freed == 0 {
                fruitless += 1;
                thread::sleep(FRUITLESS_PAUSE);
            } else {
                fruitless = 0;
                // Freed frames are in this thread's list, which the watermark does not count.
                self.pool.drain_here();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_asks_during_a_run_is_heard_after_it() {
        // Goal: no lost wake-up. Method: request, begin the run, request again during it (it may
        // have checked the watermark already), end it: the thread must not wait for a third
        // request.
        let wakeup = Wakeup::new();
        wakeup.state.lock().is_started = true;
        wakeup.notify();
        assert_eq!(wakeup.wait(FLUSH_PERIOD), ReclaimerWake::ToReclaim);
        wakeup.notify();
        wakeup.done();
        assert!(wakeup.state.lock().is_wanted, "asked for and not answered");
        assert_eq!(wakeup.wait(FLUSH_PERIOD), ReclaimerWake::ToReclaim);
        wakeup.done();
        assert!(!wakeup.state.lock().is_wanted);
        wakeup.wait_idle();
        wakeup.end();
        assert_eq!(wakeup.wait(FLUSH_PERIOD), ReclaimerWake::ToEnd);
    }

    #[test]
    fn who_waits_for_idleness_is_not_kept_by_others_work() {
        // Goal: `drop_caches` returns under load. Method: at the end of each run the next request
        // is already pending.
        let wakeup = Arc::new(Wakeup::new());
        wakeup.state.lock().is_started = true;
        wakeup.notify();
        assert_eq!(wakeup.wait(FLUSH_PERIOD), ReclaimerWake::ToReclaim);
        let waiter = Arc::clone(&wakeup);
        let waiter = thread::spawn(move || waiter.wait_idle());
        for _ in 0..1_000_000 {
            wakeup.notify();
            wakeup.done();
            assert_eq!(wakeup.wait(FLUSH_PERIOD), ReclaimerWake::ToReclaim);
            if waiter.is_finished() {
                return;
            }
            thread::yield_now();
        }
        panic!("a million runs were waited for");
    }

    #[test]
    fn a_thread_that_panicked_is_not_waited_for() {
        // Goal: `drop_caches` returns. Method: a thread that panics in a run, with another request
        // pending.
        let wakeup = Arc::new(Wakeup::new());
        wakeup.state.lock().is_started = true;
        wakeup.notify();
        let dying = Arc::clone(&wakeup);
        let dying = thread::spawn(move || {
            let _alive = ReclaimerAlive(&dying);
            assert_eq!(dying.wait(FLUSH_PERIOD), ReclaimerWake::ToReclaim);
            dying.notify();
            panic!("as told");
        });
        wakeup.wait_idle();
        assert!(dying.join().is_err());
        wakeup.notify();
        wakeup.wait_idle();
    }
}
