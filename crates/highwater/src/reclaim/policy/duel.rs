//! A duel (set dueling) between two lengths of the inactive list: the learnt one, or most of the
//! capacity.
//!
//! A learnt length follows the gain at its margin, and a margin can mislead: if each new page is
//! read again, but only after a pause that the list does not bridge, nothing refaults soon enough
//! to make it longer. So the length in use counts its *regrets*: pages that refaulted at a distance
//! that the other length would have bridged. Pages that neither length keeps are misses of both; so
//! of two equally long rounds, the one with the larger share of regretted misses belongs to the
//! length that misses more, for any number of accesses, which is unknown. Distances are measured in
//! actual arrivals, so this is an estimate.
//!
//! The learnt length is compared with the other after a round in which it regretted an eighth of
//! the misses, and at least as many as it found active pages accessed, which a wide list would give
//! up. The wide list stays while it regrets less than half of that: no distance shows that a part
//! of a loop could be kept. Each change of length doubles the number of rounds until the next one
//! that serves comparison only.
//!
//! Source: set dueling (Qureshi and others, ISCA 2007). Deviation: rounds instead of sets, and
//! regret instead of misses: pages of one group share two lists, and sampled pages differ more than
//! policies do.

use super::Side;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Regrets of the learnt length are significant from this part of a round's misses. Chosen: from a
/// sixteenth, a learnt length that still moved in the right direction was interrupted (w92: 2.4 %
/// fewer misses than LRU, with an eighth 7.7 %).
const NOTICEABLE: u64 = 8;

/// The wide list must regret less than this part of the learnt length's regrets.
const MARGIN: u64 = 2;

/// Rounds until both lengths are compared again, at first and at most.
const PATIENCE: u64 = 4;
const PATIENCE_MAX: u64 = 64;

/// Minimum length of a round: fewer regrets would be chance.
const ROUND_MIN: u64 = 64;

/// The state of the comparison.
///
/// Lock-free: one thread claims the end of a round and judges it, while others may still count. A
/// page that is counted in the next round instead is one of hundreds.
#[derive(Debug)]
pub(super) struct Duel {
    /// Whether the list should be wide.
    /// Written by: the end of a round. Read by: both. Publishes: nothing.
    is_wide: AtomicBool,
    /// The count of evicted pages at which the round ends, and at which it begins to count regrets.
    /// Written by: the end of a round. Read by: refaults. Publishes: nothing.
    end: AtomicU64,
    begin: AtomicU64,
    /// Pages that refaulted in this round and that the other length would have kept.
    /// Written by: refaults. Read by: the end of a round. Publishes: nothing.
    regrets: AtomicU64,
    /// Active pages that were found accessed in this round.
    /// Written by: reclaimers. Read by: the end of a round. Publishes: nothing.
    kept: AtomicU64,
    /// Regrets of the last round of the learnt length and of the wide list.
    /// Written by: the end of a round. Read by: the same. Publishes: nothing.
    known: [AtomicU64; 2],
    /// Rounds until the other length is tried unconditionally, and their number after the next
    /// change. As `known`.
    wait: AtomicU64,
    patience: AtomicU64,
}

impl Default for Duel {
    fn default() -> Self {
        Self {
            is_wide: AtomicBool::new(false),
            end: AtomicU64::new(0),
            begin: AtomicU64::new(0),
            regrets: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            known: Default::default(),
            wait: AtomicU64::new(0),
            patience: AtomicU64::new(PATIENCE),
        }
    }
}

// Relaxed throughout: each word is valid on its own.
impl Duel {
    pub(super) fn is_wide(&self) -> bool {
        self.is_wide.load(Ordering::Relaxed)
    }

    /// Returns the list whose refaults are regrets: the one that the other length makes longer.
    pub(super) fn regretted(&self) -> Side {
        match self.is_wide() {
            true => Side::Active,
            false => Side::Inactive,
        }
    }

