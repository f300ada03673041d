//! Lock wait and hold times, and work per hold: always-on histograms by powers of two.
//!
//! They record three events. *Contended*: a thread found the lock held and waits; its wait is
//! always timed. *Acquired*, then *released*: the hold. Reading the clock twice costs as much as
//! moving some frames (45 ns a reading on the 2-core reference machine), so of short uncontended
//! holds one in [`SAMPLED`] is timed, drawn at random, and represents all of those; long ones are
//! all timed. Counts, and the work done, are exact.
//!
//! The lock's holder writes its recorder, so no addition needs a lock prefix. Lock-free operations
//! record the time of their visits in the same form: without waits, and with each visit as its own
//! hold.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, Instant};

use super::stat::StatCell;

/// Number of buckets, one for each power of two: as nanoseconds, up to 18 minutes.
const NR_BUCKETS: usize = 40;

/// One in this many short holds is timed. Chosen: two readings of the clock are then under 2 % of
/// the time to move a batch of 63 frames.
pub const SAMPLED: u32 = 8;

/// Holds for at least this many units of work are always timed.
const LONG: u64 = 128;

const _: () = assert!(SAMPLED.is_power_of_two());

/// Step of the sequence that samples are drawn from, 2^64 over the golden ratio: odd, so that every
/// number comes once.
const DRAW_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes a number of that sequence, so that it is independent of those before it. A multiplication
/// alone is not enough: it gives another evenly spaced sequence, and periodic work would be sampled
/// at the same point too often or never.
///
/// Source: the finaliser of `SplitMix64` (Steele, Lea and Flood, 2014).
const fn mixed(drawn: u64) -> u64 {
    let mixed = (drawn ^ drawn >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// A histogram by powers of two, with the sum of the values.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram {
    buckets: [u64; NR_BUCKETS],
    sum: u64,
}

/// The cost of one or several locks over some time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LockTimes {
    /// Wait times in nanoseconds, of contended acquisitions: exact.
    pub wait_ns: Histogram,
    /// Hold times in nanoseconds: short holds by samples.
    pub hold_ns: Histogram,
    /// Nanoseconds from requesting the lock to releasing it, wait and hold together: of the timed
    /// holds.
    pub visit_ns: Histogram,
    /// Units of work for each hold (of a zone: frames moved): exact.
    pub work: Histogram,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: [0; NR_BUCKETS],
            sum: 0,
        }
    }
}

fn bucket_of(value: u64) -> usize {
    (value.max(1).ilog2() as usize).min(NR_BUCKETS - 1)
}

impl Histogram {
    /// Returns the number of recorded values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the sum of the recorded values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the buckets that are not empty: the least value of each, and its count. The first
    /// also holds zeros, the last everything above.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let buckets = self.buckets.iter().enumerate();
        buckets.filter_map(|(at, &count)| (count > 0).then_some((1 << at, count)))
    }

    /// Returns the value below which `part` (0.0 to 1.0) of all values lie, with the values of a
    /// bucket spread evenly over it; 0 if there are none.
    ///
    /// # Accuracy
    ///
    /// In the same bucket as the exact value: less than a factor of 2 off.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate; counts and bounds are positive"
    )]
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = part.clamp(0.0, 1.0) * self.count() as f64;
        let mut below = 0.0;
        for (floor, count) in self.buckets() {
            let count = count as f64;
            if below + count >= wanted {
                return floor + (floor as f64 * ((wanted - below) / count)) as u64;
            }
            below += count;
        }
        0
    }
}

impl LockTimes {
    /// Returns how often the lock was taken.
    #[must_use]
    pub fn holds(&self) -> u64 {
        self.work.count()
    }

    /// Returns how often a thread waited for it.
    #[must_use]
    pub fn contended(&self) -> u64 {
        self.wait_ns.count()
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.buckets()).finish()
    }
}

impl fmt::Display for Histogram {
    /// Writes `512:12, 1024:9116`: least value and count of each bucket, as the kernel's tools show
    /// them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (floor, count)) in self.buckets().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}{floor}:{count}")?;
        }
        Ok(())
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Histogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Histogram", 3)?;
        fields.serialize_field("count", &self.count())?;
        fields.serialize_field("sum", &self.sum())?;
        fields.serialize_field("buckets", &self.buckets().collect::<Vec<_>>())?;
        fields.end()
    }
}

impl Add<&Self> for Histogram {
    type Output = Self;
    fn add(mut self, other: &Self) -> Self {
        for (bucket, other) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += other;
        }
        self.sum += other.sum;
        self
    }
}

impl Sub<&Self> for Histogram {
    type Output = Self;

