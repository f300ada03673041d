//! Promise: a group that has given what it promised is asked again, a victim that has given
//! everything is told again, and a thread that is throttled holds up no other group; a transfer is
//! not throttled; a wait is one stall, however many looks it takes. Memory counts as given if the
//! group's usage fell by it, whatever becomes of the request.

mod support;

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use highwater::{
    Access, Bytes, Charge, ChargeWait, Group, Limits, Manager, ReclaimRequest, Throttling,
};
use support::{TestFile, mapped};

/// A manager of 16 MiB without frames.
fn without_frames(grace: Duration) -> Manager {
    Manager::builder()
        .capacity(Bytes::mib(16))
        .frames(Bytes::ZERO)
        .grace(grace)
        .build()
        .expect("without frames")
}

fn child(parent: &Group, name: &str) -> Group {
    let group = parent.child(name, Limits::default());
    group.expect("the name is free")
}

type Held = Arc<Mutex<Vec<Charge>>>;

/// Charges that a handler can drop.
fn hold(group: &Group, bytes: Bytes) -> Held {
    let charge = group.charge(bytes).expect("there is room");
    Arc::new(Mutex::new(vec![charge]))
}

fn refill(held: &Held, group: &Group, bytes: Bytes) {
    let charge = group.charge(bytes).expect("there is room");
    held.lock().expect("no panic").push(charge);
}

