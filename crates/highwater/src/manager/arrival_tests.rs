//! Threads in the middle of a fault, at points that no storage can observe.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Wake, Waker};

use super::zeros::Zeros;
use super::*;
use crate::cache::Access;
use crate::group::Limits;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread;
use crate::units::{Bytes, FilePage, MapPage};

static WAITING_LOCK: LockClass = LockClass::new("waiting charge", Rank::Leaf);

/// Longer than the 8 ms that a request waits without progress.
const SUSPENDED: Duration = Duration::from_millis(50);

/// A manager of 64 frames, a group with a maximum, and a file of zeros that it pays for.
fn scene(max: Pages) -> (Manager, Group, Mapping) {
    let builder = Manager::builder().capacity(Pages(64).bytes());
    let hw = builder.build().expect("a small manager");
    let group = hw.root().child("tiny", Limits::max(max.bytes()));
    let group = group.expect("a group");
    let file = hw.open_backing(Arc::new(Zeros { pages: 128 }), Access::ReadOnly);
    let space = hw.space(&group);
    let map = space.map_file(&file.expect("a file"), 0..128);
    (hw, group, map.expect("within the file"))
}

#[test]
fn a_fault_waits_for_a_page_that_is_only_charged() {
    // Goal: no refusal while a page is charged and its read has not begun. Method: a group of one
    // page, whose charge is in transit for 50 ms and is then given back.
    let (hw, group, map) = scene(Pages(1));
    let on_its_way = hw
        .core()
        .charge_on_its_way(group.node(), Bytes::PAGE, slow::Patience::Fault);
    let (way, charge) = on_its_way.expect("the group is empty");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| map.read(&hw.enter(), 1).map(drop));
        thread::sleep(SUSPENDED);
        assert!(!waiting.is_finished(), "it has not waited");
        drop(charge);
        drop(way);
        waiting.join().expect("no panic").expect("it has waited");
    });
}

#[test]
fn a_request_waits_for_pages_of_a_removed_group() {
    // Symptom: a group was refused, or stopped, beside pages that a child was reading in when that
    // was removed. Method: a page of a full group's child is in transit for 50 ms, in which the
    // child is removed, as are others before and after it.
    let (hw, above, _map) = scene(Pages(1));
    let core = hw.core();
    let child = |name| {
        let child = above.child(name, Limits::default()).expect("a new name");
        core.reclaim.add_group(child.node());
        child
    };
    child("before").remove().expect("it has no child");
    let query = child("query");
    let on_its_way = core.charge_on_its_way(query.node(), Bytes::PAGE, slow::Patience::Fault);
    let (way, charge) = on_its_way.expect("the group above is empty");
    query.remove().expect("it has no child");
    let part = way.part();
    assert_eq!(core.reclaim.nr_coming_to(above.node()), 2);
    drop(part);
    let before = core.reclaim.transit_of(above.node());
    assert!(before.lasts(before), "a page of the removed group");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| above.charge(Bytes::PAGE).map(drop));
        thread::sleep(SUSPENDED);
        assert!(!waiting.is_finished(), "it has not waited");
        drop(charge);
        drop(way);
        waiting.join().expect("no panic").expect("it has waited");
    });
    for _ in 0..2 {
        let now = core.reclaim.transit_of(above.node());
        assert!(now.has_more_arrivals(before) && !before.lasts(now));
        child("after").remove().expect("it has no child");
    }
}

#[test]
fn a_fault_waits_for_a_frame_that_is_on_its_way() {
    // Goal: the same when frames are short. Method: a fault holds all frames for 50 ms; beside it
    // is another fault that itself waits for a frame and must not be waited for.
    let (hw, group, map) = scene(Pages(64));
    let core = hw.core();
    let way = core.reclaim.page_on_its_way(group.node());
    way.note_paid();
    let frames = std::iter::from_fn(|| core.pool.alloc().ok());
    let mut frames: Vec<_> = frames.collect();
    assert_eq!(frames.len(), 64);
    thread::scope(|scope| {
        let read = |page| map.read(&hw.enter(), page).map(drop);
        let waiting = [1, 60].map(|page| scope.spawn(move || read(page)));
        thread::sleep(SUSPENDED);
        core.pool.free_bulk(&mut frames);
        drop(way);
        for waiting in waiting {
            waiting.join().expect("no panic").expect("it has waited");
        }
    });
}

