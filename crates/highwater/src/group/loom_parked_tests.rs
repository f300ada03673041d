//! Models of parked slots: groups that are removed and created without the tree's lock.

use super::loom::{A, B, ONE, beside, bounded, finish};
use super::state::SlotStanding;
use super::{ChargeError, ChildError, GroupNode, GroupTree, Limits, MaxError, RemoveError};
use crate::units::{Bytes, CpuId, GroupId};

/// Returns a root and a group below it whose word of `A` holds one token.
fn root_and_group() -> (GroupNode, GroupNode) {
    let root = GroupTree::new(2).root();
    root.set_max(Bytes(4)).unwrap();
    let group = root.child("old", Limits::default()).unwrap();
    drop(group.at(A).try_charge(Bytes::ZERO).unwrap());
    drop(group.at(A).try_charge(ONE).unwrap());
    assert!(group.escrowed() > Bytes::ZERO);
    (root, group)
}

/// Returns a root, a group below it, and one below that.
fn root_parent_and_child() -> (GroupNode, GroupNode, GroupNode) {
    let root = GroupTree::new(2).root();
    let parent = root.child("parent", Limits::default()).unwrap();
    let child = parent.child("child", Limits::default()).unwrap();
    (root, parent, child)
}

fn is_parked(root: &GroupNode, id: GroupId) -> bool {
    let slot = root.groups().slot(id);
    slot.stands(slot.incarnation(), SlotStanding::Parked)
}

/// Whether charges to a living group find the tokens of its words of `cpu`, if it has any there.
fn finds_tokens(group: &GroupNode, cpu: CpuId) -> bool {
    let words = group.slot().find_words(cpu.index());
    words.is_none_or(|words| words.is_for(group.key().incarnation))
}

fn removed(group: &GroupNode) -> ChargeError {
    let group = group.path();
    ChargeError::Removed { group }
}

// Goal: without another thread, the next group begins in the slot of the one before, with its
// token. All models below are about this.
#[test]
fn the_next_group_has_the_tokens() {
    bounded(None, || {
        let (root, old) = root_and_group();
        let locks = root.tree().nr_shape_locks();
        root.tree().remove(&old).unwrap();
        let new = root.child("new", Limits::default()).unwrap();
        assert_eq!(root.tree().nr_shape_locks(), locks);
        assert_eq!((new.id(), new.usage().low), (old.id(), Bytes::ZERO));
        assert_eq!(
            (new.usage_precise(), old.usage().high),
            (Bytes::ZERO, Bytes::ZERO)
        );
        assert!(finds_tokens(&new, A), "creation has told the words");
        let charge = new.at(A).try_charge(ONE).unwrap();
        assert_eq!((new.usage_precise(), root.usage_precise()), (ONE, ONE));
        finish(&root, [charge]);
    });
}

// Goal: a charge that takes tokens while its group is removed and the next one begins is made to
// the old group, whose slot then stays, or refused.
#[test]
fn tokens_that_are_passed_on_are_not_taken_by_the_former_group() {
    bounded(Some(3), || {
        let (root, old) = root_and_group();
        let (other, tree) = (old.clone(), root.tree());
        let (charged, new) = beside(
            || other.at(A).try_charge(ONE),
            move || {
                tree.remove(&old).unwrap();
                tree.root().child("new", Limits::default()).unwrap()
            },
        );
        assert_eq!(new.usage_precise(), Bytes::ZERO);
        match charged {
            Ok(charge) => {
                assert_ne!(new.id(), other.id());
                assert_eq!(other.usage_precise(), ONE);
                finish(&root, [charge]);
            }
            Err(error) => {
                assert_eq!(error, removed(&other));
                finish(&root, []);
            }
        }
    });
}

// Goal: a thread that was told that a group is removed does not charge to it afterwards.
#[test]
fn a_group_that_is_said_to_be_removed_is_charged_nothing() {
    bounded(Some(3), || {
        let (root, old) = root_and_group();
        let (other, tree) = (old.clone(), root.tree());
        let ((), charged) = beside(
            || tree.remove(&old).unwrap(),
            move || other.is_removed().then(|| other.at(A).try_charge(ONE)),
        );
        assert!(charged.is_none_or(|charged| charged.is_err()));
        finish(&root, []);
    });
}

