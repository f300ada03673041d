//! Lists in a pool: against the rules as arithmetic, against a bitmap, and with threads.

use std::collections::HashMap;

use super::policy::Rules;
use super::policy_tests::{Fixed, POLICIES};
use super::{IDLE_TICKS, PcpPolicy, PcpSizes};
use crate::frame::{
    AllocError, AllocFlags, AutoTuned, FramePool, ListInfo, PoolConfig, Tunables, Watermarks,
    Zeroing,
};
use crate::memmap::{Block, Frame, FrameMemory};
use crate::percpu::Regime;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::topology::Topology;
use crate::units::{CpuId, Order, Pages, Pfn};

/// Drains in one hold.
#[derive(Debug)]
pub(super) struct OneHold;

impl PcpPolicy for OneHold {
    fn piece(&self, _: &Rules, count: u32) -> u32 {
        count
    }
}

/// Drains in pieces of a batch, as for a back end behind a lock.
#[derive(Debug)]
pub(super) struct Pieces;

impl PcpPolicy for Pieces {
    fn piece(&self, rules: &Rules, count: u32) -> u32 {
        rules.batch.min(count)
    }
}

/// How a list drains: all at once, and within the cap.
pub(super) const DRAINS: [&dyn PcpPolicy; 2] = [&OneHold, &AutoTuned];
pub(super) const ORDINARY: AllocFlags = AllocFlags::new();
pub(super) const RESERVE: AllocFlags = AllocFlags::new().use_reserve();
pub(super) const CPU: CpuId = CpuId(0);

pub(super) fn pool_of(pages: u64, config: PoolConfig) -> FramePool {
    let memory = Arc::new(FrameMemory::new(Pages(pages)).expect("a small range"));
    FramePool::with_config(memory, config).expect("a pool")
}

pub(super) fn tunables(scale: i64, fraction: i64) -> Tunables {
    let tunables = Tunables::default().with("pcp_batch_scale_max", scale);
    let tunables =
        tunables.and_then(|tunables| tunables.with("percpu_pagelist_high_fraction", fraction));
    tunables.expect("in range")
}

/// Every policy and drain.
fn all_configs(nr_cpus: usize) -> impl Iterator<Item = PoolConfig> {
    let policies = [&OneHold as &dyn PcpPolicy].into_iter().chain(POLICIES);
    policies.map(move |policy| PoolConfig {
        policy,
        ..PoolConfig::new(nr_cpus)
    })
}

/// Checks that all frames are back and in the back end.
pub(super) fn assert_conserved(pool: &FramePool) {
    pool.check_invariants();
    let before = pool.counts();
    assert_eq!(before.allocated, Pages::ZERO);
    assert_eq!(pool.drain_all(), before.cached);
    let after = pool.counts();
    assert_eq!(after.cached, Pages::ZERO);
    assert_eq!(after.free + after.deferred, pool.managed());
    pool.check_invariants();
}

/// Returns the list of the first CPU.
pub(super) fn list(pool: &FramePool) -> ListInfo {
    pool.zoneinfo().lists[0]
}

/// Tracks the frames held, by a stamp in each one's bytes and a map.
struct Holder<'a> {
    pool: &'a FramePool,
    frames: Vec<Frame>,
    blocks: Vec<Block>,
    held: HashMap<Pfn, Order>,
}

