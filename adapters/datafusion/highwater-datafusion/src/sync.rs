//! Atomics and numbers of threads for [`slot`](crate::slot) and [`reserve`](crate::reserve): their
//! models have others.

use std::cell::Cell;

pub(crate) use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering, fence};

thread_local! {
    /// The thread's number, once it has one; before, one that no thread has.
    static NUMBER: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Returns the thread's number if it has one, or else one that no thread has.
#[inline]
pub(crate) fn own_number() -> u64 {
    NUMBER.get()
}

/// Returns the thread's number: above 0, and never that of another thread, also of one that ended.
#[cold]
pub(crate) fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if NUMBER.get() == u64::MAX {
        // Relaxed: a number by itself.
        NUMBER.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    NUMBER.get()
}
