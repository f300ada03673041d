//! Models of the wait queue: in no interleaving does a waiting charge sleep while enough bytes are
//! free. A model in which a thread is never woken fails as a deadlock.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::loom::{A, B, ONE, beside, bounded, finish, root};
use super::{ChargeError, GroupNode, GroupTree, Limits, NodeCharge};
use crate::sync::block_on;
use crate::units::Bytes;

fn wait(group: &GroupNode, bytes: u64) -> NodeCharge {
    group.at(B).charge_wait(Bytes(bytes)).wait().unwrap()
}

// Goal: bytes that an uncharge would park wake the waiter, whether the uncharge parks before the
// words are retired or comes after.
#[test]
fn an_uncharge_wakes_who_waits() {
    bounded(Some(3), || {
        let root = root(1);
        let bytes = root.at(A).try_charge(ONE).unwrap().disown();
        let other = root.clone();
        let (waited, ()) = beside(|| wait(&root, 1), move || other.at(A).uncharge(bytes));
        assert_eq!((root.usage_precise(), root.nr_waiting()), (ONE, 0));
        finish(&root, [waited]);
    });
}

// Goal: as above where the uncharge overflows its word and gives the rest back.
#[test]
fn a_spill_wakes_who_waits() {
    bounded(Some(3), || {
        let root = root(4);
        let bytes = root.at(A).try_charge(Bytes(4)).unwrap().disown();
        let other = root.clone();
        let (waited, ()) = beside(|| wait(&root, 4), move || other.at(A).uncharge(bytes));
        finish(&root, [waited]);
    });
}

// Goal: a waiter that is served wakes the next, in either order of the two.
#[test]
fn one_who_is_served_lets_the_next_go_on() {
    bounded(Some(2), || {
        let root = root(2);
        let held = root.at(A).try_charge(Bytes(2)).unwrap();
        let other = root.clone();
        let (one, two) = beside(
            || {
                drop(held);
                wait(&root, 1)
            },
            move || wait(&other, 1),
        );
        assert_eq!(root.usage_precise(), Bytes(2));
        finish(&root, [one, two]);
    });
}

// Goal: a waiter that gives up its place while room comes for the one behind it loses no wake-up.
// Method: the first waits for two bytes and gives up while one byte is released; the second waits
// for one.
#[test]
fn one_who_gives_up_lets_the_next_go_on() {
    bounded(Some(3), || {
        let root = root(2);
        let mut held = root.at(A).try_charge(Bytes(2)).unwrap();
        let mut first = root.at(A).charge_wait(Bytes(2));
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut first).poll(&mut context).is_pending());
        held.at(A).shrink(ONE);
        let other = root.clone();
        let ((), waited) = beside(|| drop(first), move || wait(&other, 1));
        finish(&root, [held, waited]);
    });
}

// Goal: a reservation that is undone because a higher group has no room leaves no waiter asleep.
// Method: as for undone reservations without waiting: one thread charges two bytes to the child,
// for which the root may have no room while the other waits for one byte of the child.
#[test]
fn an_undone_reservation_keeps_nobody_asleep() {
    bounded(Some(3), || {
        let root = GroupTree::new(2).root();
        root.set_max(Bytes(3)).unwrap();
        let child = root.child("child", Limits::max(Bytes(2))).unwrap();
        let above = root.at(B).try_charge(Bytes(2)).unwrap();
        let other = child.clone();
        let (failed, waited) = beside(
            || child.at(A).try_charge(Bytes(2)).map(drop),
            move || wait(&other, 1),
        );
        assert!(matches!(
            failed,
            Err(ChargeError::OverMax { .. } | ChargeError::Behind { .. })
        ));
        finish(&root, [above, waited]);
    });
}

// Goal: raising a maximum wakes the waiter.
#[test]
fn a_raised_maximum_wakes_who_waits() {
    bounded(Some(3), || {
        let root = root(2);
        let held = root.at(A).try_charge(ONE).unwrap();
        let other = root.clone();
        let (waited, raised) = beside(|| wait(&root, 2), move || other.set_max(Bytes(3)));
        assert_eq!((raised, root.usage_precise()), (Ok(()), Bytes(3)));
        finish(&root, [held, waited]);
    });
}

