//! The flat per-CPU counter (`percpu_counter`): one slot for each CPU, folded whole into a locked
//! total.
//!
//! ```text
//! slot of each CPU, |slot| < batch   --- reaches batch: whole slot --->   lock, count
//! ```
//!
//! The batch is twice the number of CPUs, 32 at least, so that the error of the total grows with
//! the square of the number of CPUs: `n * (batch - 1)`, which on 384 CPUs is 1150.5 MiB of pages.
//!
//! A fold takes the whole slot, not a multiple of the batch, and leaves it at zero: the next fold
//! is a full batch away, in either direction.
//!
//! Source: Linux 6.2 to 7.1, `lib/percpu_counter.c`, as `mm/` uses it for resident pages.
//! Deviation: the per-CPU words are the library's [`Cells`]. An update adds first and folds after,
//! in two steps, where the kernel disables interrupts; a thread that migrates in between subtracts
//! the amount from the slot of its new CPU. No CPU goes offline.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use highwater::counter::Accuracy;
use highwater::lab::percpu::{Added, Cells, Regime};
use highwater::units::{CpuId, Estimate};

use super::{Counter, End, Line, Traffic};

/// The batch with few CPUs.
const BATCH_MIN: i64 = 32;

/// The line that folds write.
const TOTAL: Line = Line { level: 0, index: 0 };

/// Lock and count, which the kernel keeps on one line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Total {
    lock: Mutex<()>,
    /// Written by: folding threads, under the lock. Read by: any thread. Publishes: only itself.
    count: AtomicI64,
}

/// A counter with one slot for each CPU, and a total into which the slots are folded.
#[derive(Debug)]
pub struct FlatCounter {
    cells: Cells,
    batch: i64,
    total: Total,
}

impl FlatCounter {
    /// Creates a counter at zero, with the kernel's batch for that many CPUs.
    #[must_use]
    pub fn new(nr_cpus: usize, regime: Regime) -> Self {
        Self::with_batch(nr_cpus, regime, Self::batch_for(nr_cpus))
    }

    /// Creates a counter at zero, with its own batch.
    ///
    /// # Panics
    ///
    /// When the batch is not positive.
    #[must_use]
    pub fn with_batch(nr_cpus: usize, regime: Regime, batch: i64) -> Self {
        assert!(batch > 0, "a batch of {batch}: expected at least 1");
        Self {
            cells: Cells::new(regime, nr_cpus, 1),
            batch,
            total: Total::default(),
        }
    }

    /// Returns the kernel's batch: twice the CPUs, at least 32.
    #[must_use]
    pub fn batch_for(nr_cpus: usize) -> i64 {
        i64::try_from(nr_cpus).map_or(i64::MAX, |cpus| BATCH_MIN.max(cpus.saturating_mul(2)))
    }

    /// Returns the batch.
    #[must_use]
    pub const fn batch(&self) -> i64 {
        self.batch
    }

    /// Adds `delta` on the CPU that the calling thread runs on.
    #[inline]
    pub fn add(&self, delta: i64, traffic: &mut impl Traffic) {
        let added = self.cells.add(0, delta);
        if added.new.abs() >= self.batch {
            self.fold(added, traffic);
        }
    }

    /// Moves the whole of a slot into the total.
    #[inline(never)]
    fn fold(&self, added: Added, traffic: &mut (impl Traffic + ?Sized)) {
        let cpu = CpuId::from_index(added.slot);
        let guard = self.total.lock.lock();
        // No code under the lock panics half-way.
        let _guard = guard.unwrap_or_else(PoisonError::into_inner);
        traffic.wrote(TOTAL, cpu);
        // Under the lock, so that of two threads that act as one CPU the second finds the slot
        // empty.
        let whole = self.cells.load(added.slot, 0);
        match self.cells.regime() {
            Regime::Restartable => self.cells.add(0, -whole),
            Regime::Atomic => self.cells.add_on(cpu, 0, -whole),
        };
        // Relaxed: writers hold the lock, and readers need this word alone.
        self.total.count.fetch_add(whole, Ordering::Relaxed);
    }

    /// Returns the total, which may be negative.
    fn count(&self) -> i64 {
        // Relaxed: see `Total`.
        self.total.count.load(Ordering::Relaxed)
    }
}

impl Counter for FlatCounter {
    fn lines(&self) -> Vec<usize> {
        vec![1]
    }

    fn add_on(&self, cpu: CpuId, delta: i64, traffic: &mut dyn Traffic) {
        let added = self.cells.add_on(cpu, 0, delta);
        if added.new.abs() >= self.batch {
            self.fold(added, traffic);
        }
    }

