//! The promise: groups that follow one another below one parent need no lock of the tree, and none
//! ever has a byte of the one before.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

#[path = "../src/seed.rs"]
mod seed;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use highwater::group::{
    ChargeError, GroupKey, GroupNode, GroupTree, Limits, NodeCharge, RemoveError,
};
use highwater::lab::percpu::Regime;
use highwater::lab::percpu::harness::{allowed_cpus, pin, this_thread, while_moved_around};
use highwater::units::{Bytes, OomScoreAdj};
use highwater::{Background, Manager, Pages, Topology};

const REGIMES: [Regime; 2] = [Regime::Atomic, Regime::Restartable];

fn tree(regime: Regime) -> GroupTree {
    GroupTree::with_regime(regime, Topology::detect().nr_cpus())
}

fn child(parent: &GroupNode, name: &str) -> GroupNode {
    parent.child(name, Limits::default()).unwrap()
}

// Goal: groups are created, charged, uncharged and removed one after the other without the tree's
// lock. Method: its acquisitions are counted, on one CPU.
#[test]
fn groups_follow_one_another_beside_the_trees_lock() {
    for regime in REGIMES {
        pin(this_thread(), allowed_cpus()[0]);
        let tree = tree(regime);
        let tenant = child(&tree.root(), "tenant");
        let live = |count: usize| {
            for nth in 0..count {
                let query = child(&tenant, &format!("q{nth}"));
                drop(query.try_charge(Bytes::kib(12)).unwrap());
                assert_eq!(query.usage().low, Bytes::ZERO);
                tree.remove(&query).unwrap();
            }
        };
        live(1);
        let before = tree.nr_shape_locks();
        live(1000);
        assert_eq!(tree.nr_shape_locks(), before, "{regime:?}");
    }
}

// Goal: the next group begins as any other, with its own name and limits and without charges, data,
// events and settings of the one before, whose handles do not reach it. Method: one of each kind
// before, and all questions after.
#[test]
fn a_successor_inherits_nothing() {
    for regime in REGIMES {
        let tree = tree(regime);
        let tenant = child(&tree.root(), "tenant");
        for nth in 0..64_u64 {
            let old = tenant.child("old", Limits::max(Bytes::mib(1))).unwrap();
            drop(old.try_charge(Bytes::kib(40)).unwrap());
            match nth % 8 {
                0 => old.set_data(nth).unwrap(),
                1 => old.set_oom_score_adj(OomScoreAdj::clamped(500)),
                2 => old.mark_oom_victim(),
                3 => old.set_high(Bytes::kib(4)),
                4 => old.set_low(Bytes::kib(4)),
                5 => old.set_max(Bytes::kib(400)).unwrap(),
                6 => old.record_oom(),
                _ => {}
            }
            tree.remove(&old).unwrap();
            let new = child(&tenant, "new");
            let kept = (nth % 3 == 0).then(|| old.clone());
            drop(old);
            assert_eq!((new.name(), new.limits()), ("new", Limits::default()));
            assert_eq!(new.path(), "/tenant/new");
            assert_eq!(new.usage_precise(), Bytes::ZERO);
            assert_eq!(new.data::<u64>(), None);
            assert_eq!(new.oom_score_adj(), tenant.oom_score_adj());
            assert!(!new.is_oom_victim());
            assert_eq!(
                new.events(),
                child(&tree.root(), &format!("n{nth}")).events()
            );
            assert_eq!(
                (tree.lookup("/tenant/new"), tree.lookup("/tenant/old")),
                (Some(new.clone()), None)
            );
            assert_eq!(tenant.children(), std::slice::from_ref(&new));
            if let Some(old) = kept {
                assert!(old.is_removed());
                assert_eq!((old.name(), old.usage().high), ("old", Bytes::ZERO));
                assert_eq!(tree.find(old.key()), None);
                assert!(matches!(
                    old.try_charge(Bytes(1)),
                    Err(ChargeError::Removed { .. })
                ));
                assert!(matches!(
                    tree.remove(&old),
                    Err(RemoveError::Removed { .. })
                ));
            }
            assert!(!tree.has_high() && !tree.has_protection());
            tree.remove(&new).unwrap();
            assert_eq!((tree.get(new.id()), tree.find(new.key())), (None, None));
        }
        tree.check_invariants();
    }
}

