//! The per-CPU cache of RSS counts for the active space, as a [`Design`].
//!
//! It is driven as a kernel drives it: with explicit CPUs, and with context switches of tasks. Its
//! cheap reading walks the CPUs on which the space may be active, and is exact when quiet. Its
//! interval is that of the totals alone, for readers that must not walk.
//!
//! As in [`LibrarySets`](crate::baselines::LibrarySets), all shared writes are reported as one line
//! of the space.

use std::sync::Arc;

use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::{CpuId, Estimate};

use super::{ActiveCache, ActiveSpace, ActiveStats, Switch};
use crate::baselines::{Count, Design, Footprint, Line, Member, SpaceId, Traffic, Writer};

/// An [`ActiveCache`] and its spaces.
#[derive(Debug)]
pub struct ActiveSpaces {
    // Declared first: dropping a space flushes its parked counts.
    spaces: Box<[ActiveSpace]>,
    cache: Arc<ActiveCache>,
}

impl ActiveSpaces {
    /// Returns spaces at zero, active nowhere.
    ///
    /// # Panics
    ///
    /// When the machine has more than [`ActiveCache::CPUS_MAX`] CPUs.
    #[must_use]
    pub fn new(topology: &Topology, spaces: usize) -> Self {
        let cache = ActiveCache::new(topology, Regime::Atomic);
        Self {
            spaces: (0..spaces).map(|_| cache.space()).collect(),
            cache,
        }
    }

    /// Returns the cache's counters so far.
    #[must_use]
    pub fn stats(&self) -> ActiveStats {
        self.cache.stats()
    }

    fn space(&self, space: SpaceId) -> &ActiveSpace {
        &self.spaces[space.index()]
    }

    /// Reports writes of shared lines. Spaces share one set of lines; a switch also writes for the
    /// space that it leaves.
    fn wrote(&self, written: u32, space: Option<SpaceId>, cpu: CpuId, traffic: &mut dyn Traffic) {
        let index = space.map_or(0, SpaceId::index);
        for _ in 0..written {
            traffic.wrote(Line { level: 0, index }, cpu);
        }
    }
}

impl Design for ActiveSpaces {
    fn lines(&self) -> Vec<usize> {
        vec![self.spaces.len()]
    }

    fn add(&self, by: Writer, to: Count, delta: i64, traffic: &mut dyn Traffic) {
        let space = self.space(to.space);
        let counted = space.add_on(by.cpu, to.member.index(), delta);
        self.wrote(counted.written(), Some(to.space), by.cpu, traffic);
    }

    fn switch(&self, cpu: CpuId, next: Option<SpaceId>, traffic: &mut dyn Traffic) {
        let space = next.map(|next| self.space(next));
        if let Switch::Done { written, .. } = self.cache.switch_on(cpu, space) {
            self.wrote(written, next, cpu, traffic);
        }
    }

    fn read(&self, of: Count) -> i64 {
        self.precise(of).max(0)
    }

    fn estimate(&self, of: Count) -> Option<Estimate<i64>> {
        Some(self.space(of.space).approximate_sum(of.member.index()))
    }

    fn precise(&self, of: Count) -> i64 {
        self.space(of.space).precise_sum(of.member.index()).value
    }

    fn read_resident(&self, space: SpaceId) -> i64 {
        self.precise_resident(space).max(0)
    }

    fn estimate_resident(&self, space: SpaceId) -> Option<Estimate<i64>> {
        let resident = Member::RESIDENT.map(Member::index);
        Some(self.space(space).approximate_sum_of(&resident))
    }

    /// One walk reads all members.
    fn precise_resident(&self, space: SpaceId) -> i64 {
        let resident = Member::RESIDENT.map(Member::index);
        self.space(space).precise_sum_of(&resident).value
    }

    fn footprint(&self) -> Footprint {
        /// Of a space: totals and marks. Of a CPU: tenure and words.
        const LINES: u64 = 128;
        Footprint {
            space_bytes: LINES,
            task_bytes: 0,
            machine_bytes: LINES * self.cache.nr_cpus() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::{Ledger, TaskId, TransferCosts};

    /// Goal: an add to the active space is a hit that writes no shared line, an add to another one
    /// is a miss that writes one, a switch flushes, and all is read exactly. Method: two spaces on
    /// two CPUs.
    #[test]
    fn spaces_make_a_design() {
        let machine = Topology::flat(2);
        let design = ActiveSpaces::new(&machine, 2);
        let mut ledger = Ledger::new(&machine, TransferCosts::default(), &design.lines());
        let (first, second) = (SpaceId(0), SpaceId(1));
        let by = |cpu| Writer {
            cpu: CpuId(cpu),
            task: TaskId(cpu),
            space: Some(first),
        };
        design.switch(CpuId(0), Some(first), &mut ledger);
        design.switch(CpuId(1), Some(first), &mut ledger);
        let switched = ledger.writes();
        design.add_vector(by(0), first, [1, 20, 300, 0], &mut ledger);
        design.add_vector(by(1), first, [0, 0, 0, 7], &mut ledger);
        assert_eq!(ledger.writes(), switched, "hits write no shared line");
        assert_eq!(design.read_resident(first), 28);
        design.add_vector(by(0), second, [5, 0, 0, 0], &mut ledger);
        assert_eq!(ledger.writes(), switched + 1);
        assert_eq!(design.read_resident(second), 5);
        design.switch(CpuId(0), Some(second), &mut ledger);
        assert!(ledger.writes() >= switched + 4, "three totals");
        assert_eq!(design.read_resident(first), 28);
        let estimate = design.estimate_resident(first).unwrap();
        assert_eq!((estimate.value, estimate.contains(28)), (21, true));
        let stats = design.stats();
        assert_eq!((stats.hits, stats.misses, stats.flushes), (4, 1, 1));
        // Leave nothing behind.
        design.add_vector(by(1), first, [-1, -20, -300, -7], &mut ledger);
        design.add_vector(by(1), second, [-5, 0, 0, 0], &mut ledger);
    }
}