impl Holder<'_> {
    fn take(&mut self, cpu: CpuId, order: Order, flags: AllocFlags) {
        if order != Order::ZERO {
            let Ok(block) = self.pool.at(cpu).alloc_block(order, flags) else {
                return;
            };
            self.claim(block.pfn(), order);
            self.blocks.push(block);
        } else if let Ok(frame) = self.pool.at(cpu).alloc_with(flags) {
            self.claim(frame.pfn(), order);
            self.frames.push(frame);
        }
    }

    fn claim(&mut self, first: Pfn, order: Order) {
        for pfn in first.0..first.0 + (1 << order.get()) {
            assert!(
                self.held.insert(Pfn(pfn), order).is_none(),
                "F{pfn} was handed out twice"
            );
        }
    }

    fn give(&mut self, cpu: CpuId, random: &mut fastrand::Rng) {
        if random.u8(..5) == 0 && !self.blocks.is_empty() {
            let block = self.blocks.swap_remove(random.usize(..self.blocks.len()));
            let first = block.pfn().0;
            for pfn in first..first + (1 << block.order().get()) {
                self.held.remove(&Pfn(pfn));
            }
            self.pool.at(cpu).free_block(block);
        } else if !self.frames.is_empty() {
            let frame = self.frames.swap_remove(random.usize(..self.frames.len()));
            self.held.remove(&frame.pfn());
            match random.u8(..8) {
                0 => self.pool.free_non_blocking(frame),
                _ => self.pool.at(cpu).free(frame),
            }
        }
    }
}

#[test]
fn every_back_end_conserves_frames_under_every_policy() {
    // Goal: items 1, 2, 4, 6 and 8 to 10 on real lists. Method: random use as three CPUs by every
    // kind of request, with drains, decays, tunables, reclaim and disabled lists in between; a map
    // holds the expected state, and the pool recounts.
    let mut random = crate::seed::rng(42);
    for config in all_configs(3) {
        let pool = pool_of(6000, config);
        let mut holder = Holder {
            pool: &pool,
            frames: Vec::new(),
            blocks: Vec::new(),
            held: HashMap::new(),
        };
        for step in 0..4000 {
            let cpu = CpuId(random.u32(..3));
            match random.u16(..1000) {
                0..4 => drop(pool.drain(cpu)),
                4..8 => drop(pool.decay_tick()),
                8..12 => {
                    let fraction = *random.choice([-1, 0, 0, 8, 100].iter()).expect("some");
                    pool.set_tunables(tunables(random.i64(0..=6), fraction));
                }
                12..14 => {
                    let _disabled = pool.disable_lists();
                    assert_eq!(pool.counts().cached, Pages::ZERO, "item 8");
                    pool.at(cpu)
                        .alloc_with(RESERVE)
                        .into_iter()
                        .for_each(|frame| pool.at(cpu).free(frame));
                    assert_eq!(pool.counts().cached, Pages::ZERO, "item 8");
                }
                14..16 => {
                    let _reclaiming = pool.reclaiming();
                    (0..50).for_each(|_| holder.give(cpu, &mut random));
                }
                16..500 => holder.give(cpu, &mut random),
                _ => {
                    let order = if random.u8(..10) == 0 {
                        random.u8(1..=9)
                    } else {
                        0
                    };
                    let flags = if random.bool() {
                        ORDINARY
                    } else {
                        RESERVE.non_blocking()
                    };
                    holder.take(cpu, Order::new(order).expect("in range"), flags);
                }
            }
            if step % 500 == 0 {
                assert_eq!(pool.counts().allocated, Pages(holder.held.len() as u64));
                pool.check_invariants();
                let cap = 63 << pool.tunables().get("pcp_batch_scale_max").expect("a knob");
                for list in pool.zoneinfo().lists {
                    assert!(i64::from(list.free_run) <= cap);
                }
            }
        }
        while !holder.held.is_empty() {
            holder.give(CPU, &mut random);
        }
        assert_conserved(&pool);
    }
}

