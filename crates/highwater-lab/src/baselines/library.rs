//! The library's counter tree, as a [`Counter`].
//!
//! The library reports how many shared nodes an update wrote, not which. A [`TreeCounter`] that
//! rounds to nearest and groups neighbours gets the same updates, and reports the nodes. It shares
//! no code with the library's tree: each update checks that both write the same number of nodes,
//! and each read that their roots agree. Not counted are the marks that the first addition on a CPU
//! leaves, once for each CPU.

use std::sync::atomic::{AtomicU64, Ordering};

use highwater::counter::{Accuracy, CounterSet, CounterTree};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::{CpuId, Estimate};

use super::tree::{Grouping, Rounding, TreeCounter};
use super::{Counter, End, Line, Traffic};

/// [`CounterTree`], and a second implementation of it that knows which nodes are written.
#[derive(Debug)]
pub struct LibraryCounter {
    tree: CounterTree,
    replica: TreeCounter,
    /// Updates and reads in which the two disagreed. Written and read by any thread; publishes
    /// nothing.
    disagreements: AtomicU64,
}

impl LibraryCounter {
    /// Creates a counter at zero, for one thread at a time: two implementations cannot be compared
    /// while both are written.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let (rounding, grouping) = (Rounding::Nearest, Grouping::Contiguous);
        Self {
            tree: CounterTree::with_regime(topology, Regime::Atomic),
            replica: TreeCounter::new(topology, Regime::Atomic, rounding, grouping),
            disagreements: AtomicU64::new(0),
        }
    }

    /// Returns how often the two implementations wrote different numbers of nodes for an update, or
    /// had different roots at a read.
    #[must_use]
    pub fn disagreements(&self) -> u64 {
        // Relaxed: one thread at a time.
        self.disagreements.load(Ordering::Relaxed)
    }

    fn agree<T: PartialEq>(&self, one: T, other: T) {
        if one != other {
            // Relaxed: one thread at a time.
            self.disagreements.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Passes writes on, and counts them.
struct Counted<'a> {
    writes: u32,
    traffic: &'a mut dyn Traffic,
}

impl Traffic for Counted<'_> {
    fn wrote(&mut self, line: Line, cpu: CpuId) {
        self.writes += 1;
        self.traffic.wrote(line, cpu);
    }
}

impl Counter for LibraryCounter {
    fn lines(&self) -> Vec<usize> {
        self.replica.lines()
    }

    fn add_on(&self, cpu: CpuId, delta: i64, traffic: &mut dyn Traffic) {
        let climb = self.tree.at(cpu).add(delta);
        let mut counted = Counted { writes: 0, traffic };
        self.replica.add_on(cpu, delta, &mut counted);
        self.agree(climb.written, counted.writes);
    }

    fn approximate_sum(&self) -> Estimate<i64> {
        let estimate = self.tree.approximate_sum();
        self.agree(estimate.value, self.replica.approximate_sum().value);
        estimate
    }

    fn precise_sum(&self) -> i64 {
        let precise = self.tree.precise_sum();
        self.agree(precise, self.replica.precise_sum());
        precise
    }

    fn reach(&self) -> Accuracy {
        self.tree.accuracy_max()
    }

    fn worst_fill(&self, end: End) -> Vec<(CpuId, i64)> {
        self.replica.worst_fill(end)
    }

    fn bytes(&self) -> u64 {
        /// Four counters of a space have their words for a CPU on one line, and each node too.
        const LINE: u64 = 64;
        const MEMBERS: u64 = 4;
        let cpus = self.replica.nr_cpus() as u64;
        let set = size_of::<CounterSet<4>>() as u64;
        (set + LINE * (cpus + self.replica.items() as u64)) / MEMBERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::{Untracked, tests as shared};

    /// Goal: nothing is lost, the bound holds and is reached, and both implementations agree.
    #[test]
    fn keeps_what_counters_promise() {
        for shape in ["1x1x1x1", "1x1x2x1", "1x1x3x1", "2x12x8x2", "1x25x5x2"] {
            let machine: Topology = shape.parse().unwrap();
            shared::keeps_its_promises(machine.nr_cpus(), || {
                Box::new(LibraryCounter::new(&machine))
            });
            let counter = LibraryCounter::new(&machine);
            let mut random = shared::rng(5);
            for _ in 0..50_000 {
                let cpu = CpuId::from_index(random.usize(..machine.nr_cpus()));
                counter.add_on(cpu, shared::delta(&mut random), &mut Untracked);
                let _ = counter.approximate_sum();
            }
            assert_eq!(counter.disagreements(), 0, "{shape}");
        }
    }
}
