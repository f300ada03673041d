//! The promise: protected memory stays. Pressure by a neighbour takes nothing below `min`, and
//! below `low` only if no other group can give; siblings share their parent's protection, and the
//! part that no child claims covers all of them.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use highwater::group::{GroupNode, GroupTree, Protection};
use highwater::{
    Access, Background, Backing, Bytes, Charge, Group, Limits, Manager, Mapping, Pages,
};
use support::{TestFile, assert_empty, manager};

const CAPACITY: u64 = 1024;

fn pages(count: u64) -> Bytes {
    Pages(count).bytes()
}

fn with_low(count: u64) -> Limits {
    Limits {
        low: pages(count),
        ..Limits::default()
    }
}

/// Maps a separate file for a group.
fn file_of(hw: &Manager, group: &Group, count: u64) -> Mapping {
    let storage = TestFile::new(count) as Arc<dyn Backing>;
    let file = hw.open_backing(storage, Access::ReadOnly).unwrap();
    hw.space(group).map_file(&file, 0..count).unwrap()
}

/// Reads every page once; each is evictable at once, so that only protected pages stay.
fn stream(hw: &Manager, map: &Mapping) {
    for page in 0..map.pages() {
        map.read(&hw.enter(), page).unwrap();
    }
}

fn resident(group: &Group) -> u64 {
    group.list_sizes().total().0
}

/// Runs a neighbour that reads several times the capacity.
fn be_hungry(hw: &Manager) {
    let neighbour = hw.root().child("neighbour", Limits::default()).unwrap();
    stream(hw, &file_of(hw, &neighbour, 5 * CAPACITY));
    neighbour.remove().unwrap();
}

/// Charges memory outside the pool until it is refused.
fn take_all(group: &Group) -> Vec<Charge> {
    std::iter::from_fn(|| group.charge(pages(1)).ok()).collect()
}

#[test]
fn neighbours_take_nothing_below_min() {
    // Goal: min is never reclaimed, under any shortage. Method: a tenant at its min beside two
    // threads that stream, and perhaps one that reclaims for them, then beside charges that leave
    // no room: all its pages stay, and reading them again reads nothing from the file.
    for background in [Background::Off, Background::Thread] {
        let builder = Manager::builder().capacity(pages(CAPACITY));
        beside_streams(&builder.background(background).build().unwrap());
    }
}

fn beside_streams(hw: &Manager) {
    let limits = Limits {
        min: pages(200),
        ..Limits::default()
    };
    let tenant = hw.root().child("tenant", limits).unwrap();
    let map = file_of(hw, &tenant, 200);
    stream(hw, &map);
    let neighbours = ["n0", "n1"].map(|name| hw.root().child(name, Limits::default()).unwrap());
    thread::scope(|scope| {
        for neighbour in &neighbours {
            let (hw, map) = (hw.clone(), file_of(hw, neighbour, 3 * CAPACITY));
            scope.spawn(move || stream(&hw, &map));
        }
    });
    assert_eq!(resident(&tenant), 200);
    let taken = take_all(&neighbours[0]);
    assert_eq!(taken.len() as u64, CAPACITY - 200, "all but the protected");
    assert_eq!(resident(&tenant), 200);
    let faults = hw.snapshot().counter("pgmajfault");
    stream(hw, &map);
    assert_eq!(hw.snapshot().counter("pgmajfault"), faults);
    assert_eq!(tenant.events().low, 0);
    drop((taken, map));
    assert_empty(hw);
}

#[test]
fn low_gives_way_when_nothing_else_can_and_says_so() {
    // Goal: low is a promise while others have pages, and an event when it is broken. Method: a
    // tenant at its low beside a stream; then beside charges, for which nothing else makes room.
    let hw = manager(CAPACITY);
    let tenant = hw.root().child("tenant", with_low(200)).unwrap();
    let map = file_of(&hw, &tenant, 200);
    stream(&hw, &map);
    be_hungry(&hw);
    assert_eq!((resident(&tenant), tenant.events().low), (200, 0));
    let greedy = hw.root().child("greedy", Limits::default()).unwrap();
    let taken = take_all(&greedy);
    assert_eq!((taken.len() as u64, resident(&tenant)), (CAPACITY, 0));
    assert!(tenant.events_local().low > 0);
    assert_eq!(hw.root().events().low, tenant.events().low);
    assert_eq!(greedy.events().low, 0);
    drop((taken, map));
    assert_empty(&hw);
}

