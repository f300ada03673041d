//! Ownership tokens that can be stored as numbers.

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
