//! S3-FIFO: a tenth of the pages is on a list of new ones, most of which are evicted soon; those
//! that were accessed twice there, or refaulted soon after they left it, are rotated on the other
//! list as often as they were accessed.
//!
//! Source: Yang and others, SOSP 2023. Deviation: a page is remembered until nine tenths of the
//! capacity of others have left the list of new pages after it, whether they have refaulted since
//! or not.

use super::{Departure, EvictionPolicy, Fate, Lens, PolicyState, Side};

/// Accesses that make a page worth keeping.
const MOVE_ON: u32 = 2;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct S3Fifo;

fn small(lens: Lens) -> u64 {
    (lens.capacity / 10).max(1)
}

impl EvictionPolicy for S3Fifo {
    fn accesses_max(&self) -> u32 {
        3
    }

    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side {
        let is_known = departure.is_some_and(|departure| self.is_near(state, lens, departure));
        // Until the first eviction, new pages fill both lists.
        let is_filling = state.nr_left() == 0 && lens.inactive >= small(lens);
        if is_known || is_filling {
            Side::Active
        } else {
            Side::Inactive
        }
    }

    fn is_near(&self, _: &PolicyState, lens: Lens, departure: Departure) -> bool {
        departure.from == Side::Inactive && departure.distance < lens.capacity * 9 / 10
    }

    fn next(&self, _: &PolicyState, lens: Lens) -> Side {
        if lens.active > lens.capacity.saturating_sub(small(lens)) || lens.inactive == 0 {
            Side::Active
        } else {
            Side::Inactive
        }
    }

    fn decide(&self, _: &PolicyState, _: Lens, from: Side, accesses: u32) -> Fate {
        match from {
            Side::Inactive if accesses >= MOVE_ON => Fate::Stay {
                to: Side::Active,
                credit: 0,
            },
            Side::Active if accesses > 0 => Fate::Stay {
                to: Side::Active,
                credit: accesses - 1,
            },
            _ => Fate::Evict,
        }
    }
}
