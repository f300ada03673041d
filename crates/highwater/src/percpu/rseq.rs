//! The restartable sequences (rseq) in pseudo-code, the kernel's structures, and how the area is
//! found.
//!
//! ```text
//! attempt_add(column, delta) -> Committed { cpu, new } | Refused | Aborted | Elsewhere
//!
//!         area.rseq_cs = &descriptor          arm: from here on the kernel checks the range
//! start:  cpu  = area.cpu_id                  stays true until `post`, or we do not get there
//!         if cpu >= column.nr_cpus            unsigned: also when not registered (-1, -2)
//!             return Elsewhere
//!         cell = column.first + cpu * column.stride
//!         old  = *cell
//!         if old is even                      not touched yet: see the module `cells`
//!             return Refused
//!         new  = old + delta
//!         *cell = new                         COMMIT: the only store, the last instruction
//! post:   return Committed { cpu, new }
//!
//! abort:  return Aborted                      the kernel comes here and has disarmed
//!
//! descriptor = { version 0, flags 0, start, post - start, abort }
//!
//! try_add(column, delta, mask) -> added or not; as `attempt_add`, but before the commit
//!         if (old ^ new) & mask               leaves its band: see the module `cells`
//!             return not added
//!
//! try_add_owned(cell, owner, delta) -> added or not
//!         if cpu != owner
//!             return not added
//!         *cell = *cell + delta               COMMIT: the store
//!
//! try_store_guarded(owner, guard, expected, word, old, new, count) -> stored or not
//!         if cpu != owner or guard != expected or word != old
//!             return not stored
//!         count += 1                          a statistic: once more if it aborts right here
//!         word = new                          COMMIT
//!
//! try_store(gated, old, new) -> stored or not  a word, and a station: its CPU, and above it its gate
//!         if gated.station != cpu             another CPU's, or the gate is up: see `gated`
//!             return not stored
//!         if gated.word != old
//!             return not stored
//!         gated.word = new                    COMMIT
//!
//! try_add_gated(words, delta) -> added or not
//!         if cpu >= words.len
//!             return not added
//!         if words[cpu].station != cpu        the gate is up: see `gated`
//!             return not added
//!         words[cpu].word += delta            COMMIT: one instruction
//!
//! try_pop(stacks) -> a number or nothing       a stack is a header, a station, and a ring: see `stacks`
//!         if cpu >= stacks.nr_cpus
//!             return nothing
//!         stack = stacks.first + cpu
//!         if stack.station != cpu             locked
//!             return nothing
//!         { len, run, grow, mark } = stack.header
//!         if len == 0
//!             return nothing
//!         raw = stack.ring[(stack.bottom + len - 1) & stack.mask]
//!         stack.header = { len - 1, run / 2, grow, mark }   COMMIT
//!         return raw
//!
//! try_push(stacks, raw) -> pushed or not       to the header as `try_pop`
//!         if len >= stack.limit
//!             return not pushed
//!         stack.ring[(stack.bottom + len) & stack.mask] = raw     above the hot end: not in the stack yet
//!         stack.header = { len + 1, run + (run < stack.run_max), grow / 2, no mark }   COMMIT
//!
//! try_add_within(window, pair, delta) -> added or not     see the module `windowed`
//!         if cpu != window.cpu
//!             return not added
//!         width = *window                     32 bits
//!         new   = pair.cell + delta
//!         if not -width <= new - pair.base < width
//!             return not added
//!         pair.cell = new                     COMMIT
//!
//! attempt_exchange(cell, owner, old, new)
//!         if cpu != owner
//!             return Elsewhere
//!         seen = compare_exchange(cell, old, new)     COMMIT: one locked instruction
//!         return Committed { cpu, seen }      exchanged if `seen` is `old`
//! ```
//!
//! A thread that is preempted, migrated or delivers a signal between `start` and `post` continues
//! at `abort`. Since the commit is one instruction and the last one of the range, an aborted
//! attempt has stored nothing and a committed one cannot abort. A retry reads everything again: the
//! CPU number, and the cell of that CPU.
//!
//! `rseq_cs` is not cleared after the commit: the kernel clears it when it next looks and finds the
//! thread outside the range.
//!
//! **Stopping others.** The fields of a slot that a sequence reads can be changed from another CPU
//! too, if the sequences that have read them already are made to restart: membarrier(2) interrupts
//! the CPU, and a thread inside a sequence there goes to its `abort` ([`restart_others`]). A
//! compare-and-exchange as the commit of a sequence needs no such call: it proves that the thread
//! ran on the CPU at that moment, so that every other thread of that CPU had been preempted, and
//! will abort. So does a visit to a CPU, where membarrier is refused.
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

use super::{RegimeReason, rseq_symbols as symbols};
use crate::memmap::{Membarrier, Unreached};
use crate::units::CpuId;

/// The four bytes before each abort handler; x86-64 value of the C library's `RSEQ_SIG`.
pub(super) const SIGNATURE: u32 = 0x5305_3053;

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

/// Returns the offset of each thread's area from its thread pointer, if the C library registers its
/// threads.
pub(super) fn area_offset() -> Result<isize, RegimeReason> {
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
    Ok(unsafe { offset.read() })
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

/// Returns the error number with which the kernel refuses to restart sequences of this process on
/// other CPUs, if it does. Asked once.
pub(super) fn membarrier_refusal() -> Option<i32> {
    Membarrier::Restart.refusal()
}

/// Returns when no thread of this process is inside a sequence on `cpu`, or on any CPU if none is
/// named, that it entered before the call, other than to abort it; stores of finished sequences are
/// visible.
///
/// # Errors
///
/// When the kernel refuses a call that it accepted before, and its substitute: nothing was
/// restarted.
pub(super) fn restart_others(cpu: Option<CpuId>) -> Result<(), Unreached> {
    Membarrier::Restart.run(cpu)
}
