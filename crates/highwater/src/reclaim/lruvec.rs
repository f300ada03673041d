//! The lruvec: one group's LRU lists and their counters.
//!
//! A page's group changes under the locks of both lruvecs (reparenting), so a thread that locks the
//! lruvec of a page's group checks afterwards that it still is the page's group.

use super::LruvecRef;
use super::balance::Costs;
use super::cursor::Cursor;
use super::lists::{Lists, LruList, PageType};
use super::policy::PolicyState;
use super::sizes::ListSizes;
use super::stats::signed;
use super::transit::{Transit, note_in_hand};
use crate::group::{GroupNode, StatItem};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, LockClass, Mutex, MutexGuard, Rank};

/// Class of every lruvec's lock.
pub(super) static LRUVEC_LOCK: LockClass = LockClass::new("lruvec", Rank::Lruvec);
static CURSOR_LOCK: LockClass = LockClass::new("reclaim_cursor", Rank::ReclaimCursor);

/// The statistic of each list's length.
const LIST_ITEMS: [StatItem; LruList::COUNT] = [
    StatItem::InactiveAnon,
    StatItem::ActiveAnon,
    StatItem::InactiveFile,
    StatItem::ActiveFile,
    StatItem::Unevictable,
];

/// The group has no swappiness of its own.
const INHERITED: u64 = u64::MAX;

/// One group's lists.
#[derive(Debug)]
pub(super) struct Lruvec {
    group: GroupNode,
    /// Names these lists in shadows, as the group's number does not: it is used again.
    serial: u32,
    /// Lists of the parent.
    parent: Option<LruvecRef>,
    lists: Mutex<Lists>,
    /// Written by: holders of the lists' lock. Read by: any thread. Publishes: nothing.
    sizes: [AtomicU64; LruList::COUNT],
    /// The frames of the pages on each list. As `sizes`.
    frames: [AtomicU64; LruList::COUNT],
    /// Sums over the group and its descendants. As `sizes`.
    subtree_sizes: [AtomicU64; LruList::COUNT],
    /// Evictions for a shortage in the group, and activations in it and below it: the clock of
    /// refault distances. Starts far ahead of the last reading of the number's former group, so
    /// that the former group's shadows are too old for this one.
    /// Written by: reclaimers. Read by: refaults. Publishes: nothing.
    nonresident_age: AtomicU64,
    /// Refaults within the working set here and below, by type, and their number at the end of the
    /// last reclaim for the group.
    /// Written by: refaults; reclaimers. Read by: reclaimers. Publishes: nothing.
    nr_refaulted: [AtomicU64; 2],
    nr_refaulted_seen: [AtomicU64; 2],
    /// Recent cost of reclaim here and below, by type.
    /// Written by: reclaimers, which may overwrite each other's. Read by: reclaimers. Publishes:
    /// nothing.
    costs: [AtomicU64; 2],
    /// The group's swappiness; [`INHERITED`] if its parent's or the pool's setting applies.
    /// Written by: setters. Read by: reclaimers. Publishes: nothing.
    swappiness: AtomicU64,
    /// Evictions so far: the progress that waiting requests look at. Activations do not count: a
    /// thread that finds only pages that cannot be written activates them, and would mistake that
    /// for progress.
    /// Written by: reclaimers. Read by: threads that found nothing to reclaim. Publishes: nothing.
    nr_evicted: AtomicU64,
    /// Pages that reclaimers have isolated here and below, and not yet put back or freed, by type.
    /// Written by: reclaimers. Read by: threads that found nothing to reclaim, or many reclaimers
    /// at work. Publishes: nothing.
    nr_isolated: [AtomicU64; 2],
    /// Isolated pages that were put back or freed so far, of both types. As `nr_isolated`.
    nr_settled: AtomicU64,
    /// Pages that are charged to the group and not on a list yet.
    pub(super) transit: Arc<Transit>,
    /// Number of requests that wait for pages here or below to arrive.
    /// Written by: those. Read by: threads whose pages arrive. Publishes: nothing.
    nr_awaiting: AtomicU64,
    /// The eviction policy's state for the lists of each type.
    policy_states: [PolicyState; 2],
    /// Position of the reclaimers that have this group as their target.
    pub(super) cursor: Mutex<Cursor>,
}

