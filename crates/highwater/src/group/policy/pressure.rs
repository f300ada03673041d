//! Pressure stall information (PSI): the part of a group's time lost for lack of memory.
//!
//! A thread *stalls* for a group while it reclaims, is throttled or waits for room on behalf of
//! that group or one below it. From the begin and end of stalls a [`StallMeter`] keeps for one
//! group:
//!
//! - *some*: the time during which at least one thread stalled;
//! - *full*: the part of it during which no thread known to work for the group could run.
//!
//! Each is kept as a total, and as the share of the last 10, 60 and 300 seconds, an exponential
//! moving average: time is cut into windows of 2 seconds, and the share lost in a window moves each
//! average by a fixed part of the difference.
//!
//! There is no tick: a meter is brought up to date when it is used. Between two changes its state
//! is constant, so each window is credited with exactly the stalls in it, however late. Windows
//! begin at multiples of 2 s of the clock that is passed in, for all groups alike, so a group's
//! averages are at least those of each group below it.
//!
//! Invariant: `full <= some`, for each total and average; totals never fall.
//!
//! Source: the kernel's pressure stall information (kernel/sched/psi.c, `avgs_work`, and its
//! loadavg arithmetic): 2 s windows, 11 fraction bits, factors 1677, 1981, 2034 of 2048. Deviation:
//! one state for a group instead of one for each CPU; a window that was missed is credited with its
//! own stalls, not with none.
//! Deviation: the threads that work for a group are known only as far as they are reported, while
//! the kernel knows every task; so *full* is computed as if the known threads were all, and equals
//! *some* where none is known. Deviation: waiting for a page of the working set to be read in again
//! is no stall.

use std::fmt;
use std::time::Duration;

use crate::percpu::Published;
use crate::sync::{LockClass, Mutex, Rank};

static STALLS: LockClass = LockClass::new("stalls", Rank::Leaf);

/// Fraction bits of an average.
const FRACTION_BITS: u32 = 11;
const ONE: u64 = 1 << FRACTION_BITS;
/// Time over which one sample is taken. Chosen: as the kernel's.
const WINDOW: Duration = Duration::from_secs(2);
/// The part of an average that remains after one window, in 1/2048: `exp(-2/10)`, `exp(-2/60)`,
/// `exp(-2/300)`.
const REMAINS: [u64; 3] = [1677, 1981, 2034];
/// Windows without a change after which no average moves any more: more than the slowest needs from
/// 100 % to its last bit (`a_long_rest_is_a_short_walk`).
const WINDOWS_MAX: u128 = 4096;

/// Time lost, as one line of `/proc/pressure/memory`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StallTime {
    /// Share of the last 10 seconds, in percent.
    pub avg10: f64,
    /// Share of the last 60 seconds, in percent.
    pub avg60: f64,
    /// Share of the last 300 seconds, in percent.
    pub avg300: f64,
    /// Total since the group was created, in microseconds.
    pub total_us: u64,
}

/// Time that a group lost for lack of memory (PSI).
///
/// Displayed as the kernel shows `memory.pressure`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stalls {
    /// While at least one thread stalled.
    pub some: StallTime,
    /// While in addition no thread known to work for the group could run.
    pub full: StallTime,
}

impl fmt::Display for StallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            avg10,
            avg60,
            avg300,
            total_us,
        } = self;
        write!(
            f,
            "avg10={avg10:.2} avg60={avg60:.2} avg300={avg300:.2} total={total_us}"
        )
    }
}

impl fmt::Display for Stalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "some {}", self.some)?;
        write!(f, "full {}", self.full)
    }
}

/// A change of a thread's state, as a meter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A thread begins to work for the group.
    Enter,
    /// A thread that is not stalled ends its work for the group.
    Leave,
    /// A thread that is known to work for the group begins to stall.
    Stall,
    /// Such a thread ends to stall.
    Resume,
    /// A thread that is not known to work for the group begins to stall for it.
    StallFromOutside,
    /// Such a thread ends to stall.
    ResumeOutside,
}

