//! Workloads for allocators of page-sized blocks, the same for every allocator. Each is run twice:
//! no block's bytes are touched, so that the allocator alone is timed; and a byte of each block is
//! written when it is allocated, as programs do, so that the memory is timed too: cache misses, and
//! page faults for blocks that were never used.
//!
//! | work | on each thread |
//! |---|---|
//! | hot pair | allocate one block, free it |
//! | churn | of 16,384 live blocks, replace one that is drawn at random: allocate, free |
//! | 64 Ki out and back | allocate 65,536 blocks, free them in random order |
//! | handed over | one thread allocates 256 blocks, another frees them; a thread that is alone, or shares nothing, does both |
//!
//! The module `bystander` measures the latency of one thread while others run the third of these.

pub(crate) mod bystander;

use std::hint::{black_box, spin_loop};
use std::mem;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

pub(crate) use bystander::{Latency, bystander};

use crate::timing::{Round, round};

/// Blocks that a thread of the churn holds at a time: a power of two.
const LIVE: u32 = 1 << 14;
/// Blocks that are taken out at once.
const OUT: u32 = 1 << 16;
/// Blocks that are handed over together.
const PARCEL: u32 = 256;
/// Parcels in transit.
const PARCELS: usize = 8;

/// An allocator of blocks for several threads.
pub(crate) trait Source: Sync {
    type Block: Send;
    /// The state of each thread.
    type Local;

    /// Whether one thread may free what another has allocated.
    const IS_SHARED: bool = true;
    /// Whether blocks are memory, and not mere numbers.
    const IS_MEMORY: bool = true;

    fn local(&self) -> Self::Local;
    fn alloc(&self, local: &mut Self::Local) -> Self::Block;
    /// Writes the block's first byte; nothing where blocks are numbers.
    fn write(&self, local: &mut Self::Local, block: &mut Self::Block);
    fn free(&self, local: &mut Self::Local, block: Self::Block);
}

/// The use of a block's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Untouched,
    /// A byte is written when the block is allocated.
    Written,
}

impl Access {
    /// Written first: an allocator hands out again what was out before, and blocks that were out
    /// without being touched are not resident yet.
    pub(crate) const ALL: [Self; 2] = [Self::Written, Self::Untouched];

    /// Returns the suffix of a workload's name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Untouched => "",
            Self::Written => ", each written",
        }
    }
}

/// A source whose blocks are written when they are allocated.
struct Writing<'a, S>(&'a S);

impl<S: Source> Source for Writing<'_, S> {
    type Block = S::Block;
    type Local = S::Local;

    const IS_SHARED: bool = S::IS_SHARED;

    fn local(&self) -> S::Local {
        self.0.local()
    }

    #[inline]
    fn alloc(&self, local: &mut S::Local) -> S::Block {
        let mut block = self.0.alloc(local);
        self.0.write(local, &mut block);
        block
    }

    #[inline]
    fn write(&self, local: &mut S::Local, block: &mut S::Block) {
        self.0.write(local, block);
    }

    #[inline]
    fn free(&self, local: &mut S::Local, block: S::Block) {
        self.0.free(local, block);
    }
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    HotPair,
    Churn,
    OutAndBack,
    HandedOver,
}

impl Work {
    pub(crate) const ALL: [Self; 4] = [
        Self::HotPair,
        Self::Churn,
        Self::OutAndBack,
        Self::HandedOver,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HotPair => "hot pair",
            Self::Churn => "churn over 16,384 live blocks",
            Self::OutAndBack => "64 Ki out and back at random",
            Self::HandedOver => "256 at a time, handed over",
        }
    }

    /// Blocks that each thread allocates in a round: not so many that threads seldom run at once
    /// for so long.
    pub(crate) fn times(self) -> u32 {
        match self {
            Self::HotPair | Self::Churn | Self::HandedOver => 1 << 18,
            Self::OutAndBack => OUT,
        }
    }

    /// Times a round: nanoseconds for each block, out and back.
    pub(crate) fn time<S: Source>(
        self,
        access: Access,
        source: &S,
        threads: u32,
        times: u32,
    ) -> Round {
        match access {
            Access::Untouched => self.time_of(source, threads, times),
            Access::Written => self.time_of(&Writing(source), threads, times),
        }
    }

    fn time_of<S: Source>(self, source: &S, threads: u32, times: u32) -> Round {
        let prepare = |_| Worker::new(source);
        match self {
            Self::HotPair => round(threads, times, &prepare, &Worker::hot_pair),
            Self::Churn => {
                let prepare = |_| Worker::new(source).with_live();
                round(threads, times, &prepare, &Worker::churn)
            }
            Self::OutAndBack => round(threads, times, &prepare, &Worker::out_and_back),
            Self::HandedOver if threads == 1 || !S::IS_SHARED => {
                round(threads, times, &prepare, &Worker::parcels)
            }
            Self::HandedOver => hand_over(source, threads, times),
        }
    }
}

