//! Passes over the token words of a subtree: those that take tokens back, and those that change
//! nothing.
//!
//! The caller holds the tree's lock, which keeps the set of groups the same meanwhile.

use std::ops::ControlFlow;

use crate::group::state::{Far, Groups, InFlight, OpenCell, TreeShape, Word};
use crate::units::GroupId;

/// The result of a pass over the words of a subtree.
///
/// Two passes that are [alike](Self::is_as_before) saw the same in every word: a word whose
/// sequence grew is larger than before by more than any change of its lower half can offset, except
/// that of its tokens, which are summed apart; and where no sequence grew, tokens can only have
/// been taken.
#[derive(Clone, Copy, Default)]
pub(super) struct Collect {
    pub(super) tokens: u64,
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

    /// Combines two passes over different words.
    fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
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
        is_still && self.tokens == before.tokens && self.words == before.words
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
        let give_back = |id, tokens, end: &dyn Fn()| {
            self.give_back(id, tokens);
            end();
            match ledger.balance().room() >= bytes {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let mut steal_open = |id, open: &OpenCell<'_>| {
            let outcome = open.update(Word::stolen);
            far_pass.saw(outcome.unwrap_or_else(|word| word));
            match outcome {
                Ok(word) => give_back(id, word.tokens(), &|| open.end()),
                Err(_) => ControlFlow::Continue(()),
            }
        };
        let flow = self.walk(shape, group, &mut |id, slot| {
            for cell in slot.touched_cells() {
                match cell.update_near(Word::stolen) {
                    Some(Ok(word)) => {
                        pass.saw(word);
                        give_back(id, word.tokens(), &|| cell.end())?;
                    }
                    Some(Err(word)) => pass.saw(word),
                    None => far.add(id, cell, &mut steal_open)?,
                }
            }
            ControlFlow::Continue(())
        });
        let flow = flow.is_continue() && far.each(&mut steal_open).is_continue();
        flow.then(|| pass.and(far_pass))
    }

    /// Makes one pass that changes nothing.
    pub(super) fn look(&self, shape: &TreeShape, group: GroupId) -> Collect {
        let mut pass = Collect::default();
        let _: ControlFlow<()> = self.walk(shape, group, &mut |_, slot| {
            // A local of its own, so that it stays in registers.
            let mut own = Collect::default();
            slot.each_touched(|cell| own.saw(cell.load()));
            pass = pass.and(own);
            ControlFlow::Continue(())
        });
        pass
    }
}
