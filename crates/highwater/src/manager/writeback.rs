//! Background write-back: dirty pages reach their files before somebody has to wait for that.
//!
//! A thread, started with the reclaim thread, looks every `dirty_writeback_centisecs`: pages that
//! have been dirty for `dirty_expire_centisecs` are written back. It is woken when more pages of
//! files are dirty than `dirty_background_ratio` allows, and writes back, oldest first, until they
//! are no more. Above `dirty_ratio` those who write wait for it, no longer than [`PAUSE_MAX`] for
//! each page: they may hold the latches that it would need. Without the thread they write back
//! themselves.
//!
//! By the clock it also tries again to let go of files and memory that were closed while somebody
//! held pages of theirs.
//!
//! A page that somebody holds is passed over; one that its file refuses stays dirty, and is tried
//! again after all others.
//!
//! Source: the flusher threads and `balance_dirty_pages` of Linux. Deviations: a thread for all
//! files; writers wait at one limit, instead of ever longer from halfway between the two; what a
//! ratio is a share of is the memory that has no anonymous pages in it.

use std::fmt;
use std::io;
use std::time::Duration;

use super::{Background, Core, Manager};
use crate::cache::{
    DirtyPressure, FileEntry, PageWrite, SyncError, ToldOf, WriteBack, WriteBackOutcome,
};
use crate::frame::{KnobRange, TunableError};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Arc, Condvar, LockClass, Mutex, Rank};
use crate::units::Pages;

static WRITEBACK_LOCK: LockClass = LockClass::new("writeback", Rank::Leaf);
static DIRTY_KNOBS_LOCK: LockClass = LockClass::new("dirty_knobs", Rank::Leaf);

/// Pages written back before the limits are looked at again. Chosen: as in Linux, 4 MiB.
const CHUNK: Pages = Pages(1024);
/// Pages that a writer writes back at once where nobody else does. Chosen: a cluster.
const OWN_CHUNK: Pages = Pages(32);
/// The longest that a writer waits before it takes a page. Chosen: as in Linux.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// The knobs of write-back, under the names that the kernel's have. A value is checked when it is
/// set, so that every `DirtyTunables` is valid.
///
/// # Examples
///
/// ```
/// use highwater::Manager;
/// use highwater::manager::DirtyTunables;
///
/// let tunables = DirtyTunables::default().dirty_ratio(40)?.dirty_expire_centisecs(100)?;
/// let hw = Manager::builder().dirty_tunables(tunables).build()?;
/// assert_eq!(hw.dirty_tunables(), tunables);
/// assert!(tunables.dirty_ratio(101).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyTunables {
    dirty_background_ratio: u8,
    dirty_ratio: u8,
    dirty_writeback_centisecs: u32,
    dirty_expire_centisecs: u32,
}

impl Default for DirtyTunables {
    fn default() -> Self {
        Self {
            dirty_background_ratio: 10,
            dirty_ratio: 20,
            dirty_writeback_centisecs: 500,
            dirty_expire_centisecs: 3000,
        }
    }
}

impl DirtyTunables {
    /// Percent of memory that may be dirty before the thread writes back whatever is oldest. Half
    /// of [`dirty_ratio`](Self::dirty_ratio), if that is less. Default: 10.
    ///
    /// # Errors
    ///
    /// Outside 0 to 100.
    pub fn dirty_background_ratio(mut self, percent: i64) -> Result<Self, TunableError> {
        self.dirty_background_ratio = percent_of("dirty_background_ratio", percent)?;
        Ok(self)
    }

    /// Percent of memory that may be dirty before writers wait. Default: 20.
    ///
    /// # Errors
    ///
    /// Outside 0 to 100.
    pub fn dirty_ratio(mut self, percent: i64) -> Result<Self, TunableError> {
        self.dirty_ratio = percent_of("dirty_ratio", percent)?;
        Ok(self)
    }

    /// Time between two looks for pages that have been dirty for too long, in hundredths of a
    /// second; 0 for never. Default: 500.
    ///
    /// # Errors
    ///
    /// Outside 0 to an hour.
    pub fn dirty_writeback_centisecs(mut self, centisecs: i64) -> Result<Self, TunableError> {
        self.dirty_writeback_centisecs = time_of("dirty_writeback_centisecs", centisecs)?;
        Ok(self)
    }

