//! The background reclaim thread (kswapd): frees frames before anybody has to wait for them.
//!
//! Asleep until an allocation leaves no more than the low watermark; then it reclaims until the
//! high watermark is reached, or [`FRUITLESS_MAX`] passes freed nothing, in which case it waits to
//! be woken again: those who need memory go through the slow path meanwhile. While it reclaims,
//! per-CPU lists keep little. It rings the alarms of charges that wait in line. Every 2 s it
//! flushes the statistics of all groups, so that no read of them is older; every second, or as the
//! knob says, it lets per-CPU lists shrink that are larger than they need to be; every second,
//! where the capacity follows the limit of the process's control group, it looks at that.
//!
//! A program without the thread ([`Background::Off`]) can do the same in a thread of its own
//! ([`Manager::is_short`], [`Manager::balance`]).

use std::io;
use std::time::Duration;

use super::capacity::FOLLOW_PERIOD;
use super::stat::FLUSH_PERIOD;
use super::{Core, Manager};
use crate::reclaim::{Actor, ScanControl};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, LockClass, Mutex, Rank};
use crate::units::Pages;

static WAKEUP_LOCK: LockClass = LockClass::new("wakeup", Rank::Leaf);

/// Passes that free nothing before the thread gives up for now. Chosen: as the kernel's.
const FRUITLESS_MAX: u32 = 16;
/// High watermarks that one pass frees at most, while others take what it frees. Chosen: so much is
/// freed in less time than what is done by the clock may be late; each pass begins at the first
/// priority again.
const PASS_MAX: u64 = 4;
/// Pause after such a pass: somebody holds the pages and needs the CPU to let go of them.
const FRUITLESS_PAUSE: Duration = Duration::from_micros(100);

/// Passes and runs of the thread that somebody waits for who wants it idle. Chosen: more than two
/// runs have that nobody asks for more from; others may keep it at work for as long as they like.
const STEPS_MAX: u64 = 64;

/// Whether threads reclaim and write back ahead of need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// No thread: whoever needs memory reclaims it, and dirty pages are written back when that has
    /// to be.
    Off,
    /// One thread for the pool that reclaims, and one that writes dirty pages back.
    Thread,
}

/// How the thread is woken and ended.
#[derive(Debug)]
pub(super) struct Wakeup {
    state: Mutex<State>,
    woken: Condvar,
    idle: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_started: bool,
    /// Asked for since the thread last began a run.
    is_wanted: bool,
    is_running: bool,
    is_ending: bool,
    /// Times have changed since the thread last looked.
    is_nudged: bool,
    /// Passes and runs that have ended: at the end of each, the thread held no pages.
    steps: u64,
}

impl Wakeup {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(&WAKEUP_LOCK, State::default()),
            woken: Condvar::new(),
            idle: Condvar::new(),
        }
    }

    /// Asks for reclaim. Does nothing when there is no thread, or when it was asked already. While
    /// it runs, it may have looked at the watermark for the last time: it looks again afterwards.
    pub(super) fn notify(&self) {
        let mut state = self.state.lock();
        if state.is_started && !state.is_wanted {
            state.is_wanted = true;
            self.woken.notify_one();
        }
    }

    /// Whether there is a thread.
    pub(super) fn has_thread(&self) -> bool {
        self.state.lock().is_started
    }

    /// Has the thread look at its times again.
    pub(super) fn nudge(&self) {
        self.state.lock().is_nudged = true;
        self.woken.notify_one();
    }

    /// As the thread's wait, which is ended by a nudge alone.
    #[cfg(all(test, loom))]
    pub(super) fn wait_for_nudge(&self) {
        assert_eq!(self.wait(Duration::MAX), Woken::ByTheClock);
    }

    fn end(&self) {
        self.state.lock().is_ending = true;
        self.woken.notify_one();
    }

    /// Waits until reclaim is asked for and begins a run, but no longer than `at_most`, and not if
    /// the times have changed.
    fn wait(&self, at_most: Duration) -> Woken {
        let mut state = self.state.lock();
        while !state.is_wanted && !state.is_ending {
            let is_late = !state.is_nudged && self.woken.wait_for(&mut state, at_most);
            if (is_late || state.is_nudged) && !state.is_wanted && !state.is_ending {
                state.is_nudged = false;
                return Woken::ByTheClock;
            }
        }
        state.is_wanted = false;
        state.is_running = !state.is_ending;
        match state.is_ending {
            true => Woken::ToEnd,
            false => Woken::ToReclaim,
        }
    }

    /// Says that a pass has ended.
    fn passed(&self) {
        self.state.lock().steps += 1;
        self.idle.notify_all();
    }

    /// Says that the thread has done what it could.
    fn done(&self) {
        self.state.lock().is_running = false;
        self.passed();
    }

    /// Waits until the thread holds no pages: it sleeps, or there is none. While others keep it at
    /// work, until it has put back what it held when this was called, and [`STEPS_MAX`] steps are
    /// over.
    pub(super) fn wait_idle(&self) {
        let mut state = self.state.lock();
        let last = state.steps + STEPS_MAX;
        // Ends: who is asked or runs takes steps.
        while (state.is_wanted || state.is_running) && state.steps < last {
            self.idle.wait(&mut state);
        }
    }

    fn is_ending(&self) -> bool {
        self.state.lock().is_ending
    }
}

