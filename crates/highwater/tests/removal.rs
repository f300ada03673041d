//! The promise: residual charges of a removed group belong to its parent and are never lost; groups
//! come by the million, 64 deep, and their slots are reused.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;

use std::sync::Mutex;
use std::thread;

use highwater::Topology;
use highwater::group::{ChargeError, DEPTH_MAX, GroupNode, GroupTree, Limits, NodeCharge};
use highwater::lab::percpu::Regime;
use highwater::lab::percpu::harness::while_moved_around;
use highwater::units::{Bytes, CpuId};

/// `count` times an odd amount, so that no sum is a number of whole pages.
const fn amount(count: u64) -> Bytes {
    Bytes(count.saturating_mul(4001))
}

fn child(parent: &GroupNode, name: &str) -> GroupNode {
    parent.child(name, Limits::default()).unwrap()
}

// Goal: usage, debt and events of removed groups stay with their nearest living ancestor, level by
// level, and can be uncharged, moved and paid from there. Method: a chain of 64 groups with pages
// in each; remove it from the bottom; after each removal every ancestor must read as it read
// before.
#[test]
fn residue_of_removed_groups_is_their_ancestors() {
    let tree = GroupTree::new(4);
    let mut chain = vec![child(&tree.root(), "top")];
    while let Ok(next) = chain[chain.len() - 1].child("next", Limits::default()) {
        chain.push(next);
    }
    assert_eq!(chain.len(), DEPTH_MAX as usize);
    let mut held: Vec<NodeCharge> = Vec::new();
    for (group, nth) in chain.iter().zip(1..) {
        held.push(
            group
                .at(CpuId(nth % 4))
                .try_charge(amount(nth.into()))
                .unwrap(),
        );
        group.record_oom();
    }
    let total: u64 = (1..=64).sum();
    chain[0].set_max(amount(total)).unwrap();
    let forced = chain[63].force_charge(amount(5));
    let reads = |group: &GroupNode| (group.usage_precise(), group.debt(), group.events());
    let before: Vec<_> = chain.iter().map(reads).collect();
    for nth in (1..64).rev() {
        tree.remove(&chain[nth]).unwrap();
        tree.check_invariants();
        let now: Vec<_> = chain.iter().map(reads).collect();
        assert_eq!(now, before, "after the removal of level {nth}");
    }
    let top = &chain[0];
    assert_eq!(
        (top.usage_precise(), top.debt()),
        (amount(total + 5), amount(5))
    );
    assert_eq!(top.events().oom, 64);
    // Bytes of a removed group move to a living one, and its id stays until they have.
    let mut deepest = held.pop().unwrap();
    let moved = deepest.transfer(top, amount(60)).unwrap();
    assert_eq!(chain[63].usage_precise(), amount(64 - 60 + 5));
    let refused = held[0].transfer(&chain[5], amount(1)).unwrap_err();
    assert_eq!(
        refused,
        ChargeError::Removed {
            group: chain[5].path()
        }
    );
    assert_eq!(top.usage_precise(), amount(total + 5));
    tree.uncharge(forced.group(), forced.disown());
    assert_eq!(
        (top.debt(), top.usage_precise()),
        (Bytes::ZERO, amount(total))
    );
    drop((moved, deepest, held));
    tree.check_invariants();
    assert_eq!(tree.root().usage_precise(), Bytes::ZERO);
}

// Goal: groups that come and go while their charges outlive them lose no page and reuse slots.
// Method: four threads create, charge, remove and move; guards of removed groups pass from thread
// to thread through a group of the other; at the end everything is zero, and no more slots exist
// than groups and zombies were there at once.
#[test]
fn charges_outlive_groups_that_come_and_go() {
    let seed = seed::seed(1);
    let tree = GroupTree::new(4);
    let parents = ["a", "b"].map(|name| child(&tree.root(), name));
    let ids = thread::scope(|scope| {
        let spawn = |nth: u64| {
            let (tree, parents) = (&tree, &parents);
            let mut rng = fastrand::Rng::with_seed(seed * 10 + nth);
            scope.spawn(move || {
                let (mut held, mut last): (Vec<NodeCharge>, _) = (Vec::new(), 0);
                for at in 0..3000 {
                    let parent = &parents[rng.usize(..2)];
                    let group = child(parent, &format!("{nth}-{at}"));
                    last = last.max(group.id().0);
                    let on = CpuId(rng.u32(..4));
                    held.push(group.at(on).try_charge(amount(rng.u64(1..90))).unwrap());
                    if held.len() > 8 {
                        let mut old = held.swap_remove(rng.usize(..held.len()));
                        let half = Bytes(old.bytes().0 / 2);
                        held.push(old.at(on).transfer(&group, half).unwrap());
                        tree.uncharge(old.group(), old.disown());
                    }
                    tree.remove(&group).unwrap();
                    if held.len() > 12 {
                        held.truncate(4);
                    }
                }
                last
            })
        };
        let threads: Vec<_> = (0..4).map(spawn).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .max()
            .unwrap()
    });
    tree.check_invariants();
    assert_eq!(tree.root().usage_precise(), Bytes::ZERO);
    assert!(ids < 1000, "12,000 short lives used {ids} slots");
}

