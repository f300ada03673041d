//! CAR, the ARC with clocks as lists: pages seen once on one list, pages seen again on the other. A
//! refault moves the share of the first towards the list that the page left, the faster the fewer
//! of that list's pages are remembered.
//!
//! Source: Bansal and Modha, FAST 2004. Deviation: a page is remembered until as many others have
//! left its list as that list's memory is long, whether they have refaulted since or not.

use super::{Departure, EvictionPolicy, Fate, Lens, PolicyState, Side};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Car;

/// Moves the share towards a list, and forgets a page of it.
fn learn(state: &PolicyState, lens: Lens, from: Side) {
    let step = (state.ghosts(from.other()) / state.ghosts(from).max(1)).max(1);
    let target = state.target(0);
    state.set_target(match from {
        Side::Inactive => (target + step).min(lens.capacity),
        Side::Active => target.saturating_sub(step),
    });
    state.forget(from);
}

impl EvictionPolicy for Car {
    fn accesses_max(&self) -> u32 {
        1
    }

    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side {
        if let Some(departure) = departure
            && self.is_near(state, lens, departure)
        {
            learn(state, lens, departure.from);
            return Side::Active;
        }
        // As many pages are remembered as the capacity, on both sides; of pages seen once, no more
        // than make the capacity together with the resident ones.
        if lens.inactive + state.ghosts(Side::Inactive) >= lens.capacity {
            state.forget(Side::Inactive);
        } else if lens.total() + state.ghosts(Side::Inactive) + state.ghosts(Side::Active)
            >= 2 * lens.capacity
        {
            state.forget(Side::Active);
        }
        Side::Inactive
    }

    fn is_near(&self, state: &PolicyState, _: Lens, departure: Departure) -> bool {
        departure.distance < state.ghosts(departure.from)
    }

    fn next(&self, state: &PolicyState, lens: Lens) -> Side {
        if lens.inactive >= state.target(0).max(1) || lens.active == 0 {
            Side::Inactive
        } else {
            Side::Active
        }
    }

    fn decide(&self, _: &PolicyState, _: Lens, _: Side, accesses: u32) -> Fate {
        match accesses {
            0 => Fate::Evict,
            _ => Fate::Stay {
                to: Side::Active,
                credit: 0,
            },
        }
    }
}