/// Why the thread does not wait any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    ToReclaim,
    ByTheClock,
    ToEnd,
}

/// When the thread does what is done by the clock.
#[derive(Debug)]
struct Due {
    /// When statistics are flushed next.
    flush_at: Duration,
    /// When lists were let shrink last.
    decayed_at: Duration,
    /// When the control group's limit is looked at next.
    follow_at: Duration,
}

/// The thread lives while this does. One that panicked is asked no more and waited for no more.
struct Alive<'a>(&'a Wakeup);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        (state.is_started, state.is_wanted, state.is_running) = (false, false, false);
        drop(state);
        self.0.idle.notify_all();
    }
}

/// The thread, ended when dropped, and joined by any thread but itself.
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
                // Nobody has the manager yet: nothing is asked before this.
                wakeup.state.lock().is_started = true;
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
            // Storage may hold the last handle and let go of it while the thread writes to it; that
            // thread cannot wait for itself. It has the core until it ends.
            if thread.thread().id() == thread::current().id() {
                return;
            }
            // It panicked if this fails, and said so.
            let _ = thread.join();
        }
    }
}

impl Manager {
    /// Whether so few frames are free, no more than the low watermark, that the background thread
    /// would reclaim.
    ///
    /// # Cost
    ///
    /// A load for each zone.
    #[must_use]
    pub fn is_short(&self) -> bool {
        let pool = &self.core().pool;
        pool.managed() > Pages::ZERO && pool.nr_free() <= pool.watermarks().low
    }

    /// Reclaims, in the calling thread, what the background thread would: until the high watermark
    /// is free, or nothing helps. For programs that have threads for such work and want none of the
    /// library's ([`Background::Off`]).
    ///
    /// # Cost
    ///
    /// Bounded as the background thread's run: 16 passes that free nothing, a tenth of a
    /// millisecond apart, end it.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::manager::Background;
    /// use highwater::{Bytes, Manager};
    ///
    /// let hw = Manager::builder()
    ///     .capacity(Bytes::mib(1))
    ///     .background(Background::Off)
    ///     .build()?;
    /// if hw.is_short() {
    ///     hw.balance();
    /// }
    /// # Ok::<(), highwater::manager::BuildError>(())
    /// ```
    pub fn balance(&self) {
        let core = self.core();
        core.stats.pageoutrun.add(1);
        core.alarms.ring(core.now());
        core.balance(&mut Due::from(core.now()));
    }
}

impl Due {
    /// Nothing before its period is over.
    fn from(now: Duration) -> Self {
        Self {
            flush_at: now + FLUSH_PERIOD,
            decayed_at: now,
            follow_at: now + FOLLOW_PERIOD,
        }
    }

    /// When the first of them is, if lists shrink in this interval.
    fn next(&self, decay_interval: Duration) -> Duration {
        let decay_at = self.decayed_at + decay_interval;
        self.flush_at.min(self.follow_at).min(decay_at)
    }
}

