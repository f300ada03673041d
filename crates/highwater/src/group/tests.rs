//! The arithmetic of the token word, and the promises of single operations.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::state::{CELL_MAX, Cell, GRANT_MAX, Word};
use super::{
    ChargeError, ChildError, DEPTH_MAX, GroupNode, GroupTree, Limits, MaxError, NodeCharge,
};
use crate::percpu::{Gates, Regime};
use crate::units::{Bytes, CpuId};

// Goal: groups nest to the documented depth and no deeper, and charging the deepest charges all.
#[test]
fn the_deepest_group_charges_every_ancestor() {
    let tree = GroupTree::new(2);
    let mut chain = vec![tree.root()];
    while let Ok(child) = chain[chain.len() - 1].child("next", Limits::default()) {
        chain.push(child);
    }
    assert_eq!(chain.len(), DEPTH_MAX as usize + 1);
    let deepest = &chain[chain.len() - 1];
    assert_eq!(
        deepest.path().to_string().matches("/next").count(),
        DEPTH_MAX as usize
    );
    chain[7].set_max(Bytes(100)).unwrap();
    let charge = deepest.at(CpuId(1)).try_charge(Bytes(100)).unwrap();
    assert!(chain.iter().all(|node| node.usage_precise() == Bytes(100)));
    let refused = deepest.at(CpuId(0)).try_charge(Bytes(1)).unwrap_err();
    let expected = ChargeError::OverMax {
        group: chain[7].path(),
        requested: Bytes(1),
        max: Bytes(100),
        usage: Bytes(100),
        escrowed: Bytes(0),
    };
    assert_eq!(refused, expected);
    drop(charge);
    tree.check_invariants();
    assert!(chain.iter().all(|node| node.usage_precise() == Bytes(0)));
}

// Goal: names are checked, unique among siblings and free again after removal.
#[test]
fn names_are_valid_and_unique_among_siblings() {
    let root = GroupTree::new(1).root();
    let a = root.child("a", Limits::default()).unwrap();
    let duplicate = ChildError::DuplicateName {
        parent: root.path(),
    };
    assert_eq!(root.child("a", Limits::default()), Err(duplicate));
    a.child("a", Limits::default()).unwrap();
    for name in ["", ".", "..", "a/b", "a\nb", &"x".repeat(256)] {
        let refused = root.child(name, Limits::default());
        assert_eq!(refused, Err(ChildError::InvalidName), "{name:?}");
    }
    root.child("b", Limits::default()).unwrap();
    let names = |of: &GroupNode| -> Vec<String> {
        let subtree = root.tree().subtree(of);
        subtree.iter().map(|node| node.path().to_string()).collect()
    };
    assert_eq!(names(&root), ["/", "/a", "/a/a", "/b"]);
    assert_eq!(names(&a), ["/a", "/a/a"]);
    root.tree().remove(&a.children()[0]).unwrap();
    root.tree().remove(&a).unwrap();
    assert_eq!(names(&a), [""; 0]);
    assert_eq!(root.child("a", Limits::default()).unwrap().path(), "/a");
}

// Goal: an id is reused only when nothing is charged to it, and old handles do not reach the new
// group. Method: remove a charged group, fill the tree, uncharge, and wait for the id to come back.
#[test]
fn an_id_is_reused_only_when_nothing_is_charged_to_it() {
    let tree = GroupTree::new(2);
    let root = tree.root();
    let old = root.child("old", Limits::default()).unwrap();
    let mut charge = old.try_charge(Bytes(3)).unwrap();
    tree.remove(&old).unwrap();
    for nth in 0..20 {
        let new = root.child(&format!("n{nth}"), Limits::default()).unwrap();
        assert_ne!(new.id(), old.id());
    }
    let removed = ChargeError::Removed { group: old.path() };
    assert_eq!(charge.try_grow(Bytes(1)), Err(removed.clone()));
    assert_eq!(
        (old.usage_precise(), root.usage_precise()),
        (Bytes(3), Bytes(3))
    );
    let empty = charge.split(Bytes(0));
    drop(charge);
    let new = root.child("new", Limits::default()).unwrap();
    assert_eq!(new.id(), old.id());
    let _held = new.try_charge(Bytes(5)).unwrap();
    assert_eq!(old.try_charge(Bytes(1)).unwrap_err(), removed.clone());
    assert_eq!(old.try_charge(Bytes(0)).unwrap_err(), removed);
    assert_eq!(old.usage_precise(), Bytes(0));
    assert!(!new.is_descendant_of(&old) && old.parent() == Some(root));
    drop(empty);
    assert_eq!(new.usage_precise(), Bytes(5));
}

