//! A group's *standing*: whether it can be removed without the tree's lock, and whether its slot
//! waits for the next group of its parent.
//!
//! ```text
//!  creation ──> Light ──> Claimed ──> Parked ──> Claimed ──> Light: the next group
//!                 │          │                      │
//!                 v          v                      v
//!              Settled    (removed under the tree's lock)
//! ```
//!
//! - **Light**: nothing that the tree's lock guards was done for the group: it has no children, no
//!   protection, no `high` and no waiting charge. One compare-and-exchange claims it for removal.
//! - **Settled**: something was, or may be about to be. An operation that needs a group to stay
//!   while it holds the tree's lock settles it first (`Slot::settle`), and it is removed under that
//!   lock for writing.
//! - **Claimed**: one thread removes the group, or prepares the slot for the next one.
//! - **Parked**: free, and still a member of its parent's family (`parked.rs`).
//!
//! The word holds the incarnation too, so that a claim never meets a later group.

use crate::sync::atomic::{AtomicU64, Ordering};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) enum SlotStanding {
    Settled,
    Light,
    Claimed,
    Parked,
}

/// The standing of one slot.
#[derive(Debug)]
pub(super) struct StandingWord {
    /// Written by: the thread that creates a group or has claimed its slot; threads that settle or
    /// claim it. Read by: those. Publishes: the slot as its former user left it.
    word: AtomicU64,
}

impl StandingWord {
    /// Returns that of a slot without a group.
    pub(super) fn new() -> Self {
        Self {
            word: AtomicU64::new(raw(0, SlotStanding::Settled)),
        }
    }

    pub(super) fn is(&self, incarnation: u64, standing: SlotStanding) -> bool {
        // Pairs with `set` and `swap`.
        self.word.load(Ordering::Acquire) == raw(incarnation, standing)
    }

    /// Whether it is that of a group of that incarnation.
    pub(super) fn is_of(&self, incarnation: u64) -> bool {
        // Pairs with `set` and `swap`.
        self.word.load(Ordering::Acquire) >> 2 == incarnation
    }

    pub(super) fn set(&self, incarnation: u64, standing: SlotStanding) {
        // Pairs with `is` and `swap`.
        self.word
            .store(raw(incarnation, standing), Ordering::Release);
    }

    /// Changes the standing of that incarnation; returns whether it was `from`.
    pub(super) fn swap(&self, incarnation: u64, from: SlotStanding, to: SlotStanding) -> bool {
        let (from, to) = (raw(incarnation, from), raw(incarnation, to));
        // Pairs with `set` and itself.
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.word
            .compare_exchange(from, to, success, failure)
            .is_ok()
    }
}

const fn raw(incarnation: u64, standing: SlotStanding) -> u64 {
    incarnation << 2 | standing as u64
}
