//! Taking pages back: which ones, how many, and at whose cost.
//!
//! Every group has an lruvec: an inactive and an active list of the pages it pays for, for
//! anonymous pages and for pages of files, and a list of those that stay. A page comes in at the
//! head of the inactive list, by way of a batch of the CPU. When reclaim reaches it at the tail,
//! its accesses decide ([`TwoListRules`]): it is evicted, stays for another look, or is activated.
//! By copying reads ([`Reclaim::mark_accessed`]) the second access activates it at once. Active
//! pages come back to the inactive list when that is short or a new working set arrives.
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
//! | `isolate` | pages taken off lists by name |
//! | `scan`, `pass`, `cursor` | one pass: of whom, protection, where it goes on |
//! | `balance` | how much of each list |
//! | `shrink` | a cluster of one list |
//! | `two_list`, `verdict` | what becomes of a page |
//! | `policy`, `by_policy` | the same by other policies than the two-list LRU |
//! | `rmap` | what is asked of mappings |
//! | `arrival` | pages in transit, and waits for their arrival |
//! | `throttle` | waits for other reclaimers |
//! | `shadow` | what is remembered of evicted pages |
//! | `stats` | what is counted |
//!
//! Invariant: a page is on exactly one list of the group that pays for it, in one add batch, or
//! isolated by one thread; it is in the page index all the while, and leaves both together.
//!
//! Source: the LRU, scan and workingset mechanisms of Linux as the frames-and-reclaim specification
//! describes them (sections 9, 11, 12). Deviations: scan priorities start where 1/2^p of the pool
//! is about 700 pages (9.7), and the last one does not heed accesses; direct reclaim writes back as
//! well; modules name theirs.

mod arrival;
mod balance;
mod batch;
mod by_policy;
mod cursor;
mod isolate;
mod lists;
mod lruvec;
mod pace;
mod pass;
pub mod policy;
mod rmap;
mod scan;
mod shadow;
mod shrink;
mod sizes;
mod stats;
mod table;
mod throttle;
mod two_list;
mod verdict;

#[cfg(all(test, not(loom)))]
mod access_tests;
#[cfg(all(test, not(loom)))]
mod isolate_tests;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod throttle_tests;
#[cfg(all(test, not(loom)))]
mod walk_tests;
#[cfg(all(test, not(loom)))]
mod writeback_tests;

pub use arrival::{Arrival, OnItsWay, Want};
pub use lists::{LruList, PageType};
pub use pace::Pacer;
pub use rmap::{DEBT_MAX, RmapConfig, RmapPolicy, RmapQuirks, RmapStats};
pub use scan::{Actor, Outcome, ScanControl};
pub use shadow::Refault;
pub use sizes::ListSizes;
pub use stats::{ReclaimStats, pages_item};
pub use two_list::TwoListRules;
pub use verdict::{Accesses, Verdict};

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::cache::{PageCache, PageFlag, PageKey};
use crate::frame::FramePool;
use crate::group::{GroupNode, GroupTree};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, LockEvents};
use crate::units::{Pages, Pfn};
use balance::SWAPPINESS_MAX;
use batch::{Batch, Batches};
use lruvec::Lruvec;
use policy::{EvictionPolicy, PolicyKind};
use shadow::{Shadows, WorkingsetClock};
use table::{Lruvecs, list_for, note_placement, type_of};
use throttle::Sleepers;

/// Pages examined and evicted together by who waits for memory. Chosen: as in Linux.
const CLUSTER_MAX: u64 = 32;
/// The same by the background thread, for which nobody waits. Chosen: the heavy barrier, which is
/// paid once for them and interrupts every CPU, was half of what the thread did with 32 pages (two
/// virtual CPUs, a mapped file that streams by).
const BACKGROUND_CLUSTER_MAX: u64 = 128;
const CLUSTER_MAX_LEN: usize = 32;

/// Swappiness to begin with, as in the kernel.
const SWAPPINESS: u64 = 60;

