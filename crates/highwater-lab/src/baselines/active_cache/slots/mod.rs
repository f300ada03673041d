//! Per-CPU words that belong to one owner at a time.
//!
//! The library's [`Cells`](highwater::lab::percpu::Cells) give every object words of every CPU.
//! Here each CPU has one set of words for all objects together, and lends it to one of them, its
//! *owner*: additions for the owner are *parked* there, others are refused. When the owner changes,
//! the parked amounts are *settled*: handed to the keeper of the old owner's totals.
//!
//! ```text
//! slot of one CPU
//!   line 0    words, hits            written by the owner's additions only
//!   line 1    tenure, sequence       polled by readers of any owner
//!
//! tenure    = owner, and whether the slot is held
//! sequence  = even at rest, odd while parked amounts are in transit; only grows
//! ```
//!
//! **Invariant.** A slot's words are written in one of two ways, never both at once:
//!
//! * *Parking*: tenure says the owner and that the slot is not held. In the restartable regime by
//!   threads that run on the CPU, in a sequence that checks the tenure. In the atomic regime by a
//!   thread that holds the slot for it, and leaves the sequence alone.
//! * *Settling*: by the one thread that holds the slot, its [`Claim`].
//!
//! Each word stays within `limit` of zero, at every moment.
//!
//! **Protocol.**
//!
//! * Claimer: exchanges the tenure for the same owner, held. In the restartable regime this has to
//!   stop parkers that have read the tenure already. On the CPU itself the exchange is the commit
//!   of a sequence, which proves that they have been preempted and will restart; the claim can then
//!   be carried to other CPUs. From another CPU, the exchange is followed by a membarrier(2) that
//!   makes them restart.
//! * Settler, holding a claim: sequence odd; hands over the parked amounts; words to zero; tenure
//!   to the next owner, held; sequence even; tenure not held.
//! * Reader ([`OwnedSlots::read`]): samples the sequence of every slot that it will visit, and
//!   gives up if one is odd; loads the totals, then tenures and words; samples again, and gives up
//!   if any has changed. In between, nothing was settled, so each addition was in the totals or
//!   parked, and not both.
//!
//! **Orderings.** A claim (Acquire) sees the stores of the previous claim, or of the last parker
//! (Release). The reader's second sample sees an odd sequence if any of its loads saw a value that
//! was stored after that: the settler's fence and a parker's store (Release) pair with the reader's
//! fence (Acquire). Its first sample (Acquire) of an even sequence sees all earlier stores
//! (Release).
//!
//! **Failure modes.** A held slot refuses additions and claims, which have another way and do not
//! wait. Claims that have none wait ([`OwnedSlots::claim_from_afar`]); a holder runs a few dozen
//! instructions without a lock or a system call, but may be preempted in them. Without
//! membarrier(2) for sequences (before Linux 5.10, sandboxes) the slots are in the atomic regime,
//! in spite of the request; if it is refused later, a claim from afar panics.
//!
//! Source: the RSS cache of the active address space proposed for Linux by K. Song (RFC, July
//! 2022).
//! Deviation: see [`ActiveCache`](super::ActiveCache).

#[cfg(all(test, loom))]
mod loom;
mod slot;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests;

use std::fmt;
use std::time::Duration;

use highwater::lab::percpu::{Regime, Sequences, current_cpu};
use highwater::lab::sync::atomic::{Ordering, fence};
use highwater::lab::sync::{StatCell, thread};
use highwater::units::CpuId;

use self::slot::Tenure;

use self::slot::Slot;
pub(super) use self::slot::{Claim, Owner, SlotStats, WORDS};

/// Retries of an interrupted addition or claim: see the library's module `percpu`, which has the
/// same limit.
const RETRIES_MAX: usize = 15;

#[inline]
fn check_word(word: usize) {
    assert!(word < WORDS, "there is no word {word}: a slot has {WORDS}");
}