// Symptom: the end of a promise was looked at by later requests only. A group that had given, and
// used as much again, looked as if it had broken its promise: it was not asked, and another was
// stopped.
#[test]
fn a_group_that_kept_its_promise_is_asked_again() {
    let hw = without_frames(Duration::from_millis(50));
    let sort = child(&hw.root(), "sort");
    let held = hold(&sort, Bytes::mib(12));
    let (asked, own) = (Arc::new(AtomicU32::new(0)), Arc::clone(&held));
    let count = Arc::clone(&asked);
    sort.on_reclaim(move |request| {
        // The first time later, and then at once.
        if count.fetch_add(1, Ordering::Relaxed) > 0 {
            own.lock().expect("no panic").clear();
        }
        request.want
    });
    hw.root().on_exhausted(|victim| panic!("{victim:?}"));
    for is_late in [true, false] {
        asked.store(0, Ordering::Relaxed);
        let root = hw.root();
        let mut first = Box::pin(root.charge_async(Bytes::mib(8)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        held.lock().expect("no panic").clear();
        assert!(first.as_mut().poll(&mut context).is_ready());
        drop(first);
        refill(&held, &sort, Bytes::mib(12));
        if is_late {
            thread::sleep(Duration::from_millis(60));
        }
        let second = root.charge(Bytes::mib(8));
        drop(second.expect("the group was asked and gave"));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        refill(&held, &sort, Bytes::mib(12));
    }
    let count = |name| hw.snapshot().counter(name);
    assert_eq!(count("on_reclaim_late"), 0);
    assert!(count("on_reclaim_given") >= 4 * Bytes::mib(4).0);
}

// Symptom: where another request noticed that a group had kept its promise, the one that had asked
// took it for broken, and stopped a group.
#[test]
fn a_promise_that_another_request_saw_kept_counts() {
    let hw = without_frames(Duration::from_secs(3600));
    let root = hw.root();
    let tenant = root.child("tenant", Limits::max(Bytes::mib(12)));
    let tenant = tenant.expect("the name is free");
    let sort = child(&tenant, "sort");
    let charge = || sort.charge(Bytes::mib(1)).expect("there is room");
    let held: Held = Arc::new(Mutex::new((0..12).map(|_| charge()).collect()));
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    // Each time later.
    sort.on_reclaim(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Bytes::mib(1)
    });
    hw.root().on_exhausted(|victim| panic!("{victim:?}"));
    let mut first = Box::pin(root.charge_async(Bytes::mib(8)));
    let mut context = Context::from_waker(Waker::noop());
    for round in 1..=4 {
        // It looks for room once more before it asks again.
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert_eq!(asked.load(Ordering::Relaxed), round);
        drop(held.lock().expect("no panic").pop());
        let mut beside = Box::pin(tenant.charge_async(Bytes::mib(1 + u64::from(round))));
        assert!(beside.as_mut().poll(&mut context).is_pending());
    }
    assert!(first.as_mut().poll(&mut context).is_ready());
}

// Symptom: while a handler ran on after its deadline, other requests asked and stopped no other
// group: they tried again at once until it returned, and failed.
#[test]
fn a_handler_past_its_deadline_is_passed_over() {
    let hw = without_frames(Duration::from_millis(20));
    let root = hw.root();
    let [slow, other] = ["slow", "other"].map(|name| child(&root, name));
    let [slow_held, other_held] = [(&slow, 9), (&other, 6)].map(|(group, mib)| {
        // Room for 1 MiB is left.
        hold(group, Bytes::mib(mib))
    });
    let (called, is_called) = mpsc::channel();
    let (end, is_ended) = mpsc::channel::<()>();
    let is_ended = Mutex::new(is_ended);
    slow.on_reclaim(move |_| {
        called.send(()).expect("the test goes on");
        // Ends with the test.
        let _ = is_ended.lock().expect("no panic").recv();
        Bytes::ZERO
    });
    let own = Arc::clone(&other_held);
    other.on_reclaim(move |request| {
        own.lock().expect("no panic").clear();
        request.want
    });
    hw.root().on_exhausted(|victim| panic!("{victim:?}"));
    thread::scope(|scope| {
        let first = scope.spawn(|| root.charge(Bytes::mib(2)).is_ok());
        is_called.recv().expect("the slow group is asked first");
        thread::sleep(Duration::from_millis(40));
        let second = root.charge(Bytes::mib(3));
        drop(second.expect("the other group gives"));
        refill(&other_held, &other, Bytes::mib(6));
        let third = root.charge_async(Bytes::mib(3)).wait();
        drop(third.expect("and again"));
        drop(end);
        assert!(first.join().expect("no panic"));
    });
    drop(slow_held);
}

// Symptom: a victim that had given everything, and used as much again within its time, counted as
// one that was still stopping: the next request stopped another group, or failed.
#[test]
fn a_victim_that_gave_everything_is_told_again() {
    let hw = without_frames(Duration::from_secs(3600));
    let [large, small] = ["large", "small"].map(|name| child(&hw.root(), name));
    let held = hold(&large, Bytes::mib(12));
    let own = Arc::clone(&held);
    hw.root().on_exhausted(move |victim| {
        assert_eq!(victim.group().path(), "/large");
        own.lock().expect("no panic").clear();
    });
    let _beside = small.charge(Bytes::mib(1)).expect("there is room");
    for round in 0..3 {
        let charge = small.charge(Bytes::mib(8));
        drop(charge.unwrap_or_else(|error| panic!("round {round}: {error}")));
        refill(&held, &large, Bytes::mib(12));
    }
    assert_eq!(large.events().oom_kill, 3);
}

// Symptom: while a thread slept above its group's `high` in a page fault, requests of other groups
// waited for its page, and stopped no victim.
#[test]
fn a_thread_that_sleeps_above_high_holds_up_no_other_group() {
    let hw = Manager::builder()
        .capacity(Bytes::mib(16))
        .throttling(Throttling::Sleep)
        .build()
        .expect("a small manager");
    let limits = Limits {
        high: Bytes::mib(1),
        ..Limits::default()
    };
    let throttled = hw.root().child("throttled", limits).expect("free");
    let neighbour = child(&hw.root(), "neighbour");
    let held = Mutex::new(vec![throttled.force_charge(Bytes::mib(12))]);
    let told_at = Arc::new(Mutex::new(None));
    let at = Arc::clone(&told_at);
    hw.root().on_exhausted(move |_| {
        held.lock().expect("no panic").clear();
        at.lock()
            .expect("no panic")
            .get_or_insert_with(Instant::now);
    });
    const POOL_PAGES: u64 = 256;
    let (file, _map) = mapped(&hw, &TestFile::new(POOL_PAGES), Access::ReadOnly);
    let map = hw.space(&throttled).map_file(&file, 0..POOL_PAGES);
    let map = map.expect("the whole file");
    let begun = Instant::now();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            // One of these takes new tokens, and sleeps.
            for page in 0..POOL_PAGES {
                map.pin(page).map(drop).expect("there is room");
            }
            begun.elapsed()
        });
        let begun = Instant::now();
        while throttled.events().high == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never sleeps");
            thread::sleep(Duration::from_millis(1));
        }
        drop(neighbour.charge(Bytes::mib(8)).expect("a victim gives way"));
        let told_at = told_at.lock().expect("no panic").expect("it was told");
        let slept = sleeper.join().expect("no panic");
        assert!(
            told_at - begun < slept,
            "{:?}, slept {slept:?}",
            told_at - begun
        );
    });
}

