//! Page reclaim (vmscan): LRU lists, scanning, eviction and refaults.
//!
//! Every group has an lruvec: an inactive and an active list of the pages it pays for, for
//! anonymous and for file pages, and a list of unevictable ones. A page is added at the head of the
//! list that the eviction policy ([`policy`]) names, through a per-CPU batch. When reclaim reaches
//! it at the tail, its accesses decide: it is evicted, kept for another scan, or moved to the other
//! list. The policy also decides which list reclaim works on.
//!
//! An evicted page leaves a shadow: if it refaults soon, the policy can put it on the active list
//! at once (a *workingset activation*), so that a working set that changes, or loops over slightly
//! more than fits, is noticed.
//!
//! One pass ([`Reclaim::shrink`]) works for a *target* group and its descendants. It scans at
//! increasing *priority* (a list's length shifted right by it), in clusters, with a cursor that the
//! target's reclaimers share, so that pressure is proportional to size and no reclaimer walks every
//! group for a few pages. A small group gives pages in some visits only. For each cluster: isolate
//! under the lruvec's lock; then, without it, check accesses, write dirty pages back, evict; then
//! put the remaining pages back and free the evicted ones.
//!
//! Groups within their `min` or `low` protection are skipped (`pass.rs`).
//!
//! | file | contents |
//! |---|---|
//! | `lists`, `sizes` | LRU lists and their lengths |
//! | `lruvec`, `table` | one group's lists, and those of all groups |
//! | `batch` | per-CPU add and activate batches |
//! | `isolate` | isolating pages by key |
//! | `control`, `round` | parameters, result and state of one pass |
//! | `scan`, `pass`, `cursor` | one pass: priorities, protection, shared position |
//! | `balance` | scan counts of each list |
//! | `shrink` | a cluster of one list |
//! | `policy` | eviction policies: decisions for a page |
//! | `rmap`, `contention` | access to mappings, contended rmap locks; the kernel's way (lab) |
//! | `transit`, `arrival` | pages in transit, and waits for their arrival |
//! | `throttle` | waits for other reclaimers |
//! | `recency`, `order` | order of accesses, and the account of LRU's misses |
//! | `shadow`, `refault` | shadow entries of evicted pages, and their return |
//! | `stats` | counters |
//!
//! Invariant: a page is on exactly one list of the group that pays for it, in one add batch, or
//! isolated by one thread; it is in the page index all the while, and leaves both together.
//!
//! Source: the LRU, scan and workingset mechanisms of Linux as the frames-and-reclaim specification
//! describes them (sections 9, 11, 12). Deviations: scan priorities start where 1/2^p of the pool
//! is about 700 pages (9.7), and the last one ignores accesses; direct reclaim writes back as well;
//! modules list theirs.

mod arrival;
mod balance;
mod batch;
#[cfg(feature = "lab")]
mod contention;
mod control;
mod cursor;
mod isolate;
mod lists;
mod lruvec;
mod order;
mod pass;
pub mod policy;
mod recency;
mod refault;
mod rmap;
mod round;
mod scan;
mod shadow;
mod shrink;
mod sizes;
mod stats;
mod table;
mod throttle;
mod transit;

#[cfg(all(test, not(loom)))]
mod access_tests;
#[cfg(all(test, not(loom)))]
mod balance_tests;
#[cfg(all(test, not(loom)))]
mod isolate_tests;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod pressure_tests;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(test, not(loom)))]
mod throttle_tests;
#[cfg(all(test, not(loom)))]
mod walk_tests;
#[cfg(all(test, not(loom)))]
mod writeback_tests;

