//! SIEVE: a hand goes from the oldest page to the newest and evicts pages that were not accessed
//! since its last visit; pages that it passes stay where they are.
//!
//! The hand is where the two lists meet. Ahead of it, on the inactive list, are the pages that it
//! visits next; behind it, on the active list, those that it has passed, in their order. New pages
//! enter at the very head. When nothing is ahead of it, the hand goes back to the oldest page: all
//! pages behind it are ahead of it again.
//!
//! Source: Zhang and others, NSDI 2024. Deviation: the way back moves every page once, a cluster at
//! a time.

use super::{Departure, EvictionPolicy, Fate, Lens, PolicyState, Side};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sieve;

impl EvictionPolicy for Sieve {
    fn accesses_max(&self) -> u32 {
        1
    }

    fn admit(&self, _: &PolicyState, lens: Lens, _: Option<Departure>) -> Side {
        // The hand has passed the newest page and is at the oldest again: a page that comes in is
        // the last that it visits.
        if lens.inactive == 0 {
            Side::Active
        } else {
            Side::Inactive
        }
    }

    fn next(&self, state: &PolicyState, lens: Lens) -> Side {
        if lens.inactive == 0 {
            state.begin_turn();
        } else if lens.active == 0 {
            state.end_turn();
        }
        if state.is_turning() && lens.active > 0 {
            Side::Active
        } else {
            Side::Inactive
        }
    }

    fn decide(&self, _: &PolicyState, _: Lens, from: Side, accesses: u32) -> Fate {
        match (from, accesses) {
            (Side::Inactive, 0) => Fate::Evict,
            (Side::Inactive, _) => Fate::Stay {
                to: Side::Active,
                credit: 0,
            },
            // The way back makes no decisions.
            (Side::Active, accesses) => Fate::Stay {
                to: Side::Inactive,
                credit: accesses,
            },
        }
    }
}
