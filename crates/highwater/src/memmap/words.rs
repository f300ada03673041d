//! Lazily committed arrays of atomic words: all zero at first, without cost before they are
//! written.
//!
//! The per-frame metadata of a pool consists of these, so that it grows with use.

#[cfg(not(loom))]
use std::{
    alloc::{self, Layout},
    ptr::NonNull,
};

use crate::sync::Latch;
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
// SAFETY: a transparent integer; its default is zero.
unsafe impl Zeroable for Latch {}
// SAFETY: each part is valid and has its default as zeroed bytes; padding may be anything.
unsafe impl<A: Zeroable, B: Zeroable> Zeroable for (A, B) {}
// SAFETY: as of two.
unsafe impl<A: Zeroable, B: Zeroable, C: Zeroable> Zeroable for (A, B, C) {}

/// Returns `count` words, all zero; the system commits them as they are written, if they are many.
///
/// # Panics
///
/// If they do not fit into an address space.
#[cfg(not(loom))]
#[must_use]
pub fn zeroed<T: Zeroable>(count: usize) -> Box<[T]> {
    let layout = Layout::array::<T>(count).expect("fewer bytes than an address space");
    if layout.size() == 0 {
        return Box::default();
    }
    // SAFETY: the size is not zero.
    let first = unsafe { alloc::alloc_zeroed(layout) };
    let Some(first) = NonNull::new(first.cast::<T>()) else {
        alloc::handle_alloc_error(layout)
    };
    let words = NonNull::slice_from_raw_parts(first, count);
    // SAFETY: the allocator of boxes returned it for this layout, and zeroed bytes are words.
    unsafe { Box::from_raw(words.as_ptr()) }
}

/// Returns `count` words, all zero.
#[cfg(loom)]
#[must_use]
pub fn zeroed<T: Zeroable>(count: usize) -> Box<[T]> {
    (0..count).map(|_| T::default()).collect()
}