/// Outcome of an addition.
pub(super) enum Place<'a> {
    /// Parked.
    Parked,
    /// Not parked: the word would exceed its limit. The slot is the owner's, and held.
    Full(Claim<'a>),
    /// Not parked: the slot of this CPU belongs to another owner, or to none.
    Foreign,
    /// Not parked: the slot is held, or there is none, or the addition was interrupted too often.
    Unavailable,
}

/// Words of each CPU, for one owner at a time.
pub(super) struct OwnedSlots {
    sequences: Sequences,
    /// Largest distance of a word from zero.
    limit: u64,
    slots: Box<[Slot]>,
    /// Waits for the holder of a slot.
    waits: StatCell,
}

impl OwnedSlots {
    /// Creates slots without owners, in the atomic regime if the restartable one is not possible.
    pub(super) fn new(regime: Regime, nr_cpus: usize, limit: u32) -> Self {
        Self {
            sequences: Sequences::of(regime),
            limit: u64::from(limit),
            slots: (0..nr_cpus).map(|_| Slot::new()).collect(),
            waits: StatCell::new(),
        }
    }

    /// Adds `delta` to `word` of the CPU that the thread runs on, if that is `owner`'s and the word
    /// stays within its limit. Returns whether it did; if not,
    /// [`park_or_claim`](Self::park_or_claim) says why.
    #[inline]
    pub(super) fn try_park(&self, owner: Owner, word: usize, delta: i64) -> bool {
        check_word(word);
        match self.regime() {
            Regime::Restartable => self.try_park_here::<0>(owner, word, delta),
            Regime::Atomic => {
                let place = self.park_as(self.hinted_slot(), owner, word, delta);
                matches!(place, Place::Parked)
            }
        }
    }