pub use arrival::{Afloat, Arrival, Coming, OnItsWay, Want};
#[cfg(feature = "lab")]
pub use contention::{Pacer, RmapConfig, RmapPolicy, RmapQuirks};
pub use control::{Actor, Outcome, ScanControl};
pub use lists::{LruList, PageType, Placement};
#[cfg(feature = "lab")]
pub use recency::{LOOKS, Places, Recency, Stamp};
pub use rmap::{DEBT_MAX, RmapStats};
pub use shadow::Refault;
pub use sizes::ListSizes;
pub use stats::{ReclaimStats, pages_item};

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::cache::{PageCache, PageFlag, PageKey};
use crate::frame::FramePool;
use crate::group::{GroupNode, GroupTree};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, LockEvents};
use crate::units::{Bytes, GroupId, Pages, Pfn};
use balance::SWAPPINESS_MAX;
use batch::{Batch, Batches};
use lruvec::Lruvec;
use policy::{EvictionPolicy, TwoList};
use shadow::Shadows;
use table::{Lruvecs, list_for};
use throttle::Sleepers;

/// Pages scanned and evicted together by direct reclaim. Chosen: as in Linux.
const CLUSTER_MAX: u64 = 32;
/// The same for the background thread, which delays no request. Chosen: the heavy barrier, which is
/// paid once per cluster and interrupts every CPU, was half of the thread's work with 32 pages (two
/// virtual CPUs, a mapped file that streams by).
const BACKGROUND_CLUSTER_MAX: u64 = 128;

/// Default swappiness, as in the kernel.
const SWAPPINESS: u64 = 60;

/// A swappiness above 200.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("swappiness {asked} is out of range: give 0 (swap I/O costs more) to 200 (file I/O does)")]
pub struct SwappinessError {
    /// The requested swappiness.
    pub asked: u64,
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
    rmap_stats: RmapStats,
    #[cfg(feature = "lab")]
    rmap: RmapConfig,
    /// Receives reclaim's work.
    #[cfg(feature = "lab")]
    pacer: Option<Arc<dyn Pacer>>,
    policy: Arc<dyn EvictionPolicy>,
    /// Whether dirty pages of files are also written back apart from requests. Written by: the
    /// manager. Read by: reclaimers. Publishes: nothing.
    has_writer: AtomicBool,
    /// Written by: setters. Read by: reclaimers. Publishes: nothing.
    swappiness: AtomicU64,
    /// Threads that wait for isolated pages, the limit of that wait, and threads that wait for
    /// other reclaimers' progress.
    settling: Sleepers,
    isolated_max: Duration,
    progress: Sleepers,
    /// Requests that wait for pages in transit.
    arrivals: Sleepers,
}