    fn approximate_sum(&self) -> Estimate<i64> {
        let Accuracy { under, over } = self.reach();
        let value = self.count();
        Estimate {
            value,
            low: value - over,
            high: value + under,
        }
    }

    fn precise_sum(&self) -> i64 {
        let _guard = self
            .total
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.count() + self.cells.precise_sum(0)
    }

    fn reach(&self) -> Accuracy {
        let slots = i64::try_from(self.cells.slots()).expect("at most 2^20 CPUs");
        let all = slots * (self.batch - 1);
        Accuracy {
            under: all,
            over: all,
        }
    }

    fn worst_fill(&self, end: End) -> Vec<(CpuId, i64)> {
        let residual = match end {
            End::Under => self.batch - 1,
            End::Over => 1 - self.batch,
        };
        let cpus = (0..self.cells.nr_cpus()).map(CpuId::from_index);
        cpus.map(|cpu| (cpu, residual)).collect()
    }

    fn bytes(&self) -> u64 {
        /// Lock, count, list and the pointer to the slots.
        const HEADER: u64 = 40;
        /// A slot is 32 bits wide.
        const SLOT: u64 = 4;
        HEADER + SLOT * self.cells.nr_cpus() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::{Ledger, TransferCosts, Untracked, tests as shared};
    use highwater::topology::Topology;

    /// Goal: a slot stays below the batch, and a fold takes all of it. Method: the batch of 32,
    /// adds of one on one CPU, then a huge page.
    #[test]
    fn a_fold_takes_the_whole_slot() {
        let flat = FlatCounter::new(2, Regime::Atomic);
        let mut ledger = Ledger::new(&Topology::flat(2), TransferCosts::default(), &flat.lines());
        for added in 1..=31 {
            flat.add_on(CpuId(1), 1, &mut ledger);
            assert_eq!((flat.count(), flat.cells.load(1, 0)), (0, added));
        }
        flat.add_on(CpuId(1), 1, &mut ledger);
        assert_eq!((flat.count(), flat.cells.load(1, 0)), (32, 0));
        flat.add_on(CpuId(1), -5, &mut ledger);
        flat.add_on(CpuId(1), 512, &mut ledger);
        assert_eq!((flat.count(), flat.cells.load(1, 0)), (539, 0));
        assert_eq!(ledger.writes_by_level(), [2]);
    }

    /// Goal: if two threads act as one CPU and both saw the slot at its batch, one folds it and the
    /// other finds nothing. Method: the second part of an addition, twice.
    #[test]
    fn a_slot_is_folded_once() {
        let flat = FlatCounter::new(2, Regime::Atomic);
        let added = flat.cells.add_on(CpuId(1), 0, 40);
        flat.fold(added, &mut Untracked);
        flat.fold(added, &mut Untracked);
        assert_eq!((flat.count(), flat.cells.load(1, 0)), (40, 0));
    }

    /// Goal: the documented bound, by number of CPUs, in pages.
    #[test]
    fn the_bound_grows_with_the_square_of_the_cpus() {
        let bound = |cpus| FlatCounter::new(cpus, Regime::Atomic).reach().under;
        assert_eq!(bound(2), 62);
        assert_eq!(bound(64), 64 * 127);
        assert_eq!(bound(384), 294_528);
        assert_eq!((bound(8192) * 4096) >> 30, 511, "just under 512 GiB");
    }

    /// Goal: nothing is lost and the bound holds under any traffic, and is reached.
    #[test]
    fn keeps_what_counters_promise() {
        for cpus in [1, 2, 3, 64, 384] {
            shared::keeps_its_promises(cpus, || Box::new(FlatCounter::new(cpus, Regime::Atomic)));
        }
    }

    /// Goal: threads that act as one CPU, and threads on their own CPUs, lose nothing.
    #[test]
    fn concurrent_adds_are_exact() {
        let here = FlatCounter::new(Topology::detect().nr_cpus(), Regime::Restartable);
        shared::adds_from_threads_are_exact(|delta| here.add(delta, &mut Untracked));
        assert_eq!(here.precise_sum(), shared::THREADS_SUM);
        let acting = FlatCounter::new(2, Regime::Atomic);
        shared::adds_from_threads_are_exact(|delta| acting.add_on(CpuId(1), delta, &mut Untracked));
        assert_eq!(acting.precise_sum(), shared::THREADS_SUM);
        assert!(acting.cells.load(1, 0).abs() < acting.batch);
    }
}
