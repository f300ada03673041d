//! Throttling of direct reclaim: when it waits, for how long, and the wake-ups.

use super::tests::Scene;
use super::*;
use crate::sync::thread;

/// Longer than any test: a thread that waits that long was not woken.
const NEVER: Duration = Duration::from_secs(3600);

/// 64 inactive pages of a file; other reclaimers have isolated more than an eighth of them.
fn scene(isolated_max: Duration) -> (Scene, LruvecRef) {
    let mut scene = Scene::new(256);
    scene.reclaim.isolated_max = isolated_max;
    let root = scene.groups.root();
    (0..64).for_each(|page| assert_eq!(scene.fault(&root, page), None));
    scene.reclaim.drain_batches();
    let lruvec = scene.reclaim.lruvecs.of(&root).expect("the root's");
    lruvec.note_isolated(PageType::File, 9);
    (scene, lruvec)
}

fn by(scene: &Scene, actor: Actor, first_priority: Option<u32>) -> Outcome {
    scene.reclaim.shrink(&ScanControl {
        nr_to_reclaim: Pages(1),
        target: &scene.groups.root(),
        actor,
        first_priority,
        ignores_protection: false,
    })
}

#[test]
fn direct_reclaim_waits_while_too_many_pages_are_in_others_hands() {
    // Goal: a reclaimer waits while others have isolated too many pages, until they have settled.
    // Method: only a wake-up ends the wait; it is counted before it begins, and nothing is evicted
    // until the pages are settled.
    let (scene, lruvec) = scene(NEVER);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| by(&scene, Actor::Direct, None));
        let stats = scene.reclaim.stats();
        while stats.throttle_isolated.get() == 0 {
            assert!(!waiter.is_finished(), "it does not wait");
            thread::yield_now();
        }
        assert_eq!(stats.scanned(), 0);
        // Eight of 64 are not too many.
        lruvec.note_settled(PageType::File, 1);
        scene.reclaim.note_hands_empty(&lruvec);
        assert!(waiter.join().expect("no panic").nr_reclaimed > 0);
    });
    assert_eq!(scene.reclaim.stats().throttle_isolated.get(), 1);
    lruvec.note_settled(PageType::File, 8);
    scene.assert_nothing_is_left();
}

#[test]
fn a_pass_waits_once_and_looks_in_the_end_whatever_others_have() {
    // Goal: the wait is bounded, once in a pass, and costs no request its evictable pages. Method:
    // the others never settle; the pass frees at its last priority only. The background thread does
    // not wait, nor does a pass over anonymous pages, of which none is isolated.
    let (scene, lruvec) = scene(Duration::from_micros(1));
    let stats = scene.reclaim.stats();
    assert!(by(&scene, Actor::Background, None).nr_reclaimed > 0);
    assert_eq!(stats.throttle_isolated.get(), 0);
    let rounds = stats.rounds();
    assert!(by(&scene, Actor::Direct, None).nr_reclaimed > 0);
    assert_eq!(stats.throttle_isolated.get(), 1);
    let at_last = stats.rounds()[0] - rounds[0];
    assert!(at_last > 0, "all priorities were gone through");
    assert!(by(&scene, Actor::Requested, Some(0)).nr_reclaimed > 0);
    assert_eq!(stats.throttle_isolated.get(), 2);
    lruvec.note_settled(PageType::File, 9);
    assert!(by(&scene, Actor::Direct, None).nr_reclaimed > 0);
    assert_eq!(stats.throttle_isolated.get(), 2);
    scene.assert_nothing_is_left();
}

#[test]
fn a_thread_that_polls_futures_waits_for_no_other_reclaimer() {
    // Goal: no sleep in a poll. Method: others have isolated too many pages, and a wait would never
    // end; the pass frees at its last priority.
    let (scene, lruvec) = scene(NEVER);
    assert!(by(&scene, Actor::Polled, None).nr_reclaimed > 0);
    assert_eq!(scene.reclaim.stats().throttle_isolated.get(), 0);
    lruvec.note_settled(PageType::File, 9);
    scene.assert_nothing_is_left();
}

#[test]
fn who_has_found_nothing_is_woken_by_who_finds_much() {
    // Goal: a request without progress sleeps until another reclaimer makes some. Method: a sleep
    // that only a wake-up ends, beside passes that free every page they scan.
    let scene = Scene::new(256);
    let root = scene.groups.root();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| scene.reclaim.wait_for_progress(NEVER));
        let mut page = 0;
        while !waiter.is_finished() {
            scene.fault(&root, page);
            page += 1;
            assert_eq!(by(&scene, Actor::Direct, None).nr_reclaimed, 1);
            thread::yield_now();
        }
    });
    assert_eq!(scene.reclaim.stats().throttle_noprogress.get(), 1);
    // A pass that frees nothing wakes no thread, and a wait ends by itself.
    scene.reclaim.wait_for_progress(Duration::from_micros(1));
    assert_eq!(by(&scene, Actor::Direct, None).nr_reclaimed, 0);
    assert_eq!(scene.reclaim.stats().throttle_noprogress.get(), 2);
    scene.assert_nothing_is_left();
}

#[test]
fn a_request_that_waits_for_a_group_is_woken_when_the_group_is_removed() {
    // Goal: the counts of a removed group end, also under a thread that compares them with earlier
    // ones. Method: some of the group's pages were settled, and one is isolated, for which a thread
    // waits without end.
    let scene = Scene::new(256);
    let group = scene.group("removed");
    let lruvec = scene.reclaim.lruvecs.of(&group).expect("the group's");
    lruvec.note_isolated(PageType::File, 2);
    lruvec.note_settled(PageType::File, 1);
    thread::scope(|scope| {
        let wait = || {
            scene
                .reclaim
                .wait_for_arrival(&group, Want::Room, Some(0), NEVER)
        };
        let waiter = scope.spawn(wait);
        while scene.reclaim.stats().throttle_noprogress.get() == 0 {
            assert!(!waiter.is_finished(), "it does not wait");
            thread::yield_now();
        }
        scene.groups.remove(&group).expect("nothing is charged");
        scene.reclaim.reparent_group(&group);
        assert_eq!(waiter.join().expect("no panic"), (Arrival::Settled, 0));
    });
    lruvec.note_settled(PageType::File, 1);
    scene.assert_nothing_is_left();
}
