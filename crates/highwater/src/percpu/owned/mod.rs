//! Words of each CPU that belong to one owner at a time.
//!
//! [`Cells`](super::Cells) give every object words of every CPU. Here each CPU has one set of words
//! for all objects together, and lends it to one of them, its *owner*: additions for the owner are
//! *parked* there, others are refused. When the owner changes, what is parked is *settled*: handed
//! to whoever keeps the old owner's totals.
//!
//! ```text
//! slot of one CPU
//!   line 0    words, hits            written by the owner's additions only
//!   line 1    tenure, sequence       polled by readers of any owner
//!
//! tenure    = owner, and whether somebody holds the slot
//! sequence  = even at rest, odd while what is parked is on its way; only grows
//! ```
//!
//! **Invariant.** A slot's words are written in one of two ways, never both at once:
//!
//! * *Parking*: tenure says the owner and that nobody holds the slot. In the restartable regime by
//!   threads that run on the CPU, in a sequence that checks the tenure. In the atomic regime by a
//!   thread that holds the slot for it, and leaves the sequence alone.
//! * *Settling*: by the one thread that holds the slot, its [`Claim`].
//!
//! Each word stays within `limit` of zero, at every moment.
//!
//! **Protocol.**
//!
//! * Claimer: exchanges the tenure for the same owner, held. In the restartable regime this has to
//!   stop parkers that have looked at the tenure already. On the CPU itself the exchange is the
//!   commit of a sequence, which proves that they have been preempted and will start again; the
//!   claim can then be carried to other CPUs. From another CPU, the exchange is followed by a
//!   membarrier(2) that makes them start again.
//! * Settler, holding a claim: sequence odd; hands over what is parked; words to zero; tenure to
//!   the next owner, held; sequence even; tenure not held.
//! * Reader ([`OwnedSlots::read`]): samples the sequence of every slot it is to visit, and gives up
//!   if one is odd; loads the totals, then tenures and words; samples again, and gives up if any
//!   has changed. In between, nothing was settled, so each addition was in the totals or parked,
//!   and not both.
//!
//! **Orderings.** A claim (Acquire) sees what the one before it, or the last parker, has done
//! (Release). The reader's second sample sees an odd sequence if any of its loads saw something
//! that was stored after that: the settler's fence and a parker's store (Release) pair with the
//! reader's fence (Acquire). Its first sample (Acquire) of an even sequence sees all that was
//! stored before that (Release).
//!
//! **Failure modes.** A slot that is held refuses additions and claims: they have another way, and
//! do not wait. Those who have none wait ([`OwnedSlots::claim_from_afar`]); a holder runs a few
//! dozen instructions without a lock or a system call, but may be preempted in them. Without
//! membarrier(2) for sequences (before Linux 5.10, sandboxes) the slots are in the atomic regime,
//! whatever was asked for; where it is refused later, as the module `gated`.
//!
//! Source: the RSS cache of the active address space proposed for Linux by K. Song (RFC, July
//! 2022).
//! Deviation: see the module `counter::active`.

#[cfg(all(test, loom))]
mod loom;
mod slot;
#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests;

use std::fmt;
use std::time::Duration;

use self::slot::Tenure;
use super::attempt::{Attempt, Parking};
use super::cells::RETRIES_MAX;
use super::{Area, Regime, Writer, current_cpu};
use crate::sync::atomic::{Ordering, fence};
use crate::sync::{StatCell, thread};
use crate::units::CpuId;

pub(super) use self::slot::Slot;
pub(crate) use self::slot::{Claim, Owner, SlotStats, WORDS};

#[inline]
fn check_word(word: usize) {
    assert!(word < WORDS, "there is no word {word}: a slot has {WORDS}");
}

/// What came of an addition.
pub(crate) enum Place<'a> {
    /// It is parked.
    Parked,
    /// It is not: the word would leave its limit. The slot is the owner's, and held.
    Full(Claim<'a>),
    /// It is not: the slot of this CPU belongs to another owner, or to nobody.
    Foreign,
    /// It is not: somebody holds the slot, or there is none, or the addition was interrupted too
    /// often.
    Unavailable,
}