/// The stall meter of one group.
#[derive(Debug, Default)]
pub struct StallMeter {
    /// The moment up to which all fields below are counted.
    now: Duration,
    nr_working: u64,
    nr_stalled: u64,
    some: Lost,
    full: Lost,
}

/// Whether time in one state counts as lost.
#[derive(Clone, Copy, Debug)]
enum Time {
    Kept,
    Lost,
}

/// Time lost, of one kind (some or full).
#[derive(Debug, Default)]
struct Lost {
    total: Duration,
    in_window: Duration,
    /// In percent, with [`FRACTION_BITS`].
    averages: [u64; 3],
}

impl StallMeter {
    /// Returns a meter with no thread working and none stalled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of threads that stall now.
    #[must_use]
    pub fn nr_stalled(&self) -> u64 {
        self.nr_stalled
    }

    /// Counts a change of one thread's state at `now`. A `now` before one that the meter has seen
    /// counts as that one: threads read the clock before they get here.
    ///
    /// An end without a begin is not counted.
    pub fn change(&mut self, change: Change, now: Duration) {
        self.advance(now);
        match change {
            Change::Enter => self.nr_working += 1,
            Change::Leave => self.nr_working = self.nr_working.saturating_sub(1),
            Change::Stall | Change::StallFromOutside => self.nr_stalled += 1,
            Change::Resume | Change::ResumeOutside => {
                self.nr_stalled = self.nr_stalled.saturating_sub(1);
            }
        }
        match change {
            Change::Stall => self.nr_working = self.nr_working.saturating_sub(1),
            Change::Resume => self.nr_working += 1,
            _ => {}
        }
    }

    /// Returns the time lost up to `now`.
    #[must_use]
    pub fn read(&mut self, now: Duration) -> Stalls {
        self.advance(now);
        Stalls {
            some: self.some.read(),
            full: self.full.read(),
        }
    }

    /// Counts the time since the last change, during which the state was constant.
    fn advance(&mut self, now: Duration) {
        let now = now.max(self.now);
        let (some, full) = match (self.nr_stalled, self.nr_working) {
            (0, _) => (Time::Kept, Time::Kept),
            (_, 0) => (Time::Lost, Time::Lost),
            _ => (Time::Lost, Time::Kept),
        };
        self.some.advance(self.now, now, some);
        self.full.advance(self.now, now, full);
        self.now = now;
        debug_assert!(self.full.total <= self.some.total, "full is a part of some");
    }
}

impl Lost {
    /// Counts the time from `from` to `to`, all of which was lost or all kept.
    fn advance(&mut self, from: Duration, to: Duration, time: Time) {
        let lost = |span: Duration| match time {
            Time::Lost => span,
            Time::Kept => Duration::ZERO,
        };
        self.total += lost(to - from);
        let window = WINDOW.as_nanos();
        let nr_ended = to.as_nanos() / window - from.as_nanos() / window;
        if nr_ended == 0 {
            self.in_window += lost(to - from);
            return;
        }
        let left = nanos(window - from.as_nanos() % window);
        let first = self.in_window + lost(left);
        self.sample(first);
        for _ in 1..nr_ended.min(WINDOWS_MAX) {
            self.sample(lost(WINDOW));
        }
        self.in_window = lost(nanos(to.as_nanos() % window));
    }

    /// Moves the averages by a window of which `lost` was lost.
    fn sample(&mut self, lost: Duration) {
        let sample = lost.min(WINDOW).as_nanos() * 100 * u128::from(ONE) / WINDOW.as_nanos();
        let sample = u64::try_from(sample).unwrap_or(100 * ONE);
        for (average, remains) in self.averages.iter_mut().zip(REMAINS) {
            let mut sum = *average * remains + sample * (ONE - remains);
            // Rounded up on the way up: otherwise no average would ever reach a constant share.
            if sample >= *average {
                sum += ONE - 1;
            }
            *average = sum / ONE;
        }
    }