// Goal: a maximum set below the bytes that a waiter wants ends its wait with an error.
#[test]
fn a_lowered_maximum_tells_who_waits() {
    bounded(Some(3), || {
        let root = root(2);
        let held = root.at(A).try_charge(ONE).unwrap();
        let other = root.clone();
        let (waited, lowered) = beside(
            || root.at(B).charge_wait(Bytes(2)).wait(),
            move || other.set_max(ONE),
        );
        assert!(matches!(waited, Err(ChargeError::OverMax { .. })));
        assert_eq!((lowered, root.nr_waiting()), (Ok(()), 0));
        finish(&root, [held]);
    });
}

// Goal: removing a group ends the waits for it, and leaves no mark to a later group in the slot.
#[test]
fn a_removal_calls_who_waits() {
    bounded(Some(3), || {
        let root = root(4);
        let child = root.child("child", Limits::max(ONE)).unwrap();
        let held = child.at(A).try_charge(ONE).unwrap();
        let (other, tree) = (child.clone(), root.tree());
        let (waited, new) = beside(
            || other.at(B).charge_wait(ONE).wait(),
            move || {
                tree.remove(&child).unwrap();
                drop(held);
                tree.root().child("new", Limits::max(ONE)).unwrap()
            },
        );
        assert!(matches!(waited, Err(ChargeError::Removed { .. })));
        let charge = new.at(B).try_charge(ONE).unwrap();
        finish(&root, [charge]);
    });
}

/// Waits in the queue as a charge does that has told a group to stop, until it is served or
/// `is_due` returns that the caller must act; returns the charge if it was served.
fn watch(group: &GroupNode, bytes: u64, is_due: impl Fn(bool) -> bool) -> Option<NodeCharge> {
    let mut wait = group.at(B).charge_wait(Bytes(bytes)).watching();
    let turn = poll_fn(|context| match Pin::new(&mut wait).poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Some(outcome.unwrap())),
        // Checked after the waker was left in the queue: a later release calls it.
        Poll::Pending if is_due(wait.is_first()) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    });
    block_on(turn, None).expect("without a deadline it waits to the end")
}

// Goal: the first in a queue, which waits for a group that it has told to stop, sees that this
// group has given back everything, also where that is less than it wants: otherwise it would never
// tell the next group.
#[test]
fn a_release_that_is_not_enough_calls_a_waiter_that_watches() {
    bounded(Some(3), || {
        let root = root(3);
        let mut others = root.at(A).try_charge(Bytes(3)).unwrap();
        let told = others.split(ONE);
        let other = root.clone();
        let (served, ()) = beside(
            || watch(&root, 2, |_| root.usage_precise() < Bytes(3)),
            move || {
                drop(told);
                drop(other);
            },
        );
        assert!(served.is_none(), "there is room for one byte only");
        assert_eq!(root.nr_waiting(), 0);
        finish(&root, [others]);
    });
}

// Goal: a waiter that becomes the first in its queue is woken, and acts for those behind it, though
// no byte was released. Method: the first is dropped while the second polls.
#[test]
fn one_that_becomes_the_first_is_called_if_it_watches() {
    bounded(Some(3), || {
        let root = root(2);
        let held = root.at(A).try_charge(Bytes(2)).unwrap();
        let mut first = root.at(A).charge_wait(Bytes(2));
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut first).poll(&mut context).is_pending());
        let other = root.clone();
        let ((), served) = beside(
            || drop(first),
            move || watch(&other, 1, |is_first| is_first),
        );
        assert!(served.is_none() && root.nr_waiting() == 0);
        finish(&root, [held]);
    });
}

// Goal: a forced charge to a group with a queue, which excludes no other, leaves no tokens beside
// the debt. Method: meanwhile the waiter gives up, and an uncharge wants to make its word live.
#[test]
fn debt_leaves_no_token_beside_one_who_gives_up() {
    bounded(Some(3), || {
        let root = root(2);
        let held = root.at(A).try_charge(Bytes(2)).unwrap();
        let mut waits = root.at(A).charge_wait(ONE);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut waits).poll(&mut context).is_pending());
        let (forced, held) = beside(
            || root.at(B).force_charge(Bytes(2)),
            move || {
                let mut held = held;
                drop(waits);
                held.at(A).shrink(ONE);
                held
            },
        );
        assert_eq!((root.debt(), root.usage_precise()), (ONE, Bytes(3)));
        assert_eq!(root.escrowed(), Bytes::ZERO);
        finish(&root, [held, forced]);
    });
}