#[test]
fn transfers_of_a_pool_are_bounded() {
    // Goal: item 3 as the zone sees it. Method: depth that comes and goes by 3,000 frames on one
    // CPU; frames per hold, as the back end recorded them, are a batch in pieces without scale, and
    // at most the cap in one hold.
    let cases: [(&dyn PcpPolicy, i64, u64); 3] =
        [(&AutoTuned, 0, 64), (&Fixed, 0, 64), (&Fixed, 3, 512)];
    for (policy, scale, most) in cases {
        let config = PoolConfig {
            policy,
            tunables: tunables(scale, 0),
            ..PoolConfig::new(1)
        };
        let pool = pool_of(300_000, config);
        let mut frames = Vec::new();
        for _ in 0..4 {
            frames.extend((0..3000).map(|_| pool.at(CPU).alloc_with(ORDINARY).expect("frames")));
            frames.drain(..).for_each(|frame| pool.at(CPU).free(frame));
        }
        let times = pool.zone_times();
        let largest = times.work.buckets().last().map(|(floor, _)| floor);
        assert!(
            largest.is_some_and(|floor| floor < most),
            "{policy:?}: {largest:?}"
        );
    }
}

#[test]
fn lists_follow_depth_and_decay_when_it_is_gone() {
    // Goal: item 7 and the purpose of auto-tuning. Method: a loop of 10,000 frames out and back:
    // the second time the zones are hardly visited; then ticks, until the list is small and, being
    // idle, empty.
    let pool = pool_of(300_000, PoolConfig::new(1));
    let mut frames = Vec::new();
    let mut round = || {
        let before = pool.counters();
        assert_eq!(
            pool.at(CPU).alloc_bulk(10_000, ORDINARY, &mut frames),
            10_000
        );
        pool.at(CPU).free_bulk(&mut frames);
        pool.counters().since(&before)
    };
    assert!(round().refilled >= 10_000);
    let last = (0..12).map(|_| round()).last().expect("rounds");
    assert_eq!(
        (last.refilled, last.drained),
        (0, 0),
        "the list holds them all"
    );
    let grown = list(&pool);
    assert!(grown.high > grown.high_min && grown.count >= 10_000);
    let mut ticks = 0;
    while list(&pool).high > grown.high_min {
        assert!(pool.decay_tick() <= Pages(63 << 5));
        ticks += 1;
        assert!(ticks < 100, "{:?}", list(&pool));
    }
    assert!(list(&pool).count <= grown.high_min);
    for _ in 0..=IDLE_TICKS {
        pool.decay_tick();
    }
    assert_eq!(list(&pool).count, 0, "unused for a minute");
    assert_conserved(&pool);
}

#[test]
fn lists_keep_little_while_memory_is_short() {
    // Goal: the coupling to watermarks. Method: a list that has grown; another CPU takes every free
    // frame, before and after each free of the first, whose list falls to its minimum; when enough
    // is free again, lists may grow.
    let pool = pool_of(100_000, PoolConfig::new(2));
    let mut frames = Vec::new();
    for _ in 0..6 {
        pool.at(CPU).alloc_bulk(5000, ORDINARY, &mut frames);
        pool.at(CPU).free_bulk(&mut frames);
    }
    let high_min = list(&pool).high_min;
    assert!(list(&pool).high >= 2 * high_min, "{:?}", list(&pool));
    pool.at(CPU).alloc_bulk(1000, ORDINARY, &mut frames);
    let mut taken = Vec::new();
    for frame in frames.drain(..) {
        while let Ok(frame) = pool.at(CpuId(1)).alloc_with(RESERVE) {
            taken.push(frame);
        }
        assert!(pool.zoneinfo().below_high);
        pool.at(CPU).free(frame);
    }
    let now = list(&pool);
    assert_eq!(now.high, high_min, "{now:?}");
    assert!(now.count < now.high_min, "{now:?}");
    pool.at(CpuId(1)).free_bulk(&mut taken);
    assert!(!pool.zoneinfo().below_high, "enough was freed");
    assert_conserved(&pool);
}

