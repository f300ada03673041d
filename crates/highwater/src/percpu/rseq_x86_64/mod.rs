//! The sequences of `rseq.rs` in x86-64 instructions.
//!
//! The thread pointer is `fs`, so that the area's fields are `fs:[offset + field]`. Aligned plain
//! loads and stores of 8 bytes are single accesses here, and stores become visible in program
//! order: other threads may read a cell as an acquiring atomic while its CPU writes it.

use std::arch::asm;
use std::mem::offset_of;
use std::num::NonZeroIsize;
use std::ops::RangeBounds;

use super::RegimeReason;
use super::attempt::{Attempt, Column};
use super::gated::Gated;
use super::rseq::{self, RseqArea, SIGNATURE, area_offset};
#[cfg(feature = "lab")]
use super::sequences::GuardedStore;
use super::windowed::Target;
use crate::memmap::Unreached;
use crate::units::CpuId;

/// Proof that the C library gives every thread an rseq area, and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    /// Bytes from the thread pointer to the area. Never zero: there the thread's own control block
    /// is.
    offset: NonZeroIsize,
}

/// CPU number that an aborted attempt reports: above every real one, and none that the kernel uses
/// for a thread that is not registered.
const ABORTED: u32 = 1 << 31;

/// CPU number that an attempt reports when its condition did not hold; as [`ABORTED`].
const REFUSED: u32 = ABORTED | 1;

/// `DELAY` turns of a loop, none outside tests, at the given label; in a register without a live
/// value.
macro_rules! delay {
    ($label:literal) => {
        delay!($label, "scratch")
    };
    ($label:literal, $register:literal) => {
        concat!(
            ".if {delay}\n",
            "mov {",
            $register,
            ":e}, {delay}\n",
            $label,
            ":\n",
            "dec {",
            $register,
            ":e}\n",
            "jnz ",
            $label,
            "b\n",
            ".endif",
        )
    };
}

/// One restartable sequence: arms, reads the CPU number into `{cpu}`, runs `body`, whose last
/// instruction is the commit. The body may jump out of the sequence;
/// `aborted` is where the kernel sends it.
///
/// Clobbers: the registers named, the flags, and the memory of the cell and of the area. The kernel
/// restores all registers but the instruction pointer when it aborts.
macro_rules! sequence {
    ($area:expr, [$($body:expr),* $(,)?], aborted [$($aborted:literal),*], $($operands:tt)*) => {
        asm!(
            // The descriptor, and a pointer to it by which debuggers find all of them.
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "7:",
            ".long 0, 0",
            ".quad 2f, 3f - 2f, 5f",
            ".popsection",
            ".pushsection __rseq_cs_ptr_array, \"aw\"",
            ".quad 7b",
            ".popsection",
            // Arm.
            "lea {cpu:r}, [rip + 7b]",
            "mov qword ptr fs:[{area} + {rseq_cs}], {cpu:r}",
            // start
            "2:",
            "mov {cpu:e}, dword ptr fs:[{area} + {cpu_id}]",
            $($body,)*
            // post
            "3:",
            // abort, out of line. The bytes before the signature make it a valid instruction
            // (`ud1`) for disassemblers; it is never executed.
            ".pushsection __rseq_failure, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long {signature}",
            "5:",
            $($aborted,)*
            ".popsection",
            area = in(reg) $area.offset.get(),
            rseq_cs = const offset_of!(RseqArea, rseq_cs),
            cpu_id = const offset_of!(RseqArea, cpu_id),
            signature = const SIGNATURE,
            $($operands)*
            options(nostack),
        )
    };
}

// After the macros, which it uses.
mod stack;

impl Area {
    /// Returns the area of this process's threads, if the C library registers them; otherwise the
    /// reason.
    pub(super) fn find() -> Result<Self, RegimeReason> {
        let offset = NonZeroIsize::new(area_offset()?).ok_or(RegimeReason::NoArea)?;
        Ok(Self { offset })
    }