    fn read(&self) -> StallTime {
        let [avg10, avg60, avg300] = self.averages.map(|average| {
            // Rounded down to hundredths, as the kernel shows them.
            f64::from(u32::try_from(average * 100 / ONE).unwrap_or(u32::MAX)) / 100.0
        });
        StallTime {
            avg10,
            avg60,
            avg300,
            total_us: u64::try_from(self.total.as_micros()).unwrap_or(u64::MAX),
        }
    }
}

/// A group's meter, created when a thread first stalls or works there.
#[derive(Debug)]
pub(in crate::group) struct LazyMeter(Published<Mutex<StallMeter>>);

impl Default for LazyMeter {
    fn default() -> Self {
        Self(Published::empty())
    }
}

impl LazyMeter {
    pub(in crate::group) fn change(&self, change: Change, now: Duration) {
        let make = || Box::new(Mutex::new(&STALLS, StallMeter::new()));
        let meter = self.0.get().unwrap_or_else(|| self.0.publish(make()));
        meter.lock().change(change, now);
    }

    pub(in crate::group) fn is_unused(&self) -> bool {
        self.0.get().is_none()
    }

    pub(in crate::group) fn read(&self, now: Duration) -> Stalls {
        let meter = self.0.get();
        meter.map_or_else(Stalls::default, |meter| meter.lock().read(now))
    }
}

