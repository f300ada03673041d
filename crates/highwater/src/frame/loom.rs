//! Models: all interleavings of two threads with the same CPU number, and of a drain of their list,
//! over a pool of two frames: no frame is lost, and none is handed out twice (claiming it would
//! panic).

use ::loom::{model, thread};

use super::{AllocError, AllocFlags, FramePool, Tunables};
use crate::memmap::{Frame, FrameMemory};
use crate::sync::Arc;
use crate::units::{CpuId, Pages};

const CPU: CpuId = CpuId(0);
const OTHER_CPU: CpuId = CpuId(1);

/// Returns a pool whose lists hold two frames and give one back when they are full.
fn pool(frames: u64, nr_cpus: usize) -> Arc<FramePool> {
    let memory = Arc::new(FrameMemory::new(Pages(frames)).unwrap());
    let pool = FramePool::new(memory, nr_cpus).unwrap();
    let lists = pool.zoneinfo().lists;
    assert!(lists[0].high_min > 0, "lists that hold something");
    Arc::new(pool)
}

fn try_alloc(pool: &FramePool, cpu: CpuId) -> Result<Frame, AllocError> {
    pool.at(cpu).alloc_with(AllocFlags::new().use_reserve())
}

/// Allocates a frame, if there is one, writes it as an owner may, and frees it.
fn borrow_a_frame(pool: &FramePool, cpu: CpuId) -> bool {
    let Ok(mut frame) = try_alloc(pool, cpu) else {
        return false;
    };
    pool.memory().bytes_mut(&mut frame)[0] = 1;
    pool.at(cpu).free(frame);
    true
}

/// Runs `other` in a thread concurrently with `this`.
fn beside<T: 'static>(
    pool: &Arc<FramePool>,
    this: impl FnOnce(&FramePool) -> T,
    other: impl FnOnce(&FramePool) -> T + 'static,
) -> (T, T) {
    let others_pool = Arc::clone(pool);
    let other = thread::spawn(move || other(&others_pool));
    let this = this(pool);
    (this, other.join().unwrap())
}

/// Checks that every frame is free, in any place, and that a drain finds those in lists.
fn assert_conserved(pool: &FramePool) {
    pool.check_invariants();
    let counts = pool.counts();
    assert_eq!(counts.allocated, Pages::ZERO);
    assert_eq!(pool.drain_all(), counts.cached);
    assert_eq!(pool.nr_free() + pool.counts().deferred, pool.managed());
    pool.check_invariants();
}

#[test]
fn two_threads_on_one_cpu_conserve_frames() {
    // Both have the number of one CPU: a hint, and one of them migrated. Two frames are enough.
    model(|| {
        let pool = pool(2, 1);
        let turn = |pool: &FramePool| borrow_a_frame(pool, CPU);
        assert_eq!(beside(&pool, turn, turn), (true, true));
        assert_conserved(&pool);
    });
}

#[test]
fn the_last_frame_goes_to_one_of_two_threads() {
    // The frame is in the list; the thread that finds the list locked tries the zone.
    model(|| {
        let pool = pool(2, 1);
        let kept = try_alloc(&pool, CPU).unwrap();
        assert!(
            borrow_a_frame(&pool, CPU),
            "the other frame is in the list now"
        );
        let take = |pool: &FramePool| try_alloc(pool, CPU);
        let (mine, other) = beside(&pool, take, take);
        assert!(mine.is_ok() ^ other.is_ok(), "{mine:?} {other:?}");
        for frame in [mine, other].into_iter().flatten().chain([kept]) {
            pool.at(CPU).free(frame);
        }
        assert_conserved(&pool);
    });
}

#[test]
fn a_drain_beside_allocation_and_free_conserves_frames() {
    // The list holds a frame when the drain begins, and gets the other one while it runs.
    model(|| {
        let pool = pool(2, 1);
        let kept = try_alloc(&pool, CPU).unwrap();
        assert!(borrow_a_frame(&pool, CPU));
        let owner = move |pool: &FramePool| {
            pool.at(CPU).free(kept);
            Pages(u64::from(borrow_a_frame(pool, CPU)))
        };
        let (drained, _) = beside(&pool, FramePool::drain_all, owner);
        assert!(
            drained <= Pages(3),
            "bounded by what came and went: {drained}"
        );
        assert_conserved(&pool);
    });
}

#[test]
fn a_list_that_fills_up_gives_back_beside_a_drain() {
    // Two threads free at once, so that one of them finds the list full or locked.
    model(|| {
        let pool = pool(2, 1);
        let (mine, other) = (
            try_alloc(&pool, CPU).unwrap(),
            try_alloc(&pool, CPU).unwrap(),
        );
        let drainer = Arc::clone(&pool);
        let drainer = thread::spawn(move || drainer.drain_all());
        let free_mine = move |pool: &FramePool| pool.at(CPU).free(mine);
        let free_other = move |pool: &FramePool| pool.at(CPU).free(other);
        beside(&pool, free_mine, free_other);
        drainer.join().unwrap();
        assert_conserved(&pool);
    });
}

#[test]
fn decay_and_knobs_beside_a_free_conserve_frames() {
    // The list has one frame; another comes while the list is made small.
    model(|| {
        let pool = pool(2, 1);
        let kept = try_alloc(&pool, CPU).unwrap();
        assert!(borrow_a_frame(&pool, CPU));
        let small = Tunables::default()
            .with("percpu_pagelist_high_fraction", -1)
            .unwrap();
        let turner = Arc::clone(&pool);
        let turner = thread::spawn(move || {
            turner.set_tunables(small);
            turner.decay_tick();
        });
        pool.at(CPU).free(kept);
        turner.join().unwrap();
        assert_conserved(&pool);
    });
}

#[test]
fn a_list_that_is_told_of_reclaim_looks_at_its_next_free() {
    // Either the free comes first, or it is refused and checks: after both, a further free sees the
    // flag.
    model(|| {
        let pool = pool(4, 1);
        let (first, second) = (
            try_alloc(&pool, CPU).unwrap(),
            try_alloc(&pool, CPU).unwrap(),
        );
        let teller = Arc::clone(&pool);
        let teller = thread::spawn(move || std::mem::forget(teller.reclaiming()));
        pool.at(CPU).free(first);
        teller.join().unwrap();
        pool.at(CPU).free(second);
        let list = pool.zoneinfo().lists[0];
        assert!(
            pool.zoneinfo().reclaim_active && list.high == list.high_min,
            "{list:?}"
        );
        assert_conserved(&pool);
    });
}

#[test]
fn a_free_that_may_not_wait_beside_a_drain_conserves_frames() {
    model(|| {
        let pool = pool(2, 1);
        let kept = try_alloc(&pool, CPU).unwrap();
        assert!(borrow_a_frame(&pool, CPU));
        let drainer = Arc::clone(&pool);
        let drainer = thread::spawn(move || drainer.drain_all());
        pool.free_non_blocking(kept);
        drainer.join().unwrap();
        // Merges the deferred frames.
        assert!(borrow_a_frame(&pool, CPU));
        assert_conserved(&pool);
    });
}

#[test]
fn two_cpus_share_the_zone() {
    model(|| {
        let pool = pool(4, 2);
        let turn = |cpu| move |pool: &FramePool| borrow_a_frame(pool, cpu);
        assert_eq!(beside(&pool, turn(CPU), turn(OTHER_CPU)), (true, true));
        assert_conserved(&pool);
    });
}
