//! The restartable sequences (rseq) in pseudo-code, the kernel's structures, and how the area is
//! found.
//!
//! Six sequences on words anywhere; their clients, the other files of this module, give them
//! meaning. They differ in what they do before one store commits them:
//!
//! ```text
//! sequence(on, ..) -> committed or not
//!
//!         area.rseq_cs = &descriptor          arm: from here on the kernel checks the range
//! start:  if area.cpu_id != on.cpu            stays false until `post`, or we do not get there;
//!             return not committed            true when not registered (-1, -2)
//!         if *on.guard != on.expected         if there is a guard
//!             return not committed
//!         BODY
//! post:   return committed
//!
//! abort:  return not committed                the kernel comes here and has disarmed
//!
//! descriptor = { version 0, flags 0, start, post - start, abort }
//!
//! add(on, word, delta, bounds)                for one [shift, span], or none:
//!                                                 if *word + delta + shift >= span
//!                                                     return not committed        without a sign
//!                                             *word += delta              COMMIT: one instruction
//!
//! add_within(on, word, [delta, mask])         new = *word + delta         an even delta
//!     -> new, if committed                    if *word is even, or, if MASKED, its bits of the
//!                                             mask would change
//!                                                 return not committed
//!                                             *word = new                 COMMIT
//!
//! store(on, word, [old, new], places)         if *word != old
//!                                                 return not committed
//!                                             for one (place, value), or none:
//!                                                 *place = value          also if it then aborts
//!                                             *word = new                 COMMIT
//!
//! add_both(cpu, first, second)                if a gate is up, or a word is not `old`
//!     -> how many additions were made             return 0
//!                                             *first.word += first.delta  also if it then aborts
//!                                             *second.word += second.delta    COMMIT, if AGAIN = 0
//!                                             *first.word += AGAIN            COMMIT, otherwise
//!
//! load_store(on, word, [old, new], place)     if *word != old
//!     -> the value, if committed                  return not committed
//!                                             value = *place              32 bits, as all places
//!                                             *word = new                 COMMIT
//!
//! exchange(on, word, [old, new])              seen = compare_exchange(word, old, new)
//!     -> seen, if committed                                               COMMIT: one instruction
//! ```
//!
//! **Contract with an architecture** (`rseq_x86_64.rs`): these methods of [`Area`]; `cpu_number`,
//! which loads `area.cpu_id`; and the `SIGNATURE`. All loads acquire and the commit releases;
//! `exchange` is a full fence. `DELAY` is 0 outside tests. There it is a number of turns to spend
//! at each point where an interruption would do harm if the sequence did not restart: after the
//! condition, before the commit, and between two additions. A system without sequences has
//! `fallback.rs`, the model checker `model.rs`.
//!
//! `add_both` makes each addition but the one that commits by one instruction that also replaces a
//! register, the delta by the word's former value. An aborted attempt has its registers still, and
//! thus says how far it came: its client completes what was begun.
//!
//! A client reads the CPU number, computes places and values from what it loads there, and lets the
//! sequence check what it has loaded: an outdated value is like an interruption. A word that may
//! return to a former value must determine everything else that the client has loaded.
//!
//! A thread that is preempted, migrated or delivers a signal between `start` and `post` continues
//! at `abort`. Since the commit is one instruction and the last one of the range, an aborted
//! attempt has not committed and a committed one cannot abort. A retry reads everything again; an
//! `add_both` that has made an addition is completed by other steps, not retried.
//!
//! `rseq_cs` is not cleared after the commit: the kernel clears it when it next looks and finds the
//! thread outside the range.
//!
//! **Stopping others.** The words that a sequence reads can be changed from another CPU too, if the
//! sequences that have read them already are made to restart: membarrier(2) interrupts the CPU, and
//! a thread inside a sequence there goes to its `abort` ([`Area::restart_others`]). An `exchange`
//! needs no such call: it proves that the thread ran on the CPU at that moment, so that every other
//! thread of that CPU had been preempted, and will abort. So does a visit to a CPU, where
//! membarrier is refused.
//!
//! The kernel jumps to `abort` only if the four bytes before it are the [`SIGNATURE`] that the C
//! library registered with, so that a corrupted descriptor cannot be used to jump anywhere.
//!
//! **Finding the area.** The C library (glibc 2.35 and later) registers each thread that it starts
//! and exports where the areas lie: `__rseq_offset` from the thread pointer, and `__rseq_size`, 0
//! when registration is off or failed. The program starts with a library that lacks them: module
//! `rseq_symbols`. A thread that was unregistered later, or never was, has a negative `cpu_id`. A
//! thread that the C library did not register is not registered here either: the area would have to
//! be unregistered before the thread's memory goes, and a library that is linked in later may count
//! on finding none.