#[test]
fn knobs_turn_while_the_pool_runs() {
    // Goal: a change is in force when the call returns, and is visible. Method: fill lists; make
    // them small, large, and disabled.
    let pool = pool_of(300_000, PoolConfig::new(1));
    let mut frames = Vec::new();
    pool.at(CPU).alloc_bulk(20_000, ORDINARY, &mut frames);
    pool.at(CPU).free_bulk(&mut frames);
    pool.set_tunables(tunables(0, -1));
    let small = list(&pool);
    assert_eq!(
        (small.high, small.high_min, small.high_max),
        (252, 252, 252)
    );
    assert!(small.count <= 252 && small.free_run <= 63, "{small:?}");
    assert_eq!(small.batch, 63);
    pool.set_tunables(tunables(5, 8));
    assert_eq!(list(&pool).high, 300_000 / 8);
    let wide = Tunables::default()
        .with("watermark_scale_factor", 1000)
        .expect("in range");
    pool.set_tunables(wide);
    assert_eq!(
        pool.watermarks(),
        Watermarks::for_managed(Pages(300_000), &wide)
    );
    let sizes = PcpSizes::for_managed(Pages(300_000), pool.watermarks().low, 1, &wide);
    assert_eq!(list(&pool).high_min, sizes.high_min);
    let text = pool.zoneinfo().to_string();
    assert!(
        text.contains("high_min: ") && text.contains("    cpu: 0\n"),
        "{text}"
    );
    assert!(text.ends_with(&wide.to_string()), "{text}");
    assert!(text.contains("vm.watermark_scale_factor = 1000\n"));
    assert_conserved(&pool);
}

#[test]
fn a_free_that_may_not_wait_passes_by_who_holds_the_list() {
    // Goal: item 9. Method: the list is held; frees that may not wait return, and their frames are
    // free or deferred; after normal frees nothing is deferred.
    let pool = pool_of(100_000, PoolConfig::new(1));
    let mut frames = Vec::new();
    pool.at(CPU).alloc_bulk(100, ORDINARY, &mut frames);
    let held = pool.lists.lock(CPU);
    assert!(
        pool.at(CPU)
            .alloc_with(ORDINARY.non_blocking())
            .is_ok_and(|frame| {
                frames.push(frame);
                true
            })
    );
    let before = pool.nr_free() + pool.counts().deferred;
    frames
        .drain(..50)
        .for_each(|frame| pool.free_non_blocking(frame));
    assert_eq!(pool.nr_free() + pool.counts().deferred, before + Pages(50));
    drop(held);
    pool.at(CPU).free_bulk(&mut frames);
    pool.drain_all();
    assert_eq!(pool.counts().deferred, Pages::ZERO);
    assert_conserved(&pool);
}

#[test]
fn frames_are_zeroed_when_the_policy_says_so() {
    for (zeroing, flags, is_zero) in [
        (Zeroing::OnRequest, ORDINARY, false),
        (Zeroing::OnRequest, ORDINARY.zero(), true),
        (Zeroing::OnAlloc, ORDINARY, true),
        (Zeroing::OnFree, ORDINARY, true),
    ] {
        let pool = pool_of(
            100_000,
            PoolConfig {
                zeroing,
                ..PoolConfig::new(1)
            },
        );
        let mut frame = pool.at(CPU).alloc_with(flags).expect("frames");
        pool.memory().bytes_mut(&mut frame)[17] = 1;
        pool.at(CPU).free(frame);
        let frame = pool.at(CPU).alloc_with(flags).expect("frames");
        assert_eq!(pool.memory().bytes(&frame)[17] == 0, is_zero, "{zeroing}");
        pool.at(CPU).free(frame);
        let order = Order::new(2).expect("in range");
        let mut block = pool.at(CPU).alloc_block(order, flags).expect("blocks");
        pool.memory().block_bytes_mut(&mut block)[5000] = 1;
        pool.at(CPU).free_block(block);
        let block = pool.at(CPU).alloc_block(order, flags).expect("blocks");
        assert_eq!(
            pool.memory().block_bytes(&block)[5000] == 0,
            is_zero,
            "{zeroing}"
        );
        pool.at(CPU).free_block(block);
    }
}

