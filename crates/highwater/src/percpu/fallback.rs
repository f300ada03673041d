//! Portable counterparts: what every system can do, and the absence of restartable sequences.
//!
//! On a system without an implementation of the sequence, `Area` has no values. The code that
//! would use one still compiles there, and provably never runs. Under the model checker this is
//! what is checked, since it cannot see assembly.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri))))]
use super::RegimeReason;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri))))]
use super::attempt::{Attempt, Column, Parking};
#[cfg(not(any(all(target_arch = "x86_64", target_os = "linux", not(miri)), loom)))]
use super::gated::Gated;
#[cfg(not(any(all(target_arch = "x86_64", target_os = "linux", not(miri)), loom)))]
use super::stacks::Stack;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri))))]
use super::windowed::Target;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri))))]
use crate::memmap::Unreached;
use crate::units::CpuId;

/// The CPU as the C library tells it, or CPU 0.
#[cfg(all(target_os = "linux", not(loom), not(miri)))]
pub(super) fn current_cpu() -> CpuId {
    // SAFETY: takes nothing, touches nothing of ours; -1 when the kernel cannot tell.
    let cpu = unsafe { libc::sched_getcpu() };
    CpuId(u32::try_from(cpu).unwrap_or(0))
}

/// No way to ask: always CPU 0. A hint needs not be right.
#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
pub(super) fn current_cpu() -> CpuId {
    CpuId(0)
}

/// An rseq area on a system where there is none.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri))))]
#[derive(Clone, Copy, Debug)]
pub(super) enum Area {}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(loom), not(miri))))]
impl Area {
    pub(super) fn find() -> Result<Self, RegimeReason> {
        Err(RegimeReason::Platform)
    }

    pub(super) fn cpu(self) -> Option<CpuId> {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    pub(super) unsafe fn attempt_add<const DELAY: u32>(self, _: Column, _: i64) -> Attempt {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    pub(super) unsafe fn try_add<const DELAY: u32>(self, _: Column, _: i64, _: i64) -> bool {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    pub(super) unsafe fn attempt_init(self, _: *const i64, _: CpuId, _: i64) -> Attempt {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    pub(super) unsafe fn try_add_owned<const DELAY: u32>(
        self,
        _: *const i64,
        _: CpuId,
        _: i64,
    ) -> bool {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    pub(super) unsafe fn try_add_within<const DELAY: u32>(self, _: Target, _: i64) -> bool {
        match self {}
    }

    pub(super) fn can_restart_others(self) -> bool {
        match self {}
    }

    pub(super) fn membarrier_refusal(self) -> Option<i32> {
        match self {}
    }

    pub(super) fn restart_others(self, _: Option<CpuId>) -> Result<(), Unreached> {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    #[cfg(not(loom))]
    pub(super) unsafe fn try_store<const DELAY: u32>(
        self,
        _: *const Gated,
        _: u64,
        _: u64,
    ) -> bool {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    #[cfg(not(loom))]
    pub(super) unsafe fn try_pop<const DELAY: u32>(self, _: *const Stack, _: u32) -> Option<u32> {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    #[cfg(not(loom))]
    pub(super) unsafe fn try_push<const DELAY: u32>(self, _: *const Stack, _: u32, _: u32) -> bool {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    pub(super) unsafe fn try_park<const DELAY: u32>(self, _: Parking, _: i64) -> bool {
        match self {}
    }

    /// # Safety
    ///
    /// As for the real one; cannot be called.
    pub(super) unsafe fn attempt_exchange(
        self,
        _: *const u64,
        _: CpuId,
        _: u64,
        _: u64,
    ) -> Attempt {
        match self {}
    }
}
