//! One CPU's words, their owner, and changes of owner.

use std::num::NonZeroU32;

use highwater::lab::percpu::{GuardedStore, Sequences};
use highwater::lab::sync::StatCell;
use highwater::lab::sync::atomic::{AtomicU64, Ordering, fence};
use highwater::units::CpuId;

/// Words of a slot.
pub(crate) const WORDS: usize = 4;

/// An owner of slots: a number that the caller assigns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(in super::super) NonZeroU32);

/// The owner of a slot's words, and whether the slot is held: `owner << 1 | held`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tenure(pub(super) u64);

impl Tenure {
    const HELD: u64 = 1;

    #[inline]
    pub(super) fn of(owner: Option<Owner>) -> Self {
        Self(owner.map_or(0, |owner| u64::from(owner.0.get()) << 1))
    }

    pub(super) fn owner(self) -> Option<Owner> {
        let number = u32::try_from(self.0 >> 1).expect("a tenure has an owner's number");
        NonZeroU32::new(number).map(Owner)
    }

    pub(super) fn is_held(self) -> bool {
        self.0 & Self::HELD != 0
    }

    pub(super) fn held(self) -> Self {
        Self(self.0 | Self::HELD)
    }
}

/// State of one CPU.
#[repr(C, align(128))]
pub(super) struct Slot {
    parked: Parked,
    polled: Polled,
}

#[repr(C, align(64))]
struct Parked {
    /// Written by: parkers (Release), the holder of the slot. Read by: parkers, the holder,
    /// readers. Publishes: that the owner had been installed.
    words: [AtomicU64; WORDS],
    /// Additions that were parked here.
    hits: StatCell,
    /// Additions that were not parked, although the thread seemed to run here.
    misses: StatCell,
    /// Claims from here that found the slot held, or were interrupted too often.
    busy: StatCell,
}

#[repr(C, align(64))]
struct Polled {
    /// A [`Tenure`]. Written by: claimers (Acquire), the holder (Release). Read by: all threads.
    /// Publishes: the words, and that parked amounts were settled.
    tenure: AtomicU64,
    /// Written by: the holder (Release when even). Read by: readers (Acquire), the holder.
    /// Publishes: that parked amounts have arrived in the totals.
    sequence: AtomicU64,
    /// Changes of the owner; written by the holder, as the next two.
    switches: StatCell,
    /// Changes of an owner with something parked.
    flushes: StatCell,
    /// Settlements for the same owner.
    folds: StatCell,
}

/// Counters of slots. Statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotStats {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) busy: u64,
    pub(crate) switches: u64,
    pub(crate) flushes: u64,
    pub(crate) folds: u64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 128 && size_of::<Parked>() == 64);

impl Slot {
    pub(super) fn new() -> Self {
        Self {
            parked: Parked {
                words: std::array::from_fn(|_| AtomicU64::new(0)),
                hits: StatCell::new(),
                misses: StatCell::new(),
                busy: StatCell::new(),
            },
            polled: Polled {
                tenure: AtomicU64::new(Tenure::of(None).0),
                sequence: AtomicU64::new(0),
                switches: StatCell::new(),
                flushes: StatCell::new(),
                folds: StatCell::new(),
            },
        }
    }

    #[inline]
    pub(super) fn tenure(&self, ordering: Ordering) -> Tenure {
        Tenure(self.polled.tenure.load(ordering))
    }

    #[inline]
    pub(super) fn word(&self, word: usize) -> i64 {
        // Relaxed: ordered by the tenure for holders, by the sequence for readers.
        self.parked.words[word]
            .load(Ordering::Relaxed)
            .cast_signed()
    }

    /// Stores the word's new value. For a thread that holds the slot on behalf of its owner.
    #[inline]
    pub(super) fn store(&self, word: usize, new: i64) {
        // Release. Pairs with the Acquire fence in `OwnedSlots::read`: a thread that reads this
        // learns that the owner had been installed before.
        self.parked.words[word].store(new.cast_unsigned(), Ordering::Release);
        self.parked.hits.add_alone(1);
    }

    pub(super) fn words(&self) -> [i64; WORDS] {
        std::array::from_fn(|word| self.word(word))
    }

    pub(super) fn sequence(&self, ordering: Ordering) -> u64 {
        self.polled.sequence.load(ordering)
    }

