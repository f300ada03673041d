//! What a pass over token words sees of them.

use crate::units::GroupId;

use super::cell::{InFlight, Word};
use super::slot::Slot;

/// The result of a pass over the words of a subtree.
///
/// Two passes that are [alike](Self::is_as_before) saw the same in every word: a word whose
/// sequence grew is larger than before by more than any change of its lower half can offset, except
/// that of its tokens, which are summed apart; and where no sequence grew, tokens can only have
/// been taken.
#[derive(Clone, Copy, Default)]
pub(in crate::group) struct Collect {
    /// Tokens that are reserved on the group.
    pub(in crate::group) tokens: u64,
    /// Tokens of the own words of groups below it, which are not.
    others: u64,
    /// Sum of the words themselves, modulo 2^64.
    words: u64,
    /// Operations in flight in any of them.
    in_flight: InFlight,
}

impl Collect {
    #[inline]
    pub(in crate::group) fn saw(&mut self, word: Word) {
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
    pub(in crate::group) fn saw_others(&mut self, top: GroupId, id: GroupId, slot: &Slot) {
        if id != top && slot.has_own() {
            slot.each_touched(|words| self.saw_other(words.own.load()));
        }
    }

    /// Combines two passes over different words.
    pub(in crate::group) fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            others: self.others + other.others,
            words: self.words.wrapping_add(other.words),
            in_flight: self.in_flight.and(other.in_flight),
        }
    }

    /// Whether this pass saw every byte in a reservation, in a word, or used.
    pub(in crate::group) fn is_still(self) -> bool {
        self.in_flight.is_nothing()
    }

    /// Whether both passes were still and saw the same.
    pub(in crate::group) fn is_as_before(self, before: Self) -> bool {
        let is_still = self.is_still() && before.is_still();
        let tokens = |pass: Self| (pass.tokens, pass.others);
        is_still && tokens(self) == tokens(before) && self.words == before.words
    }
}

impl Slot {
    /// Looks at the words of the group, in a pass over those below `top`.
    #[inline]
    pub(in crate::group) fn collect(&self, top: GroupId) -> Collect {
        let (is_top, has_own) = (self.id() == top, self.has_own());
        let mut pass = Collect::default();
        if !has_own {
            self.each_touched(|words| pass.saw(words.chain.load()));
            return pass;
        }
        self.each_touched(|words| {
            pass.saw(words.chain.load());
            match is_top {
                true => pass.saw(words.own.load()),
                false => pass.saw_other(words.own.load()),
            }
        });
        pass
    }
}