#[test]
fn above_its_protection_a_group_gives_down_to_it() {
    // Goal: protection keeps exactly that amount. Method: a tenant that uses three times its low,
    // with pages that are not read, beside two streams: it ends near its low. Pressure is in
    // proportion to the excess, of which a stream leaves a tenth, or a quarter when it is moved
    // to another CPU. Without its low it loses all.
    let hw = manager(CAPACITY);
    let tenant = hw.root().child("tenant", with_low(200)).unwrap();
    let map = file_of(&hw, &tenant, 600);
    stream(&hw, &map);
    be_hungry(&hw);
    be_hungry(&hw);
    let left = resident(&tenant);
    assert!((200..=220).contains(&left), "{left} left");
    assert_eq!(tenant.events().low, 0);
    tenant.set_low(Bytes(0));
    be_hungry(&hw);
    assert!(resident(&tenant) < 20, "{} left", resident(&tenant));
    drop(map);
    assert_empty(&hw);
}

#[test]
fn siblings_share_what_their_parent_has() {
    // Goal: proportional protection. Method: a parent with low 300 and children that claim 300 and
    // 100 and hold 300 each. The parent's 300 remain, about three parts to one: while one shrinks,
    // the other's part of the claims grows, so that the split lies between both.
    let hw = manager(CAPACITY);
    let tenant = hw.root().child("tenant", with_low(300)).unwrap();
    let large = tenant.child("large", with_low(300)).unwrap();
    let small = tenant.child("small", with_low(100)).unwrap();
    let maps = [&large, &small].map(|group| file_of(&hw, group, 300));
    maps.iter().for_each(|map| stream(&hw, map));
    be_hungry(&hw);
    let (large, small) = (resident(&large), resident(&small));
    assert!((300..=310).contains(&(large + small)), "{large} + {small}");
    assert!((200..=235).contains(&large), "{large} of 225");
    assert!((70..=105).contains(&small), "{small} of 75");
    assert_eq!(tenant.events().low, 0);
    drop(maps);
    assert_empty(&hw);
}

#[test]
fn what_no_child_claims_covers_all_of_them() {
    // Goal: recursive protection. Method: a tenant with low 300 whose queries set nothing and hold
    // 100 and 200, one of them two levels down, beside a stream and beside a tenant without
    // protection.
    let hw = manager(CAPACITY);
    let tenant = hw.root().child("tenant", with_low(300)).unwrap();
    let first = tenant.child("first", Limits::default()).unwrap();
    let second = tenant.child("second", Limits::default()).unwrap();
    let deep = second.child("deep", Limits::default()).unwrap();
    let other = hw.root().child("other", Limits::default()).unwrap();
    let maps = [(&first, 100), (&deep, 200), (&other, 300)]
        .map(|(group, count)| file_of(&hw, group, count));
    maps.iter().for_each(|map| stream(&hw, map));
    be_hungry(&hw);
    assert_eq!((resident(&first), resident(&deep)), (100, 200));
    assert!(resident(&other) < 20, "{} left", resident(&other));
    drop(maps);
    assert_empty(&hw);
}

#[test]
fn a_group_is_not_protected_from_itself() {
    // Goal: the group that is short has no protection in its own reclaim, its children have theirs;
    // dropping caches ignores protection. Method: a group with min equal to max that reads twice as
    // much, and a child in it with a min of its own.
    let hw = manager(CAPACITY);
    let limits = Limits {
        min: pages(200),
        ..Limits::max(pages(200))
    };
    let tenant = hw.root().child("tenant", limits).unwrap();
    let kept = Limits {
        min: pages(50),
        ..Limits::default()
    };
    let child = tenant.child("child", kept).unwrap();
    let maps = [file_of(&hw, &child, 50), file_of(&hw, &tenant, 400)];
    maps.iter().for_each(|map| stream(&hw, map));
    assert_eq!(resident(&child), 50);
    assert!(tenant.usage_precise() <= Pages(200).bytes());
    assert!(resident(&tenant) > 100);
    drop(maps);
    assert_empty(&hw);
    // A removed group, or a setting of zero, protects nothing.
    child.remove().unwrap();
    tenant.set_min(Bytes(0));
    let map = file_of(&hw, &tenant, 200);
    stream(&hw, &map);
    be_hungry(&hw);
    assert!(resident(&tenant) < 20, "{} left", resident(&tenant));
    drop(map);
    assert_empty(&hw);
}

