//! What a policy has learnt of the two lists of one group and type.
//!
//! Written by whoever evicts a page or brings one in, without a lock: each word is right on its
//! own, and one that is a few pages behind decides about a few pages differently.

use super::duel::Duel;
use super::{Departure, Side};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Marks that no length was learnt yet.
const UNKNOWN: u64 = u64::MAX;

/// What is known beside the lists themselves.
#[derive(Debug)]
pub struct PolicyState {
    /// What the counts of pages that left began with: far above what the shadows of a former group
    /// of the same number say.
    start: u64,
    /// Pages that have left each list.
    /// Written by: reclaimers. Read by: refaults. Publishes: nothing.
    left: [AtomicU64; 2],
    /// Pages that left each list and are remembered, as far as the policy counts them.
    /// Written by: reclaimers; refaults. Read by: both. Publishes: nothing.
    ghosts: [AtomicU64; 2],
    /// The length that the inactive list is to have.
    /// Written by: refaults. Read by: reclaimers. Publishes: nothing.
    target: AtomicU64,
    /// Whether that length is to be the learnt one.
    pub(super) duel: Duel,
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
    /// Nothing learnt yet; the first page that leaves either list is number `start` + 1.
    #[must_use]
    pub fn starting_at(start: u64) -> Self {
        Self {
            start,
            left: [AtomicU64::new(start), AtomicU64::new(start)],
            ghosts: Default::default(),
            target: AtomicU64::new(UNKNOWN),
            duel: Duel::default(),
            is_turning: AtomicBool::new(false),
        }
    }

    /// A number above that of every page that has left.
    #[must_use]
    pub fn clock(&self) -> u64 {
        let [inactive, active] = &self.left;
        inactive
            .load(Ordering::Relaxed)
            .max(active.load(Ordering::Relaxed))
    }

    /// Counts pages that leave a list; the first one's number, which its shadow keeps, the others'
    /// follow.
    pub fn leave(&self, from: Side, count: u64) -> u64 {
        self.ghosts[from as usize].fetch_add(count, Ordering::Relaxed);
        self.left[from as usize].fetch_add(count, Ordering::Relaxed) + 1
    }

    /// The number of the last page that has left a list.
    #[must_use]
    pub fn nr_left_of(&self, from: Side) -> u64 {
        self.left[from as usize].load(Ordering::Relaxed)
    }

    /// What is known of a page that comes back and left `from` as number `age`.
    #[must_use]
    pub fn departure(&self, from: Side, age: u64) -> Departure {
        let distance = self.nr_left_of(from).saturating_sub(age);
        Departure { from, distance }
    }

    /// Pages that have left either list.
    #[must_use]
    pub fn nr_left(&self) -> u64 {
        let [inactive, active] = &self.left;
        inactive.load(Ordering::Relaxed) + active.load(Ordering::Relaxed) - 2 * self.start
    }

    /// The length that the inactive list is to have; `start` if nothing was learnt.
    pub(super) fn target(&self, start: u64) -> u64 {
        match self.target.load(Ordering::Relaxed) {
            UNKNOWN => start,
            target => target,
        }
    }

    pub(super) fn set_target(&self, target: u64) {
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