    /// As [`try_park`](Self::try_park), and returns the outcome.
    pub(super) fn park_or_claim(&self, owner: Owner, word: usize, delta: i64) -> Place<'_> {
        self.park_or_claim_delayed::<0>(owner, word, delta)
    }

    /// As [`park_or_claim`](Self::park_or_claim), with `DELAY` turns of a loop at each point where
    /// an interrupt must restart the sequence.
    fn park_or_claim_delayed<const DELAY: u32>(
        &self,
        owner: Owner,
        word: usize,
        delta: i64,
    ) -> Place<'_> {
        check_word(word);
        match self.regime() {
            Regime::Restartable => self.park_here::<DELAY>(owner, word, delta),
            Regime::Atomic => self.park_as(self.hinted_slot(), owner, word, delta),
        }
    }

    /// As [`park_or_claim`](Self::park_or_claim), as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when there is no such CPU.
    pub(super) fn park_or_claim_on(
        &self,
        cpu: CpuId,
        owner: Owner,
        word: usize,
        delta: i64,
    ) -> Place<'_> {
        check_word(word);
        self.check_acting_as(cpu);
        self.park_as(cpu.index(), owner, word, delta)
    }

    /// Claims the slot of the CPU that the thread runs on; `None` if it is held, there is
    /// none, or the thread was interrupted too often.
    pub(super) fn claim(&self) -> Option<Claim<'_>> {
        let hint = self.hinted_slot();
        let claim = match self.regime() {
            Regime::Restartable => self.claim_here(),
            Regime::Atomic => self.claim_as(hint),
        };
        self.noted(hint, claim)
    }

    /// As [`claim`](Self::claim), as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when there is no such CPU.
    pub(super) fn claim_on(&self, cpu: CpuId) -> Option<Claim<'_>> {
        self.check_acting_as(cpu);
        self.noted(cpu.index(), self.claim_as(cpu.index()))
    }

    /// Claims the slot of `cpu` from any CPU, once it is not held, if it has an owner that is
    /// `wanted`. Otherwise returns `None`: everything that such an owner had parked there is
    /// settled.
    ///
    /// Terminates: a holder releases the slot after a few dozen instructions, and a lost race for
    /// the claim means that another thread's claim succeeded.
    ///
    /// # Panics
    ///
    /// When there is no such CPU; and when the system refuses the membarrier that it granted when
    /// the slots were created, and its fallback. The slot is then unchanged.
    pub(super) fn claim_from_afar(
        &self,
        cpu: CpuId,
        wanted: impl Fn(Owner) -> bool,
    ) -> Option<Claim<'_>> {
        let slot = &self.slots[cpu.index()];
        let mut turns = 0;
        loop {
            // Acquire. Pairs with the Release in `Claim::settle`: a thread that sees the next owner
            // sees the last one's words settled.
            let seen = slot.tenure(Ordering::Acquire);
            if !seen.owner().is_some_and(&wanted) {
                return None;
            }
            if seen.is_held() {
                self.wait(turns);
                turns += 1;
            } else if slot.try_hold(seen) {
                // Releases the slot on every path.
                let claim = self.claimed(cpu.index(), seen);
                self.sequences.restart_others(cpu);
                return Some(claim);
            }
        }
    }

    /// Returns whether the slot of the CPU that the thread seems to run on is `owner`'s, or has no
    /// owner.
    #[inline]
    pub(super) fn is_owned_by(&self, owner: Option<Owner>) -> bool {
        let index = match self.regime() {
            Regime::Restartable => self.known(current_cpu()),
            Regime::Atomic => Some(self.hinted_slot()),
        };
        index.is_some_and(|index| self.is_slot_of(index, owner))
    }

    /// As [`is_owned_by`](Self::is_owned_by), for the slot of `cpu`.
    pub(super) fn is_owned_on(&self, cpu: CpuId, owner: Option<Owner>) -> bool {
        self.check_acting_as(cpu);
        self.is_slot_of(cpu.index(), owner)
    }

    /// Returns `totals()` plus the amounts parked for `owner` on `cpus`, each addition counted
    /// once; `None` if anything was settled on one of these CPUs meanwhile.
    ///
    /// It includes some of the concurrent additions, each completely.
    pub(super) fn read(
        &self,
        owner: Owner,
        cpus: impl Iterator<Item = usize> + Clone,
        totals: impl FnOnce() -> [i64; WORDS],
    ) -> Option<[i64; WORDS]> {
        let mut before = 0_u64;
        for cpu in cpus.clone() {
            // Acquire. Pairs with the Release of an even sequence in `Claim::settle`.
            let sequence = self.slots[cpu].sequence(Ordering::Acquire);
            if sequence & 1 == 1 {
                return None;
            }
            before = before.wrapping_add(sequence);
        }
        let mut sums = totals();
        for cpu in cpus.clone() {
            let slot = &self.slots[cpu];
            // Relaxed: the second sample after the fence below detects a later value.
            if slot.tenure(Ordering::Relaxed).owner() == Some(owner) {
                for (sum, parked) in sums.iter_mut().zip(slot.words()) {
                    *sum = sum.wrapping_add(parked);
                }
            }
        }
        // Acquire. Pairs with the Release fence in `Claim::settle` and the Release in `park_as`:
        // the values read above were stored before a sequence became odd, or the second sample sees
        // it odd.
        fence(Ordering::Acquire);
        let after = cpus.fold(0_u64, |sum, cpu| {
            // Relaxed: ordered by the fence.
            sum.wrapping_add(self.slots[cpu].sequence(Ordering::Relaxed))
        });
        // Sequences only grow, so that equal sums prove that none has changed.
        (before == after).then_some(sums)
    }

    /// Counts that the thread, which seems to run on `cpu` or where the system says, had to count
    /// elsewhere.
    pub(super) fn missed(&self, cpu: Option<CpuId>) {
        let index = cpu.map_or_else(|| self.hinted_slot(), CpuId::index);
        self.slots[index].missed();
    }

    /// Returns the counters. In the restartable regime hits miss some, where a thread was preempted
    /// right after an addition.
    pub(super) fn stats(&self) -> SlotStats {
        let mut sum = SlotStats::default();
        for slot in self.slots.iter().map(Slot::stats) {
            sum.hits += slot.hits;
            sum.misses += slot.misses;
            sum.busy += slot.busy;
            sum.switches += slot.switches;
            sum.flushes += slot.flushes;
            sum.folds += slot.folds;
        }
        sum
    }

    /// Returns the number of waits for the holder of a slot.
    pub(super) fn waits(&self) -> u64 {
        self.waits.get()
    }

    pub(super) fn regime(&self) -> Regime {
        self.sequences.regime()
    }

    pub(super) fn nr_cpus(&self) -> usize {
        self.slots.len()
    }

    /// Checks slots at rest: none is held, nothing is in transit, and no word exceeds its limit.
    /// Returns the owner of each slot.
    pub(super) fn check_invariants(&self) -> impl Iterator<Item = Option<Owner>> {
        self.slots.iter().enumerate().map(|(cpu, slot)| {
            // Relaxed: for slots at rest.
            let tenure = slot.tenure(Ordering::Relaxed);
            let sequence = slot.sequence(Ordering::Relaxed);
            assert!(!tenure.is_held(), "the slot of C{cpu} is held");
            assert_eq!(sequence & 1, 0, "the slot of C{cpu} is being settled");
            for parked in slot.words() {
                assert!(parked.unsigned_abs() <= self.limit, "C{cpu} has {parked}");
                assert!(
                    tenure.owner().is_some() || parked == 0,
                    "C{cpu} has {parked}"
                );
            }
            tenure.owner()
        })
    }

    fn park_here<const DELAY: u32>(&self, owner: Owner, word: usize, delta: i64) -> Place<'_> {
        for _ in 0..=RETRIES_MAX {
            if self.try_park_here::<DELAY>(owner, word, delta) {
                return Place::Parked;
            }
            if let Some(place) = self.why_not(owner, word, delta) {
                return place;
            }
        }
        Place::Unavailable
    }

    /// Returns why the sequence did not park, as far as it can be told; `None` if it might now.
    fn why_not(&self, owner: Owner, word: usize, delta: i64) -> Option<Place<'_>> {
        let Some((cpu, slot)) = self.own() else {
            return Some(Place::Unavailable);
        };
        // Relaxed: only decides what to try.
        let seen = slot.tenure(Ordering::Relaxed);
        if seen.owner() != Some(owner) {
            return Some(Place::Foreign);
        }
        if seen.is_held() {
            return Some(Place::Unavailable);
        }
        if self.fits(slot.word(word), delta).is_some() {
            return None;
        }
        match self.attempt_claim(cpu, seen) {
            Attempted::Claimed(claim) => Some(Place::Full(claim)),
            Attempted::Lost => Some(Place::Unavailable),
            Attempted::Interrupted => None,
        }
    }

    /// Parks by one guarded store, which fails if anything has changed since the word was read: in
    /// this regime words are written by these stores and by claims, and claims are made in a
    /// sequence on the CPU, or followed by a restart of the sequences there, before they are handed
    /// out.
    #[inline]
    fn try_park_here<const DELAY: u32>(&self, owner: Owner, word: usize, delta: i64) -> bool {
        debug_assert!(word < WORDS && self.regime() == Regime::Restartable);
        let Some((cpu, slot)) = self.own() else {
            return false;
        };
        let old = slot.word(word);
        let Some(new) = self.fits(old, delta) else {
            return false;
        };
        let store = slot.parking(Tenure::of(Some(owner)), word, old, new);
        let is_parked = self.sequences.try_store::<DELAY>(cpu, &store);
        if is_parked {
            slot.parked();
        }
        is_parked
    }

    /// Tries to claim a slot that is not held, from its own CPU.
    fn attempt_claim(&self, cpu: CpuId, seen: Tenure) -> Attempted<'_> {
        // The exchange has a lock prefix, which is at least Acquire. Pairs with the Release in
        // `Claim::drop`.
        let exchanged = self.slots[cpu.index()].exchange_on(self.sequences, cpu, seen);
        match exchanged {
            Some(tenure) if tenure == seen => Attempted::Claimed(self.claimed(cpu.index(), seen)),
            Some(_) => Attempted::Lost,
            None => Attempted::Interrupted,
        }
    }

    #[inline]
    fn park_as(&self, index: usize, owner: Owner, word: usize, delta: i64) -> Place<'_> {
        let slot = &self.slots[index];
        // Relaxed: a first read, so that a foreign slot's line is not written.
        let seen = slot.tenure(Ordering::Relaxed);
        if seen.owner() != Some(owner) {
            return Place::Foreign;
        }
        if seen.is_held() || !slot.try_hold(seen) {
            return Place::Unavailable;
        }
        let claim = self.claimed(index, seen);
        let Some(new) = self.fits(slot.word(word), delta) else {
            return Place::Full(claim);
        };
        slot.store(word, new);
        Place::Parked
    }

    fn claim_here(&self) -> Option<Claim<'_>> {
        for _ in 0..RETRIES_MAX {
            let (cpu, slot) = self.own()?;
            // Relaxed: only decides what to try.
            let seen = slot.tenure(Ordering::Relaxed);
            if seen.is_held() {
                return None;
            }
            match self.attempt_claim(cpu, seen) {
                Attempted::Claimed(claim) => return Some(claim),
                Attempted::Lost => return None,
                Attempted::Interrupted => {}
            }
        }
        None
    }

    fn noted<'a>(&self, index: usize, claim: Option<Claim<'a>>) -> Option<Claim<'a>> {
        if claim.is_none() {
            self.slots[index].was_busy();
        }
        claim
    }

    fn claim_as(&self, index: usize) -> Option<Claim<'_>> {
        let slot = &self.slots[index];
        // Relaxed: only decides what to try.
        let seen = slot.tenure(Ordering::Relaxed);
        (!seen.is_held() && slot.try_hold(seen)).then(|| self.claimed(index, seen))
    }

    fn claimed(&self, index: usize, seen: Tenure) -> Claim<'_> {
        self.slots[index].claimed(CpuId::from_index(index), seen)
    }

    /// Returns `parked + delta`, if that is within the limit.
    #[inline]
    fn fits(&self, parked: i64, delta: i64) -> Option<i64> {
        let sum = parked.checked_add(delta)?;
        (sum.unsigned_abs() <= self.limit).then_some(sum)
    }

    #[inline]
    fn is_slot_of(&self, index: usize, owner: Option<Owner>) -> bool {
        // Relaxed: a hint, unless only the caller acts as this CPU.
        self.slots[index].tenure(Ordering::Relaxed) == Tenure::of(owner)
    }

    /// Lets other threads run: first ready threads, after a while all.
    #[cold]
    fn wait(&self, turns: u32) {
        /// Turns before a waiter sleeps, so that a holder of lower priority can run. Chosen.
        const YIELDS: u32 = 64;
        const NAP: Duration = Duration::from_micros(50);
        self.waits.add(1);
        if turns < YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
    }

    /// Returns the slot of the CPU that the thread runs on, if it can run sequences.
    #[inline]
    fn own(&self) -> Option<(CpuId, &Slot)> {
        let cpu = self.sequences.cpu()?;
        Some((cpu, self.slots.get(cpu.index())?))
    }

    #[inline]
    fn known(&self, cpu: CpuId) -> Option<usize> {
        (cpu.index() < self.slots.len()).then_some(cpu.index())
    }

    /// Returns the slot of the CPU that the thread seems to run on; any slot would be right.
    #[inline]
    fn hinted_slot(&self) -> usize {
        current_cpu().index() % self.slots.len()
    }

    fn check_acting_as(&self, cpu: CpuId) {
        assert!(
            self.regime() == Regime::Atomic,
            "acting as {cpu} needs the atomic regime: these words are written by their own CPU"
        );
        let nr_cpus = self.slots.len();
        assert!(
            cpu.index() < nr_cpus,
            "{cpu} is not one of the {nr_cpus} CPUs of these slots"
        );
    }
}

impl fmt::Debug for OwnedSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedSlots")
            .field("regime", &self.regime())
            .field("nr_cpus", &self.nr_cpus())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// Outcome of an attempt to claim a slot.
enum Attempted<'a> {
    Claimed(Claim<'a>),
    /// Another thread was first.
    Lost,
    /// The thread was interrupted, or runs elsewhere: nothing happened.
    Interrupted,
}