    /// Returns the values recorded since `earlier`, another reading of the same cells.
    fn sub(mut self, earlier: &Self) -> Self {
        for (bucket, earlier) in self.buckets.iter_mut().zip(earlier.buckets) {
            *bucket = bucket.saturating_sub(earlier);
        }
        self.sum = self.sum.saturating_sub(earlier.sum);
        self
    }
}

macro_rules! each_histogram {
    ($operation:ident, $method:ident) => {
        impl $operation<&Self> for LockTimes {
            type Output = Self;
            fn $method(self, other: &Self) -> Self {
                Self {
                    wait_ns: self.wait_ns.$method(&other.wait_ns),
                    hold_ns: self.hold_ns.$method(&other.hold_ns),
                    visit_ns: self.visit_ns.$method(&other.visit_ns),
                    work: self.work.$method(&other.work),
                }
            }
        }
    };
}
each_histogram!(Add, add);
each_histogram!(Sub, sub);

/// The cells of a [`Histogram`].
#[derive(Debug)]
pub struct HistogramCells {
    buckets: [StatCell; NR_BUCKETS],
    sum: StatCell,
}

impl Default for HistogramCells {
    fn default() -> Self {
        Self::new()
    }
}

impl HistogramCells {
    fn new() -> Self {
        Self {
            buckets: std::array::from_fn(|_| StatCell::new()),
            sum: StatCell::new(),
        }
    }

    /// Records `value` `times` times; no other thread may record concurrently.
    fn record_alone(&self, value: u64, times: u64) {
        self.buckets[bucket_of(value)].add_alone(times);
        self.sum.add_alone(value.saturating_mul(times));
    }

    /// Records `value` `times` times.
    pub fn record(&self, value: u64, times: u64) {
        self.buckets[bucket_of(value)].add(times);
        self.sum.add(value.saturating_mul(times));
    }

    /// Returns the recorded values.
    pub fn read(&self) -> Histogram {
        Histogram {
            buckets: std::array::from_fn(|at| self.buckets[at].get()),
            sum: self.sum.get(),
        }
    }
}

/// Records the times of one lock. Its holder writes; any thread reads.
#[derive(Debug)]
pub struct TimeRecorder {
    wait_ns: HistogramCells,
    hold_ns: HistogramCells,
    visit_ns: HistogramCells,
    work: HistogramCells,
    /// State of the random sampling.
    draw: StatCell,
}

/// A hold in progress: its start, if it is timed, and how many holds it represents.
#[derive(Debug)]
pub struct Hold {
    since: Option<Instant>,
    stands_for: u64,
    waited_ns: u64,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for TimeRecorder {
    fn default() -> Self {
        Self::new()
    }
}

impl TimeRecorder {
    /// Returns an empty recorder.
    #[must_use]
    pub fn new() -> Self {
        Self {
            wait_ns: HistogramCells::new(),
            hold_ns: HistogramCells::new(),
            visit_ns: HistogramCells::new(),
            work: HistogramCells::new(),
            draw: StatCell::new(),
        }
    }

    /// Called by the holder after acquiring the lock, for about `work` units, after `waited`.
    #[must_use]
    pub fn acquired(&self, work: u64, waited: Option<Duration>) -> Hold {
        let waited_ns = waited.map(nanoseconds);
        if let Some(waited_ns) = waited_ns {
            self.wait_ns.record_alone(waited_ns, 1);
        }
        self.begin(work, waited_ns)
    }

    /// Records a wait for the lock, which other threads may hold as well.
    pub fn waited(&self, waited: Duration) {
        self.wait_ns.record(nanoseconds(waited), 1);
    }

    /// Called by the holder before releasing the lock, after `work` units.
    pub fn released(&self, hold: &Hold, work: u64) {
        self.work.record_alone(work, 1);
        if let Some(since) = hold.since {
            let held_ns = nanoseconds(since.elapsed());
            self.hold_ns.record_alone(held_ns, hold.stands_for);
            let visit_ns = hold.waited_ns.saturating_add(held_ns);
            self.visit_ns.record_alone(visit_ns, hold.stands_for);
        }
    }

    /// As [`acquired`](Self::acquired), for lock-free operations: other threads may record
    /// concurrently.
    #[must_use]
    pub fn visit_begins(&self, work: u64) -> Hold {
        self.begin(work, None)
    }

    /// As [`released`](Self::released), for lock-free operations: other threads may record
    /// concurrently.
    pub fn visit_ends(&self, hold: &Hold, work: u64) {
        self.work.record(work, 1);
        if let Some(since) = hold.since {
            let took_ns = nanoseconds(since.elapsed());
            self.hold_ns.record(took_ns, hold.stands_for);
            self.visit_ns.record(took_ns, hold.stands_for);
        }
    }

