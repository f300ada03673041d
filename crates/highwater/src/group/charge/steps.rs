//! Charging and uncharging level by level, with the group's own words: for groups that have no
//! chain word on their CPU.
//!
//! # Why there are two kinds of words
//!
//! A chain word makes a charge one step, however deep the group is. But its tokens are reserved on
//! every ancestor, so if each group had one on each CPU, the reads of usage of an ancestor of 1,000
//! groups would be uncertain by 1,000 words a CPU. So a CPU has at most `STOCK_MAX` of them
//! (`state/stock.rs`). All other groups have *own words*, whose tokens are reserved on one ledger
//! alone: they make that group's usage uncertain, and no other's. A charge to such a group takes
//! its bytes at each level, upwards: from the group's own word, from its parent's, and so on up to
//! a chain word, which has the rest of the way, or to the root. With 1,000 groups below one parent
//! that is in the stock, these are two levels; and no ledger is touched as long as there are
//! tokens.
//!
//! # The bound
//!
//! What a CPU parks counts at a group in its own word and in the chain words of the group and those
//! below, of which the CPU has at most `STOCK_MAX`: `(STOCK_MAX + 1) * CELL_MAX`, 448 pages, which
//! is what the kernel's stock holds. So the words that count at a group are at most `STOCK_MAX + 1`
//! times the CPUs. The stepper of `holders` counts them, so that reads of usage need not know.
//!
//! # The protocol
//!
//! The invariant of `escrow.rs` holds at each group with the tokens of those words. A charge by
//! levels can be refused at the third after it has taken at two, and puts back what it took: so it
//! is in flight in the *own word of the group to charge* until it is decided. That word is in the
//! subtree of every group that the charge passes, so one mark serves all of them.
//!
//! - The mark is made by the step that takes the tokens of that word ([`Word::lent`]), a plain
//!   store. No fence follows while only tokens are taken: the word was live, so a removal retires
//!   it, and sees the mark or makes the step fail. The tokens above are in words of the same CPU,
//!   whose steps become visible after the mark: a thread that sees tokens gone sees the mark.
//!   Where the group above has a chain word, mark, tokens above and the end of the operation are
//!   three stores of one restartable sequence, which says how far it came if it is interrupted
//!   ([`Cell::take_both_here_if`]).
//! - Where a ledger has to be stepped, the mark is made with a fence, before the incarnation and
//!   the tree's gate are read ([`Groups::begin`]); then each level takes tokens, or reserves the
//!   bytes and a grant for its own word. This is a refill, level by level.
//! - An uncharge is never undone, so it needs no mark. It parks at each level, leaf first, or
//!   releases there; at a level above, its bytes are in use until it comes there.
//!
//! Own words below a group without room need not be retired, and no byte can hide in them: their
//! tokens are not reserved on its ledger. Marks in them count in every pass above (`steal.rs`).
//!
//! Source: `refill_stock` of Linux 6.16, which has 7 slots a CPU; the proposal of August 2026 of a
//! stock in each `page_counter`. Deviation: beyond the slots the kernel charges every ancestor's
//! counter for each batch that it evicts; the proposal has no bound on what a CPU parks.

use crate::group::state::{
    ActingCpu, Cell, DEPTH_MAX, Ending, GRANT_MAX, GroupKey, Groups, Made, Site, Slot, TokenStock,
    Word, Words,
};
use crate::units::GroupId;

use super::outcome::Refusal;

/// Levels of the deepest chain.
const LEVELS_MAX: usize = DEPTH_MAX as usize + 1;

/// What a charge did at one level.
#[derive(Clone, Copy)]
enum LevelStep {
    /// Took tokens of the own word.
    Took,
    /// Reserved in the ledger: `grant` besides the bytes, `reserved` in all.
    Reserved { grant: u64, reserved: u64 },
}

impl Groups {
    /// Charges `bytes` by tokens alone; returns whether it did. Otherwise nothing has changed.
    pub(super) fn take_by_steps(&self, key: GroupKey, index: usize, bytes: u64) -> bool {
        let slot = self.slot(key.id);
        let Some(words) = slot.find_words(index) else {
            return false;
        };
        let lent = |word: Word| {
            let lent = word.lent(bytes);
            // Read between the load of the word and its step, as in `take`.
            lent.filter(|_| words.is_for(key.incarnation))
        };
        if words.own.update(lent).is_err() {
            return false;
        }
        self.take_lent((slot, words), key.id, index, bytes)
    }