// Goal: no limit is a limit of 2^48 - 1 bytes.
#[test]
fn no_limit_is_the_widest_account() {
    let root = GroupTree::new(1).root();
    let most = Bytes((1 << 48) - 1);
    let all = root.try_charge(most).unwrap();
    assert!(root.try_charge(Bytes(1)).is_err());
    assert!(root.try_charge(Bytes(u64::MAX)).is_err());
    assert_eq!(root.usage_precise(), most);
    drop(all);
    assert_eq!(root.usage_precise(), Bytes::ZERO);
}

// Goal: uncharging bytes that were never charged is detected, not hidden.
#[test]
#[should_panic(expected = "bytes uncharged where")]
fn uncharging_too_much_panics() {
    let root = GroupTree::new(1).root();
    root.uncharge(Bytes(CELL_MAX * 2));
}

/// Returns amounts up to `most`: a spread of them, and those next to the thresholds.
fn amounts(most: u64) -> impl Iterator<Item = u64> {
    let edges = [0, GRANT_MAX, CELL_MAX, 2 * CELL_MAX, most];
    let beside = edges
        .into_iter()
        .flat_map(|at| at.saturating_sub(2)..=at + 2);
    (0..=most)
        .step_by(1999)
        .chain(beside)
        .filter(move |amount| *amount <= most)
}

// Goal: steps of the token word keep its fields apart. Method: token counts up to the cap, amounts
// up to three caps, live and not; each step is compared with plain arithmetic.
#[test]
fn steps_of_the_token_word_keep_its_fields_apart() {
    let cell = Cell::new(Gates::new(Regime::Atomic, 1), 0);
    let idle = cell.load();
    assert!(idle.taken(0).is_none() && idle.parked(1).is_none() && idle.retired().is_none());
    assert_eq!((idle.fit(9), idle.granted_after_begin(9)), (0, (0, 1)));
    let live = idle.enlisted().unwrap();
    assert!(live.is_live() && live.enlisted().is_none() && live.stolen().is_none());
    for tokens in amounts(CELL_MAX) {
        let word = live.parked(tokens).unwrap();
        assert_eq!((word.tokens(), word.in_flight()), (tokens, 0));
        assert_eq!(word.stolen().is_some(), tokens > 0);
        for bytes in amounts(3 * CELL_MAX) {
            assert_eq!(
                word.taken(bytes).map(Word::tokens),
                tokens.checked_sub(bytes)
            );
            let parked = word.parked(bytes).unwrap();
            assert_eq!(parked.tokens() + word.spilled(bytes), tokens + bytes);
            assert_eq!(parked.in_flight(), u64::from(word.spilled(bytes) > 0));
            assert!(parked.tokens() <= CELL_MAX && parked.sequence() > word.sequence());
            let fit = bytes.min(CELL_MAX - tokens);
            let flying = u64::from(fit < bytes);
            assert_eq!(word.granted_after_begin(bytes), (tokens + fit, flying));
        }
        for bytes in amounts(3 * CELL_MAX) {
            let lent = word.lent(bytes);
            assert_eq!(lent.map(Word::tokens), tokens.checked_sub(bytes));
            let Some(lent) = lent else { continue };
            assert!(lent.in_flight() == 1 && lent.sequence() > word.sequence());
            let back = lent.returned(bytes).unwrap();
            assert_eq!((back.tokens(), back.in_flight()), (tokens, 0));
            assert_eq!(lent.returned(CELL_MAX - lent.tokens() + 1), None);
            assert_eq!(lent.retired().unwrap().returned(bytes), None);
        }
        let retired = word.retired().unwrap();
        assert!(!retired.is_live() && retired.tokens() == 0 && retired.in_flight() == 0);
        let withdrawn = word.withdrawn().unwrap();
        assert_eq!((withdrawn.in_flight(), withdrawn.ended().tokens()), (1, 0));
        assert!(!withdrawn.is_live() && withdrawn.withdrawn().is_none());
    }
    const { assert!(GRANT_MAX * 2 == CELL_MAX) };
}

impl Word {
    /// Returns tokens and operations in flight after a refill that brings `grant`.
    fn granted_after_begin(self, grant: u64) -> (u64, u64) {
        let word = self.begun().expect("nothing is in flight").granted(grant);
        (word.tokens(), word.in_flight())
    }
}

