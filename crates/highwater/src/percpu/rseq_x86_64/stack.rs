//! The push and pop sequences of stacks in x86-64 instructions: pseudo-code in `rseq.rs`, use in
//! the module `stacks`.

use std::arch::asm;
use std::mem::offset_of;

use super::super::rseq::{RseqArea, SIGNATURE};
use super::super::stacks::Stack;
use super::Area;

/// No number: no token has it.
const NOTHING: u32 = u32::MAX;

impl Area {
    /// Pops the number at the hot end of the stack of the CPU that the thread runs on, if there is
    /// one, the stack is not locked and nothing interrupts; otherwise does nothing. `DELAY` is as
    /// in [`attempt_add`](Self::attempt_add).
    ///
    /// # Safety
    ///
    /// `first` points to `nr_cpus` stacks that live for the whole call. Whatever else changes a
    /// stack or writes the places that are in it does so in a sequence on its CPU; or holds its
    /// lock, and has raised the gate in a sequence on its CPU or called
    /// [`restart_others`](Self::restart_others) since.
    #[inline]
    pub(in crate::percpu) unsafe fn try_pop<const DELAY: u32>(
        self,
        first: *const Stack,
        nr_cpus: u32,
    ) -> Option<u32> {
        let raw: u32;
        // SAFETY: the caller vouches for the stacks, and the bounds check inside the sequence keeps
        // its accesses to them. A place is masked, so that it lies in the ring. Whatever leaves the
        // sequence early has stored nothing.
        unsafe {
            sequence!(
                self,
                [
                    "cmp {cpu:e}, {nr_cpus:e}",
                    "jae 3f",
                    delay!("8", "place"),
                    "mov {stack:e}, {cpu:e}",
                    "shl {stack}, {size_log2}",
                    "add {stack}, {first}",
                    // The upper half of the register is zero, as is the gate when it is down.
                    "cmp qword ptr [{stack} + {station_at}], {cpu:r}",
                    "jne 3f",
                    "mov {header}, qword ptr [{stack}]",
                    "mov {place}, {header}",
                    "shr {place}, 16",
                    "sub {place:e}, 1",
                    "jc 3f",
                    "add {place:e}, dword ptr [{stack} + {bottom_at}]",
                    "and {place:e}, dword ptr [{stack} + {mask_at}]",
                    "mov {cpu:r}, qword ptr [{stack} + {ring_at}]",
                    "mov {raw:e}, dword ptr [{cpu:r} + {place} * {place_size}]",
                    "shr {header:x}, 1",
                    "sub {header}, 0x10000",
                    delay!("9", "place"),
                    // COMMIT
                    "mov qword ptr [{stack}], {header}",
                ],
                aborted ["mov {raw:e}, {nothing}", "jmp 3b"],
                first = in(reg) first,
                nr_cpus = in(reg) nr_cpus,
                raw = inout(reg) NOTHING => raw,
                stack = out(reg) _,
                header = out(reg) _,
                place = out(reg) _,
                cpu = out(reg) _,
                size_log2 = const size_of::<Stack>().ilog2(),
                station_at = const Stack::STATION_AT,
                ring_at = const Stack::RING_AT,
                mask_at = const Stack::MASK_AT,
                bottom_at = const Stack::BOTTOM_AT,
                place_size = const size_of::<u32>(),
                nothing = const NOTHING.cast_signed(),
                delay = const DELAY,
            );
        }
        (raw != NOTHING).then_some(raw)
    }

    /// Pushes `raw` on the stack of the CPU that the thread runs on, if that has not reached its
    /// limit, is not locked, and nothing interrupts; otherwise does nothing. Returns whether it was
    /// pushed. `DELAY` is as in [`attempt_add`](Self::attempt_add).
    ///
    /// # Safety
    ///
    /// As for [`try_pop`](Self::try_pop), and no limit is above the places of its stack.
    #[inline]
    pub(in crate::percpu) unsafe fn try_push<const DELAY: u32>(
        self,
        first: *const Stack,
        nr_cpus: u32,
        raw: u32,
    ) -> bool {
        // SAFETY: as in `try_pop`. The place that is written is above the hot end: no thread reads
        // it before the commit, nor after an abort before it is written again.
        unsafe {
            sequence!(
                self,
                [
                    "cmp {cpu:e}, {nr_cpus:e}",
                    "jae {not_pushed}",
                    delay!("8", "place"),
                    "mov {stack:e}, {cpu:e}",
                    "shl {stack}, {size_log2}",
                    "add {stack}, {first}",
                    "cmp qword ptr [{stack} + {station_at}], {cpu:r}",
                    "jne {not_pushed}",
                    "mov {header}, qword ptr [{stack}]",
                    "mov {place}, {header}",
                    "shr {place}, 16",
                    "cmp {place:e}, dword ptr [{stack} + {limit_at}]",
                    "jae {not_pushed}",
                    "add {place:e}, dword ptr [{stack} + {bottom_at}]",
                    "and {place:e}, dword ptr [{stack} + {mask_at}]",
                    "mov {cpu:r}, qword ptr [{stack} + {ring_at}]",
                    "mov dword ptr [{cpu:r} + {place} * {place_size}], {raw:e}",
                    // Above the length, halve the lowest byte and clear the mark; mostly it is all
                    // zero.
                    "mov {place}, {header}",
                    "shr {place}, 48",
                    "jz 4f",
                    "movzx {place:e}, {place:l}",
                    "shr {place:e}, 1",
                    "shl {place}, 48",
                    "shl {header}, 16",
                    "shr {header}, 16",
                    "or {header}, {place}",
                    "4:",
                    // One more token, and if the run is below its bound, one more there by the
                    // carry.
                    "cmp {header:x}, word ptr [{stack} + {run_max_at}]",
                    "adc {header}, 0x10000",
                    delay!("9", "place"),
                    // COMMIT
                    "mov qword ptr [{stack}], {header}",
                ],
                aborted ["jmp {not_pushed}"],
                first = in(reg) first,
                nr_cpus = in(reg) nr_cpus,
                raw = in(reg) raw,
                stack = out(reg) _,
                header = out(reg) _,
                place = out(reg) _,
                cpu = out(reg) _,
                size_log2 = const size_of::<Stack>().ilog2(),
                station_at = const Stack::STATION_AT,
                ring_at = const Stack::RING_AT,
                mask_at = const Stack::MASK_AT,
                bottom_at = const Stack::BOTTOM_AT,
                limit_at = const Stack::LIMIT_AT,
                run_max_at = const Stack::RUN_MAX_AT,
                place_size = const size_of::<u32>(),
                delay = const DELAY,
                not_pushed = label { return false },
            );
        }
        true
    }
}