    /// Returns the CPU that the thread runs on, or `None` if the thread is not registered.
    #[inline]
    pub(super) fn cpu(self) -> Option<CpuId> {
        // Negative numbers are the kernel's and the C library's ways to say "not registered".
        let cpu = self.cpu_number();
        (cpu.cast_signed() >= 0).then_some(CpuId(cpu))
    }

    /// Returns the CPU that the thread runs on, or a number of 2^31 and more if it is not
    /// registered.
    #[inline(always)]
    pub(super) fn cpu_number(self) -> u32 {
        let cpu: u32;
        // SAFETY: `offset` comes from the C library, which allots the area in the static TLS block
        // of every thread it starts, registered or not. Only reads it; no flags, no stack.
        unsafe {
            asm!(
                "mov {cpu:e}, dword ptr fs:[{area} + {cpu_id}]",
                cpu = out(reg) cpu,
                area = in(reg) self.offset.get(),
                cpu_id = const offset_of!(RseqArea, cpu_id),
                options(nostack, preserves_flags, readonly),
            );
        }
        cpu
    }

    /// Adds `delta` to the cell of the CPU that the thread runs on, if the cell is odd; else does
    /// nothing.
    ///
    /// `DELAY` is 0 outside tests. There it is a number of turns to spend at each of the two points
    /// where an interruption would do harm if the sequence did not restart: with the CPU number
    /// read but not used, and with the sum computed but not stored.
    ///
    /// # Safety
    ///
    /// For each `cpu < column.nr_cpus`, `column.first + cpu * column.stride` is an aligned
    /// `AtomicI64` that lives for the whole call, and that is written by these sequences only.
    #[inline]
    pub(super) unsafe fn attempt_add<const DELAY: u32>(
        self,
        column: Column,
        delta: i64,
    ) -> Attempt {
        let cpu: u32;
        let new: i64;
        // SAFETY: the caller vouches for the cells, and the bounds check inside the sequence keeps
        // the store to them. `offset` is as in `cpu`. The range, its descriptor and the abort
        // handler follow the kernel's rules, as the module `rseq` states them.
        unsafe {
            sequence!(
                self,
                [
                    "cmp {cpu:e}, {nr_cpus:e}",
                    "jae 3f",
                    delay!("8"),
                    "mov {cell:e}, {cpu:e}",
                    "imul {cell}, {stride}",
                    "mov {scratch}, qword ptr [{first} + {cell}]",
                    "test {scratch:l}, 1",
                    "jz 6f",
                    "add {new}, {scratch}",
                    delay!("9"),
                    // COMMIT
                    "mov qword ptr [{first} + {cell}], {new}",
                ],
                aborted ["mov {cpu:e}, {aborted}", "jmp 3b", "6:", "mov {cpu:e}, {refused}", "jmp 3b"],
                first = in(reg) column.first,
                stride = in(reg) column.stride,
                nr_cpus = in(reg) column.nr_cpus,
                new = inout(reg) delta => new,
                cpu = out(reg) cpu,
                cell = out(reg) _,
                scratch = out(reg) _,
                delay = const DELAY,
                aborted = const ABORTED,
                refused = const REFUSED,
            );
        }
        Self::outcome(cpu, ..column.nr_cpus, new)
    }

    /// Like [`attempt_add`](Self::attempt_add), if moreover the bits of `mask` do not change.
    /// Returns whether it was added; reporting no more makes the common case one test shorter.
    ///
    /// # Safety
    ///
    /// As for [`attempt_add`](Self::attempt_add).
    #[inline]
    pub(super) unsafe fn try_add<const DELAY: u32>(
        self,
        column: Column,
        delta: i64,
        mask: i64,
    ) -> bool {
        // SAFETY: as in `attempt_add`. Whatever leaves the sequence early has stored nothing.
        unsafe {
            sequence!(
                self,
                [
                    "cmp {cpu:e}, {nr_cpus:e}",
                    "jae {not_added}",
                    delay!("8"),
                    "imul {cpu:r}, {stride}",
                    "mov {scratch}, qword ptr [{first} + {cpu:r}]",
                    "test {scratch:l}, 1",
                    "jz {not_added}",
                    "add {new}, {scratch}",
                    "xor {scratch}, {new}",
                    "test {scratch}, {mask}",
                    "jnz {not_added}",
                    delay!("9"),
                    // COMMIT
                    "mov qword ptr [{first} + {cpu:r}], {new}",
                ],
                aborted ["jmp {not_added}"],
                first = in(reg) column.first,
                stride = in(reg) column.stride,
                nr_cpus = in(reg) column.nr_cpus,
                mask = in(reg) mask,
                new = inout(reg) delta => _,
                cpu = out(reg) _,
                scratch = out(reg) _,
                delay = const DELAY,
                not_added = label { return false },
            );
        }
        true
    }