impl Core {
    /// The thread's life.
    fn kswapd(&self) {
        let _alive = Alive(&self.wakeup);
        let mut due = Due::from(self.now());
        loop {
            let next = due.next(self.decay_interval());
            let next = self.alarms.next().map_or(next, |alarm| alarm.min(next));
            match self.wakeup.wait(next.saturating_sub(self.now())) {
                Woken::ToEnd => return,
                Woken::ByTheClock => (),
                Woken::ToReclaim => {
                    self.stats.pageoutrun.add(1);
                    self.balance(&mut due);
                    self.wakeup.done();
                }
            }
            self.do_in_time(&mut due);
        }
    }

    /// Rings alarms, flushes the statistics of groups, lets lists shrink, and follows the control
    /// group's limit, if it is time for it, and says when it is again.
    fn do_in_time(&self, due: &mut Due) {
        let now = self.now();
        self.alarms.ring(now);
        if now >= due.flush_at {
            self.groups.flush_periodically(now);
            due.flush_at = now + FLUSH_PERIOD;
        }
        if now >= due.decayed_at + self.decay_interval() {
            self.pool.decay_tick();
            due.decayed_at = now;
        }
        if now >= due.follow_at {
            if let Err(error) = self.follow_cgroup() {
                tracing::warn!(%error, "more is in use than the control group's limit allows");
            }
            due.follow_at = now + FOLLOW_PERIOD;
        }
    }

    fn decay_interval(&self) -> Duration {
        self.pool.tunables().decay_interval()
    }

    /// Reclaims until the high watermark is reached, or nothing helps. However long that takes,
    /// statistics are flushed in time.
    fn balance(&self, due: &mut Due) {
        let _little_is_kept = self.pool.reclaiming();
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
            let freed = self.reclaim.shrink(&control).nr_reclaimed;
            self.wakeup.passed();
            self.do_in_time(due);
            if freed == 0 {
                fruitless += 1;
                thread::sleep(FRUITLESS_PAUSE);
            } else {
                fruitless = 0;
                // What was freed lies in this CPU's list, where the watermark does not count it.
                self.pool.drain(self.cpu());
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_asks_during_a_run_is_heard_after_it() {
        // Goal: no lost wake-up. Method: ask, begin the run, ask again while it runs (it may have
        // looked at the watermark already), end it: the thread must not wait to be asked once more.
        let wakeup = Wakeup::new();
        wakeup.state.lock().is_started = true;
        wakeup.notify();
        assert_eq!(wakeup.wait(FLUSH_PERIOD), Woken::ToReclaim);
        wakeup.notify();
        wakeup.done();
        assert!(wakeup.state.lock().is_wanted, "asked for and not answered");
        assert_eq!(wakeup.wait(FLUSH_PERIOD), Woken::ToReclaim);
        wakeup.done();
        assert!(!wakeup.state.lock().is_wanted);
        wakeup.wait_idle();
        wakeup.end();
        assert_eq!(wakeup.wait(FLUSH_PERIOD), Woken::ToEnd);
    }

    #[test]
    fn who_waits_for_idleness_is_not_kept_by_others_work() {
        // Goal: drop_caches returns under load. Method: whenever the thread ends a run, it has been
        // asked for the next one already.
        let wakeup = Arc::new(Wakeup::new());
        wakeup.state.lock().is_started = true;
        wakeup.notify();
        assert_eq!(wakeup.wait(FLUSH_PERIOD), Woken::ToReclaim);
        let waiter = Arc::clone(&wakeup);
        let waiter = thread::spawn(move || waiter.wait_idle());
        for _ in 0..1_000_000 {
            wakeup.notify();
            wakeup.done();
            assert_eq!(wakeup.wait(FLUSH_PERIOD), Woken::ToReclaim);
            if waiter.is_finished() {
                return;
            }
            thread::yield_now();
        }
        panic!("a million runs were waited for");
    }

    #[test]
    fn a_thread_that_panicked_is_not_waited_for() {
        // Goal: drop_caches returns. Method: a thread that dies in a run, and has been asked again.
        let wakeup = Arc::new(Wakeup::new());
        wakeup.state.lock().is_started = true;
        wakeup.notify();
        let dying = Arc::clone(&wakeup);
        let dying = thread::spawn(move || {
            let _alive = Alive(&dying);
            assert_eq!(dying.wait(FLUSH_PERIOD), Woken::ToReclaim);
            dying.notify();
            panic!("as told");
        });
        wakeup.wait_idle();
        assert!(dying.join().is_err());
        wakeup.notify();
        wakeup.wait_idle();
    }
}