// Goal: as above, for a thread that removes the group too: it is refused, by a look at the
// standing, or is first.
#[test]
fn a_group_that_is_removed_twice_is_charged_nothing() {
    bounded(Some(3), || {
        let (root, old) = root_and_group();
        let (other, tree) = (old.clone(), root.tree());
        let (_, charged) = beside(
            || root.tree().remove(&old),
            move || {
                let _is_first = tree.remove(&other).is_ok();
                other.at(A).try_charge(ONE)
            },
        );
        assert!(charged.is_err());
        finish(&root, []);
    });
}

// Goal: as above, on a CPU that had used neither group: words that become live while their group is
// removed know the group that is there, also when the next one parks tokens in them.
#[test]
fn words_that_become_live_know_the_group_that_is_there() {
    bounded(Some(3), || {
        let (root, old) = root_and_group();
        let (other, tree) = (old.clone(), root.tree());
        let (charged, new) = beside(
            || other.at(B).try_charge(ONE),
            move || {
                tree.remove(&old).unwrap();
                let new = tree.root().child("new", Limits::default()).unwrap();
                drop(new.at(B).try_charge(ONE).unwrap());
                new
            },
        );
        drop(new.at(B).try_charge(ONE).unwrap());
        assert!(finds_tokens(&new, B), "a refill has told the words");
        assert_eq!(new.usage_precise(), Bytes::ZERO);
        assert_eq!(other.at(B).try_charge(ONE).unwrap_err(), removed(&other));
        let charge = charged.inspect_err(|error| assert_eq!(*error, removed(&other)));
        assert!(charge.is_err() || new.id() != other.id());
        finish(&root, charge);
    });
}

// Goal: as above, for bytes that were charged before and are uncharged meanwhile: the slot is given
// to the next group only once they are.
#[test]
fn a_slot_is_not_parked_while_bytes_are_charged() {
    bounded(Some(3), || {
        let (root, old) = root_and_group();
        let charge = old.at(B).try_charge(ONE).unwrap();
        let (id, tree) = (old.id(), root.tree());
        let ((), new) = beside(
            || drop(charge),
            move || {
                tree.remove(&old).unwrap();
                tree.root().child("new", Limits::default()).unwrap()
            },
        );
        assert_eq!(new.usage_precise(), Bytes::ZERO, "{} {id}", new.id());
        let charge = new.at(A).try_charge(ONE).unwrap();
        assert_eq!(new.usage_precise(), ONE);
        finish(&root, [charge]);
    });
}

// Goal: tokens of a slot that is parked are found by a charge elsewhere, at every moment. Method:
// the root has four bytes, of which the slot holds one.
#[test]
fn tokens_of_a_parked_slot_are_found() {
    bounded(Some(2), || {
        let (root, old) = root_and_group();
        let tree = root.tree();
        let (charged, new) = beside(
            || root.at(B).try_charge(Bytes(4)),
            move || {
                tree.remove(&old).unwrap();
                tree.root().child("new", Limits::default()).unwrap()
            },
        );
        let charge = charged.expect("nothing is used");
        assert_eq!(new.usage_precise(), Bytes::ZERO);
        finish(&root, [charge]);
    });
}

// Goal: one of two removals removes a group.
#[test]
fn a_group_is_removed_once() {
    bounded(None, || {
        let (root, group) = root_and_group();
        let (other, tree) = (group.clone(), root.tree());
        let (this, other) = beside(|| root.tree().remove(&group), move || tree.remove(&other));
        let gone = || RemoveError::Removed {
            group: group.path(),
        };
        assert!(this.is_ok() != other.is_ok());
        assert!([this, other].contains(&Err(gone())));
        assert!(is_parked(&root, group.id()));
        finish(&root, []);
    });
}

