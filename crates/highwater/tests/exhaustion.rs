//! The promise: when memory is exhausted, no group is stopped needlessly: not while another one is
//! being stopped, not against the embedder's settings, and waiting is bounded.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use highwater::units::OomScoreAdj;
use highwater::victim::Policy;
use highwater::{Bytes, Charge, Group, Limits, Manager, Pages};
use support::{assert_empty, manager};

/// The charges of each group.
type Held = Arc<Mutex<Vec<Option<Charge>>>>;

/// Creates a manager of 512 pages and three groups that fill it but for 32; their charges can be
/// taken.
fn crowded() -> (Manager, Vec<Group>, Held) {
    let hw = manager(512);
    let root = hw.root();
    let groups = ["g0", "g1", "g2"].map(|name| root.child(name, Limits::default()).unwrap());
    let charges = [180, 160, 140].iter().zip(&groups);
    let charges = charges.map(|(pages, group)| Some(group.charge(Pages(*pages).bytes()).unwrap()));
    let held = Arc::new(Mutex::new(charges.collect()));
    (hw, groups.to_vec(), held)
}

/// Sets a handler that drops a victim's charge at once; returns the names of the victims.
fn taking(hw: &Manager, held: &Held) -> Arc<Mutex<Vec<String>>> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let (handler_held, handler_told) = (Arc::clone(held), Arc::clone(&told));
    hw.root().on_exhausted(move |victim| {
        let name = victim.group().name().to_owned();
        let at: usize = name[1..].parse().unwrap();
        handler_held.lock().unwrap()[at] = None;
        handler_told.lock().unwrap().push(name);
    });
    told
}

/// Returns how often requests have waited.
fn waits(hw: &Manager) -> u64 {
    hw.snapshot().counter("throttle_noprogress")
}

#[test]
fn a_group_that_is_being_stopped_is_waited_for() {
    // Goal: no group is stopped while memory is about to come back. Method: a small group that is
    // marked gives back while a charge waits, under a grace period that never ends; polls alone.
    // The handler must not be called.
    let hw = accounting();
    let [large, small] = ["large", "small"].map(|name| child(&hw.root(), name));
    let told = recorded(&hw);
    let _kept = large.charge(Bytes::mib(6)).unwrap();
    let held = small.charge(Bytes::mib(4)).unwrap();
    small.mark_oom_victim();
    let mut waits = pin!(hw.root().charge_async(Bytes::mib(3)));
    let mut context = Context::from_waker(Waker::noop());
    let mut poll = || waits.as_mut().poll(&mut context);
    assert!((0..100).all(|_| poll().is_pending()));
    drop(held);
    let Poll::Ready(outcome) = poll() else {
        panic!("there is room");
    };
    drop(outcome.unwrap());
    assert_eq!(*told.lock().unwrap(), [""; 0]);
    assert_eq!(hw.snapshot().counter("oom_kill"), 0);
    small.exit_oom_victim();
    assert!(!small.is_oom_victim());
}

#[test]
fn waiting_for_a_group_that_gives_nothing_back_has_an_end() {
    // Goal: a mark that is never followed by a release costs a pause, not a hang, and no more
    // victims than needed. Method: the largest is marked and keeps its memory, the next is
    // unkillable; the third is told, once, and after most of the sixteen waits that a request makes
    // in vain. Then all are marked: the error says how many were waited for.
    let (hw, groups, held) = crowded();
    let told = taking(&hw, &held);
    groups[0].mark_oom_victim();
    groups[1].set_oom_score_adj(OomScoreAdj::UNKILLABLE);
    let waited = waits(&hw);
    let work = hw.root().charge(Pages(100).bytes()).unwrap();
    assert_eq!(*told.lock().unwrap(), ["g2"]);
    assert!(waits(&hw) - waited >= 10, "{} waits", waits(&hw) - waited);
    assert_eq!(held.lock().unwrap().iter().flatten().count(), 2);
    groups[1].mark_oom_victim();
    let failed = hw.root().charge(Pages(100).bytes()).unwrap_err();
    assert_eq!((failed.victims, failed.dying), (0, 2), "{failed}");
    assert!(
        failed.to_string().contains("2 others waited for"),
        "{failed}"
    );
    drop(work);
    held.lock().unwrap().clear();
    assert_empty(&hw);
}