    fn begin(&self, work: u64, waited_ns: Option<u64>) -> Hold {
        let waited = waited_ns.is_some();
        let waited_ns = waited_ns.unwrap_or(0);
        if waited || work >= LONG {
            return Hold {
                since: Some(Instant::now()),
                stands_for: 1,
                waited_ns,
            };
        }
        // If two threads draw at once, one step is lost, which is harmless.
        self.draw.add_alone(DRAW_STEP);
        let is_drawn = mixed(self.draw.get()) >> (64 - SAMPLED.ilog2()) == 0;
        Hold {
            since: is_drawn.then(Instant::now),
            stands_for: u64::from(SAMPLED),
            waited_ns,
        }
    }

    /// Returns the recorded times.
    #[must_use]
    pub fn read(&self) -> LockTimes {
        LockTimes {
            wait_ns: self.wait_ns.read(),
            hold_ns: self.hold_ns.read(),
            visit_ns: self.visit_ns.read(),
            work: self.work.read(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn of(values: &[u64]) -> Histogram {
        let cells = HistogramCells::new();
        values
            .iter()
            .for_each(|&value| cells.record_alone(value, 1));
        cells.read()
    }

    #[test]
    fn values_fall_into_the_power_of_two_below_them() {
        let histogram = of(&[0, 1, 2, 3, 4, 1023, 1024, u64::MAX]);
        let buckets: Vec<_> = histogram.buckets().collect();
        let last = 1 << (NR_BUCKETS - 1);
        assert_eq!(
            buckets,
            [(1, 2), (2, 2), (4, 1), (512, 1), (1024, 1), (last, 1)]
        );
        assert_eq!(histogram.count(), 8);
        assert_eq!(of(&[512, 600, 5000]).to_string(), "512:2, 4096:1");
        assert_eq!(of(&[512, 600, 5000]).sum(), 6112);
    }

    #[test]
    fn quantiles_lie_in_the_bucket_of_the_exact_ones() {
        // Goal: less than a factor of 2 off. Method: every rank of random values, sorted.
        let mut rng = crate::seed::rng(5);
        let mut value = || 1 + (rng.u64(..) >> rng.u32(44..64));
        let mut values: Vec<u64> = (0..1000).map(|_| value()).collect();
        let histogram = of(&values);
        values.sort_unstable();
        for (rank, &exact) in values.iter().enumerate() {
            #[expect(clippy::cast_precision_loss, reason = "1,000 values")]
            let estimate = histogram.quantile((rank as f64 + 0.5) / values.len() as f64);
            assert!(
                estimate <= 2 * exact && exact <= 2 * estimate,
                "rank {rank}: {estimate} for {exact}"
            );
        }
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }

    #[test]
    fn windows_and_sums_cancel() {
        let recorder = TimeRecorder::new();
        let one_hold = |waited| {
            let hold = recorder.acquired(63, waited);
            recorder.released(&hold, 63);
        };
        one_hold(Some(Duration::from_nanos(700)));
        let before = recorder.read();
        one_hold(Some(Duration::from_nanos(900)));
        one_hold(None);
        let window = recorder.read() - &before;
        assert_eq!((window.contended(), window.holds()), (1, 2));
        assert_eq!((window.wait_ns.sum(), window.work.sum()), (900, 126));
        // A contended acquisition is always timed, and the visit is the sum of both parts.
        let whole = window.visit_ns.sum() - window.hold_ns.sum();
        assert_eq!(
            (whole, window.visit_ns.count()),
            (900, window.hold_ns.count())
        );
        assert_eq!(window + &before, recorder.read());
    }

    #[test]
    fn samples_stand_for_all_short_holds() {
        // Goal: periodic work is sampled evenly. Method: record which of many holds are drawn; of
        // every period up to 128, each phase must be drawn as often as its share, within five and a
        // half standard deviations.
        let recorder = TimeRecorder::new();
        let draws: Vec<bool> = (0..80_000)
            .map(|_| {
                let hold = recorder.acquired(1, None);
                recorder.released(&hold, 1);
                hold.since.is_some()
            })
            .collect();
        for period in 1..=128 {
            for phase in 0..period {
                let holds = draws.iter().skip(phase).step_by(period);
                let (count, drawn) = holds.fold((0_u32, 0_u32), |(count, drawn), &is_drawn| {
                    (count + 1, drawn + u32::from(is_drawn))
                });
                let share = 1.0 / f64::from(SAMPLED);
                let deviation = (f64::from(count) * share * (1.0 - share)).sqrt();
                let off = (f64::from(drawn) - f64::from(count) * share).abs() / deviation;
                assert!(
                    off < 5.5,
                    "phase {phase} of {period}: {drawn} of {count} drawn"
                );
            }
        }
        assert_eq!(recorder.read().holds(), 80_000);
        let long = recorder.acquired(LONG, None);
        assert_eq!((long.since.is_some(), long.stands_for), (true, 1));
    }
}