/// Converts a time of at most one window.
fn nanos(time: u128) -> Duration {
    Duration::from_nanos(u64::try_from(time).expect("a window is 2 s"))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn percents(stalls: StallTime) -> [f64; 3] {
        [stalls.avg10, stalls.avg60, stalls.avg300]
    }

    #[test]
    fn one_lost_window_moves_averages_as_in_the_kernel() {
        // Goal: the kernel's arithmetic. Method: by hand. A whole window lost: 100 % in 1/2048
        // times 2048 - 1677, 2048 - 1981, 2048 - 2034, rounded up to 1/2048: 18.11, 3.27 and 0.68
        // %. A quiet one after that leaves 1677/2048 and so on, rounded down.
        let mut meter = StallMeter::new();
        meter.change(Change::StallFromOutside, ms(4_000));
        meter.change(Change::ResumeOutside, ms(6_000));
        let after = meter.read(ms(6_000));
        assert_eq!(percents(after.some), [18.11, 3.27, 0.68]);
        assert_eq!(after.some.total_us, 2_000_000);
        assert_eq!(after.some, after.full);
        let quiet = meter.read(ms(8_000));
        assert_eq!(percents(quiet.some), [14.83, 3.16, 0.67]);
        assert_eq!(
            quiet.some.to_string(),
            "avg10=14.83 avg60=3.16 avg300=0.67 total=2000000"
        );
    }

    #[test]
    fn a_stall_that_stays_is_all_of_the_time() {
        // Goal: averages reach 100 %, and 0 again. Method: an hour of each.
        let mut meter = StallMeter::new();
        meter.change(Change::StallFromOutside, Duration::ZERO);
        let stalled = meter.read(ms(3_600_000));
        assert_eq!(percents(stalled.some), [100.0; 3]);
        assert_eq!(stalled.some.total_us, 3_600_000_000);
        meter.change(Change::ResumeOutside, ms(3_600_000));
        assert_eq!(percents(meter.read(ms(7_200_000)).some), [0.0; 3]);
    }

    #[test]
    fn a_long_rest_is_a_short_walk() {
        // Goal: `WINDOWS_MAX` windows are as good as any larger number. Method: from 100 % down and
        // from 0 up, the averages after that many windows do not change in the next.
        for is_lost in [false, true] {
            let mut lost = Lost {
                averages: [if is_lost { 0 } else { 100 * ONE }; 3],
                ..Lost::default()
            };
            let sample = if is_lost { WINDOW } else { Duration::ZERO };
            for _ in 1..WINDOWS_MAX {
                lost.sample(sample);
            }
            let before = lost.averages;
            lost.sample(sample);
            assert_eq!(before, lost.averages);
        }
        let mut meter = StallMeter::new();
        meter.change(Change::StallFromOutside, Duration::ZERO);
        let century = Duration::from_secs(3_155_760_000);
        assert_eq!(percents(meter.read(century).some), [100.0; 3]);
    }

    #[test]
    fn who_never_ticks_counts_as_who_ticks_each_millisecond() {
        // Goal: no tick is needed, and the moments at which a meter is read change nothing. Method:
        // stalls and pauses of random lengths up to five windows; a meter that is read at random
        // moments and one that is read at the end, against one state that is checked every
        // millisecond and sampled every 2 s.
        let mut rng = crate::seed::rng(1);
        let (mut often, mut once) = (StallMeter::new(), StallMeter::new());
        let mut ticks = Lost::default();
        let (mut now, mut in_window, mut total) = (0, 0, 0);
        for step in 0..300 {
            let is_stalled = step % 2 == 1;
            for _ in 0..rng.u64(..10_000) {
                now += 1;
                in_window += u64::from(is_stalled);
                total += u64::from(is_stalled);
                if now % 2_000 == 0 {
                    ticks.sample(ms(std::mem::take(&mut in_window)));
                }
                if rng.u32(..500) == 0 {
                    let pressure = often.read(ms(now));
                    assert_eq!(pressure.some.total_us, total * 1_000);
                }
            }
            let change = if is_stalled {
                Change::ResumeOutside
            } else {
                Change::StallFromOutside
            };
            often.change(change, ms(now));
            once.change(change, ms(now));
        }
        let (often, once) = (often.read(ms(now)), once.read(ms(now)));
        assert_eq!(often, once);
        assert_eq!(percents(once.some), percents(ticks.read()));
        assert_eq!(once.some.total_us, total * 1_000);
    }

    #[test]
    fn full_is_while_nobody_can_go_on() {
        // Goal: some and full by the number of threads that stall and work. Method: two workers and
        // a thread from outside, one change a second, totals by hand.
        let mut meter = StallMeter::new();
        let mut at = 0;
        let mut step = |change, some_s: u64, full_s: u64| {
            meter.change(change, ms(at * 1_000));
            at += 1;
            let seen = meter.read(ms(at * 1_000));
            assert_eq!(
                (seen.some.total_us, seen.full.total_us),
                (some_s * 1_000_000, full_s * 1_000_000),
                "after {change:?}"
            );
        };
        step(Change::StallFromOutside, 1, 1);
        step(Change::Enter, 2, 1);
        step(Change::Enter, 3, 1);
        step(Change::Stall, 4, 1);
        step(Change::Stall, 5, 2);
        step(Change::Resume, 6, 2);
        step(Change::Leave, 7, 3);
        step(Change::ResumeOutside, 8, 4);
        step(Change::Resume, 8, 4);
        step(Change::Leave, 8, 4);
        assert_eq!(meter.nr_stalled(), 0);
    }

    #[test]
    fn parents_lose_at_least_what_children_do() {
        // Goal: averages are monotone up the tree. Method: two children that stall at random times,
        // and a parent that is told of both.
        let mut rng = crate::seed::rng(2);
        let mut meters = [StallMeter::new(), StallMeter::new(), StallMeter::new()];
        let mut is_stalled = [false; 2];
        let mut now = 0;
        for _ in 0..5_000 {
            now += rng.u64(..1_500);
            let child = rng.usize(..2);
            is_stalled[child] = !is_stalled[child];
            let change = if is_stalled[child] {
                Change::StallFromOutside
            } else {
                Change::ResumeOutside
            };
            meters[child].change(change, ms(now));
            meters[2].change(change, ms(now));
            let [one, two, parent] = [0, 1, 2].map(|at| meters[at].read(ms(now)).some);
            for child in [one, two] {
                assert!(child.total_us <= parent.total_us);
                for (child, parent) in percents(child).iter().zip(percents(parent)) {
                    assert!(*child <= parent);
                }
            }
        }
    }

    #[test]
    fn a_clock_that_goes_back_and_ends_without_begins_lose_no_time() {
        // Goal: a moment before one that was seen counts as that one, an end without a begin is not
        // counted, totals never fall, and full is at most some in every number. Method: random
        // changes at times that jump back and forth, against counts of each millisecond.
        let mut rng = crate::seed::rng(3);
        let mut meter = StallMeter::new();
        let (mut latest, mut stalled, mut working) = (0_u64, 0_u64, 0_u64);
        let (mut some, mut full) = (0, 0);
        for _ in 0..3_000 {
            let now = (latest + rng.u64(..3_000)).saturating_sub(rng.u64(..2_000));
            let passed = now.saturating_sub(latest);
            some += if stalled > 0 { passed } else { 0 };
            full += if stalled > 0 && working == 0 {
                passed
            } else {
                0
            };
            latest += passed;
            let change = [
                Change::Enter,
                Change::Leave,
                Change::Stall,
                Change::Resume,
                Change::StallFromOutside,
                Change::ResumeOutside,
            ][rng.usize(..6)];
            let (stalls, ends) = (
                matches!(change, Change::Stall | Change::StallFromOutside),
                matches!(change, Change::Resume | Change::ResumeOutside),
            );
            stalled = (stalled + u64::from(stalls)).saturating_sub(ends.into());
            let begins_work = matches!(change, Change::Enter | Change::Resume);
            let ends_work = matches!(change, Change::Leave | Change::Stall);
            working = (working + u64::from(begins_work)).saturating_sub(ends_work.into());
            meter.change(change, ms(now));
            assert_eq!(meter.nr_stalled(), stalled, "{change:?}");
            let seen = meter.read(ms(now.saturating_sub(rng.u64(..5_000))));
            let totals = (seen.some.total_us, seen.full.total_us);
            assert_eq!(totals, (some * 1_000, full * 1_000), "{change:?} at {now}");
            for (some, full) in percents(seen.some).iter().zip(percents(seen.full)) {
                assert!(full <= *some && (0.0..=100.0).contains(some), "{seen:?}");
            }
        }
    }

    #[test]
    fn a_window_has_its_own_stalls_only() {
        // Goal: windows begin at multiples of 2 s, and each is credited with the stalls in it.
        // Method: the same second is lost inside one window, or half in each of two; a sample of
        // half a window, or two of a quarter, by the kernel's rule. And the text as of
        // `memory.pressure`.
        let lost = |from: u64| {
            let mut meter = StallMeter::new();
            meter.change(Change::StallFromOutside, ms(from));
            meter.change(Change::ResumeOutside, ms(from + 1_000));
            meter.read(ms(8_000))
        };
        let sampled = |windows: &[u64]| {
            let mut lost = Lost::default();
            windows.iter().for_each(|&window| lost.sample(ms(window)));
            percents(lost.read())
        };
        assert_eq!(percents(lost(4_500).some), sampled(&[0, 0, 1_000, 0]));
        assert_eq!(percents(lost(4_000).some), sampled(&[0, 0, 1_000, 0]));
        assert_eq!(percents(lost(5_000).some), sampled(&[0, 0, 1_000, 0]));
        assert_eq!(percents(lost(5_500).some), sampled(&[0, 0, 500, 500]));
        assert_ne!(sampled(&[0, 0, 500, 500]), sampled(&[0, 0, 1_000, 0]));
        let mut beside = StallMeter::new();
        beside.change(Change::Enter, Duration::ZERO);
        beside.change(Change::StallFromOutside, Duration::ZERO);
        assert_eq!(
            beside.read(ms(2_000)).to_string(),
            "some avg10=18.11 avg60=3.27 avg300=0.68 total=2000000\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=0"
        );
    }
}
