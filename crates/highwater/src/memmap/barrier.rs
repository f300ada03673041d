//! A store-load barrier that is paid for by one side.
//!
//! Readers announce what they borrow and then look whether it is still published; the one who
//! retracts marks first and then looks for announcements. Each side stores, then loads what the
//! other stores: without a full barrier on both sides, both can miss each other. Readers are many
//! and hot, so they pay for a compiler fence only ([`Barrier::light`]) and the retracting side makes every
//! CPU that runs a thread of this process execute a full barrier ([`Barrier::heavy`]), by the system call
//! membarrier(2). Where that is not available (old kernels, sandboxes, other systems, the model
//! checker), both sides execute a sequentially consistent fence.
//!
//! Cost of [`Barrier::heavy`], measured on 2 virtual CPUs of Linux 6.18: 0.25 to 0.56 us while no other
//! thread of the process runs, about 6 us while one does. It is paid once for a cluster of frames.

use crate::sync::atomic::{Ordering, fence};

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
            is_asymmetric: membarrier::is_registered(),
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

    /// Whether [`light`](Self::light) is [`bare`](Self::bare): it costs no instruction, or there is no other here.
    pub(super) fn is_bare(self) -> bool {
        #[cfg(all(target_os = "linux", not(loom)))]
        return self.is_asymmetric;
        #[cfg(not(all(target_os = "linux", not(loom))))]
        true
    }

    /// What [`light`](Self::light) does where [`is_bare`](Self::is_bare), for whoever has asked before.
    #[inline]
    pub(super) fn bare() {
        // Pairs with, both: `heavy`. As in `light`.
        #[cfg(all(target_os = "linux", not(loom)))]
        crate::sync::atomic::compiler_fence(Ordering::SeqCst);
        #[cfg(not(all(target_os = "linux", not(loom))))]
        fence(Ordering::SeqCst);
    }

    /// The cheap half: orders this thread's earlier stores before its later loads, as seen by a thread
    /// that calls [`heavy`](Self::heavy).
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

    /// The expensive half: afterwards, every [`light`](Self::light) of another thread lies wholly before or wholly
    /// after this call.
    pub(super) fn heavy(self) {
        #[cfg(all(target_os = "linux", not(loom)))]
        if self.is_asymmetric {
            membarrier::run();
            return;
        }
        // Pairs with: the fence of `light`. Acquire and release would let the store pass the load.
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(target_os = "linux", not(loom)))]
mod membarrier {
    use crate::sync::OnceLock;

    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
    const TRIES: u32 = 1_000_000;
    const PRIVATE_EXPEDITED: libc::c_int = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;

    /// Whether the kernel takes this process's membarrier calls; asked once. Registration is for the life of the process.
    pub(super) fn is_registered() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| call(REGISTER_PRIVATE_EXPEDITED) && call(PRIVATE_EXPEDITED))
    }

    /// Runs a full barrier on every CPU that runs a thread of this process.
    ///
    /// # Panics
    ///
    /// When a registered process is refused for as long as it takes to try [`TRIES`] times. The
    /// kernel refuses it only while it has no memory for a CPU mask. Going on without the barrier
    /// would hand out frames that are being read.
    pub(super) fn run() {
        for _ in 0..TRIES {
            if call(PRIVATE_EXPEDITED) {
                return;
            }
            crate::sync::thread::yield_now();
        }
        panic!("membarrier is refused, {TRIES} times in a row, to a process registered for it");
    }

    fn call(command: libc::c_int) -> bool {
        // SAFETY: membarrier takes a command and flags by value and touches no memory of ours.
        let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        result >= 0
    }
}
