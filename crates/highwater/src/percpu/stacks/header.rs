//! The header of a per-CPU stack: its tally, bottom and length in one word.
//!
//! ```text
//! bits  0..16  tally    the user's: stepped by each push and pop, set by the holder of the lock
//! bits 16..40  bottom   place of the oldest token, modulo the places that there may be
//! bits 40..64  len      tokens in the stack
//! ```
//!
//! They change together, by one store, so that a push or a pop is a restartable sequence with one
//! commit, and an unchanged header shows unchanged tokens in the same places.

use std::fmt;

const BOTTOM_SHIFT: u32 = 16;
const LEN_SHIFT: u32 = 40;
const TALLY: u64 = (1 << BOTTOM_SHIFT) - 1;
const ONE_TOKEN: u64 = 1 << LEN_SHIFT;

/// Maximum places of a stack: the length of a full one fits its field.
pub(super) const PLACES_MAX: u32 = 1 << 23;

/// The number of tokens in a stack, and the tally of its user.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header(pub(super) u64);

impl Header {
    /// An empty stack.
    pub(super) const EMPTY: Self = Self(0);

    /// Returns the number of tokens in the stack.
    #[inline]
    pub(crate) const fn len(self) -> u32 {
        (self.0 >> LEN_SHIFT) as u32
    }

    /// Returns the tally.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the field's 16 bits")]
    pub(crate) const fn tally(self) -> u16 {
        self.0 as u16
    }

    /// Returns the place of the token `at`, counted from the oldest, modulo [`PLACES_MAX`]; the
    /// bits above are arbitrary.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the field's 24 bits")]
    pub(super) const fn place(self, at: u32) -> u32 {
        ((self.0 >> BOTTOM_SHIFT) as u32).wrapping_add(at)
    }

    /// Returns the header after a push that steps the tally by `step`, up or (wrapped) down.
    #[inline]
    pub(super) const fn pushed(self, step: u64) -> Self {
        debug_assert!((self.0 & TALLY).wrapping_add(step) <= TALLY);
        Self(self.0.wrapping_add(ONE_TOKEN).wrapping_add(step))
    }

    /// Returns the header after a pop that steps the tally by `step`, up or (wrapped) down.
    #[inline]
    pub(super) const fn popped(self, step: u64) -> Self {
        debug_assert!((self.0 & TALLY).wrapping_add(step) <= TALLY);
        Self(self.0.wrapping_sub(ONE_TOKEN).wrapping_add(step))
    }

    /// Returns the header with `count` more tokens at the hot end.
    pub(super) const fn extended(self, count: u32) -> Self {
        Self(self.0 + ((count as u64) << LEN_SHIFT))
    }

    /// Returns the header without the oldest `count` tokens.
    pub(super) const fn without_oldest(self, count: u32) -> Self {
        let bottom = (self.0 >> BOTTOM_SHIFT).wrapping_add(count as u64) << BOTTOM_SHIFT;
        let mask = (ONE_TOKEN - 1) & !TALLY;
        Self((self.0 & !mask | bottom & mask) - ((count as u64) << LEN_SHIFT))
    }

    pub(super) const fn with_tally(self, tally: u16) -> Self {
        Self(self.0 & !TALLY | tally as u64)
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header")
            .field("len", &self.len())
            .field("tally", &self.tally())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Goal: a step changes only its own fields, as documented. Method: random headers, each step
    // against the same on three numbers.
    #[test]
    fn steps_change_their_fields_only() {
        let mut random = crate::seed::rng(5);
        let mask = 2 * PLACES_MAX - 1;
        let fields = |header: Header| (header.len(), header.place(0) & mask, header.tally());
        for _ in 0..10_000 {
            let (len, tally, next) = (random.u32(1..PLACES_MAX), random.u16(..), random.u16(..));
            let (bottom, count) = (random.u32(..=mask), random.u32(..=len));
            let header = Header(u64::from(bottom) << BOTTOM_SHIFT);
            let header = header.extended(len).with_tally(tally);
            assert_eq!(fields(header), (len, bottom, tally));
            let step = u64::from(next).wrapping_sub(tally.into());
            assert_eq!(fields(header.pushed(step)), (len + 1, bottom, next));
            assert_eq!(fields(header.popped(step)), (len - 1, bottom, next));
            let above = (bottom + count) & mask;
            let rest = header.without_oldest(count);
            assert_eq!(fields(rest), (len - count, above, tally));
        }
    }
}
