//! Loom models of one slot alone: the fewer steps, the more complete the model's search. Spaces and
//! marks are checked in `active_cache::loom`.
//!
//! The search begins with the first thread running to its end, and detects a race of two accesses
//! only if neither thread touched the word in between. So each test lets each of its parts run
//! first.

use std::num::NonZeroU32;

use ::loom::model;

use super::*;
use highwater::lab::sync::Arc;
use highwater::lab::sync::atomic::AtomicI64;

const C0: CpuId = CpuId(0);

fn owner(number: u32) -> Owner {
    Owner(NonZeroU32::new(number).expect("owners are numbered from 1"))
}

/// One slot, and the total of its first owner, which has parked 5.
struct OneSlot {
    slots: OwnedSlots,
    total: AtomicI64,
    /// Amount parked by the threads of a test.
    parked: AtomicI64,
}

impl OneSlot {
    fn new() -> Arc<Self> {
        let slots = OwnedSlots::new(Regime::Atomic, 1, 100);
        let claim = slots.claim_on(C0).expect("it is not held");
        claim.settle(Some(owner(1)), |_| ());
        assert!(matches!(
            slots.park_or_claim_on(C0, owner(1), 0, 5),
            Place::Parked
        ));
        Arc::new(Self {
            slots,
            total: AtomicI64::new(0),
            parked: AtomicI64::new(5),
        })
    }

    /// Gives the slot to `next`, unless it is held.
    fn switch(&self, next: Option<Owner>) {
        if let Some(claim) = self.slots.claim_on(C0) {
            self.settle(claim, next);
        }
    }

    fn settle(&self, claim: Claim<'_>, next: Option<Owner>) {
        let is_first = claim.owner() == Some(owner(1));
        claim.settle(next, |parked| {
            if is_first {
                // Relaxed: as the totals of spaces.
                self.total.fetch_add(parked[0], Ordering::Relaxed);
            }
        });
    }

    fn park(&self, delta: i64) {
        if let Place::Parked = self.slots.park_or_claim_on(C0, owner(1), 0, delta) {
            // Relaxed: read after the threads have ended.
            self.parked.fetch_add(delta, Ordering::Relaxed);
        }
    }

    fn read(&self) -> Option<i64> {
        // Relaxed: as the totals of spaces.
        let total = || [self.total.load(Ordering::Relaxed), 0, 0, 0];
        let sums = self.slots.read(owner(1), 0..1, total);
        sums.map(|sums| sums[0])
    }
}

/// Runs the parts at once, each on a thread of its own; at the end the sum must be right.
fn at_once<const N: usize>(parts: [fn(&OneSlot); N]) {
    for first in 0..N {
        model(move || {
            let slot = OneSlot::new();
            let others = (1..N).map(|offset| {
                let (slot, part) = (Arc::clone(&slot), parts[(first + offset) % N]);
                thread::Builder::new()
                    .spawn(move || part(&slot))
                    .expect("a model has threads enough")
            });
            let others: Vec<_> = others.collect();
            parts[first](&slot);
            for other in others {
                other.join().expect("the model's thread ends");
            }
            let parked = slot.parked.load(Ordering::Relaxed);
            assert_eq!(slot.read(), Some(parked));
        });
    }
}

fn reads_five(slot: &OneSlot) {
    assert!(matches!(slot.read(), Some(5) | None));
}

// Goal: a read counts a settled amount once, or returns nothing.
#[test]
fn a_read_counts_what_is_settled_once() {
    at_once([reads_five, |slot| slot.switch(None)]);
    at_once([reads_five, |slot| slot.switch(Some(owner(1)))]);
}

// Goal: a reader does not take the next owner's parked amount for the last one's. Method: another
// thread than the switching one parks for the next owner.
#[test]
fn a_read_takes_nothing_of_the_next_owner() {
    at_once([
        reads_five,
        |slot| slot.switch(Some(owner(2))),
        |slot| _ = slot.slots.park_or_claim_on(C0, owner(2), 0, 9),
    ]);
}

// Goal: a claim sees the parked amount, and parkers see that it was settled.
#[test]
fn parking_and_settling_take_turns() {
    at_once([|slot| slot.park(1), |slot| slot.switch(Some(owner(1)))]);
    at_once([|slot| slot.park(1), |slot| slot.switch(None)]);
}

// Goal: two threads that settle at once do it one after the other.
#[test]
fn two_claims_take_turns() {
    at_once([|slot| slot.switch(None), |slot| slot.switch(Some(owner(1)))]);
}

// Goal: a thread that claims from afar, or finds another owner there, sees the last one's words
// settled.
#[test]
fn a_claim_from_afar_or_another_owner_tells_everything() {
    at_once([
        |slot| {
            if let Some(claim) = slot.slots.claim_from_afar(C0, |other| other == owner(1)) {
                slot.settle(claim, None);
            }
            assert_eq!(slot.total.load(Ordering::Relaxed), 5);
        },
        |slot| slot.switch(Some(owner(2))),
    ]);
}
