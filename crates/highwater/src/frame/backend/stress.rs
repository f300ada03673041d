//! Stress test: threads use one back end concurrently in every way, for a given time.
//!
//! Each thread marks the frames it holds in one table; a frame that is handed out twice is found
//! there, one that is lost at the end. Seconds for each kind: `STRESS_SECONDS`, or a fifth of one.
//! Command of the long run:
//! `STRESS_SECONDS=10 cargo test --release -p highwater --lib backend::stress`. The lab includes
//! this file for kinds of its own.

use std::time::{Duration, Instant};

use super::sync::atomic::{AtomicU32, Ordering};
use super::sync::thread;
use super::tests::{any_wait, take};
use super::*;

const THREADS: u32 = 6;
/// Few enough that requests reach the floor and contend with each other, and not a multiple of a
/// word.
const FRAMES: u32 = 6 * 1024 + 777;

/// By frame, the thread that holds it, or 0. Written by its holder (Relaxed: the back end must
/// order one holder after the other).
type Owners = [AtomicU32];

#[derive(Debug)]
struct Worker<'a> {
    backend: &'a dyn Backend,
    owners: &'a Owners,
    me: u32,
    rng: fastrand::Rng,
    held: Vec<(Order, Vec<Pfn>)>,
}

impl Worker<'_> {
    fn work_until(mut self, end: Instant) {
        while Instant::now() < end {
            for _ in 0..64 {
                // In phases, so that the pool is at times nearly empty and at times nearly full.
                if self.rng.u8(..) < if self.held.len() < 60 { 140 } else { 110 } {
                    self.request();
                } else {
                    self.give_back();
                }
            }
            if self.rng.u8(..) < 8 {
                while !self.held.is_empty() {
                    self.give_back();
                }
            }
        }
        while !self.held.is_empty() {
            self.give_back();
        }
    }

    fn request(&mut self) {
        let order = match self.rng.u8(..) {
            0..200 => 0,
            200..250 => self.rng.u8(1..=8),
            _ => self.rng.u8(9..=10),
        };
        let order = Order::new(order).expect("in range");
        let mut out = vec![Pfn(u32::MAX); 1 + (self.rng.usize(..130) >> order.get().min(7))];
        let floor = Pages(self.rng.u64(..500));
        let wait = any_wait(&mut self.rng);
        let near = CpuId(self.rng.u32(..4));
        let taken = self.backend.alloc_bulk(near, order, floor, wait, &mut out);
        out.truncate(taken);
        for frame in out.iter().flat_map(|&block| frames_of(block, order)) {
            let before = self.owners[frame].swap(self.me, Ordering::Relaxed);
            assert_eq!(before, 0, "frame {frame} was handed out twice");
        }
        if taken > 0 {
            self.held.push((order, out));
        }
    }

    fn give_back(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (whole, mut blocks) = self.held.swap_remove(self.rng.usize(..self.held.len()));
        self.rng.shuffle(&mut blocks);
        let kept = blocks.split_off(1 + self.rng.usize(..blocks.len()));
        if !kept.is_empty() {
            self.held.push((whole, kept));
        }
        let mut order = whole;
        if self.rng.u8(..) < 40 {
            order = Order::new(self.rng.u8(..=whole.get())).expect("below the whole");
            let parts = |&block: &Pfn| frames_of(block, whole).step_by(1 << order.get());
            blocks = blocks.iter().flat_map(parts).map(Pfn::from_index).collect();
        }
        for frame in blocks.iter().flat_map(|&block| frames_of(block, order)) {
            let before = self.owners[frame].swap(0, Ordering::Relaxed);
            assert_eq!(before, self.me, "frame {frame} changed hands");
        }
        let near = CpuId(self.rng.u32(..4));
        let wait = any_wait(&mut self.rng);
        self.backend.free_bulk(near, order, wait, &mut blocks);
    }
}

fn frames_of(block: Pfn, order: Order) -> Range<usize> {
    block.index()..block.index() + (1 << order.get())
}

fn seconds() -> Duration {
    let given = std::env::var("STRESS_SECONDS").ok();
    given.map_or(Duration::from_millis(200), |seconds| {
        Duration::from_secs(seconds.parse().expect("STRESS_SECONDS is a number"))
    })
}

/// Maximum frames that a thread of [`requests_within_the_pool_are_met`] has.
const SHARE: usize = 100;

