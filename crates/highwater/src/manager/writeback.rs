//! Background write-back (flusher thread): dirty pages reach their files ahead of need.
//!
//! A thread, started with the reclaim thread, runs every `dirty_writeback_centisecs` and writes
//! back pages that have been dirty for `dirty_expire_centisecs`. It is also woken when the dirty
//! file pages exceed `dirty_background_ratio`, and then writes back, oldest first, until they are
//! below it. Above `dirty_ratio` writers are throttled, for at most [`PAUSE_MAX`] per page: they
//! may hold the latches that the flusher needs. Without the thread, writers write back themselves.
//!
//! The periodic run also retries to release files and memory that were closed while some of their
//! pages were pinned or latched.
//!
//! A pinned or latched page is skipped; one whose write failed stays dirty and is retried after all
//! others.
//!
//! Source: the flusher threads and `balance_dirty_pages` of Linux. Deviations: one thread for all
//! files; writers wait at one limit, instead of ever longer from halfway between the two; a ratio
//! is a share of the memory without anonymous pages.

use std::collections::BTreeMap;
use std::io;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::alarm::Alarm;
use super::background::Background;
use super::handler::survive;
use super::{Core, Manager};
use crate::cache::{DirtyPressure, WriteBackOutcome};
use crate::frame::Tunables;
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, LockClass, Mutex, Rank, StatCell, Woken};
use crate::units::Pages;

static WRITEBACK_LOCK: LockClass = LockClass::new("writeback", Rank::Leaf);

/// Pages written back between checks of the limits. Chosen: as in Linux, 4 MiB.
pub(super) const CHUNK: Pages = Pages(1024);
/// Pages that a writer writes back at once when there is no thread. Chosen: a cluster.
const OWN_CHUNK: Pages = Pages(32);
/// Longest throttling of a writer for one page. Chosen: as in Linux.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Returns the limits on dirty pages, of `pages`: for the thread, and for writers.
fn dirty_limits(tunables: &Tunables, pages: Pages) -> (Pages, Pages) {
    let percent = |ratio: u8| Pages(pages.0 * u64::from(ratio) / 100);
    let limit = percent(tunables.dirty_ratio);
    let background = percent(tunables.dirty_background_ratio);
    match background < limit {
        true => (background, limit),
        false => (Pages(limit.0 / 2), limit),
    }
}

/// Returns whether to continue: pages were written, or failed for the first time, which moves them
/// behind the others. Each page fails for the first time once.
fn is_of_use(outcome: &WriteBackOutcome) -> bool {
    outcome.nr_written + outcome.nr_failed_first > 0
}

/// Wakes and stops the thread, and holds its requests.
#[derive(Debug)]
pub(super) struct Writeback {
    state: Mutex<WriterState>,
    woken: Condvar,
    /// Signalled when the thread has written pages back, or found that it cannot.
    wrote: Condvar,
    nr_failed_runs: StatCell,
}

#[derive(Debug, Default)]
struct WriterState {
    is_started: bool,
    is_wanted: bool,
    is_running: bool,
    is_ending: bool,
    /// Number of callers that keep the thread paused.
    pauses: u32,
    /// Runs in which no page could be written back.
    fruitless_runs: u64,
    /// Tasks that wait for the end of a run, by their tickets.
    tasks: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

/// A task that waits for dirty pages to be written back.
pub(super) struct DirtyWait {
    /// Wakes it at its deadline.
    alarm: Alarm,
    /// Count of fruitless runs when it began.
    fruitless_runs: u64,
    ticket: u64,
}

/// Reason for the thread's wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriterWake {
    ByNeed,
    ByTheClock,
    ToEnd,
}

/// The thread; stopped on drop, and joined unless dropped by the thread itself.
#[derive(Debug)]
pub(super) struct WritebackThread {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

/// Marks the thread as dead when dropped, also by a panic: no more waiting for it.
struct WriterAlive<'a>(&'a Writeback);

impl Drop for WriterAlive<'_> {
    fn drop(&mut self) {
        self.0
            .note(|state| (state.is_started, state.is_running) = (false, false));
    }
}

