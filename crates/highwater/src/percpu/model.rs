//! Model CPUs for the model checker, which cannot see assembly: sequences with the kernel's
//! guarantees.
//!
//! Each CPU has a lock. A sequence holds it from its start to its commit: of two sequences on one
//! CPU, one has stored before the other begins, or is aborted and begins again, which is the same.
//! A membarrier takes the lock and gives it back: a sequence that had begun has ended, one that had
//! not sees everything before the membarrier. Whatever the sequence does inside, it does with
//! ordinary loads and stores, which other CPUs see as the model's memory allows.

use std::cell::Cell;

use crate::sync::thread::thread_local;
use crate::sync::{LockClass, Mutex, MutexGuard, Rank};
use crate::units::CpuId;

static CPU: LockClass = LockClass::new("a model's CPU", Rank::Leaf);

/// CPUs that a model has.
const NR_CPUS: usize = 2;

/// The CPU of a thread that is not registered: above those that there are.
const NOBODY: u32 = i32::MAX.cast_unsigned();

thread_local! {
    /// Where the calling thread of the model runs.
    static HERE: Cell<u32> = Cell::new(NOBODY);
}

/// Where the calling thread of the model runs.
pub(super) fn here() -> u32 {
    HERE.with(Cell::get)
}

/// Makes the calling thread of the model run on `cpu` from now on; before, on no known one.
pub(super) fn run_on(cpu: CpuId) {
    HERE.with(|here| here.set(cpu.0));
}

/// The CPUs of one run of a model.
#[derive(Clone, Copy)]
pub(super) struct Cpus(&'static [Mutex<()>; NR_CPUS]);

impl Cpus {
    /// They stay in memory, as small as they are.
    pub(super) fn new() -> Self {
        let cpus = std::array::from_fn(|_| Mutex::new(&CPU, ()));
        Self(Box::leak(Box::new(cpus)))
    }

    /// Begins a sequence where the thread runs, if that is known; dropping it ends the sequence.
    pub(super) fn begin(self) -> Option<MutexGuard<'static, ()>> {
        let cpus: &'static [_; NR_CPUS] = self.0;
        cpus.get(here() as usize).map(Mutex::lock)
    }

    /// A membarrier for one CPU, or for all.
    pub(super) fn restart_others(self, cpu: Option<CpuId>) {
        match cpu {
            Some(cpu) => drop(self.0[cpu.index()].lock()),
            None => self.0.iter().for_each(|cpu| drop(cpu.lock())),
        }
    }
}