/// The test's record of one group.
struct Member {
    node: GroupNode,
    parent: usize,
    settings: [u64; 2],
    charges: Vec<highwater::group::NodeCharge>,
}

/// Returns the effective settings of every group below `root`, by the specification's formulas:
/// from the top down, all children of a group at once.
fn by_the_book(members: &BTreeMap<usize, Member>, root: usize) -> BTreeMap<usize, [u64; 2]> {
    let usage = |of: usize| -> u64 {
        let is_below = |mut at: usize| loop {
            if at == of {
                return true;
            }
            if at == 0 {
                return false;
            }
            at = members[&at].parent;
        };
        let own = |member: &Member| -> u64 { member.charges.iter().map(|it| it.bytes().0).sum() };
        let below = members.iter().filter(|(at, _)| is_below(**at));
        below.map(|(_, member)| own(member)).sum()
    };
    let children = |of: usize| {
        members
            .iter()
            .filter(move |(at, it)| **at > 0 && it.parent == of)
    };
    let mut effective: BTreeMap<usize, [u64; 2]> =
        children(root).map(|(at, it)| (*at, it.settings)).collect();
    let mut todo: Vec<usize> = effective.keys().copied().collect();
    while let Some(parent) = todo.pop() {
        for kind in 0..2 {
            let claim = |at: usize| usage(at).min(members[&at].settings[kind]);
            let claimed: u64 = children(parent).map(|(at, _)| claim(*at)).sum();
            let (have, used) = (effective[&parent][kind], usage(parent));
            for (&at, _) in children(parent) {
                let worth = if claimed > have {
                    claim(at) * have / claimed
                } else if used > claimed {
                    let beyond = usage(at) - claim(at);
                    claim(at) + (have - claimed) * beyond / (used - claimed)
                } else {
                    claim(at)
                };
                effective.entry(at).or_default()[kind] = worth;
            }
        }
        todo.extend(children(parent).map(|(at, _)| *at));
    }
    effective
}

#[test]
fn effective_protection_is_as_specified_in_any_tree() {
    // Goal: the tree's answer, its index of protected children included. Method: random operations
    // (groups come and go, settings change, pages are charged and uncharged); every group's
    // effective settings below every ancestor, against the specification's formulas over a copy of
    // the tree.
    let mut rng = seed::rng(8);
    for _ in 0..60 {
        let tree = GroupTree::new(2);
        let mut members = BTreeMap::new();
        let root = Member {
            node: tree.root(),
            parent: 0,
            settings: [0; 2],
            charges: Vec::new(),
        };
        members.insert(0, root);
        for step in 1..60 {
            let keys: Vec<usize> = members.keys().copied().collect();
            let at = keys[rng.usize(..keys.len())];
            let mut amount = || rng.u64(..4) * rng.u64(..30_000);
            let drawn = [amount(), amount()];
            let is_leaf = members.iter().all(|(key, it)| *key == 0 || it.parent != at);
            let member = members.get_mut(&at).unwrap();
            match rng.u8(..8) {
                0..3 => {
                    let limits = Limits::default();
                    let limits = Limits {
                        min: Bytes(drawn[0]),
                        low: Bytes(drawn[1]),
                        ..limits
                    };
                    let node = member.node.child(&step.to_string(), limits).unwrap();
                    let child = Member {
                        node,
                        parent: at,
                        settings: drawn,
                        charges: Vec::new(),
                    };
                    members.insert(step, child);
                }
                3..5 => member
                    .charges
                    .push(member.node.try_charge(Bytes(drawn[0])).unwrap()),
                5 => drop(member.charges.pop()),
                6 if at > 0 => {
                    member.node.set_min(Bytes(drawn[0]));
                    member.node.set_low(Bytes(drawn[1]));
                    member.settings = drawn;
                }
                7 if at > 0 && is_leaf && member.charges.is_empty() => {
                    tree.remove(&member.node).unwrap();
                    members.remove(&at);
                }
                _ => {}
            }
        }
        tree.check_invariants();
        for (&top, above) in &members {
            for (at, [min, low]) in by_the_book(&members, top) {
                let want = Protection {
                    min: Bytes(min),
                    low: Bytes(low),
                };
                let node = &members[&at].node;
                assert_eq!(node.protection_below(&above.node), want, "{node:?}");
            }
        }
        let is_any = members.values().any(|member| member.settings != [0; 2]);
        assert_eq!(tree.has_protection(), is_any);
    }
}