#[test]
fn the_policy_and_adjustments_decide_who_is_told() {
    // Goal: settings affect the selection at run time. Method: a floor above all but one; an
    // adjustment of a tenth of the capacity, 51 pages, which outweighs 20 and not 100.
    let (hw, groups, held) = crowded();
    let told = taking(&hw, &held);
    groups[1].set_oom_score_adj(OomScoreAdj::clamped(100));
    let work = hw.root().charge(Pages(150).bytes()).unwrap();
    assert_eq!(*told.lock().unwrap(), ["g1"]);
    hw.set_victim_policy(Policy {
        floor: Pages(170).bytes(),
        ..Policy::default()
    });
    groups[2].set_oom_score_adj(OomScoreAdj::MAX);
    let more = hw.root().charge(Pages(150).bytes()).unwrap();
    assert_eq!(*told.lock().unwrap(), ["g1", "g0"]);
    assert!(
        hw.root().charge(Pages(150).bytes()).is_err(),
        "the last is too small"
    );
    drop((work, more));
    held.lock().unwrap().clear();
    assert_empty(&hw);
}

#[test]
fn a_group_that_one_request_has_told_is_not_told_again_by_the_next() {
    // Goal: requests tell one victim together, not one each, unless it had its grace period.
    // Method: a victim that gives nothing back, and no other; two requests within a grace period
    // that never ends, and one after a grace period that has.
    for (grace, told_by_second) in [(Duration::from_secs(3600), 0), (Duration::ZERO, 1)] {
        let builder = Manager::builder().capacity(Pages(512).bytes());
        let hw = builder.grace(grace).build().unwrap();
        let group = hw.root().child("g0", Limits::default()).unwrap();
        let held = group.charge(Pages(400).bytes()).unwrap();
        hw.root().on_exhausted(|_| ());
        let [first, second] = [(); 2].map(|()| hw.root().charge(Pages(200).bytes()).unwrap_err());
        assert_eq!((first.victims, first.dying), (1, 0), "{first}");
        assert_eq!(second.victims, told_by_second, "{second}");
        assert_eq!(second.dying, 1 - told_by_second, "{second}");
        group.exit_oom_victim();
        let third = hw.root().charge(Pages(200).bytes()).unwrap_err();
        assert_eq!((third.victims, third.dying), (1, 0), "it goes on: {third}");
        drop(held);
        assert_empty(&hw);
    }
}

/// Sets a group's handler that records its name and the victim's path, and drops the victim's
/// charge.
fn recording(group: &Group, name: &'static str, told: &Arc<Mutex<Vec<String>>>, held: &Held) {
    let (told, held) = (Arc::clone(told), Arc::clone(held));
    group.on_exhausted(move |victim| {
        told.lock()
            .unwrap()
            .push(format!("{name}: {}", victim.group().path()));
        let at: usize = victim.group().name()[1..].parse().unwrap();
        held.lock().unwrap()[at] = None;
    });
}

// Goal: a victim is told to the handler of its nearest ancestor that has one, and no group is
// selected that has none, however much it uses. Method: two engines with handlers and a group
// without; requests at the root, at an engine and at the group; then the root gets a handler, and
// an engine is removed.
#[test]
fn each_subtree_has_a_handler_of_its_own() {
    let hw = manager(512);
    let root = hw.root();
    let child = |group: &Group, name| group.child(name, Limits::default()).unwrap();
    let (one, two) = (child(&root, "one"), child(&root, "two"));
    let groups = [
        child(&root, "g0"),
        child(&one, "g1"),
        child(&two, "g2"),
        child(&two, "g3"),
    ];
    let held: Held = Arc::default();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let fill = |pages: [u64; 4]| {
        held.lock().unwrap().clear();
        // Those that were told before gave back everything.
        groups.iter().for_each(Group::exit_oom_victim);
        let charges = groups.iter().zip(pages);
        let charges = charges.map(|(group, pages)| group.try_charge(Pages(pages).bytes()).ok());
        *held.lock().unwrap() = charges.collect();
    };
    let tell = |group: &Group| {
        let charged = group.charge(Pages(40).bytes());
        (charged.is_ok(), std::mem::take(&mut *told.lock().unwrap()))
    };
    fill([200, 100, 120, 80]);
    assert_eq!(tell(&root), (false, vec![]), "there is no handler");
    recording(&one, "of one", &told, &held);
    recording(&two, "of two", &told, &held);
    assert_eq!(
        tell(&root),
        (true, vec!["of two: /two/g2".into()]),
        "the largest but g0"
    );
    fill([200, 120, 100, 80]);
    assert_eq!(tell(&root), (true, vec!["of one: /one/g1".into()]));
    two.set_max(Pages(200).bytes()).unwrap();
    fill([100, 200, 110, 90]);
    assert_eq!(
        tell(&two),
        (true, vec!["of two: /two/g2".into()]),
        "only below the full group"
    );
    groups[0].set_max(Pages(210).bytes()).unwrap();
    fill([200, 100, 100, 80]);
    assert_eq!(tell(&groups[0]), (false, vec![]), "no handler can stop it");
    recording(&root, "of all", &told, &held);
    assert_eq!(tell(&groups[0]), (true, vec!["of all: /g0".into()]));
    fill([100, 200, 100, 80]);
    assert_eq!(
        tell(&root),
        (true, vec!["of one: /one/g1".into()]),
        "the nearest"
    );
    fill([90, 200, 110, 80]);
    groups[1].remove_when_unused();
    one.remove().unwrap();
    assert_eq!(
        tell(&root).1,
        ["of two: /two/g2"],
        "g1 is gone, its charge is the root's"
    );
    held.lock().unwrap().clear();
    assert_empty(&hw);
}