#[test]
fn faults_without_frames_do_not_wait_for_each_other() {
    // Goal: an error, soon, when the only charges in transit are requests for the same frames.
    // Method: no frame is free, and threads that have charged their pages try to allocate one.
    let (hw, _group, map) = scene(Pages(64));
    let pool = &hw.core().pool;
    let frames = std::iter::from_fn(|| pool.alloc().ok());
    let mut frames: Vec<_> = frames.collect();
    thread::scope(|scope| {
        let read = |page| map.read(&hw.enter(), page).map(drop);
        let refused = [1, 40, 80].map(|page| scope.spawn(move || read(page)));
        for refused in refused {
            let error = refused.join().expect("no panic").expect_err("no frames");
            assert!(error.to_string().contains("no memory"), "{error}");
        }
    });
    // A cycle of waits that ran into its time limit would take thousands of attempts.
    let pauses = hw.snapshot().counter("throttle_noprogress");
    assert!(pauses < 200, "{pauses} pauses");
    pool.free_bulk(&mut frames);
}

// Symptom: a charge that waited for a page in transit, and a driver that had queued a read
// meanwhile and then blocked, waited for each other for a minute.
#[test]
#[cfg(not(miri))]
fn a_read_that_is_queued_after_a_charge_began_to_wait_is_handed_over() {
    // Goal: the charge looks for reads that no thread has handed to the system each time. Method: a
    // driver launches a read when the charge waits, and goes on when the read has landed.
    const QUEUED: u64 = 1;
    const GOES_ON: u64 = 2;
    let (hw, group, _map) = scene(Pages(1));
    let core = hw.core();
    let in_transit = core.charge_on_its_way(group.node(), Bytes::PAGE, slow::Patience::Fault);
    let mut context = Context::from_waker(Waker::noop());
    let mut charge = pin!(group.charge_async(Bytes::PAGE));
    assert!(charge.as_mut().poll(&mut context).is_pending());
    let stored = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(stored.path(), [7; 4096]).expect("a page");
    let file = hw.open(stored.path()).expect("it is there");
    let map = hw.space(&hw.root()).map_file(&file, 0..1).expect("a page");
    let state = AtomicU64::new(0);
    let is_at = |at| state.load(Ordering::Relaxed) == at;
    let blocks = || {
        state.store(QUEUED, Ordering::Relaxed);
        while !is_at(GOES_ON) {
            thread::sleep(Duration::from_millis(1));
        }
    };
    let has_landed = thread::scope(|scope| {
        let driver = scope.spawn(|| {
            let mut read = pin!(map.read_async(0));
            hw.block_on(poll_fn(|context| {
                let polled = read.as_mut().poll(context);
                if polled.is_pending() && is_at(0) {
                    blocks();
                }
                polled
            }))
        });
        while !is_at(QUEUED) {
            thread::yield_now();
        }
        let is_afloat = || core.io.flights.nr_afloat() > 0;
        let begun = core.now();
        while is_afloat() && core.now() - begun < Duration::from_secs(10) {
            assert!(charge.as_mut().poll(&mut context).is_pending());
            thread::sleep(Duration::from_millis(1));
        }
        let has_landed = !is_afloat();
        state.store(GOES_ON, Ordering::Relaxed);
        let read = driver.join().expect("no panic").expect("a page");
        assert_eq!(*read, [7; 4096]);
        has_landed
    });
    assert!(has_landed, "the read stays queued");
    drop(in_transit);
}

#[test]
fn readahead_that_sleeps_above_high_keeps_no_request_waiting() {
    // Symptom: charges to a full group were refused seconds late, when readahead that was throttled
    // had slept. Method: they are refused while a thread sleeps that reads ahead. A round in which
    // the machine let the other thread run late proves nothing and is repeated.
    let was_in_time = (0..5).any(|_| {
        let builder = Manager::builder().capacity(Pages(4096).bytes());
        let hw = builder.throttling(Throttling::Sleep).build();
        let hw = hw.expect("a small manager");
        let limits = Limits {
            high: Pages(1000).bytes(),
            ..Limits::max(Pages(1400).bytes())
        };
        let group = hw.root().child("full", limits).expect("a group");
        let file = hw.open_backing(Arc::new(Zeros { pages: 128 }), Access::ReadOnly);
        let map = hw.space(&group).map_file(&file.expect("a file"), 0..128);
        let map = map.expect("within the file");
        let _held = group.force_charge(Pages(1340).bytes());
        thread::scope(|scope| {
            let ahead = scope.spawn(|| map.will_need(0..32).expect("within the mapping"));
            // The event comes just before the sleep.
            while group.events().high == 0 && !ahead.is_finished() {
                thread::yield_now();
            }
            let charged = group.charge(Pages(100).bytes());
            assert!(charged.is_err(), "more than its maximum");
            let was_in_time = !ahead.is_finished();
            ahead.join().expect("no panic");
            was_in_time
        })
    });
    assert!(was_in_time, "it was refused after the sleep");
}