impl Writeback {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(&WRITEBACK_LOCK, WriterState::default()),
            woken: Condvar::new(),
            wrote: Condvar::new(),
            nr_failed_runs: StatCell::new(),
        }
    }

    /// Requests a run.
    pub(super) fn notify(&self) {
        let mut state = self.state.lock();
        if state.is_started && !state.is_wanted {
            state.is_wanted = true;
            self.woken.notify_one();
        }
    }

    /// Waits for the next run. `left` returns the time until a periodic run is due, if ever; it is
    /// called again after each wake-up, so that spurious wake-ups do not postpone the run.
    fn wait(&self, left: impl Fn() -> Option<Duration>) -> WriterWake {
        let mut state = self.state.lock();
        while !state.is_ending {
            let left = left();
            if state.pauses > 0 {
                self.woken.wait(&mut state);
                continue;
            }
            let is_due = left == Some(Duration::ZERO);
            if is_due || state.is_wanted {
                debug_assert!(!state.is_running, "one thread writes back");
                (state.is_wanted, state.is_running) = (false, true);
                return match is_due {
                    true => WriterWake::ByTheClock,
                    false => WriterWake::ByNeed,
                };
            }
            match left {
                Some(left) => _ = self.woken.wait_for(&mut state, left),
                None => self.woken.wait(&mut state),
            }
        }
        WriterWake::ToEnd
    }

    /// Returns whether tasks wait for the end of a run. The next one begins at once, then.
    fn yields_to_tasks(&self) -> bool {
        let mut state = self.state.lock();
        let has_tasks = !state.tasks.is_empty();
        state.is_wanted |= has_tasks;
        has_tasks
    }

    /// Returns whether a run should end early.
    fn is_cut_short(&self) -> bool {
        let state = self.state.lock();
        state.is_ending || state.pauses > 0
    }

    /// Pauses the thread while the result lives: it holds no page. Waits for the chunk in progress.
    pub(super) fn pause(&self) -> Paused<'_> {
        let mut state = self.state.lock();
        state.pauses += 1;
        // Terminates: a run ends with its chunk, and the thread begins no other.
        while state.is_running {
            self.wrote.wait(&mut state);
        }
        debug_assert!(state.pauses > 0, "another caller ended this pause");
        Paused(self)
    }

    fn note(&self, change: impl FnOnce(&mut WriterState)) {
        let mut state = self.state.lock();
        change(&mut state);
        let tasks = match state.is_running {
            // A task may pause the thread, which waits for the end of its run.
            true => BTreeMap::new(),
            false => std::mem::take(&mut state.tasks),
        };
        drop(state);
        self.wrote.notify_all();
        // Outside the lock: wakers are the program's code.
        drop(Woken::from_iter(tasks.into_values()));
    }
}

/// The thread is paused while this lives.
#[derive(Debug)]
pub(super) struct Paused<'a>(&'a Writeback);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.state.lock().pauses -= 1;
        self.0.woken.notify_one();
    }
}

impl WritebackThread {
    pub(super) fn start(background: Background, core: &Arc<Core>) -> io::Result<Self> {
        let core = Arc::clone(core);
        let thread = match background {
            Background::Off => None,
            Background::Thread => {
                let works_on = Arc::clone(&core);
                let builder = thread::Builder::new().name("highwater-writeback".into());
                let thread = builder.spawn(move || works_on.write_back_for_ever())?;
                let mut state = core.writeback.state.lock();
                let was_started = std::mem::replace(&mut state.is_started, true);
                drop(state);
                debug_assert!(!was_started, "a manager has one write-back thread");
                core.reclaim.note_writer();
                Some(thread)
            }
        };
        Ok(Self { core, thread })
    }
}

impl Drop for WritebackThread {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let mut state = self.core.writeback.state.lock();
            debug_assert!(!state.is_ending, "the thread ends once");
            state.is_ending = true;
            drop(state);
            self.core.writeback.woken.notify_one();
            // As for the reclaim thread.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Manager {
    /// Writes back pages that have been dirty for too long, or exceed the limits; returns the
    /// number written. Part of [`balance`](Self::balance).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn writeback_tick(&self) -> Pages {
        self.core().reclaim.note_writer();
        self.core().reap_closing();
        self.core().write_back_what_is_due(WriterWake::ByTheClock)
    }
}

impl Core {
    /// Returns the time between runs by the clock; `None` for no such runs.
    fn writeback_interval(&self) -> Option<Duration> {
        let centisecs = self.pool.tunables().dirty_writeback_centisecs;
        (centisecs > 0).then(|| Duration::from_millis(u64::from(centisecs) * 10))
    }

    /// The thread's main loop.
    fn write_back_for_ever(&self) {
        let _alive = WriterAlive(&self.writeback);
        let mut begun = self.now();
        loop {
            let interval = self.writeback_interval();
            let left = || interval.map(|interval| (begun + interval).saturating_sub(self.now()));
            let wake = self.writeback.wait(left);
            match wake {
                WriterWake::ToEnd => return,
                WriterWake::ByNeed => {}
                WriterWake::ByTheClock => {
                    begun = self.now();
                    survive(|| _ = self.reap_closing());
                }
            }
            survive(|| _ = self.write_back_what_is_due(wake));
            self.writeback.note(|state| {
                debug_assert!(state.is_running, "a run that ends has begun");
                state.is_running = false;
            });
        }
    }