/// No swappiness is that high.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("swappiness is 0 (swapping is dear) to 200 (reading files is), not {asked}")]
pub struct SwappinessError {
    /// What was asked for.
    pub asked: u64,
}

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
    batches: Batches,
    shadows: Shadows,
    stats: ReclaimStats,
    rmap: RmapConfig,
    rmap_stats: RmapStats,
    rules: TwoListRules,
    /// Active pages for each inactive one before active pages are looked at, if not by their
    /// number.
    inactive_ratio: Option<u64>,
    /// Who is told of the work.
    pacer: Option<Arc<dyn Pacer>>,
    policy_kind: PolicyKind,
    /// Who leaves, where the two lists' rules do not say it.
    policy: Option<Box<dyn EvictionPolicy>>,
    /// Written by: whoever sets it. Read by: reclaimers. Publishes: nothing.
    swappiness: AtomicU64,
    /// Who waits for pages in others' hands, and for how long at most; and who waits for others'
    /// progress.
    settling: Sleepers,
    isolated_max: Duration,
    progress: Sleepers,
    /// Requests that wait for pages in transit.
    arrivals: Sleepers,
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
        let frames = pool.memory().pages();
        Self {
            cache,
            pool,
            groups,
            lruvecs: Lruvecs::new(frames),
            batches: Batches::new(frames, nr_cpus),
            shadows: Shadows::new(frames),
            stats: ReclaimStats::default(),
            rmap: RmapConfig::default(),
            rmap_stats: RmapStats::default(),
            rules: TwoListRules::default(),
            inactive_ratio: None,
            pacer: None,
            policy_kind: PolicyKind::TwoList,
            policy: None,
            swappiness: AtomicU64::new(SWAPPINESS),
            settling: Sleepers::default(),
            isolated_max: throttle::ISOLATED_MAX,
            progress: Sleepers::default(),
            arrivals: Sleepers::default(),
        }
    }

    /// Moves pages between lists by other rules.
    #[must_use]
    pub fn with_rules(mut self, rules: TwoListRules) -> Self {
        self.rules = rules;
        self
    }

    /// Has active pages looked at only where there are more than so many for each inactive one.
    #[must_use]
    pub fn with_inactive_ratio(mut self, ratio: Option<u64>) -> Self {
        self.inactive_ratio = ratio;
        self
    }

    /// By which rules pages move between lists.
    #[must_use]
    pub const fn rules(&self) -> TwoListRules {
        self.rules
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
            self.lruvecs.reparent(&self.cache, &self.groups, &child);
            self.note_arrival(&child);
        }
    }

    /// Puts a page that has just become resident on its group's lists; says whether it is one that
    /// was evicted before.
    pub fn add_page(&self, pfn: Pfn, key: PageKey) -> Option<Refault> {
        let lruvec = self.lruvecs.of_isolated(&self.cache, &self.groups, pfn);
        let page_type = type_of(&self.cache, pfn);
        if let Some(policy) = &self.policy {
            let refault = self.admit_by_policy(&**policy, &lruvec, pfn, key);
            if let Some(refault) = refault {
                self.note_refault(&lruvec, pfn, page_type, refault);
            }
            self.put_in_batch(pfn);
            return refault;
        }
        let refault = self.shadows.take(key).map(|shadow| {
            // The distance is counted by the clock of the group for whose want the page was
            // evicted.
            match shadow.group.and_then(|group| self.lruvecs.get(group)) {
                Some(short) => self.workingset_clock(&short, page_type).judge(shadow),
                None => Refault::Beyond,
            }
        });
        if let Some(refault) = refault {
            self.note_refault(&lruvec, pfn, page_type, refault);
        }
        note_placement(&self.cache, pfn, self.rules.admit(refault));
        self.put_in_batch(pfn);
        refault
    }

    fn put_in_batch(&self, pfn: Pfn) {
        self.batches
            .change(|batch| batch.added.push(pfn), |batch| self.spill(batch));
    }

    /// What a page that was evicted for want of memory in the group of `short` competes with when
    /// it comes back.
    fn workingset_clock(&self, short: &Lruvec, page_type: PageType) -> WorkingsetClock {
        let sizes = short.subtree_sizes();
        let sizes = match self.has_swap() {
            true => sizes,
            // Nobody could go in its place.
            false => sizes.without_anon(),
        };
        WorkingsetClock {
            now: short.clock(),
            workingset: sizes.workingset_for(page_type).0,
        }
    }

    /// Counts that a page which was evicted has come back.
    fn note_refault(&self, lruvec: &Lruvec, pfn: Pfn, page_type: PageType, refault: Refault) {
        self.stats.count_refault(lruvec.group(), page_type, refault);
        if refault == Refault::Beyond {
            return;
        }
        if self.policy.is_none() {
            lruvec.note_refault(page_type);
        }
        lruvec.age(1);
        if refault == Refault::Restored {
            self.cache.set_flag(pfn, PageFlag::Workingset);
            lruvec.note_cost(page_type, 1, 0);
        }
    }

    /// Whether anonymous pages can go anywhere.
    fn has_swap(&self) -> bool {
        // Also where swap is full: what is there and was not written since needs no more room.
        self.cache.swap().is_some()
    }

    /// Says what I/O for swap costs beside that for files, from 0 (swapping is dear) to 200
    /// (reading files is); 100 is the same.
    pub fn set_swappiness(&self, swappiness: u64) {
        // Relaxed: a setting.
        self.swappiness
            .store(swappiness.min(SWAPPINESS_MAX), Ordering::Relaxed);
    }

    /// As [`set_swappiness`](Self::set_swappiness), for a group and those below it that have none
    /// of their own; 0: they are never swapped. `None` takes the setting back.
    ///
    /// # Errors
    ///
    /// When it is above 200. Nothing has changed.
    pub fn set_group_swappiness(
        &self,
        group: &GroupNode,
        swappiness: Option<u64>,
    ) -> Result<(), SwappinessError> {
        if let Some(asked) = swappiness.filter(|asked| *asked > SWAPPINESS_MAX) {
            return Err(SwappinessError { asked });
        }
        if let Some(lruvec) = self.lruvecs.of(group) {
            lruvec.set_swappiness(swappiness);
        }
        Ok(())
    }

    /// The swappiness that a group is reclaimed by.
    #[must_use]
    pub fn swappiness_of(&self, group: &GroupNode) -> u64 {
        let lruvec = self.lruvecs.of(group);
        let own = lruvec.and_then(|lruvec| lruvec.swappiness());
        // Relaxed: a setting.
        own.unwrap_or_else(|| self.swappiness.load(Ordering::Relaxed))
    }

    /// Says that a page was accessed by a copying read, which no entry tells of: once, and it is
    /// referenced; again, and it is activated. The caller has just found the page in the frame; if
    /// it is not there any more, no harm is done.
    ///
    /// # Cost
    ///
    /// A load for a page that is active and referenced; else an atomic on the frame's flags, or the
    /// batch of the CPU.
    pub fn mark_accessed(&self, pfn: Pfn, key: PageKey) {
        let cache = &self.cache;
        if self.policy.is_some() {
            return cache.add_credit(pfn);
        }
        if !cache.set_flag(pfn, PageFlag::Referenced)
            || cache.has_flag(pfn, PageFlag::Active)
            || cache.has_flag(pfn, PageFlag::Unevictable)
        {
            return;
        }
        cache.clear_flag(pfn, PageFlag::Referenced);
        let activate = |batch: &mut Batch| match batch.added.contains(&pfn) {
            true => _ = cache.set_flag(pfn, PageFlag::Active),
            false => batch.activated.push((pfn, key)),
        };
        self.batches.change(activate, |batch| self.spill(batch));
    }

    /// Carries out what a batch says.
    fn spill(&self, batch: &Batch) {
        self.spill_added(&batch.added);
        for &(pfn, key) in &batch.activated {
            // Its group cannot be told while nothing holds the page; whoever is found is asked
            // under its lock.
            let Some(lruvec) = self.lruvecs.get(self.cache.group_of(pfn)) else {
                continue;
            };
            if self.lruvecs.activate(&self.cache, &lruvec, pfn, key) {
                self.stats.count_activated(lruvec.group(), 1);
                lruvec.age(1);
            }
        }
    }

    /// Puts pages that have come in on the lists of the groups that pay for them.
    fn spill_added(&self, batch: &[Pfn]) {
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

    /// Says that the pool manages more or fewer frames than before.
    pub fn note_managed(&self) {
        self.batches.set_frames(self.pool.managed());
    }

    /// Puts every page that has come in on its list; how many were not yet.
    ///
    /// # Cost
    ///
    /// The lock of each CPU's batch, one after the other.
    pub fn drain_batches(&self) -> usize {
        self.batches.drain_all(|batch| self.spill(batch))
    }

    /// Pages on the lists of a group itself; none when it was removed. Those in
    /// [batches](Self::drain_batches) are not on them yet.
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

    /// Pages of a type that reclaimers have taken off the lists of a group and its descendants, and
    /// are about to put back or to free.
    #[must_use]
    pub fn nr_isolated_of(&self, target: &GroupNode, page_type: PageType) -> Pages {
        let lruvec = self.lruvecs.of(target);
        Pages(lruvec.map_or(0, |lruvec| lruvec.nr_isolated(page_type)))
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

    /// Pages of a cluster, fewer where that would be a large part of the pool.
    fn cluster(&self, actor: Actor) -> u64 {
        let most = match actor {
            Actor::Direct | Actor::Polled | Actor::Requested => CLUSTER_MAX,
            Actor::Background => BACKGROUND_CLUSTER_MAX,
        };
        (self.pool.managed().0 / 256).clamp(1, most)
    }

    /// Checks lists against their links and the index. For quiescent moments.
    ///
    /// # Panics
    ///
    /// When a page is on no list, on two, or on one of a group that does not pay for it.
    pub fn check_invariants(&self) {
        self.drain_batches();
        for lruvec in self.lruvecs.live() {
            let group = lruvec.group();
            for page_type in PageType::ALL {
                let isolated = lruvec.nr_isolated(page_type);
                assert_eq!(isolated, 0, "isolated pages of {}", group.id());
            }
            let below = self.lruvecs.sizes_of(|it| it.is_in_subtree_of(group));
            assert_eq!(
                lruvec.subtree_sizes(),
                below,
                "lists of {} and below",
                group.id()
            );
        }
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

/// The lists of the group that pays for a page.
type LruvecRef = Arc<Lruvec>;
