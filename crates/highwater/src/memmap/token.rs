//! Ownership tokens that can be stored as numbers.

use crate::sync::Sequence;

/// Identifies the memory of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryId(u32);

impl MemoryId {
    /// Of no memory: numbers begin at 0, and never reach this.
    pub(super) const NONE: Self = Self(u32::MAX);

    /// Returns a number that no other memory of this process has.
    pub(super) fn next() -> Self {
        static IDS: Sequence = Sequence::new();

        let id = u32::try_from(IDS.next()).ok().map(Self);
        let id = id.filter(|&id| id != Self::NONE);
        id.expect("fewer than 2^32 memories in one process")
    }
}

/// A token of ownership that a per-CPU stack stores as a number of 32 bits.
///
/// The number distinguishes the tokens of one stack; their common part, such as the memory that
/// frames are cut from, is their *home*, which the stack stores once.
pub(crate) trait Token: Send + Sized {
    /// The common part of the tokens of one stack.
    type Home: Copy + Send + Sync;

    /// Converts the token to its number, which is below `u32::MAX`.
    ///
    /// # Panics
    ///
    /// When it does not belong to `home`.
    fn into_raw(self, home: Self::Home) -> u32;

    /// Converts the number back to the token.
    ///
    /// # Safety
    ///
    /// The number came from [`into_raw`](Self::into_raw) with the same home, and has not been
    /// converted back since that call.
    unsafe fn from_raw(raw: u32, home: Self::Home) -> Self;
}
