//! Threads that do everything at once to one back end, for as long as they are told.
//!
//! Each thread marks what it holds in one table; a frame that is handed out twice is found there, one
//! that is lost at the end. Seconds for each kind: `STRESS_SECONDS`, or a fifth of one. Command of the long run:
//! `STRESS_SECONDS=10 cargo test --release -p highwater --lib backend::stress`.

use std::time::{Duration, Instant};

use super::tests::{KINDS, any_wait, take};
use super::*;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::thread;

const THREADS: u32 = 6;
/// Few enough that requests run into the floor and into each other, and not whole words.
const FRAMES: u32 = 6 * 1024 + 777;

/// By frame, the thread that holds it, or 0. Written by its holder (Relaxed: the back end has to order
/// one holder after the other).
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

fn frames_of(block: Pfn, order: Order) -> std::ops::Range<usize> {
    block.index()..block.index() + (1 << order.get())
}

fn seconds() -> Duration {
    let given = std::env::var("STRESS_SECONDS").ok();
    given.map_or(Duration::from_millis(200), |seconds| {
        Duration::from_secs(seconds.parse().expect("STRESS_SECONDS is a number"))
    })
}

#[test]
fn no_kind_loses_a_frame_or_hands_it_out_twice() {
    let seed = crate::seed::seed(3);
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
        // The next one who may wait finds what was deferred, and everything is free and whole.
        let mut all = take(&*backend, FRAMES as usize, 0);
        assert_eq!(all.len(), FRAMES as usize, "{kind}");
        backend.free_bulk(CpuId(0), Order::ZERO, Wait::Allowed, &mut all);
        backend.check_invariants();
        assert_eq!(backend.free_runs(), untouched, "{kind}");
        println!("{kind}: {} visits", backend.times().holds());
    }
}