/// Resident memory of this process, in MiB.
pub(crate) fn resident_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.map_or(f64::NAN, |kib: f64| kib / 1024.0)
}

/// A thread's part.
struct Worker<'a, S: Source> {
    source: &'a S,
    local: S::Local,
    live: Vec<S::Block>,
    draws: Draws,
}

impl<'a, S: Source> Worker<'a, S> {
    fn new(source: &'a S) -> Self {
        Self {
            source,
            local: source.local(),
            live: Vec::with_capacity(OUT as usize),
            draws: Draws(1),
        }
    }

    /// With live blocks that lie anywhere, as after a while of churn.
    fn with_live(mut self) -> Self {
        self.take(LIVE);
        self.churn(4 * LIVE);
        self
    }

    fn take(&mut self, blocks: u32) {
        for _ in 0..blocks {
            self.live.push(self.source.alloc(&mut self.local));
        }
    }

    fn hot_pair(&mut self, times: u32) {
        for _ in 0..times {
            let block = black_box(self.source.alloc(&mut self.local));
            self.source.free(&mut self.local, block);
        }
    }

    fn churn(&mut self, times: u32) {
        for _ in 0..times {
            let at = self.draws.below(LIVE) as usize;
            let new = self.source.alloc(&mut self.local);
            let old = mem::replace(&mut self.live[at], new);
            self.source.free(&mut self.local, old);
        }
    }

    fn out_and_back(&mut self, times: u32) {
        let mut left = times;
        while left > 0 {
            let blocks = left.min(OUT);
            self.take(blocks);
            for live in (1..=blocks).rev() {
                let at = self.draws.below(live) as usize;
                let block = self.live.swap_remove(at);
                self.source.free(&mut self.local, block);
            }
            left -= blocks;
        }
    }

    /// Runs [`hand_over`] on one thread.
    fn parcels(&mut self, times: u32) {
        for _ in 0..times.div_ceil(PARCEL) {
            self.take(PARCEL);
            for block in black_box(&mut self.live).drain(..) {
                self.source.free(&mut self.local, block);
            }
        }
    }
}

impl<S: Source> Drop for Worker<'_, S> {
    fn drop(&mut self) {
        for block in self.live.drain(..) {
            self.source.free(&mut self.local, block);
        }
    }
}

/// Random numbers: the same sequence for every source.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u32) -> u32 {
        // The multiplier is Knuth's (MMIX); the upper half is the random one.
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        let drawn = ((self.0 >> 32) * u64::from(end)) >> 32;
        u32::try_from(drawn).expect("below a number of 32 bits")
    }
}

/// One end of a pair of threads, of which one allocates and the other frees.
enum End<B> {
    Allocates {
        full: SyncSender<Vec<B>>,
        empty: Receiver<Vec<B>>,
    },
    Frees {
        full: Receiver<Vec<B>>,
        empty: SyncSender<Vec<B>>,
    },
}

/// Times pairs of threads. Each block counts once for each of the two, so that a pair which takes
/// as long as one thread takes for both has the same figure.
fn hand_over<S: Source>(source: &S, threads: u32, times: u32) -> Round {
    let pairs = (0..threads / 2).flat_map(|_| {
        let (full_in, full_out) = sync_channel(PARCELS);
        let (empty_in, empty_out) = sync_channel(PARCELS);
        for _ in 0..PARCELS {
            let parcel = Vec::with_capacity(PARCEL as usize);
            empty_in.send(parcel).expect("there is room");
        }
        [
            End::Allocates {
                full: full_in,
                empty: empty_out,
            },
            End::Frees {
                full: full_out,
                empty: empty_in,
            },
        ]
    });
    let ends = Mutex::new(pairs.collect::<Vec<End<S::Block>>>());
    let prepare = |_| {
        let end = ends.lock().expect("no thread panicked").pop();
        (source.local(), end.expect("threads come in pairs"))
    };
    let run = |(local, end): &mut (S::Local, End<S::Block>), times: u32| {
        for _ in 0..times.div_ceil(PARCEL) {
            match end {
                End::Allocates { full, empty } => {
                    let mut parcel = wait_for(empty);
                    parcel.extend((0..PARCEL).map(|_| source.alloc(local)));
                    full.send(parcel).expect("the other lives");
                }
                End::Frees { full, empty } => {
                    let mut parcel = wait_for(full);
                    for block in parcel.drain(..) {
                        source.free(local, block);
                    }
                    empty.send(parcel).expect("the other lives");
                }
            }
        }
    };
    round(threads, times, &prepare, &run)
}

/// Waits without sleeping, so that the time counts.
fn wait_for<T>(receiver: &Receiver<T>) -> T {
    let mut turns = 0_u32;
    loop {
        match receiver.try_recv() {
            Ok(received) => return received,
            Err(TryRecvError::Disconnected) => panic!("the thread at the other end is gone"),
            Err(TryRecvError::Empty) => {}
        }
        spin_loop();
        turns += 1;
        if turns.is_multiple_of(1 << 14) {
            thread::yield_now();
        }
    }
}
