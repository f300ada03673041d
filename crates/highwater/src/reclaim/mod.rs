//! Taking pages back: which ones, how many, and at whose cost.
//!
//! Every group has an lruvec: an inactive and an active list of the pages it pays for, for anonymous pages and
//! for pages of files, and a list of those that stay. A page comes in at the head of the inactive list, by way of
//! a batch of the CPU. When reclaim reaches it at the tail, a page
//! that was read since (its *young* mark) is activated, the others are evicted: one access is not a
//! reason to stay, two are. The active list is aged when it outgrows the inactive one: pages that
//! were read since go round once more, the others get their second chance on the inactive list.
//!
//! An evicted page leaves a shadow: when it comes back within a distance that a larger active
//! list would have bridged, it is taken straight into the active list (a *workingset activation*),
//! so that a working set that changes, or loops over a little more than fits, is noticed.
//!
//! One pass ([`Reclaim::shrink`]) works for a *target* group and its descendants. It scans at
//! growing *priority* (a list's length shifted right by it), in clusters, with a cursor that the
//! target's reclaimers share, so that pressure is proportional to size and nobody walks every group
//! for a few pages. Within a cluster: isolate under the lruvec's lock; then, without it, look at
//! the marks, write dirty pages back, evict; then put back what stays, and free what does not.
//!
//! Groups that use no more than their `min` or `low` are passed over (`pass.rs`).
//!
//! | file | what |
//! |---|---|
//! | `lists`, `sizes` | lists, and how long they are |
//! | `lruvec`, `table` | one group's lists, and those of every group |
//! | `batch` | pages that have just come in |
//! | `scan`, `pass`, `cursor` | one pass: how much of whom, protection, where it goes on |
//! | `shadow` | what is remembered of evicted pages |
//! | `stats` | what is counted |
//!
//! Invariant: a page is on exactly one list of the group that pays for it, in one add batch, or isolated by one
//! thread; it is in the page index all the while, and leaves both together.
//!
//! Source: the LRU, scan and workingset mechanisms of Linux as the frames-and-reclaim specification
//! describes them (sections 9, 11, 12). Deviations: active pages that were read since are rotated,
//! whatever they hold; scan priorities start where 1/2^p of the pool is about 700 pages (9.7);
//! direct reclaim writes back as well.

mod batch;
mod cursor;
mod lists;
mod lruvec;
mod pass;
pub mod policy;
mod rmap;
mod scan;
mod shadow;
mod sizes;
mod stats;
mod table;

#[cfg(all(test, not(loom)))]
mod tests;

pub use lists::{LruList, PageType};
pub use rmap::{DEBT_MAX, RmapConfig, RmapPolicy, RmapQuirks, RmapStats};
pub use scan::{Actor, Outcome, ScanControl};
pub use shadow::Refault;
pub use sizes::ListSizes;
pub use stats::{ReclaimStats, pages_item};

use std::fmt;

use crate::cache::{EvictBatch, FileId, PageCache, PageKey};
use crate::frame::FramePool;
use crate::group::{GroupNode, GroupTree};
use crate::sync::{Arc, LockEvents};
use crate::units::{Pages, Pfn};
use batch::AddBatches;
use lruvec::Lruvec;
use shadow::Shadows;
use table::{Lruvecs, list_for, note_placement};

/// Pages examined and evicted together. Chosen: as in Linux; it also spreads the cost of one heavy
/// barrier over that many pages.
const CLUSTER_MAX: u64 = 32;
const CLUSTER_MAX_LEN: usize = 32;

/// Where a page is put: at the head of a list of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The inactive list.
    Inactive,
    /// The active list.
    Active,
    /// The list of pages that stay.
    Unevictable,
}

impl Placement {
    const fn of(list: LruList) -> Self {
        match list {
            LruList::Unevictable => Self::Unevictable,
            list if list.is_active() => Self::Active,
            _ => Self::Inactive,
        }
    }
}

