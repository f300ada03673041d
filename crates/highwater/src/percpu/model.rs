//! The sequences on CPUs of the model checker, which cannot see assembly, with the kernel's
//! guarantees.
//!
//! Each CPU has a lock. A sequence holds it from its start to its commit: of two sequences on one
//! CPU, one has stored before the other begins, or is aborted and begins again, which is the same.
//! A membarrier takes the lock and gives it back: a sequence that had begun has ended, one that had
//! not sees everything before the membarrier. Whatever the sequence does inside, it does with
//! ordinary loads and stores, which other CPUs see as the model's memory allows.
//!
//! A sequence that may be aborted half-way gives the lock back there. The lock counts how often it
//! was taken: if anything else had it meanwhile, the sequence was interrupted.

use std::cell::Cell;

use super::RegimeReason;
use super::sequences::{Addition, On};
use crate::memmap::Unreached;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::lazy_static;
use crate::sync::thread::thread_local;
use crate::sync::{LockClass, Mutex, MutexGuard, Rank};
use crate::units::CpuId;

static CPU: LockClass = LockClass::new("a model's CPU", Rank::Leaf);

/// CPUs that a model has.
const NR_CPUS: usize = 2;

/// The CPU number of a thread that is not registered, as the kernel reports it.
const NOWHERE: u32 = u32::MAX;

thread_local! {
    /// Where the calling thread of the model runs.
    static HERE: Cell<u32> = Cell::new(NOWHERE);
}

lazy_static! {
    static ref CPUS: [Mutex<u64>; NR_CPUS] = std::array::from_fn(|_| Mutex::new(&CPU, 0));
}

/// Makes the calling thread of the model run on `cpu` from now on; before, on no known one.
pub(super) fn run_on(cpu: CpuId) {
    HERE.with(|here| here.set(cpu.0));
}

/// The CPUs of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area(());

impl Area {
    #[expect(clippy::unnecessary_wraps, reason = "as where they may be missing")]
    pub(super) fn find() -> Result<Self, RegimeReason> {
        Ok(Self(()))
    }

    pub(super) fn cpu_number(self) -> u32 {
        HERE.with(Cell::get)
    }

    pub(super) fn membarrier_refusal(self) -> Option<i32> {
        None
    }

    #[expect(clippy::unnecessary_wraps, reason = "as where it may be refused")]
    pub(super) fn restart_others(self, cpu: Option<CpuId>) -> Result<(), Unreached> {
        match cpu {
            Some(cpu) => *CPUS[cpu.index()].lock() += 1,
            None => CPUS.iter().for_each(|cpu| *cpu.lock() += 1),
        }
        Ok(())
    }

