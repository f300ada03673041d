//! Atomic words by the thousand, all zero at first, which cost nothing before they are written.

use crate::sync::atomic::{AtomicU32, AtomicU64};

/// A word that is zero by default.
///
/// # Safety
///
/// Zeroed bytes are a value of it, and the one that it has by default.
pub(crate) unsafe trait Word: Default {}

// SAFETY: as the integer.
unsafe impl Word for AtomicU32 {}
// SAFETY: as the integer.
unsafe impl Word for AtomicU64 {}

/// So many words, all zero; the system commits them as they are written, if they are many.
#[cfg(not(loom))]
pub(crate) fn zeroed<T: Word>(count: usize) -> Box<[T]> {
    let words = Box::new_zeroed_slice(count);
    // SAFETY: zeroed bytes are a word.
    unsafe { words.assume_init() }
}

#[cfg(loom)]
pub(crate) fn zeroed<T: Word>(count: usize) -> Box<[T]> {
    (0..count).map(|_| T::default()).collect()
}
