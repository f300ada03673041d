//! The promise: when memory is exhausted, no group is stopped needlessly: not while another one is
//! being stopped, not against the embedder's settings, and waiting is bounded.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

mod support;

use std::iter;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use highwater::units::OomScoreAdj;
use highwater::victim::Policy;
use highwater::{Charge, Group, Limits, Manager, Pages};
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
    // marked gives back when the request waits; the handler must not be called. The request waits
    // some milliseconds. A round in which the machine let the other thread run later proves nothing
    // and is repeated, for a minute: an emulated machine of many CPUs is seldom in time.
    const TIME: Duration = Duration::from_secs(60);
    let first = Instant::now();
    let mut rounds = iter::repeat(()).take_while(|()| first.elapsed() < TIME);
    let was_in_time = rounds.any(|()| {
        let (hw, groups, held) = crowded();
        let told = taking(&hw, &held);
        groups[2].mark_oom_victim();
        let (stopping, waited) = (hw.clone(), waits(&hw));
        let later = Arc::clone(&held);
        let stopping = thread::spawn(move || {
            while waits(&stopping) == waited {
                thread::yield_now();
            }
            later.lock().unwrap()[2] = None;
            Instant::now()
        });
        let begun = Instant::now();
        let work = hw.root().charge(Pages(100).bytes()).unwrap();
        let in_time = stopping.join().unwrap() - begun < Duration::from_millis(6);
        if in_time {
            assert_eq!(*told.lock().unwrap(), [""; 0]);
            assert_eq!(hw.snapshot().counter("oom_kill"), 0);
        }
        groups[2].exit_oom_victim();
        assert!(!groups[2].is_oom_victim());
        drop(work);
        held.lock().unwrap().clear();
        assert_empty(&hw);
        in_time
    });
    assert!(was_in_time, "no round of {TIME:?} was in time");
}

#[test]
fn waiting_for_a_group_that_gives_nothing_back_has_an_end() {
    // Goal: a mark that is never followed by a release costs a pause, not a hang, and no more
    // victims than needed. Method: the largest is marked and keeps its memory, the next is
    // unkillable; the third is told, once. Then all are marked: the error says how many were waited
    // for.
    let (hw, groups, held) = crowded();
    let told = taking(&hw, &held);
    groups[0].mark_oom_victim();
    groups[1].set_oom_score_adj(OomScoreAdj::UNKILLABLE);
    let work = hw.root().charge(Pages(100).bytes()).unwrap();
    assert_eq!(*told.lock().unwrap(), ["g2"]);
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
