//! Parked groups: slots of removed groups that wait, each on the CPU that removed the group, for
//! the next group of the same parent.
//!
//! Most groups are short-lived, and many follow one another below one tenant. A slot that is parked
//! stays a member of its parent's family, with its words live and with the tokens in them. So the
//! next group needs no change of the tree's shape, no lock of the tree, and no refill; and passes
//! over the subtree find the tokens as before.
//!
//! # Why a slot can be parked while its words are live
//!
//! The slot is parked once its group is removed, nothing is used of what it has reserved, and
//! nothing is in flight in it. Charges of the group that is gone do not find its tokens:
//!
//! - The incarnation is stepped first, and the words are told. A charge reads what they know after
//!   it has loaded the word whose tokens it takes, so one that loads the word afterwards fails.
//! - Then each word that holds tokens is stepped (`Word::passed_on`). One that had loaded the word
//!   before fails in its own step. In the restartable regime that needs the CPU of the word; a slot
//!   with tokens on another CPU is not parked.
//! - Then the slot is looked at twice, with its ledger in between. If both looks saw the same, and
//!   the ledger has reserved what the words hold, nothing was used at that moment; and what can
//!   still begin finds the incarnation changed (`slot.rs`).
//!
//! # Hints
//!
//! The entries here are hints: which slots may be parked. The slot's standing decides. A thread
//! that parks a slot leaves one hint for it afterwards, and a hint is dropped only by a thread that
//! then finds the slot other than parked below that parent, or claims it; so once
//! the thread that parked it has gone on, no parked slot is without one; and each is found by the
//! CPU that parked it, or by the removal of its parent.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::GroupId;

use super::collect::Collect;
use super::slot::Slot;

/// Slots that one CPU parks. Chosen: a session that runs a few queries side by side; and passes
/// over a subtree look at them all.
#[cfg(not(loom))]
const PARKED_MAX: usize = 4;
/// Small, for the model checker explores each.
#[cfg(loom)]
const PARKED_MAX: usize = 1;

impl Slot {
    /// Passes the tokens of a removed group on to the next one; false if bytes of it are used or in
    /// flight, if it has tokens that this CPU cannot pass on, or if too many CPUs used it. See the
    /// module.
    pub(in crate::group) fn pass_on(&self) -> bool {
        if self.nr_touched_runs() > TOUCHED_MAX {
            return false;
        }
        let (mut before, mut is_all) = (Collect::default(), true);
        let nr_looked_at = if self.has_own() { 2 } else { 1 };
        self.each_touched(|words| {
            for cell in words.both().into_iter().take(nr_looked_at) {
                let word = cell.load();
                let passed_on = match word.tokens() {
                    0 => Some(word),
                    _ => cell.pass_on_near(),
                };
                match passed_on {
                    Some(word) => before.saw(word),
                    None => is_all = false,
                }
            }
        });
        let balance = self.ledger.balance();
        let is_unused = balance.reserved == before.tokens && !balance.has_waiters;
        is_all && is_unused && self.collect(self.id()).is_as_before(before)
    }
}

/// Runs of CPUs on which a slot that is parked was used. Chosen: each costs the next groups a few
/// nanoseconds, whether they use it or not.
const TOUCHED_MAX: u32 = 4;

/// A slot that may be parked, and the group that it is parked below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) struct ParkedHint {
    pub(in crate::group) parent: GroupId,
    pub(in crate::group) id: GroupId,
}

/// No hint: the root is never parked.
const NONE: u64 = 0;

impl ParkedHint {
    const fn raw(self) -> u64 {
        (self.parent.0 as u64) << 32 | self.id.0 as u64
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of a word")]
    const fn of(raw: u64) -> Option<Self> {
        match raw {
            NONE => None,
            _ => Some(Self {
                parent: GroupId((raw >> 32) as u32),
                id: GroupId(raw as u32),
            }),
        }
    }
}

/// The hints of one CPU, on a line of their own.
#[derive(Debug)]
#[repr(align(64))]
pub(in crate::group) struct ParkedSlots {
    /// Written by: threads that ran on the CPU when they came here. Read by: those.
    /// Publishes: the slot's standing.
    hints: [AtomicU64; PARKED_MAX],
}

impl ParkedSlots {
    pub(in crate::group) fn new() -> Self {
        Self {
            hints: std::array::from_fn(|_| AtomicU64::new(NONE)),
        }
    }

    /// Leaves a hint; false if there is no room for it.
    pub(in crate::group) fn add(&self, hint: ParkedHint) -> bool {
        let mut places = self.hints.iter();
        places.any(|place| swap(place, NONE, hint.raw()))
    }

    /// Takes a hint of a slot below `parent`.
    pub(in crate::group) fn take(&self, parent: GroupId) -> Option<ParkedHint> {
        self.take_if(|hint| hint.parent == parent)
    }

    /// Takes any hint.
    pub(in crate::group) fn take_any(&self) -> Option<ParkedHint> {
        self.take_if(|_| true)
    }

    fn take_if(&self, accept: impl Fn(ParkedHint) -> bool) -> Option<ParkedHint> {
        self.hints.iter().find_map(|place| {
            // Relaxed: a hint.
            let hint =
                ParkedHint::of(place.load(Ordering::Relaxed)).filter(|hint| accept(*hint))?;
            swap(place, hint.raw(), NONE).then_some(hint)
        })
    }
}

/// Replaces a place's content if it is `from`.
fn swap(place: &AtomicU64, from: u64, to: u64) -> bool {
    // Pairs with itself: a thread that takes a hint sees the slot parked, or what became of it.
    let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
    // Relaxed: a look before.
    let is_from = place.load(Ordering::Relaxed) == from;
    is_from && place.compare_exchange(from, to, success, failure).is_ok()
}
