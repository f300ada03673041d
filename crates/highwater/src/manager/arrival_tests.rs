//! Threads in the middle of a fault, at points that no storage can observe.

use std::task::{Context, Wake, Waker};

use super::zeros::Zeros;
use super::*;
use crate::cache::Access;
use crate::group::Limits;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread;
use crate::units::{Bytes, FilePage, MapPage};

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
    let (charge, way) = on_its_way.expect("the group is empty");
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