    /// Does the work of the thread if an interval has passed since `written_at`.
    pub(super) fn write_back_in_time(&self, written_at: &mut Duration) {
        let (interval, now) = (self.writeback_interval(), self.now());
        if interval.is_some_and(|interval| now >= *written_at + interval) {
            *written_at = now;
            self.reap_closing();
            self.write_back_what_is_due(WriterWake::ByTheClock);
        }
    }

    /// Writes back the pages that exceed the limits, and by the clock first those that are old.
    fn write_back_what_is_due(&self, wake: WriterWake) -> Pages {
        self.look_at_dirty_limits();
        let mut written = match wake {
            WriterWake::ByTheClock => self.write_expired_back(),
            WriterWake::ByNeed | WriterWake::ToEnd => 0,
        };
        while self.cache.dirty_pressure() != DirtyPressure::None && !self.writeback.is_cut_short() {
            let (background, _) = self.cache.dirty_limits();
            let too_many = self.cache.nr_dirty().saturating_sub(background);
            let now = self.write_oldest_back(too_many.min(CHUNK));
            debug_assert!(
                now.nr_written < CHUNK.0 + self.cache.order_max().pages().0,
                "{now:?} is above a chunk"
            );
            written += now.nr_written;
            // The rest is held, or has failed before: left to the next run. So are tasks, which
            // each run has given room.
            if !is_of_use(&now) || now.nr_written > 0 && self.writeback.yields_to_tasks() {
                break;
            }
        }
        self.writeback
            .note(|state| state.fruitless_runs += u64::from(written == 0));
        Pages(written)
    }

    /// Writes the pages back that have been dirty for long, in chunks: one, and others until the
    /// run is cut short. Returns how many frames were written.
    fn write_expired_back(&self) -> u64 {
        let expire = self.pool.tunables().dirty_expire_centisecs;
        let expired = self.cache.expired_pages(expire);
        let chunk = CHUNK.0 / self.cache.order_max().pages().0;
        let chunk = usize::try_from(chunk).expect("a small number");
        let pass = || {
            let mut whole = WriteBackOutcome::default();
            for pages in expired.chunks(chunk) {
                whole += self.note_written(self.cache.write_back_unheld(pages));
                if self.writeback.is_cut_short() {
                    break;
                }
            }
            whole
        };
        self.write_back(pass).nr_written
    }

    fn write_oldest_back(&self, pages: Pages) -> WriteBackOutcome {
        self.write_back(|| self.note_written(self.cache.write_back_oldest(pages)))
    }

    /// Writes pages back. If all wait for their logs, asks these to flush, and tries once more.
    fn write_back(&self, pass: impl Fn() -> WriteBackOutcome) -> WriteBackOutcome {
        let mut outcome = pass();
        if !is_of_use(&outcome) && !outcome.held_up.is_empty() && self.cache.ask_logs() {
            outcome += pass();
        }
        outcome
    }

    fn note_written(&self, outcome: WriteBackOutcome) -> WriteBackOutcome {
        debug_assert!(
            outcome.nr_failed_first <= outcome.nr_failed
                && outcome.first_error.is_some() == (outcome.nr_failed > 0),
            "each failure is counted, and the first one is told"
        );
        if let Some(error) = &outcome.first_error
            && let Some(times) = self.writeback.nr_failed_runs.recur()
        {
            let failed_pages = outcome.nr_failed;
            tracing::warn!(failed_pages, %error, times, "background write-back failed, the pages stay dirty");
        }
        self.reclaim.rotate(&outcome.awaited);
        self.writeback.note(|_| ());
        outcome
    }

    /// Updates the dirty limits and the clock.
    pub(super) fn look_at_dirty_limits(&self) {
        let sizes = self.reclaim.total_sizes();
        let anon = sizes.inactive_anon + sizes.active_anon;
        let pages = self.pool.managed().saturating_sub(anon);
        let (background, limit) = dirty_limits(&self.pool.tunables(), pages);
        debug_assert!(
            background < limit || limit == Pages::ZERO,
            "write-back begins before writers wait: {background} of {limit}"
        );
        self.cache.set_dirty_limits(background, limit);
        let centisecs = self.now().as_millis() / 10 % (1 << 32);
        let centisecs = u32::try_from(centisecs).expect("reduced to 32 bits");
        self.cache.set_dirty_clock(centisecs);
    }