// Symptom: a debug build panicked where a fault waited for a promise, after as many waits as it has
// attempts.
#[test]
fn a_fault_waits_for_a_promise() {
    let hw = Manager::builder()
        .capacity(Bytes::mib(16))
        .grace(Duration::from_secs(60))
        .build()
        .expect("a small manager");
    let tenant = hw.root().child("tenant", Limits::max(Bytes::mib(8)));
    let tenant = tenant.expect("the name is free");
    let [sort, scan] = ["sort", "scan"].map(|name| child(&tenant, name));
    let held = hold(&sort, Bytes::mib(8));
    sort.on_reclaim(move |request: &ReclaimRequest| {
        let held = Arc::clone(&held);
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            held.lock().expect("no panic").clear();
        });
        request.want
    });
    let (file, _map) = mapped(&hw, &TestFile::new(64), Access::ReadOnly);
    let map = hw.space(&scan).map_file(&file, 0..64).expect("64 pages");
    map.read(&hw.enter(), 9).map(drop).expect("the group gives");
}

// Symptom: moving a result from a query to its tenant was throttled, though the tenant's usage
// stayed as it was.
#[test]
fn a_transfer_is_not_throttled() {
    let hw = without_frames(Duration::from_millis(50));
    let limits = Limits {
        high: Bytes::mib(1),
        ..Limits::default()
    };
    let tenant = hw.root().child("tenant", limits).expect("free");
    let query = child(&tenant, "query");
    let mut charge = query.charge(Bytes::mib(2)).expect("there is room");
    let high = tenant.events().high;
    assert!(high > 0 && !charge.throttle_delay().is_zero());
    let result = charge.transfer(&tenant, Bytes::mib(1)).expect("room");
    assert!(result.throttle_delay().is_zero());
    assert_eq!(tenant.events().high, high);
}

// Symptom: a wait of a second was recorded as ten stalls of a tenth, so that no alarm at a second
// could fire.
#[test]
fn a_wait_is_one_stall() {
    let hw = without_frames(Duration::from_millis(50));
    let group = child(&hw.root(), "a");
    let held = hold(&group, Bytes::mib(16));
    let nr_stalls = || -> u64 {
        let snapshot = hw.snapshot();
        snapshot.stall_ns.iter().map(|(_, count)| count).sum()
    };
    assert_eq!(nr_stalls(), 0);
    let mut waits = group.charge_async(Bytes::mib(1));
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut waits).poll(&mut context).is_pending());
    let refused = Instant::now();
    let waited = thread::scope(|scope| {
        let waits = scope.spawn(|| waits.wait());
        thread::sleep(Duration::from_millis(400));
        let waited = refused.elapsed();
        held.lock().expect("no panic").clear();
        drop(waits.join().expect("no panic").expect("there is room"));
        waited
    });
    assert_eq!(nr_stalls(), 1);
    assert!(Duration::from_nanos(hw.snapshot().stall_ns_total) >= waited);
}

// Symptom: the time that a handler takes to give memory up counted as a stall of an awaited charge.
#[test]
fn the_time_of_a_handler_is_no_stall() {
    let hw = without_frames(Duration::from_secs(20));
    let (sort, join) = (child(&hw.root(), "sort"), child(&hw.root(), "join"));
    let held = hold(&sort, Bytes::mib(12));
    let (tell, told) = mpsc::channel();
    sort.on_reclaim(move |request| {
        let begun = Instant::now();
        thread::sleep(Duration::from_millis(200));
        held.lock().expect("no panic").clear();
        tell.send(begun.elapsed()).expect("the test waits");
        request.want
    });
    let begun = Instant::now();
    let charge = hw.block_on(join.charge_async(Bytes::mib(12)));
    drop(charge.expect("the handler gives it"));
    let (elapsed, handled): (_, Duration) = (begun.elapsed(), told.try_iter().sum());
    assert!(handled >= Duration::from_millis(200));
    let stalled = Duration::from_nanos(hw.snapshot().stall_ns_total);
    assert!(
        stalled + handled <= elapsed,
        "{stalled:?}, {handled:?} of {elapsed:?}"
    );
}