    /// Adds `delta` to `cell`, if the thread runs on `owner` and is not interrupted; otherwise does
    /// nothing. Returns whether it was added.
    ///
    /// # Safety
    ///
    /// `cell` is an aligned `AtomicI64` or `AtomicU64` that lives for the whole call. Whatever else
    /// writes it does so by these sequences, always on `owner`, or not during the call.
    #[inline]
    pub(super) unsafe fn try_add_owned<const DELAY: u32>(
        self,
        cell: *const i64,
        owner: CpuId,
        delta: i64,
    ) -> bool {
        // SAFETY: as in `attempt_add`; only the owner's CPU gets to the store.
        unsafe {
            sequence!(
                self,
                [
                    "cmp {cpu:e}, {owner:e}",
                    "jne {not_added}",
                    delay!("8"),
                    "add {new}, qword ptr [{cell}]",
                    delay!("9"),
                    // COMMIT
                    "mov qword ptr [{cell}], {new}",
                ],
                aborted ["jmp {not_added}"],
                cell = in(reg) cell,
                owner = in(reg) owner.0,
                new = inout(reg) delta => _,
                cpu = out(reg) _,
                scratch = out(reg) _,
                delay = const DELAY,
                not_added = label { return false },
            );
        }
        true
    }

    /// Whether sequences of other CPUs can be made to restart: see `rseq.rs`.
    pub(super) fn can_restart_others(self) -> bool {
        self.membarrier_refusal().is_none()
    }

    /// Returns the error number by which the kernel refuses that, if it does.
    pub(super) fn membarrier_refusal(self) -> Option<i32> {
        rseq::membarrier_refusal()
    }

    /// Stops sequences that others have entered on `cpu`, or on any CPU if none is named: see
    /// `rseq.rs`.
    pub(super) fn restart_others(self, cpu: Option<CpuId>) -> Result<(), Unreached> {
        rseq::restart_others(cpu)
    }

    /// Replaces the value of `gated`, if it is `old`, the thread runs on the word's CPU, and the
    /// gate is down; otherwise does nothing. Returns whether it was replaced. `DELAY` is as in
    /// [`attempt_add`](Self::attempt_add).
    ///
    /// # Safety
    ///
    /// `gated` lives for the whole call. Whatever else stores to its word does so in a sequence on
    /// its CPU, or has raised the gate and called [`restart_others`](Self::restart_others) before.
    #[inline]
    pub(super) unsafe fn try_store<const DELAY: u32>(
        self,
        gated: *const Gated,
        old: u64,
        new: u64,
    ) -> bool {
        // SAFETY: the caller vouches for the word, at the start of what `gated` points to. Whatever
        // leaves the sequence early has stored nothing.
        unsafe {
            sequence!(
                self,
                [
                    // The upper half of the register is zero, as is the gate when it is down.
                    "cmp qword ptr [{gated} + {station_at}], {cpu:r}",
                    "jne {not_stored}",
                    delay!("8"),
                    "cmp qword ptr [{gated}], {old}",
                    "jne {not_stored}",
                    delay!("9"),
                    // COMMIT
                    "mov qword ptr [{gated}], {new}",
                ],
                aborted ["jmp {not_stored}"],
                gated = in(reg) gated,
                old = in(reg) old,
                new = in(reg) new,
                cpu = out(reg) _,
                scratch = out(reg) _,
                station_at = const Gated::STATION_AT,
                delay = const DELAY,
                not_stored = label { return false },
            );
        }
        true
    }

