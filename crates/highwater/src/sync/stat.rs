//! Statistics: counters that many threads add to and no decision depends on; and sequences of
//! distinct numbers, which need no order either.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A statistics counter. Every access is relaxed, hence no `Ordering` argument; invisible to the
/// model checker, because nothing may depend on it.
#[derive(Default)]
#[repr(transparent)]
pub struct StatCell(AtomicU64);

impl StatCell {
    /// Creates a counter of zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `count`; wraps.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a trouble that may recur at any rate; returns the count when it is to be reported: if
    /// it is a power of two.
    #[must_use]
    pub fn recur(&self) -> Option<u64> {
        let times = self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        times.is_power_of_two().then_some(times)
    }

    /// Adds `count` to a cell that no other thread adds to concurrently: without a lock prefix.
    pub fn add_alone(&self, count: u64) {
        let sum = self.get().wrapping_add(count);
        self.0.store(sum, Ordering::Relaxed);
    }

    /// Raises the count to `value` if it is lower: for peaks.
    pub fn raise(&self, value: u64) {
        if self.get() < value {
            self.0.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// Returns the count as last seen by this thread.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for StatCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// Returns 0, 1, 2, ...: distinct numbers for the life of the process.
#[derive(Debug, Default)]
pub struct Sequence(AtomicU64);

impl Sequence {
    /// Creates a sequence that begins at 0.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns the next number.
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}