// Goal: two engines in one program do not replace each other's handlers, and a removed engine's
// handler is dropped with what it owns.
#[test]
fn a_removed_groups_handler_is_dropped() {
    let hw = manager(64);
    let engine = hw.root().child("engine", Limits::default()).unwrap();
    let owned = Arc::new(());
    for _ in 0..2 {
        let owned = Arc::clone(&owned);
        engine.on_exhausted(move |_| _ = &owned);
    }
    assert_eq!(
        Arc::strong_count(&owned),
        2,
        "the former handler is dropped"
    );
    engine.remove().unwrap();
    assert_eq!(Arc::strong_count(&owned), 1);
    let late = Arc::clone(&owned);
    engine.on_exhausted(move |_| _ = &late);
    assert_eq!(Arc::strong_count(&owned), 1, "a removed group keeps none");
}

/// A manager of 10 MiB that only accounts, in which a stopping group has an hour.
fn accounting() -> Manager {
    let builder = Manager::builder().capacity(Bytes::mib(10));
    let builder = builder.frames(Bytes(0)).grace(Duration::from_secs(3600));
    builder.build().unwrap()
}

fn child(parent: &Group, name: &str) -> Group {
    parent.child(name, Limits::default()).unwrap()
}

/// Sets a handler of the root that records the names of victims.
fn recorded(hw: &Manager) -> Arc<Mutex<Vec<String>>> {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let tells = Arc::clone(&told);
    hw.root()
        .on_exhausted(move |victim| tells.lock().unwrap().push(victim.group().name().to_owned()));
    told
}

// Goal: a group begins with the adjustment of the group above, and keeps it whatever that is set to
// later; the lowest excludes it from selection, also if it uses everything. Method: three levels,
// made before and after settings at both ends and one inside; then requests until no group is left.
#[test]
fn an_adjustment_is_inherited_at_creation_only() {
    let hw = accounting();
    let tenant = child(&hw.root(), "tenant");
    let [low, high, less] = [-1001, 1001, -100].map(OomScoreAdj::clamped);
    let before = child(&tenant, "before");
    tenant.set_oom_score_adj(low);
    let spared = child(&tenant, "spared");
    let below = child(&spared, "below");
    tenant.set_oom_score_adj(high);
    let after = child(&tenant, "after");
    spared.set_oom_score_adj(less);
    let last = child(&spared, "last");
    let all = [&hw.root(), &tenant, &before, &spared, &below, &after, &last];
    let expected = [0, 1000, 0, -100, -1000, 1000, -100];
    assert_eq!(all.map(|group| group.oom_score_adj().get()), expected);
    let told = recorded(&hw);
    // In thousandths of 10 MiB: 700 - 1000, 5 + 1000, 150 - 100, and 110.
    let sizes = [(&below, 7168), (&after, 50), (&last, 1536), (&before, 1126)];
    let _held = sizes.map(|(group, kib)| group.charge(Bytes::kib(kib)).unwrap());
    let failed = hw.root().charge(Bytes::mib(5)).unwrap_err();
    assert_eq!(*told.lock().unwrap(), ["after", "before", "last"]);
    assert_eq!((failed.victims, failed.dying), (3, 0));
}