    pub(super) fn note_regret(&self, nr_left: u64) {
        if nr_left >= self.begin.load(Ordering::Relaxed) {
            self.regrets.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn note_kept(&self) {
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a round that is long enough. Called whenever a page comes in.
    pub(super) fn advance(&self, nr_left: u64, capacity: u64) {
        let end = self.end.load(Ordering::Relaxed);
        if nr_left < end {
            return;
        }
        let round = 2 * capacity + ROUND_MIN;
        let (set, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        let claim = self.end.compare_exchange(end, nr_left + round, set, failed);
        // The first round begins here.
        let is_judged = claim.is_ok() && end > 0;
        if is_judged && self.changes(round) {
            // Pages of the former length are still leaving.
            let begin = nr_left + capacity / 2;
            self.begin.store(begin, Ordering::Relaxed);
            self.end.store(begin + round, Ordering::Relaxed);
        }
    }

    /// Judges a round; returns whether the length changes.
    fn changes(&self, round: u64) -> bool {
        let is_wide = self.is_wide();
        let regrets = self.regrets.swap(0, Ordering::Relaxed);
        let kept = self.kept.swap(0, Ordering::Relaxed);
        self.known[usize::from(is_wide)].store(regrets, Ordering::Relaxed);
        let wait = self.wait.load(Ordering::Relaxed).saturating_sub(1);
        self.wait.store(wait, Ordering::Relaxed);
        let [learnt, wide] = self.known.each_ref().map(|it| it.load(Ordering::Relaxed));
        let is_wide_better = learnt > MARGIN * wide;
        let changes = match is_wide {
            true => !is_wide_better || wait == 0,
            false => {
                let is_due = learnt * NOTICEABLE > round && learnt >= kept;
                is_due && (is_wide_better || wait == 0)
            }
        };
        if changes {
            let patience = self.patience.load(Ordering::Relaxed);
            self.wait.store(patience, Ordering::Relaxed);
            let longer = (2 * patience).min(PATIENCE_MAX);
            self.patience.store(longer, Ordering::Relaxed);
            self.is_wide.store(!is_wide, Ordering::Relaxed);
        }
        changes
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CAPACITY: u64 = 100;
    const ROUND: u64 = 2 * CAPACITY + ROUND_MIN;

    /// Ends the round that began when `*nr_left` pages had left, with this many regrets.
    fn round(duel: &Duel, nr_left: &mut u64, regrets: u64) {
        *nr_left = duel.end.load(Ordering::Relaxed);
        (0..regrets).for_each(|_| duel.note_regret(*nr_left));
        duel.advance(*nr_left, CAPACITY);
    }

    #[test]
    fn the_length_that_regrets_less_stays() {
        // Goal: the wide list is tried, stays, and is given up by the stated rules. Method: rounds
        // with given regrets.
        let (duel, mut nr_left) = (Duel::default(), 0);
        duel.advance(0, CAPACITY);
        round(&duel, &mut nr_left, ROUND / NOTICEABLE);
        assert!(!duel.is_wide(), "not noticeable");
        (0..ROUND).for_each(|_| duel.note_kept());
        round(&duel, &mut nr_left, ROUND / 2);
        assert!(!duel.is_wide(), "the active list is more useful");
        round(&duel, &mut nr_left, ROUND / 2);
        assert!(duel.is_wide() && duel.regretted() == Side::Active);
        round(&duel, &mut nr_left, ROUND / 8);
        assert!(duel.is_wide(), "regrets a quarter as much");
        round(&duel, &mut nr_left, ROUND / 4);
        assert!(!duel.is_wide(), "regrets half as much");
        for _ in 1..2 * PATIENCE {
            round(&duel, &mut nr_left, ROUND / 2);
            assert!(!duel.is_wide(), "is known to regret too much");
        }
        round(&duel, &mut nr_left, ROUND / 2);
        assert!(duel.is_wide(), "is tried again");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use ::loom::{model, thread};

    use super::*;
    use crate::sync::Arc;

    // Goal: a round is judged once, though two threads find it at its end: a second verdict would
    // shorten the wait by a round.
    #[test]
    fn loom_one_thread_judges_a_round() {
        model(|| {
            let duel = Arc::new(Duel::default());
            duel.advance(0, 1);
            let end = duel.end.load(Ordering::Relaxed);
            (0..end).for_each(|_| duel.note_regret(0));
            let other = {
                let duel = Arc::clone(&duel);
                thread::spawn(move || duel.advance(end, 1))
            };
            duel.advance(end, 1);
            other.join().expect("no panic");
            assert!(duel.is_wide());
            assert_eq!(duel.wait.load(Ordering::Relaxed), PATIENCE);
        });
    }
}
