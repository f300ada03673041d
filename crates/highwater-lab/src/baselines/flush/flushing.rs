//! The interface of statistics that are flushed, and the groups that they belong to.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use highwater::group::StatItem;
use highwater::units::CpuId;

/// Items that workloads count; a few of the library's, with the kernel's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// Anonymous pages.
    Anon,
    /// Page faults.
    Pgfault,
    /// Pages scanned by reclaim.
    Pgscan,
    /// Pages freed by reclaim.
    Pgsteal,
}

impl Item {
    /// The items that workloads count.
    pub const ALL: [Self; 4] = [Self::Anon, Self::Pgfault, Self::Pgscan, Self::Pgsteal];

    /// Returns the library's item.
    #[must_use]
    pub const fn stat(self) -> StatItem {
        match self {
            Self::Anon => StatItem::Anon,
            Self::Pgfault => StatItem::Pgfault,
            Self::Pgscan => StatItem::PgscanDirect,
            Self::Pgsteal => StatItem::PgstealDirect,
        }
    }

    /// Returns the index into [`Stats`], which is in the library's order.
    #[must_use]
    pub const fn index(self) -> usize {
        self.stat() as usize
    }
}

/// Items that each group has words for, and that each flush and read visits: as many as the
/// library's, so that all designs do the same work. The kernel has some seventy.
pub const ITEMS: usize = StatItem::ALL.len();

/// One value for each item.
pub type Stats = [i64; ITEMS];

/// A tree of groups by number, on three levels: group 0 is the root, its children follow, and then
/// their children, in the order of their parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of each group's parent; the root's is its own.
    parents: Box<[u32]>,
}

impl Shape {
    /// Returns a tree of a root, `tops` children, and `leaves` children of each of those.
    ///
    /// # Panics
    ///
    /// When there are more groups than a `u32` can number.
    #[must_use]
    pub fn of(tops: usize, leaves: usize) -> Self {
        let number = |group: usize| u32::try_from(group).expect("groups have 32-bit numbers");
        let top_parents = (0..tops).map(|_| 0);
        let leaf_parents = (0..tops * leaves).map(|leaf| number(1 + leaf / leaves));
        Self {
            parents: std::iter::once(0)
                .chain(top_parents)
                .chain(leaf_parents)
                .collect(),
        }
    }

    /// Returns the number of groups, including the root.
    #[must_use]
    pub fn nr_groups(&self) -> usize {
        self.parents.len()
    }

    /// Returns the parent of a group; `None` for the root.
    #[must_use]
    pub fn parent(&self, group: usize) -> Option<usize> {
        (group != 0).then(|| self.parents[group] as usize)
    }

    /// Returns the descendants of `top`: of the root all others, of one of its children a
    /// contiguous range, of a leaf none.
    #[must_use]
    pub fn below(&self, top: usize) -> Range<usize> {
        if top == 0 {
            return 1..self.nr_groups();
        }
        let begin = self
            .parents
            .partition_point(|&parent| (parent as usize) < top);
        let end = self
            .parents
            .partition_point(|&parent| (parent as usize) <= top);
        begin..end
    }

    /// Returns whether `group` is `top` or a descendant of it.
    #[must_use]
    pub fn is_within(&self, group: usize, top: usize) -> bool {
        std::iter::successors(Some(group), |&at| self.parent(at)).any(|at| at == top)
    }
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsRead {
    /// The values.
    pub values: Stats,
    /// Bound of each value's error at a moment of the read, if the design states one.
    pub staleness: Option<u64>,
}

/// Which group a reader flushes, and when it skips the flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushRule {
    /// Flushes the root if all groups together were updated enough; a reader skips the flush while
    /// another thread flushes. Before the patch.
    RootSkipIfBusy,
    /// Always flushes the group.
    Subtree,
    /// Flushes the group if all groups together were updated enough since the last flush of the
    /// root.
    SubtreeOneThreshold,
    /// Flushes the group if it was updated enough. The patch.
    SubtreeThresholds,
    /// Always flushes the group, one reader after the other. The first posting, without its
    /// thresholds.
    SubtreeUnderMutex,
}

/// Cost of flushing so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushTally {
    /// Flushes for readers and reclaim.
    pub flushes: u64,
    /// Periodic flushes.
    pub periodic: u64,
    /// Flushes skipped by a reader or reclaim because there were few updates.
    pub skipped_few: u64,
    /// Flushes skipped because another thread was flushing.
    pub skipped_busy: u64,
    /// Flushes served by another thread's flush that began after the reader arrived.
    pub shared: u64,
    /// CPUs visited.
    pub cpus: u64,
    /// Groups visited; if a flush goes CPU by CPU, counted on each CPU.
    pub groups: u64,
    /// Waits of a flush for another.
    pub waits: u64,
}

/// Statistics of a tree of groups, as the experiments use them.
pub trait Flushing: fmt::Debug + Send + Sync {
    /// Adds to an item of a group, as if running on `cpu`.
    fn add(&self, group: usize, cpu: CpuId, item: Item, delta: i64);

    /// Reads the statistics of a group's subtree at the time `now`.
    fn read(&self, group: usize, now: Duration) -> StatsRead;

    /// Prepares the statistics of `group` for reclaim, which is about to read them.
    fn flush_for_reclaim(&self, group: usize, now: Duration);

    /// Flushes periodically; called every [`PERIOD`].
    fn flush_periodic(&self, now: Duration);

    /// Returns the cost of flushing so far.
    fn tally(&self) -> FlushTally;
}

/// Time between periodic flushes, in all designs.
pub const PERIOD: Duration = Duration::from_secs(2);

/// Pages of updates that a CPU keeps before it counts them towards a threshold, and the threshold
/// for each CPU: the kernel's charge batch.
pub const BATCH: u64 = 64;

/// Returns the bound of an unflushed value's error under per-group thresholds, without updates
/// during a flush: the threshold, and what each CPU has not counted towards it.
#[must_use]
pub const fn staleness_max(nr_cpus: usize) -> u64 {
    (2 * BATCH - 1) * nr_cpus as u64
}
