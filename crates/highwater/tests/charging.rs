//! The promise: memory that a program allocates elsewhere is charged at once, by force, or by
//! waiting, and moves between groups, with every page accounted for.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

mod support;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use highwater::group::ChargeError;
use highwater::{Access, Bytes, ChargeWait, Group, Limits, Manager, Pages};
use support::{TestFile, assert_empty, manager, mapped};

fn group(hw: &Manager, name: &str, max: u64) -> Group {
    hw.root()
        .child(name, Limits::max(Pages(max).bytes()))
        .unwrap()
}

fn poll(wait: &mut ChargeWait) -> Poll<<ChargeWait as Future>::Output> {
    Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_charge_that_waits_takes_what_can_be_reclaimed_first() {
    // Goal: no charge waits for cached pages, and no group is stopped while there are any. Method:
    // a pool full of cached pages, and a handler that must not be called; then more than the pool
    // has.
    let hw = manager(64);
    hw.root()
        .on_exhausted(|victim| panic!("{victim:?} is told to stop"));
    let (_file, map) = mapped(&hw, &TestFile::new(256), Access::ReadOnly);
    for page in 0..256 {
        assert_eq!(map.read(&hw.enter(), page).unwrap().len(), 4096);
    }
    let charge = hw.root().charge_async(Pages(40).bytes()).wait().unwrap();
    assert_eq!(charge.bytes(), Pages(40).bytes());
    hw.root().on_exhausted(|_| ());
    let soon = Instant::now() + Duration::from_millis(30);
    let late = hw.root().charge_async(Pages(30).bytes()).wait_until(soon);
    let failed = late.unwrap_err();
    assert!(
        matches!(
            failed.refusal,
            ChargeError::DeadlinePassed { requested, max, .. }
                if requested == Pages(30).bytes() && max == Pages(64).bytes()
        ),
        "{failed}"
    );
    assert!(failed.to_string().contains("120 KiB"), "{failed}");
    let never = hw.root().charge_async(Pages(65).bytes()).wait();
    assert!(matches!(
        never.unwrap_err().refusal,
        ChargeError::OverMax { .. }
    ));
    hw.check_invariants();
}

#[test]
fn a_thread_that_waits_is_served_and_was_stalled() {
    // Goal: a waiting thread gets the room that another gives back, and the wait is pressure of the
    // group.
    let hw = manager(64);
    let full = group(&hw, "full", 8);
    let first = full.charge(Pages(8).bytes()).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| full.charge_async(Pages(5).bytes()).wait().unwrap());
        // Its attempts before it waits are pressure too, but short.
        while full.nr_waiting() == 0 || full.pressure().some.total_us < 5_000 {
            assert!(!waiting.is_finished(), "there is no room");
            thread::yield_now();
        }
        drop(first);
        assert_eq!(waiting.join().unwrap().bytes(), Pages(5).bytes());
    });
    let stalled = full.pressure().some.total_us;
    assert!(stalled >= 5_000);
    thread::sleep(Duration::from_millis(2));
    assert_eq!(full.pressure().some.total_us, stalled, "the wait has ended");
    assert_eq!(full.usage_precise(), Bytes::ZERO);
    assert_empty(&hw);
}

#[test]
fn a_task_that_waits_is_served_and_was_stalled() {
    // Goal: as above, without a thread. Method: polls by hand; one task gives up.
    let hw = manager(64);
    let full = group(&hw, "full", 8);
    let first = full.charge(Pages(8).bytes()).unwrap();
    let (mut one, mut two) = (
        full.charge_async(Pages(5).bytes()),
        full.charge_async(Pages(1).bytes()),
    );
    assert!(poll(&mut one).is_pending() && poll(&mut two).is_pending());
    assert_eq!(full.nr_waiting(), 2);
    thread::sleep(Duration::from_millis(5));
    drop(one);
    assert_eq!(full.nr_waiting(), 1);
    drop(first);
    let Poll::Ready(Ok(charge)) = poll(&mut two) else {
        panic!("there is room")
    };
    assert_eq!(
        (charge.bytes(), full.usage_precise()),
        (Pages(1).bytes(), Pages(1).bytes())
    );
    let stalled = full.pressure().some.total_us;
    assert!(stalled >= 5_000, "{stalled}");
    thread::sleep(Duration::from_millis(5));
    assert_eq!(
        full.pressure().some.total_us,
        stalled,
        "no charge waits any more"
    );
    drop(charge);
    assert_empty(&hw);
}

#[test]
fn forced_and_moved_charges_are_counted_where_they_are() {
    // Goal: force exceeds a maximum and is paid back first; a transfer reclaims at its destination,
    // or moves nothing.
    let hw = manager(64);
    let (small, large) = (group(&hw, "small", 4), group(&hw, "large", 32));
    let mut forced = small.force_charge(Pages(10).bytes());
    assert_eq!(
        (small.debt(), small.usage_precise()),
        (Pages(6).bytes(), Pages(10).bytes())
    );
    assert!(small.charge(Pages(1).bytes()).is_err());
    let file = hw
        .open_backing(TestFile::new(64), Access::ReadOnly)
        .unwrap();
    let map = hw.space(&large).map_file(&file, 0..64).unwrap();
    for page in 0..32 {
        assert_eq!(map.read(&hw.enter(), page).unwrap().len(), 4096);
    }
    assert_eq!(
        large.usage_precise(),
        Pages(32).bytes(),
        "full of cached pages"
    );
    let moved = forced.transfer(&large, Pages(7).bytes()).unwrap();
    assert_eq!(
        (forced.bytes(), moved.bytes()),
        (Pages(3).bytes(), Pages(7).bytes())
    );
    assert_eq!(
        (small.debt(), small.usage_precise()),
        (Bytes::ZERO, Pages(3).bytes())
    );
    assert!(large.usage_precise() <= Pages(32).bytes());
    let mut whole = large.charge(Pages(20).bytes()).unwrap();
    assert!(whole.transfer(&small, Pages(2).bytes()).is_err());
    assert_eq!(
        (whole.bytes(), small.usage_precise()),
        (Pages(20).bytes(), Pages(3).bytes())
    );
    drop((forced, moved, whole, map, file));
    assert_empty(&hw);
}
