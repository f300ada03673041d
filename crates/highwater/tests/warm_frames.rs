//! Promise: a used frame is allocated before one that was never used, so that a program touches as
//! much memory as it uses at once, and not the whole pool.

#[path = "../src/seed.rs"]
mod seed;

use std::sync::{Arc, Barrier};
use std::thread;

use highwater::frame::{AllocFlags, FramePool, Leaving};
use highwater::lab::memmap::{Block, Frame, FrameMemory};
use highwater::units::{CpuId, Order, Pages};

/// Frames in use at once.
const IN_USE: usize = 1 << 16;
/// Number of times that they are allocated and freed.
const ROUNDS: usize = 7;
/// Frames of a pool: eight times the number in use at once.
const POOL: Pages = Pages(1 << 19);
/// Limit on the touched frames, in percent of those in use at once.
const TOUCHED_PERCENT: usize = 110;

/// How frames are freed.
#[derive(Clone, Copy, Debug)]
enum Back {
    InOrder,
    InReverse,
    AtRandom,
}

/// Whether frames are allocated and freed all at once, or one at a time.
#[derive(Clone, Copy, Debug)]
enum Calls {
    Bulk,
    Single,
}

impl Calls {
    /// Allocates that many frames as a CPU.
    fn alloc(self, pool: &FramePool, cpu: CpuId, count: usize) -> Vec<Frame> {
        let (at, flags) = (pool.at(cpu), AllocFlags::new());
        let mut frames = Vec::with_capacity(count);
        match self {
            Self::Bulk => _ = at.alloc_bulk(count, flags, &mut frames),
            Self::Single => frames.extend((0..count).map_while(|_| at.alloc_with(flags).ok())),
        }
        assert_eq!(frames.len(), count, "the pool has frames");
        frames
    }

    /// Frees frames as a CPU.
    fn free(self, pool: &FramePool, cpu: CpuId, mut frames: Vec<Frame>) {
        match self {
            Self::Bulk => pool.at(cpu).free_bulk(&mut frames),
            Self::Single => frames
                .into_iter()
                .for_each(|frame| pool.at(cpu).free(frame)),
        }
    }
}

/// The CPUs of a round, and their parts in it.
#[derive(Clone, Copy, Debug)]
enum Cpus {
    /// One does everything.
    One,
    /// Each has its part of the frames.
    Share(usize),
    /// One allocates all frames and the next frees them, and in the next round the next two.
    TakeTurns(usize),
    /// One has all frames, and in the next round the next.
    PassOn(usize),
}

impl Cpus {
    fn count(self) -> usize {
        match self {
            Self::One => 1,
            Self::Share(count) | Self::TakeTurns(count) | Self::PassOn(count) => count,
        }
    }

    /// Returns the CPU that allocates a frame, and the one that frees it.
    fn of(self, round: usize, part: usize) -> [CpuId; 2] {
        let [out, back] = match self {
            Self::One => [0, 0],
            Self::Share(_) => [part, part],
            Self::TakeTurns(_) => [round, round + 1],
            Self::PassOn(_) => [round, round],
        };
        [out, back].map(|cpu| CpuId::from_index(cpu % self.count()))
    }
}

/// Frame numbers seen.
struct Touched(Vec<bool>);

impl Touched {
    fn new() -> Self {
        Self(vec![false; usize::try_from(POOL.0).expect("small")])
    }

    fn note(&mut self, frames: &[Frame]) {
        frames
            .iter()
            .for_each(|frame| self.0[frame.pfn().index()] = true);
    }

    fn and(mut self, other: Self) -> Self {
        let both = self.0.iter_mut().zip(other.0);
        both.for_each(|(is_touched, too)| *is_touched |= too);
        self
    }

    fn count(&self) -> usize {
        self.0.iter().filter(|&&is_touched| is_touched).count()
    }

    fn assert_few(&self, what: &str) {
        let (count, most) = (self.count(), IN_USE * TOUCHED_PERCENT / 100);
        assert!(
            count <= most,
            "{what}: {count} frames touched, {IN_USE} in use"
        );
    }
}

fn pool(nr_cpus: usize) -> FramePool {
    let memory = Arc::new(FrameMemory::new(POOL).expect("there is address space"));
    FramePool::new(memory, nr_cpus).expect("a pool")
}

fn order(frames: &mut [Frame], back: Back, rng: &mut fastrand::Rng) {
    match back {
        Back::InOrder => (),
        Back::InReverse => frames.reverse(),
        Back::AtRandom => rng.shuffle(frames),
    }
}

/// Allocates frames and frees them, round by round.
fn rounds(pool: &FramePool, cpus: Cpus, (calls, back): (Calls, Back), touched: &mut Touched) {
    let mut rng = seed::rng(15);
    let parts = match cpus {
        Cpus::Share(count) => count,
        _ => 1,
    };
    for round in 0..ROUNDS {
        let mut held: Vec<Vec<Frame>> = Vec::new();
        for part in 0..parts {
            let [out, _] = cpus.of(round, part);
            let mut frames = calls.alloc(pool, out, IN_USE / parts);
            touched.note(&frames);
            order(&mut frames, back, &mut rng);
            held.push(frames);
        }
        for (part, frames) in held.into_iter().enumerate() {
            let [_, cpu] = cpus.of(round, part);
            calls.free(pool, cpu, frames);
        }
    }
    pool.check_invariants();
}

