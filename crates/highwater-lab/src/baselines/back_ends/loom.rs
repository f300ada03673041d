//! All interleavings of two threads over two zones, and of frees that must not wait with a holder
//! that splices: no frame is lost, none is handed out twice, and the floor holds.

use ::loom::{model, thread};

use highwater::frame::Wait;
use highwater::lab::sync::Arc;
use highwater::units::{CpuId, Order, Pages, Pfn};

use super::deferred::Deferred;
use super::*;

const CPU: CpuId = CpuId(0);

fn take_one(backend: &dyn Backend, cpu: CpuId, floor: u64, wait: Wait) -> Option<Pfn> {
    let mut out = [Pfn(u32::MAX)];
    let taken = backend.alloc_bulk(cpu, Order::ZERO, Pages(floor), wait, &mut out);
    (taken == 1).then_some(out[0])
}

fn free_one(backend: &dyn Backend, pfn: Pfn, wait: Wait) {
    backend.free_bulk(CPU, Order::ZERO, wait, &mut [pfn]);
}

/// Runs `other` in a thread beside `this`.
fn beside<B: 'static + Send + Sync, T: 'static>(
    shared: &Arc<B>,
    this: impl FnOnce(&B) -> T,
    other: impl FnOnce(&B) -> T + 'static,
) -> (T, T) {
    let others = Arc::clone(shared);
    let other = thread::spawn(move || other(&others));
    let this = this(shared);
    (this, other.join().unwrap())
}

#[test]
fn deferred_chains_of_two_threads_are_taken_off_once() {
    // Goal: what is put on is taken off exactly once, while another chain is put on beside it.
    model(|| {
        let deferred = Arc::new(Deferred::new(8, 4));
        let put = |deferred: &Deferred| {
            deferred.push_all(Order::ZERO, &[Pfn(8), Pfn(9)]);
            deferred.push_all(Order::ZERO, &[Pfn(10)]);
            Vec::new()
        };
        let take = |deferred: &Deferred| {
            let mut taken = Vec::new();
            deferred.take(Order::ZERO, |block| taken.push(block));
            taken
        };
        let (mut taken, _) = beside(&deferred, take, put);
        taken.extend(take(&deferred));
        taken.sort_unstable();
        assert_eq!(taken, [Pfn(8), Pfn(9), Pfn(10)]);
        deferred.are_free(Pages(3));
        assert_eq!(deferred.nr_frames(), Pages::ZERO);
    });
}

#[test]
fn deferred_blocks_are_taken_off_one_by_one_beside_a_chain() {
    // Goal: the same of a holder that must not wait, and takes off one block at a time.
    model(|| {
        let deferred = Arc::new(Deferred::new(8, 4));
        deferred.push_all(Order::ZERO, &[Pfn(11)]);
        let put = |deferred: &Deferred| {
            deferred.push_all(Order::ZERO, &[Pfn(8), Pfn(9)]);
            Vec::new()
        };
        let take = |deferred: &Deferred| {
            let mut taken = Vec::new();
            let count = deferred.take_some(Order::ZERO, 2, |block| taken.push(block));
            assert_eq!(count, taken.len());
            taken
        };
        let (mut taken, _) = beside(&deferred, take, put);
        deferred.take(Order::ZERO, |block| taken.push(block));
        taken.sort_unstable();
        assert_eq!(taken, [Pfn(8), Pfn(9), Pfn(11)]);
    });
}

#[test]
fn the_last_frame_above_the_floor_goes_to_one_of_two_threads() {
    model(|| {
        let zones = Arc::new(Zones::new(3, 1));
        let _kept = take_one(&*zones, CPU, 0, Wait::Allowed);
        let take = |zones: &Zones| take_one(zones, CPU, 1, Wait::Allowed);
        let (mine, other) = beside(&zones, take, take);
        assert!(mine.is_some() ^ other.is_some(), "{mine:?} {other:?}");
        assert_eq!(zones.nr_free(), Pages(1));
        zones.check_invariants();
    });
}

#[test]
fn a_free_that_must_not_wait_is_spliced_beside_allocation() {
    // Goal: a frame is free, deferred or held at every moment, and one that may wait finds it.
    model(|| {
        let zones = Arc::new(Zones::new(2, 1));
        let frame = take_one(&*zones, CPU, 0, Wait::Allowed).unwrap();
        let turn = |zones: &Zones| {
            let frame =
                take_one(zones, CPU, 0, Wait::Allowed).expect("one frame is free for this thread");
            free_one(zones, frame, Wait::Allowed);
        };
        beside(&zones, turn, move |zones| {
            free_one(zones, frame, Wait::Never)
        });
        let all = [
            take_one(&*zones, CPU, 0, Wait::Allowed),
            take_one(&*zones, CPU, 0, Wait::Allowed),
        ];
        assert!(all[0].is_some() && all[1].is_some() && all[0] != all[1]);
        assert_eq!(zones.nr_deferred(), Pages::ZERO);
        zones.check_invariants();
    });
}

#[test]
fn two_threads_route_each_others_frames_back() {
    // Goal: owner routing conserves frames. Method: two zones; each thread frees what the other's
    // zone gave, and one of them must not wait.
    model(|| {
        let zones = Arc::new(Zones::new(1 << Order::MAX.get() << 1, 2));
        let of_first = take_one(&*zones, CpuId(0), 0, Wait::Allowed).unwrap();
        let of_second = take_one(&*zones, CpuId(1), 0, Wait::Allowed).unwrap();
        beside(
            &zones,
            move |zones: &Zones| free_one(zones, of_second, Wait::Allowed),
            move |zones: &Zones| {
                free_one(zones, of_first, Wait::Never);
                let mine =
                    take_one(zones, CpuId(1), 0, Wait::Allowed).expect("more than enough are free");
                free_one(zones, mine, Wait::Allowed);
            },
        );
        assert_eq!(zones.nr_free(), Pages(2048));
        assert_eq!(zones.nr_free_blocks(Order::MAX), 2);
    });
}

#[test]
fn a_block_that_is_not_there_costs_others_nothing() {
    // Goal: looking for a block in vain withholds no frames. Method: two frames are free that are
    // no block; both are wanted beside a request for a block.
    model(|| {
        let zones = Arc::new(Zones::new(3, 1));
        let all: Vec<_> = (0..3)
            .map(|_| take_one(&*zones, CPU, 0, Wait::Allowed).unwrap())
            .collect();
        free_one(&*zones, all[0], Wait::Allowed);
        free_one(&*zones, all[2], Wait::Allowed);
        let block = |zones: &Zones| {
            let order = Order::new(1).unwrap();
            let mut out = [Pfn(u32::MAX)];
            let taken = zones.alloc_bulk(CPU, order, Pages::ZERO, Wait::Allowed, &mut out);
            assert_eq!(taken, 0);
        };
        let frames = |zones: &Zones| {
            for _ in 0..2 {
                assert!(take_one(zones, CPU, 0, Wait::Allowed).is_some());
            }
        };
        beside(&zones, frames, block);
    });
}
