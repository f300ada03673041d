//! The restartable sequences of stacks, where the system has them.

use super::stack::Stack;
use crate::memmap::Unreached;
use crate::percpu::{Area, Regime, Writer};
use crate::units::CpuId;

/// The system's sequences.
#[derive(Clone, Copy)]
pub(super) struct Machine(Area);

impl Machine {
    /// Returns the system's sequences, if `regime` wants them and those of other CPUs can be made
    /// to restart.
    pub(super) fn find(regime: Regime) -> Option<Self> {
        let area = Writer::new(regime).area;
        area.filter(|area| area.can_restart_others()).map(Self)
    }

    /// Returns the CPU that the thread seems to run on, if it is registered.
    #[inline]
    pub(super) fn cpu(self) -> Option<CpuId> {
        self.0.cpu()
    }

    /// Pops from the stack of the CPU that the thread runs on, one of the first `nr_cpus`.
    #[inline]
    pub(super) fn try_pop<const DELAY: u32>(self, stacks: &[Stack], nr_cpus: u32) -> Option<u32> {
        debug_assert!(stacks.len() > nr_cpus as usize);
        // SAFETY: there are more stacks than that. They are changed by these sequences, and by
        // holders of a stack's lock, which raise the gate first: by `try_raise`, or by
        // `restart_others_on`.
        unsafe { self.0.try_pop::<DELAY>(stacks.as_ptr(), nr_cpus) }
    }

    /// Pushes on the stack of the CPU that the thread runs on, one of the first `nr_cpus`.
    #[inline]
    pub(super) fn try_push<const DELAY: u32>(
        self,
        stacks: &[Stack],
        nr_cpus: u32,
        raw: u32,
    ) -> bool {
        debug_assert!(stacks.len() > nr_cpus as usize);
        // SAFETY: as in `try_pop`. `Stack::set_limit` keeps limits to the places that there are.
        unsafe { self.0.try_push::<DELAY>(stacks.as_ptr(), nr_cpus, raw) }
    }

    /// Raises the gate of the stack of `cpu`, whose lock the caller holds, if the thread runs
    /// there.
    pub(super) fn try_raise(self, stack: &Stack, cpu: CpuId) -> bool {
        let station = stack.station();
        // SAFETY: the station is an atomic that lives as long as the reference. No other thread
        // writes it now: its writers hold the lock.
        unsafe {
            self.0
                .try_add_owned::<0>(station.as_ptr().cast(), cpu, Stack::GATE)
        }
    }

    pub(super) fn restart_others_on(self, cpu: CpuId) -> Result<(), Unreached> {
        self.0.restart_others(Some(cpu))
    }
}
