//! The only source of atomics, locks and threads: the standard library and `parking_lot` in a
//! normal build, the model checker's own under `cfg(loom)`.
//!
//! - [`StatCell`] is a statistic: relaxed, never the basis of a decision.
//! - [`atomic`] has the types that order memory accesses. A field's documentation names its
//!   writers, its readers and the data it publishes; each acquire or release names its partner.
//! - [`Mutex`] and [`RwLock`] park, and have a [`LockClass`]: its rank in the one lock-order table
//!   ([`Rank`]), which debug builds check, and its contention, which is always counted.
//! - [`Latch`] is a reader-writer lock of one word, for data that is kept elsewhere and may be read
//!   optimistically.
//! - [`Woken`] has tasks that are to be woken where no lock is held, [`WakerList`] tasks that wait.
//! - [`LockTimes`] records how long a lock was waited for and held, and for how much work.

mod block;
mod held;
mod latch;
mod lock;
mod padded;
mod stat;
mod times;
mod wake;

pub(crate) use block::Parker;
pub use block::block_on;
pub use held::HeldLatch;
pub use latch::{Latch, LatchMode, LatchQueues, LatchWait, LatchedData, Seen, Untaken};
pub use lock::{
    Condvar, LockClass, LockEvents, Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard,
    RwLockWriteGuard,
};
pub use padded::CachePadded;
pub use stat::{Sequence, StatCell};
pub use times::{Histogram, HistogramCells, Hold, LockTimes, SAMPLED, TimeRecorder};
pub use wake::{WakerList, WakerTicket, Woken};

/// Atomic types and orderings.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        Ordering, fence,
    };
    #[cfg(not(loom))]
    pub use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        Ordering, compiler_fence, fence,
    };
}

/// Does nothing, but in models: there it keeps a `SeqCst` store before a later `SeqCst` load, for
/// the model checker takes such accesses for release and acquire.
#[inline]
pub fn order_of_seqcst() {
    // Pairs with itself.
    #[cfg(loom)]
    atomic::fence(atomic::Ordering::SeqCst);
}

/// Threads: spawning, yielding, parking.
pub mod thread {
    #[cfg(loom)]
    pub use loom::thread::{Builder, JoinHandle, current, spawn, yield_now};
    #[cfg(loom)]
    pub use loom::thread_local;
    #[cfg(not(loom))]
    pub use std::thread::{Builder, JoinHandle, current, scope, sleep, spawn, yield_now};

    /// In a model no time passes; other threads may run.
    #[cfg(loom)]
    pub fn sleep(_: std::time::Duration) {
        yield_now();
    }
}

#[cfg(loom)]
pub(crate) use loom::lazy_static;
pub use std::sync::{Arc, OnceLock, Weak};
