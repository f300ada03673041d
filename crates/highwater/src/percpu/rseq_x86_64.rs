//! The sequences of `rseq.rs` in x86-64 instructions.
//!
//! The thread pointer is `fs`, so that the area's fields are `fs:[offset + field]`. Aligned plain
//! loads and stores are single accesses here, loads acquire and stores release: other threads may
//! access the words as atomics.

use std::arch::asm;
use std::mem::offset_of;
use std::ptr;

use super::rseq::{Area, RseqArea};
use super::sequences::{Addition, On, Stationed};
use crate::sync::atomic::{AtomicU32, AtomicU64};

/// The four bytes before each abort handler: the C library's `RSEQ_SIG`.
pub(super) const SIGNATURE: u32 = 0x5305_3053;

/// `DELAY` turns of a loop, none outside tests, at the given label.
macro_rules! delay {
    ($label:literal) => {
        concat!(
            ".if {delay}\n",
            "mov {scratch:e}, {delay}\n",
            $label,
            ":\n",
            "dec {scratch:e}\n",
            "jnz ",
            $label,
            "b\n",
            ".endif",
        )
    };
}

/// One restartable sequence: arms, checks that the thread runs on `$cpu`, and runs `$body`, which
/// may jump to `$refused`. The last instruction of the body, after a delay, is the commit.
/// `$aborted` is where the kernel sends an interrupted thread.
///
/// Clobbers: the registers named, the flags, and the memory of the words and of the area. The
/// kernel restores all registers but the instruction pointer when it aborts.
macro_rules! sequence_on_cpu {
    (
        $area:expr, $cpu:expr, refused $refused:literal, aborted [$($aborted:literal),*],
        [$($body:expr),*] commit $commit:expr, $($operands:tt)*
    ) => {
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
            "lea {scratch}, [rip + 7b]",
            "mov qword ptr fs:[{area} + {rseq_cs}], {scratch}",
            // start
            "2:",
            "cmp dword ptr fs:[{area} + {cpu_id}], {cpu:e}",
            concat!("jne ", $refused),
            $($body,)*
            delay!("9"),
            $commit,
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
            area = in(reg) $area.offset(),
            rseq_cs = const offset_of!(RseqArea, rseq_cs),
            cpu_id = const offset_of!(RseqArea, cpu_id),
            cpu = in(reg) $cpu,
            scratch = out(reg) _,
            delay = const DELAY,
            signature = const SIGNATURE,
            $($operands)*
            options(nostack),
        )
    };
}

/// A restartable sequence under the condition `$on`, with a first delay once it was checked.
macro_rules! sequence {
    (
        $area:expr, $on:expr, refused $refused:literal, aborted [$($aborted:literal),*],
        [$($body:expr),*] commit $commit:expr, $($operands:tt)*
    ) => {
        sequence_on_cpu!(
            $area, $on.cpu, refused $refused, aborted [$($aborted),*],
            [
                ".if {guarded}",
                "cmp qword ptr [{guard} + {station}], {expected}",
                concat!("jne ", $refused),
                ".endif",
                delay!("8")
                $(, $body)*
            ]
            commit $commit,
            guarded = const GUARDED as u32,
            guard = in(reg) $on.before_guard(),
            station = const offset_of!(Stationed, station),
            expected = in(reg) $on.expected,
            $($operands)*
        )
    };
}

/// The body of a method that runs a sequence and returns whether it has committed.
macro_rules! committed {
    ($area:expr, $on:expr, [$($body:expr),*] commit $commit:expr, $($operands:tt)*) => {{
        // SAFETY: see the comment on `Area`, below.
        unsafe {
            sequence!(
                $area, $on, refused "{refused}", aborted ["jmp {refused}"],
                [$($body),*] commit $commit,
                $($operands)*
                refused = label { return false },
            );
        }
        true
    }};
}

// A pointer to both leads to the word.
const _: () = assert!(offset_of!(Stationed, word) == 0);

impl<const GUARDED: bool> On<'_, GUARDED> {
    /// Returns a pointer by which a sequence finds the guard: 8 bytes below it, so that a word that
    /// lies there, as in a [`Stationed`], needs no register of its own. Without a guard, a number
    /// that is in a register anyway.
    #[inline(always)]
    fn before_guard(&self) -> *mut u64 {
        match self.guard {
            Some(guard) => guard
                .as_ptr()
                .wrapping_byte_sub(offset_of!(Stationed, station)),
            None => ptr::without_provenance_mut(self.cpu as usize),
        }
    }
}