    /// Ends a charge in the words of the CPU that the thread runs on, of which a sequence has made
    /// the first step or none: see [`Cell::take_both_here_if`].
    pub(super) fn take_far_above(
        &self,
        (slot, words): (&Slot, &Words),
        key: GroupKey,
        bytes: u64,
        made: Made,
    ) -> bool {
        let is_alive = || words.is_for(key.incarnation);
        let is_lent = made == Made::First || words.own.lend_here_if(bytes, is_alive);
        is_lent && self.take_lent((slot, words), key.id, words.index(), bytes)
    }

    /// Ends a charge that lends `bytes` of the own word.
    fn take_lent(&self, of: (&Slot, &Words), id: GroupId, index: usize, bytes: u64) -> bool {
        let is_taken = self.take_above(of, id, index, bytes);
        if is_taken {
            of.1.own.end();
            if TokenStock::is_review_due(of.1.own.load()) {
                self.review(id, index);
            }
        }
        is_taken
    }

    /// Takes tokens at each level above a group that lends `bytes`. If one has none, puts all back,
    /// which ends the operation, and returns false.
    fn take_above(
        &self,
        (slot, words): (&Slot, &Words),
        id: GroupId,
        index: usize,
        bytes: u64,
    ) -> bool {
        let mut above = self.chain(id).skip(1).enumerate();
        let decided = above.find_map(|(nth, (_, slot))| {
            let words = slot.find_words(index);
            match words.map_or(FoundAt::Nowhere, |words| take_at(words, bytes)) {
                FoundAt::Own => None,
                FoundAt::Chain => Some(Ok(())),
                FoundAt::Nowhere => Some(Err(nth)),
            }
        });
        let Some(Err(nth)) = decided else {
            return true;
        };
        let ending = Ending(|| words.own.end());
        for (at, slot) in self.chain(id).skip(1).take(nth) {
            self.put_back(at, slot, index, bytes);
        }
        match words.own.update(|word| word.returned(bytes)) {
            Ok(_) => std::mem::forget(ending),
            Err(_) => self.release(id, slot, bytes),
        }
        false
    }

    /// Charges `bytes`, reserving them and grants where a level has no tokens; returns the most
    /// that it reserved at one.
    pub(super) fn refill_by_steps(
        &self,
        key: GroupKey,
        actor: ActingCpu,
        bytes: u64,
    ) -> Result<u64, Refusal> {
        let slot = self.slot(key.id);
        let index = slot.index(actor);
        let words = slot.words(index);
        let word = &words.own;
        slot.touch_own(index);
        self.begin(key, slot, word)?;
        words.tell(key.incarnation);
        let _ending = Ending(|| word.end());
        self.climb_by_steps(key.id, index, bytes)
    }

    /// Checks for tokens or room at each level, without a store.
    pub(super) fn check_steps(&self, id: GroupId, index: usize, bytes: u64) -> Result<(), Refusal> {
        for (group, slot) in self.chain(id) {
            let words = slot.find_words(index);
            let tokens =
                |of: fn(&Words) -> &Cell| words.map_or(0, |words| of(words).load().tokens());
            if bytes > 0 && tokens(|words| &words.chain) >= bytes {
                return Ok(());
            }
            let room = slot.ledger.balance().room();
            if tokens(|words| &words.own) < bytes && room < bytes {
                return Err(Refusal::NoRoom(group));
            }
        }
        Ok(())
    }

    fn climb_by_steps(&self, id: GroupId, index: usize, bytes: u64) -> Result<u64, Refusal> {
        let mut steps = [LevelStep::Took; LEVELS_MAX];
        let mut nr_steps = 0;
        for (group, slot) in self.chain(id) {
            let words = slot.find_words(index);
            let found = words.map_or(FoundAt::Nowhere, |words| take_at(words, bytes));
            steps[nr_steps] = match found {
                FoundAt::Chain => break,
                FoundAt::Own => LevelStep::Took,
                FoundAt::Nowhere => match reserve_with_grant(slot, words, bytes) {
                    Some(step) => step,
                    None => {
                        self.undo_steps(id, index, bytes, &steps[..nr_steps]);
                        return Err(Refusal::NoRoom(group));
                    }
                },
            };
            nr_steps += 1;
        }
        let mut most = 0;
        for ((at, slot), step) in self.chain(id).zip(&steps[..nr_steps]) {
            if let LevelStep::Reserved { grant, reserved } = *step {
                slot.ledger.raise_peak(reserved);
                self.put_back(at, slot, index, grant);
                most = most.max(bytes + grant);
            }
        }
        Ok(most)
    }