impl Lruvec {
    pub(super) fn new(
        (group, serial): (GroupNode, u32),
        parent: Option<LruvecRef>,
        clock: u64,
    ) -> Self {
        Self {
            group,
            serial,
            parent,
            lists: Mutex::new(&LRUVEC_LOCK, Lists::default()),
            sizes: Default::default(),
            frames: Default::default(),
            subtree_sizes: Default::default(),
            nonresident_age: AtomicU64::new(clock),
            nr_refaulted: Default::default(),
            nr_refaulted_seen: Default::default(),
            costs: Default::default(),
            swappiness: AtomicU64::new(INHERITED),
            nr_evicted: AtomicU64::new(0),
            nr_isolated: Default::default(),
            nr_settled: AtomicU64::new(0),
            transit: Arc::default(),
            nr_awaiting: AtomicU64::new(0),
            policy_states: [
                PolicyState::starting_at(clock),
                PolicyState::starting_at(clock),
            ],
            cursor: Mutex::new(&CURSOR_LOCK, Cursor::default()),
        }
    }

    pub(super) fn group(&self) -> &GroupNode {
        &self.group
    }

    pub(super) fn serial(&self) -> u32 {
        self.serial
    }

    pub(super) fn is_in_subtree_of(&self, target: &GroupNode) -> bool {
        // Not by number: another group may have that of a removed target by now.
        self.group.is_descendant_of(target)
    }

    pub(super) fn policy_state(&self, page_type: PageType) -> &PolicyState {
        &self.policy_states[page_type as usize]
    }

    /// Returns a reading that no shadow of these lists is ahead of, on any of their clocks.
    pub(super) fn last_clock(&self) -> u64 {
        let clocks = self.policy_states.iter().map(PolicyState::clock);
        clocks.fold(self.clock(), u64::max)
    }

