//! Counts of the pages in transit: charged to a group and not on an LRU list yet.
//!
//! Each group has one word ([`TransitState`]): the threads that have charged a page and not put it
//! on a list, those of them that also have a frame for it, and the arrivals so far. Pages that a
//! reclaimer has isolated are in transit too (`Lruvec::nr_isolated`): they will be put back or
//! freed.
//!
//! - A fault counts itself *before* it charges (`OnItsWay`), and stops when the page
//!   is in an add batch, or after its charge and its frame were released: that is an arrival as
//!   well, of room.
//! - An attempt to charge that is refused takes its count back: it is no arrival.
//! - The word of a removed group stays ([`Departed`]) as long as threads may change it: its pages
//!   in transit still fill the groups above.

use std::cell::Cell;

use crate::group::{GroupKey, GroupNode};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

const COUNT_BITS: u32 = 22;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const ONE_CHARGED: u64 = 1;
const ONE_FRAMED: u64 = 1 << COUNT_BITS;
const ONE_ARRIVED: u64 = 1 << (2 * COUNT_BITS);

/// A group's pages in transit, at one moment: threads that have a charge (22 bits, as many as Linux
/// has threads), those of them that have a frame (22 bits), and arrivals so far (20 bits, which
/// wrap: two readings are one pass of reclaim apart).
#[derive(Clone, Copy, Debug)]
pub(super) struct TransitState(u64);

impl TransitState {
    pub(super) const fn nr_charged(self) -> u64 {
        self.0 & COUNT_MASK
    }

    pub(super) const fn nr_framed(self) -> u64 {
        self.0 >> COUNT_BITS & COUNT_MASK
    }

    pub(super) const fn nr_arrived(self) -> u64 {
        self.0 >> (2 * COUNT_BITS)
    }
}

/// The word of one group.
///
/// Written by: threads in a page fault. Read by: requests that found nothing to reclaim. Publishes:
/// the charge, page or room that a change counts.
#[derive(Debug, Default)]
pub(super) struct Transit(AtomicU64);

impl Transit {
    pub(super) fn load(&self) -> TransitState {
        // Acquire. Pairs with: `step`.
        TransitState(self.0.load(Ordering::Acquire))
    }

    /// Moves this thread from stage `from` to stage `to`.
    pub(super) fn step(&self, from: Stage, to: Stage) {
        let by = to.weight().wrapping_sub(from.weight());
        // Release. Pairs with: `load`. A count from before a charge is visible to a thread that
        // sees the charge.
        let before = TransitState(self.0.fetch_add(by, Ordering::Release));
        debug_assert!(
            from < Stage::Charged || before.nr_charged() > 0,
            "this thread was counted as charged"
        );
        debug_assert!(
            from < Stage::Framed || before.nr_framed() > 0,
            "this thread was counted as having a frame"
        );
    }

    /// Counts the arrivals of a group that is not counted itself any more.
    pub(super) fn inherit(&self, last: TransitState) {
        // Release. Pairs with: `load`, as in `step`.
        self.0
            .fetch_add(last.nr_arrived() * ONE_ARRIVED, Ordering::Release);
    }
}

/// The transit of a removed group.
#[derive(Debug)]
pub(super) struct Departed {
    /// The keys of the group and its ancestors. No handles, which would keep their data.
    path: Box<[GroupKey]>,
    transit: Arc<Transit>,
}

impl Departed {
    pub(super) fn new(group: &GroupNode, transit: &Arc<Transit>) -> Self {
        let up = std::iter::successors(Some(group.clone()), GroupNode::parent);
        Self {
            path: up.map(|group| group.key()).collect(),
            transit: Arc::clone(transit),
        }
    }

    pub(super) fn path(&self) -> &[GroupKey] {
        &self.path
    }

    pub(super) fn is_in_subtree_of(&self, target: &GroupNode) -> bool {
        self.path.contains(&target.key())
    }

    pub(super) fn load(&self) -> TransitState {
        self.transit.load()
    }

    /// Returns whether no thread can change it any more.
    pub(super) fn is_over(&self) -> bool {
        let is_over = Arc::strong_count(&self.transit) == 1;
        // Acquire. Pairs with: the release of the last other reference, after its changes.
        fence(Ordering::Acquire);
        is_over
    }
}

/// Stage of a thread that brings a page in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Arrived,
    Nowhere,
    Charged,
    Framed,
}

impl Stage {
    const fn weight(self) -> u64 {
        match self {
            Self::Arrived => ONE_ARRIVED,
            Self::Nowhere => 0,
            Self::Charged => ONE_CHARGED,
            Self::Framed => ONE_CHARGED + ONE_FRAMED,
        }
    }
}

thread_local! {
    /// Number of pages that this thread has isolated.
    static IN_HAND: Cell<i64> = const { Cell::new(0) };
}

/// Counts pages that this thread isolates, or settles.
pub(super) fn note_in_hand(change: i64) {
    let in_hand = IN_HAND.get() + change;
    debug_assert!(in_hand >= 0, "a thread settles what it isolated itself");
    IN_HAND.set(in_hand);
}

/// Returns the number of pages that this thread has isolated.
pub(super) fn in_hand() -> i64 {
    IN_HAND.get()
}
