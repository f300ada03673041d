//! Counters as a given CPU uses them.

use super::{Climb, CounterSet, CounterTree, ONLY};
use crate::percpu::OnCpu;
use crate::units::CpuId;

impl CounterTree {
    /// Returns the counter as the given CPU uses it.
    #[inline]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn at(&self, cpu: CpuId) -> OnCpu<&Self> {
        OnCpu { of: self, cpu }
    }
}

impl<const N: usize> CounterSet<N> {
    /// Returns the counters as the given CPU uses them.
    #[inline]
    pub fn at(&self, cpu: CpuId) -> OnCpu<&Self> {
        OnCpu { of: self, cpu }
    }
}

impl OnCpu<&CounterTree> {
    /// As [`CounterTree::add`].
    ///
    /// # Cost
    ///
    /// As [`CounterTree::add`], with an atomic add to the CPU's word.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when the topology has no such CPU.
    #[inline]
    pub fn add(&self, delta: i64) -> Climb {
        self.of.trees.add_on(self.cpu, ONLY, delta)
    }
}

impl<const N: usize> OnCpu<&CounterSet<N>> {
    /// As [`CounterSet::add`].
    ///
    /// # Cost
    ///
    /// As [`CounterSet::add`], with an atomic add to the CPU's word.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when there is no such CPU or member.
    #[inline]
    pub fn add(&self, member: usize, delta: i64) -> Climb {
        let set = self.of;
        match set.trees.get() {
            Some(trees) => trees.add_on(self.cpu, set.checked(member), delta),
            None => set.add_early_on(self.cpu, member, delta),
        }
    }
}
