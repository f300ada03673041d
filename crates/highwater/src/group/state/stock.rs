//! The stock of one CPU: the groups that may have a live *chain word* there, at most [`STOCK_MAX`]
//! (the slots of the kernel's `memcg_stock_pcp`).
//!
//! **Invariant.** The live chain words of a CPU are at most as many as its entries. A thread makes
//! such a word live only while it has an entry *claimed*, and then leaves the word's group in the
//! entry. A thread that claims an entry of another group first sees to it that the word of that
//! group is not live. An entry may name a group whose word was retired meanwhile, by a removal or
//! for a maximum: it is free.
//!
//! **Protocol.** All of this happens under the tree's lock for reading, so that words are retired
//! by others only before or after. An entry is claimed by a compare-and-exchange and published by a
//! store. A claimed entry is not waited for: a thread that stalls with one leaves the CPU one entry
//! less.
//!
//! Which group gets an entry is a matter of cost alone. Statistics decide it, which threads that
//! act as one CPU at the same time may garble. Of the charges that a group makes without a chain
//! word, one in [`REVIEW_EVERY`] is followed by a review: one candidate, named at the review
//! before, is compared with the entries by the steps that their words made since
//! (`Word::sequence`). Words that make none are the coldest.
//!
//! Source: `refill_stock` of Linux 6.16 (7 slots a CPU; a random one gives way). Deviation: nothing
//! gives way to a group that is not used several times as often, so that many groups used in turn
//! do not push one another out; they charge by their own words meanwhile (`charge/steps.rs`).

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::GroupId;

use super::cell::Word;

/// Chain words that one CPU may have live. Chosen: as many as the kernel's stock has slots.
#[cfg(not(loom))]
pub(in crate::group) const STOCK_MAX: usize = 7;
/// Charges of a group between two reviews. Chosen: a review looks at 8 words that may be in no
/// cache, and may step the ledgers of two chains, a microsecond together; a group that is used more
/// than those in the stock is entered after some thousand of its charges.
#[cfg(not(loom))]
const REVIEW_EVERY: u32 = 512;

/// Small, so that the model checker reaches every branch.
#[cfg(loom)]
pub(in crate::group) const STOCK_MAX: usize = 1;
/// Small, so that the model checker reaches every branch.
#[cfg(loom)]
const REVIEW_EVERY: u32 = 1;

/// No group; the table of groups never grows to these ids.
const FREE: u32 = u32::MAX;
const CLAIMED: u32 = u32::MAX - 1;

/// The stock of one CPU, on lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(in crate::group) struct TokenStock {
    /// Written by: threads that hold the tree's lock for reading, as the module states. Read by:
    /// those, and checks. Publishes: the chain word that was made live or retired.
    entries: [AtomicU32; STOCK_MAX],
    /// The sequences of the entries' words at the last review. A statistic, as all that follows.
    seen: [AtomicU32; STOCK_MAX],
    candidate: AtomicU32,
    /// The sequence of the candidate's own word when it became one.
    candidate_seen: AtomicU32,
    reviews: AtomicU32,
}

/// The content of an entry that is not claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) enum StockEntry {
    Free,
    Of(GroupId),
}

impl StockEntry {
    const fn raw(self) -> u32 {
        match self {
            Self::Free => FREE,
            Self::Of(id) => id.0,
        }
    }
}

impl TokenStock {
    pub(in crate::group) fn new() -> Self {
        Self {
            entries: std::array::from_fn(|_| AtomicU32::new(FREE)),
            seen: std::array::from_fn(|_| AtomicU32::new(0)),
            candidate: AtomicU32::new(FREE),
            candidate_seen: AtomicU32::new(0),
            reviews: AtomicU32::new(0),
        }
    }

    /// Returns the entries that are not claimed, with their numbers.
    pub(in crate::group) fn entries(&self) -> impl Iterator<Item = (usize, StockEntry)> {
        let entries = self.entries.iter().enumerate();
        // Pairs with `publish`. SeqCst for uniformity; acquire would do.
        entries.filter_map(|(nth, entry)| match entry.load(Ordering::SeqCst) {
            CLAIMED => None,
            FREE => Some((nth, StockEntry::Free)),
            id => Some((nth, StockEntry::Of(GroupId(id)))),
        })
    }