    /// Takes back what a charge did at the levels below one that refused it.
    fn undo_steps(&self, id: GroupId, index: usize, bytes: u64, steps: &[LevelStep]) {
        for ((at, slot), step) in self.chain(id).zip(steps) {
            match *step {
                LevelStep::Took => self.put_back(at, slot, index, bytes),
                LevelStep::Reserved { grant, .. } => self.release(at, slot, bytes + grant),
            }
        }
    }

    /// Makes reserved bytes tokens of a group's own word, or releases them.
    fn put_back(&self, at: GroupId, slot: &Slot, index: usize, bytes: u64) {
        let parked = |words: &Words| words.own.update(|word| word.parked_whole(bytes)).is_ok();
        if bytes > 0 && !slot.find_words(index).is_some_and(parked) {
            self.release(at, slot, bytes);
        }
    }

    /// Ends an uncharge that has parked in the own word of `words`. Another group may have their
    /// slot by now; the one above still has the bytes.
    #[inline(never)]
    pub(super) fn uncharge_rest(&self, above: &Slot, words: &Words, bytes: u64) {
        self.uncharge_by_steps(above.id(), words.index(), bytes);
    }

    /// Uncharges `bytes` level by level, up to the first chain word.
    #[inline(never)]
    pub(super) fn uncharge_by_steps(&self, id: GroupId, index: usize, bytes: u64) {
        for (at, slot) in self.chain(id) {
            let Some(words) = slot.find_words(index) else {
                self.release(at, slot, bytes);
                continue;
            };
            if let Ok(before) = words.chain.update(|word| word.parked(bytes)) {
                self.spill(Site::chain(at), index, before.spilled(bytes));
                return;
            }
            match words.own.update(|word| word.parked(bytes)) {
                Ok(before) => self.spill(Site::own(at), index, before.spilled(bytes)),
                Err(_) => self.release(at, slot, bytes),
            }
        }
    }

    /// Ends a parking that left `bytes` to the ledgers.
    fn spill(&self, site: Site, index: usize, bytes: u64) {
        if bytes > 0 {
            let words = self.slot(site.id).words(index);
            let word = if site.is_own {
                &words.own
            } else {
                &words.chain
            };
            let _ending = Ending(|| word.end());
            self.give_back_at(site, bytes);
        }
    }
}

/// Where a charge found its bytes at one level.
#[derive(Clone, Copy)]
enum FoundAt {
    /// In the chain word: for all levels above too.
    Chain,
    Own,
    Nowhere,
}

/// Takes tokens of one level.
#[inline]
fn take_at(words: &Words, bytes: u64) -> FoundAt {
    if words.chain.update(|word| word.taken(bytes)).is_ok() {
        return FoundAt::Chain;
    }
    match words.own.update(|word| word.taken(bytes)) {
        Ok(_) => FoundAt::Own,
        Err(_) => FoundAt::Nowhere,
    }
}

/// Reserves `bytes` in one ledger, and if there is room a grant for the own word: sized as that of
/// a refill of the whole chain.
fn reserve_with_grant(slot: &Slot, words: Option<&Words>, bytes: u64) -> Option<LevelStep> {
    let left = slot.ledger.balance().room().saturating_sub(bytes);
    let share = left / (2 * slot.holders().max(1));
    let grant = GRANT_MAX.min(share);
    let grant = words.map_or(0, |words| words.own.load().fit(grant));
    let step = |grant| {
        let reserved = slot.ledger.reserve(bytes + grant);
        reserved.map(|reserved| LevelStep::Reserved { grant, reserved })
    };
    match step(grant) {
        None if grant > 0 => step(0),
        decided => decided,
    }
}
