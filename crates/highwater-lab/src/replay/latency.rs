//! Access latencies: one histogram for hits and one for misses.
//!
//! The measured time is that of the call into the cache, until it returns the bytes, without
//! verification. It includes reading the clock twice: 20 to 50 ns on x86-64 with a usable
//! time-stamp counter, more in some virtual machines.
//!
//! Protocol: a thread keeps its latest latencies in a [`Recorder`] and adds them, a buffer at a
//! time, to one of [`SHARDS`] pairs of histograms. Up to that many threads never contend; with
//! more, memory still does not grow with the number of threads.
//!
//! # Accuracy
//!
//! Values are kept to two significant digits (at most 0.8 % off), the maximum exactly.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::report::text::to_f64;

/// Significant decimal digits of a recorded latency.
const DIGITS: u8 = 2;

/// Pairs of histograms. Chosen: as many as most machines have CPUs; 1.3 MiB.
const SHARDS: usize = 32;

/// Latencies that a thread keeps before it adds them. Chosen: 4 KiB, and a lock for every 256.
const KEPT: usize = 256;

/// Ratio of neighbouring points of a [`LatencyCurve`]. Chosen: 30 points a decade.
const STEP: f64 = 1.08;

/// Outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// The page was resident.
    Hit,
    /// The page was not resident.
    Miss,
}

/// Latencies of all threads, in shards.
#[derive(Debug)]
pub(super) struct LatencyBook {
    shards: Vec<Mutex<Pair>>,
}

/// Latencies of hits and of misses.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) hits: Latencies,
    pub(super) misses: Latencies,
}

/// One thread's recorder; adds the remaining latencies when dropped.
#[derive(Debug)]
pub(super) struct Recorder<'a> {
    shard: &'a Mutex<Pair>,
    kept: Vec<(Duration, Seen)>,
}

impl LatencyBook {
    /// Creates an empty book for `threads` threads.
    pub(super) fn new(threads: usize) -> Self {
        let shards = threads.clamp(1, SHARDS);
        Self {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
        }
    }

    /// Returns the recorder of thread `index`.
    pub(super) fn recorder(&self, index: usize) -> Recorder<'_> {
        Recorder {
            shard: &self.shards[index % self.shards.len()],
            kept: Vec::with_capacity(KEPT),
        }
    }

    /// Returns all latencies together. Complete once the recorders are dropped.
    pub(super) fn total(&self) -> Pair {
        let mut total = Pair::default();
        for shard in &self.shards {
            let pair = lock(shard);
            total.hits.merge(&pair.hits);
            total.misses.merge(&pair.misses);
        }
        total
    }
}

impl Recorder<'_> {
    /// Adds one access.
    pub(super) fn record(&mut self, latency: Duration, seen: Seen) {
        self.kept.push((latency, seen));
        if self.kept.len() == KEPT {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        let mut pair = lock(self.shard);
        for (latency, seen) in self.kept.drain(..) {
            match seen {
                Seen::Hit => pair.hits.record(latency),
                Seen::Miss => pair.misses.record(latency),
            }
        }
    }
}

impl Drop for Recorder<'_> {
    fn drop(&mut self) {
        self.hand_over();
    }
}

fn lock(shard: &Mutex<Pair>) -> MutexGuard<'_, Pair> {
    // A panic ends the run without a report.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why recording a value cannot fail.
const ALL_FIT: &str = "a histogram that resizes itself takes every value";

/// Latencies of one kind of access.
#[derive(Debug)]
pub(super) struct Latencies {
    histogram: Histogram<u64>,
    longest_ns: u64,
}

/// The figures that a report shows, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// The median.
    pub p50: f64,
    /// 99 % are at most this.
    pub p99: f64,
    /// 99.9 % are at most this.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// A distribution of latencies, as the number of accesses that took at most so long.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LatencyCurve {
    /// Latencies, ascending, at most 8 % apart where accesses lie between them.
    pub at_most_us: Vec<f64>,
    /// Accesses that took at most that long; the last entry counts all.
    pub accesses: Vec<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new(DIGITS).expect("two digits are within 0..=5");
        Self {
            histogram,
            longest_ns: 0,
        }
    }
}

