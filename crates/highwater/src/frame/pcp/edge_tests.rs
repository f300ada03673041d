//! Edge cases of lists: little left to hand out or to hold, the size of a drain, and frames that go
//! from one CPU to another.

use std::collections::BTreeSet;

use super::scratch::TransferScratch;
use super::tests::{
    CPU, DRAINS, ORDINARY, OneHold, Pieces, RESERVE, assert_conserved, list, pool_of, tunables,
};
use crate::frame::{PcpPolicy, PoolConfig};
use crate::memmap::Frame;
use crate::sync::thread;
use crate::units::{CpuId, Order, Pages};

#[test]
fn a_drain_moves_a_run_of_frees_in_either_way() {
    // Goal: D (4.7) frames are what a drain moves, also in pieces, and disabled lists drain in
    // pieces of a batch. Method: a list of a fixed size is freed to beyond it; frames per drain are
    // those of one hold, and far more than a batch.
    let per_drain = DRAINS.map(|policy| {
        let config = PoolConfig {
            policy,
            tunables: tunables(5, 100),
            ..PoolConfig::new(1)
        };
        let pool = pool_of(300_000, config);
        let mut frames = Vec::new();
        assert_eq!(
            pool.at(CPU).alloc_bulk(20_000, ORDINARY, &mut frames),
            20_000
        );
        pool.at(CPU).free_bulk(&mut frames);
        let events = pool.counters();
        let visits = || pool.zone_times().work.count();
        let (before, held) = (visits(), pool.counts().cached.0);
        drop(pool.disable_lists());
        let pieces = held.div_ceil(policy.piece(&pool.lists.lock(CPU).rules(), 1 << 20).into());
        assert!(
            held > 63 && visits() - before <= pieces,
            "{policy:?}: {held}"
        );
        assert_conserved(&pool);
        events.drained / events.drains
    });
    assert_eq!(per_drain[0], per_drain[1]);
    assert!(per_drain[1] > 4 * 63, "{per_drain:?}");
}

#[test]
fn a_list_that_is_held_is_not_empty() {
    // Goal: no request fails while the CPU's own list has frames and another thread holds it.
    // Method: the zones are empty and the list is held until a request has found it so; that
    // request is served, one that may not wait is not.
    let pool = pool_of(100_000, PoolConfig::new(1));
    let mut frames = Vec::new();
    pool.at(CPU).alloc_bulk(usize::MAX, RESERVE, &mut frames);
    frames
        .drain(..100)
        .for_each(|frame| pool.at(CPU).free(frame));
    assert_eq!((pool.nr_free(), list(&pool).count), (Pages::ZERO, 100));
    let held = pool.lists.lock(CPU);
    assert!(pool.at(CPU).alloc_with(RESERVE.non_blocking()).is_err());
    let before = pool.counters().fallbacks;
    thread::scope(|scope| {
        let served = scope.spawn(|| pool.at(CPU).alloc_with(ORDINARY));
        while pool.counters().fallbacks == before {
            thread::yield_now();
        }
        drop(held);
        let frame = served.join().expect("no panic");
        frames.push(frame.expect("the list has frames"));
    });
    pool.at(CPU).free_bulk(&mut frames);
    assert_conserved(&pool);
}

#[test]
fn a_list_that_is_held_has_its_blocks() {
    // Goal and method: as above, with the one block that is left.
    let order = Order::new(2).expect("in range");
    let pool = pool_of(100_000, PoolConfig::new(1));
    let block = pool.at(CPU).alloc_block(order, ORDINARY).expect("a block");
    let mut frames = Vec::new();
    pool.drain_all();
    pool.at(CPU).alloc_bulk(usize::MAX, RESERVE, &mut frames);
    pool.at(CPU).free_block(block);
    assert_eq!((pool.nr_free(), list(&pool).count), (Pages::ZERO, 4));
    let held = pool.lists.lock(CPU);
    let may_not_wait = ORDINARY.non_blocking();
    assert!(pool.at(CPU).alloc_block(order, may_not_wait).is_err());
    let before = pool.counters().fallbacks;
    thread::scope(|scope| {
        let served = scope.spawn(|| pool.at(CPU).alloc_block(order, ORDINARY));
        while pool.counters().fallbacks == before {
            thread::yield_now();
        }
        drop(held);
        let block = served.join().expect("no panic");
        pool.at(CPU).free_block(block.expect("the list has one"));
    });
    pool.at(CPU).free_bulk(&mut frames);
    assert_conserved(&pool);
}