impl Reclaim {
    /// Creates empty lists for the pages of `cache`, which are in frames of `pool` and charged to
    /// groups of `groups`. Pages are added on `nr_cpus` CPUs.
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
            rmap_stats: RmapStats::default(),
            #[cfg(feature = "lab")]
            rmap: RmapConfig::default(),
            #[cfg(feature = "lab")]
            pacer: None,
            policy: Arc::new(TwoList),
            has_writer: AtomicBool::new(false),
            swappiness: AtomicU64::new(SWAPPINESS),
            settling: Sleepers::default(),
            isolated_max: throttle::ISOLATED_MAX,
            progress: Sleepers::default(),
            arrivals: Sleepers::default(),
        }
    }

    /// Selects an eviction policy.
    #[must_use]
    pub fn with_eviction_policy(mut self, policy: Arc<dyn EvictionPolicy>) -> Self {
        self.lruvecs.keep_order_for(&*policy);
        self.policy = policy;
        self
    }

    /// Tells that a thread writes dirty pages of files back, or the program's calls do.
    pub fn note_writer(&self) {
        // Relaxed: a hint.
        self.has_writer.store(true, Ordering::Relaxed);
    }

    /// Returns whether the policy [ages](EvictionPolicy::ages) the active lists.
    fn ages(&self) -> bool {
        self.policy.ages()
    }

    /// Returns whether the access that brings a page in through a mapping leaves it young.
    #[must_use]
    pub fn counts_first_access(&self) -> bool {
        self.policy.counts_first_access()
    }

    /// Returns whether the copying read that brings a page in counts as an access to it, as in the
    /// kernel.
    #[must_use]
    pub fn counts_first_copy(&self) -> bool {
        self.ages()
    }

    /// Makes the lists of a group, which otherwise are made with its first page.
    pub fn add_group(&self, group: &GroupNode) {
        let _lists = self.lruvecs.of_or_new(group);
    }

    /// Moves a group's pages and their charges to its parent, and removes its lists. Isolated pages
    /// follow when they are put back.
    pub fn reparent_group(&self, group: &GroupNode) {
        // A page in a batch is charged to its group.
        if group.usage_bounds().high > Bytes::ZERO {
            self.drain_batches();
        }
        if let Some(child) = self.lruvecs.remove(group) {
            self.lruvecs.reparent(&self.cache, &self.groups, &child);
            self.note_arrival(&child);
        }
    }

    /// Puts a page in the batch of this CPU; returns whether the batch was drained.
    fn put_in_batch(&self, pfn: Pfn) -> bool {
        let mut is_drained = false;
        let spill = |batch: &Batch| {
            is_drained = true;
            self.spill(batch);
        };
        self.batches.change(|batch| batch.added.push(pfn), spill);
        is_drained
    }

    /// Returns whether anonymous pages can be swapped out.
    fn has_swap(&self) -> bool {
        // Also if swap is full: pages with a valid slot need no further one.
        self.cache.swap().is_some()
    }

    /// Sets the cost of swap I/O relative to file I/O, from 0 (swap costs more) to 200 (file I/O
    /// does); 100 is equal.
    pub fn set_swappiness(&self, swappiness: u64) {
        // Relaxed: a setting.
        self.swappiness
            .store(swappiness.min(SWAPPINESS_MAX), Ordering::Relaxed);
    }

    /// As [`set_swappiness`](Self::set_swappiness), for a group and its descendants without a
    /// setting of their own; 0 disables swap for them. `None` removes the setting.
    ///
    /// # Errors
    ///
    /// When it is above 200; the setting is unchanged.
    pub fn set_group_swappiness(
        &self,
        group: &GroupNode,
        swappiness: Option<u64>,
    ) -> Result<(), SwappinessError> {
        if let Some(asked) = swappiness.filter(|asked| *asked > SWAPPINESS_MAX) {
            return Err(SwappinessError { asked });
        }
        if let Some(lruvec) = self.lruvecs.of_or_new(group) {
            lruvec.set_swappiness(swappiness);
        }
        Ok(())
    }

    /// Returns whether pages of a group may be swapped out: not without swap, nor if its
    /// swappiness, or the one that it inherits from a group above, is 0. The group has pages.
    #[must_use]
    pub fn may_swap(&self, group: GroupId) -> bool {
        let lruvec = self.lruvecs.get(group);
        self.has_swap() && lruvec.is_none_or(|lruvec| lruvec.swappiness() != Some(0))
    }

    /// Returns the swappiness in force for a group.
    #[must_use]
    pub fn swappiness_of(&self, group: &GroupNode) -> u64 {
        // A group without lists has no setting of its own.
        let mut up = std::iter::successors(Some(group.clone()), GroupNode::parent);
        let lruvec = up.find_map(|group| self.lruvecs.of(&group));
        let own = lruvec.and_then(|lruvec| lruvec.swappiness());
        // Relaxed: a setting.
        own.unwrap_or_else(|| self.swappiness.load(Ordering::Relaxed))
    }

    /// Records an access by a copying read, which no entry records. If the policy ages the active
    /// lists, the second activates the page. The caller has just found the page in the frame; if it
    /// has been evicted since, the call has no effect.
    ///
    /// # Cost
    ///
    /// A load for a page that is active and referenced; otherwise an atomic on the frame's flags,
    /// or the batch of the CPU.
    pub fn mark_accessed(&self, pfn: Pfn, key: PageKey) {
        let cache = &self.cache;
        if !self.ages() {
            return cache.add_access(pfn);
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

    /// Drains a batch to the lists.
    fn spill(&self, batch: &Batch) {
        self.spill_added(&batch.added);
        for &(pfn, key) in &batch.activated {
            // The page is not held, so its group may change: the group found here is verified under
            // its lock.
            let Some(lruvec) = self.lruvecs.get(self.cache.group_of(pfn)) else {
                continue;
            };
            if self.lruvecs.activate(&self.cache, &lruvec, pfn, key) {
                self.stats.count_activated(lruvec.group(), 1);
                lruvec.age(1);
            }
        }
    }

    /// Adds pages to the lists of the groups that pay for them.
    fn spill_added(&self, batch: &[Pfn]) {
        let mut rest = batch;
        while let Some(&first) = rest.first() {
            let lruvec = self.lruvecs.of_isolated(&self.cache, &self.groups, first);
            let group = lruvec.group().id();
            let is_its = |pfn: &&Pfn| self.cache.group_of(**pfn) == group;
            // At least the first, which has been passed to an ancestor if its group was removed.
            let (run, later) = rest.split_at(rest.iter().take_while(is_its).count());
            let placed = run
                .iter()
                .map(|&pfn| (pfn, list_for(&self.cache, pfn).into()));
            self.lruvecs.add_all(&self.cache, &lruvec, placed);
            rest = later;
        }
    }

    /// Adapts to a change of the pool's number of frames.
    pub fn note_managed(&self) {
        self.batches.set_frames(self.pool.managed());
    }

    /// Drains every add batch to the lists; returns the number of pages added.
    ///
    /// # Cost
    ///
    /// The lock of each CPU's batch, one after the other.
    pub fn drain_batches(&self) -> usize {
        self.batches.drain_all(|batch| self.spill(batch))
    }

    /// Returns the pages, in frames, on the lists of a group itself; none if it has no lists.
    /// Excludes those in [batches](Self::drain_batches).
    #[must_use]
    pub fn list_sizes(&self, group: &GroupNode) -> ListSizes {
        self.lruvecs
            .of(group)
            .map_or_else(ListSizes::default, |lruvec| lruvec.frames())
    }

    /// Returns the pages on all lists, in frames.
    #[must_use]
    pub fn total_sizes(&self) -> ListSizes {
        self.lruvecs.frames()
    }

    /// Returns the pages evicted so far from the lists of a group and its descendants: a measure of
    /// other reclaimers' progress there.
    #[must_use]
    pub fn evictions_of(&self, target: &GroupNode) -> u64 {
        self.lruvecs
            .evictions_of(|lruvec| lruvec.is_in_subtree_of(target))
    }

    /// Returns the pages of a type that reclaimers have isolated from the lists of a group and its
    /// descendants.
    #[must_use]
    pub fn nr_isolated_of(&self, target: &GroupNode, page_type: PageType) -> Pages {
        let lruvec = self.lruvecs.of(target);
        Pages(lruvec.map_or(0, |lruvec| lruvec.nr_isolated(page_type)))
    }

    /// Returns the event counts so far.
    #[must_use]
    pub fn stats(&self) -> &ReclaimStats {
        &self.stats
    }

    /// Returns the contention of the lists' lock classes so far.
    #[must_use]
    pub fn lock_events() -> [LockEvents; 2] {
        [lruvec::LRUVEC_LOCK.events(), shadow::SHADOW_LOCK.events()]
    }

    /// Returns the pages of a cluster, fewer if that is a large part of the pool.
    fn cluster(&self, actor: Actor) -> u64 {
        let most = match actor {
            Actor::Direct | Actor::Polled | Actor::Clean | Actor::Requested => CLUSTER_MAX,
            Actor::Background => BACKGROUND_CLUSTER_MAX,
        };
        (self.pool.managed().0 / 256).clamp(1, most)
    }

    /// Checks lists against their links and the index. Requires quiescence.
    ///
    /// # Panics
    ///
    /// When a page is on no list, on two, or on a list of a group that does not pay for it.
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

/// The lists of a group.
type LruvecRef = Arc<Lruvec>;
