//! Histogram with power-of-two buckets, as the kernel's tracing tools print them: `16384 -> 32767`.
//!
//! Published histograms have such buckets. Measured times use the same ones, so that a table shows
//! both line by line.
//!
//! # Accuracy
//!
//! A quantile lies in the right bucket; within a bucket, times are assumed to be spread evenly. A
//! mean takes the middle of each bucket, unless the sum is known.

use crate::report::text::to_f64;

/// One for each bit of a time in nanoseconds; the last one holds everything longer.
pub(super) const BUCKETS: usize = 40;

/// A count of times for each bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buckets {
    counts: [u64; BUCKETS],
}

impl Default for Buckets {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
        }
    }
}

impl Buckets {
    /// Builds a histogram from counts by bucket; `first` is the lower bound of the first one, in
    /// nanoseconds.
    pub(super) fn published(first: u64, counts: &[u64]) -> Self {
        let mut buckets = Self::default();
        for (index, count) in counts.iter().enumerate() {
            buckets.counts[Self::index(first) + index] = *count;
        }
        buckets
    }

    /// Builds a histogram from pairs of a bucket's lower bound, in nanoseconds, and its count.
    pub(super) fn of(buckets: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut all = Self::default();
        for (least, count) in buckets {
            all.counts[Self::index(least)] += count;
        }
        all
    }

    /// Returns the bucket of a time.
    pub(super) fn index(ns: u64) -> usize {
        (ns.max(1).ilog2() as usize).min(BUCKETS - 1)
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (own, other) in self.counts.iter_mut().zip(other.counts) {
            *own += other;
        }
    }

    /// Returns the number of times.
    pub(super) fn calls(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the number of times in bucket `index`.
    pub(super) fn count(&self, index: usize) -> u64 {
        self.counts[index]
    }

    /// Returns the shortest and the longest time of bucket `index`, in nanoseconds.
    pub(super) fn bounds(index: usize) -> (u64, u64) {
        let low = if index == 0 { 0 } else { 1 << index };
        (low, (2 << index) - 1)
    }

    /// Returns the name of bucket `index`, as tracing tools print it.
    pub(super) fn name(index: usize) -> String {
        let (low, high) = Self::bounds(index);
        format!("{low} -> {high} ns")
    }

    /// Returns the time that `quantile` of the calls do not exceed, in microseconds; `NaN` without
    /// calls.
    pub(super) fn quantile_us(&self, quantile: f64) -> f64 {
        let wanted = quantile * to_f64(self.calls());
        let mut below = 0.0;
        for (index, count) in self.counts.iter().enumerate() {
            let count = to_f64(*count);
            if count > 0.0 && below + count >= wanted {
                let (low, high) = Self::bounds(index);
                let part = ((wanted - below) / count).clamp(0.0, 1.0);
                return (to_f64(low) + part * to_f64(high + 1 - low)) / 1e3;
            }
            below += count;
        }
        f64::NAN
    }

    /// Returns the sum of all times, in seconds, from the middles of their buckets.
    pub(super) fn sum_s(&self) -> f64 {
        let sums = self.counts.iter().enumerate().map(|(index, count)| {
            let (low, high) = Self::bounds(index);
            to_f64(*count) * to_f64(low + high + 1) / 2e9
        });
        sums.sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: buckets are those of the published histograms. Method: their bounds, and times at
    /// them.
    #[test]
    fn bounds_are_the_tracing_tools() {
        assert_eq!(Buckets::name(0), "0 -> 1 ns");
        assert_eq!(Buckets::name(1), "2 -> 3 ns");
        assert_eq!(Buckets::name(14), "16384 -> 32767 ns");
        let times = [0, 1, 2, 16_383, 16_384, 32_767, 32_768, u64::MAX];
        let buckets = Buckets::of(times.into_iter().map(|ns| (ns, 1)));
        let counts = [0, 1, 13, 14, 15, BUCKETS - 1].map(|index| buckets.count(index));
        assert_eq!(counts, [2, 1, 1, 2, 1, 1]);
        assert_eq!(buckets.calls(), 8);
    }

    /// Goal: quantiles and sums are those of the times, within their bucket. Method: known times.
    #[test]
    fn quantiles_lie_in_the_right_bucket() {
        assert!(Buckets::default().quantile_us(0.5).is_nan());
        let buckets = Buckets::published(1024, &[98, 0, 2]);
        let half = buckets.quantile_us(0.5);
        assert!((1.024..2.048).contains(&half), "{half}");
        let high = buckets.quantile_us(0.99);
        assert!((high - 6.144).abs() < 1e-9, "{high}");
        let sum = buckets.sum_s();
        assert!(
            (sum - (98.0 * 1536e-9 + 2.0 * 6144e-9)).abs() < 1e-12,
            "{sum}"
        );
        let mut twice = buckets.clone();
        twice.merge(&buckets);
        assert_eq!(twice.calls(), 200);
    }
}