#[test]
fn a_list_of_a_small_pool_with_many_cpus_grows() {
    // Goal: where a CPU's part is so small that idle lists hold nothing, busy ones hold something.
    // Method: 64 MiB and 384 CPUs; one of them allocates and frees two frames repeatedly: after a
    // while, no zone is visited.
    let pool = pool_of(16_384, PoolConfig::new(384));
    let (high_min, high_max) = (list(&pool).high_min, list(&pool).high_max);
    assert!(high_min == 0 && high_max >= 2, "{:?}", list(&pool));
    let mut frames = Vec::new();
    let mut round = || {
        let before = pool.counters();
        pool.at(CPU).alloc_bulk(2, ORDINARY, &mut frames);
        pool.at(CPU).free_bulk(&mut frames);
        pool.counters().since(&before)
    };
    let last = (0..20).map(|_| round()).last().expect("rounds");
    assert_eq!((last.refilled, last.drained), (0, 0), "{:?}", list(&pool));
    for _ in 0..10 {
        pool.decay_tick();
    }
    assert_eq!((list(&pool).high, list(&pool).count), (0, 0), "decayed");
    assert_conserved(&pool);
}

#[test]
fn the_reserve_is_for_those_that_may_use_it() {
    // Goal: a request that may use the reserve leaves none of it in a list, where any request would
    // find it. Method: everything above `min` is taken; each request that may use the reserve takes
    // only the frames it hands out from then on, an ordinary one nothing.
    let pool = pool_of(100_000, PoolConfig::new(1));
    let mut frames = Vec::new();
    let ordinary = pool.at(CPU).alloc_bulk(usize::MAX, ORDINARY, &mut frames);
    let min = pool.watermarks().min;
    assert_eq!((ordinary as u64, pool.nr_free()), (100_000 - min.0, min));
    let blocks: Vec<_> = (0..=1)
        .map(|order| {
            let order = Order::new(order).expect("in range");
            let block = pool.at(CPU).alloc_block(order, RESERVE);
            block.expect("the reserve has one")
        })
        .collect();
    frames.push(
        pool.at(CPU)
            .alloc_with(RESERVE)
            .expect("the reserve has one"),
    );
    assert_eq!(pool.at(CPU).alloc_bulk(10, RESERVE, &mut frames), 10);
    assert_eq!(pool.nr_free(), min - Pages(1 + 2 + 1 + 10));
    assert_eq!(pool.counts().cached, Pages::ZERO);
    assert!(pool.at(CPU).alloc_with(ORDINARY).is_err());
    let rest = pool.at(CPU).alloc_bulk(usize::MAX, RESERVE, &mut frames);
    assert_eq!((rest as u64, pool.nr_free()), (min.0 - 14, Pages::ZERO));
    pool.at(CPU).free_bulk(&mut frames);
    for block in blocks {
        pool.at(CPU).free_block(block);
    }
    assert_conserved(&pool);
}

#[test]
fn who_frees_in_bulk_keeps_nobody_from_refills() {
    // Goal: under a policy that drains in pieces, a tenant that ends frees its frames a batch per
    // visit, so that behind a lock another's refill never waits for more. Method: one CPU frees
    // 20,000 frames while another takes 500, all of which succeed; visits for more than a batch are
    // at most the refills. In one hold there are more: the count tells the two apart.
    let policies: [(&dyn PcpPolicy, bool); 2] = [(&OneHold, true), (&Pieces, false)];
    for (policy, is_one_hold) in policies {
        let config = PoolConfig {
            policy,
            tunables: tunables(5, 100),
            ..PoolConfig::new(2)
        };
        let pool = pool_of(300_000, config);
        let (mut frames, mut others) = (Vec::new(), Vec::new());
        pool.at(CPU).alloc_bulk(20_000, ORDINARY, &mut frames);
        let large = || -> u64 {
            let work = pool.zone_times().work;
            let large = work.buckets().filter(|&(floor, _)| floor > 63);
            large.map(|(_, count)| count).sum()
        };
        let (before, counters) = (large(), pool.counters());
        thread::scope(|scope| {
            scope.spawn(|| pool.at(CPU).free_bulk(&mut frames));
            for _ in 0..500 {
                others.push(
                    pool.at(CpuId(1))
                        .alloc_with(ORDINARY)
                        .expect("enough are free"),
                );
            }
        });
        let (holds, refills) = (large() - before, pool.counters().since(&counters).refills);
        let is_behind = holds > refills;
        assert_eq!(is_behind, is_one_hold, "{holds}, {refills}");
        pool.at(CpuId(1)).free_bulk(&mut others);
        assert_conserved(&pool);
    }
}