/// Words of each CPU, for one owner at a time.
pub(crate) struct OwnedSlots {
    /// Some in the restartable regime.
    area: Option<Area>,
    nr_cpus: u32,
    /// A word's distance from zero is at most this.
    limit: u64,
    slots: Box<[Slot]>,
    /// Times that somebody waited for the holder of a slot.
    waits: StatCell,
}

impl OwnedSlots {
    /// Slots that nobody owns, in the atomic regime if the restartable one is not possible.
    ///
    /// # Panics
    ///
    /// When `nr_cpus` does not fit 31 bits.
    pub(crate) fn new(regime: Regime, nr_cpus: usize, limit: u32) -> Self {
        let nr_cpus = i32::try_from(nr_cpus).expect("a machine has less than 2^31 CPUs");
        let area = Writer::new(regime).area;
        let area = area.filter(|area| area.can_restart_others());
        Self {
            area,
            nr_cpus: nr_cpus.cast_unsigned(),
            limit: u64::from(limit),
            slots: (0..nr_cpus).map(|_| Slot::new()).collect(),
            waits: StatCell::new(),
        }
    }

    /// Adds `delta` to `word` of the CPU that the thread runs on, if that is `owner`'s and the word
    /// stays within its limit. Whether it did; if not, [`park_or_claim`](Self::park_or_claim) says
    /// why.
    #[inline]
    pub(crate) fn try_park(&self, owner: Owner, word: usize, delta: i64) -> bool {
        check_word(word);
        match self.area {
            Some(area) => self.try_park_here::<0>(area, owner, word, delta),
            None => {
                let place = self.park_as(self.hinted_slot(), owner, word, delta);
                matches!(place, Place::Parked)
            }
        }
    }

