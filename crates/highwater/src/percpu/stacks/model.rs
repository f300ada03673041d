//! The sequences of stacks on the model checker's CPUs.

use super::header::Header;
use super::stack::Stack;
use crate::memmap::Unreached;
use crate::percpu::Regime;
use crate::percpu::model::{Cpus, here};
use crate::sync::atomic::Ordering;
use crate::units::CpuId;

/// The CPUs of one run of a model.
#[derive(Clone, Copy)]
pub(super) struct Machine(Cpus);

impl Machine {
    /// A machine in the restartable regime.
    pub(super) fn find(regime: Regime) -> Option<Self> {
        (regime == Regime::Restartable).then(|| Self(Cpus::new()))
    }

    pub(super) fn cpu(self) -> Option<CpuId> {
        (here().cast_signed() < i32::MAX).then_some(CpuId(here()))
    }

    pub(super) fn try_pop<const DELAY: u32>(self, stacks: &[Stack], _: u32) -> Option<u32> {
        let _sequence = self.0.begin()?;
        let (stack, header) = open(stacks)?;
        let below = header.len().checked_sub(1)?;
        let raw = stack.number_at(below);
        commit(stack, header.popped());
        Some(raw)
    }

    /// As the kernel may do it: each push is interrupted once, with the number written and not
    /// counted.
    pub(super) fn try_push<const DELAY: u32>(self, stacks: &[Stack], _: u32, raw: u32) -> bool {
        let write = || {
            let (stack, header) =
                open(stacks).filter(|(stack, header)| header.len() < stack.limit())?;
            stack.set_number_at(header.len(), raw);
            Some((stack, header))
        };
        {
            let Some(_aborted) = self.0.begin() else {
                return false;
            };
            write();
        }
        let _sequence = self.0.begin();
        let Some((stack, header)) = write() else {
            return false;
        };
        commit(stack, header.pushed(stack.run_max()));
        true
    }

    pub(super) fn try_raise(self, stack: &Stack, cpu: CpuId) -> bool {
        if here() != cpu.0 {
            return false;
        }
        let _sequence = self.0.begin();
        let station = stack.station();
        // Relaxed: the sequence's lock orders it, as being on one CPU does.
        let before = station.load(Ordering::Relaxed);
        station.store(before + Stack::GATE.cast_unsigned(), Ordering::Relaxed);
        true
    }

    pub(super) fn restart_others_on(self, cpu: CpuId) -> Result<(), Unreached> {
        self.0.restart_others(Some(cpu));
        Ok(())
    }
}

/// Returns the stack of this CPU and its header, if its gate is down.
fn open(stacks: &[Stack]) -> Option<(&Stack, Header)> {
    let stack = &stacks[here() as usize];
    // Acquire. Pairs with `Stack::lower`.
    let station = stack.station().load(Ordering::Acquire);
    (station == u64::from(here())).then(|| (stack, stack.header()))
}

fn commit(stack: &Stack, header: Header) {
    // Not a release, which the machine's store is: a thread that reads the ring has the lock, and
    // the sequence has ended before.
    stack.set_header(header);
}