    /// How long a page may be dirty before it is written back, in hundredths of a second: when the
    /// thread looks for the first time after that. Default: 3000.
    ///
    /// # Errors
    ///
    /// Outside 0 to an hour.
    pub fn dirty_expire_centisecs(mut self, centisecs: i64) -> Result<Self, TunableError> {
        self.dirty_expire_centisecs = time_of("dirty_expire_centisecs", centisecs)?;
        Ok(self)
    }

    /// Pages that may be dirty, of `pages`: before the thread writes back, and before writers wait.
    fn limits(&self, pages: Pages) -> (Pages, Pages) {
        let percent = |ratio: u8| Pages(pages.0 * u64::from(ratio) / 100);
        let limit = percent(self.dirty_ratio);
        let background = percent(self.dirty_background_ratio);
        match background < limit {
            true => (background, limit),
            false => (Pages(limit.0 / 2), limit),
        }
    }
}

fn percent_of(knob: &'static str, percent: i64) -> Result<u8, TunableError> {
    let (range, reason) = ("0 to 100", "in percent of memory");
    let range = KnobRange {
        knob,
        range,
        reason,
    };
    range.check(percent, |percent| *percent <= 100)
}

fn time_of(knob: &'static str, centisecs: i64) -> Result<u32, TunableError> {
    let (range, reason) = (
        "0 to 360000",
        "an hour at most, so that what is dirty is found",
    );
    let range = KnobRange {
        knob,
        range,
        reason,
    };
    range.check(centisecs, |centisecs| *centisecs <= 360_000)
}

impl fmt::Display for DirtyTunables {
    /// A line for each knob, as sysctl shows them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "vm.dirty_background_ratio = {}",
            self.dirty_background_ratio
        )?;
        writeln!(f, "vm.dirty_ratio = {}", self.dirty_ratio)?;
        let (writeback, expire) = (self.dirty_writeback_centisecs, self.dirty_expire_centisecs);
        writeln!(f, "vm.dirty_writeback_centisecs = {writeback}")?;
        writeln!(f, "vm.dirty_expire_centisecs = {expire}")
    }
}

/// Whether to go on: pages were written, or refused for the first time, so that others come before
/// them now. Each page is that once.
fn is_of_use(outcome: &WriteBackOutcome) -> bool {
    outcome.nr_written + outcome.nr_failed_first > 0
}

/// How the thread is woken and ended, and what it is to do.
#[derive(Debug)]
pub(super) struct Writeback {
    state: Mutex<State>,
    woken: Condvar,
    /// The thread has written some pages back, or found that it cannot.
    wrote: Condvar,
    tunables: Mutex<DirtyTunables>,
}

#[derive(Debug, Default)]
struct State {
    is_started: bool,
    is_wanted: bool,
    is_running: bool,
    is_ending: bool,
    /// Those who want it to stand still.
    pauses: u32,
    /// Runs in which nothing could be written back.
    fruitless_runs: u64,
}

/// Why the thread does not wait any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    ByNeed,
    ByTheClock,
    ToEnd,
}

/// The thread, ended when dropped, and joined by any thread but itself.
#[derive(Debug)]
pub(super) struct Writer {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

/// The thread lives while this does: one that panicked is waited for no more.
struct Alive<'a>(&'a Writeback);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0
            .note(|state| (state.is_started, state.is_running) = (false, false));
    }
}