fn hold_a_share(backend: &dyn Backend, kind: Kind, seed: u64, turns: usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut held: Vec<Pfn> = Vec::new();
    for turn in 0..turns {
        let near = CpuId(rng.u32(..4));
        // Most of the time its whole share.
        let most = if rng.bool() { SHARE } else { 40 };
        let mut out = vec![Pfn(u32::MAX); most.min(SHARE - held.len())];
        let wanted = out.len();
        let taken = backend.alloc_bulk(near, Order::ZERO, Pages::ZERO, Wait::Allowed, &mut out);
        assert_eq!(taken, wanted, "{kind}: turn {turn} of seed {seed}");
        held.extend(out);
        rng.shuffle(&mut held);
        let mut back = held.split_off(held.len() - rng.usize(..=held.len().min(50)));
        let wait = any_wait(&mut rng);
        for part in back.chunks_mut(1 + rng.usize(..40)) {
            backend.free_bulk(near, Order::ZERO, wait, part);
        }
    }
    backend.free_bulk(CpuId(0), Order::ZERO, Wait::Never, &mut held);
}

/// Counts down when its thread ends, even by a panic.
struct OneLess<'a>(&'a AtomicU32);

impl Drop for OneLess<'_> {
    fn drop(&mut self) {
        // Relaxed: only ends the loop.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Requests blocks that do not exist, and single frames that never wait: neither may cost others
/// anything.
fn ask_in_vain(backend: &dyn Backend, seed: u64, holders: &AtomicU32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut out = [Pfn(u32::MAX); 32];
    // Relaxed: only ends the loop.
    while holders.load(Ordering::Relaxed) > 0 {
        let order = Order::new(rng.u8(1..=10)).expect("in range");
        let near = CpuId(rng.u32(..4));
        let wait = any_wait(&mut rng);
        let taken = backend.alloc_bulk(near, order, Pages::ZERO, wait, &mut out);
        assert_eq!(taken, 0, "no two neighbours are free");
    }
}

#[test]
fn requests_within_the_pool_are_met() {
    // Goal: no false exhaustion: a request for single frames that may wait gets all of them when
    // others hold so little that they are there, also while frames are deferred and spliced, and
    // beside requests for blocks that do not exist. Method: one frame in 16 is free; four threads
    // hold at most a share of these each, and some of their frees never wait; two threads request
    // blocks, of which there are none.
    let seed = seed::seed(7);
    for kind in KINDS {
        let backend = kind.build(FRAMES, 4);
        let all = take(&*backend, FRAMES as usize, 0);
        let (mut free, mut kept): (Vec<_>, Vec<_>) =
            all.iter().partition(|frame| frame.0 % 16 == 0);
        kept.extend(free.split_off(4 * SHARE));
        backend.free_bulk(CpuId(0), Order::ZERO, Wait::Allowed, &mut free);
        let holders = AtomicU32::new(4);
        thread::scope(|scope| {
            let (backend, holders) = (&*backend, &holders);
            for thread in 0..4 {
                scope.spawn(move || {
                    let done = OneLess(holders);
                    hold_a_share(backend, kind, seed.wrapping_add(thread), 3000);
                    drop(done);
                });
            }
            for thread in 4..6 {
                scope.spawn(move || ask_in_vain(backend, seed.wrapping_add(thread), holders));
            }
        });
        backend.free_bulk(CpuId(0), Order::ZERO, Wait::Allowed, &mut kept);
        backend.splice();
        backend.check_invariants();
        assert_eq!(backend.nr_free(), Pages(u64::from(FRAMES)), "{kind}");
    }
}

#[test]
fn no_kind_loses_a_frame_or_hands_it_out_twice() {
    let seed = seed::seed(3);
    for kind in KINDS {
        let backend = kind.build(FRAMES, 4);
        let untouched = backend.free_runs();
        let owners: Vec<_> = (0..FRAMES).map(|_| AtomicU32::new(0)).collect();
        let end = Instant::now() + seconds();
        thread::scope(|scope| {
            for me in 1..=THREADS {
                let worker = Worker {
                    backend: &*backend,
                    owners: &owners,
                    me,
                    rng: fastrand::Rng::with_seed(seed.wrapping_add(u64::from(me))),
                    held: Vec::new(),
                };
                scope.spawn(move || worker.work_until(end));
            }
        });
        // The next request that may wait finds the deferred frames, and everything is free and
        // whole.
        let mut all = take(&*backend, FRAMES as usize, 0);
        assert_eq!(all.len(), FRAMES as usize, "{kind}");
        backend.free_bulk(CpuId(0), Order::ZERO, Wait::Allowed, &mut all);
        backend.check_invariants();
        assert_eq!(backend.free_runs(), untouched, "{kind}");
        println!("{kind}: {} visits", backend.times().holds());
    }
}
