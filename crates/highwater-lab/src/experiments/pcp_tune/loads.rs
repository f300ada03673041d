//! Loads of the experiment: allocations and frees by CPU, drawn from a seed.
//!
//! | load | a step of a CPU |
//! |---|---|
//! | [`Load::Loop`] | continues a run of allocations or frees of 1/4 to 3/4 of a list's capacity |
//! | [`Load::Jobs`] | runs a job, mostly small: it allocates, frees some now and then, at its end all |
//! | [`Load::InTurn`] | as in a loop, one CPU at a time, while the others are idle and lists decay |
//! | [`Load::OneWay`] | allocates what its neighbour frees, or frees what that one allocated |
//!
//! A job also has a block of two frames, which it frees last. A third of the pool is always
//! resident: little enough that the capacity of the lists, an eighth of the pool, is not small
//! beside it. CPUs are virtual and one thread takes all steps, so that one seed gives one outcome.

use std::collections::VecDeque;

use fastrand::Rng;
use highwater::frame::{AllocFlags, FramePool, PcpCounters};
use highwater::lab::memmap::{Block, Frame};
use highwater::units::{CpuId, Order};

use crate::control::Control;
use crate::experiments::ExperimentError;
use crate::report::text::to_f64;

/// Frames of a step.
const STEP: usize = 64;

/// Steps between samples of the list sizes, and between checks of the stop flag.
const SAMPLED: u64 = 16;
const UNWATCHED: u64 = 4096;

/// A job frees part of its latest frames once in so many steps.
const GIVES_BACK: u32 = 4;

/// Steps of a CPU's turn, and between ticks of decay in [`Load::InTurn`].
const TURN: u64 = 250;
const TICK: u64 = 50;

/// Frames that may be in transit from one CPU to another.
const ON_THE_WAY: usize = 256;

/// The block of a job's page table, of two frames.
const ROOT: Order = match Order::new(1) {
    Some(order) => order,
    None => Order::ZERO,
};

/// A third of the pool is resident.
const RESIDENT_PART: u64 = 3;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    Loop,
    Jobs,
    InTurn,
    OneWay,
}

/// Results of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) allocs: u64,
    pub(super) counters: PcpCounters,
    /// Mean number of frames allocated or in lists.
    pub(super) in_use_mean: f64,
    pub(super) cached_mean: f64,
    pub(super) cached_peak: u64,
}

impl Seen {
    /// Returns the frames that came from the zones, for each frame allocated.
    pub(super) fn zone_share(&self) -> f64 {
        to_f64(self.counters.refilled) / to_f64(self.allocs)
    }
}

/// A pool under load: its resident third is allocated.
#[derive(Debug)]
pub(super) struct Driven<'a> {
    pool: &'a FramePool,
    random: Rng,
    cpus: Vec<Worker>,
    resident: Vec<Frame>,
    allocs: u64,
}

/// State of one CPU.
#[derive(Debug, Default)]
struct Worker {
    held: VecDeque<Frame>,
    /// Block of the job's page table.
    root: Option<Block>,
    /// Target number of frames.
    depth: usize,
    is_freeing: bool,
}

impl<'a> Driven<'a> {
    /// Allocates the resident third of `pool`.
    pub(super) fn new(pool: &'a FramePool, nr_cpus: usize, seed: u64) -> Self {
        let mut driven = Self {
            pool,
            random: Rng::with_seed(seed),
            cpus: (0..nr_cpus).map(|_| Worker::default()).collect(),
            resident: Vec::new(),
            allocs: 0,
        };
        for _ in 0..pool.managed().0 / RESIDENT_PART {
            let frame = driven.alloc(0);
            driven.resident.push(frame);
        }
        pool.drain_all();
        driven
    }

    fn alloc(&mut self, cpu: usize) -> Frame {
        self.allocs += 1;
        let frame = self
            .pool
            .at(CpuId::from_index(cpu))
            .alloc_with(AllocFlags::new());
        frame.expect("a quarter of the pool is never used")
    }

    fn free(&self, cpu: usize, frame: Frame) {
        self.pool.at(CpuId::from_index(cpu)).free(frame);
    }

