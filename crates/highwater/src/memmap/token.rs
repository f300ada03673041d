//! Rights that can be kept as numbers.

/// A value that is a right, and that a per-CPU stack keeps as a number of 32 bits.
///
/// What tells the values of one stack apart is the number; what they have in common, such as the
/// memory that frames are cut from, is their *home*, which the stack keeps once.
pub(crate) trait Token: Send + Sized {
    /// What the tokens of one stack have in common.
    type Home: Copy + Send + Sync;

    /// Turns the right into its number, which is below `u32::MAX`.
    ///
    /// # Panics
    ///
    /// When it is not of `home`.
    fn into_raw(self, home: Self::Home) -> u32;

    /// Turns the number back into the right.
    ///
    /// # Safety
    ///
    /// The number came from [`into_raw`](Self::into_raw) with the same home, and that call's right
    /// has not been made again since.
    unsafe fn from_raw(raw: u32, home: Self::Home) -> Self;
}
