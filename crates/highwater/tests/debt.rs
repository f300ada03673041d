//! The promise: a forced charge is never refused; its excess over a maximum is known exactly,
//! refuses every other charge, and is paid first by uncharging.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use highwater::group::{ChargeError, GroupNode, GroupTree, Limits, NodeCharge};
use highwater::units::{Bytes, CpuId};

/// `count` times an odd amount, so that no sum is a number of whole pages.
const fn amount(count: u64) -> Bytes {
    Bytes(count.saturating_mul(4001))
}

fn child(parent: &GroupNode, name: &str, max: u64) -> GroupNode {
    parent.child(name, Limits::max(amount(max))).unwrap()
}

// Goal: no stock hides in the debt, however tokens are distributed when it begins, and none comes
// back while it lasts. Method: fill words of 384 CPUs in three groups with tokens; force charges at
// random; debt must be the usage above the maximum to the page, and nothing may be in escrow. Then
// uncharge page by page on random CPUs: the debt must fall with each, and the first charge must
// pass exactly when it is gone.
#[test]
fn debt_is_what_is_used_above_the_maximum() {
    let seed = seed::seed(1);
    let mut rng = fastrand::Rng::with_seed(seed);
    for nr_cpus in [1, 8, 384] {
        let tree = GroupTree::new(nr_cpus);
        let max = 64 * 3 * nr_cpus as u64 + 100;
        let top = child(&tree.root(), "top", max);
        let groups = ["a", "b", "c"].map(|name| child(&top, name, Bytes::MAX.0));
        let mut on = || CpuId::from_index(rng.usize(..nr_cpus));
        for group in &groups {
            let mut charge = group.try_charge(amount(64 * nr_cpus as u64)).unwrap();
            (0..nr_cpus).for_each(|on| charge.at(CpuId::from_index(on)).shrink(amount(64)));
        }
        let mut held = vec![groups[0].at(on()).force_charge(amount(max + 7))];
        assert_eq!((top.debt(), top.escrowed()), (amount(7), Bytes::ZERO));
        for group in &groups {
            held.push(group.at(on()).force_charge(amount(11)));
            held.push(top.at(on()).force_charge(amount(1)));
        }
        assert_eq!((top.debt(), top.events().debt), (amount(43), 7));
        assert_eq!(top.usage(), highwater::Estimate::exact(amount(max + 43)));
        for left in (0..43).rev() {
            let refused = groups[2].at(on()).try_charge(amount(1)).unwrap_err();
            assert!(
                matches!(refused, ChargeError::OverMax { usage, .. } if usage == amount(max + left + 1)),
                "{refused}"
            );
            held[0].at(on()).shrink(amount(1));
            assert_eq!((top.debt(), top.escrowed()), (amount(left), Bytes::ZERO));
        }
        assert!(groups[1].at(on()).try_charge(amount(1)).is_err());
        held[0].at(on()).shrink(amount(1));
        held.push(groups[1].at(on()).try_charge(amount(1)).unwrap());
        assert_eq!(tree.root().debt(), Bytes::ZERO);
        drop(held);
        tree.check_invariants();
        assert_eq!(top.usage_precise(), Bytes::ZERO);
    }
}

// Goal: a forced charge uses the available room before it exceeds the maximum. Method: leave the
// whole maximum in escrow on other CPUs and groups; forcing all of it must not lead into debt.
#[test]
fn force_takes_tokens_back_before_it_goes_above() {
    let tree = GroupTree::new(16);
    let top = child(&tree.root(), "top", 600);
    let groups = ["a", "b"].map(|name| child(&top, name, Bytes::MAX.0));
    let mut charge = groups[0].try_charge(amount(600)).unwrap();
    (0..9).for_each(|on| charge.at(CpuId(on)).shrink(amount(64)));
    assert!(top.escrowed() > amount(200));
    let forced = groups[1].at(CpuId(15)).force_charge(amount(576));
    assert_eq!((top.debt(), top.events().debt), (Bytes::ZERO, 0));
    drop((forced, charge));
    tree.check_invariants();
}

// Goal: a charge to a removed group goes to the nearest ancestor that is not, and a guard of a
// removed group cannot grow.
#[test]
fn force_on_a_removed_group_charges_its_heir() {
    let tree = GroupTree::new(2);
    let top = child(&tree.root(), "top", 5);
    let middle = child(&top, "middle", 5);
    let leaf = child(&middle, "leaf", 5);
    let mut old = leaf.try_charge(amount(2)).unwrap();
    tree.remove(&leaf).unwrap();
    tree.remove(&middle).unwrap();
    let charge = leaf.force_charge(amount(9));
    assert_eq!((charge.group(), top.debt()), (top.id(), amount(6)));
    let removed = ChargeError::Removed { group: leaf.path() };
    assert_eq!(old.force_grow(amount(1)), Err(removed));
    drop(charge);
    assert_eq!((top.usage_precise(), old.bytes()), (amount(2), amount(2)));
}

// Goal: under threads that force, charge, uncharge and change the maximum, nothing is lost, and
// debt and escrow are never seen together for longer than an operation takes. Method: random
// operations; at each pause of all threads the invariants hold, and at the end everything is zero.
#[test]
fn forced_charges_beside_others_lose_nothing() {
    let seed = seed::seed(1);
    for round in 0..10 {
        let tree = GroupTree::new(4);
        let top = child(&tree.root(), "top", 60);
        let groups = ["a", "b"].map(|name| child(&top, name, 40));
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let stop = &stop;
            let limiter = scope.spawn(|| {
                let mut rng = fastrand::Rng::with_seed(seed * 100 + round);
                while !stop.load(Ordering::Relaxed) {
                    // Usage is often above: this is under test.
                    let _ = top.set_max(amount(rng.u64(..120)));
                    thread::yield_now();
                }
            });
            let workers: Vec<_> = (0..4)
                .map(|nth| {
                    let groups = &groups;
                    let mut rng = fastrand::Rng::with_seed(seed * 1000 + round * 10 + nth);
                    scope.spawn(move || {
                        let mut held: Vec<NodeCharge> = Vec::new();
                        for _ in 0..2000 {
                            let group = &groups[rng.usize(..2)];
                            let (on, pages) = (CpuId(rng.u32(..4)), amount(rng.u64(..9)));
                            match rng.u8(..6) {
                                0 => held.push(group.at(on).force_charge(pages)),
                                1..3 => held.extend(group.at(on).try_charge(pages)),
                                _ if held.is_empty() => {}
                                3 => {
                                    let nth = rng.usize(..held.len());
                                    held[nth].at(on).force_grow(amount(1)).unwrap();
                                }
                                _ => {
                                    let nth = rng.usize(..held.len());
                                    let mut charge = held.swap_remove(nth);
                                    let all = charge.bytes();
                                    charge.at(on).shrink(all);
                                }
                            }
                        }
                    })
                })
                .collect();
            let outcomes: Vec<_> = workers
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect();
            stop.store(true, Ordering::Relaxed);
            limiter.join().unwrap();
            assert!(outcomes.iter().all(Result::is_ok), "a worker failed");
        });
        tree.check_invariants();
        for group in tree.subtree(&tree.root()) {
            assert_eq!(
                (group.usage_precise(), group.debt()),
                (Bytes::ZERO, Bytes::ZERO)
            );
        }
    }
}
