//! The sequences of gated words on the model checker's CPUs.

use super::Gated;
use crate::memmap::Unreached;
use crate::percpu::Regime;
use crate::percpu::attempt::Attempt;
use crate::percpu::model::{Cpus, here};
use crate::sync::atomic::Ordering;
use crate::units::CpuId;

/// The CPUs of one run of a model.
#[derive(Clone, Copy)]
pub(super) struct GatedMachine(Cpus);

impl GatedMachine {
    /// A machine in the restartable regime.
    pub(super) fn find(regime: Regime) -> Option<Self> {
        (regime == Regime::Restartable).then(|| Self(Cpus::new()))
    }

    pub(super) fn cpu(self) -> u32 {
        here()
    }

    pub(super) fn try_store<const DELAY: u32>(self, word: &Gated, old: u64, new: u64) -> bool {
        let Some(_sequence) = self.0.begin() else {
            return false;
        };
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

    pub(super) fn try_add<const DELAY: u32>(self, words: &[Gated], delta: u64) -> bool {
        let Some(_sequence) = self.0.begin() else {
            return false;
        };
        let Some(word) = words.get(here() as usize) else {
            return false;
        };
        // Acquire. Pairs with `Gated::lower`.
        if word.station.load(Ordering::Acquire) != u64::from(here()) {
            return false;
        }
        // Acquire. Pairs with the steps of others.
        let old = word.word.load(Ordering::Acquire);
        // Release. Pairs with `Gated::load`.
        word.word.store(old.wrapping_add(delta), Ordering::Release);
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
        let _sequence = self.0.begin();
        // Pairs with `Gated::load`; SeqCst as in `Gated::exchange`.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let seen = word.word.compare_exchange(old, new, success, failure);
        Attempt::Committed {
            cpu: owner.0,
            new: seen.unwrap_or_else(|seen| seen).cast_signed(),
        }
    }

    pub(super) fn restart_others(self, cpu: Option<CpuId>) -> Result<(), Unreached> {
        self.0.restart_others(cpu);
        Ok(())
    }
}
