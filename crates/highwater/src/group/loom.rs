//! Every interleaving of two threads (the larger models: with at most three preemptions), over
//! words that hold two tokens and grants of one:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p highwater --lib loom`.
//!
//! The model checker treats `SeqCst` accesses as acquire and release: the properties checked here
//! do not rest on the one order of all words.

use super::charge::{Refusal, Way};
use super::{ChargeError, GroupNode, GroupTree, Limits, MaxError, NodeCharge};
use crate::sync::thread;
use crate::units::{Bytes, CpuId};

pub(super) const ONE: Bytes = Bytes(1);
pub(super) const A: CpuId = CpuId(0);
pub(super) const B: CpuId = CpuId(1);
const C: CpuId = CpuId(2);

/// Runs `test` in every interleaving.
fn model(test: impl Fn() + Sync + Send + 'static) {
    bounded(None, test);
}

/// Runs `test` in every interleaving with at most that many preemptions.
pub(super) fn bounded(preemptions: Option<usize>, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 20_000;
    builder.check(test);
}

/// Returns a root with a maximum, whose words are live on all CPUs, so that the models need not
/// explore that. With a maximum of 2 or more the word of `A` holds one token, otherwise none does.
pub(super) fn root(max: u64) -> GroupNode {
    let root = GroupTree::new(3).root();
    root.set_max(Bytes(max)).unwrap();
    enlist(&root);
    root
}

/// Makes the words of all CPUs live.
fn enlist(group: &GroupNode) {
    for cpu in [A, B, C] {
        drop(group.at(cpu).try_charge(Bytes::ZERO).unwrap());
    }
}

/// Runs `other` in a thread concurrently with `this`; returns both outcomes, `this` first.
pub(super) fn beside<T, U: 'static>(
    this: impl FnOnce() -> T,
    other: impl FnOnce() -> U + 'static,
) -> (T, U) {
    let other = thread::spawn(other);
    let this = this();
    (this, other.join().unwrap())
}

/// Uncharges the guards and checks that nothing is left charged.
pub(super) fn finish(group: &GroupNode, guards: impl IntoIterator<Item = NodeCharge>) {
    drop(guards.into_iter().collect::<Vec<_>>());
    group.tree().check_invariants();
    assert_eq!(group.usage_precise(), Bytes::ZERO);
}

