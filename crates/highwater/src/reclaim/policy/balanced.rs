//! Balanced: S3-FIFO whose list of new pages finds its own length.
//!
//! New pages come in on the inactive list. At its end, a page that was accessed twice is activated, one that was accessed
//! once goes round once more, the others go. The active list is a clock. A page that comes back is activated if it had left the
//! inactive list within one and a half times the capacity of others; if it had left the active list it passes the inactive one
//! again, because what the clock gave up is not worth more than a new page.
//!
//! If it left so lately that a list longer by 1/32 of the capacity would have kept it, the list that it left becomes longer
//! by one page, at the other's expense. Both lists are asked the same question, so a page is worth as much at the end of
//! either.
//!
//! So a scan passes through a short inactive list and leaves the active one alone; a working set that is new, or was
//! thrown out too early, makes the inactive list longer until it is caught.
//!
//! Source: S3-FIFO; shadows and refault distance from the workingset detection of Linux; a share that moves with what
//! comes back, from ARC. Deviation from all: the question asked of both ends. `highwater lab policies` holds it against
//! each of them on recorded traces.

use super::{Departure, EvictionPolicy, Fate, Lens, PolicyState, Side};

/// Accesses after which a page is worth a place among those that stay.
const MOVE_ON: u32 = 2;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balanced;

/// The length to begin with, as in S3-FIFO.
fn start(lens: Lens) -> u64 {
    (lens.capacity / 10).max(1)
}

fn target(state: &PolicyState, lens: Lens) -> u64 {
    let least = (lens.capacity / 100).max(1);
    let most = (lens.capacity * 9 / 10).max(1);
    state.target(start(lens)).clamp(least, most)
}

fn learn(state: &PolicyState, lens: Lens, departure: Departure) {
    if departure.distance > lens.capacity / 32 + 1 {
        return;
    }
    let target = target(state, lens);
    state.set_target(match departure.from {
        Side::Inactive => target + 1,
        Side::Active => target - 1,
    });
}

impl EvictionPolicy for Balanced {
    fn accesses_max(&self) -> u32 {
        3
    }

    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side {
        if let Some(departure) = departure {
            learn(state, lens, departure);
            let reach = lens.capacity + lens.capacity / 2;
            return match departure.from {
                Side::Inactive if departure.distance <= reach => Side::Active,
                _ => Side::Inactive,
            };
        }
        // Until something had to go, new pages fill both lists.
        if state.nr_left() == 0 && lens.inactive >= target(state, lens) {
            Side::Active
        } else {
            Side::Inactive
        }
    }

    fn next(&self, state: &PolicyState, lens: Lens) -> Side {
        let active_max = lens.capacity.saturating_sub(target(state, lens));
        if lens.active > active_max || lens.inactive == 0 {
            Side::Active
        } else {
            Side::Inactive
        }
    }

    fn decide(&self, from: Side, accesses: u32) -> Fate {
        match (from, accesses) {
            (_, 0) => Fate::Evict,
            (Side::Inactive, MOVE_ON..) => Fate::Stay {
                to: Side::Active,
                credit: 0,
            },
            (Side::Inactive, _) => Fate::Stay {
                to: Side::Inactive,
                credit: 0,
            },
            (Side::Active, accesses) => Fate::Stay {
                to: Side::Active,
                credit: accesses - 1,
            },
        }
    }
}