// In each sequence: the words are atomics, which live as long as the references and which any
// thread may access at any time. A run that leaves the sequence early has stored to no word but a
// `place`, or has made the additions that it reports. The area is where the C library says, in the
// static TLS block of every thread it starts, registered or not. Range, descriptor and abort
// handler follow the kernel's rules, as the module `rseq` states them.
impl Area {
    /// Returns the CPU that the thread runs on, or a number of 2^31 and more if it is not
    /// registered.
    #[inline(always)]
    pub(super) fn cpu_number(self) -> u32 {
        let cpu: u32;
        // SAFETY: as above. Only reads the area; no flags, no stack.
        unsafe {
            asm!(
                "mov {cpu:e}, dword ptr fs:[{area} + {cpu_id}]",
                cpu = out(reg) cpu,
                area = in(reg) self.offset(),
                cpu_id = const offset_of!(RseqArea, cpu_id),
                options(nostack, preserves_flags, readonly),
            );
        }
        cpu
    }

    /// See `rseq.rs`.
    #[inline(always)]
    pub(super) fn add<const DELAY: u32, const BOUNDS: usize, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        delta: u64,
        bounds: [[u64; 2]; BOUNDS],
    ) -> bool {
        const { assert!(BOUNDS <= 1, "one pair of bounds") };
        // Without bounds, a number that is in a register anyway.
        let [shift, span] = match bounds.first() {
            Some(bounds) => *bounds,
            None => [word.as_ptr().addr() as u64; 2],
        };
        committed!(
            self, on,
            [
                ".if {bounds}",
                "mov {sum}, qword ptr [{word}]",
                "add {sum}, {delta}",
                "lea {scratch}, [{sum} + {shift}]",
                "cmp {scratch}, {span}",
                "jae {refused}",
                ".endif"
            ]
            commit concat!(
                ".if {bounds}\n",
                "mov qword ptr [{word}], {sum}\n",
                ".else\n",
                "add qword ptr [{word}], {delta}\n",
                ".endif",
            ),
            word = in(reg) word.as_ptr(),
            delta = in(reg) delta,
            sum = out(reg) _,
            bounds = const BOUNDS,
            shift = in(reg) shift,
            span = in(reg) span,
        )
    }

    /// See `rseq.rs`.
    #[inline(always)]
    pub(super) fn add_within<const DELAY: u32, const MASKED: bool, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        [delta, mask]: [u64; 2],
    ) -> Option<u64> {
        let new: u64;
        // A mask that is not tested needs no register of its own.
        let mask = if MASKED { mask } else { delta };
        // SAFETY: as above.
        unsafe {
            sequence!(
                self, on, refused "4f", aborted ["4:", "xor {new:e}, {new:e}", "jmp 3b"],
                [
                    "mov {old}, qword ptr [{word}]",
                    "test {old:l}, 1",
                    "jz 4f",
                    "lea {new}, [{old} + {delta}]",
                    ".if {masked}",
                    "xor {old}, {new}",
                    "test {old}, {mask}",
                    "jnz 4f",
                    ".endif"
                ]
                commit "mov qword ptr [{word}], {new}",
                word = in(reg) word.as_ptr(),
                delta = in(reg) delta,
                mask = in(reg) mask,
                masked = const MASKED as u32,
                old = out(reg) _,
                new = out(reg) new,
            );
        }
        // An odd number plus an even one is not 0.
        (new != 0).then_some(new)
    }

    /// See `rseq.rs`.
    #[inline(always)]
    pub(super) fn add_both<const DELAY: u32, const AGAIN: i32>(
        self,
        cpu: u32,
        [first, second]: [Addition<'_>; 2],
    ) -> u32 {
        // A store that commits is made or not, and need not say so.
        let (mut first_seen, mut second_seen) = match AGAIN {
            0 => (first.delta, second.old.wrapping_add(second.delta)),
            _ => (first.delta, second.delta),
        };
        let place = |of: Addition<'_>| ptr::from_ref(of.to).cast_mut().cast::<u64>();
        let committed: *mut u64;
        // SAFETY: as above; each addition is one instruction, but the one that commits may be the
        // store of a sum: the word was compared in the sequence.
        unsafe {
            sequence_on_cpu!(
                self, u64::from(cpu),
                refused "4f", aborted ["4:", "xor {second:e}, {second:e}", "jmp 3b"],
                [
                    "cmp qword ptr [{first} + {station}], {cpu}",
                    "jne 4f",
                    "cmp qword ptr [{second} + {station}], {cpu}",
                    "jne 4f",
                    "cmp qword ptr [{first}], {first_old}",
                    "jne 4f",
                    "cmp qword ptr [{second}], {second_old}",
                    "jne 4f",
                    delay!("8"),
                    "xadd qword ptr [{first}], {first_seen}",
                    ".if {again}",
                    delay!("9"),
                    "xadd qword ptr [{second}], {second_seen}",
                    ".endif"
                ]
                commit concat!(
                    ".if {again}\n",
                    "add qword ptr [{first}], {again}\n",
                    ".else\n",
                    "mov qword ptr [{second}], {second_seen}\n",
                    ".endif",
                ),
                first = in(reg) place(first),
                first_old = in(reg) first.old,
                first_seen = inout(reg) first_seen,
                second = inout(reg) place(second) => committed,
                second_old = in(reg) second.old,
                second_seen = inout(reg) second_seen,
                station = const offset_of!(Stationed, station),
                again = const AGAIN,
            );
        }
        if !committed.is_null() {
            return if AGAIN == 0 { 2 } else { 3 };
        }
        // `old` and `delta` differ.
        u32::from(first_seen == first.old) + u32::from(AGAIN != 0 && second_seen == second.old)
    }

    /// See `rseq.rs`.
    #[inline(always)]
    pub(super) fn store<const DELAY: u32, const PLACES: usize, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        [old, new]: [u64; 2],
        places: [(&AtomicU32, u32); PLACES],
    ) -> bool {
        const { assert!(PLACES <= 1, "one place") };
        // Without a place, numbers that are in registers anyway.
        let (place, value) = match places.first() {
            Some((place, value)) => (place.as_ptr(), *value),
            None => (word.as_ptr().cast(), on.cpu),
        };
        committed!(
            self, on,
            [
                "cmp qword ptr [{word}], {old}",
                "jne {refused}",
                ".if {places}",
                "mov dword ptr [{place}], {value:e}",
                ".endif"
            ]
            commit "mov qword ptr [{word}], {new}",
            word = in(reg) word.as_ptr(),
            old = in(reg) old,
            new = in(reg) new,
            places = const PLACES,
            place = in(reg) place,
            value = in(reg) value,
        )
    }

    /// See `rseq.rs`.
    #[inline(always)]
    pub(super) fn load_store<const DELAY: u32, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        [old, new]: [u64; 2],
        place: &AtomicU32,
    ) -> Option<u32> {
        let value: u64;
        // SAFETY: as above.
        unsafe {
            sequence!(
                self, on, refused "4f", aborted ["4:", "mov {value}, -1", "jmp 3b"],
                [
                    "cmp qword ptr [{word}], {old}",
                    "jne 4f",
                    "mov {value:e}, dword ptr [{place}]"
                ]
                commit "mov qword ptr [{word}], {new}",
                word = in(reg) word.as_ptr(),
                old = in(reg) old,
                new = in(reg) new,
                place = in(reg) place.as_ptr(),
                value = out(reg) value,
            );
        }
        u32::try_from(value).ok()
    }

    /// See `rseq.rs`.
    pub(super) fn exchange<const DELAY: u32, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        [old, new]: [u64; 2],
    ) -> Option<u64> {
        let is_done: u32;
        let seen: u64;
        // SAFETY: as above; the store is one atomic instruction.
        unsafe {
            sequence!(
                self, on, refused "4f", aborted ["4:", "mov {is_done:e}, 0", "jmp 3b"],
                ["mov {is_done:e}, 1"]
                commit "lock cmpxchg qword ptr [{word}], {new}",
                word = in(reg) word.as_ptr(),
                new = in(reg) new,
                is_done = out(reg) is_done,
                inout("rax") old => seen,
            );
        }
        (is_done == 1).then_some(seen)
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
        ptr::with_exposed_provenance_mut(thread_pointer.wrapping_add_signed(self.offset()))
    }
}
