//! Eviction policies one decision at a time: fates of pages in every state, refaults, and the
//! lengths that Balanced learns.

use super::*;

pub(super) const SIDES: [Side; 2] = [Side::Inactive, Side::Active];

const fn seen(young: u32) -> Referenced {
    Referenced::Seen {
        young,
        executable: false,
        locked: false,
    }
}

const LOCKED: Referenced = Referenced::Seen {
    young: u32::MAX,
    executable: true,
    locked: true,
};

pub(super) const fn lens(inactive: u64, active: u64) -> Lens {
    Lens {
        inactive,
        active,
        capacity: inactive + active,
    }
}

// Goal: a page that is locked is culled, one whose mappings could not be checked keeps its place
// and its credit, and accesses beyond those that a policy tells apart count as its most. Method:
// every policy, list and type, at the ends of each count.
#[test]
fn locked_and_contended_pages_have_the_same_fate_under_every_policy() {
    let (state, lens) = (PolicyState::default(), lens(10, 10));
    for kind in PolicyKind::ALL {
        let policy = kind.policy();
        let most = policy.accesses_max();
        assert!((1..=ACCESSES_MAX).contains(&most), "{kind}");
        for (from, page_type) in SIDES
            .into_iter()
            .flat_map(|side| PageType::ALL.map(|it| (side, it)))
        {
            let fate = |entries, credit| {
                let look = Look {
                    entries,
                    credit,
                    page_type,
                };
                policy.judge(&state, lens, from, look)
            };
            for credit in [0, 1, 3] {
                assert_eq!(fate(LOCKED, credit), Fate::Cull, "{kind} {from:?}");
                let kept = Fate::Stay { to: from, credit };
                assert_eq!(fate(Referenced::Contended, credit), kept, "{kind} {from:?}");
            }
            let of_most = policy.decide(&state, lens, from, most);
            for (young, credit) in [(most, 0), (u32::MAX, 0), (u32::MAX, u32::MAX), (1, most)] {
                assert_eq!(
                    fate(seen(young), credit),
                    of_most,
                    "{kind} {from:?} {young}"
                );
            }
        }
    }
}

// Goal: the two-list LRU's fates: active pages that were accessed rotate and others are
// deactivated, inactive ones that were accessed through a mapping are activated, and one copying
// read saves a page of a file from being written, not from eviction. Method: the whole table.
#[test]
fn two_list_judges_by_list_mapping_and_copy() {
    let [deactivated, activated] = SIDES.map(Fate::to);
    let state = PolicyState::default();
    for page_type in PageType::ALL {
        let is_clean_only = page_type == PageType::File;
        let copied = if is_clean_only {
            Fate::EvictClean
        } else {
            Fate::Evict
        };
        for (from, young, credit, expected) in [
            (Side::Inactive, 0, 0, Fate::Evict),
            (Side::Inactive, 0, 1, copied),
            (Side::Inactive, 1, 0, activated),
            (Side::Inactive, 1, 1, activated),
            (Side::Active, 0, 0, deactivated),
            (Side::Active, 0, 1, activated),
            (Side::Active, 1, 0, activated),
        ] {
            let entries = seen(young);
            let look = Look {
                entries,
                credit,
                page_type,
            };
            let fate = TwoList.judge(&state, lens(5, 5), from, look);
            assert_eq!(fate, expected, "{from:?} {look:?}");
        }
        let look = Look {
            entries: LOCKED,
            credit: 1,
            page_type,
        };
        assert_eq!(
            TwoList.judge(&state, lens(5, 5), Side::Inactive, look),
            Fate::Cull
        );
    }
}

// Goal: active pages are aged once they exceed the inactive ones by the stated factor: 1 below
// 1 GiB, 3 at 1 GiB, 10 at 10 GiB, 31 at 100 GiB. Method: the lengths just at and just beyond each
// factor, and lists whose product does not fit 64 bits.
#[test]
fn the_active_list_is_aged_beyond_the_stated_factor() {
    const GIB: u64 = 1 << 18;
    for (total, factor) in [
        (100, 1),
        (GIB - 1, 1),
        (GIB, 3),
        (2 * GIB, 4),
        (10 * GIB, 10),
        (100 * GIB, 31),
    ] {
        let inactive = total / (factor + 1);
        for inactive in [inactive - 1, inactive, inactive + 1] {
            let active = total - inactive;
            let is_low = TwoList.inactive_is_low(lens(inactive, active));
            assert_eq!(
                is_low,
                active > factor * inactive,
                "{inactive} and {active}"
            );
        }
    }
    assert!(!TwoList.inactive_is_low(lens(u64::MAX / 2, u64::MAX / 2)));
    assert!(!TwoList.inactive_is_low(lens(0, 0)), "nothing to age");
    assert!(TwoList.inactive_is_low(lens(0, 1)));
}

// Goal: a refault is admitted to the two-list LRU's active list up to the capacity that it competes
// with and no further, whichever list the page had left; a new page never is. Method: distances
// around the capacity.
#[test]
fn two_list_admits_refaults_within_the_working_set() {
    let (state, lens) = (
        PolicyState::default(),
        Lens {
            capacity: 7,
            ..lens(3, 4)
        },
    );
    assert_eq!(TwoList.admit(&state, lens, None), Side::Inactive);
    for from in SIDES {
        for distance in (0..20).chain([u64::MAX]) {
            let to = TwoList.admit(&state, lens, Some(Departure { from, distance }));
            assert_eq!(to == Side::Active, distance <= 7, "{distance}");
        }
    }
}

