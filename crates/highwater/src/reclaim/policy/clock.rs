//! CLOCK: FIFO with a second chance for accessed pages.
//!
//! One list, one mark. Evicted pages are not remembered.
//!
//! Source: Corbató 1968.

use super::{Departure, EvictionPolicy, Fate, Lens, PolicyState, Side};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl EvictionPolicy for Clock {
    fn accesses_max(&self) -> u32 {
        1
    }

    fn admit(&self, _: &PolicyState, _: Lens, _: Option<Departure>) -> Side {
        Side::Inactive
    }

    fn next(&self, _: &PolicyState, lens: Lens) -> Side {
        // Pages that reclaim could not evict are on the active list, out of the way.
        if lens.inactive > 0 {
            Side::Inactive
        } else {
            Side::Active
        }
    }

    fn decide(&self, _: &PolicyState, _: Lens, from: Side, accesses: u32) -> Fate {
        match (from, accesses) {
            (Side::Inactive, 0) => Fate::Evict,
            _ => Fate::Stay {
                to: Side::Inactive,
                credit: 0,
            },
        }
    }
}
