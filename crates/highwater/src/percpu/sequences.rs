//! Restartable sequences (rseq) on words that other CPUs must be able to stop.

use std::fmt;

use super::{Area, Regime, Writer};
#[cfg(feature = "lab")]
use crate::sync::{
    StatCell,
    atomic::{AtomicI64, AtomicU64},
};
use crate::units::CpuId;

/// Restartable sequences that other CPUs can make restart, or their absence.
#[derive(Clone, Copy)]
pub struct Sequences(Option<Area>);

impl Sequences {
    /// Returns the sequences of the restartable regime, where the system supports them.
    #[must_use]
    pub fn of(regime: Regime) -> Self {
        let area = Writer::new(regime).area;
        Self(area.filter(|area| area.can_restart_others()))
    }

    /// Returns the regime: restartable if that was requested and is possible.
    #[must_use]
    pub fn regime(self) -> Regime {
        match self.0 {
            Some(_) => Regime::Restartable,
            None => Regime::Atomic,
        }
    }

    /// Returns the CPU that the thread runs on, if it can run sequences there.
    #[inline]
    #[must_use]
    pub fn cpu(self) -> Option<CpuId> {
        self.0?.cpu()
    }

    #[inline]
    pub(super) fn area(self) -> Option<Area> {
        self.0
    }
}

/// A store that is made only if guard and word still hold the values that the caller has seen.
#[cfg(feature = "lab")]
#[derive(Clone, Copy, Debug)]
pub struct GuardedStore<'a> {
    /// Must be `expected`.
    pub guard: &'a AtomicU64,
    /// The value that the caller has seen in the guard.
    pub expected: u64,
    /// Must be `old`, and becomes `new` with release ordering.
    pub word: &'a AtomicI64,
    /// The value that the caller has seen in the word.
    pub old: i64,
    /// The new value of the word.
    pub new: i64,
    /// Counts stores; one that is interrupted right before it is made is counted too.
    pub count: &'a StatCell,
}

/// Steps for designs of per-CPU words that are built outside the library.
#[cfg(feature = "lab")]
impl Sequences {
    /// Makes a store, if the calling thread runs on `cpu`, is not interrupted, and neither the word
    /// nor its guard has changed. Returns whether it was made; never in the atomic regime. `DELAY`
    /// is 0 outside tests: turns of a loop at each point where an interruption must restart the
    /// sequence.
    #[inline]
    #[must_use]
    pub fn try_store<const DELAY: u32>(self, cpu: CpuId, store: &GuardedStore<'_>) -> bool {
        self.0
            .is_some_and(|area| area.try_store_guarded::<DELAY>(cpu, store))
    }

    /// Exchanges `old` for `new` in `cell`, if the calling thread runs on `cpu` and is not
    /// interrupted. Returns the value that the cell held, `old` if it was exchanged; `None` where
    /// nothing happened, as always in the atomic regime.
    ///
    /// When it returns a value, every other thread of that CPU had been preempted at that moment,
    /// and will restart if it was in a sequence.
    #[must_use]
    pub fn exchange(self, cpu: CpuId, cell: &AtomicU64, old: u64, new: u64) -> Option<u64> {
        let cell = std::ptr::from_ref(cell).cast();
        // SAFETY: the cell is an atomic that lives as long as the reference.
        match unsafe { self.0?.attempt_exchange(cell, cpu, old, new) } {
            super::attempt::Attempt::Committed { new, .. } => Some(new.cast_unsigned()),
            _ => None,
        }
    }

    /// Returns when no thread of this process is inside a sequence on `cpu` that it entered before
    /// the call, other than to restart it. Nothing to do in the atomic regime.
    ///
    /// # Panics
    ///
    /// When the system refuses the membarrier that it granted before, and its substitute.
    pub fn restart_others(self, cpu: CpuId) {
        if let Some(area) = self.0 {
            let restarted = area.restart_others(Some(cpu));
            restarted.unwrap_or_else(|unreached| panic!("{unreached}"));
        }
    }
}

impl fmt::Debug for Sequences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.regime().fmt(f)
    }
}