    /// Adds `delta` to the gated word of the CPU that the thread runs on, if there is one and its
    /// gate is down; otherwise does nothing. Returns whether it was added. `DELAY` is as in
    /// [`attempt_add`](Self::attempt_add).
    ///
    /// # Safety
    ///
    /// `first` points to `nr_words` gated words that live for the whole call. As for
    /// [`try_store`](Self::try_store), each of them.
    #[inline(always)]
    pub(super) unsafe fn try_add_gated<const DELAY: u32>(
        self,
        first: *const Gated,
        nr_words: usize,
        delta: u64,
    ) -> bool {
        // SAFETY: the caller vouches for the words, and the bounds check inside the sequence keeps
        // its accesses to them. The commit is one instruction, so no other store of this CPU comes
        // between its load and its store. A run that leaves the sequence early has added nothing.
        unsafe {
            sequence!(
                self,
                [
                    "cmp {cpu:r}, {nr_words}",
                    "jae {not_added}",
                    delay!("8"),
                    "mov {scratch:e}, {cpu:e}",
                    "shl {scratch}, {size_log2}",
                    // The upper half of the register is zero, as is the gate when it is down.
                    "cmp qword ptr [{first} + {scratch} + {station_at}], {cpu:r}",
                    "jne {not_added}",
                    delay!("9", "cpu"),
                    // COMMIT
                    "add qword ptr [{first} + {scratch}], {delta}",
                ],
                aborted ["jmp {not_added}"],
                first = in(reg) first,
                nr_words = in(reg) nr_words,
                delta = in(reg) delta,
                cpu = out(reg) _,
                scratch = out(reg) _,
                size_log2 = const size_of::<Gated>().ilog2(),
                station_at = const Gated::STATION_AT,
                delay = const DELAY,
                not_added = label { return false },
            );
        }
        true
    }

    /// Replaces the value of a word, if the thread runs on `owner`, is not interrupted, and neither
    /// the word nor the guard has changed; otherwise does nothing. Returns whether it was replaced.
    /// `DELAY` is as in [`attempt_add`](Self::attempt_add).
    #[cfg(feature = "lab")]
    #[inline]
    pub(super) fn try_store_guarded<const DELAY: u32>(
        self,
        owner: CpuId,
        store: &GuardedStore<'_>,
    ) -> bool {
        let word = std::ptr::from_ref(store.word).cast::<i64>();
        let guard = std::ptr::from_ref(store.guard).cast::<u64>();
        let count = std::ptr::from_ref(store.count).cast::<u64>();
        // SAFETY: the words live as long as the references, and are atomics, which any thread may
        // load and store to; the rest is as in `attempt_add`.
        unsafe {
            sequence!(
                self,
                [
                    "cmp {cpu:e}, {owner:e}",
                    "jne {not_stored}",
                    delay!("8"),
                    "cmp qword ptr [{guard}], {expected}",
                    "jne {not_stored}",
                    "cmp qword ptr [{word}], {old}",
                    "jne {not_stored}",
                    delay!("9"),
                    "inc qword ptr [{count}]",
                    // COMMIT
                    "mov qword ptr [{word}], {new}",
                ],
                aborted ["jmp {not_stored}"],
                owner = in(reg) owner.0,
                guard = in(reg) guard,
                expected = in(reg) store.expected,
                word = in(reg) word,
                old = in(reg) store.old,
                new = in(reg) store.new,
                count = in(reg) count,
                cpu = out(reg) _,
                scratch = out(reg) _,
                delay = const DELAY,
                not_stored = label { return false },
            );
        }
        true
    }