/// The reclaim state of one pool.
pub struct Reclaim {
    cache: Arc<PageCache>,
    pool: Arc<FramePool>,
    groups: GroupTree,
    lruvecs: Lruvecs,
    batches: AddBatches,
    shadows: Shadows,
    stats: ReclaimStats,
    rmap: RmapConfig,
    rmap_stats: RmapStats,
}

impl Reclaim {
    /// Empty lists for the pages of `cache`, which live in frames of `pool` and are charged to
    /// groups of `groups`. Pages come in on `nr_cpus` CPUs.
    #[must_use]
    pub fn new(
        cache: Arc<PageCache>,
        pool: Arc<FramePool>,
        groups: GroupTree,
        nr_cpus: usize,
    ) -> Self {
        let managed = pool.managed();
        Self {
            cache,
            pool,
            groups,
            lruvecs: Lruvecs::new(managed),
            batches: AddBatches::new(managed, nr_cpus),
            shadows: Shadows::new(managed),
            stats: ReclaimStats::default(),
            rmap: RmapConfig::default(),
            rmap_stats: RmapStats::default(),
        }
    }

    /// Makes the lists of a new group.
    pub fn add_group(&self, group: &GroupNode) {
        self.lruvecs.insert(group);
    }

    /// Moves a group's pages to its parent's lists, charges included, and forgets its lists.
    /// Pages that some thread has isolated follow when they are put back.
    pub fn reparent_group(&self, group: &GroupNode) {
        self.drain_batches();
        if let Some(child) = self.lruvecs.remove(group) {
            self.lruvecs.reparent(&self.cache, &child);
        }
    }

    /// Says that a page is being read in for a group that has paid for it: who waits for room there
    /// knows that it will come, until the result is dropped.
    #[must_use = "the page counts as on its way until this is dropped"]
    pub fn page_on_its_way(&self, group: &GroupNode) -> OnItsWay {
        let lruvec = self.lruvecs.of(group);
        lruvec.iter().for_each(|lruvec| lruvec.note_filling());
        OnItsWay(lruvec)
    }

    /// Puts a page that has just become resident on its group's lists; says whether it is one that
    /// was evicted before.
    pub fn add_page(&self, pfn: Pfn, key: PageKey) -> Option<Refault> {
        let lruvec = self.lruvecs.of_isolated(&self.cache, &self.groups, pfn);
        let refault = self.shadows.take(key).map(|shadow| {
            // The distance is counted by the clock of the group that the page was evicted from.
            match self.lruvecs.get(shadow.group) {
                Some(evicted_from) => evicted_from.workingset_clock().judge(shadow.age),
                None => Refault::Beyond,
            }
        });
        let placement = match refault {
            Some(Refault::WithinWorkingset) => Placement::Active,
            _ => Placement::Inactive,
        };
        self.stats.count_refault(lruvec.group(), refault);
        note_placement(&self.cache, pfn, placement);
        self.batches.add(pfn, |batch| self.spill(batch));
        refault
    }

    /// Puts the pages of a batch on the lists of the groups that pay for them.
    fn spill(&self, batch: &[Pfn]) {
        let mut rest = batch;
        while let Some(&first) = rest.first() {
            let lruvec = self.lruvecs.of_isolated(&self.cache, &self.groups, first);
            let group = lruvec.group().id();
            let is_its = |pfn: &&Pfn| self.cache.group_of(**pfn) == group;
            // At least the first, which has been given to an ancestor if its group was removed.
            let (run, later) = rest.split_at(rest.iter().take_while(is_its).count());
            let placed = run
                .iter()
                .map(|&pfn| (pfn, Placement::of(list_for(&self.cache, pfn))));
            self.lruvecs.add_all(&self.cache, &lruvec, placed);
            rest = later;
        }
    }

    /// Puts every page that has come in on its list; how many were not yet.
    ///
    /// # Cost
    ///
    /// The lock of each CPU's batch, one after the other.
    pub fn drain_batches(&self) -> usize {
        self.batches.drain_all(|batch| self.spill(batch))
    }