/// Longer than any test.
const HOUR: Duration = Duration::from_secs(3600);

/// Sets a handler that promises `bytes` and gives nothing itself; returns the count of its calls.
fn promising(group: &Group, bytes: Bytes) -> Arc<AtomicU32> {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    group.on_reclaim(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        bytes
    });
    asked
}

fn is_pending(waits: &mut Pin<Box<ChargeWait>>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    waits.as_mut().poll(&mut context).is_pending()
}

/// Returns the counters of promises: asked, given in MiB, late.
fn promises(hw: &Manager) -> [u64; 3] {
    let snapshot = hw.snapshot();
    let count = |name| snapshot.counter(name);
    let given = count("on_reclaim_given");
    assert_eq!(given % Bytes::mib(1).0, 0, "the tests give whole MiB");
    [
        count("on_reclaim_asked"),
        given / Bytes::mib(1).0,
        count("on_reclaim_late"),
    ]
}

// Goal: a promise that was kept ends with the request that asked, also if that request fails or is
// dropped: memory that the group uses again later does not look like a broken promise. Method: a
// grace period that never ends; the group keeps its promise, the request ends without another look
// at it, the group uses as much again; the next request asks it at once.
#[test]
fn a_promise_that_was_kept_ends_with_a_request_that_fails() {
    type End = fn(&Group);
    let ends: [(&str, End); 3] = [
        ("dropped", |_| ()),
        ("removed", |query| query.remove().expect("no children")),
        ("lowered", |query| {
            let lowered = query.set_max(Bytes::mib(1));
            lowered.expect("nothing is charged to it");
        }),
    ];
    for (name, end) in ends {
        let hw = without_frames(HOUR);
        let [sort, query] = ["sort", "query"].map(|name| child(&hw.root(), name));
        let held = hold(&sort, Bytes::mib(12));
        let asked = promising(&sort, Bytes::mib(4));
        let mut request = Box::pin(query.charge_async(Bytes::mib(10)));
        assert!(is_pending(&mut request));
        assert_eq!(asked.load(Ordering::Relaxed), 1, "{name}");
        held.lock().expect("no panic")[0].shrink(Bytes::mib(4));
        end(&query);
        if name != "dropped" {
            assert!(!is_pending(&mut request), "{name}: it is refused");
        }
        drop(request);
        assert_eq!(promises(&hw), [1, 4, 0], "{name}");
        refill(&held, &sort, Bytes::mib(4));
        let mut next = Box::pin(hw.root().charge_async(Bytes::mib(8)));
        assert!(is_pending(&mut next));
        assert_eq!(asked.load(Ordering::Relaxed), 2, "{name}");
    }
}

// Goal: given is the fall of the group's usage, at most the promised amount, and a promise is late
// if that is less. Method: handlers that promise, drop and charge anew at once, one charge in
// exchange for another among them; the request fails in any case.
#[test]
fn the_fall_of_usage_counts_as_given_up_to_the_promise() {
    // Promised, dropped and charged anew, then given and late.
    let cases = [
        ([4, 4, 0], [4, 0]),
        ([4, 6, 0], [4, 0]),
        ([4, 6, 2], [4, 0]),
        ([4, 1, 0], [1, 1]),
        ([4, 6, 3], [3, 1]),
        ([4, 4, 4], [0, 1]),
        ([4, 0, 0], [0, 1]),
        ([0, 3, 0], [0, 0]),
    ];
    for (plan, [given, late]) in cases {
        let [promised, dropped, anew] = plan.map(Bytes::mib);
        let hw = without_frames(Duration::from_millis(5));
        let [sort, other] = ["sort", "other"].map(|name| child(&hw.root(), name));
        let _stays = other.charge(Bytes::mib(2)).expect("there is room");
        let held = hold(&sort, Bytes::mib(12));
        let (group, own, calls) = (sort.clone(), Arc::clone(&held), AtomicU32::new(0));
        sort.on_reclaim(move |_| {
            if calls.fetch_add(1, Ordering::Relaxed) > 0 {
                return Bytes::ZERO;
            }
            own.lock().expect("no panic")[0].shrink(dropped);
            refill(&own, &group, anew);
            promised
        });
        let refused = hw.root().charge(Bytes::mib(15));
        assert!(refused.is_err(), "{plan:?}");
        // A group that has kept a promise of more than nothing is asked again.
        let asked = if given == 4 { 2 } else { 1 };
        assert_eq!(promises(&hw), [asked, given, late], "{plan:?}");
        sort.remove().expect("its handler keeps the manager");
    }
}