// Goal: a group is either removed, or a child begins below it: also in a parked slot.
#[test]
fn no_child_begins_below_a_removed_parent() {
    bounded(Some(3), || {
        let (root, parent, first) = root_parent_and_child();
        root.tree().remove(&first).unwrap();
        assert!(is_parked(&root, first.id()));
        let (other, tree) = (parent.clone(), root.tree());
        let (child, removed) = beside(
            || parent.child("second", Limits::default()),
            move || tree.remove(&other),
        );
        match (child, removed) {
            (Ok(child), Err(RemoveError::HasChildren { children: 1, .. })) => {
                root.tree().remove(&child).unwrap();
                root.tree().remove(&parent).unwrap();
            }
            (Err(ChildError::Removed { .. }), Ok(())) => {}
            outcome => panic!("{outcome:?}"),
        }
        assert!(root.children().is_empty());
        finish(&root, []);
    });
}

// Goal: two groups never begin in one slot, nor two with one name.
#[test]
fn of_two_creations_one_has_the_parked_slot() {
    for names in [["one", "two"], ["one", "one"]] {
        bounded(Some(3), move || {
            let (root, old) = root_and_group();
            root.tree().remove(&old).unwrap();
            let parent = root.clone();
            let (this, other) = beside(
                || root.child(names[0], Limits::default()),
                move || parent.child(names[1], Limits::default()),
            );
            match (this, other) {
                (Ok(this), Ok(other)) => {
                    assert_ne!((this.id(), names[0]), (other.id(), names[1]));
                    assert_eq!(root.children().len(), 2);
                }
                (Ok(made), Err(ChildError::DuplicateName { .. }))
                | (Err(ChildError::DuplicateName { .. }), Ok(made)) => {
                    assert_eq!((names[0], root.children()), (names[1], vec![made]));
                }
                outcome => panic!("{outcome:?}"),
            }
            finish(&root, []);
        });
    }
}

// Goal: a setting that races with a removal is made before it, or not at all; it never reaches the
// next group, and the counts of settings are right.
#[test]
fn settings_never_reach_the_next_group() {
    bounded(Some(3), || {
        let (root, old) = root_and_group();
        let (other, tree) = (old.clone(), root.tree());
        let (set, new) = beside(
            || {
                other.set_low(ONE);
                other.set_high(ONE);
                other.set_max(Bytes(3))
            },
            move || {
                tree.remove(&old).unwrap();
                tree.root().child("new", Limits::default()).unwrap()
            },
        );
        assert!(matches!(set, Ok(()) | Err(MaxError::Removed { .. })));
        assert_eq!(new.limits(), Limits::default());
        let tree = root.tree();
        assert!(!tree.has_protection() && !tree.has_high());
        finish(&root, []);
    });
}

// Goal: the removal of a parent beside that of its child leaves no slot behind.
#[test]
fn a_parent_is_removed_beside_its_child() {
    bounded(Some(3), || {
        let (root, parent, child) = root_parent_and_child();
        let tree = root.tree();
        let (this, ()) = beside(
            || root.tree().remove(&parent),
            move || tree.remove(&child).unwrap(),
        );
        if this.is_err() {
            root.tree().remove(&parent).unwrap();
        }
        finish(&root, []);
        let ids = ["one", "two"].map(|name| root.child(name, Limits::default()).unwrap().id());
        assert!(
            ids.contains(&GroupId(1)) && ids.contains(&GroupId(2)),
            "{ids:?}"
        );
    });
}

// Goal: a slot with bytes in use is not taken for unused because tokens are stolen from it while it
// is looked at. Method: as many tokens as bytes in use, and a charge elsewhere that needs them.
#[test]
fn stolen_tokens_hide_no_used_bytes() {
    bounded(Some(3), || {
        let (root, old) = root_and_group();
        root.set_max(Bytes::MAX).unwrap();
        let held = old.at(A).try_charge(Bytes(2)).unwrap();
        assert_eq!(old.escrowed(), Bytes(2));
        root.set_max(Bytes(4)).unwrap();
        let (id, tree) = (old.id(), root.tree());
        let (charged, new) = beside(
            || root.at(B).try_charge(Bytes(2)),
            move || {
                tree.remove(&old).unwrap();
                tree.root().child("new", Limits::default()).unwrap()
            },
        );
        assert_ne!(new.id(), id);
        let charged = charged.expect("two of four bytes are used");
        finish(&root, [held, charged]);
    });
}
