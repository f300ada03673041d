//! Lazily committed arrays of atomic words: all zero at first, without cost before they are
//! written.
//!
//! The per-frame metadata of a pool consists of these, so that it grows with use.

use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// A word, or a few side by side, zero by default.
///
/// # Safety
///
/// Zeroed bytes are a value of it, and the one that it has by default.
pub unsafe trait Zeroable: Default {}

// SAFETY: zero is `false`.
unsafe impl Zeroable for AtomicBool {}
// SAFETY: as the integer.
unsafe impl Zeroable for AtomicU8 {}
// SAFETY: as the integer.
unsafe impl Zeroable for AtomicU16 {}
// SAFETY: as the integer.
unsafe impl Zeroable for AtomicU32 {}
// SAFETY: as the integer.
unsafe impl Zeroable for AtomicU64 {}
// SAFETY: each part is valid and has its default as zeroed bytes; padding may be anything.
unsafe impl<A: Zeroable, B: Zeroable> Zeroable for (A, B) {}
// SAFETY: as of two.
unsafe impl<A: Zeroable, B: Zeroable, C: Zeroable> Zeroable for (A, B, C) {}

/// Returns `count` words, all zero; the system commits them as they are written, if they are many.
#[cfg(not(loom))]
#[must_use]
pub fn zeroed<T: Zeroable>(count: usize) -> Box<[T]> {
    let words = Box::new_zeroed_slice(count);
    // SAFETY: zeroed bytes are a word.
    unsafe { words.assume_init() }
}

/// So many words, all zero.
#[cfg(loom)]
#[must_use]
pub fn zeroed<T: Zeroable>(count: usize) -> Box<[T]> {
    (0..count).map(|_| T::default()).collect()
}