// Goal: usage and peak of a group that begins with tokens are within their bounds. Method: charges
// of every size up to what one refill leaves, each in a new group.
#[test]
fn a_successors_usage_and_peak_are_within_their_bounds() {
    for regime in REGIMES {
        let tree = tree(regime);
        let tenant = child(&tree.root(), "tenant");
        for kib in 0..300 {
            let query = child(&tenant, "query");
            let fresh = query.usage();
            assert!(fresh.low == Bytes::ZERO && fresh.high <= Bytes::kib(224 * 8));
            let charge = query.try_charge(Bytes::kib(kib)).unwrap();
            let (usage, peak) = (query.usage(), query.peak());
            for estimate in [usage, peak] {
                let bounds = estimate.low..=estimate.high;
                assert!(bounds.contains(&Bytes::kib(kib)), "{kib} KiB: {estimate:?}");
            }
            assert_eq!(query.usage_precise(), Bytes::kib(kib));
            drop(charge);
            tree.remove(&query).unwrap();
        }
    }
}

// Goal: a limit of a successor that is smaller than the tokens of the one before is exact to the
// byte.
#[test]
fn a_small_limit_of_a_successor_is_exact() {
    for regime in REGIMES {
        let tree = tree(regime);
        let tenant = child(&tree.root(), "tenant");
        for max in [0, 1, 4095, 4096, 100_000, 1 << 20] {
            let old = child(&tenant, "old");
            drop(old.try_charge(Bytes(1)).unwrap());
            tree.remove(&old).unwrap();
            let new = tenant.child("new", Limits::max(Bytes(max))).unwrap();
            let charge = new.try_charge(Bytes(max)).unwrap();
            assert!(matches!(
                new.try_charge(Bytes(1)),
                Err(ChargeError::OverMax { .. })
            ));
            drop(charge);
            tree.remove(&new).unwrap();
        }
        tree.check_invariants();
    }
}

// Goal: a tenant whose slots are parked can be removed, also while another is created below it
// elsewhere, and its number serves another tenant, whose children are its own.
#[test]
fn tenants_follow_one_another_too() {
    for regime in REGIMES {
        let tree = tree(regime);
        for nth in 0..200 {
            let tenant = child(&tree.root(), &format!("t{}", nth % 3));
            let queries: Vec<_> = (0..nth % 7)
                .map(|nth| child(&tenant, &format!("q{nth}")))
                .collect();
            for query in &queries {
                drop(query.try_charge(Bytes(1)).unwrap());
            }
            if let Some((_, others)) = queries.split_last() {
                others.iter().for_each(|query| tree.remove(query).unwrap());
                let children = 1;
                let group = tenant.path();
                assert_eq!(
                    tree.remove(&tenant),
                    Err(RemoveError::HasChildren { group, children })
                );
                tree.remove(&queries[queries.len() - 1]).unwrap();
            }
            tree.remove(&tenant).unwrap();
            assert!(tenant.child("late", Limits::default()).is_err());
            assert!(tree.root().children().is_empty());
        }
        tree.check_invariants();
        assert_eq!(tree.root().usage_precise(), Bytes::ZERO);
    }
}

// Goal: bytes never move from one group to the next, whatever the order of charges by old handles,
// removals and creations, on threads that move between CPUs; and every byte comes back. Method:
// each thread removes and creates groups below two tenants, lends the handles of living and removed
// groups to the others, which charge to them and keep charges for a while; a charge that was made
// must be in the usage of its own group, and of no other.
#[test]
fn no_byte_moves_to_a_successor() {
    for regime in REGIMES {
        let tree = tree(regime);
        let tenants = ["one", "two"].map(|name| child(&tree.root(), name));
        let lent: Mutex<Vec<GroupNode>> = Mutex::default();
        let seed = seed::seed(7);
        while_moved_around(4, |nth| {
            let mut rng = fastrand::Rng::with_seed(seed + nth);
            let mut held: Vec<(GroupKey, NodeCharge)> = Vec::new();
            for life in 0..3000 {
                let name = format!("{nth}-{life}");
                live(&mut rng, (&tree, &tenants), &lent, &mut held, &name);
            }
        });
        lent.lock().unwrap().clear();
        tree.check_invariants();
        assert_eq!(tree.root().usage_precise(), Bytes::ZERO);
        for tenant in &tenants {
            assert!(tenant.children().is_empty());
            tree.remove(tenant).unwrap();
        }
        tree.check_invariants();
    }
}

