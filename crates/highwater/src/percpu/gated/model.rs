//! A machine for the model checker, which cannot see assembly: sequences as the kernel promises them.
//!
//! Each CPU has a lock. A sequence holds it from its start to its commit: of two sequences on one CPU,
//! one has stored before the other begins, or is aborted and begins again, which is the same. A
//! membarrier takes the lock and gives it back: a sequence that had begun has ended, one that had not
//! sees everything before the membarrier. Whatever the sequence does inside, it does with ordinary
//! loads and stores, which other CPUs see as the model's memory allows.

use std::cell::Cell;

use super::{Gated, NOBODY};
use crate::percpu::Regime;
use crate::percpu::attempt::Attempt;
use crate::sync::atomic::Ordering;
use crate::sync::thread::thread_local;
use crate::sync::{LockClass, Mutex, Rank};
use crate::units::CpuId;

static CPU: LockClass = LockClass::new("a model's CPU", Rank::Leaf);

/// CPUs that a model has.
const NR_CPUS: usize = 2;

thread_local! {
    /// Where the calling thread of the model runs.
    static HERE: Cell<u32> = Cell::new(NOBODY);
}

/// Where the calling thread of the model runs.
fn here() -> u32 {
    HERE.with(Cell::get)
}

/// Has the calling thread of the model run on `cpu` from now on; before, on none that is known.
pub(super) fn run_on(cpu: CpuId) {
    HERE.with(|here| here.set(cpu.0));
}

/// The CPUs of one run of a model.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    cpus: &'static [Mutex<()>; NR_CPUS],
}

impl Machine {
    /// A machine in the restartable regime. It stays in memory, as small as it is.
    pub(super) fn find(regime: Regime) -> Option<Self> {
        (regime == Regime::Restartable).then(|| Self {
            cpus: Box::leak(Box::new(std::array::from_fn(|_| Mutex::new(&CPU, ())))),
        })
    }

    pub(super) fn cpu(self) -> u32 {
        here()
    }

    pub(super) fn try_store<const DELAY: u32>(self, word: &Gated, old: u64, new: u64) -> bool {
        let Some(cpu) = self.cpus.get(here() as usize) else {
            return false;
        };
        let _sequence = cpu.lock();
        // Acquire. Pairs with `Gated::lower`.
        let station = word.station.load(Ordering::Acquire);
        // Acquire. Pairs with the steps of others.
        if station != u64::from(here()) || word.word.load(Ordering::Acquire) != old {
            return false;
        }
        // Release. Pairs with `Gated::load`.
        word.word.store(new, Ordering::Release);
        true
    }

    pub(super) fn attempt_exchange(
        self,
        word: &Gated,
        owner: CpuId,
        old: u64,
        new: u64,
    ) -> Attempt {
        if here() != owner.0 {
            return Attempt::Elsewhere;
        }
        let _sequence = self.cpus[owner.index()].lock();
        // Pairs with `Gated::load`; SeqCst as in `Gated::exchange`.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let seen = word.word.compare_exchange(old, new, success, failure);
        Attempt::Committed {
            cpu: owner.0,
            new: seen.unwrap_or_else(|seen| seen).cast_signed(),
        }
    }

    pub(super) fn restart_others_on(self, cpu: CpuId) {
        drop(self.cpus[cpu.index()].lock());
    }

    pub(super) fn restart_others(self) {
        self.cpus.iter().for_each(|cpu| drop(cpu.lock()));
    }
}
