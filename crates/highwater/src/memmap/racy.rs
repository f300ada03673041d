//! Reading bytes that other threads may be writing.
//!
//! A plain or volatile read would be a data race, and so would an atomic one, because writers use
//! plain stores. The instructions of an assembly block are opaque to the compiler: for it, the
//! block returns arbitrary bytes and reads none of the program's memory, which is defined. The
//! compiler may not move writes across it, nor the block across a fence, so the fences around it
//! keep their meaning.
//!
//! Architectures other than x86-64 use volatile reads, which seqlocks of other projects rest on in
//! practice: compilers tear them at worst, and torn bytes are discarded.

use std::ptr::NonNull;

/// Longest copy by single instructions; longer ones are by a string instruction, which takes some
/// 10 ns to begin.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT: usize = 64;

/// Copies `into.len()` bytes. They are arbitrary if another thread writes meanwhile.
///
/// # Safety
///
/// The bytes are mapped and readable for the length of the call, and `into` does not overlap them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub(super) unsafe fn copy(from: NonNull<u8>, into: &mut [u8]) {
    if into.len() > SHORT {
        // SAFETY: the caller's promise.
        return unsafe { copy_long(from, into) };
    }
    let (words, rest) = into.as_chunks_mut::<8>();
    let rest_at = words.len() * 8;
    for (nth, word) in words.iter_mut().enumerate() {
        // SAFETY: within the bytes.
        let from = unsafe { from.add(nth * 8) };
        let bits: u64;
        // SAFETY: mapped, as the caller says; reads 8 bytes and writes a register.
        unsafe {
            std::arch::asm!(
                "mov {bits}, qword ptr [{from}]",
                bits = lateout(reg) bits,
                from = in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        *word = bits.to_ne_bytes();
    }
    for (nth, byte) in rest.iter_mut().enumerate() {
        // SAFETY: within the bytes.
        let from = unsafe { from.add(rest_at + nth) };
        let bits: u32;
        // SAFETY: as above, one byte.
        unsafe {
            std::arch::asm!(
                "movzx {bits:e}, byte ptr [{from}]",
                bits = lateout(reg) bits,
                from = in(reg) from.as_ptr(),
                options(nostack, preserves_flags, readonly),
            );
        }
        *byte = bits.to_le_bytes()[0];
    }
}

/// As [`copy`], by `rep movsb`.
///
/// # Safety
///
/// As of [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_long(from: NonNull<u8>, into: &mut [u8]) {
    // SAFETY: reads mapped bytes, as the caller says, and writes those of `into`, which it borrows.
    // The direction flag is clear, as the calling convention demands.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") into.len() => _,
            inout("rsi") from.as_ptr() => _,
            inout("rdi") into.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies `into.len()` bytes. They are arbitrary if another thread writes meanwhile.
///
/// # Safety
///
/// The bytes are mapped and readable for the length of the call, and `into` does not overlap them.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
pub(super) unsafe fn copy(from: NonNull<u8>, into: &mut [u8]) {
    for (nth, byte) in into.iter_mut().enumerate() {
        // SAFETY: within the bytes.
        let from = unsafe { from.add(nth) };
        // SAFETY: mapped, as the caller says.
        *byte = unsafe { from.read_volatile() };
    }
}