#[test]
fn a_refusal_says_why() {
    let pool = pool_of(1024, PoolConfig::new(1));
    let mut frames = Vec::new();
    pool.at(CPU).alloc_bulk(2000, RESERVE, &mut frames);
    assert_eq!(frames.len(), 1024);
    let error = pool.at(CPU).alloc_with(RESERVE).expect_err("all are taken");
    assert_eq!(
        error.to_string(),
        "no free frame: 0 pages of 1024 pages are free and 8 pages are kept in reserve"
    );
    // Every other frame: half of all are free, and no two side by side.
    frames.sort_by_key(Frame::pfn);
    for (at, frame) in std::mem::take(&mut frames).into_iter().enumerate() {
        match at % 2 {
            0 => pool.at(CPU).free(frame),
            _ => frames.push(frame),
        }
    }
    pool.drain_all();
    let order = Order::new(1).expect("in range");
    let error = pool
        .at(CPU)
        .alloc_block(order, ORDINARY)
        .expect_err("fragments");
    assert_eq!(
        error,
        AllocError::Fragmented {
            pages: order.pages(),
            free: Pages(512)
        }
    );
    assert_eq!(
        error.to_string(),
        "512 pages are free, but no block of 2 pages"
    );
    pool.at(CPU).free_bulk(&mut frames);
    assert_conserved(&pool);
}

#[test]
fn threads_use_lists_while_others_drain_them() {
    // Goal: nothing is lost or handed out twice, in both regimes. Method: threads that allocate,
    // stamp, check the stamp and free, on lists that others drain, decay, resize and disable
    // meanwhile.
    let detected = Topology::detect();
    let preferred = (Regime::preferred(&detected), detected.nr_cpus());
    let seed = crate::seed::seed(43);
    for (regime, nr_cpus) in [preferred, (Regime::Atomic, 2)] {
        let pool = pool_of(
            8000,
            PoolConfig {
                regime,
                ..PoolConfig::new(nr_cpus)
            },
        );
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|thread| {
                    let pool = &pool;
                    scope.spawn(move || take_and_give(pool, seed + thread))
                })
                .collect();
            scope.spawn(|| disturb(&pool, &is_over));
            workers
                .into_iter()
                .for_each(|worker| worker.join().expect("no panic"));
            is_over.store(true, Ordering::Relaxed);
        });
        assert_conserved(&pool);
    }
}

fn take_and_give(pool: &FramePool, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let stamp = u8::try_from(seed % 251).expect("below 251") + 1;
    let mut held = Vec::new();
    for _ in 0..6000 {
        if held.len() < 1500 && random.u8(..) < 130 {
            let Ok(mut frame) = pool.alloc() else {
                continue;
            };
            pool.memory().bytes_mut(&mut frame)[0] = stamp;
            held.push(frame);
        } else if !held.is_empty() {
            let frame = held.swap_remove(random.usize(..held.len()));
            assert_eq!(
                pool.memory().bytes(&frame)[0],
                stamp,
                "another thread has it"
            );
            pool.free(frame);
        }
        if random.u8(..) == 0 {
            let order = Order::new(random.u8(1..=3)).expect("in range");
            pool.alloc_block(order, ORDINARY)
                .into_iter()
                .for_each(|block| pool.free_block(block));
        }
    }
    pool.free_bulk(&mut held);
}

/// Does everything to a pool that its users do not: drains, decays, tunables.
fn disturb(pool: &FramePool, is_over: &AtomicBool) {
    for round in 0.. {
        // Relaxed: the end may be seen late.
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        match round % 5 {
            0 => drop(pool.drain_all()),
            1 => drop(pool.decay_tick()),
            2 => pool.set_tunables(tunables(round % 7, if round % 2 == 0 { 0 } else { 8 })),
            3 => drop(pool.reclaiming()),
            _ => drop(pool.disable_lists()),
        }
        std::thread::yield_now();
    }
}
