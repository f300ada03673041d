//! One atomic shared by all CPUs: always exact, and one contended line.

use std::sync::atomic::{AtomicI64, Ordering};

use highwater::counter::Accuracy;
use highwater::units::{CpuId, Estimate};

use super::{Counter, End, Line, Traffic};

/// A counter that is one atomic word.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct SharedCounter {
    /// Written and read by any thread. Publishes only itself.
    word: AtomicI64,
}

impl SharedCounter {
    /// Creates a counter at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `delta` as if running on `cpu`.
    #[inline]
    pub fn add(&self, cpu: CpuId, delta: i64, traffic: &mut (impl Traffic + ?Sized)) {
        traffic.wrote(Line { level: 0, index: 0 }, cpu);
        // Relaxed: see `word`.
        self.word.fetch_add(delta, Ordering::Relaxed);
    }
}

impl Counter for SharedCounter {
    fn lines(&self) -> Vec<usize> {
        vec![1]
    }

    fn add_on(&self, cpu: CpuId, delta: i64, traffic: &mut dyn Traffic) {
        self.add(cpu, delta, traffic);
    }

    fn approximate_sum(&self) -> Estimate<i64> {
        Estimate::exact(self.precise_sum())
    }

    fn precise_sum(&self) -> i64 {
        // Relaxed: see `word`.
        self.word.load(Ordering::Relaxed)
    }

    fn reach(&self) -> Accuracy {
        Accuracy { under: 0, over: 0 }
    }

    fn worst_fill(&self, _end: End) -> Vec<(CpuId, i64)> {
        Vec::new()
    }

    fn bytes(&self) -> u64 {
        size_of::<AtomicI64>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::{Untracked, tests as shared};

    /// Goal: exact at every step, and from several threads.
    #[test]
    fn keeps_what_counters_promise() {
        shared::keeps_its_promises(3, || Box::new(SharedCounter::new()));
        let counter = SharedCounter::new();
        shared::adds_from_threads_are_exact(|delta| counter.add(CpuId(1), delta, &mut Untracked));
        assert_eq!(counter.precise_sum(), shared::THREADS_SUM);
    }
}