/// Records, when it is first woken, how many threads bring pages of a group in.
struct AtRelease {
    hw: Manager,
    group: Group,
    /// That number plus one; 0 until then.
    seen: AtomicU64,
}

impl Wake for AtRelease {
    fn wake(self: Arc<Self>) {
        let coming = self.hw.core().reclaim.nr_coming_to(self.group.node());
        let (new, was) = (coming + 1, 0);
        _ = self
            .seen
            .compare_exchange(was, new, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[test]
fn a_fault_that_fails_gives_room_back_before_it_counts_as_arrived() {
    // Goal: a request that is woken by an arrival finds the room. Method: no frame is free, and a
    // fault tells a victim, whose handler has a charge wait for the fault's room; the transit is
    // read when that charge is woken by the room.
    let builder = Manager::builder().capacity(Pages(64).bytes());
    let hw = builder.grace(Duration::ZERO).build();
    let hw = hw.expect("a small manager");
    let group = hw.root().child("tiny", Limits::max(Bytes::PAGE));
    let group = group.expect("a group");
    let file = hw.open_backing(Arc::new(Zeros { pages: 128 }), Access::ReadOnly);
    let map = hw.space(&group).map_file(&file.expect("a file"), 0..128);
    let map = map.expect("within the file");
    let pool = &hw.core().pool;
    let mut frames: Vec<_> = std::iter::from_fn(|| pool.alloc().ok()).collect();
    let at_release = Arc::new(AtRelease {
        hw: hw.clone(),
        group: group.clone(),
        seen: AtomicU64::new(0),
    });
    let waiting = Arc::new(Mutex::new(&WAITING_LOCK, None));
    let (in_handler, waker) = (Arc::clone(&waiting), Arc::clone(&at_release));
    let was_called = AtomicBool::new(false);
    hw.root().on_exhausted(move |_| {
        if was_called.swap(true, Ordering::Relaxed) {
            return;
        }
        let queued = thread::scope(|scope| {
            // No charge queues in a handler.
            let queued = scope.spawn(|| {
                let mut charge = Box::pin(waker.group.charge_async(Bytes::PAGE));
                let of_task = Waker::from(Arc::clone(&waker));
                let polled = charge.as_mut().poll(&mut Context::from_waker(&of_task));
                assert!(polled.is_pending(), "the fault has the room");
                charge
            });
            queued.join().expect("no panic")
        });
        waker.seen.store(0, Ordering::Relaxed);
        *in_handler.lock() = Some(queued);
    });
    map.read(&hw.enter(), 1).map(drop).expect_err("no frames");
    assert_eq!(at_release.seen.load(Ordering::Relaxed), 1 + 1);
    let queued = waiting.lock().take();
    drop(queued);
    pool.free_bulk(&mut frames);
}

/// Counts wake-ups.
#[derive(Default)]
struct Counted(AtomicU64);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn tasks_are_woken_before_a_fault_waits_for_a_latch() {
    // Goal: a thread that has read a window in and waits for the latch of its first page, whose
    // holder may wait for a task, does not keep the task from another page of the window. Method: a
    // task waits for the second page; it must have been woken when the first is about to be
    // latched.
    let hw = Manager::builder().build().expect("a manager");
    let file = hw.open_backing(Arc::new(Zeros { pages: 128 }), Access::ReadWrite);
    let space = hw.space(&hw.root());
    let map = space.map_file(&file.expect("a file"), 0..128);
    let map = map.expect("within the file");
    let (core, area) = (hw.core(), map.area());
    let source = source::FillSource::of(area);
    let window = core.window_of_miss(source, FilePage(0), 4);
    let supply = core.supply_one(source, FilePage(0)).expect("memory");
    let fills = core.begin_wanted(source, &window, supply);
    let mut fills = fills.expect("no other thread fills it");
    let woken = Arc::new(Counted::default());
    let waker = Waker::from(Arc::clone(&woken));
    let second = area.key(MapPage(1));
    let polled = core
        .cache
        .poll_lookup(second, &mut None, &mut Context::from_waker(&waker));
    assert!(polled.is_pending(), "the second page is in the window");
    fills.read().expect("zeros");
    let seen = fills.finish(|_| woken.0.load(Ordering::Relaxed));
    assert_eq!(seen, 1);
}
