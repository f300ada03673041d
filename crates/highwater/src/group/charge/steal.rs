//! Passes over the token words of a subtree: those that take tokens back, and those that change
//! nothing.
//!
//! The tokens of a group are those of its own words, and of the chain words of it and of all groups
//! below. The own words of groups below have no tokens of it, but may carry the mark of an
//! operation on its way up (`steps.rs`): a pass looks at them, and takes nothing there.
//!
//! The caller holds the tree's lock, which keeps the set of groups the same meanwhile.

use std::ops::ControlFlow;

use crate::group::state::{Far, Groups, InFlight, OpenCell, Site, Slot, TreeShape, Word};
use crate::units::GroupId;

/// The result of a pass over the words of a subtree.
///
/// Two passes that are [alike](Self::is_as_before) saw the same in every word: a word whose
/// sequence grew is larger than before by more than any change of its lower half can offset, except
/// that of its tokens, which are summed apart; and where no sequence grew, tokens can only have
/// been taken.
#[derive(Clone, Copy, Default)]
pub(super) struct Collect {
    /// Tokens that are reserved on the group.
    pub(super) tokens: u64,
    /// Tokens of the own words of groups below it, which are not.
    others: u64,
    /// Sum of the words themselves, modulo 2^64.
    words: u64,
    /// Operations in flight in any of them.
    in_flight: InFlight,
}

impl Collect {
    #[inline]
    fn saw(&mut self, word: Word) {
        self.tokens += word.tokens();
        self.words = self.words.wrapping_add(word.raw());
        self.in_flight.saw(word);
    }

    /// Like [`saw`](Self::saw), of an own word below the group.
    #[inline]
    fn saw_other(&mut self, word: Word) {
        self.others += word.tokens();
        self.words = self.words.wrapping_add(word.raw());
        self.in_flight.saw(word);
    }

    /// Sees the own words of a group, number `id`, below `top`.
    fn saw_others(&mut self, top: GroupId, id: GroupId, slot: &Slot) {
        if id != top {
            slot.each_touched(|words| self.saw_other(words.own.load()));
        }
    }

    /// Combines two passes over different words.
    fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            others: self.others + other.others,
            words: self.words.wrapping_add(other.words),
            in_flight: self.in_flight.and(other.in_flight),
        }
    }

    /// Whether this pass saw every byte in a reservation, in a word, or used.
    pub(super) fn is_still(self) -> bool {
        self.in_flight.is_nothing()
    }

    /// Whether both passes were still and saw the same.
    pub(super) fn is_as_before(self, before: Self) -> bool {
        let is_still = self.is_still() && before.is_still();
        let tokens = |pass: Self| (pass.tokens, pass.others);
        is_still && tokens(self) == tokens(before) && self.words == before.words
    }
}

impl Groups {
    /// Takes tokens back in one pass until `group` has room for `bytes`, and returns `None` then.
    /// Otherwise returns the pass, whose tokens are those that it took.
    pub(super) fn steal(&self, shape: &TreeShape, group: GroupId, bytes: u64) -> Option<Collect> {
        let ledger = &self.slot(group).ledger;
        let mut pass = Collect::default();
        let (mut far, mut far_pass) = (Far::none(), Collect::default());
        // Stolen tokens are in flight at their word until they are given back.
        let give_back = |site, tokens, end: &dyn Fn()| {
            self.give_back_at(site, tokens);
            end();
            match ledger.balance().room() >= bytes {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let mut steal_open = |site: Site, open: &OpenCell<'_>| {
            let outcome = open.update(Word::stolen);
            far_pass.saw(outcome.unwrap_or_else(|word| word));
            match outcome {
                Ok(word) => give_back(site, word.tokens(), &|| open.end()),
                Err(_) => ControlFlow::Continue(()),
            }
        };
        let flow = self.walk(shape, group, &mut |id, slot| {
            for (site, cell) in slot.words_of(group, id) {
                match cell.update_near(Word::stolen) {
                    Some(Ok(word)) => {
                        pass.saw(word);
                        give_back(site, word.tokens(), &|| cell.end())?;
                    }
                    Some(Err(word)) => pass.saw(word),
                    None => far.add(site, cell, &mut steal_open)?,
                }
            }
            pass.saw_others(group, id, slot);
            ControlFlow::Continue(())
        });
        let flow = flow.is_continue() && far.each(&mut steal_open).is_continue();
        flow.then(|| pass.and(far_pass))
    }

    /// Makes one pass that changes nothing.
    pub(super) fn look(&self, shape: &TreeShape, group: GroupId) -> Collect {
        let mut pass = Collect::default();
        let _: ControlFlow<()> = self.walk(shape, group, &mut |id, slot| {
            // A local of its own, so that it stays in registers.
            let mut own = Collect::default();
            let is_top = id == group;
            slot.each_touched(|words| {
                own.saw(words.chain.load());
                match is_top {
                    true => own.saw(words.own.load()),
                    false => own.saw_other(words.own.load()),
                }
            });
            pass = pass.and(own);
            ControlFlow::Continue(())
        });
        pass
    }
}
