//! The library's statistics of groups, for the flush experiments.
//!
//! Readers and reclaim tolerate the kernel's staleness: 64 pages for each CPU, and a periodic flush
//! that is a whole period late, as in the kernel's rate-limited flushes.

use std::time::Duration;

use highwater::group::{GroupNode, GroupTree, Limits, Tolerance};
use highwater::units::CpuId;

use super::{FlushTally, Flushing, ITEMS, Item, PERIOD, Shape, Stats, StatsRead};

/// Statistics of the library's own groups.
#[derive(Debug)]
pub struct LibraryStatistics {
    tree: GroupTree,
    groups: Vec<GroupNode>,
    tolerance: Tolerance,
}

impl LibraryStatistics {
    /// Wraps `groups`, by number, which are all groups of `tree`.
    ///
    /// # Panics
    ///
    /// When the first one is not the tree's root.
    #[must_use]
    pub fn of(tree: &GroupTree, groups: &[GroupNode]) -> Self {
        assert!(groups[0] == tree.root(), "group 0 is the root");
        Self {
            tree: tree.clone(),
            groups: groups.to_vec(),
            tolerance: Tolerance {
                age: 2 * PERIOD,
                ..Tolerance::as_kernel(tree.nr_cpus())
            },
        }
    }

    /// Creates new groups of `shape`.
    #[must_use]
    pub fn new(shape: &Shape, nr_cpus: usize) -> Self {
        let tree = GroupTree::new(nr_cpus);
        let groups = groups_of(&tree, shape, |_| Limits::default());
        Self::of(&tree, &groups)
    }
}

/// Creates groups of `shape` below the root of `tree`, and returns them by number; `limits` takes
/// the number of the parent.
///
/// # Panics
///
/// When the tree has groups already.
#[must_use]
pub fn groups_of(
    tree: &GroupTree,
    shape: &Shape,
    limits: impl Fn(usize) -> Limits,
) -> Vec<GroupNode> {
    let mut groups = vec![tree.root()];
    for number in 1..shape.nr_groups() {
        let parent = shape.parent(number).expect("the root alone has no parent");
        let group = groups[parent].child(&number.to_string(), limits(parent));
        groups.push(group.expect("names are new and the tree is shallow"));
    }
    groups
}

impl Flushing for LibraryStatistics {
    #[inline]
    fn add(&self, group: usize, cpu: CpuId, item: Item, delta: i64) {
        self.groups[group].at(cpu).add_stat(item.stat(), delta);
    }

    fn read(&self, group: usize, now: Duration) -> StatsRead {
        let read = self.groups[group].read_stats(self.tolerance, now);
        let mut values: Stats = [0; ITEMS];
        for (value, (_, read)) in values.iter_mut().zip(read.iter()) {
            *value = read;
        }
        StatsRead {
            values,
            staleness: Some(read.staleness),
        }
    }

    fn flush_for_reclaim(&self, group: usize, now: Duration) {
        // Reclaim needs fresh figures; reading them flushes if necessary.
        let _fresh_enough = self.groups[group].read_stat(Item::Anon.stat(), self.tolerance, now);
    }

    fn flush_periodic(&self, now: Duration) {
        self.tree.flush_periodically(now);
    }

    fn tally(&self) -> FlushTally {
        let counts = self.tree.flush_counts();
        FlushTally {
            flushes: counts.read + counts.requested,
            periodic: counts.periodic,
            skipped_few: counts.skipped,
            skipped_busy: 0,
            shared: counts.shared,
            cpus: counts.cpus_visited,
            groups: counts.groups_visited,
            waits: counts.lock_waits,
        }
    }
}