    /// Begins a sequence if its condition holds; dropping it ends the sequence.
    fn begin<const GUARDED: bool>(self, on: On<'_, GUARDED>) -> Option<MutexGuard<'static, u64>> {
        let cpus: &'static [_; NR_CPUS] = &CPUS;
        let cpu = cpus.get(on.cpu as usize);
        let mut sequence = cpu.filter(|_| self.cpu_number() == on.cpu)?.lock();
        *sequence += 1;
        // Acquire. Pairs with the stores that the client has made before it set the guard.
        let guard = on.guard.map(|guard| guard.load(Ordering::Acquire));
        guard
            .is_none_or(|value| value == on.expected)
            .then_some(sequence)
    }

    /// Begins a sequence, and goes on if the word is `old`.
    fn begin_at<const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        old: u64,
    ) -> Option<MutexGuard<'static, u64>> {
        let sequence = self.begin(on)?;
        // Acquire. Pairs with the commits of other sequences, and with stores of other CPUs.
        (word.load(Ordering::Acquire) == old).then_some(sequence)
    }

    /// Gives the CPU to others, and goes on if none came.
    fn go_on(cpu: u32, sequence: MutexGuard<'static, u64>) -> Option<MutexGuard<'static, u64>> {
        let before = *sequence;
        drop(sequence);
        let cpus: &'static [_; NR_CPUS] = &CPUS;
        let sequence = cpus[cpu as usize].lock();
        (*sequence == before).then_some(sequence)
    }

    pub(super) fn add<const DELAY: u32, const BOUNDS: usize, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        delta: u64,
        bounds: [[u64; 2]; BOUNDS],
    ) -> bool {
        let Some(_sequence) = self.begin(on) else {
            return false;
        };
        // Acquire. Pairs with the commits of other sequences.
        let new = word.load(Ordering::Acquire).wrapping_add(delta);
        let is_within = |[shift, span]: [u64; 2]| new.wrapping_add(shift) < span;
        let is_added = bounds.into_iter().all(is_within);
        if is_added {
            // Release. Pairs with the loads of other threads.
            word.store(new, Ordering::Release);
        }
        is_added
    }

    pub(super) fn add_within<const DELAY: u32, const MASKED: bool, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        [delta, mask]: [u64; 2],
    ) -> Option<u64> {
        let _sequence = self.begin(on)?;
        // Acquire. Pairs with the commits of other sequences, and with stores of other CPUs.
        let old = word.load(Ordering::Acquire);
        let new = old.wrapping_add(delta);
        let is_within = old & 1 == 1 && (!MASKED || (old ^ new) & mask == 0);
        if is_within {
            // Release. Pairs with the loads of other threads.
            word.store(new, Ordering::Release);
        }
        is_within.then_some(new)
    }

    pub(super) fn add_both<const DELAY: u32, const AGAIN: i32>(
        self,
        cpu: u32,
        [first, second]: [Addition<'_>; 2],
    ) -> u32 {
        let is_old = |one: Addition<'_>| {
            // Acquire. Pairs with the commits of other sequences, and with stores of other CPUs.
            let gate = one.to.station.load(Ordering::Acquire);
            gate == u64::from(cpu) && one.to.word.load(Ordering::Acquire) == one.old
        };
        let store = |one: Addition<'_>, value: u64| {
            // Release. Pairs with the loads of other threads.
            one.to.word.store(value, Ordering::Release);
        };
        let Some(sequence) = self.begin(On::cpu(cpu)) else {
            return 0;
        };
        if !is_old(first) || !is_old(second) {
            return 0;
        }
        let added = first.old.wrapping_add(first.delta);
        store(first, added);
        let Some(sequence) = Self::go_on(cpu, sequence) else {
            return 1;
        };
        store(second, second.old.wrapping_add(second.delta));
        if AGAIN == 0 {
            return 2;
        }
        let Some(_sequence) = Self::go_on(cpu, sequence) else {
            return 2;
        };
        store(first, added.wrapping_add_signed(AGAIN.into()));
        3
    }

    /// As the kernel may do it: one with a place is interrupted once, with the place written, and
    /// the word not.
    pub(super) fn store<const DELAY: u32, const PLACES: usize, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        [old, new]: [u64; 2],
        places: [(&AtomicU32, u32); PLACES],
    ) -> bool {
        let write = || {
            let sequence = self.begin_at(on, word, old)?;
            for (place, value) in places {
                // Relaxed: the word orders it.
                place.store(value, Ordering::Relaxed);
            }
            Some(sequence)
        };
        if PLACES > 0 {
            drop(write());
        }
        let sequence = write();
        if sequence.is_some() {
            // Release. Pairs with the loads of other threads.
            word.store(new, Ordering::Release);
        }
        sequence.is_some()
    }

    pub(super) fn load_store<const DELAY: u32, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        [old, new]: [u64; 2],
        place: &AtomicU32,
    ) -> Option<u32> {
        let _sequence = self.begin_at(on, word, old)?;
        // Relaxed: the word orders it.
        let value = place.load(Ordering::Relaxed);
        // Release. Pairs with the loads of other threads.
        word.store(new, Ordering::Release);
        Some(value)
    }

    pub(super) fn exchange<const DELAY: u32, const GUARDED: bool>(
        self,
        on: On<'_, GUARDED>,
        word: &AtomicU64,
        [old, new]: [u64; 2],
    ) -> Option<u64> {
        let _sequence = self.begin(on)?;
        // A full fence, as the locked instruction is. Pairs with itself and other threads' loads.
        let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
        let seen = word.compare_exchange(old, new, success, failure);
        Some(seen.unwrap_or_else(|seen| seen))
    }
}