impl Writeback {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(&WRITEBACK_LOCK, State::default()),
            woken: Condvar::new(),
            wrote: Condvar::new(),
            tunables: Mutex::new(&DIRTY_KNOBS_LOCK, DirtyTunables::default()),
        }
    }

    /// Asks for a run.
    fn notify(&self) {
        let mut state = self.state.lock();
        if state.is_started && !state.is_wanted {
            state.is_wanted = true;
            self.woken.notify_one();
        }
    }

    /// Waits for the next run. `left` says how long it is until one is due by the clock, if that is
    /// ever: asked each time, so that who wakes the thread for nothing does not put it off.
    fn wait(&self, left: impl Fn() -> Option<Duration>) -> Woken {
        let mut state = self.state.lock();
        while !state.is_ending {
            let left = left();
            if state.pauses > 0 {
                self.woken.wait(&mut state);
                continue;
            }
            let is_due = left == Some(Duration::ZERO);
            if is_due || state.is_wanted {
                (state.is_wanted, state.is_running) = (false, true);
                return match is_due {
                    true => Woken::ByTheClock,
                    false => Woken::ByNeed,
                };
            }
            match left {
                Some(left) => _ = self.woken.wait_for(&mut state, left),
                None => self.woken.wait(&mut state),
            }
        }
        Woken::ToEnd
    }

    /// Whether a run is to end early.
    fn is_cut_short(&self) -> bool {
        let state = self.state.lock();
        state.is_ending || state.pauses > 0
    }

    /// Lets the thread hold no page while the result lives. Waits for what it is writing back at
    /// the moment.
    pub(super) fn pause(&self) -> Paused<'_> {
        let mut state = self.state.lock();
        state.pauses += 1;
        // Ends: a run ends with its chunk, and the thread begins no other.
        while state.is_running {
            self.wrote.wait(&mut state);
        }
        Paused(self)
    }

    fn note(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.wrote.notify_all();
    }
}

/// The thread stands still while this lives.
#[derive(Debug)]
pub(super) struct Paused<'a>(&'a Writeback);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.state.lock().pauses -= 1;
        self.0.woken.notify_one();
    }
}

impl Writer {
    pub(super) fn start(background: Background, core: &Arc<Core>) -> io::Result<Self> {
        let core = Arc::clone(core);
        let thread = match background {
            Background::Off => None,
            Background::Thread => {
                let works_on = Arc::clone(&core);
                let builder = thread::Builder::new().name("highwater-writeback".into());
                let thread = builder.spawn(move || works_on.write_back_for_ever())?;
                core.writeback.state.lock().is_started = true;
                Some(thread)
            }
        };
        Ok(Self { core, thread })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.core.writeback.state.lock().is_ending = true;
            self.core.writeback.woken.notify_one();
            // As for the reclaim thread.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Manager {
    /// Turns the knobs of write-back. A change is in force when this returns.
    pub fn set_dirty_tunables(&self, tunables: DirtyTunables) {
        self.core().set_dirty_tunables(tunables);
    }

    /// The knobs of write-back as they are now.
    #[must_use]
    pub fn dirty_tunables(&self) -> DirtyTunables {
        *self.core().writeback.tunables.lock()
    }

    /// Writes back what has been dirty for too long, or is too much; pages written. For managers
    /// without a background thread, once in each `dirty_writeback_centisecs`; with one, it does
    /// that.
    pub fn writeback_tick(&self) -> Pages {
        self.core().reap_closing();
        self.core().write_back_what_is_due()
    }
}

impl Core {
    pub(super) fn set_dirty_tunables(&self, tunables: DirtyTunables) {
        *self.writeback.tunables.lock() = tunables;
        self.look_at_dirty_limits();
        // Its times may have changed.
        self.writeback.notify();
    }

    /// The thread's life.
    fn write_back_for_ever(&self) {
        let _alive = Alive(&self.writeback);
        let mut begun = self.now();
        loop {
            let interval = self.writeback.tunables.lock().dirty_writeback_centisecs;
            let interval = Duration::from_millis(u64::from(interval) * 10);
            let left =
                || (!interval.is_zero()).then(|| (begun + interval).saturating_sub(self.now()));
            match self.writeback.wait(left) {
                Woken::ToEnd => return,
                Woken::ByNeed => _ = self.write_back_what_is_due(),
                Woken::ByTheClock => {
                    begun = self.now();
                    self.reap_closing();
                    self.write_back_what_is_due();
                }
            }
            self.writeback.note(|state| state.is_running = false);
        }
    }

    fn write_back_what_is_due(&self) -> Pages {
        self.look_at_dirty_limits();
        let expire = self.writeback.tunables.lock().dirty_expire_centisecs;
        let mut written = self.write_back(WriteBack::Expired(expire)).nr_written;
        while self.cache.dirty_pressure() != DirtyPressure::None && !self.writeback.is_cut_short() {
            let (background, _) = self.cache.dirty_limits();
            let too_many = self.cache.nr_dirty().saturating_sub(background);
            let now = self.write_back(WriteBack::Oldest(too_many.min(CHUNK)));
            written += now.nr_written;
            // The rest is held, or was refused before: for the next time.
            if !is_of_use(&now) {
                break;
            }
        }
        self.writeback
            .note(|state| state.fruitless_runs += u64::from(written == 0));
        Pages(written)
    }

