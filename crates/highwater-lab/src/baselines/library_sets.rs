//! The library's counters of spaces, as a [`Design`]: a set of four for each space.
//!
//! The library reports how many shared lines an addition wrote, not which: all are reported as one
//! line of the space. So the number of writes is exact, and the cost of transfers is unknown
//! ([`LibraryCounter`](super::LibraryCounter) knows it).

use std::sync::Arc;

use highwater::counter::{CounterSet, Layout};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::Estimate;

use super::{Count, Design, Footprint, Line, Member, SpaceId, Traffic, Writer};

/// One [`CounterSet`] for each space.
#[derive(Debug)]
pub struct LibrarySets {
    sets: Box<[CounterSet<4>]>,
    footprint: Footprint,
}

impl LibrarySets {
    /// Creates sets at zero for `spaces` spaces.
    #[must_use]
    pub fn new(topology: &Topology, spaces: usize) -> Self {
        let layout: Arc<Layout> = Layout::new(topology, Regime::Atomic);
        Self {
            sets: (0..spaces).map(|_| CounterSet::new(&layout)).collect(),
            // Cost of a space that one CPU uses; words for all CPUs come with the second CPU.
            footprint: Footprint {
                space_bytes: size_of::<CounterSet<4>>() as u64,
                ..Footprint::default()
            },
        }
    }

    fn set(&self, space: SpaceId) -> &CounterSet<4> {
        &self.sets[space.index()]
    }
}

impl Design for LibrarySets {
    fn lines(&self) -> Vec<usize> {
        vec![self.sets.len()]
    }

    fn add(&self, by: Writer, to: Count, delta: i64, traffic: &mut dyn Traffic) {
        let climb = self.set(to.space).at(by.cpu).add(to.member.index(), delta);
        for _ in 0..climb.written {
            let line = Line {
                level: 0,
                index: to.space.index(),
            };
            traffic.wrote(line, by.cpu);
        }
    }

    fn read(&self, of: Count) -> i64 {
        let set = self.set(of.space);
        set.approximate_sum(of.member.index()).value.max(0)
    }

    fn estimate(&self, of: Count) -> Option<Estimate<i64>> {
        Some(self.set(of.space).approximate_sum(of.member.index()))
    }

    fn precise(&self, of: Count) -> i64 {
        self.set(of.space).precise_sum(of.member.index())
    }

    fn estimate_resident(&self, space: SpaceId) -> Option<Estimate<i64>> {
        let resident = Member::RESIDENT.map(Member::index);
        Some(self.set(space).approximate_sum_of(&resident))
    }

    fn precise_resident(&self, space: SpaceId) -> i64 {
        let resident = Member::RESIDENT.map(Member::index);
        self.set(space).precise_sum_of(&resident)
    }

    fn footprint(&self) -> Footprint {
        self.footprint
    }
}

#[cfg(test)]
mod tests {
    use highwater::units::CpuId;

    use super::*;
    use crate::baselines::{Ledger, TaskId, TransferCosts};

    /// Goal: spaces and members are separate, swapped pages are not resident, and writes are
    /// counted once there are words for all CPUs. Method: one CPU, then a second one past a carry.
    #[test]
    fn sets_make_a_design() {
        let machine = Topology::flat(4);
        let design = LibrarySets::new(&machine, 2);
        let mut ledger = Ledger::new(&machine, TransferCosts::default(), &design.lines());
        let by = |cpu| Writer {
            cpu: CpuId(cpu),
            task: TaskId(0),
            space: Some(SpaceId(1)),
        };
        design.add_vector(by(0), SpaceId(1), [3, 40, 5, 7], &mut ledger);
        assert_eq!(ledger.writes(), 0, "one CPU is at home");
        assert_eq!(design.precise_resident(SpaceId(1)), 50);
        assert_eq!(
            design.estimate_resident(SpaceId(1)),
            Some(Estimate::exact(50))
        );
        let anon = Count {
            space: SpaceId(1),
            member: Member::Anon,
        };
        design.add(by(3), anon, 512, &mut ledger);
        assert!(ledger.writes() > 0, "512 pages climb");
        assert_eq!(design.precise(anon), 552);
        assert!(design.estimate(anon).unwrap().contains(552));
        assert_eq!(design.precise_resident(SpaceId(0)), 0);
    }
}
