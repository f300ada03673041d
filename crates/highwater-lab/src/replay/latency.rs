//! How long accesses take: one histogram for hits and one for misses, per thread, merged at the end.
//!
//! What is timed is the call into the cache, from entering it to having the bytes; verifying them
//! is not. Reading the clock twice is part of every figure: 20 to 50 ns on x86-64 with a usable
//! time-stamp counter, more in some virtual machines.
//!
//! # Accuracy
//!
//! Values are kept to two significant digits (at most 0.8 % off), the maximum exactly. A histogram
//! grows with the logarithm of its longest latency: about 30 KiB for one of seconds, so that a
//! thousand threads do not spoil the memory bound.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::report::to_f64;

/// Significant decimal digits of a recorded latency.
const DIGITS: u8 = 2;

/// Why no value is refused.
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
    /// 99 of 100 are not longer.
    pub p99: f64,
    /// 999 of 1,000 are not longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
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

    /// The figures; all zero when nothing was recorded.
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
    /// over two threads' histograms.
    #[test]
    fn quantiles_are_within_two_digits() {
        let mut parts = [Latencies::default(), Latencies::default()];
        for ns in 1..=100_000 {
            parts[usize::from(ns % 3 == 0)].record(Duration::from_nanos(ns));
        }
        let mut all = Latencies::default();
        for part in &parts {
            all.merge(part);
        }
        let summary = all.summary();
        assert_eq!(all.histogram.len(), 100_000);
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

    #[test]
    fn nothing_recorded_is_zero() {
        assert_eq!(Latencies::default().summary(), LatencySummary::default());
    }
}