/// One group's life, beside charges to others.
fn live(
    rng: &mut fastrand::Rng,
    (tree, tenants): (&GroupTree, &[GroupNode; 2]),
    lent: &Mutex<Vec<GroupNode>>,
    held: &mut Vec<(GroupKey, NodeCharge)>,
    name: &str,
) {
    let group = child(&tenants[rng.usize(..2)], name);
    assert!(
        held.iter().all(|(key, _)| key.id() != group.id()),
        "its slot is in use"
    );
    if rng.bool() {
        let mut lent = lent.lock().unwrap();
        lent.push(group.clone());
        let nr = lent.len();
        if nr > 6 {
            lent.swap_remove(rng.usize(..nr));
        }
    }
    let own = group.try_charge(Bytes(rng.u64(..50_000))).unwrap();
    if rng.u8(..4) == 0 {
        assert!(group.usage_precise() >= own.bytes());
    }
    let others = lent.lock().unwrap().clone();
    if let Some(other) = others.get(rng.usize(..8)) {
        match other.try_charge(Bytes(rng.u64(1..9_000))) {
            Ok(charge) => held.push((other.key(), charge)),
            Err(error) => assert!(matches!(error, ChargeError::Removed { .. }), "{error}"),
        }
    }
    if rng.bool() {
        drop(own);
        tree.remove(&group).unwrap();
    } else {
        tree.remove(&group).unwrap();
        drop(own);
    }
    if held.len() > 5 || rng.u8(..3) == 0 {
        held.clear();
    }
}

// Goal: a caller that holds the tree's lock does not stop groups that follow one another. Method:
// the callback of a walk, which runs under the lock, waits for a thread that creates and removes.
#[test]
fn a_walk_does_not_stop_a_succession() {
    let tree = tree(Regime::Atomic);
    let tenant = Arc::new(child(&tree.root(), "tenant"));
    let leaf = child(&tree.root(), "leaf");
    let (start, started) = mpsc::channel::<()>();
    let (end, ended) = mpsc::channel();
    let other = thread::spawn({
        let (tree, tenant) = (tree.clone(), Arc::clone(&tenant));
        move || {
            pin(this_thread(), allowed_cpus()[0]);
            let live = |name| tree.remove(&child(&tenant, name)).unwrap();
            live("before");
            end.send(()).unwrap();
            started.recv().unwrap();
            (0..100).for_each(|_| live("beside"));
            end.send(()).unwrap();
        }
    });
    ended.recv().unwrap();
    let mut waited = None;
    tree.for_each_leaf(&leaf, &mut |_| {
        start.send(()).unwrap();
        waited = Some(ended.recv_timeout(Duration::from_secs(20)));
    });
    assert_eq!(waited, Some(Ok(())), "it waits for the tree's lock");
    other.join().unwrap();
}

// Symptom: a walk below a group that was removed meanwhile visited the sibling that had its slot by
// then, so that a group was stopped which was not below the full one. Method: walks below the
// latest of groups that follow one another; without the fix, a walk in some 100,000 finds another.
#[test]
fn a_walk_visits_no_successor_of_its_group() {
    let tree = tree(Regime::Atomic);
    let tenant = child(&tree.root(), "tenant");
    let latest = Mutex::new(child(&tenant, "one"));
    let is_over = AtomicBool::new(false);
    let mut nr_others = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let former = latest.lock().unwrap().clone();
                tree.remove(&former).unwrap();
                *latest.lock().unwrap() = child(&tenant, "one");
            }
        });
        for _ in 0..200_000 {
            let top = latest.lock().unwrap().clone();
            tree.for_each_leaf(&top, &mut |leaf| {
                nr_others += u32::from(leaf.key != top.key())
            });
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(nr_others, 0);
}

