//! The lists of one group's pages, and what is counted beside them.
//!
//! A page's group changes under the locks of both lruvecs (reparenting), so whoever locks the lruvec of
//! a page's group looks again whether it still is.

use super::ListSizes;
use super::cursor::Cursor;
use super::lists::{Lists, LruList, PageType};
use super::shadow::WorkingsetClock;
use super::stats::signed;
use crate::group::{GroupNode, StatItem};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{LockClass, Mutex, MutexGuard, Rank};

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

/// One group's lists.
#[derive(Debug)]
pub(super) struct Lruvec {
    group: GroupNode,
    lists: Mutex<Lists>,
    /// Written by: holders of the lists' lock. Read by: anybody. Publishes: nothing.
    sizes: [AtomicU64; LruList::COUNT],
    /// Evictions and activations: the clock of refault distances. Begins far ahead of where the clock
    /// of the number's former group ended, so that its shadows are too old for this one.
    /// Written by: reclaimers. Read by: refaults. Publishes: nothing.
    nonresident_age: AtomicU64,
    /// Evictions so far: the progress that those who wait for room look at. Activations are none: who
    /// finds only pages that cannot be written activates them, and would take itself for progress.
    /// Written by: reclaimers. Read by: those who found nothing to reclaim. Publishes: nothing.
    nr_evicted: AtomicU64,
    /// Pages that reclaimers have taken off the lists and not yet put back or freed.
    /// Written by: reclaimers. Read by: those that found nothing to reclaim. Publishes: nothing.
    nr_isolated: AtomicU64,
    /// Pages that are being read in for the group, and paid for by it.
    /// Written by: those who read them. Read by: those that found nothing to reclaim. Publishes: nothing.
    nr_filling: AtomicU64,
    /// Where the reclaimers of this group as a target go on.
    pub(super) cursor: Mutex<Cursor>,
}

impl Lruvec {
    pub(super) fn new(group: GroupNode, clock: u64) -> Self {
        Self {
            group,
            lists: Mutex::new(&LRUVEC_LOCK, Lists::default()),
            sizes: Default::default(),
            nonresident_age: AtomicU64::new(clock),
            nr_evicted: AtomicU64::new(0),
            nr_isolated: AtomicU64::new(0),
            nr_filling: AtomicU64::new(0),
            cursor: Mutex::new(&CURSOR_LOCK, Cursor::default()),
        }
    }

    pub(super) fn group(&self) -> &GroupNode {
        &self.group
    }

    pub(super) fn is_in_subtree_of(&self, target: &GroupNode) -> bool {
        // Not by number: that of a removed target may be another group's by now.
        self.group.is_descendant_of(target)
    }

    pub(super) fn sizes(&self) -> ListSizes {
        // Relaxed: each length is of its own moment.
        ListSizes::from_lists(
            LruList::ALL.map(|list| self.sizes[list as usize].load(Ordering::Relaxed)),
        )
    }

    pub(super) fn workingset_clock(&self) -> WorkingsetClock {
        // Relaxed: a clock that is a few ticks behind judges a few pages differently.
        let now = self.nonresident_age.load(Ordering::Relaxed);
        WorkingsetClock {
            now,
            nr_active: self.sizes().of(PageType::File.active()).0,
        }
    }

    /// Pages that some reclaimer is about to put back or to free.
    pub(super) fn nr_isolated(&self) -> u64 {
        // Relaxed: who acts on it looks again.
        self.nr_isolated.load(Ordering::Relaxed)
    }

    /// Pages that will soon be on the lists, or given back.
    pub(super) fn nr_filling(&self) -> u64 {
        // Relaxed: as above.
        self.nr_filling.load(Ordering::Relaxed)
    }

    pub(super) fn note_filling(&self) {
        // Relaxed: as above.
        self.nr_filling.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_filled(&self) {
        // Relaxed: as above.
        self.nr_filling.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn note_isolated(&self, count: u64) {
        // Relaxed: as above.
        self.nr_isolated.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn note_settled(&self, count: u64) {
        // Relaxed: as above.
        self.nr_isolated.fetch_sub(count, Ordering::Relaxed);
    }

    /// Counts pages that are about to leave, and advances the clock; returns its reading before.
    pub(super) fn evict(&self, count: u64) -> u64 {
        // Relaxed: who acts on it looks again.
        self.nr_evicted.fetch_add(count, Ordering::Relaxed);
        self.age(count)
    }

    /// Advances the clock; returns its reading before.
    pub(super) fn age(&self, ticks: u64) -> u64 {
        // Relaxed: as above.
        self.nonresident_age.fetch_add(ticks, Ordering::Relaxed)
    }

    /// Evictions so far from these lists.
    pub(super) fn nr_evicted(&self) -> u64 {
        // Relaxed: as above.
        self.nr_evicted.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock()
    }

    /// Makes the lengths of lists known. Their lock is held.
    pub(super) fn note_sizes(&self, lists: &Lists) {
        for list in LruList::ALL {
            let (size, len) = (&self.sizes[list as usize], lists.len(list));
            // Relaxed, here and below: stores are in the lock's order.
            let before = size.load(Ordering::Relaxed);
            if before != len {
                size.store(len, Ordering::Relaxed);
                let change = signed(len) - signed(before);
                self.group.add_stat(LIST_ITEMS[list as usize], change);
            }
        }
    }
}