    /// Called when a page has become dirty: wakes write-back if dirty pages exceed a limit.
    #[cold]
    pub(super) fn note_dirtied(&self) {
        if self.cache.dirty_pressure() != DirtyPressure::None {
            self.writeback.notify();
        }
    }

    /// Called before a file page is latched for writing: waits while dirty pages exceed the limit,
    /// at most [`PAUSE_MAX`], and not at all if nothing can be written back.
    #[inline]
    pub(super) fn balance_dirty_pages(&self) {
        if self.cache.is_dirty_exceeded() {
            self.wait_for_writeback();
        }
    }

    /// As [`balance_dirty_pages`](Self::balance_dirty_pages) for a task, which is woken after the
    /// thread's run, or at its deadline. Without a thread, this one writes them back. `wait` is
    /// `None` at first.
    pub(super) fn poll_dirty_pages(
        &self,
        wait: &mut Option<DirtyWait>,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        // Terminates: each round writes pages back, which are finitely many.
        while self.cache.is_dirty_exceeded() && self.cache.look_at_dirty_limit() {
            // Not under the lock: the alarm may be the program's timer, and the waker is its code.
            let begun = wait.get_or_insert_with(|| self.begin_dirty_wait());
            let waker = context.waker().clone();
            let mut state = self.writeback.state.lock();
            if begun.fruitless_runs != state.fruitless_runs || self.now() >= begun.alarm.at() {
                break;
            }
            if state.is_started {
                state.is_wanted = true;
                self.writeback.woken.notify_one();
                let before = state.tasks.insert(begun.ticket, waker);
                drop(state);
                drop(before);
                ready!(begun.alarm.poll(self.now(), context));
                break;
            }
            drop(state);
            if !is_of_use(&self.write_oldest_back(OWN_CHUNK)) {
                break;
            }
        }
        self.end_dirty_wait(wait);
        Poll::Ready(())
    }

    /// Ends the wait of a task, if it waits.
    pub(super) fn end_dirty_wait(&self, wait: &mut Option<DirtyWait>) {
        let Some(DirtyWait { ticket, .. }) = wait.take() else {
            return;
        };
        let waker = self.writeback.state.lock().tasks.remove(&ticket);
        // Outside the lock: wakers are the program's code.
        drop(waker);
    }

    #[cold]
    fn begin_dirty_wait(&self) -> DirtyWait {
        self.stats.nr_dirty_throttled.add(1);
        let (fruitless_runs, ticket) = {
            let mut state = self.writeback.state.lock();
            state.next_ticket += 1;
            (state.fruitless_runs, state.next_ticket)
        };
        DirtyWait {
            alarm: Alarm::new(&self.alarms, self.begun, self.now() + PAUSE_MAX),
            fruitless_runs,
            ticket,
        }
    }

    #[cold]
    fn wait_for_writeback(&self) {
        self.stats.nr_dirty_throttled.add(1);
        let deadline = self.now() + PAUSE_MAX;
        // Terminates: at the deadline.
        while self.cache.look_at_dirty_limit() && self.now() < deadline {
            let mut state = self.writeback.state.lock();
            if !state.is_started {
                drop(state);
                if !is_of_use(&self.write_oldest_back(OWN_CHUNK)) {
                    return;
                }
                continue;
            }
            let fruitless_runs = state.fruitless_runs;
            state.is_wanted = true;
            self.writeback.woken.notify_one();
            let left = deadline.saturating_sub(self.now());
            self.writeback.wrote.wait_for(&mut state, left);
            debug_assert!(
                state.fruitless_runs >= fruitless_runs,
                "fruitless runs are counted up"
            );
            if state.fruitless_runs != fruitless_runs {
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn pauses_do_not_put_off_what_is_due_by_the_clock() {
        // Goal: expired pages are written back however often the thread is paused. Method:
        // consecutive pauses that are much shorter than the interval; the thread must run before
        // they end.
        let writeback = Writeback::new();
        let begun = std::time::Instant::now();
        let interval = Duration::from_millis(20);
        let has_come = AtomicBool::new(false);
        thread::scope(|scope| {
            let pauses = scope.spawn(|| {
                (0..20_000).any(|_| {
                    drop(writeback.pause());
                    thread::sleep(Duration::from_micros(500));
                    has_come.load(Ordering::Relaxed)
                })
            });
            let woken = writeback.wait(|| Some(interval.saturating_sub(begun.elapsed())));
            assert_eq!(woken, WriterWake::ByTheClock);
            has_come.store(true, Ordering::Relaxed);
            writeback.note(|state| state.is_running = false);
            assert!(
                pauses.join().expect("it does not panic"),
                "waited for the last pause"
            );
        });
    }
}