    /// Returns the store that parks `new` in place of `old`, for an owner of `tenure`.
    #[inline]
    pub(super) fn parking(
        &self,
        tenure: Tenure,
        word: usize,
        old: i64,
        new: i64,
    ) -> GuardedStore<'_> {
        GuardedStore {
            guard: &self.polled.tenure,
            expected: tenure.0,
            word: &self.parked.words[word],
            old: old.cast_unsigned(),
            new: new.cast_unsigned(),
        }
    }

    /// Counts a store that was made in a sequence. Misses some if the thread is moved or preempted
    /// meanwhile.
    #[inline]
    pub(super) fn parked(&self) {
        self.parked.hits.add_alone(1);
    }

    /// Exchanges the tenure for the same, held, from the slot's own CPU.
    pub(super) fn exchange_on(
        &self,
        sequences: Sequences,
        cpu: CpuId,
        seen: Tenure,
    ) -> Option<Tenure> {
        let (cell, held) = (&self.polled.tenure, seen.held());
        sequences.exchange(cpu, cell, seen.0, held.0).map(Tenure)
    }

    /// Counts a thread that seemed to run here and had to count elsewhere.
    pub(super) fn missed(&self) {
        self.parked.misses.add(1);
    }

    /// Counts a thread that seemed to run here and could not claim.
    pub(super) fn was_busy(&self) {
        self.parked.busy.add(1);
    }

    pub(super) fn stats(&self) -> SlotStats {
        let Self { parked, polled } = self;
        SlotStats {
            hits: parked.hits.get(),
            misses: parked.misses.get(),
            busy: parked.busy.get(),
            switches: polled.switches.get(),
            flushes: polled.flushes.get(),
            folds: polled.folds.get(),
        }
    }

    /// Returns the claim of the thread that has exchanged the tenure, which was `seen`.
    #[inline]
    pub(super) fn claimed(&self, cpu: CpuId, seen: Tenure) -> Claim<'_> {
        Claim {
            slot: self,
            cpu,
            owner: seen.owner(),
        }
    }

    /// Holds the slot on behalf of its owner, if its tenure still is `seen`, which is not held.
    #[inline]
    pub(super) fn try_hold(&self, seen: Tenure) -> bool {
        debug_assert!(!seen.is_held());
        // Acquire. Pairs with the Release of the last holder, in `Claim::drop`.
        // Relaxed on failure: nothing is done then.
        let (old, new) = (seen.0, seen.held().0);
        self.polled
            .tenure
            .compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }
}

/// The right to settle a slot, until it is dropped. May be carried to other CPUs.
#[must_use]
pub(crate) struct Claim<'a> {
    slot: &'a Slot,
    cpu: CpuId,
    owner: Option<Owner>,
}

impl Claim<'_> {
    /// The CPU whose slot it is.
    pub(crate) fn cpu(&self) -> CpuId {
        self.cpu
    }

    /// Returns the owner of the words.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// Hands the parked amounts to `absorb`, zeroes the words and gives them to `next`.
    ///
    /// Concurrent readers restart, so `absorb` is also the place to change other state that they
    /// rely on. If it panics, the words stay parked with their owner, and the slot is free for the
    /// next claim.
    pub(crate) fn settle(mut self, next: Option<Owner>, absorb: impl FnOnce([i64; WORDS])) {
        let Slot { parked, polled } = self.slot;
        // Relaxed: written by the holder only.
        let sequence = polled.sequence.load(Ordering::Relaxed);
        debug_assert_eq!(
            sequence & 1,
            0,
            "another thread settles the slot of {}",
            self.cpu
        );
        // Relaxed: ordered by the fence.
        polled.sequence.store(sequence + 1, Ordering::Relaxed);
        let settling = Settling {
            polled,
            even: sequence + 2,
        };
        // Release. Pairs with the Acquire fence in `OwnedSlots::read`: a thread that reads anything
        // that is stored below also reads the odd sequence.
        fence(Ordering::Release);
        let words = self.slot.words();
        absorb(words);
        for (word, amount) in parked.words.iter().zip(words) {
            if amount != 0 {
                // Relaxed: published by the tenure to the next parker, by the sequence to readers.
                word.store(0, Ordering::Relaxed);
            }
        }
        let had_any = words.iter().any(|amount| *amount != 0);
        if next == self.owner {
            polled.folds.add_alone(1);
        } else {
            polled.switches.add_alone(1);
            polled.flushes.add_alone(u64::from(had_any));
        }
        self.owner = next;
        // Under the odd sequence, so that no reader takes the next owner's words for the last
        // one's.
        let tenure = Tenure::of(next).held();
        // Release. Pairs with the Acquire in `claim_from_afar`: the last owner's words are settled.
        polled.tenure.store(tenure.0, Ordering::Release);
        drop(settling);
    }
}

/// An odd sequence, which becomes even when this is dropped: also when the settler unwinds, or
/// readers would restart forever.
struct Settling<'a> {
    polled: &'a Polled,
    even: u64,
}

impl Drop for Settling<'_> {
    fn drop(&mut self) {
        // Release. Pairs with the Acquire in `OwnedSlots::read`: a read that begins now sees all of
        // this.
        self.polled.sequence.store(self.even, Ordering::Release);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // Release. Pairs with the Acquire in `Slot::try_hold`: the next holder sees the words.
        let tenure = Tenure::of(self.owner);
        self.slot.polled.tenure.store(tenure.0, Ordering::Release);
    }
}