    /// Iterates over these lists and those of the ancestors.
    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |lruvec| lruvec.parent.as_deref())
    }

    /// Returns the lengths of the lists: the number of pages, of any size.
    pub(super) fn sizes(&self) -> ListSizes {
        lengths(&self.sizes)
    }

    /// Returns the number of frames that hold the pages of each list.
    pub(super) fn frames(&self) -> ListSizes {
        lengths(&self.frames)
    }

    /// Returns the lengths of the lists of the group and its descendants.
    pub(super) fn subtree_sizes(&self) -> ListSizes {
        lengths(&self.subtree_sizes)
    }

    pub(super) fn clock(&self) -> u64 {
        // Relaxed: a clock that is a few ticks behind judges a few pages differently.
        self.nonresident_age.load(Ordering::Relaxed)
    }

    /// Counts a refault within the working set, here and above.
    pub(super) fn note_refault(&self, page_type: PageType) {
        for lruvec in self.chain() {
            // Relaxed: as above.
            lruvec.nr_refaulted[page_type as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether pages of a type have refaulted within the working set since reclaim last
    /// ended here: a new working set.
    pub(super) fn has_new_workingset(&self, page_type: PageType) -> bool {
        let [now, seen] = [&self.nr_refaulted, &self.nr_refaulted_seen];
        // Relaxed, both: as above.
        let load = |counts: &[AtomicU64; 2]| counts[page_type as usize].load(Ordering::Relaxed);
        load(now) != load(seen)
    }

    /// Records the end of reclaim for this group.
    pub(super) fn see_refaults(&self) {
        for (now, seen) in self.nr_refaulted.iter().zip(&self.nr_refaulted_seen) {
            // Relaxed, both: as above.
            seen.store(now.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns the swappiness set on the group or the nearest ancestor.
    pub(super) fn swappiness(&self) -> Option<u64> {
        // Relaxed: a setting.
        let mut set = self.chain().map(|it| it.swappiness.load(Ordering::Relaxed));
        set.find(|swappiness| *swappiness != INHERITED)
    }

    pub(super) fn set_swappiness(&self, swappiness: Option<u64>) {
        debug_assert_ne!(swappiness, Some(INHERITED), "stands for no swappiness");
        // Relaxed: as above.
        self.swappiness
            .store(swappiness.unwrap_or(INHERITED), Ordering::Relaxed);
    }

    pub(super) fn costs(&self) -> Costs {
        // Relaxed: as above.
        let [anon, file] = self
            .costs
            .each_ref()
            .map(|cost| cost.load(Ordering::Relaxed));
        Costs { anon, file }
    }

    /// Adds to the cost of reclaim, here and above: pages that were written or refaulted, and pages
    /// that stayed.
    pub(super) fn note_cost(&self, page_type: PageType, io: u64, rotated: u64) {
        if io + rotated == 0 {
            return;
        }
        for lruvec in self.chain() {
            let pages = lruvec.subtree_sizes().evictable().0;
            let Costs { anon, file } = lruvec.costs().noting(page_type, io, rotated, pages);
            for (cost, now) in lruvec.costs.iter().zip([anon, file]) {
                // Relaxed: as above.
                cost.store(now, Ordering::Relaxed);
            }
        }
    }

    /// Returns the pages of a type that reclaimers have isolated, here and below.
    pub(super) fn nr_isolated(&self, page_type: PageType) -> u64 {
        // Acquire. Pairs with: `note_settled`: a thread that sees pages settled finds them.
        self.nr_isolated[page_type as usize].load(Ordering::Acquire)
    }

    /// Returns the isolated pages that were put back or freed so far, here and below.
    pub(super) fn nr_settled(&self) -> u64 {
        // Acquire. Pairs with: `note_settled`.
        self.nr_settled.load(Ordering::Acquire)
    }

    /// Counts a request that waits for pages here or below.
    pub(super) fn note_awaited(&self) {
        // Relaxed: `Sleepers::wait` orders it before the look.
        let before = self.nr_awaiting.fetch_add(1, Ordering::Relaxed);
        debug_assert_ne!(before, u64::MAX, "more waits have ended than began");
    }

    pub(super) fn note_not_awaited(&self) {
        // Relaxed: a spuriously woken thread looks again.
        let before = self.nr_awaiting.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "this thread was counted as waiting");
    }

    /// Returns whether a request waits for pages here or in an ancestor.
    pub(super) fn is_awaited(&self) -> bool {
        // Relaxed: `Sleepers::is_anybody_waiting` orders it after the change.
        let mut chain = self
            .chain()
            .map(|it| it.nr_awaiting.load(Ordering::Relaxed));
        chain.any(|nr_awaiting| nr_awaiting > 0)
    }

    pub(super) fn note_isolated(&self, page_type: PageType, count: u64) {
        note_in_hand(signed(count));
        for lruvec in self.chain() {
            // Relaxed: as above.
            let before = lruvec.nr_isolated[page_type as usize].fetch_add(count, Ordering::Relaxed);
            debug_assert!(
                before.checked_add(count).is_some(),
                "more pages were settled than isolated"
            );
        }
    }

    pub(super) fn note_settled(&self, page_type: PageType, count: u64) {
        note_in_hand(-signed(count));
        for lruvec in self.chain() {
            // Release. Pairs with: the load in `nr_isolated`. The pages were put back or freed
            // before it.
            let before = lruvec.nr_isolated[page_type as usize].fetch_sub(count, Ordering::Release);
            debug_assert!(before >= count, "{count} pages of {before} isolated ones");
            // Release. Pairs with: the load in `nr_settled`; as above.
            lruvec.nr_settled.fetch_add(count, Ordering::Release);
        }
    }

    /// Counts pages that are about to be evicted from these lists.
    pub(super) fn note_evicted(&self, count: u64) {
        // Relaxed: a thread that acts on it looks again.
        self.nr_evicted.fetch_add(count, Ordering::Relaxed);
    }

    /// Advances the clock, and those of the ancestors; returns its reading before.
    pub(super) fn age(&self, ticks: u64) -> u64 {
        let tick = |lruvec: &Self| {
            // Relaxed: as above.
            lruvec.nonresident_age.fetch_add(ticks, Ordering::Relaxed)
        };
        let before = tick(self);
        if ticks > 0 {
            self.chain().skip(1).for_each(|lruvec| _ = tick(lruvec));
        }
        before
    }

    /// Returns the evictions so far from these lists.
    pub(super) fn nr_evicted(&self) -> u64 {
        // Relaxed: as above.
        self.nr_evicted.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock()
    }

    /// Publishes the lengths of lists. Their lock is held.
    pub(super) fn note_sizes(&self, lists: &Lists) {
        debug_assert!(
            !lists.is_dead || lists.is_empty(),
            "the pages of a removed group are on its parent's lists"
        );
        for list in LruList::ALL {
            let (size, len) = (&self.sizes[list as usize], lists.len(list));
            // Relaxed, here and below: stores are in the lock's order.
            let before = size.load(Ordering::Relaxed);
            if before != len {
                size.store(len, Ordering::Relaxed);
                for lruvec in self.chain() {
                    let sum = &lruvec.subtree_sizes[list as usize];
                    // Relaxed: each change is added once.
                    sum.fetch_add(len.wrapping_sub(before), Ordering::Relaxed);
                }
            }
            let (size, frames) = (&self.frames[list as usize], lists.frames(list));
            let before = size.load(Ordering::Relaxed);
            if before != frames {
                size.store(frames, Ordering::Relaxed);
                // In a model, groups count one thing only.
                if !cfg!(loom) {
                    let change = signed(frames) - signed(before);
                    self.group.add_stat(LIST_ITEMS[list as usize], change);
                }
            }
        }
    }
}

fn lengths(sizes: &[AtomicU64; LruList::COUNT]) -> ListSizes {
    // Relaxed: each length is of its own moment. Sums with a change in progress may be below zero.
    let load = |list: LruList| sizes[list as usize].load(Ordering::Relaxed).cast_signed();
    ListSizes::from_lists(LruList::ALL.map(|list| load(list).max(0).cast_unsigned()))
}