/// Creates `count` groups in families of a thousand, charges a page to each, and removes them all.
fn come_and_go(count: usize) {
    let tree = GroupTree::new(2);
    let mut groups = Vec::new();
    let mut held = Vec::new();
    for nth in 0..count {
        if nth % 1000 == 0 {
            groups.push(child(&tree.root(), &format!("f{nth}")));
        }
        let family = groups.len() - 1 - nth % 1000;
        let group = child(&groups[family], &format!("g{nth}"));
        held.push(
            group
                .at(CpuId::from_index(nth % 2))
                .try_charge(amount(1))
                .unwrap(),
        );
        groups.push(group);
    }
    assert_eq!(tree.root().usage_precise(), amount(count as u64));
    assert_eq!(tree.subtree(&tree.root()).len(), groups.len() + 1);
    while let Some(group) = groups.pop() {
        tree.remove(&group).unwrap();
    }
    assert_eq!(tree.root().usage_precise(), amount(count as u64));
    drop(held);
    tree.check_invariants();
    let root = tree.root();
    assert_eq!(root.usage_precise(), Bytes::ZERO);
    // The root's own words, one for each CPU, keep tokens for later groups.
    assert!(
        root.escrowed() <= Bytes::kib(2 * 224),
        "{}",
        root.escrowed()
    );
}

// Goal: tens of thousands of groups behave as a few do.
#[test]
fn thirty_thousand_groups_come_and_go() {
    come_and_go(30_000);
}

// Goal: a million groups behave as a few do. For `.ci/run`, because of the time and the memory.
#[test]
#[ignore = "sixteen seconds and 1.7 GB on 2 busy CPUs"]
fn a_million_groups_come_and_go() {
    come_and_go(1_000_000);
}

// Goal: a group that is to be removed when it is unused goes with its last child, and so do its
// ancestors, whichever child is the last. Method: four threads remove the children of three levels,
// while the groups above are given up.
#[test]
fn groups_that_are_given_up_go_with_their_last_child() {
    use highwater::Manager;
    let hw = Manager::builder().frames(Bytes::ZERO).build().unwrap();
    for _ in 0..200 {
        let tenant = hw.root().child("tenant", Limits::default()).unwrap();
        let session = tenant.child("session", Limits::default()).unwrap();
        let queries: Vec<_> = (0..4)
            .map(|nth| {
                session
                    .child(&format!("q{nth}"), Limits::default())
                    .unwrap()
            })
            .collect();
        let charge = queries[0].try_charge(Bytes(100)).unwrap();
        thread::scope(|scope| {
            for query in &queries {
                scope.spawn(|| query.remove_when_unused());
            }
            scope.spawn(|| tenant.remove_when_unused());
            session.remove_when_unused();
        });
        assert!(hw.root().children().is_empty());
        assert_eq!(hw.root().usage_precise(), Bytes(100));
        drop(charge);
        tenant.remove_when_unused(); // removed already
    }
    hw.root().remove_when_unused(); // never
    hw.root().child("next", Limits::default()).unwrap();
}

// Goal: until its last child is removed, such a group is as any other: it takes children and
// charges, and a group above it that was not given up stays.
#[test]
fn a_group_that_is_given_up_is_as_before_while_it_has_children() {
    use highwater::Manager;
    let hw = Manager::builder().frames(Bytes::ZERO).build().unwrap();
    let tenant = hw.root().child("tenant", Limits::default()).unwrap();
    let session = tenant.child("session", Limits::max(Bytes(10))).unwrap();
    let first = session.child("first", Limits::default()).unwrap();
    session.remove_when_unused();
    assert!(session.try_charge(Bytes(11)).is_err());
    let second = session.child("second", Limits::default()).unwrap();
    first.remove().unwrap();
    drop(second.try_charge(Bytes(10)).unwrap());
    assert_eq!(session.children(), std::slice::from_ref(&second));
    second.remove().unwrap();
    assert!(tenant.children().is_empty());
    assert_eq!(hw.root().children(), [tenant]);
}

// Goal: charges of groups that are too many for a CPU's stock are exact while groups are removed,
// the maximum above them changes, and threads move between CPUs in the middle of them. Method: 40
// groups below a tenant that is charged itself, so that it has the chain words; one thread removes
// groups and sets the maximum, four charge at random; all is given back in the end.
#[test]
fn charges_by_own_words_are_exact_beside_removals() {
    const GROUPS: usize = 40;
    const ROUNDS: u64 = 3_000;
    let seed = seed::seed(5);
    let tree = GroupTree::with_regime(Regime::Restartable, Topology::detect().nr_cpus());
    let tenant = child(&tree.root(), "tenant");
    let named = |name: String| Mutex::new(child(&tenant, &name));
    let groups: Vec<_> = (0..GROUPS).map(|nth| named(format!("g{nth}"))).collect();
    let replace_some = |rng: &mut fastrand::Rng| {
        for round in 0..ROUNDS / 10 {
            let mut group = groups[rng.usize(..GROUPS)].lock().unwrap();
            tree.remove(&group).unwrap();
            *group = child(&tenant, &format!("r{round}"));
            drop(group);
            // Refused while more is charged.
            let _refused = tenant.set_max(amount(rng.u64(100..400)));
        }
    };
    let charge_some = |rng: &mut fastrand::Rng| {
        let mut held: Vec<NodeCharge> = Vec::new();
        for _ in 0..ROUNDS {
            let group = groups[rng.usize(..GROUPS)].lock().unwrap().clone();
            held.extend(group.try_charge(amount(rng.u64(1..4))).ok());
            drop(tenant.try_charge(amount(1)));
            let kept = rng.usize(..32);
            while held.len() > kept {
                drop(held.swap_remove(rng.usize(..held.len())));
            }
        }
    };
    while_moved_around(5, |nth| {
        let mut rng = fastrand::Rng::with_seed(seed * 10 + nth);
        match nth {
            0 => replace_some(&mut rng),
            _ => charge_some(&mut rng),
        }
    });
    assert_eq!(tenant.usage_precise(), Bytes::ZERO);
    tree.check_invariants();
}