use std::mem::offset_of;
use std::num::NonZeroIsize;

use super::rseq_x86_64::SIGNATURE;
use super::{RegimeReason, rseq_symbols as symbols};
use crate::memmap::{Membarrier, Unreached};
use crate::units::CpuId;

/// Proof that the C library gives every thread an rseq area, and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    /// Bytes from the thread pointer to the area. Never zero: there the thread's own control block
    /// is.
    offset: NonZeroIsize,
}

/// A thread's area, shared with the kernel: `struct rseq` of `linux/rseq.h`.
#[repr(C, align(32))]
pub(super) struct RseqArea {
    cpu_id_start: u32,
    pub(super) cpu_id: u32,
    pub(super) rseq_cs: u64,
    flags: u32,
    node_id: u32,
    mm_cid: u32,
}

/// A sequence's descriptor: `struct rseq_cs` of `linux/rseq.h`, written out in the assembly.
#[repr(C, align(32))]
pub(super) struct RseqCs {
    version: u32,
    flags: u32,
    start_ip: u64,
    post_commit_offset: u64,
    abort_ip: u64,
}

const _: () = {
    assert!(size_of::<RseqArea>() == 32 && align_of::<RseqArea>() == 32);
    assert!(offset_of!(RseqArea, cpu_id_start) == 0);
    assert!(offset_of!(RseqArea, cpu_id) == 4);
    assert!(offset_of!(RseqArea, rseq_cs) == 8);
    assert!(offset_of!(RseqArea, flags) == 16);
    assert!(offset_of!(RseqArea, node_id) == 20);
    assert!(offset_of!(RseqArea, mm_cid) == 24);
    assert!(size_of::<RseqCs>() == 32 && align_of::<RseqCs>() == 32);
    assert!(offset_of!(RseqCs, start_ip) == 8);
    assert!(offset_of!(RseqCs, post_commit_offset) == 16);
    assert!(offset_of!(RseqCs, abort_ip) == 24);
};

/// Bytes of the area that every kernel with rseq fills: everything before `node_id`.
const SIZE_MIN: usize = offset_of!(RseqArea, node_id);

impl Area {
    /// Returns the area of this process's threads, if the C library registers them; otherwise the
    /// reason.
    pub(super) fn find() -> Result<Self, RegimeReason> {
        let (Some(offset), Some(size)) = (symbols::offset(), symbols::size()) else {
            return Err(RegimeReason::NoArea);
        };
        // SAFETY: the C library defines `extern const unsigned int __rseq_size`, initialised before
        // any Rust code runs and never written afterwards.
        let size = unsafe { size.read() };
        if (size as usize) < SIZE_MIN {
            return Err(why_unregistered());
        }
        // SAFETY: the C library defines `extern const ptrdiff_t __rseq_offset`, as above.
        let offset = NonZeroIsize::new(unsafe { offset.read() });
        let offset = offset.ok_or(RegimeReason::NoArea)?;
        Ok(Self { offset })
    }

    #[inline(always)]
    pub(super) fn offset(self) -> isize {
        self.offset.get()
    }

    /// Returns the error number with which the kernel refuses to restart sequences of this process
    /// on other CPUs, if it does. Asked once.
    pub(super) fn membarrier_refusal(self) -> Option<i32> {
        Membarrier::Restart.refusal()
    }

    /// Returns when no thread of this process is inside a sequence on `cpu`, or on any CPU if none
    /// is named, that it entered before the call, other than to abort it; stores of finished
    /// sequences are visible.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a call that it accepted before, and its substitute: nothing was
    /// restarted.
    pub(super) fn restart_others(self, cpu: Option<CpuId>) -> Result<(), Unreached> {
        Membarrier::Restart.run(cpu)
    }
}

/// Returns why the C library has areas and registered none.
fn why_unregistered() -> RegimeReason {
    let nowhere = std::ptr::null_mut::<RseqArea>();
    // SAFETY: no kernel registers an area of no bytes, so that the call has no effect. One that has
    // rseq(2) says that the argument is invalid.
    let rc = unsafe { libc::syscall(libc::SYS_rseq, nowhere, 0, 0, SIGNATURE) };
    match (rc, last_errno()) {
        (0, _) | (_, libc::EINVAL) => RegimeReason::TurnedOff,
        (_, errno) => RegimeReason::RseqRefused { errno },
    }
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