// Goal: a waiting charge that looks for memory stops one group until that has given everything
// back; memory that it hands to another group is given back by it. Method: a victim that drops a
// part, one that hands its rest on, and the heir, which is told then; polls alone, and a grace
// period that never ends.
#[test]
fn a_victim_that_hands_its_memory_on_has_stopped() {
    let hw = accounting();
    let [first, heir] = ["first", "heir"].map(|name| child(&hw.root(), name));
    let told = recorded(&hw);
    let mut held = first.charge(Bytes::mib(6)).unwrap();
    let mut inherited = heir.charge(Bytes::mib(4)).unwrap();
    let mut waits = pin!(hw.root().charge_async(Bytes::mib(3)));
    let mut context = Context::from_waker(Waker::noop());
    let mut is_pending = || waits.as_mut().poll(&mut context).is_pending();
    assert!(is_pending());
    held.shrink(Bytes::mib(2));
    let part = held.transfer(&heir, Bytes::mib(4) - Bytes(1)).unwrap();
    inherited.merge(part).unwrap();
    assert!(is_pending() && is_pending());
    assert_eq!(*told.lock().unwrap(), ["first"], "it holds a byte still");
    inherited
        .merge(held.transfer(&heir, Bytes(1)).unwrap())
        .unwrap();
    assert!(is_pending());
    assert_eq!(*told.lock().unwrap(), ["first", "heir"]);
    inherited.shrink(Bytes::mib(1));
    assert!(!is_pending());
}

/// Calls into the manager when it is dropped.
struct CallsBack(Group, Arc<AtomicU32>);

impl Drop for CallsBack {
    fn drop(&mut self) {
        let Self(group, calls) = self;
        drop(group.charge(Bytes(1)));
        drop(group.child("made by a drop", Limits::default()));
        group.on_exhausted(|_| ());
        group.on_reclaim(|_| Bytes(0));
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

// Goal: objects that a handler owns end with it, and may call any method then: no lock is held.
// Method: handlers of both kinds that are replaced, whose group is removed, or that come too late;
// their objects charge, create groups and set handlers.
#[test]
fn what_a_handler_owns_may_call_back_when_it_ends() {
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let hw = accounting();
        let calls = Arc::new(AtomicU32::new(0));
        let group = child(&hw.root(), "group");
        let other = child(&hw.root(), "other");
        let set = |group: &Group| {
            let own = || CallsBack(other.clone(), Arc::clone(&calls));
            let (exhausted, reclaim) = (own(), own());
            group.on_exhausted(move |_| _ = &exhausted);
            group.on_reclaim(move |_| Bytes(u64::from(reclaim.0.is_removed())));
        };
        let mut counts = Vec::new();
        let mut count = || counts.push(calls.swap(0, Ordering::Relaxed));
        set(&group);
        count();
        set(&group);
        count();
        group.remove().unwrap();
        count();
        set(&group);
        count();
        assert_eq!(counts, [0, 2, 2, 2]);
        ended.send(()).unwrap();
    });
    let waited = has_ended.recv_timeout(Duration::from_secs(30));
    assert_eq!(waited, Ok(()), "it waits for itself");
}

// Goal: a handler that panics leaves the manager as it was: the panic propagates in the charging
// thread, nothing is charged or queued, the victim counts as told, and the thread may ask again.
// Method: an immediate charge and one in the queue, each told of a group of its own; then a handler
// that gives back.
#[test]
fn a_handler_that_panics_can_be_called_again() {
    let hw = accounting();
    let queries = ["a", "b"].map(|name| child(&hw.root(), name));
    let held = [6, 4].map(Bytes::mib);
    let held = [0, 1].map(|at| Some(queries[at].charge(held[at]).unwrap()));
    hw.root().on_exhausted(|_| panic!("as told"));
    let root = hw.root();
    let at_once = catch_unwind(AssertUnwindSafe(|| root.charge(Bytes::mib(1)).is_ok()));
    assert!(at_once.is_err());
    queries[0].remove().unwrap();
    let in_line = || root.charge_async(Bytes::mib(1)).wait().is_ok();
    assert!(catch_unwind(AssertUnwindSafe(in_line)).is_err());
    let kills = queries.each_ref().map(|group| group.events().oom_kill);
    assert_eq!((kills, root.nr_waiting()), ([1, 1], 0));
    assert_eq!(root.usage_precise(), Bytes::mib(10));
    queries[1].exit_oom_victim();
    let held = Mutex::new(held);
    root.on_exhausted(move |victim| {
        assert_eq!(victim.group().name(), "b");
        held.lock().unwrap()[1] = None;
    });
    drop(root.charge(Bytes::mib(4)).unwrap());
    root.on_exhausted(|_| ());
    assert_eq!(root.usage_precise(), Bytes(0));
}