    /// As [`try_park`](Self::try_park), and tells what came of it.
    pub(crate) fn park_or_claim(&self, owner: Owner, word: usize, delta: i64) -> Place<'_> {
        self.park_or_claim_delayed::<0>(owner, word, delta)
    }

    /// As [`park_or_claim`](Self::park_or_claim), with `DELAY` turns of a loop at each point where
    /// being interrupted must restart the sequence.
    fn park_or_claim_delayed<const DELAY: u32>(
        &self,
        owner: Owner,
        word: usize,
        delta: i64,
    ) -> Place<'_> {
        check_word(word);
        match self.area {
            Some(area) => self.park_here::<DELAY>(area, owner, word, delta),
            None => self.park_as(self.hinted_slot(), owner, word, delta),
        }
    }

    /// As [`park_or_claim`](Self::park_or_claim), as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when there is no such CPU.
    pub(crate) fn park_or_claim_on(
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

    /// Claims the slot of the CPU that the thread runs on; `None` if somebody holds it, there is
    /// none, or the thread was interrupted too often.
    pub(crate) fn claim(&self) -> Option<Claim<'_>> {
        let hint = self.hinted_slot();
        let claim = match self.area {
            Some(area) => self.claim_here(area),
            None => self.claim_as(hint),
        };
        self.noted(hint, claim)
    }

    /// As [`claim`](Self::claim), as if running on `cpu`.
    ///
    /// # Panics
    ///
    /// In the restartable regime, and when there is no such CPU.
    pub(crate) fn claim_on(&self, cpu: CpuId) -> Option<Claim<'_>> {
        self.check_acting_as(cpu);
        self.noted(cpu.index(), self.claim_as(cpu.index()))
    }

    /// Claims the slot of `cpu` from whichever CPU, once nobody holds it, if it has an owner that
    /// is `wanted`; if it has none, whatever that owner had parked there has arrived where it
    /// belongs.
    ///
    /// Ends: a holder lets go after a few dozen instructions, and a claim that is lost to
    /// another is one that the other made.
    ///
    /// # Panics
    ///
    /// When there is no such CPU; and when the system refuses the membarrier that it granted when
    /// the slots were made, and what takes its place. The slot is as it was then.
    pub(crate) fn claim_from_afar(
        &self,
        cpu: CpuId,
        wanted: impl Fn(Owner) -> bool,
    ) -> Option<Claim<'_>> {
        let slot = &self.slots[cpu.index()];
        let mut turns = 0;
        loop {
            // Acquire. Pairs with the Release in `Claim::settle`: who sees the next owner sees what
            // became of the last one's words.
            let seen = slot.tenure(Ordering::Acquire);
            if !seen.owner().is_some_and(&wanted) {
                return None;
            }
            if seen.is_held() {
                self.wait(turns);
                turns += 1;
            } else if slot.try_hold(seen) {
                // It lets go of the slot on any way out.
                let claim = self.claimed(cpu.index(), seen);
                if let Some(area) = self.area {
                    let restarted = area.restart_others(Some(cpu));
                    restarted.unwrap_or_else(|unreached| panic!("{unreached}"));
                }
                return Some(claim);
            }
        }
    }

    /// Whether the slot of the CPU that the thread seems to run on is `owner`'s, or nobody's.
    #[inline]
    pub(crate) fn is_owned_by(&self, owner: Option<Owner>) -> bool {
        let index = match self.area {
            Some(_) => self.known(current_cpu()),
            None => Some(self.hinted_slot()),
        };
        index.is_some_and(|index| self.is_slot_of(index, owner))
    }

    /// As [`is_owned_by`](Self::is_owned_by), for the slot of `cpu`.
    pub(crate) fn is_owned_on(&self, cpu: CpuId, owner: Option<Owner>) -> bool {
        self.check_acting_as(cpu);
        self.is_slot_of(cpu.index(), owner)
    }

    /// What `totals` returns plus what is parked for `owner` on `cpus`, each addition counted once;
    /// `None` if anything was settled on one of these CPUs meanwhile.
    ///
    /// Of additions that run meanwhile it holds some, each whole.
    pub(crate) fn read(
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
            // Relaxed: the fence below makes the second sample tell if this is of another time.
            if slot.tenure(Ordering::Relaxed).owner() == Some(owner) {
                for (sum, parked) in sums.iter_mut().zip(slot.words()) {
                    *sum = sum.wrapping_add(parked);
                }
            }
        }
        // Acquire. Pairs with the Release fence in `Claim::settle` and the Release in `park_as`:
        // what was read above was stored before a sequence became odd, or that is seen below.
        fence(Ordering::Acquire);
        let after = cpus.fold(0_u64, |sum, cpu| {
            // Relaxed: ordered by the fence.
            sum.wrapping_add(self.slots[cpu].sequence(Ordering::Relaxed))
        });
        // Sequences only grow, so that equal sums mean that none has changed.
        (before == after).then_some(sums)
    }

    /// Notes that the thread, which seems to run on `cpu` or where the system says, had to count
    /// elsewhere.
    pub(crate) fn missed(&self, cpu: Option<CpuId>) {
        let index = cpu.map_or_else(|| self.hinted_slot(), CpuId::index);
        self.slots[index].missed();
    }

    /// What has happened. In the restartable regime an addition that was interrupted right before
    /// its end is counted again when it is repeated.
    pub(crate) fn stats(&self) -> SlotStats {
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

    /// Times that somebody waited for the holder of a slot.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.get()
    }

    pub(crate) fn regime(&self) -> Regime {
        match self.area {
            Some(_) => Regime::Restartable,
            None => Regime::Atomic,
        }
    }

    pub(crate) fn nr_cpus(&self) -> usize {
        self.slots.len()
    }

    /// For slots at rest: nobody holds one, nothing is on its way, and no word is over its limit.
    /// Returns the owner of each slot.
    pub(crate) fn check_invariants(&self) -> impl Iterator<Item = Option<Owner>> {
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

    fn park_here<const DELAY: u32>(
        &self,
        area: Area,
        owner: Owner,
        word: usize,
        delta: i64,
    ) -> Place<'_> {
        for _ in 0..=RETRIES_MAX {
            if self.try_park_here::<DELAY>(area, owner, word, delta) {
                return Place::Parked;
            }
            if let Some(place) = self.why_not(area, owner, word, delta) {
                return place;
            }
        }
        Place::Unavailable
    }

    /// Why the sequence did not park, as far as can be told afterwards; `None` if it might now.
    fn why_not(&self, area: Area, owner: Owner, word: usize, delta: i64) -> Option<Place<'_>> {
        let Some(index) = area.cpu().and_then(|cpu| self.known(cpu)) else {
            return Some(Place::Unavailable);
        };
        let slot = &self.slots[index];
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
        match self.attempt_claim(area, index, seen) {
            Attempted::Claimed(claim) => Some(Place::Full(claim)),
            Attempted::Lost => Some(Place::Unavailable),
            Attempted::Interrupted => None,
        }
    }

    #[inline]
    fn try_park_here<const DELAY: u32>(
        &self,
        area: Area,
        owner: Owner,
        word: usize,
        delta: i64,
    ) -> bool {
        debug_assert!(word < WORDS && self.area.is_some());
        let parking = Parking {
            first: self.slots.as_ptr(),
            nr_cpus: self.nr_cpus,
            word_at: Slot::word_at(word),
            tenure: Tenure::of(Some(owner)).0,
            limit: self.limit,
        };
        // SAFETY: there are `nr_cpus` slots, which `&self` keeps alive, and callers have checked
        // `word`. The tenure is one that nobody holds; in this regime words are written by these
        // sequences and by claims, and claims are made in a sequence on the CPU or are followed by
        // `restart_others`, before the claim is handed out. Hits are written by these sequences
        // only.
        unsafe { area.try_park::<DELAY>(parking, delta) }
    }

    /// Tries to claim a slot that nobody holds, from its own CPU.
    fn attempt_claim(&self, area: Area, index: usize, seen: Tenure) -> Attempted<'_> {
        let cell = self.slots[index].tenure_cell();
        let (cpu, held) = (CpuId::from_index(index), seen.held());
        // SAFETY: the cell is an atomic of ours, which `&self` keeps alive. The exchange has a lock
        // prefix, which is at least Acquire. Pairs with the Release in `Claim::drop`.
        match unsafe { area.attempt_exchange(cell, cpu, seen.0, held.0) } {
            Attempt::Committed { new, .. } if new.cast_unsigned() == seen.0 => {
                Attempted::Claimed(self.claimed(index, seen))
            }
            Attempt::Committed { .. } => Attempted::Lost,
            _ => Attempted::Interrupted,
        }
    }

    #[inline]
    fn park_as(&self, index: usize, owner: Owner, word: usize, delta: i64) -> Place<'_> {
        let slot = &self.slots[index];
        // Relaxed: a first look, so that a foreign slot's line is not written.
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

    fn claim_here(&self, area: Area) -> Option<Claim<'_>> {
        for _ in 0..RETRIES_MAX {
            let index = self.known(area.cpu()?)?;
            // Relaxed: only decides what to try.
            let seen = self.slots[index].tenure(Ordering::Relaxed);
            if seen.is_held() {
                return None;
            }
            match self.attempt_claim(area, index, seen) {
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

    /// `parked + delta`, if that is within the limit.
    #[inline]
    fn fits(&self, parked: i64, delta: i64) -> Option<i64> {
        let sum = parked.checked_add(delta)?;
        (sum.unsigned_abs() <= self.limit).then_some(sum)
    }

    #[inline]
    fn is_slot_of(&self, index: usize, owner: Option<Owner>) -> bool {
        // Relaxed: a hint, unless the caller is the only one who acts as this CPU.
        self.slots[index].tenure(Ordering::Relaxed) == Tenure::of(owner)
    }

    /// Lets others run: first those who are ready, after a while everybody.
    #[cold]
    fn wait(&self, turns: u32) {
        /// Turns before a waiter sleeps, so that a holder of lower priority gets on. Chosen.
        const YIELDS: u32 = 64;
        const NAP: Duration = Duration::from_micros(50);
        self.waits.add(1);
        if turns < YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
    }

    #[inline]
    fn known(&self, cpu: CpuId) -> Option<usize> {
        (cpu.index() < self.slots.len()).then_some(cpu.index())
    }

    /// The slot of the CPU that the thread seems to run on; any would be right.
    #[inline]
    fn hinted_slot(&self) -> usize {
        current_cpu().index() % self.slots.len()
    }

    fn check_acting_as(&self, cpu: CpuId) {
        assert!(
            self.area.is_none(),
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

/// What came of trying to claim a slot.
enum Attempted<'a> {
    Claimed(Claim<'a>),
    /// Somebody else was first.
    Lost,
    /// The thread was interrupted, or runs elsewhere: nothing happened.
    Interrupted,
}
