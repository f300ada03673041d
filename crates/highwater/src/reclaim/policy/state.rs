//! Policy state of the two lists of one group and type.
//!
//! Written by threads that evict pages or bring them in, without a lock: each word is valid on its
//! own, and one that is a few pages behind decides about a few pages differently.

use super::{Departure, EvictedBy, Lens, Side};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// No length was learnt yet.
const UNKNOWN: u64 = u64::MAX;

/// The policy's state beside the lists themselves.
#[derive(Debug)]
pub struct PolicyState {
    /// Initial value of the counts of evicted pages: far above those in the shadows of a former
    /// group of the same number.
    start: u64,
    /// Pages that have left each list.
    /// Written by: reclaimers. Read by: refaults. Publishes: nothing.
    left: [AtomicU64; 2],
    /// Pages that left each list and are remembered, as far as the policy counts them.
    /// Written by: reclaimers; refaults. Read by: both. Publishes: nothing.
    ghosts: [AtomicU64; 2],
    /// Target length of the inactive list.
    /// Written by: refaults. Read by: reclaimers. Publishes: nothing.
    target: AtomicU64,
    /// Whether LRU's victims are evicted, if the policy is bounded by it.
    /// Written by: reclaimers. Read by: the same; refaults. Publishes: nothing.
    is_lru: AtomicBool,
    /// Whether new pages fill the active list, which LRU has left short.
    /// Written by: reclaimers; refaults. Read by: both. Publishes: nothing.
    is_filling: AtomicBool,
    /// Whether all pages of the active list are on their way to the inactive one.
    /// Written by: reclaimers. Read by: reclaimers. Publishes: nothing.
    is_turning: AtomicBool,
}

impl Default for PolicyState {
    fn default() -> Self {
        Self::starting_at(0)
    }
}

// Relaxed throughout: see the module.
impl PolicyState {
    /// Creates a state without experience; the first page that leaves either list is number `start`
    /// + 1.
    #[must_use]
    pub fn starting_at(start: u64) -> Self {
        Self {
            start,
            left: [AtomicU64::new(start), AtomicU64::new(start)],
            ghosts: Default::default(),
            target: AtomicU64::new(UNKNOWN),
            is_lru: AtomicBool::new(false),
            is_filling: AtomicBool::new(false),
            is_turning: AtomicBool::new(false),
        }
    }

    /// Returns a number above that of every page that has left.
    #[must_use]
    pub fn clock(&self) -> u64 {
        let [inactive, active] = &self.left;
        inactive
            .load(Ordering::Relaxed)
            .max(active.load(Ordering::Relaxed))
    }

    /// Counts pages that leave a list; returns the first one's number, which its shadow keeps; the
    /// others' follow.
    pub fn leave(&self, from: Side, count: u64) -> u64 {
        self.ghosts[from as usize].fetch_add(count, Ordering::Relaxed);
        self.left[from as usize].fetch_add(count, Ordering::Relaxed) + 1
    }

    /// Returns the number of the last page that has left a list.
    #[must_use]
    pub fn nr_left_of(&self, from: Side) -> u64 {
        self.left[from as usize].load(Ordering::Relaxed)
    }

    /// Returns the departure record of a refaulting page that left `from` as number `age`.
    #[must_use]
    pub fn departure(&self, from: Side, age: u64) -> Departure {
        let distance = self.nr_left_of(from).saturating_sub(age);
        Departure { from, distance }
    }

    /// Returns the number of pages that have left either list.
    #[must_use]
    pub fn nr_left(&self) -> u64 {
        let [inactive, active] = &self.left;
        inactive.load(Ordering::Relaxed) + active.load(Ordering::Relaxed) - 2 * self.start
    }

    /// Returns the target length of the inactive list; `start` if none was learnt.
    pub(super) fn target(&self, start: u64) -> u64 {
        match self.target.load(Ordering::Relaxed) {
            UNKNOWN => start,
            target => target,
        }
    }

    pub(super) fn set_target(&self, target: u64) {
        debug_assert_ne!(target, UNKNOWN, "stands for no length");
        self.target.store(target, Ordering::Relaxed);
    }

    pub(super) fn ghosts(&self, from: Side) -> u64 {
        self.ghosts[from as usize].load(Ordering::Relaxed)
    }

    /// Forgets one page that left a list.
    pub(super) fn forget(&self, from: Side) {
        let ghosts = &self.ghosts[from as usize];
        ghosts.store(self.ghosts(from).saturating_sub(1), Ordering::Relaxed);
    }

    /// Records whose victims are evicted from now on.
    pub fn follow(&self, victims: EvictedBy, lens: Lens) {
        let is_lru = victims == EvictedBy::Lru;
        if is_lru != self.is_lru.swap(is_lru, Ordering::Relaxed) {
            let is_short = 2 * lens.active < lens.capacity;
            self.is_filling
                .store(!is_lru && is_short, Ordering::Relaxed);
        }
    }

    /// Returns whether LRU's victims are evicted.
    pub(super) fn is_lru(&self) -> bool {
        self.is_lru.load(Ordering::Relaxed)
    }

    pub(super) fn is_filling(&self) -> bool {
        self.is_filling.load(Ordering::Relaxed)
    }

    pub(super) fn end_filling(&self) {
        self.is_filling.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_turning(&self) -> bool {
        self.is_turning.load(Ordering::Relaxed)
    }

    pub(super) fn begin_turn(&self) {
        self.is_turning.store(true, Ordering::Relaxed);
    }

    pub(super) fn end_turn(&self) {
        self.is_turning.store(false, Ordering::Relaxed);
    }
}
