//! The promise: memory that a program allocates elsewhere is charged at once, by force, or by
//! waiting, and moves between groups, with every page accounted for.

#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use highwater::group::ChargeError;
use highwater::{Access, Bytes, Charge, ChargeWait, Group, Limits, Manager, Pages};
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

/// Counts the calls of a waker.
#[derive(Default)]
struct Calls(AtomicU32);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A charge that waits, polled until it asks for no other poll.
struct Waiting {
    wait: ChargeWait,
    calls: Arc<Calls>,
}

impl Waiting {
    fn new(wait: ChargeWait) -> Self {
        let calls = Arc::default();
        let mut waiting = Self { wait, calls };
        while {
            assert!(waiting.poll().is_pending(), "there is no room");
            waiting.is_called()
        } {}
        waiting
    }

    fn poll(&mut self) -> Poll<<ChargeWait as Future>::Output> {
        let waker = Waker::from(Arc::clone(&self.calls));
        Pin::new(&mut self.wait).poll(&mut Context::from_waker(&waker))
    }

    /// Returns whether its waker was called since the last time.
    fn is_called(&self) -> bool {
        self.calls.0.swap(0, Ordering::Relaxed) > 0
    }
}

/// A full tenant of 1,000 bytes with two queries, one of which holds everything.
struct Full {
    hw: Manager,
    tenant: Group,
    query: Group,
    sibling: Group,
    held: Option<Charge>,
}

impl Full {
    fn new() -> Self {
        let builder = Manager::builder().capacity(Bytes(1200));
        let hw = builder.frames(Bytes(0)).build().unwrap();
        let tenant = hw.root().child("tenant", Limits::max(Bytes(1000))).unwrap();
        let [query, sibling] =
            ["query", "sibling"].map(|name| tenant.child(name, Limits::default()).unwrap());
        let held = Some(query.charge(Bytes(1000)).unwrap());
        Self {
            hw,
            tenant,
            query,
            sibling,
            held,
        }
    }

    fn held(&mut self) -> &mut Charge {
        self.held.as_mut().unwrap()
    }
}

