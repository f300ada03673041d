//! Hierarchical statistics that are summed up when somebody reads them, under five rules of when
//! that is.
//!
//! Groups count items (pages of a kind, events) with per-CPU adds; a *flush* of a group carries
//! what its subtree's CPUs have counted since the last one into its totals. One structure,
//! [`Rstat`], and what the discussion differs about as its [`FlushRule`]: who flushes, what, and
//! who may go without.
//!
//! [`Flushing`] is what an experiment needs of such statistics, so that the library's can take
//! part.
//!
//! Invariants (accounting spec 12), with no update in flight: after a flush of the root, each
//! group's totals are its own plus its children's; each delta is absorbed once at each level; a
//! group on an update list has its ancestors on theirs.

mod block;
mod library;
mod rstat;
#[cfg(test)]
mod tests;
mod threshold;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use highwater::group::StatItem;
use highwater::units::CpuId;

pub use library::{LibraryStatistics, groups_of};
pub use rstat::Rstat;

/// What workloads count; a few of the library's items, which are named as the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// Anonymous pages.
    Anon,
    /// Page faults.
    Pgfault,
    /// Pages that reclaim has looked at.
    Pgscan,
    /// Pages that reclaim has taken.
    Pgsteal,
}

impl Item {
    /// Those that workloads count.
    pub const ALL: [Self; 4] = [Self::Anon, Self::Pgfault, Self::Pgscan, Self::Pgsteal];

    /// The library's item.
    #[must_use]
    pub const fn stat(self) -> StatItem {
        match self {
            Self::Anon => StatItem::Anon,
            Self::Pgfault => StatItem::Pgfault,
            Self::Pgscan => StatItem::PgscanDirect,
            Self::Pgsteal => StatItem::PgstealDirect,
        }
    }

    /// Index into [`Stats`], which is in the library's order.
    #[must_use]
    pub const fn index(self) -> usize {
        self.stat() as usize
    }
}

/// Items that each group has words for, and that each flush and read visits: as many as the
/// library's, so that all do the same. The kernel has some seventy.
pub const ITEMS: usize = StatItem::ALL.len();

/// One value for each item.
pub type Stats = [i64; ITEMS];

/// A tree of groups by number, on three levels: group 0 is the root, those below it follow, and
/// then their children, in the order of their parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The number of each group's parent; the root has itself.
    parents: Box<[u32]>,
}

impl Shape {
    /// A root, `tops` groups below it, and `leaves` below each of those.
    ///
    /// # Panics
    ///
    /// When that is more groups than a `u32` numbers.
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

    /// Groups, the root included.
    #[must_use]
    pub fn nr_groups(&self) -> usize {
        self.parents.len()
    }

    /// The group above; none for the root.
    #[must_use]
    pub fn parent(&self, group: usize) -> Option<usize> {
        (group != 0).then(|| self.parents[group] as usize)
    }

    /// The groups below `top`: of the root all others, of one below it those in one piece, of a
    /// leaf none.
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

    /// Whether `group` is `top` or below it.
    #[must_use]
    pub fn is_within(&self, group: usize, top: usize) -> bool {
        std::iter::successors(Some(group), |&at| self.parent(at)).any(|at| at == top)
    }
}

/// What a read returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsRead {
    /// The values.
    pub values: Stats,
    /// How far each value may be from the truth at a moment of the read, where the design says so.
    pub staleness: Option<u64>,
}

/// Who flushes, what, and who may go without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushRule {
    /// The root, if all groups together were updated enough; who finds another at it goes without.
    /// Before the patch.
    RootSkipIfBusy,
    /// The group in question, each time.
    Subtree,
    /// The group in question, if all groups together were updated enough since the root was
    /// flushed.
    SubtreeOneThreshold,
    /// The group in question, if it was updated enough. The patch.
    SubtreeThresholds,
    /// The group in question, each time, one reader after the other. The first posting, without its
    /// thresholds.
    SubtreeUnderMutex,
}

/// What flushing has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushTally {
    /// Flushes for readers and reclaim.
    pub flushes: u64,
    /// Flushes because it was time.
    pub periodic: u64,
    /// Times that a reader or reclaim went without because little was updated.
    pub skipped_few: u64,
    /// Times that one went without because another was flushing.
    pub skipped_busy: u64,
    /// Times that one had what it needs from a flush of another that began after it came.
    pub shared: u64,
    /// CPUs visited.
    pub cpus: u64,
    /// Groups visited; where a flush goes CPU by CPU, on each.
    pub groups: u64,
    /// Times that a flush waited for another.
    pub waits: u64,
}

/// Statistics of a tree of groups, as an experiment uses them.
pub trait Flushing: fmt::Debug + Send + Sync {
    /// Adds to an item of a group, as if running on `cpu`.
    fn add(&self, group: usize, cpu: CpuId, item: Item, delta: i64);

    /// What is shown of a group and all below it, to one who asks at `now`.
    fn read(&self, group: usize, now: Duration) -> StatsRead;

    /// Reclaim of `group` is about to look at its numbers.
    fn flush_for_reclaim(&self, group: usize, now: Duration);

    /// To be called every [`PERIOD`].
    fn flush_periodic(&self, now: Duration);

    /// What flushing has cost so far.
    fn tally(&self) -> FlushTally;
}

/// Time between periodic flushes, in all designs.
pub const PERIOD: Duration = Duration::from_secs(2);

/// Pages of updates that a CPU keeps to itself before it counts them towards a threshold, and, for
/// each CPU, the threshold: the kernel's charge batch.
pub const BATCH: u64 = 64;

/// Most by which a value that was not flushed can be off under per-group thresholds, when none is
/// updated during a flush: the threshold, and what each CPU has not counted towards it.
#[must_use]
pub const fn staleness_max(nr_cpus: usize) -> u64 {
    (2 * BATCH - 1) * nr_cpus as u64
}
