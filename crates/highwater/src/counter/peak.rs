//! Peak (high-water mark): the highest value that a count ever had, as an interval that never
//! falls.
//!
//! Reading exactly each time a count grows is too expensive for a peak: that is a walk for each
//! page. Nor may one number mix approximate and exact readings: the kernel's high-water mark of
//! resident memory did, and was seen to decrease. Here two marks are kept, and both only rise: a
//! value that the count certainly reached, and one that it cannot have exceeded at any moment that
//! was observed.
//!
//! **Invariant.** `low <= highest observed value <= high`, and neither mark ever decreases.
//!
//! **Protocol.** Observer: raises `high`, then `low` (Release). Reader: loads `low` (Acquire), then
//! `high`, so that it never sees a `low` above its `high`.

use crate::sync::atomic::{AtomicI64, Ordering};
use crate::units::Estimate;

/// A historical maximum.
#[derive(Debug)]
pub struct Peak {
    /// Written by: observers (maximum, Release). Read by: any thread (Acquire). Publishes: a `high`
    /// at least as high.
    low: AtomicI64,
    /// Written by: observers, before `low` (maximum, relaxed). Read by: any thread, after `low`.
    /// Publishes: nothing.
    high: AtomicI64,
}

impl Default for Peak {
    fn default() -> Self {
        Self::new()
    }
}

impl Peak {
    /// Returns the peak of a count that starts at zero.
    #[must_use]
    pub fn new() -> Self {
        Self {
            low: AtomicI64::new(0),
            high: AtomicI64::new(0),
        }
    }

    /// Records a reading.
    ///
    /// # Cost
    ///
    /// Loads of one line; it is written only if the reading raises the peak.
    pub fn observe(&self, now: Estimate<i64>) {
        self.raise(now.low, now.high);
    }

    /// Records a reading, and reads exactly if it might be a new peak.
    ///
    /// # Accuracy
    ///
    /// If every observation settles, the peak is exact: the highest of the exact readings.
    ///
    /// # Cost
    ///
    /// As [`observe`](Self::observe), and a call of `precise` while the upper end of the reading is
    /// above the peak's.
    pub fn settle(&self, now: Estimate<i64>, precise: impl FnOnce() -> i64) {
        // Relaxed: only decides whether to read exactly.
        if now.high > self.high.load(Ordering::Relaxed) {
            let precise = precise();
            self.raise(precise, precise);
        } else {
            self.raise(now.low, now.low);
        }
    }

    /// Returns the highest value so far; neither end is ever below that of an earlier call.
    ///
    /// # Cost
    ///
    /// Loads of one line.
    #[must_use]
    pub fn get(&self) -> Estimate<i64> {
        // Acquire. Pairs with the Release in `raise`: `high` is at least as new.
        let low = self.low.load(Ordering::Acquire);
        // Relaxed: ordered by the Acquire.
        let high = self.high.load(Ordering::Relaxed);
        debug_assert!(low <= high);
        Estimate {
            value: low,
            low,
            high,
        }
    }

    fn raise(&self, low: i64, high: i64) {
        // Relaxed: published by the Release below. The loads keep the line clean when nothing
        // rises.
        if self.high.load(Ordering::Relaxed) < high {
            self.high.fetch_max(high, Ordering::Relaxed);
        }
        if self.low.load(Ordering::Relaxed) < low {
            // Release. Pairs with the Acquire in `get`.
            self.low.fetch_max(low, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_peak_holds_the_highest_value_and_never_falls() {
        // Goal: the invariant. Method: a random walk seen through intervals; some readings settle.
        let mut random = crate::seed::rng(31);
        for settles in [false, true] {
            let (peak, mut now, mut highest) = (Peak::new(), 0_i64, 0_i64);
            let mut before = peak.get();
            for _ in 0..10_000 {
                now = (now + random.i64(-60..=64)).max(0);
                highest = highest.max(now);
                let reading = Estimate {
                    value: now,
                    low: now - random.i64(0..50),
                    high: now + random.i64(0..50),
                };
                if settles {
                    peak.settle(reading, || now);
                } else {
                    peak.observe(reading);
                }
                let after = peak.get();
                assert!(after.contains(highest), "{highest} {after}");
                assert!(before.low <= after.low && before.high <= after.high);
                assert!(!settles || after == Estimate::exact(highest));
                before = after;
            }
        }
    }
}