    /// Evicts every page of a file that nobody holds and that is clean; leaves no shadows. True
    /// when no page is left.
    pub fn evict_file(&self, file: FileId) -> bool {
        self.drain_batches();
        let mut batch = EvictBatch::default();
        let mut is_empty = true;
        let pages: Vec<Pfn> = self.cache.pages_of(file).collect();
        for cluster in pages.chunks(CLUSTER_MAX_LEN) {
            let isolate = |pfn: &Pfn| self.lruvecs.isolate_page(&self.cache, *pfn);
            let isolated: Vec<Pfn> = cluster.iter().copied().filter(isolate).collect();
            is_empty &= isolated.len() == cluster.len();
            self.cache.evict(&isolated, &mut batch);
            for (pfn, _) in batch.kept.drain(..) {
                is_empty = false;
                let lruvec = self.lruvecs.of_isolated(&self.cache, &self.groups, pfn);
                self.lruvecs
                    .add_all(&self.cache, &lruvec, [(pfn, Placement::Inactive)]);
            }
            for evicted in batch.evicted.drain(..) {
                let item = pages_item(evicted.key.file().kind());
                self.groups.add_stat(evicted.group, item, -1);
                self.groups.uncharge(evicted.group, Pages(1));
                self.pool.free(evicted.frame);
            }
        }
        is_empty
    }

    /// Pages on the lists of a group itself; none when it was removed. Those in [batches](Self::drain_batches) are
    /// not on them yet.
    #[must_use]
    pub fn list_sizes(&self, group: &GroupNode) -> ListSizes {
        self.lruvecs
            .of(group)
            .map_or_else(ListSizes::default, |lruvec| lruvec.sizes())
    }

    /// Pages on all lists.
    #[must_use]
    pub fn total_sizes(&self) -> ListSizes {
        self.lruvecs.sizes_of(|_| true)
    }

    /// Pages evicted from the lists of a group and its descendants so far: whether others make
    /// progress there.
    #[must_use]
    pub fn evictions_of(&self, target: &GroupNode) -> u64 {
        self.lruvecs
            .evictions_of(|lruvec| lruvec.is_in_subtree_of(target))
    }

    /// What reclaim has done so far.
    #[must_use]
    pub fn stats(&self) -> &ReclaimStats {
        &self.stats
    }

    /// Contention of the lists' lock classes so far.
    #[must_use]
    pub fn lock_events() -> [LockEvents; 2] {
        [lruvec::LRUVEC_LOCK.events(), shadow::SHADOW_LOCK.events()]
    }

    /// Pages of a cluster: 32, or less where that would be a large part of the pool.
    fn cluster(&self) -> u64 {
        (self.pool.managed().0 / 256).clamp(1, CLUSTER_MAX)
    }

    /// Checks lists against their links and the index. For quiescent moments.
    ///
    /// # Panics
    ///
    /// When a page is on no list, on two, or on one of a group that does not pay for it.
    pub fn check_invariants(&self) {
        self.drain_batches();
        let listed: Pages = self
            .lruvecs
            .live()
            .iter()
            .map(|lruvec| self.lruvecs.check_invariants(&self.cache, lruvec))
            .sum();
        let frames = (0..).map(Pfn).take(self.lruvecs.nr_frames());
        let cached = frames
            .filter(|&pfn| self.cache.key_of(pfn).is_some())
            .count();
        assert_eq!(
            listed,
            Pages(cached as u64),
            "pages on lists and pages in the index"
        );
    }
}

impl fmt::Debug for Reclaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaim")
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// A page that is being read in: it counts as on its way while this lives.
#[derive(Debug)]
pub struct OnItsWay(Option<LruvecRef>);

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.iter().for_each(|lruvec| lruvec.note_filled());
    }
}

/// The lists of the group that pays for a page.
type LruvecRef = Arc<Lruvec>;