fn is_full<T: std::fmt::Debug>(outcome: &Result<T, ChargeError>) -> bool {
    match outcome {
        Ok(_) => false,
        Err(ChargeError::OverMax { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

/// Charges `bytes` as after many failed attempts, until the outcome is decided.
fn is_refused_alone(group: &GroupNode, bytes: u64) -> bool {
    let core = group.groups();
    loop {
        match core.charge_alone(Way::whole(group.key()), bytes) {
            Ok(()) => return false,
            Err(Refusal::Full { .. }) => return true,
            Err(_) => thread::yield_now(),
        }
    }
}

// Goal: of two charges that race for the last byte exactly one gets it, and the other is refused.
#[test]
fn one_of_two_charges_gets_the_last_page() {
    model(|| {
        let root = root(1);
        let other = root.clone();
        let (this, other) = beside(
            || root.at(A).try_charge(ONE),
            move || other.at(B).try_charge(ONE),
        );
        assert!(is_full(&this) != is_full(&other));
        assert_eq!(root.usage_precise(), ONE);
        finish(&root, this.into_iter().chain(other));
    });
}

// Goal: as above when that byte is a token in the word of one of them: local take against steal.
#[test]
fn one_of_take_and_steal_gets_the_token() {
    model(|| {
        let root = root(2);
        assert_eq!(root.escrowed(), ONE);
        let other = root.clone();
        let (this, other) = beside(
            || root.at(A).try_charge(ONE),
            move || other.at(B).try_charge(Bytes(2)),
        );
        assert!(is_full(&this) != is_full(&other));
        finish(&root, this.into_iter().chain(other));
    });
}

// Goal: bytes that an uncharge parks are not lost to a charge on another CPU: whatever that charge
// met, the next one finds them.
#[test]
fn parked_pages_are_found() {
    model(|| {
        let root = root(1);
        let bytes = root.at(A).try_charge(ONE).unwrap().disown();
        let other = root.clone();
        let ((), other) = beside(
            || root.at(A).uncharge(bytes),
            move || other.at(B).try_charge(ONE),
        );
        let next = root.at(B).try_charge(ONE);
        assert!(is_full(&other) != is_full(&next));
        finish(&root, other.into_iter().chain(next));
    });
}

// Goal: free bytes that move from word to word while a charge looks for them are not missed.
// Method: one byte is a token in the second word; the other thread first parks another in the first
// word, which a pass visits before, and then takes the second. There is a free byte at every
// moment.
#[test]
fn pages_that_move_are_not_missed() {
    model(|| {
        let root = root(2);
        let held = root.at(C).try_charge(Bytes(2)).unwrap().disown();
        root.at(B).uncharge(ONE);
        let other = root.clone();
        let (this, taken) = beside(
            || root.at(C).try_charge(ONE),
            move || {
                other.at(A).uncharge(held - ONE);
                other.at(B).try_charge(ONE)
            },
        );
        assert!(!is_full(&this) && !is_full(&taken));
        finish(&root, this.into_iter().chain(taken));
    });
}

// Goal: as above when the uncharge overflows its word and gives tokens back.
#[test]
fn spilled_pages_are_found() {
    model(|| {
        let root = root(4);
        let guard = root.at(B).try_charge(Bytes(4)).unwrap();
        let other = root.clone();
        let ((), other) = beside(
            || {
                root.at(A).uncharge(guard.disown());
            },
            move || other.at(B).try_charge(Bytes(4)),
        );
        let next = root.at(B).try_charge(Bytes(4));
        assert!(is_full(&other) != is_full(&next));
        finish(&root, other.into_iter().chain(next));
    });
}

// Goal: a charge beside the lowering of the maximum is either before it, and reported, or after it,
// and refused.
#[test]
fn lowering_the_maximum_never_misses_a_charge() {
    model(|| {
        let root = root(2);
        let other = root.clone();
        let (lowered, charged) = beside(
            || root.set_max(ONE),
            move || other.at(B).try_charge(Bytes(2)),
        );
        if is_full(&charged) {
            assert_eq!(lowered, Ok(()));
        } else {
            let Err(MaxError::BelowUsage { usage, over, .. }) = lowered else {
                panic!("2 bytes of 1, and {lowered:?}");
            };
            assert_eq!((usage, over), (Bytes(2), ONE));
        }
        finish(&root, charged);
    });
}

// Goal: as above for a charge from tokens, which exist before the maximum is lowered.
#[test]
fn lowering_the_maximum_takes_tokens_away() {
    model(|| {
        let root = root(2);
        let other = root.clone();
        let (lowered, charged) = beside(
            || root.set_max(Bytes::ZERO),
            move || other.at(A).try_charge(ONE),
        );
        assert_eq!(is_full(&charged), lowered.is_ok());
        assert_eq!(root.usage().high, root.usage_precise(), "tokens were left");
        finish(&root, charged);
    });
}

// Goal: a reservation that is undone because a higher group has no room makes no other charge fail.
// Method: the root holds three bytes, its child two. One thread charges two to the child; the other
// charges two to the root and then one to the child: if it gets the two, the first has no room at
// the root, and its transient reservation in the child must not count.
#[test]
fn an_undone_reservation_refuses_nobody() {
    bounded(Some(3), || {
        let root = root(3);
        let child = root.child("child", Limits::max(Bytes(2))).unwrap();
        enlist(&child);
        let (other, tree) = (child.clone(), root.tree());
        let (this, (above, below)) = beside(
            || child.at(A).try_charge(Bytes(2)),
            move || {
                let above = tree.root().at(B).try_charge(Bytes(2));
                (above, other.at(B).try_charge(ONE))
            },
        );
        assert!(is_full(&this) != is_full(&above));
        assert_eq!(is_full(&above), is_full(&below));
        finish(&root, this.into_iter().chain(above).chain(below));
    });
}

// Goal: a charge that races with the removal of its group is either made, and stays until it is
// dropped, or refused; no token stays behind.
#[test]
fn removal_leaves_no_token_behind() {
    model(|| {
        let root = root(4);
        let child = root.child("child", Limits::default()).unwrap();
        let other = child.clone();
        let (removed, charged) = beside(
            || root.tree().remove(&child),
            move || other.at(A).try_charge(ONE),
        );
        assert_eq!(removed, Ok(()));
        match &charged {
            Ok(_) => assert_eq!(child.usage_precise(), ONE),
            Err(error) => assert_eq!(
                *error,
                ChargeError::Removed {
                    group: child.path()
                }
            ),
        }
        let used = charged.as_ref().map_or(Bytes::ZERO, NodeCharge::bytes);
        assert_eq!(
            child.usage().high,
            used,
            "a token was left in a removed group"
        );
        finish(&root, charged);
    });
}

// Goal: a refusal that is decided alone does not count transient reservations of a racing charge.
// Method: as for undone reservations, with the second charge to the child decided alone from the
// start.
#[test]
fn deciding_alone_counts_no_undone_reservation() {
    bounded(Some(3), || {
        // No token anywhere, so that the racing charge reserves in its first attempt.
        let root = GroupTree::new(2).root();
        root.set_max(Bytes(3)).unwrap();
        let child = root.child("child", Limits::max(Bytes(2))).unwrap();
        let (other, tree) = (child.clone(), root.tree());
        let (this, (above, is_refused)) = beside(
            || child.at(A).try_charge(Bytes(2)),
            move || {
                let above = tree.root().at(B).try_charge(Bytes(2));
                (above, is_refused_alone(&other, 1))
            },
        );
        assert!(is_full(&this) != is_full(&above));
        assert_eq!(is_full(&above), is_refused);
        if !is_refused {
            child.at(B).uncharge(ONE);
        }
        finish(&root, this.into_iter().chain(above));
    });
}

// Goal: a charge that began before its group was removed never lands in the group that gets the
// slot next.
#[test]
fn a_charge_never_reaches_the_next_group_of_its_slot() {
    bounded(Some(3), || {
        let root = root(4);
        let old = root.child("old", Limits::default()).unwrap();
        let other = old.clone();
        let (new, charged) = beside(
            || {
                root.tree().remove(&old).unwrap();
                root.child("new", Limits::default()).unwrap()
            },
            move || other.at(A).try_charge(ONE),
        );
        assert_eq!(new.usage_precise(), Bytes::ZERO);
        match charged {
            Ok(charge) => {
                assert_ne!(
                    new.id(),
                    old.id(),
                    "the slot was reused while bytes were charged"
                );
                finish(&root, [charge]);
            }
            Err(error) => assert_eq!(error, ChargeError::Removed { group: old.path() }),
        }
        finish(&root, []);
    });
}

// Goal: while one charge decides alone, no other reserves anything. Method: one thread charges all
// three bytes of the child; the other lets two of them become tokens, takes two of the root's four,
// and decides alone whether the child has two more. When it takes the tokens back, the first may
// find room in the child that it checked long before, and reserve it although the root has none
// left. (Within three preemptions the explored schedules do not reach the one that needs the gate;
// that the gate is needed and suffices is argued in `charge/proof.rs`.)
#[test]
fn deciding_alone_closes_the_tree() {
    bounded(Some(3), || {
        let root = GroupTree::new(3).root();
        root.set_max(Bytes(4)).unwrap();
        let child = root.child("child", Limits::max(Bytes(3))).unwrap();
        let other = child.clone();
        let ((above, is_refused), all) = beside(
            || {
                if let Ok(two) = child.at(C).try_charge(Bytes(2)) {
                    child.at(C).uncharge(two.disown());
                }
                let above = root.at(B).try_charge(Bytes(2));
                (above, is_refused_alone(&child, 2))
            },
            move || other.at(A).try_charge(Bytes(3)),
        );
        assert_eq!(is_refused, !is_full(&all));
        if !is_refused {
            child.at(B).uncharge(Bytes(2));
        }
        finish(&root, above.into_iter().chain(all));
    });
}

// Goal: a forced charge beside one that is not: the forced one is never refused, and the debt is
// exactly the usage of both above the maximum, in either order.
#[test]
fn debt_is_exact_beside_a_charge() {
    bounded(Some(3), || {
        let root = root(2);
        let other = root.clone();
        let (forced, charged) = beside(
            || root.at(B).force_charge(Bytes(2)),
            move || other.at(A).try_charge(ONE),
        );
        let used = forced.bytes() + charged.as_ref().map_or(Bytes::ZERO, NodeCharge::bytes);
        assert_eq!(root.debt(), used - Bytes(2));
        assert_eq!(root.usage_precise(), used);
        finish(&root, [forced].into_iter().chain(charged));
    });
}

// Goal: an uncharge pays debt and parks nothing, whether it comes before or after the debt.
#[test]
fn debt_leaves_no_token_beside_an_uncharge() {
    bounded(Some(3), || {
        let root = root(1);
        let bytes = root.at(A).try_charge(ONE).unwrap().disown();
        let other = root.clone();
        let (forced, ()) = beside(
            || root.at(B).force_charge(Bytes(2)),
            move || other.at(A).uncharge(bytes),
        );
        assert_eq!(root.debt(), ONE);
        assert_eq!(root.escrowed(), Bytes::ZERO);
        finish(&root, [forced]);
    });
}

// Goal: each of two forced charges counts in full, and free room is used before debt is made.
#[test]
fn two_forced_charges_add_up() {
    bounded(Some(3), || {
        let root = root(1);
        let child = root.child("child", Limits::max(ONE)).unwrap();
        let other = root.clone();
        let (below, above) = beside(
            || child.at(A).force_charge(ONE),
            move || other.at(B).force_charge(ONE),
        );
        assert_eq!((root.debt(), child.debt()), (ONE, Bytes::ZERO));
        assert_eq!(root.events().debt, 1);
        finish(&root, [below, above]);
    });
}

// Goal: a forced charge to a group in debt, which excludes no other, leaves no tokens beside the
// debt. Method: meanwhile the debt is paid, and the next uncharge wants to make its word live.
#[test]
fn debt_leaves_no_token_beside_its_payment() {
    bounded(Some(3), || {
        let root = root(1);
        let _disowned = root.at(A).force_charge(Bytes(3)).disown();
        let other = root.clone();
        let (forced, ()) = beside(
            || root.at(B).force_charge(Bytes(2)),
            move || {
                other.at(A).uncharge(Bytes(2));
                other.at(A).uncharge(ONE);
            },
        );
        assert_eq!((root.debt(), root.usage_precise()), (ONE, Bytes(2)));
        assert_eq!(root.escrowed(), Bytes::ZERO);
        finish(&root, [forced]);
    });
}

// Goal: as above, with a debt above the group: there is room at the child, or there is none.
#[test]
fn a_debt_above_grows_beside_charges_below() {
    bounded(Some(3), || {
        let root = root(1);
        let debt = root.at(A).force_charge(Bytes(2));
        let child = root.child("child", Limits::max(ONE)).unwrap();
        let other = child.clone();
        let (one, two) = beside(
            || child.at(A).force_charge(ONE),
            move || other.at(B).force_charge(ONE),
        );
        assert_eq!((root.debt(), child.debt()), (Bytes(3), ONE));
        assert_eq!(
            (root.events_local().debt, child.events_local().debt),
            (3, 1)
        );
        finish(&root, [debt, one, two]);
    });
}

// Goal: a maximum that is raised or lowered beside a forced charge: the debt is the excess of the
// resulting usage over the resulting maximum.
#[test]
fn debt_follows_a_maximum_that_changes() {
    bounded(Some(3), || {
        let root = root(1);
        let other = root.clone();
        let (forced, ()) = beside(
            || root.at(B).force_charge(Bytes(3)),
            move || {
                let _ = other.set_max(Bytes(2));
            },
        );
        assert_eq!((root.debt(), root.usage_precise()), (ONE, Bytes(3)));
        finish(&root, [forced]);
    });
}

/// Returns two groups below a full one, and bytes charged to each.
fn full_pair(max: u64, each: u64) -> (GroupNode, [GroupNode; 2], [NodeCharge; 2]) {
    let root = GroupTree::new(2).root();
    root.set_max(Bytes(max)).unwrap();
    let groups = ["a", "b"].map(|name| root.child(name, Limits::default()).unwrap());
    let charge = |group: &GroupNode| group.at(A).try_charge(Bytes(each)).unwrap();
    let held = [charge(&groups[0]), charge(&groups[1])];
    (root, groups, held)
}

// Goal: transfers that cross below a full group are never refused, and the group does not see them.
#[test]
fn transfers_cross_inside_a_full_group() {
    bounded(Some(3), || {
        let (root, [a, b], [mut one, mut two]) = full_pair(2, 1);
        let to = b.clone();
        let (moved, other) = beside(
            || one.at(A).transfer(&to, ONE).unwrap(),
            move || two.at(B).transfer(&a, ONE).unwrap(),
        );
        assert_eq!(root.usage_precise(), Bytes(2));
        assert_eq!(b.usage_precise(), ONE);
        finish(&root, [moved, other]);
    });
}

// Goal: of a transfer and a charge that compete for the last byte of a group exactly one gets it;
// the one refused has changed nothing.
#[test]
fn one_of_transfer_and_charge_gets_the_last_page() {
    bounded(Some(3), || {
        let (root, [a, b], [mut one, two]) = full_pair(4, 1);
        b.set_max(Bytes(2)).unwrap();
        let to = b.clone();
        let (moved, charged) = beside(
            || one.at(A).transfer(&to, ONE),
            move || b.at(B).try_charge(ONE),
        );
        assert!(is_full(&moved) != is_full(&charged));
        let left = if is_full(&moved) { ONE } else { Bytes::ZERO };
        assert_eq!((one.bytes(), a.usage_precise()), (left, left));
        finish(&root, [one, two].into_iter().chain(moved).chain(charged));
    });
}

// Goal: a transfer beside the removal of both ends: out of a removed group it works, into one it is
// refused and changes nothing, and no slot is reused during it.
#[test]
fn transfers_survive_the_removal_of_both_ends() {
    bounded(Some(3), || {
        let (root, [a, b], [mut one, two]) = full_pair(4, 1);
        drop(two);
        let (to, tree, from) = (b.clone(), root.tree(), a.clone());
        let (moved, new) = beside(
            || one.at(A).transfer(&to, ONE),
            move || {
                tree.remove(&from).unwrap();
                tree.remove(&b).unwrap();
                tree.root().child("new", Limits::default()).unwrap()
            },
        );
        match &moved {
            Ok(_) => assert_eq!(to.usage_precise(), ONE),
            Err(error) => {
                assert_eq!(*error, ChargeError::Removed { group: to.path() });
                assert_eq!(a.usage_precise(), ONE);
            }
        }
        assert_eq!(
            (new.usage_precise(), root.usage_precise()),
            (Bytes::ZERO, ONE)
        );
        finish(&root, [one].into_iter().chain(moved));
    });
}

// Goal: a charge that is refused while its group is removed is counted at that group or at none,
// never at the group that gets the slot next. (The event once went missing, or to the next group.)
#[test]
fn a_refusal_is_never_told_of_a_later_group() {
    bounded(Some(3), || {
        let root = GroupTree::new(2).root();
        let full = || Limits::max(Bytes::ZERO);
        let old = root.child("old", full()).unwrap();
        let (other, tree) = (old.clone(), root.tree());
        let (refused, new) = beside(
            || old.at(A).try_charge(ONE).map(drop),
            move || {
                tree.remove(&other).unwrap();
                tree.root().child("new", full()).unwrap()
            },
        );
        let is_counted = matches!(refused, Err(ChargeError::OverMax { .. }));
        assert_eq!(old.events_local().max, u64::from(is_counted));
        assert_eq!(root.events().max, u64::from(is_counted));
        assert_eq!(new.events_local().max, 0);
        finish(&root, []);
    });
}