impl Latencies {
    /// Adds one access.
    pub(super) fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.longest_ns = self.longest_ns.max(ns);
        let recorded = self.histogram.record(ns);
        recorded.expect(ALL_FIT);
    }

    /// Adds the accesses of another thread.
    pub(super) fn merge(&mut self, other: &Self) {
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.histogram.add(&other.histogram).expect(ALL_FIT);
    }

    /// Returns the distribution; empty if nothing was recorded.
    pub(super) fn curve(&self) -> LatencyCurve {
        let mut curve = LatencyCurve::default();
        let mut below = 0;
        for bucket in self.histogram.iter_recorded() {
            below += bucket.count_since_last_iteration();
            let at_most = micros(bucket.value_iterated_to().min(self.longest_ns));
            // The last of the buckets that a step holds stands for it.
            let is_step_full = curve.at_most_us.len() < 2
                || curve
                    .at_most_us
                    .iter()
                    .rev()
                    .nth(1)
                    .is_some_and(|before| at_most > before * STEP);
            if is_step_full {
                curve.at_most_us.push(at_most);
                curve.accesses.push(below);
            } else if let (Some(last), Some(count)) =
                (curve.at_most_us.last_mut(), curve.accesses.last_mut())
            {
                (*last, *count) = (at_most, below);
            }
        }
        curve
    }

    /// Returns the figures; all zero if nothing was recorded.
    #[must_use]
    pub(super) fn summary(&self) -> LatencySummary {
        let quantile = |q| micros(self.histogram.value_at_quantile(q).min(self.longest_ns));
        LatencySummary {
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: micros(self.longest_ns),
        }
    }
}

fn micros(ns: u64) -> f64 {
    to_f64(ns) / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: quantiles of known values, within the stated accuracy. Method: 1 to 100,000 ns, split
    /// over the recorders of two threads.
    #[test]
    fn quantiles_are_within_two_digits() {
        let book = LatencyBook::new(2);
        let mut recorders = [book.recorder(0), book.recorder(1)];
        for ns in 1..=100_000 {
            recorders[usize::from(ns % 3 == 0)].record(Duration::from_nanos(ns), Seen::Hit);
        }
        recorders[0].record(Duration::from_secs(1), Seen::Miss);
        drop(recorders);
        let total = book.total();
        let summary = total.hits.summary();
        assert_eq!(total.hits.histogram.len(), 100_000);
        assert_eq!(total.misses.histogram.len(), 1);
        for (found, wanted) in [
            (summary.p50, 50.0),
            (summary.p99, 99.0),
            (summary.p999, 99.9),
        ] {
            assert!(
                (found - wanted).abs() <= wanted * 0.008,
                "{found} for {wanted}"
            );
        }
        assert!((summary.max - 100.0).abs() < 1e-9);
    }

    /// Goal: a curve rises, counts everything, and has few points. Method: latencies over six
    /// decades.
    #[test]
    fn a_curve_rises_to_the_number_of_accesses() {
        let mut latencies = Latencies::default();
        for step in 0..60_000_u64 {
            latencies.record(Duration::from_nanos(step * step / 4));
        }
        let LatencyCurve {
            at_most_us,
            accesses,
        } = latencies.curve();
        assert_eq!(at_most_us.len(), accesses.len());
        assert!(at_most_us.is_sorted() && accesses.is_sorted());
        assert_eq!(accesses.last(), Some(&60_000));
        assert!((20..300).contains(&at_most_us.len()), "{at_most_us:?}");
        for (at_most, count) in at_most_us.iter().zip(accesses) {
            // A latency of step^2 / 4 ns is reached after 2 * sqrt(ns) accesses.
            let want = 2.0 * (at_most * 1e3).sqrt();
            assert!(
                (to_f64(count) - want).abs() <= want * 0.01 + 2.0,
                "{at_most} us: {count}"
            );
        }
        assert_eq!(Latencies::default().curve(), LatencyCurve::default());
    }

    #[test]
    fn nothing_recorded_is_zero() {
        assert_eq!(Latencies::default().summary(), LatencySummary::default());
    }
}