// Goal: with threads that step the words of their own CPU by plain stores, and steal tokens of the
// other CPUs, no maximum is exceeded, no byte is lost and none is found twice. Method: eight
// threads, migrated at random, charge, grow, split and drop in three groups below a small maximum
// that another thread keeps changing; the bytes they hold are counted separately. Then the whole
// maximum fits exactly.
#[cfg(target_os = "linux")]
#[test]
fn bytes_are_exact_while_threads_move_between_cpus() {
    use crate::percpu::harness::{skipped, while_moved_around};
    use crate::sync::atomic::{AtomicU64, Ordering};
    use crate::topology::Topology;

    const MAX: u64 = 1_200_000;
    let machine = Topology::detect();
    let tree = GroupTree::with_regime(Regime::preferred(&machine), machine.nr_cpus());
    if tree.regime() == Regime::Atomic {
        return skipped("no sequences here that other CPUs can restart");
    }
    let top = tree.root().child("top", Limits::max(Bytes(MAX)));
    let top = top.expect("a name that is free");
    let leaves = ["a", "b", "c"].map(|name| top.child(name, Limits::default()));
    let leaves = leaves.map(|leaf| leaf.expect("a name that is free"));
    let used = AtomicU64::new(0);
    while_moved_around(8, |thread| {
        let mut random = crate::seed::rng(100 + thread);
        if thread == 0 {
            for _ in 0..200 {
                let _: Result<(), MaxError> = top.set_max(Bytes(random.u64(200_000..=MAX)));
                std::thread::yield_now();
            }
            return;
        }
        // Relaxed, here and below: counted bytes are held, wherever they are counted.
        let count = |bytes: Bytes| {
            let now = used.fetch_add(bytes.0, Ordering::Relaxed) + bytes.0;
            assert!(now <= MAX, "{now} bytes of {MAX}");
        };
        let mut held = Vec::<NodeCharge>::new();
        for _ in 0..3_000 {
            let bytes = Bytes(random.u64(1..80_000));
            if random.bool() || held.is_empty() {
                if let Ok(charge) = leaves[random.usize(..3)].try_charge(bytes) {
                    count(bytes);
                    held.push(charge);
                }
                continue;
            }
            let mut charge = held.swap_remove(random.usize(..held.len()));
            if charge.try_grow(bytes).is_ok() {
                count(bytes);
            }
            used.fetch_sub(charge.bytes().0, Ordering::Relaxed);
            let half = charge.split(Bytes(charge.bytes().0 / 2));
            drop((half, charge));
        }
        let left: u64 = held.iter().map(|charge| charge.bytes().0).sum();
        used.fetch_sub(left, Ordering::Relaxed);
    });
    tree.check_invariants();
    assert_eq!(top.usage_precise(), Bytes::ZERO);
    assert_eq!(used.into_inner(), 0);
    top.set_max(Bytes(MAX)).expect("nothing is charged");
    let all = leaves[1].try_charge(Bytes(MAX)).expect("all of it is free");
    assert!(leaves[2].try_charge(Bytes(1)).is_err());
    drop(all);
}

// Goal: a forced charge to a group in debt, or with a queue, waits for no other charge. Method: it
// is made by another thread while this one holds the tree's lock for reading, as charges that look
// for room do.
#[test]
fn a_forced_charge_to_a_closed_group_excludes_no_charge() {
    let forced_beside_a_reader = |group: &GroupNode| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let shape = group.groups().read_shape();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(group.force_charge(Bytes(10))));
            let beside = receiver.recv_timeout(std::time::Duration::from_secs(5));
            drop(shape);
            let is_beside = beside.is_ok();
            let forced = beside.or_else(|_| receiver.recv()).unwrap();
            assert_eq!(forced.bytes(), Bytes(10));
            is_beside
        })
    };
    let root = GroupTree::new(2).root();
    let above = root.child("above", Limits::max(Bytes(100))).unwrap();
    let below = above.child("below", Limits::default()).unwrap();
    let debt = below.force_charge(Bytes(101));
    assert!(forced_beside_a_reader(&below));
    assert_eq!((above.debt(), above.events().debt), (Bytes(1), 2));
    drop(debt);
    let held = below.try_charge(Bytes(100)).unwrap();
    let mut waits = above.charge_wait(Bytes(1));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(
        std::pin::Pin::new(&mut waits)
            .poll(&mut context)
            .is_pending()
    );
    assert!(forced_beside_a_reader(&below));
    drop((waits, held));
    root.tree().check_invariants();
    assert_eq!(root.usage_precise(), Bytes::ZERO);
}

// Goal: bytes that are returned but were never charged panic and change nothing: neither what is
// reserved, nor the maximum, nor the mark of waiting charges. Method: return them thrice, so that
// any carry between the parts of the ledger's word would show.
#[test]
fn bytes_returned_that_were_never_charged_change_nothing() {
    let tree = GroupTree::new(1);
    let group = tree.root().child("a", Limits::max(Bytes(100))).unwrap();
    let held = group.try_charge(Bytes(10)).unwrap();
    for _ in 0..3 {
        let returned = catch_unwind(AssertUnwindSafe(|| group.uncharge_to_parent(Bytes::mib(1))));
        assert!(returned.is_err());
        assert_eq!(group.usage_precise(), Bytes(10));
        assert_eq!((group.limits().max, group.debt()), (Bytes(100), Bytes(0)));
        assert!(group.try_charge(Bytes(91)).is_err());
        drop(group.try_charge(Bytes(90)).unwrap());
    }
    drop(held);
    group.set_max(Bytes(50)).unwrap();
    assert!(group.try_charge(Bytes(51)).is_err());
    tree.check_invariants();
}