    /// Adds `delta` to the pair's cell, if the thread runs on the window's CPU, is not interrupted,
    /// and the cell then is within the window; otherwise does nothing. Returns whether it was
    /// added. `DELAY` is as in [`attempt_add`](Self::attempt_add).
    ///
    /// # Safety
    ///
    /// Window, CPU and pair are laid out as in `Target` and live for the whole call; the CPU's
    /// number does not change, and only these sequences write the cell.
    #[inline]
    pub(super) unsafe fn try_add_within<const DELAY: u32>(
        self,
        target: Target,
        delta: i64,
    ) -> bool {
        // SAFETY: as in `attempt_add`; only the owner's CPU gets to the store.
        unsafe {
            sequence!(
                self,
                [
                    "cmp {cpu:e}, dword ptr [{window} + 8]",
                    "jne {not_added}",
                    delay!("8"),
                    "add {new}, qword ptr [{pair}]",
                    // Within the window: new - base + width is in 0 .. 2 * width.
                    "mov {cpu:e}, dword ptr [{window}]",
                    "mov {scratch}, {new}",
                    "sub {scratch}, qword ptr [{pair} + 8]",
                    "add {scratch}, {cpu:r}",
                    "add {cpu:r}, {cpu:r}",
                    "cmp {scratch}, {cpu:r}",
                    "jae {not_added}",
                    delay!("9"),
                    // COMMIT
                    "mov qword ptr [{pair}], {new}",
                ],
                aborted ["jmp {not_added}"],
                window = in(reg) target.window,
                pair = in(reg) target.pair,
                new = inout(reg) delta => _,
                cpu = out(reg) _,
                scratch = out(reg) _,
                delay = const DELAY,
                not_added = label { return false },
            );
        }
        true
    }

    /// Compares `cell` with `old` and exchanges it for `new` if they are equal, if the thread runs
    /// on `owner`; otherwise does nothing. Committed with the former value of the cell, whether
    /// exchanged or not.
    ///
    /// # Safety
    ///
    /// `cell` is an aligned `AtomicU64` that lives for the whole call.
    pub(super) unsafe fn attempt_exchange(
        self,
        cell: *const u64,
        owner: CpuId,
        old: u64,
        new: u64,
    ) -> Attempt {
        let cpu: u32;
        let seen: u64;
        // SAFETY: as in `attempt_add`; the store is one atomic instruction.
        unsafe {
            sequence!(
                self,
                [
                    "cmp {cpu:e}, {owner:e}",
                    "jne 3f",
                    // COMMIT
                    "lock cmpxchg qword ptr [{cell}], {new}",
                ],
                aborted ["mov {cpu:e}, {aborted}", "jmp 3b"],
                cell = in(reg) cell,
                owner = in(reg) owner.0,
                new = in(reg) new,
                cpu = out(reg) cpu,
                aborted = const ABORTED,
                inout("rax") old => seen,
            );
        }
        Self::outcome(cpu, owner.0..=owner.0, seen.cast_signed())
    }

    /// Returns the outcome for the number that a sequence leaves in `cpu`, for a sequence that
    /// stores on `cpus`.
    #[inline]
    fn outcome(cpu: u32, cpus: impl RangeBounds<u32>, new: i64) -> Attempt {
        if cpus.contains(&cpu) {
            Attempt::Committed { cpu, new }
        } else if cpu == REFUSED {
            Attempt::Refused
        } else if cpu == ABORTED {
            Attempt::Aborted
        } else {
            Attempt::Elsewhere
        }
    }

    /// Returns the address of the calling thread's area.
    #[cfg(any(test, feature = "lab"))]
    pub(super) fn address(self) -> *mut libc::c_void {
        let thread_pointer: usize;
        // SAFETY: the x86-64 ABI stores the thread pointer at its own address. Only reads it.
        unsafe {
            asm!(
                "mov {pointer}, qword ptr fs:[0]",
                pointer = out(reg) thread_pointer,
                options(nostack, preserves_flags, readonly),
            );
        }
        std::ptr::with_exposed_provenance_mut(thread_pointer.wrapping_add_signed(self.offset.get()))
    }
}