/// Returns the length of the inactive list up to which Balanced evicts from the active one.
fn learnt(state: &PolicyState, capacity: u64) -> u64 {
    let is_active_full = |target: &u64| {
        let active = capacity - target + 1;
        let lens = Lens {
            capacity,
            ..lens(1, active)
        };
        Balanced.next(state, lens) == Side::Active
    };
    (0..=capacity)
        .rev()
        .find(is_active_full)
        .expect("a full list is evicted from")
}

// Goal: the list that a page left too early grows by the stated step and no other, and never beyond
// 1/100 to 9/10 of the capacity: 32 pages at first, 8 until as many have left as the capacity, and
// 2 later. Method: refaults one after another, near and just too far, at each age of the state.
#[test]
fn balanced_learns_from_near_refaults_by_the_stated_steps() {
    const CAPACITY: u64 = 1000;
    let whole = Lens {
        capacity: CAPACITY,
        ..lens(500, 500)
    };
    for (nr_left, step) in [(1, 32), (499, 32), (500, 8), (999, 8), (1000, 2), (5000, 2)] {
        let state = PolicyState::starting_at(1 << 30);
        _ = state.leave(Side::Active, nr_left);
        assert_eq!(learnt(&state, CAPACITY), 100, "a tenth, as in S3-FIFO");
        let refault = |from, distance| {
            _ = Balanced.admit(&state, whole, Some(Departure { from, distance }));
            learnt(&state, CAPACITY)
        };
        assert_eq!(
            refault(Side::Inactive, 126),
            100 + step,
            "{nr_left} have left"
        );
        assert_eq!(refault(Side::Active, 0), 100, "{nr_left} have left");
        for from in SIDES {
            assert_eq!(refault(from, 127), 100, "not within 1/8 of the capacity");
        }
        let longest = (0..1000).map(|_| refault(Side::Inactive, 1)).max();
        assert_eq!(longest, Some(900));
        let shortest = (0..1000).map(|_| refault(Side::Active, 1)).min();
        assert_eq!(shortest, Some(10));
    }
}

// Goal: Balanced admits a page to the active list if it left the inactive one within one and a half
// capacities, and never one that left the active list; new pages fill both lists before the first
// eviction, and a short active list after LRU. Method: distances around the bound, and lengths
// around the target.
#[test]
fn balanced_admits_to_the_active_list_as_stated() {
    let full = lens(10, 90);
    let state = PolicyState::default();
    let admit = |state: &PolicyState, lens, departure| Balanced.admit(state, lens, departure);
    assert_eq!(
        admit(
            &state,
            Lens {
                inactive: 9,
                ..full
            },
            None
        ),
        Side::Inactive
    );
    assert_eq!(admit(&state, full, None), Side::Active, "the first fill");
    _ = state.leave(Side::Inactive, 1);
    assert_eq!(
        admit(&state, full, None),
        Side::Inactive,
        "after the first eviction"
    );
    for distance in [0, 50, 150, 151, u64::MAX] {
        let of = |from| admit(&state, full, Some(Departure { from, distance }));
        assert_eq!(
            of(Side::Inactive) == Side::Active,
            distance <= 150,
            "{distance}"
        );
        assert_eq!(of(Side::Active), Side::Inactive, "{distance}");
    }
    for active in [49, 50] {
        let state = PolicyState::default();
        _ = state.leave(Side::Inactive, 1);
        let left_by_lru = Lens { active, ..full };
        state.follow(EvictedBy::Lru, left_by_lru);
        assert_eq!(admit(&state, left_by_lru, None), Side::Inactive);
        state.follow(EvictedBy::Policy, left_by_lru);
        let is_short = admit(&state, left_by_lru, None) == Side::Active;
        assert_eq!(is_short, active == 49, "less than half is short");
        assert_eq!(admit(&state, full, None), Side::Inactive, "filled");
        assert_eq!(
            admit(&state, left_by_lru, None),
            Side::Inactive,
            "filled once"
        );
    }
}

// Goal: on Balanced's active list past accesses earn as many rounds, but one only while the working
// set changes, or may do so; on the inactive list two accesses move a page, and one gives it
// another round. Method: every count of accesses in each of those states.
#[test]
fn balanced_gives_rounds_for_accesses_unless_the_set_changes() {
    let capacity = 90;
    let whole = Lens {
        capacity,
        ..lens(45, 45)
    };
    let settled = PolicyState::default();
    _ = settled.leave(Side::Inactive, capacity);
    let [beginning, changing] = [(); 2].map(|()| PolicyState::default());
    _ = beginning.leave(Side::Inactive, capacity - 1);
    _ = changing.leave(Side::Inactive, capacity);
    settled.set_target(59);
    changing.set_target(60);
    for (state, is_changing) in [(&settled, false), (&beginning, true), (&changing, true)] {
        let fate = |from, accesses| Balanced.decide(state, whole, from, accesses);
        for from in SIDES {
            assert_eq!(fate(from, 0), Fate::Evict);
        }
        assert_eq!(fate(Side::Inactive, 1), Fate::to(Side::Inactive));
        for accesses in 1..=3 {
            let credit = if is_changing { 0 } else { accesses - 1 };
            let stays = Fate::Stay {
                to: Side::Active,
                credit,
            };
            assert_eq!(fate(Side::Active, accesses), stays, "{state:?}");
            if accesses > 1 {
                assert_eq!(fate(Side::Inactive, accesses), Fate::to(Side::Active));
            }
        }
    }
}
