//! Balanced: S3-FIFO with an adaptive length of the list of new pages.
//!
//! New pages enter the inactive list. At its tail, a page that was accessed twice is activated, one
//! that was accessed once is rotated once, and the others are evicted. The active list is a clock.
//! A refaulting page is activated if it had left the inactive list within one and a half times the
//! capacity of others; if it had left the active list it goes through the inactive one again,
//! because a page that the clock evicted is worth no more than a new page.
//!
//! If the page left so recently that a list longer by 1/8 of the capacity would have kept it, the
//! list that it left grows by two pages, at the other's expense. Both lists are measured in the
//! same way, so a page is worth as much at the tail of either. The initial length is a guess, so
//! until as many pages have left as the capacity, steps are of up to 32 pages, and later of two.
//!
//! A page of the active list that was accessed up to three times since the clock passed it stays
//! for as many rounds, unless the working set changes, or may do so. It changes if the inactive
//! list has two thirds of the capacity or more; it may do so until as many pages have left as the
//! capacity, because no length was learnt yet. Then the active pages are those of the former set,
//! and a round that their past accesses earn evicts pages of the new set; so a page stays for one
//! round only.
//!
//! So a scan passes through a short inactive list and leaves the active one alone; a working set
//! that is new, or was evicted too early, makes the inactive list longer until it is caught.
//!
//! Marks do not tell when a page was accessed, so that these lists alone miss up to 38 % more
//! often than LRU where a working set is replaced, and up to 16 % where new pages are reused only
//! after a pause. So the policy is [bounded](EvictionPolicy::is_bounded): where it would owe too
//! much, LRU's victims are evicted instead. Meanwhile the lists lose pages that they did not
//! choose, so no length is learnt: it would be one of chance, and decide whether the lists gain
//! anything afterwards (cloudPhysics w92, 62 % of the footprint: 37 or 46 % misses, by the sample).
//! When the lists take over from LRU, which leaves their lengths to chance, new pages first fill a
//! short active list.
//!
//! Source: S3-FIFO; shadows and refault distance from the workingset detection of Linux; a share
//! that moves with refaults, from ARC. Deviation from all: the measure at both tails, and the
//! bound. `highwater lab policies` compares it with each of them on recorded traces; on synthetic
//! ones, the lab's `tests/lru_bound.rs`.

use super::{Departure, EvictionPolicy, Fate, Lens, PolicyState, Side};

/// Accesses that make a page worth keeping.
const MOVE_ON: u32 = 2;

/// The growth at which a list is judged, as a part of the capacity. Chosen: with less, the length
/// moves too slowly for a trace that goes ten times through the cache; with more, it follows
/// refaults that it cannot catch.
const MARGIN: u64 = 8;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Balanced;

/// Returns the initial length, as in S3-FIFO.
fn start(lens: Lens) -> u64 {
    (lens.capacity / 10).max(1)
}

/// Returns the target length of the inactive list.
fn target(state: &PolicyState, lens: Lens) -> u64 {
    let least = (lens.capacity / 100).max(1);
    let most = (lens.capacity * 9 / 10).max(1);
    state.target(start(lens)).clamp(least, most)
}

/// Returns the length at which the active list is full.
fn active_max(state: &PolicyState, lens: Lens) -> u64 {
    lens.capacity.saturating_sub(target(state, lens))
}

/// Returns whether fewer pages have left than a length can be learnt from.
fn is_beginning(state: &PolicyState, lens: Lens) -> bool {
    state.nr_left() < lens.capacity
}

/// Returns whether the length of the inactive list shows that the working set changes, or shows
/// nothing yet.
///
/// Chosen: from half the capacity, recorded traces in a cache of 1 % of their footprint avoid 4.8 %
/// of LRU's misses (5.1 %); from three quarters, a set of 1.2 capacities that slides has up to
/// 4.7 % more misses than LRU (2.3 %). Without the beginning, a set of 0.8 capacities whose first
/// replacement finds the old set with three rounds to go has up to 8.3 % more (3.1 %).
fn is_changing(state: &PolicyState, lens: Lens) -> bool {
    is_beginning(state, lens) || 3 * target(state, lens) >= 2 * lens.capacity
}

/// Returns the pages by which the length changes at once: 32 and then 8 at first, and two later,
/// unless these are a noticeable part of the capacity.
///
/// Chosen: with 8 from the start, the first replacement of a set of 0.8 capacities costs up to
/// 2.8 % of LRU's misses (2.2 %); with 32 until the end, the shipped trace hits less often.
fn step(state: &PolicyState, lens: Lens) -> u64 {
    let (divisor, most) = match state.nr_left() {
        left if 2 * left < lens.capacity => (8, 32),
        left if left < lens.capacity => (8, 8),
        _ => (64, 2),
    };
    (lens.capacity / divisor).clamp(1, most)
}

fn learn(state: &PolicyState, lens: Lens, departure: Departure) {
    let is_near = departure.distance <= lens.capacity / MARGIN + 1;
    if !is_near || state.is_lru() {
        return;
    }
    let (length, step) = (target(state, lens), step(state, lens));
    state.set_target(match departure.from {
        Side::Inactive => length + step,
        Side::Active => length.saturating_sub(step),
    });
}

impl EvictionPolicy for Balanced {
    fn accesses_max(&self) -> u32 {
        3
    }

    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side {
        if let Some(departure) = departure {
            learn(state, lens, departure);
        }
        if state.is_filling() {
            if lens.active < active_max(state, lens) {
                return Side::Active;
            }
            state.end_filling();
        }
        if let Some(departure) = departure {
            return match self.is_near(state, lens, departure) {
                true => Side::Active,
                false => Side::Inactive,
            };
        }
        // Until the first eviction, new pages fill both lists.
        if state.nr_left() == 0 && lens.inactive >= target(state, lens) {
            Side::Active
        } else {
            Side::Inactive
        }
    }

    fn is_near(&self, _: &PolicyState, lens: Lens, departure: Departure) -> bool {
        let reach = lens.capacity + lens.capacity / 2;
        departure.from == Side::Inactive && departure.distance <= reach
    }

    fn next(&self, state: &PolicyState, lens: Lens) -> Side {
        if lens.active > active_max(state, lens) || lens.inactive == 0 {
            Side::Active
        } else {
            Side::Inactive
        }
    }

    fn decide(&self, state: &PolicyState, lens: Lens, from: Side, accesses: u32) -> Fate {
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
                credit: match is_changing(state, lens) {
                    true => 0,
                    false => accesses - 1,
                },
            },
        }
    }

    fn is_bounded(&self) -> bool {
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::EvictedBy;
    use super::*;

    // Goal: lists learn from pages that they gave up too early, and not from LRU's victims.
    #[test]
    fn no_length_is_learnt_while_lru_is_followed() {
        let state = PolicyState::default();
        let lens = Lens {
            inactive: 500,
            active: 500,
            capacity: 1000,
        };
        let early = Some(Departure {
            from: Side::Inactive,
            distance: 1,
        });
        let start = target(&state, lens);
        state.follow(EvictedBy::Lru, lens);
        _ = Balanced.admit(&state, lens, early);
        assert_eq!(target(&state, lens), start);
        state.follow(EvictedBy::Policy, lens);
        _ = Balanced.admit(&state, lens, early);
        assert!(target(&state, lens) > start, "a list that was too short");
    }
}
