//! A store-load barrier that is paid for by one side.
//!
//! Readers announce what they borrow and then look whether it is still published; the one who
//! retracts marks first and then looks for announcements. Each side stores, then loads what the
//! other stores: without a full barrier on both sides, both can miss each other. Readers are many
//! and hot, so they pay for a compiler fence only ([`Barrier::light`]) and the retracting side
//! makes every CPU that runs a thread of this process execute a full barrier ([`Barrier::heavy`]),
//! by the system call membarrier(2). Where that is not available (old kernels, sandboxes, other
//! systems, the model checker), both sides execute a sequentially consistent fence.
//!
//! Where the call is refused to a process that it was granted to before, the retracting side visits
//! the CPUs instead (module `membarrier`), or gets an error.
//!
//! Cost of [`Barrier::heavy`], measured on 2 virtual CPUs of Linux 6.18: 0.25 to 0.56 us while no
//! other thread of the process runs, about 6 us while one does. It is paid once for a cluster of
//! frames.

use std::io;

use thiserror::Error;

#[cfg(all(target_os = "linux", not(loom)))]
use super::membarrier::Membarrier;
use crate::sync::atomic::{Ordering, fence};

/// Other threads could not be made to pass a barrier, or to leave their sequences.
#[derive(Debug, Error)]
#[error(
    "membarrier(2) is refused to a process that it was granted to before ({refusal}), and CPUs cannot be visited in its \
     place ({visiting}): allow membarrier, or sched_setaffinity and /proc/self/task"
)]
pub(crate) struct Unreached {
    /// Of membarrier.
    pub(super) refusal: io::Error,
    /// What kept the thread from visiting.
    pub(super) visiting: io::Error,
}

/// How the two sides of one memory order their stores and loads: both in the same way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Barrier {
    /// Whether [`heavy`](Self::heavy) pays for both.
    #[cfg(all(target_os = "linux", not(loom)))]
    is_asymmetric: bool,
}

impl Barrier {
    /// The cheapest that the system has.
    pub(super) fn new() -> Self {
        Self {
            #[cfg(all(target_os = "linux", not(loom)))]
            is_asymmetric: Membarrier::Fence.refusal().is_none(),
        }
    }

    /// That of a system without membarrier.
    #[cfg(all(test, not(loom)))]
    pub(super) fn fenced() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            is_asymmetric: false,
        }
    }

    /// Whether it relies on membarrier.
    #[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
    pub(super) fn is_asymmetric(self) -> bool {
        self.is_asymmetric
    }

    /// Whether [`light`](Self::light) is [`bare`](Self::bare): it costs no instruction, or there is
    /// no other here.
    pub(super) fn is_bare(self) -> bool {
        #[cfg(all(target_os = "linux", not(loom)))]
        return self.is_asymmetric;
        #[cfg(not(all(target_os = "linux", not(loom))))]
        true
    }

    /// What [`light`](Self::light) does where [`is_bare`](Self::is_bare), for whoever has asked
    /// before.
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
