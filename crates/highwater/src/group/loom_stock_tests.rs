//! Every interleaving (with at most three preemptions) of charges that share one CPU's stock, which
//! has one entry here, and charge level by level without it: `loom.rs` says how to run them.
//!
//! In these models a review follows each charge by own words, so that the entry changes hands.

use super::loom::{A, B, ONE, beside, bounded, finish};
use super::{ChargeError, GroupNode, GroupTree, Limits, NodeCharge};
use crate::sync::thread;
use crate::units::Bytes;

fn child(parent: &GroupNode, name: &str) -> GroupNode {
    parent.child(name, Limits::default()).unwrap()
}

/// Returns a root with a maximum and two groups below it. The first has the chain word of CPU `A`,
/// the other and the root have own words there.
fn pair(max: u64) -> (GroupNode, [GroupNode; 2]) {
    let root = GroupTree::new(2).root();
    let pair = ["first", "second"].map(|name| child(&root, name));
    root.set_max(Bytes(max)).unwrap();
    for group in &pair {
        drop(group.at(A).try_charge(Bytes::ZERO).unwrap());
    }
    (root, pair)
}

fn is_full(outcome: &Result<NodeCharge, ChargeError>) -> bool {
    match outcome {
        Ok(_) => false,
        Err(ChargeError::OverMax { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

// Goal: two groups that act as one CPU and want its one entry keep all bytes, and at most one of
// them has the chain word at the end, as the check of the tree's stocks says.
#[test]
fn two_groups_share_one_entry() {
    bounded(Some(3), || {
        let (root, [first, second]) = pair(4);
        let other = second.clone();
        let (one, two) = beside(
            || first.at(A).try_charge(ONE),
            move || other.at(A).try_charge(ONE),
        );
        assert_eq!(root.usage_precise(), Bytes(2));
        finish(&root, [one.unwrap(), two.unwrap()]);
    });
}

// Goal: a group has one live word on a CPU, whichever of two first charges gets the entry: with
// two, its usage would be known half as well.
#[test]
fn two_first_charges_leave_one_word_live() {
    bounded(Some(2), || {
        let root = GroupTree::new(2).root();
        let other = root.clone();
        let (one, two) = beside(
            || root.at(A).try_charge(Bytes::ZERO),
            move || other.at(A).try_charge(Bytes::ZERO),
        );
        let holders = root.groups().slot(root.id()).holders();
        assert!(holders <= 1, "{holders} words are live");
        finish(&root, [one.unwrap(), two.unwrap()]);
    });
}

// Goal: an entry that is taken from a group while that group uses its chain word loses nothing.
// Method: one thread parks and takes by the chain word; the other charges by own words, and each of
// its charges is followed by a review.
#[test]
fn an_entry_changes_hands_under_its_user() {
    bounded(Some(3), || {
        let (root, [first, second]) = pair(6);
        let held = first.at(A).try_charge(ONE).unwrap().disown();
        let other = second.clone();
        let ((), two) = beside(
            || first.at(A).uncharge(held),
            move || {
                drop(other.at(A).try_charge(ONE).unwrap());
                drop(other.at(A).try_charge(ONE).unwrap());
                other.at(A).try_charge(ONE)
            },
        );
        assert_eq!(root.usage_precise(), ONE);
        finish(&root, two);
    });
}

// Goal: of a charge by own words and one on another CPU exactly one gets the last byte of their
// ancestor, wherever it is parked. Method: the byte is a token of the root's own word, of the first
// group's chain word, or free.
#[test]
fn one_of_two_charges_gets_the_last_byte_above() {
    for max in [1, 2] {
        bounded(Some(3), move || {
            let (root, [_, second]) = pair(max);
            let kept = (max > 1).then(|| second.at(A).try_charge(ONE).unwrap());
            let other = root.clone();
            let (this, that) = beside(
                || second.at(A).try_charge(ONE),
                move || other.at(B).try_charge(ONE),
            );
            assert!(is_full(&this) != is_full(&that));
            assert_eq!(root.usage_precise(), Bytes(max));
            finish(&root, this.into_iter().chain(that).chain(kept));
        });
    }
}

// Goal: a charge that is refused above is in flight until it has put back what it took below: the
// group below is never wrongly full. Method: the second group has room for one byte, which is a
// token of its own word on `A`; the root has none. One thread charges there, and is refused by the
// root. The other frees a byte of the root by a move of it: out of the first group into the second,
// which needs only the second's room.
#[test]
fn what_a_refused_charge_took_below_is_found() {
    bounded(Some(3), || {
        let (root, [first, second]) = pair(3);
        drop(second.at(A).try_charge(ONE).unwrap());
        let kept = first.at(B).try_charge(Bytes(2)).unwrap();
        second.set_max(ONE).unwrap();
        let mut moved = first.at(B).try_charge(ONE).unwrap();
        let to = second.clone();
        let (refused, arrived) = beside(
            || second.at(A).try_charge(ONE),
            move || {
                moved
                    .at(B)
                    .transfer(&to, ONE)
                    .map(|arrived| (arrived, moved))
            },
        );
        assert!(is_full(&refused), "the root is full throughout");
        let (arrived, emptied) = arrived.expect("the second group has room for one");
        assert_eq!((arrived.bytes(), emptied.bytes()), (ONE, Bytes::ZERO));
        assert_eq!(root.usage_precise(), Bytes(3));
        finish(&root, [arrived, kept]);
    });
}

// Goal: a group that is removed during a charge by its own word is charged before or refuses, and
// the next group in its slot starts empty.
#[test]
fn a_group_is_removed_during_a_charge_by_steps() {
    bounded(Some(3), || {
        let (root, [_, second]) = pair(4);
        drop(second.at(A).try_charge(ONE).unwrap());
        let (other, tree) = (second.clone(), root.tree());
        let (charged, new) = beside(
            || second.at(A).try_charge(ONE),
            move || {
                tree.remove(&other).unwrap();
                child(&tree.root(), "new")
            },
        );
        match &charged {
            Ok(_) => assert_eq!(root.usage_precise(), ONE),
            Err(error) => {
                let path = second.path();
                assert_eq!(*error, ChargeError::Removed { group: path });
            }
        }
        let next = new.at(A).try_charge(ONE).unwrap();
        assert_eq!(new.usage_precise(), ONE);
        finish(&root, charged.into_iter().chain([next]));
    });
}

// Goal: a charge that decides alone, the tree closed, is not misled by a charge by own words that
// takes no fence: of the two exactly one gets the last byte.
#[test]
fn a_charge_by_steps_beside_one_that_decides_alone() {
    bounded(Some(3), || {
        let (root, [_, second]) = pair(2);
        let kept = second.at(A).try_charge(ONE).unwrap();
        let other = root.clone();
        let (this, alone) = beside(
            || second.at(A).try_charge(ONE),
            move || {
                let way = super::charge::Way::whole(other.key());
                loop {
                    match other.groups().charge_alone(way, 1) {
                        Ok(()) => return true,
                        Err(super::charge::Refusal::Full { .. }) => return false,
                        Err(_) => thread::yield_now(),
                    }
                }
            },
        );
        assert!(this.is_ok() != alone, "one byte for two");
        if alone {
            root.uncharge(ONE);
        }
        finish(&root, this.into_iter().chain([kept]));
    });
}
