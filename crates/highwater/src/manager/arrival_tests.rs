//! Threads that lose their CPUs in the middle of a fault, at the moments that no storage shows.

use super::zeros::Zeros;
use super::*;
use crate::cache::Access;
use crate::frame::AllocFlags;
use crate::group::Limits;
use crate::sync::thread;

/// Longer than a request waits for nothing, which is 8 ms.
const SUSPENDED: Duration = Duration::from_millis(50);

/// A manager of 64 frames, a group that has a maximum, and zeros that it pays for.
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
    // Goal: no refusal while a thread that was charged a page has not begun to read it. Method: a
    // group of one page, of which the charge is on its way for 50 ms, and is given back then.
    let (hw, group, map) = scene(Pages(1));
    let on_its_way = hw.core().charge_on_its_way(group.node());
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
    // Goal: likewise where frames are short. Method: all of them are in the hands of a fault for 50
    // ms; beside it is one that waits for a frame itself, for which none waits.
    let (hw, group, map) = scene(Pages(64));
    let core = hw.core();
    let way = core.reclaim.page_on_its_way(group.node());
    way.note_paid();
    let frames = std::iter::from_fn(|| core.pool.alloc(AllocFlags::new()).ok());
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
    // Goal: an error, soon, where nothing is on its way but requests for the same. Method: no frame
    // is free, and threads that were charged their pages look for one.
    let (hw, _group, map) = scene(Pages(64));
    let pool = &hw.core().pool;
    let frames = std::iter::from_fn(|| pool.alloc(AllocFlags::new()).ok());
    let mut frames: Vec<_> = frames.collect();
    thread::scope(|scope| {
        let read = |page| map.read(&hw.enter(), page).map(drop);
        let refused = [1, 40, 80].map(|page| scope.spawn(move || read(page)));
        for refused in refused {
            let error = refused.join().expect("no panic").expect_err("no frames");
            assert!(error.to_string().contains("no memory"), "{error}");
        }
    });
    // The longest time that a cycle of waits takes to give up would be thousands of attempts.
    let pauses = hw.snapshot().counter("throttle_noprogress");
    assert!(pauses < 200, "{pauses} pauses");
    pool.free_bulk(&mut frames);
}
