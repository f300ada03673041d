//! Portable fallback: no sequences, and the CPU number.
//!
//! On a system without an implementation of the sequences, `Area` has no values. Code that would
//! use one still compiles there, and provably never runs.

use crate::units::CpuId;

#[cfg(not(any(all(target_arch = "x86_64", target_os = "linux", not(miri)), loom)))]
pub(super) use none::Area;

/// Returns the CPU from the C library, or CPU 0.
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
pub(super) fn current_cpu() -> CpuId {
    // SAFETY: takes nothing, touches nothing of ours; -1 when the kernel cannot tell.
    let cpu = unsafe { libc::sched_getcpu() };
    CpuId(u32::try_from(cpu).unwrap_or(0))
}

/// Always CPU 0, without a way to ask. A hint need not be right.
#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
pub(super) fn current_cpu() -> CpuId {
    CpuId(0)
}

#[cfg(not(any(all(target_arch = "x86_64", target_os = "linux", not(miri)), loom)))]
mod none {
    use crate::memmap::Unreached;
    use crate::percpu::RegimeReason;
    use crate::percpu::sequences::{Addition, On};
    use crate::sync::atomic::{AtomicU32, AtomicU64};
    use crate::units::CpuId;

    /// An rseq area on a system where there is none.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::percpu) enum Area {}

    /// The methods and sequences of `rseq.rs`, uncallable because no value exists.
    macro_rules! absent {
        ($(fn $name:ident($($argument:ty),*) -> $result:ty;)*) => {$(
            pub(in crate::percpu) fn $name(self, $(_: $argument),*) -> $result {
                match self {}
            }
        )*};
        ($(sequence $name:ident $([const $option:ident: $kind:ty])?
            ($($argument:ty),*) -> $result:ty;)*) => {$(
            pub(in crate::percpu) fn $name<
                const DELAY: u32,
                $(const $option: $kind,)?
                const GUARDED: bool,
            >(
                self,
                _: On<'_, GUARDED>,
                _: &AtomicU64,
                $(_: $argument),*
            ) -> $result {
                match self {}
            }
        )*};
    }

    impl Area {
        pub(in crate::percpu) fn find() -> Result<Self, RegimeReason> {
            Err(RegimeReason::Platform)
        }

        absent! {
            fn cpu_number() -> u32;
            fn membarrier_refusal() -> Option<i32>;
            fn restart_others(Option<CpuId>) -> Result<(), Unreached>;
        }

        pub(in crate::percpu) fn add_both<const DELAY: u32, const AGAIN: i32>(
            self,
            _: u32,
            _: [Addition<'_>; 2],
        ) -> u32 {
            match self {}
        }

        absent! {
            sequence add[const BOUNDS: usize](u64, [[u64; 2]; BOUNDS]) -> bool;
            sequence add_within[const MASKED: bool]([u64; 2]) -> Option<u64>;
            sequence store[const PLACES: usize]([u64; 2], [(&AtomicU32, u32); PLACES]) -> bool;
            sequence load_store([u64; 2], &AtomicU32) -> Option<u32>;
            sequence exchange([u64; 2]) -> Option<u64>;
        }
    }
}