    /// Runs `steps` steps of `load`. `most`: capacity of a list of the default policy.
    pub(super) fn run(
        &mut self,
        load: Load,
        most: usize,
        steps: u64,
        control: &Control,
    ) -> Result<Seen, ExperimentError> {
        let (counters, allocs) = (self.pool.counters(), self.allocs);
        let (mut samples, mut in_use, mut cached, mut cached_peak) = (0, 0, 0, 0);
        for step in 0..steps {
            let cpu = match load {
                Load::InTurn => self.whose_turn(step),
                _ => self.random.usize(..self.cpus.len()),
            };
            match load {
                Load::Loop | Load::InTurn | Load::Jobs => self.work(load, cpu, most),
                Load::OneWay => self.pass_on(cpu),
            }
            if step % SAMPLED == 0 {
                let counts = self.pool.counts();
                samples += 1;
                in_use += counts.managed.0 - counts.free.0;
                cached += counts.cached.0;
                cached_peak = cached_peak.max(counts.cached.0);
            }
            if step % UNWATCHED == 0 && control.is_stopped() {
                self.finish();
                return Err(ExperimentError::Interrupted);
            }
        }
        Ok(Seen {
            allocs: self.allocs - allocs,
            counters: self.pool.counters().since(&counters),
            in_use_mean: to_f64(in_use) / to_f64(samples),
            cached_mean: to_f64(cached) / to_f64(samples),
            cached_peak,
        })
    }

    /// Returns the CPU of a step when CPUs work in turn. A CPU frees its frames when its turn ends.
    fn whose_turn(&mut self, step: u64) -> usize {
        if step.is_multiple_of(TURN) {
            self.rest();
        }
        if step.is_multiple_of(TICK) {
            self.pool.decay_tick();
        }
        usize::try_from(step / TURN).unwrap_or(0) % self.cpus.len()
    }

    /// Runs one step of a loop or a job.
    fn work(&mut self, load: Load, cpu: usize, most: usize) {
        if self.cpus[cpu].depth == 0 {
            self.cpus[cpu].depth = match load {
                Load::Loop | Load::InTurn => self.random.usize(most / 4..most * 3 / 4),
                // The same number of jobs of each power of two.
                _ => STEP << self.random.u32(0..=(2 * most / STEP).ilog2()),
            };
        }
        if load == Load::Jobs && self.cpus[cpu].root.is_none() {
            let cpu_id = CpuId::from_index(cpu);
            let root = self.pool.at(cpu_id).alloc_block(ROOT, AllocFlags::new());
            self.cpus[cpu].root = root.ok();
        }
        let (held, depth) = (self.cpus[cpu].held.len(), self.cpus[cpu].depth);
        if self.cpus[cpu].is_freeing {
            self.give(cpu, STEP);
            if self.cpus[cpu].held.is_empty() {
                self.free_root(cpu);
                self.cpus[cpu].is_freeing = false;
                self.cpus[cpu].depth = 0;
            }
        } else if held >= depth {
            self.cpus[cpu].is_freeing = true;
        } else if load == Load::Jobs && self.random.u32(..GIVES_BACK) == 0 {
            self.give(cpu, STEP / 4);
        } else {
            for _ in 0..STEP.min(depth - held) {
                let frame = self.alloc(cpu);
                self.cpus[cpu].held.push_back(frame);
            }
        }
    }

    fn free_root(&mut self, cpu: usize) {
        if let Some(root) = self.cpus[cpu].root.take() {
            self.pool.at(CpuId::from_index(cpu)).free_block(root);
        }
    }

    /// Frees the latest frames.
    fn give(&mut self, cpu: usize, frames: usize) {
        for _ in 0..frames {
            let Some(frame) = self.cpus[cpu].held.pop_back() else {
                break;
            };
            self.free(cpu, frame);
        }
    }

    /// Even CPUs allocate, odd CPUs free.
    fn pass_on(&mut self, cpu: usize) {
        let (from, to) = (cpu & !1, cpu | 1);
        if cpu == from || to >= self.cpus.len() {
            while self.cpus[from].held.len() < ON_THE_WAY {
                let frame = self.alloc(from);
                self.cpus[from].held.push_back(frame);
            }
        }
        for _ in 0..STEP {
            if let Some(frame) = self.cpus[from].held.pop_front() {
                self.free(to % self.cpus.len(), frame);
            }
        }
    }

    /// Frees the load's frames, but no resident ones.
    pub(super) fn rest(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.give(cpu, usize::MAX);
            self.free_root(cpu);
            self.cpus[cpu].is_freeing = false;
            self.cpus[cpu].depth = 0;
        }
    }

    /// Frees everything; returns the number of frames that the pool is missing.
    pub(super) fn finish(&mut self) -> u64 {
        self.rest();
        while let Some(frame) = self.resident.pop() {
            self.free(0, frame);
        }
        self.pool.drain_all();
        self.pool.managed().0 - self.pool.nr_free().0
    }
}
