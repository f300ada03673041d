//! Portable fallback: stubs for systems without restartable sequences, and the CPU number.
//!
//! On a system without an implementation of the sequences, `Area` has no values. Code that would
//! use one still compiles there, and provably never runs. The model checker, which cannot see
//! assembly, checks this code.

use crate::units::CpuId;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri))))]
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

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri))))]
mod none {
    use crate::memmap::Unreached;
    use crate::percpu::RegimeReason;
    use crate::percpu::attempt::{Attempt, Column};
    #[cfg(not(loom))]
    use crate::percpu::gated::Gated;
    #[cfg(feature = "lab")]
    use crate::percpu::sequences::GuardedStore;
    #[cfg(not(loom))]
    use crate::percpu::stacks::Stack;
    use crate::percpu::windowed::Target;
    use crate::units::CpuId;

    /// An rseq area on a system where there is none.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::percpu) enum Area {}

    /// The sequences of `rseq.rs`, uncallable because no value exists.
    macro_rules! absent {
        ($($(#[$when:meta])* fn $name:ident $(<$delay:ident>)? ($($argument:ty),*) -> $result:ty;)*) => {$(
            $(#[$when])*
            /// # Safety
            ///
            /// As for the real one; cannot be called.
            pub(in crate::percpu) unsafe fn $name $(<const $delay: u32>)? (self, $(_: $argument),*) -> $result {
                match self {}
            }
        )*};
    }

    impl Area {
        pub(in crate::percpu) fn find() -> Result<Self, RegimeReason> {
            Err(RegimeReason::Platform)
        }

        pub(in crate::percpu) fn cpu(self) -> Option<CpuId> {
            match self {}
        }

        #[cfg(not(loom))]
        pub(in crate::percpu) fn cpu_number(self) -> u32 {
            match self {}
        }

        pub(in crate::percpu) fn can_restart_others(self) -> bool {
            match self {}
        }

        pub(in crate::percpu) fn membarrier_refusal(self) -> Option<i32> {
            match self {}
        }

        pub(in crate::percpu) fn restart_others(self, _: Option<CpuId>) -> Result<(), Unreached> {
            match self {}
        }

        #[cfg(feature = "lab")]
        pub(in crate::percpu) fn try_store_guarded<const DELAY: u32>(
            self,
            _: CpuId,
            _: &GuardedStore<'_>,
        ) -> bool {
            match self {}
        }

        absent! {
            fn attempt_add<DELAY>(Column, i64) -> Attempt;
            fn try_add<DELAY>(Column, i64, i64) -> bool;
            fn try_add_owned<DELAY>(*const i64, CpuId, i64) -> bool;
            fn try_add_within<DELAY>(Target, i64) -> bool;
            fn attempt_exchange(*const u64, CpuId, u64, u64) -> Attempt;
            #[cfg(not(loom))]
            fn try_store<DELAY>(*const Gated, u64, u64) -> bool;
            #[cfg(not(loom))]
            fn try_add_gated<DELAY>(*const Gated, usize, u64) -> bool;
            #[cfg(not(loom))]
            fn try_pop<DELAY>(*const Stack, u32) -> Option<u32>;
            #[cfg(not(loom))]
            fn try_push<DELAY>(*const Stack, u32, u32) -> bool;
        }
    }
}