#[test]
fn frames_that_go_one_way_cost_a_visit_for_512() {
    // Goal: where one CPU allocates what another frees, each side visits the back end at most once
    // for 512 frames. Method: 200,000 frames go from CPU 0 to CPU 1, after some for the lists to
    // grow; refills are counted, and all other visits are drains.
    let pool = pool_of(300_000, PoolConfig::new(2));
    let pass = |count: usize| {
        let before = (pool.counters().refills, pool.zone_times().holds());
        for _ in 0..count / 1000 {
            let mut frames = Vec::new();
            assert_eq!(pool.at(CPU).alloc_bulk(1000, ORDINARY, &mut frames), 1000);
            pool.at(CpuId(1)).free_bulk(&mut frames);
        }
        let refills = pool.counters().refills - before.0;
        (refills, pool.zone_times().holds() - before.1 - refills)
    };
    pass(20_000);
    let (refills, drains) = pass(200_000);
    assert!(refills > 0 && drains > 0);
    assert!(
        refills <= 200_000 / 512 && drains <= 200_000 / 512,
        "{refills}, {drains}"
    );
    assert_conserved(&pool);
}

#[test]
fn frames_that_go_one_way_are_few() {
    // Goal: where one CPU allocates what another frees, the frames freed last are soon allocated
    // again, so that they are in a cache. Method: in a new pool, 256 frames at a time go from one
    // CPU to the other, which take turns. Distinct frames in all: two lists of a refill, one drain,
    // 256 and a tree; without the rule for frames that go one way, 19,000.
    const TURN: usize = 200_000;
    const PARCEL: usize = 256;
    let pool = pool_of(300_000, PoolConfig::new(2));
    let cpus = [CPU, CpuId(1)];
    let cap = pool.lists.lock(CPU).rules().cap() as usize;
    let mut seen = BTreeSet::new();
    for turn in 0..6 {
        for _ in 0..TURN / PARCEL {
            let mut frames = Vec::new();
            let out = pool.at(cpus[turn % 2]);
            assert_eq!(out.alloc_bulk(PARCEL, ORDINARY, &mut frames), PARCEL);
            seen.extend(frames.iter().map(Frame::pfn));
            pool.at(cpus[1 - turn % 2]).free_bulk(&mut frames);
        }
    }
    let most = 3 * cap + PARCEL + 4096;
    assert!(seen.len() <= most, "{}", seen.len());
    assert_conserved(&pool);
}

#[test]
fn a_refill_takes_frames_over_from_an_idle_list() {
    // Goal: where a refill would take fresh frames, those of an idle CPU's list go to the list that
    // is refilled, without passing the back end. Method: CPU 0 fills its list and is idle from then
    // on; CPU 1 takes as many frames as CPU 0 had. All frames that left the one list were taken
    // over, and nothing was drained. `tests/warm_frames.rs` checks how few fresh frames are
    // touched.
    const COUNT: usize = 4096;
    const NEXT: CpuId = CpuId(1);
    let pool = pool_of(1 << 16, PoolConfig::new(2));
    let take = |cpu: CpuId| {
        let mut frames = Vec::new();
        let taken = pool.at(cpu).alloc_bulk(COUNT, ORDINARY, &mut frames);
        assert_eq!(taken, COUNT);
        frames
    };
    let mut first = take(CPU);
    pool.at(CPU).free_bulk(&mut first);
    let (held, before) = (list(&pool).count, pool.counters());
    assert!(held > 1024, "the list grew to {held}");
    let mut next = take(NEXT);
    let seen = pool.counters().since(&before);
    assert_eq!(
        (seen.recalled, seen.drained),
        (u64::from(held - list(&pool).count), 0),
        "what CPU 0 lost was taken over"
    );
    assert!(seen.recalled > 0);
    pool.at(NEXT).free_bulk(&mut next);
    assert_conserved(&pool);
}

#[test]
fn refills_that_meet_in_a_list_leave_it_near_its_size() {
    // Goal: a list holds at most `high` frames and a batch for each thread that refills it, however
    // many threads found it empty at the same time; the others go to the zones. Method: a list of a
    // fixed size gets what two refills bring.
    let config = PoolConfig {
        tunables: tunables(5, 100),
        ..PoolConfig::new(1)
    };
    let pool = pool_of(100_000, config);
    let (high, batch) = (list(&pool).high, list(&pool).batch);
    let mut frames = Vec::new();
    pool.at(CPU)
        .alloc_bulk(2 * high as usize, ORDINARY, &mut frames);
    pool.drain_all();
    let mut scratch = TransferScratch::take();
    for _ in 0..2 {
        scratch.frames.extend(frames.drain(..high as usize));
        pool.lists.lock(CPU).put(&mut scratch);
    }
    assert_eq!(list(&pool).count, high + batch);
    frames.append(&mut scratch.frames);
    assert_eq!(frames.len(), (high - batch) as usize);
    scratch.keep();
    pool.at(CPU).free_bulk(&mut frames);
    assert_conserved(&pool);
}