    /// Claims entry number `nth` if it holds that still.
    pub(in crate::group) fn claim(&self, nth: usize, held: StockEntry) -> bool {
        // Pairs with `publish` and itself; SeqCst as in `entries`.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        self.entries[nth]
            .compare_exchange(held.raw(), CLAIMED, success, failure)
            .is_ok()
    }

    /// Ends a claim.
    pub(in crate::group) fn publish(&self, nth: usize, entry: StockEntry) {
        // Pairs with `entries` and `claim`; SeqCst as there.
        self.entries[nth].store(entry.raw(), Ordering::SeqCst);
    }

    /// Whether a review is due, after a charge that found no chain word and left its group's own
    /// word as it is given.
    #[inline]
    pub(in crate::group) fn is_review_due(own: Word) -> bool {
        // Scattered by the golden ratio: charges see some of the word's sequences only, each second
        // where each is dropped before the next, two of four where two are held at a time. Cycles
        // of a Fibonacci number of steps are reviewed least evenly.
        let scattered = own.sequence().wrapping_mul(0x9E37_79B9);
        u64::from(scattered) < (1 << 32) / u64::from(REVIEW_EVERY)
    }

    /// Counts a review; returns how many there were before.
    pub(in crate::group) fn count_review(&self) -> u32 {
        // Relaxed: a statistic.
        let reviews = self.reviews.load(Ordering::Relaxed);
        // Relaxed: as above.
        self.reviews
            .store(reviews.wrapping_add(1), Ordering::Relaxed);
        reviews
    }

    /// Returns how many steps entry number `nth` has made since the last review, given the sequence
    /// of its word now, from which the next review counts.
    pub(in crate::group) fn steps_of(&self, nth: usize, sequence: u32) -> u32 {
        // Relaxed: a statistic.
        let seen = self.seen[nth].load(Ordering::Relaxed);
        // Relaxed: as above.
        self.seen[nth].store(sequence, Ordering::Relaxed);
        sequence.wrapping_sub(seen)
    }

    /// Returns the candidate, and the sequence that its own word had.
    pub(in crate::group) fn candidate(&self) -> Option<(GroupId, u32)> {
        // Relaxed: statistics.
        let id = self.candidate.load(Ordering::Relaxed);
        let seen = self.candidate_seen.load(Ordering::Relaxed);
        (id != FREE).then_some((GroupId(id), seen))
    }

    /// Names the candidate of the next review.
    pub(in crate::group) fn set_candidate(&self, id: GroupId, sequence: u32) {
        // Relaxed: statistics.
        self.candidate.store(id.0, Ordering::Relaxed);
        self.candidate_seen.store(sequence, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Goal: a group that charges often is reviewed, whatever steps its word makes between charges.
    // Method: cycles of charges and of other steps, from every phase; over 2^14 charges, reviews
    // are as frequent as chosen, or up to twice as rare or frequent. In cycles of 21, 34 and 55
    // steps, none is left out.
    #[test]
    fn any_rhythm_of_charges_is_reviewed() {
        const CHARGES: u32 = 1 << 14;
        for (charges, others) in [
            (1, 0),
            (1, 1),
            (2, 2),
            (1, 3),
            (8, 8),
            (16, 16),
            (64, 64),
            (1, 7),
        ] {
            for phase in 0..256 {
                let reviews = reviews_of(CHARGES, charges, others, phase);
                assert!(
                    (16..=64).contains(&reviews),
                    "{reviews} reviews of {charges} charges and {others} other steps from {phase}"
                );
            }
        }
        for (charges, others) in [(8, 13), (3, 31), (1, 54)] {
            let reviews = (0..256).map(|phase| reviews_of(CHARGES, charges, others, phase));
            assert_ne!(
                reviews.min(),
                Some(0),
                "{charges} charges, {others} other steps"
            );
        }
    }

    /// Returns the reviews of `count` charges, made in cycles of `charges` and then other steps.
    fn reviews_of(count: u32, charges: u32, others: u32, phase: u32) -> usize {
        let sequence = |nth: u32| phase + nth / charges * (charges + others) + nth % charges;
        let words = (0..count).map(|nth| Word::at_sequence(sequence(nth)));
        words
            .filter(|word| TokenStock::is_review_due(*word))
            .count()
    }
}
