//! Reads of statistics: tolerated and actual staleness.

use std::time::Duration;

use super::counts::{Cause, FlushCounts};
use super::group::Stat;
use super::item::{NR_ITEMS, StatItem};
use crate::sync::Arc;
use crate::sync::atomic::Ordering;

/// How stale a read may be. Beyond either number it flushes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// Maximum error of the value, in units of the item.
    pub pages: u64,
    /// Maximum time since the value was right to the last update.
    pub age: Duration,
}

impl Tolerance {
    /// No staleness at all: every update that returned before the read is counted.
    pub const EXACT: Self = Self {
        pages: 0,
        age: Duration::ZERO,
    };

    /// Any staleness: no read flushes.
    pub const ANY: Self = Self {
        pages: u64::MAX,
        age: Duration::MAX,
    };

    /// Returns the kernel's tolerance on a machine of `nr_cpus` CPUs: 64 pages for each, and 2
    /// seconds.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn as_kernel(nr_cpus: usize) -> Self {
        Self {
            pages: 64 * nr_cpus as u64,
            age: Duration::from_secs(2),
        }
    }
}

/// The result of a read of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StatRead {
    /// The value.
    pub value: i64,
    /// Upper bound on the error, in units of the item.
    pub staleness: u64,
    /// Upper bound on the time since the value was right to the last update.
    pub age: Duration,
}

/// The result of a read of all items of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    values: [i64; NR_ITEMS],
    /// Upper bound on the error of each value, in units of the item.
    pub staleness: u64,
    /// Upper bound on the time since the values were right to the last update.
    pub age: Duration,
}

impl Stats {
    /// Returns the value of `item`.
    #[must_use]
    pub fn get(&self, item: StatItem) -> i64 {
        self.values[item.index()]
    }

    /// Returns every item and its value, in the order in which they are shown.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (StatItem, i64)> {
        StatItem::ALL.iter().map(|item| (*item, self.get(*item)))
    }
}

impl Stat {
    pub(in crate::group) fn counts(&self) -> FlushCounts {
        self.shared.counts.get()
    }

    pub(in crate::group) fn flush_for(self: &Arc<Self>, cause: Cause, now: Duration) {
        if !self.flush_or_share(cause, nanos(now)) {
            self.shared.counts.flushed(cause);
        }
    }

    pub(in crate::group) fn read_one(
        self: &Arc<Self>,
        item: StatItem,
        tolerance: Tolerance,
        now: Duration,
    ) -> StatRead {
        let (staleness, age) = self.freshen(tolerance, now);
        StatRead {
            value: self.value(item.index()),
            staleness,
            age,
        }
    }

    pub(in crate::group) fn read_all(
        self: &Arc<Self>,
        tolerance: Tolerance,
        now: Duration,
    ) -> Stats {
        let (staleness, age) = self.freshen(tolerance, now);
        Stats {
            values: std::array::from_fn(|item| self.value(item)),
            staleness,
            age,
        }
    }

    /// Flushes if the tolerance requires it. Returns staleness and age of values read after this.
    fn freshen(self: &Arc<Self>, tolerance: Tolerance, now: Duration) -> (u64, Duration) {
        let bound = self.bound();
        if bound == 0 {
            return (0, Duration::ZERO);
        }
        let age = Duration::from_nanos(nanos(now).saturating_sub(self.covered_at()));
        if bound <= tolerance.pages && age <= tolerance.age {
            self.shared.counts.skipped.add(1);
            return (bound, age);
        }
        self.flush_for(Cause::Read, now);
        (0, Duration::ZERO)
    }

    /// Returns the time of the newest flush that included this group.
    fn covered_at(&self) -> u64 {
        // Relaxed: a statistic.
        let times = self
            .chain()
            .map(|stat| stat.flushed_at.load(Ordering::Relaxed));
        times.max().unwrap_or(0)
    }

    /// Returns the sum of an item.
    fn value(&self, item: usize) -> i64 {
        let sums = self.sums.get();
        // Relaxed: published by the bound, or by the flush lock.
        sums.map_or(0, |sums| sums.sum[item].load(Ordering::Relaxed))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
