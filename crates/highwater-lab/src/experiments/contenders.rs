//! The RSS counters that the experiments on the active-space cache compare, by name.

use std::sync::Arc;

use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::CpuId;

use super::lineup::{FLAT, OURS, PUBLISHED, SHARED};
use crate::baselines::{
    ActiveSpaces, Count, Design, FlatCounter, LibrarySets, Member, PerSpace, SharedCounter,
    SpaceId, TaskCache, TreeCounter, Untracked, Writer,
};

/// The kernel's split RSS counters until 6.1: a per-task cache, synced every 64 events.
pub(super) const PER_TASK: &str = "per-task cache (64)";
/// The same without a cache.
pub(super) const PER_TASK_0: &str = "per-task cache (0)";

/// The cache for the active address space, proposed in the discussion, as the library has it.
pub(super) const ACTIVE: &str = "active-space cache";

/// A design under its name.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) design: Arc<dyn Design>,
}

/// Returns every design on one machine, all at zero.
pub(super) fn contenders(topology: &Topology, spaces: usize, tasks: usize) -> Vec<Contender> {
    let cpus = topology.nr_cpus();
    let regime = Regime::Atomic;
    let flat = PerSpace::new(spaces, || FlatCounter::new(cpus, regime));
    let published = PerSpace::new(spaces, || TreeCounter::published(topology, regime));
    let designs: [(&str, Arc<dyn Design>); 7] = [
        (ACTIVE, Arc::new(ActiveSpaces::new(topology, spaces))),
        (PER_TASK, Arc::new(TaskCache::new(spaces, tasks))),
        (
            PER_TASK_0,
            Arc::new(TaskCache::with_threshold(spaces, tasks, 0)),
        ),
        (FLAT, Arc::new(flat)),
        (PUBLISHED, Arc::new(published)),
        (OURS, Arc::new(LibrarySets::new(topology, spaces))),
        (SHARED, Arc::new(PerSpace::new(spaces, SharedCounter::new))),
    ];
    let contender = |(name, design)| Contender { name, design };
    designs.map(contender).into()
}

impl Contender {
    /// `by` faults in a page of its own space.
    pub(super) fn fault(&self, by: Writer, member: Member) {
        let Some(space) = by.space else { return };
        self.design
            .add(by, Count { space, member }, 1, &mut Untracked);
        self.design.fault_handled(by, &mut Untracked);
    }

    /// `cpu` switches to `space`.
    pub(super) fn switch(&self, cpu: CpuId, space: SpaceId) {
        self.design.switch(cpu, Some(space), &mut Untracked);
    }

    /// `by` unmaps pages of its own space.
    pub(super) fn unmap(&self, by: Writer, member: Member, pages: i64) {
        let Some(space) = by.space else { return };
        let mut deltas = [0; Member::ALL.len()];
        deltas[member.index()] = -pages;
        self.design.add_vector(by, space, deltas, &mut Untracked);
    }

    /// `by` exits.
    pub(super) fn leave(&self, by: Writer) {
        self.design.leave(by, &mut Untracked);
    }
}
