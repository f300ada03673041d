//! Bulk reads of many counter sets, with prefetch.
//!
//! A set with per-CPU words keeps its sum on two lines of its own, at an address that only the set
//! knows. Read one by one, each costs a cache miss. Here the lines of later sets are prefetched.

use super::CounterSet;
use crate::units::Estimate;

/// Sets prefetched ahead. Chosen: two lines of each fill the queues of outstanding lines of current
/// processors.
const AHEAD: usize = 16;

impl<const N: usize> CounterSet<N> {
    /// Calls `visit` with the result of [`approximate_sum_of`](Self::approximate_sum_of) for each
    /// of many sets, in their order: to compare objects of which few need an exact read.
    ///
    /// # Cost
    ///
    /// The lines of a set with per-CPU words are prefetched while those before it are read, so that
    /// their latencies overlap. Measured on sets of 256 CPUs with cold caches:
    /// `highwater lab victim`.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[inline]
    pub fn for_each_sum<'a, I>(sets: I, members: &[usize], mut visit: impl FnMut(Estimate<i64>))
    where
        I: IntoIterator<Item = &'a Self, IntoIter: Clone>,
    {
        let sets = sets.into_iter();
        let mut ahead = sets.clone();
        ahead.by_ref().take(AHEAD).for_each(Self::prefetch);
        for set in sets {
            if let Some(later) = ahead.next() {
                later.prefetch();
            }
            visit(set.approximate_sum_of(members));
        }
    }

    /// Returns the number of cache lines that [`approximate_sum_of`](Self::approximate_sum_of)
    /// reads, and of those that [`precise_sum_of`](Self::precise_sum_of) reads for `members`.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[cfg(feature = "lab")]
    #[must_use]
    pub fn lines_read(&self, members: &[usize]) -> [usize; 2] {
        const LINE: usize = 64;
        members.iter().for_each(|&member| {
            self.checked(member);
        });
        let own = size_of::<Self>() / LINE;
        match self.trees.get() {
            Some(trees) => trees.lines_read(members).map(|lines| own + lines),
            None => [own, own],
        }
    }

    #[inline]
    fn prefetch(&self) {
        self.trees.prefetch();
    }
}

#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::counter::Layout;
    use crate::percpu::Regime;
    use crate::topology::Topology;
    use crate::units::CpuId;

    #[test]
    fn many_sets_are_read_as_each_one_is() {
        // Goal: every set once, in order, as if read alone. Method: none, fewer and more sets than
        // are prefetched, on one CPU and on several.
        let mut random = crate::seed::rng(4);
        let layout = Layout::new(&Topology::flat(64), Regime::Atomic);
        for count in [0, 1, AHEAD - 1, AHEAD, AHEAD + 1, 100] {
            let sets: Vec<_> = (0..count).map(|_| CounterSet::<3>::new(&layout)).collect();
            for _ in 0..20 * count {
                let set = random.usize(..count);
                let cpu = CpuId::from_index(random.usize(..=set % 64));
                sets[set]
                    .at(cpu)
                    .add(random.usize(..3), random.i64(-900..1000));
            }
            let alone = sets.iter().map(|set| set.approximate_sum_of(&[0, 2]));
            let mut together = Vec::new();
            CounterSet::for_each_sum(&sets, &[0, 2], |sum| together.push(sum));
            assert_eq!(together, alone.collect::<Vec<_>>());
        }
    }
}