/// A way in which 200 bytes of room come about.
type Way = (&'static str, fn(&mut Full));

const WAYS: [Way; 9] = [
    ("drop", |full| full.held = None),
    ("shrink", |full| full.held().shrink(Bytes(200))),
    ("split", |full| drop(full.held().split(Bytes(200)))),
    ("transfer", |full| {
        let root = full.hw.root();
        _ = full.held().transfer(&root, Bytes(200)).unwrap().disown();
    }),
    ("uncharge", |full| {
        let bytes = full.held.take().unwrap().disown();
        full.query.uncharge(bytes - Bytes(800));
    }),
    ("after the removal", |full| {
        full.query.remove().unwrap();
        full.held().shrink(Bytes(200));
    }),
    ("set_max", |full| full.tenant.set_max(Bytes(1200)).unwrap()),
    ("set_limits", |full| {
        let limits = Limits::max(Bytes::MAX);
        full.tenant.set_limits(limits).unwrap();
    }),
    ("debt", |full| {
        // Pays the debt first.
        let _stays = full.tenant.force_charge(Bytes(100)).disown();
        full.held().shrink(Bytes(300));
    }),
];

// Goal: a charge that waits is called by every way in which room comes about, and has the room
// then; it stays behind by those that make none. Method: each way at a full tenant, after moves
// inside the tenant.
#[test]
fn every_way_to_make_room_calls_the_charge_that_waits() {
    for (name, way) in WAYS {
        let mut full = Full::new();
        let mut waiting = Waiting::new(full.sibling.charge_async(Bytes(200)));
        let sibling = full.sibling.clone();
        let mut moved = full.held().transfer(&sibling, Bytes(100)).unwrap();
        let query = full.query.clone();
        let back = moved.transfer(&query, Bytes(100)).unwrap();
        full.held().merge(back).unwrap();
        assert!(
            waiting.poll().is_pending(),
            "{name}: nothing was given back"
        );
        waiting.is_called();
        way(&mut full);
        assert!(waiting.is_called(), "{name}: it was not called");
        let Poll::Ready(granted) = waiting.poll() else {
            panic!("{name}: there is room")
        };
        assert_eq!(granted.unwrap().bytes(), Bytes(200), "{name}");
        assert_eq!(full.tenant.nr_waiting(), 0);
    }
}

// Goal: the same for the capacity, and for the end of a charge that waits before it; a smaller
// maximum refuses those that can never fit, and calls them. Method: as above, at the root; two
// charges that wait at the tenant.
#[test]
fn a_larger_capacity_and_a_charge_that_gives_up_let_the_next_one_proceed() {
    let full = Full::new();
    let rest = full.hw.root().charge(Bytes(200)).unwrap();
    let mut waiting = Waiting::new(full.hw.root().charge_async(Bytes(300)));
    full.hw.set_capacity(Bytes(1499)).unwrap();
    assert!(waiting.poll().is_pending(), "one byte is missing");
    waiting.is_called();
    full.hw.set_capacity(Bytes(1500)).unwrap();
    assert!(waiting.is_called());
    let Poll::Ready(Ok(granted)) = waiting.poll() else {
        panic!("there is room")
    };
    drop((granted, rest));

    let mut full = Full::new();
    let large = Waiting::new(full.sibling.charge_async(Bytes(900)));
    let mut small = Waiting::new(full.sibling.charge_async(Bytes(200)));
    full.held().shrink(Bytes(200));
    assert!(small.poll().is_pending(), "the larger one is first");
    small.is_called();
    drop(large);
    assert!(small.is_called());
    assert!(matches!(small.poll(), Poll::Ready(Ok(_))));
    let mut never = Waiting::new(full.tenant.charge_async(Bytes(500)));
    assert!(full.tenant.set_max(Bytes(499)).is_err());
    assert!(never.is_called());
    let Poll::Ready(Err(refused)) = never.poll() else {
        panic!("it never fits")
    };
    assert!(
        matches!(refused.refusal, ChargeError::OverMax { max, .. } if max == Bytes(499)),
        "{refused}"
    );
    assert_eq!(full.tenant.nr_waiting(), 0);
}

// Goal: the deadline of a charge that has room does not matter, nor does a full group to a charge
// of nothing; a charge that was not polled waits nowhere. Method: deadlines in the past, at a group
// with room and at a full one.
#[test]
fn a_charge_with_a_deadline_in_the_past_tries_once() {
    let full = Full::new();
    let now = Instant::now();
    let late = |group: &Group, bytes| group.charge_async(Bytes(bytes)).with_deadline(now);
    let root = full.hw.root();
    let rest = late(&root, 200).wait().unwrap();
    assert_eq!(root.usage_precise(), Bytes(1200));
    for group in [&full.query, &full.tenant, &root] {
        assert_eq!(late(group, 0).wait().unwrap().bytes(), Bytes(0));
        assert_eq!(group.charge(Bytes(0)).unwrap().bytes(), Bytes(0));
        let refused = late(group, 1).wait().unwrap_err();
        let is_late = matches!(refused.refusal, ChargeError::DeadlinePassed { .. });
        assert!(is_late && refused.attempts == 1, "{refused}");
        let unpolled = group.charge_async(Bytes(1));
        assert_eq!(group.nr_waiting(), 0);
        drop(unpolled);
    }
    drop(rest);
    drop(root.charge(Bytes(200)).unwrap());
}

#[test]
fn a_program_that_uncharges_twice_does_not_disable_reclaim() {
    // Goal: the panic that reports a wrong count of one group leaves nothing in flight: refusals
    // elsewhere are proven, and a full root evicts. Method: uncharge bytes of one group twice, and
    // charge another up to the root's maximum, which takes back what the first has parked. Then
    // ask for too much, and read more pages than fit.
    for spilled in [Bytes::ZERO, Bytes::kib(300)] {
        let hw = manager(256);
        let (a, b) = (group(&hw, "a", 256), group(&hw, "b", 256));
        a.try_charge_disowned(Bytes(600)).unwrap();
        a.uncharge(Bytes(600));
        let panics = |act: &dyn Fn()| catch_unwind(AssertUnwindSafe(act)).is_err();
        let all = || b.try_charge(Pages(256).bytes()).map(drop);
        match spilled {
            // Parked: noticed by the thread that takes it back.
            Bytes::ZERO => {
                a.uncharge(Bytes(600));
                assert!(panics(&|| all().unwrap()));
            }
            spilled => assert!(panics(&|| a.uncharge(spilled))),
        }
        if let Err(failed) = all() {
            let refusal = &failed.refusal;
            assert!(matches!(refusal, ChargeError::OverMax { .. }), "{failed}");
        }
        let (_file, map) = mapped(&hw, &TestFile::new(512), Access::ReadOnly);
        for page in 0..512 {
            assert_eq!(map.read(&hw.enter(), page).unwrap().len(), 4096);
        }
    }
}
