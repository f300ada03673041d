//! An asymmetric store-load barrier: only one side pays for it.
//!
//! Readers announce a borrowed frame and then check that it is still published; retracting clears
//! the tag first and then scans the announcements. Each side stores, then loads the other side's
//! store: without a full barrier on both sides, each can miss the other. Readers are many and hot,
//! so they pay only for a compiler fence ([`Barrier::light`]), and the retracting side makes every
//! CPU that runs a thread of this process execute a full barrier ([`Barrier::heavy`]), by the
//! system call membarrier(2). Where that is not available (old kernels, sandboxes, other systems,
//! the model checker), both sides execute a sequentially consistent fence.
//!
//! If the system later refuses the call to a process that it granted it to before, the retracting
//! side visits the CPUs instead (module `membarrier`), or gets an error.
//!
//! Cost of [`Barrier::heavy`], measured on 2 virtual CPUs of Linux 6.18: 0.25 to 0.56 us while no
//! other thread of the process runs, about 6 us while one does. It is paid once for a cluster of
//! frames.

use super::Unreached;
#[cfg(all(target_os = "linux", not(loom)))]
use super::membarrier::Membarrier;
use crate::sync::atomic::{Ordering, fence};

/// How the two sides of one memory order their stores and loads; both use the same method.
#[derive(Clone, Copy, Debug)]
pub(super) struct Barrier {
    /// Whether [`heavy`](Self::heavy) pays for both.
    #[cfg(all(target_os = "linux", not(loom)))]
    is_asymmetric: bool,
}

impl Barrier {
    /// Returns the cheapest barrier of the system.
    pub(super) fn new() -> Self {
        Self {
            #[cfg(all(target_os = "linux", not(loom)))]
            is_asymmetric: Membarrier::Fence.refusal().is_none(),
        }
    }

    /// Returns the barrier of a system without membarrier.
    #[cfg(all(test, not(loom)))]
    pub(super) fn fenced() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            is_asymmetric: false,
        }
    }

    /// Returns whether it relies on membarrier.
    #[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
    pub(super) fn is_asymmetric(self) -> bool {
        self.is_asymmetric
    }

    /// Returns whether [`light`](Self::light) is [`bare`](Self::bare): it costs no instruction, or
    /// no other exists here.
    pub(super) fn is_bare(self) -> bool {
        #[cfg(all(target_os = "linux", not(loom)))]
        return self.is_asymmetric;
        #[cfg(not(all(target_os = "linux", not(loom))))]
        true
    }

    /// Does the same as [`light`](Self::light) if [`is_bare`](Self::is_bare), which the caller has
    /// checked.
    #[inline]
    pub(super) fn bare() {
        // Pairs with, both: `heavy`. As in `light`.
        #[cfg(all(target_os = "linux", not(loom)))]
        crate::sync::atomic::compiler_fence(Ordering::SeqCst);
        #[cfg(not(all(target_os = "linux", not(loom))))]
        fence(Ordering::SeqCst);
    }

    /// The cheap half: orders this thread's earlier stores before its later loads, as seen by a
    /// thread that calls [`heavy`](Self::heavy).
    #[inline]
    pub(super) fn light(self) {
        #[cfg(all(target_os = "linux", not(loom)))]
        if self.is_asymmetric {
            // Pairs with: `heavy`, which runs the CPU's part of the barrier in this thread's place.
            crate::sync::atomic::compiler_fence(Ordering::SeqCst);
            return;
        }
        // Pairs with: the fence of `heavy`. Acquire and release would let the store pass the load.
        fence(Ordering::SeqCst);
    }

    /// The expensive half: afterwards, every [`light`](Self::light) of another thread lies wholly
    /// before or wholly after this call.
    ///
    /// # Errors
    ///
    /// When the system refuses it now: nothing is ordered.
    pub(super) fn heavy(self) -> Result<(), Unreached> {
        #[cfg(all(target_os = "linux", not(loom)))]
        if self.is_asymmetric {
            return Membarrier::Fence.run(None);
        }
        // Pairs with: the fence of `light`. Acquire and release would let the store pass the load.
        fence(Ordering::SeqCst);
        Ok(())
    }
}
