//! Promise: a group that has given what it promised is asked again, a victim that has given
//! everything is told again, and a thread that is throttled holds up no other group; a transfer is
//! not throttled; a wait is one stall, however many looks it takes.

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use highwater::{Access, Bytes, Charge, Group, Limits, Manager, ReclaimRequest, Throttling};
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
    thread::scope(|scope| {
        let waits = scope.spawn(|| group.charge_async(Bytes::mib(1)).wait());
        thread::sleep(Duration::from_millis(400));
        held.lock().expect("no panic").clear();
        drop(waits.join().expect("no panic").expect("there is room"));
    });
    assert_eq!(nr_stalls(), 1);
    assert!(hw.snapshot().stall_ns_total >= 300_000_000);
}

// Symptom: the time that a handler takes to give memory up counted as a stall of an awaited charge.
#[test]
fn the_time_of_a_handler_is_no_stall() {
    let hw = without_frames(Duration::from_secs(20));
    let (sort, join) = (child(&hw.root(), "sort"), child(&hw.root(), "join"));
    let held = hold(&sort, Bytes::mib(12));
    sort.on_reclaim(move |request| {
        thread::sleep(Duration::from_secs(2));
        held.lock().expect("no panic").clear();
        request.want
    });
    let begun = Instant::now();
    let charge = hw.block_on(join.charge_async(Bytes::mib(12)));
    drop(charge.expect("the handler gives it"));
    assert!(begun.elapsed() >= Duration::from_secs(2));
    let stalled = Duration::from_nanos(hw.snapshot().stall_ns_total);
    assert!(stalled < Duration::from_secs(1), "{stalled:?}");
}