    fn write_back(&self, which: WriteBack) -> WriteBackOutcome {
        let outcome = self.cache.write_back_some(which);
        if let Some(error) = &outcome.first_error {
            let failed = outcome.nr_failed;
            tracing::warn!(failed, %error, "background write-back failed, the pages stay dirty");
        }
        self.reclaim.rotate(&outcome.awaited);
        self.writeback.note(|_| ());
        outcome
    }

    /// Writes every page of a file back that is dirty now, waiting for those that somebody holds.
    /// All are tried.
    pub(super) fn write_back_file(&self, entry: &FileEntry) -> Result<(), SyncError> {
        let mut whole = WriteBackOutcome::default();
        let chunk = usize::try_from(CHUNK.0).expect("a small number");
        for pages in self.cache.dirty_pages_of(entry.id()).chunks(chunk) {
            let outcome = self.cache.write_back_pages(pages);
            // Not at the end: those who await them need memory now.
            self.reclaim.rotate(&outcome.awaited);
            whole += outcome;
        }
        whole.all_written()
    }

    /// Writes every dirty page of a file back, and makes it durable.
    pub(super) fn sync(&self, entry: &FileEntry, told: &ToldOf) -> Result<(), SyncError> {
        // Nothing makes memory durable.
        if entry.id().kind().is_swap_backed() {
            return Ok(());
        }
        self.write_back_file(entry)?;
        self.cache.make_durable(entry, told)
    }

    /// Brings limits and clock up to date.
    pub(super) fn look_at_dirty_limits(&self) {
        let sizes = self.reclaim.total_sizes();
        let anon = sizes.inactive_anon + sizes.active_anon;
        let tunables = *self.writeback.tunables.lock();
        let (background, limit) = tunables.limits(self.pool.managed().saturating_sub(anon));
        self.cache.set_dirty_limits(background, limit);
        let centisecs = self.now().as_millis() / 10 % (1 << 32);
        let centisecs = u32::try_from(centisecs).expect("reduced to 32 bits");
        self.cache.set_dirty_clock(centisecs);
    }

    /// Called when a page was taken to be written: has some written back if that is one too many.
    #[inline]
    pub(super) fn note_written(&self, write: &PageWrite<'_>) {
        if write.was_clean() {
            self.note_dirtied();
        }
    }

    #[cold]
    fn note_dirtied(&self) {
        if self.cache.dirty_pressure() != DirtyPressure::None {
            self.writeback.notify();
        }
    }

    /// Called before a page of a file is taken to be written: waits while too many are dirty, no
    /// longer than [`PAUSE_MAX`], and not at all when nothing can be written back.
    #[inline]
    pub(super) fn balance_dirty_pages(&self) {
        if self.cache.is_dirty_exceeded() {
            self.wait_for_writeback();
        }
    }

    #[cold]
    fn wait_for_writeback(&self) {
        self.stats.nr_dirty_throttled.add(1);
        let deadline = self.now() + PAUSE_MAX;
        // Ends: at the deadline.
        while self.cache.look_at_dirty_limit() && self.now() < deadline {
            let mut state = self.writeback.state.lock();
            if !state.is_started {
                drop(state);
                if !is_of_use(&self.write_back(WriteBack::Oldest(OWN_CHUNK))) {
                    return;
                }
                continue;
            }
            let fruitless_runs = state.fruitless_runs;
            state.is_wanted = true;
            self.writeback.woken.notify_one();
            let left = deadline.saturating_sub(self.now());
            self.writeback.wrote.wait_for(&mut state, left);
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
        // Goal: old pages are written back however often somebody has the thread stand still.
        // Method: pauses that are much shorter than the interval, one after the other; the thread's
        // turn has to come before they end.
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
            assert_eq!(woken, Woken::ByTheClock);
            has_come.store(true, Ordering::Relaxed);
            writeback.note(|state| state.is_running = false);
            assert!(
                pauses.join().expect("it does not panic"),
                "waited for the last pause"
            );
        });
    }
}