#[test]
fn frames_that_come_back_are_taken_again_before_fresh_ones() {
    // Goal: seven rounds of the same number of frames touch hardly more than one, on any CPU and in
    // any order of frees, all at once or one at a time. Method: count frame numbers.
    let shapes = [
        Cpus::One,
        Cpus::Share(4),
        Cpus::TakeTurns(2),
        Cpus::TakeTurns(4),
        Cpus::PassOn(2),
        Cpus::PassOn(4),
    ];
    let backs = [Back::InOrder, Back::InReverse, Back::AtRandom];
    let ways = [Calls::Bulk, Calls::Single].into_iter();
    let ways = ways.flat_map(|calls| backs.map(|back| (calls, back)));
    for (cpus, way) in shapes
        .into_iter()
        .flat_map(|cpus| ways.clone().map(move |way| (cpus, way)))
    {
        let (pool, mut touched) = (pool(cpus.count()), Touched::new());
        rounds(&pool, cpus, way, &mut touched);
        touched.assert_few(&format!("{cpus:?}, {way:?}"));
    }
}

#[test]
fn threads_at_once_touch_hardly_more_frames_than_they_use() {
    // Goal: the same for concurrent threads, each with its part of the frames. Method: as above; a
    // frame that one of them frees may be allocated by another in the next round.
    const THREADS: usize = 4;
    let (pool, rounds) = (pool(THREADS), Barrier::new(THREADS));
    let touched = thread::scope(|scope| {
        let run = |thread| {
            let (mut touched, mut rng) = (Touched::new(), fastrand::Rng::with_seed(thread as u64));
            for round in 0..ROUNDS {
                let (mut frames, cpu) = (Vec::new(), CpuId::from_index((thread + round) % THREADS));
                pool.at(cpu)
                    .alloc_bulk(IN_USE / THREADS, AllocFlags::new(), &mut frames);
                touched.note(&frames);
                rounds.wait();
                rng.shuffle(&mut frames);
                pool.at(cpu).free_bulk(&mut frames);
                rounds.wait();
            }
            touched
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        let each = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"));
        each.reduce(Touched::and).expect("there are threads")
    });
    pool.check_invariants();
    touched.assert_few(&format!("{THREADS} threads"));
}

#[test]
fn blocks_that_come_back_are_taken_again_before_fresh_ones() {
    // Goal: the same for blocks of 32 KiB and of 2 MiB.
    for order in [Order::new(3).expect("in range"), Order::HUGE] {
        let (pool, mut touched, mut rng) = (pool(2), Touched::new(), seed::rng(16));
        for round in 0..ROUNDS {
            let cpu = CpuId::from_index(round % 2);
            let mut blocks: Vec<Block> = (0..IN_USE >> order.get())
                .map(|_| pool.at(cpu).alloc_block(order, AllocFlags::new()))
                .map(|block| block.expect("there are free blocks"))
                .collect();
            for block in &blocks {
                let first = block.pfn().index();
                touched.0[first..first + (1 << order.get())].fill(true);
            }
            rng.shuffle(&mut blocks);
            blocks
                .into_iter()
                .for_each(|block| pool.at(cpu).free_block(block));
        }
        pool.check_invariants();
        touched.assert_few(&format!("blocks of {order:?}"));
    }
}

/// Returns the memory of all free frames to the system.
type GiveBack = fn(&FramePool);

#[test]
fn frames_given_back_to_the_system_go_out_after_those_that_are_resident() {
    // Goal: trimmed frames, and those that were out of the pool, count as never used. Method: of
    // 16,384 frames a half is freed and trimmed, and of the other half a half is freed then: that
    // is allocated next.
    const ALL: usize = 1 << 14;
    let ways: [(&str, GiveBack); 2] = [
        ("trimmed", |pool| assert!(pool.trim() <= Pages(1 << 14))),
        ("resized", |pool| {
            let out = pool.inflate(Pages::MAX, Leaving::Nothing);
            assert_eq!(pool.deflate(out), out);
        }),
    ];
    for (name, give_back) in ways {
        let (pool, cpu) = (pool(1), CpuId(0));
        let take = |count: usize| {
            let mut frames = Vec::new();
            pool.at(cpu)
                .alloc_bulk(count, AllocFlags::new(), &mut frames);
            frames.sort_by_key(Frame::pfn);
            frames
        };
        let mut held = take(ALL);
        let mut given = held.split_off(ALL / 2);
        pool.at(cpu).free_bulk(&mut given);
        give_back(&pool);
        let mut resident = Touched::new();
        let mut freed = held.split_off(ALL / 4);
        resident.note(&freed);
        pool.at(cpu).free_bulk(&mut freed);
        pool.drain_all();
        let (next, used) = (take(ALL / 4), resident.count());
        resident.note(&next);
        let fresh = resident.count() - used;
        println!("{name}: {fresh} of {used} frames are fresh");
        assert!(fresh * 10 <= used, "{name}: {fresh} of {used} are fresh");
        held.extend(next);
        pool.at(cpu).free_bulk(&mut held);
        pool.check_invariants();
    }
}