// Goal: memory that a group hands to another counts as given by the one, and not by a group above
// both; it makes no room, and the request ends with a refusal. Method: a handler of the sort, or of
// the group above, that moves 4 MiB of 12 to a sibling at each call.
#[test]
fn memory_that_is_handed_on_is_given_by_one_group_and_makes_no_room() {
    for (by_the_sort, counts) in [(true, [3, 12, 0]), (false, [1, 0, 1])] {
        let hw = without_frames(Duration::from_millis(5));
        let tenant = child(&hw.root(), "tenant");
        let [sort, heir] = ["sort", "heir"].map(|name| child(&tenant, name));
        let held = hold(&sort, Bytes::mib(12));
        let asked = if by_the_sort { &sort } else { &tenant };
        let (own, to) = (Arc::clone(&held), heir.clone());
        asked.on_reclaim(move |_| {
            let mut held = own.lock().expect("no panic");
            let part = held[0].transfer(&to, Bytes::mib(4)).expect("no limit");
            held.push(part);
            Bytes::mib(4)
        });
        let refused = hw.root().charge(Bytes::mib(8));
        let refused = refused.expect_err("no memory came free");
        assert_eq!(refused.victims, 0);
        assert_eq!(promises(&hw), counts);
        let moved = Bytes::mib(if by_the_sort { 12 } else { 4 });
        assert_eq!(heir.usage_precise(), moved);
        assert_eq!(tenant.usage_precise(), Bytes::mib(12));
        sort.remove().expect("its handler keeps the manager");
    }
}

// Goal: a request waits no longer for a promise whose handler was replaced: it asks the new one.
// Method: a grace period that never ends, and a promise that an earlier request has left open.
#[test]
fn a_promise_ends_with_its_handler() {
    let hw = without_frames(HOUR);
    let sort = child(&hw.root(), "sort");
    let _held = hold(&sort, Bytes::mib(12));
    hw.root().on_exhausted(|victim| panic!("{victim:?}"));
    let former = promising(&sort, Bytes::mib(4));
    let ask = || Box::pin(hw.root().charge_async(Bytes::mib(8)));
    assert!(is_pending(&mut ask()));
    let mut waits = ask();
    assert!(is_pending(&mut waits));
    assert_eq!(former.load(Ordering::Relaxed), 1, "its promise is open");
    let latter = promising(&sort, Bytes::mib(4));
    assert!(is_pending(&mut waits));
    let calls = [former, latter].map(|calls| calls.load(Ordering::Relaxed));
    assert_eq!(calls, [1, 1]);
}

// Goal: groups that use equally much are asked in the order of their numbers, each once, for no
// more than they use; the deadline is one grace period after the call. Method: handlers that are
// set in another order and give nothing; times taken before and inside the call.
#[test]
fn equal_groups_are_asked_in_the_order_of_their_numbers() {
    const GRACE: Duration = Duration::from_secs(77);
    let hw = without_frames(GRACE);
    let mut groups = ["c", "a", "d", "b"].map(|name| child(&hw.root(), name));
    let _held = groups.each_ref().map(|it| hold(it, Bytes::mib(3)));
    let asked = Arc::new(Mutex::new(Vec::new()));
    groups.reverse();
    let begun = Instant::now();
    for (number, group) in (0..).zip(&groups) {
        let asked = Arc::clone(&asked);
        group.on_reclaim(move |&ReclaimRequest { want, deadline, .. }| {
            assert!(begun + GRACE <= deadline && deadline <= Instant::now() + GRACE);
            asked.lock().expect("no panic").push((number, want));
            Bytes::ZERO
        });
    }
    let refused = hw.root().charge(Bytes::mib(6));
    assert!(refused.is_err());
    let order = [3, 2, 1, 0].map(|number| (number, Bytes::mib(2)));
    assert_eq!(asked.lock().expect("no panic").drain(..).as_slice(), order);
    assert!(hw.root().charge(Bytes::mib(15)).is_err());
    let order = [3, 2, 1, 0].map(|number| (number, Bytes::mib(3)));
    assert_eq!(*asked.lock().expect("no panic"), order);
}