// Goal: tokens that wait for a successor never make a charge fail that fits. Method: groups follow
// one another on two threads that move between CPUs, below a parent with room for the charges of
// both and little more.
#[test]
fn parked_tokens_refuse_nothing_that_fits() {
    const CHARGE: Bytes = Bytes(300_000);
    for regime in REGIMES {
        let tree = tree(regime);
        let parent = tree.root().child("parent", Limits::max(Bytes(600_001)));
        let parent = parent.unwrap();
        while_moved_around(2, |nth| {
            for life in 0..3000 {
                let group = child(&parent, &format!("{nth}-{life}"));
                drop(group.try_charge(Bytes(1)).unwrap());
                drop(group.try_charge(CHARGE).unwrap());
                tree.remove(&group).unwrap();
            }
        });
        tree.check_invariants();
        assert_eq!(parent.usage_precise(), Bytes::ZERO);
    }
}

/// Data of the embedder that looks at the tree when it is dropped.
struct Farewell {
    parent: GroupNode,
    dropped: Arc<AtomicUsize>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let name = format!("heir-{}", self.dropped.fetch_add(1, Ordering::SeqCst));
        let tree = self.parent.tree();
        tree.remove(&child(&self.parent, &name)).unwrap();
    }
}

// Goal: data of a group are dropped with its last handle and charge, in whatever way its slot
// becomes free, also if attached after the removal; and dropping them may call into the tree. No
// later group is made.
#[test]
fn data_are_dropped_at_the_end_and_without_a_lock() {
    for regime in REGIMES {
        let tree = tree(regime);
        let tenant = child(&tree.root(), "tenant");
        let dropped = Arc::new(AtomicUsize::new(0));
        let data = || Farewell {
            parent: tree.root(),
            dropped: Arc::clone(&dropped),
        };
        for nth in 0..40 {
            let group = child(&tenant, "group");
            let charge = group.try_charge(Bytes(1)).unwrap();
            let is_late = nth % 2 == 0;
            if !is_late {
                assert!(group.set_data(data()).is_ok());
            }
            match nth % 5 {
                0 => group.set_low(Bytes(1)),
                1 => drop(child(&group, "below")),
                2 => tenant.set_max(Bytes::mib(1)).unwrap(),
                _ => {}
            }
            for below in group.children() {
                tree.remove(&below).unwrap();
            }
            let kept = (nth % 3 == 0).then_some(charge);
            tree.remove(&group).unwrap();
            if is_late {
                assert!(group.set_data(data()).is_ok());
            }
            drop(group);
            drop(kept);
            assert_eq!(dropped.load(Ordering::SeqCst), nth + 1, "{regime:?} {nth}");
        }
        tree.check_invariants();
    }
}

// Symptom: a removed group kept its data until some later creation looked at it, also where that
// data kept the manager, and with it the group. Method: a charge outlives its group, bytes are
// uncharged by a handle, a charge goes from the group below a removed one, pages go to the parent.
#[test]
fn the_last_charge_of_a_removed_group_is_the_end_of_its_data() {
    let hw = Manager::builder()
        .background(Background::Off)
        .build()
        .unwrap();
    let data = Arc::new(hw.clone());
    let query = |name| {
        let query = hw.root().child(name, Limits::default()).unwrap();
        assert!(query.set_data(Arc::clone(&data)).is_ok());
        query
    };
    let kept = query("charged");
    let charge = kept.charge(Bytes(1)).unwrap();
    kept.remove().unwrap();
    drop(kept);
    assert_eq!(Arc::strong_count(&data), 2);
    drop(charge);
    assert_eq!(Arc::strong_count(&data), 1, "a charge");

    let kept = query("disowned");
    kept.try_charge_disowned(Bytes(1)).unwrap();
    kept.remove().unwrap();
    kept.uncharge(Bytes(1));
    drop(kept);
    assert_eq!(Arc::strong_count(&data), 1, "a disowned charge");

    let above = query("above");
    let below = above.child("below", Limits::default()).unwrap();
    let charge = below.charge(Bytes(1)).unwrap();
    below.remove().unwrap();
    above.remove().unwrap();
    drop((below, above));
    assert_eq!(Arc::strong_count(&data), 2);
    drop(charge);
    assert_eq!(Arc::strong_count(&data), 1, "a charge below");

    let kept = query("paged");
    let pages = hw.space(&kept).map_anon(Pages(1)).unwrap();
    pages.write(0).unwrap().fill(1);
    kept.remove().unwrap();
    drop((kept, pages));
    assert_eq!(Arc::strong_count(&data), 1, "a page");
    hw.check_invariants();
}
