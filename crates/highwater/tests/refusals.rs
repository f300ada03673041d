//! Promise: a charge that can have no room, or that waits behind one that is about to take it,
//! costs no other group anything; a group that was stopped leaves nothing behind.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use highwater::group::ChargeError;
use highwater::{Bytes, Charge, Group, Limits, Manager};

fn managed(grace: Duration) -> (Manager, Group) {
    let built = Manager::builder()
        .capacity(Bytes::mib(64))
        .frames(Bytes::ZERO)
        .grace(grace)
        .build();
    let hw = built.unwrap();
    let tenant = hw.root().child("tenant", Limits::max(Bytes(1000)));
    (hw, tenant.unwrap())
}

fn child(of: &Group, name: &str) -> Group {
    of.child(name, Limits::default()).unwrap()
}

/// Counts the groups that are told to stop.
fn counted(hw: &Manager) -> Arc<AtomicU32> {
    let told = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&told);
    hw.root()
        .on_exhausted(move |_| _ = counts.fetch_add(1, Ordering::Relaxed));
    told
}

// Symptom: beside a charge that had been woken and not polled yet, another one stopped queries
// although there was room.
#[test]
fn a_charge_behind_one_that_is_served_stops_no_group() {
    let (hw, tenant) = managed(Duration::from_millis(100));
    let large = child(&tenant, "a").charge(Bytes(700)).unwrap();
    let _small = child(&tenant, "b").charge(Bytes(300)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut waits = pin!(tenant.charge_async(Bytes(600)));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    drop(large);
    let told = counted(&hw);
    let refused = tenant.charge(Bytes(100)).unwrap_err();
    assert!(
        matches!(refused.refusal, ChargeError::Behind { .. }),
        "{refused}"
    );
    assert_eq!(told.load(Ordering::Relaxed), 0);
    assert!(matches!(
        waits.as_mut().poll(&mut context),
        Poll::Ready(Ok(_))
    ));
}

// Symptom: a charge above the maximum stopped groups if another one waited.
#[test]
fn a_charge_that_never_fits_stops_no_group() {
    let (hw, tenant) = managed(Duration::from_millis(100));
    let query = child(&tenant, "q");
    let _held = query.charge(Bytes(1000)).unwrap();
    let told = counted(&hw);
    let mut context = Context::from_waker(Waker::noop());
    let mut waits = pin!(tenant.charge_async(Bytes(10)));
    for is_waiting in [false, true] {
        if is_waiting {
            assert!(waits.as_mut().poll(&mut context).is_pending());
        }
        let told_before = told.load(Ordering::Relaxed);
        for (group, bytes) in [(&tenant, 1001), (&tenant, u64::MAX), (&query, 1001)] {
            let refused = group.charge(Bytes(bytes)).unwrap_err();
            match refused.refusal {
                ChargeError::OverMax { group, max, .. } => {
                    assert_eq!((group.to_string().as_str(), max), ("/tenant", Bytes(1000)));
                }
                other => panic!("{other}"),
            }
        }
        assert_eq!(told.load(Ordering::Relaxed), told_before, "{is_waiting}");
    }
}

// Symptom: where a group below the maximum that never admits a charge was full, the charge stopped
// groups there before it was refused, or waited for ever.
// Goal: it is refused at once, by that maximum. Method: a parent with a maximum below that of its
// child, which has no room.
#[test]
fn a_charge_that_never_fits_above_a_full_group_stops_none_and_does_not_wait() {
    let (hw, parent) = managed(Duration::from_millis(100));
    let tenant = parent.child("c", Limits::max(Bytes(1600))).unwrap();
    let query = child(&tenant, "q");
    let _held = query.charge(Bytes(800)).unwrap();
    let told = counted(&hw);
    let mut context = Context::from_waker(Waker::noop());
    let refused = |refusal: ChargeError| match refusal {
        ChargeError::OverMax { group, max, .. } => (group.to_string(), max),
        other => panic!("{other}"),
    };
    let by_parent = |max| ("/tenant".to_owned(), Bytes(max));
    let never = tenant.charge(Bytes(1200)).unwrap_err();
    assert_eq!(refused(never.refusal), by_parent(1000));
    let mut never = pin!(tenant.charge_async(Bytes(1200)));
    let Poll::Ready(Err(never)) = never.as_mut().poll(&mut context) else {
        panic!("it waits for ever");
    };
    assert_eq!(refused(never.refusal), by_parent(1000));
    assert_eq!(told.load(Ordering::Relaxed), 0);
}

// Symptom: after the last handle of the manager, a charge that outlived it counted groups as told,
// which no handler was told of, and waited for them.
// Goal: none is selected. Method: only charges are left of two groups, and one grows above the
// maximum of both.
#[test]
fn a_charge_that_outlives_the_handles_selects_no_victim() {
    let (hw, tenant) = managed(Duration::from_millis(100));
    let told = counted(&hw);
    let charged = |name| child(&tenant, name).charge(Bytes(500)).unwrap();
    let (mut grows, other) = (charged("a"), charged("b"));
    drop((hw, tenant));
    let failed = grows.grow(Bytes(1)).unwrap_err();
    assert_eq!((failed.victims, failed.dying), (0, 0), "{failed}");
    assert_eq!(told.load(Ordering::Relaxed), 0);
    drop(other);
}

/// Data of a group that says when it is dropped.
struct Flag(Arc<AtomicBool>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// Symptom: the data of a group that was stopped stayed until the next selection of a victim, and
// were dropped under its lock.
#[test]
fn a_group_that_was_stopped_leaves_nothing_behind() {
    let (hw, tenant) = managed(Duration::from_millis(100));
    let query = child(&tenant, "q");
    let is_dropped = Arc::new(AtomicBool::new(false));
    assert!(query.set_data(Flag(Arc::clone(&is_dropped))).is_ok());
    let held: Arc<Mutex<Option<Charge>>> = Arc::default();
    *held.lock().unwrap() = Some(query.charge(Bytes(900)).unwrap());
    let gives = Arc::clone(&held);
    hw.root()
        .on_exhausted(move |_| drop(gives.lock().unwrap().take()));
    drop(tenant.charge(Bytes(500)).unwrap());
    query.remove().unwrap();
    drop(query);
    assert!(is_dropped.load(Ordering::Relaxed));
}

// Symptom: after `exit_oom_victim` of a group, those below it still counted as being stopped.
#[test]
fn a_group_that_is_not_stopped_can_be_chosen_with_those_below_it() {
    let (hw, tenant) = managed(Duration::from_secs(3600));
    let middle = child(&tenant, "middle");
    let query = child(&middle, "q");
    let _held = query.charge(Bytes(1000)).unwrap();
    let told = counted(&hw);
    middle.mark_oom_victim();
    assert!(tenant.charge(Bytes(500)).is_err());
    assert_eq!(told.load(Ordering::Relaxed), 0, "it is being stopped");
    middle.exit_oom_victim();
    assert!(tenant.charge(Bytes(500)).is_err());
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[test]
fn a_grace_without_an_end_is_long() {
    let (hw, tenant) = managed(Duration::MAX);
    let query = child(&tenant, "q");
    let held = Arc::new(Mutex::new(Some(query.charge(Bytes(900)).unwrap())));
    hw.root()
        .on_exhausted(move |_| drop(held.lock().unwrap().take()));
    drop(tenant.charge(Bytes(500)).unwrap());
    let other = child(&tenant, "other");
    let held = Arc::new(Mutex::new(Some(other.charge(Bytes(900)).unwrap())));
    other.on_reclaim(move |_| {
        held.lock()
            .unwrap()
            .take()
            .map_or(Bytes::ZERO, |it| it.bytes())
    });
    drop(tenant.charge(Bytes(500)).unwrap());
}

/// Creates a group when it wakes.
struct Creates(Mutex<Option<Group>>, AtomicBool);

impl Wake for Creates {
    fn wake(self: Arc<Self>) {
        if let Some(parent) = self.0.lock().unwrap().take() {
            drop(child(&parent, "made by a waker"));
        }
        self.1.store(true, Ordering::Relaxed);
    }
}

// Symptom: a forced charge that was undone woke a waiting one under the tree's lock, so that a
// waker which changed the tree waited for itself.
#[test]
fn wakers_run_under_no_lock_of_the_tree() {
    let (sender, done) = mpsc::channel();
    thread::spawn(move || {
        let (hw, parent) = managed(Duration::from_millis(100));
        let tenant = parent.child("c", Limits::max(Bytes(100))).unwrap();
        let _full = tenant.charge(Bytes(100)).unwrap();
        let _most = child(&parent, "d").charge(Bytes(890)).unwrap();
        let creates = Arc::new(Creates(Mutex::default(), AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&creates));
        let mut waits = pin!(tenant.charge_async(Bytes(50)));
        let mut context = Context::from_waker(&waker);
        for _ in 0..3 {
            assert!(waits.as_mut().poll(&mut context).is_pending());
        }
        *creates.0.lock().unwrap() = Some(hw.root());
        drop(tenant.force_charge(Bytes(100)));
        assert!(
            creates.1.load(Ordering::Relaxed),
            "its waker has changed the tree"
        );
        sender.send(()).unwrap();
    });
    let waited = done.recv_timeout(Duration::from_secs(30));
    assert_eq!(waited, Ok(()), "it waits for itself");
}
