//! Hold time of one zone visit by the number of frames that it moves: the basis for the default
//! scale.
//!
//! One thread fills and empties a table repeatedly, in an order of its own; lists have a fixed
//! size. The scales take turns, round after round.

use std::sync::Arc;
use std::time::Instant;

use fastrand::Rng;
use highwater::frame::{AllocFlags, FramePool, PoolConfig};
use highwater::lab::memmap::Frame;
use highwater::lab::sync::LockTimes;
use highwater::units::{CpuId, Pages};

use super::pool::frame_memory;
use crate::baselines::{BackendKind, Drain, Sizing};
use crate::control::Control;
use crate::experiments::buckets::Buckets;
use crate::experiments::clock::{median, thread_ns};
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Row, Source};

pub(super) const HOLDS: &str = "one hold of a zone's lock, by number of frames moved";

/// Scales, for batches of 63 to 2,016 frames.
const SCALES: [u8; 6] = [0, 1, 2, 3, 4, 5];

/// Steps that [`run`] reports.
pub(super) fn steps(setup: &Setup) -> u64 {
    rounds(setup) * SCALES.len() as u64
}

fn rounds(setup: &Setup) -> u64 {
    setup.pick(7, 1)
}

/// Results of one scale.
struct Lane {
    scale: u8,
    pool: FramePool,
    frames_per_s: Vec<f64>,
    cpu_ns: Vec<f64>,
    /// Mean holds by round, less the share of preemption.
    fill_us: Vec<f64>,
    empty_us: Vec<f64>,
    /// Zone visits of the measured rounds.
    filling: LockTimes,
    emptying: LockTimes,
}

pub(super) fn run(
    setup: &Setup,
    rows: &mut Vec<Row>,
    control: &Control,
) -> Result<(), ExperimentError> {
    let frames = setup.pick(1 << 16, 1 << 12);
    let mut lanes = Vec::new();
    for scale in SCALES {
        lanes.push(Lane::new(scale, frames)?);
    }
    let mut order: Vec<usize> = (0..frames).collect();
    Rng::with_seed(setup.options.seed).shuffle(&mut order);
    for round in 0..rounds(setup) {
        let count = lanes.len();
        for turn in 0..count {
            let at = (usize::try_from(round).unwrap_or(0) + turn) % count;
            lanes[at].round(&order);
            control.advance(1)?;
        }
    }
    rows.extend(lanes.iter().map(Lane::row));
    Ok(())
}

impl Lane {
    /// Lists hold an eighth of a pool four times the size of the table: always more than two caps.
    fn new(scale: u8, frames: usize) -> Result<Self, ExperimentError> {
        let defaults = PoolConfig::new(1);
        let tunables = defaults.tunables.with("pcp_batch_scale_max", scale.into());
        let tunables =
            tunables.and_then(|tunables| tunables.with("percpu_pagelist_high_fraction", 8));
        let config = PoolConfig {
            policy: Sizing::Auto.with(Drain::OneHold),
            backend: BackendKind::SingleLock.make(),
            tunables: tunables?,
            ..defaults
        };
        let memory = frame_memory(Pages(4 * frames as u64))?;
        Ok(Self {
            scale,
            pool: FramePool::with_config(Arc::new(memory), config)?,
            frames_per_s: Vec::new(),
            cpu_ns: Vec::new(),
            fill_us: Vec::new(),
            empty_us: Vec::new(),
            filling: LockTimes::default(),
            emptying: LockTimes::default(),
        })
    }

    fn round(&mut self, order: &[usize]) {
        // Fills and empties the table once as a warm-up, after which the layout of free blocks is
        // stationary.
        self.fill_and_empty(order);
        let (begun, cpu_begun) = (Instant::now(), thread_ns());
        let before = self.pool.zone_times();
        let between = self.fill_and_empty(order);
        let after = self.pool.zone_times();
        let moved = to_f64(order.len() as u64);
        let (real_s, cpu_ns) = (
            begun.elapsed().as_secs_f64(),
            to_f64(thread_ns() - cpu_begun),
        );
        self.frames_per_s.push(moved / real_s);
        self.cpu_ns.push(cpu_ns / moved);
        // Preemption takes the same share of a hold as of other work.
        let own = cpu_ns / (1e9 * real_s);
        let mean =
            |times: &LockTimes| own * to_f64(times.hold_ns.sum()) / to_f64(times.holds()) / 1e3;
        let (filling, emptying) = (between.clone() - &before, after - &between);
        self.fill_us.push(mean(&filling));
        self.empty_us.push(mean(&emptying));
        self.filling = std::mem::take(&mut self.filling) + &filling;
        self.emptying = std::mem::take(&mut self.emptying) + &emptying;
    }

    /// Returns the zone visits up to the moment when the table was full.
    fn fill_and_empty(&self, order: &[usize]) -> LockTimes {
        let mut table: Vec<Option<Frame>> = order.iter().map(|_| None).collect();
        for &slot in order {
            let frame = self.pool.at(CpuId(0)).alloc_with(AllocFlags::new());
            table[slot] = Some(frame.expect("a pool four times as large"));
        }
        let full = self.pool.zone_times();
        for frame in table.into_iter().flatten() {
            self.pool.at(CpuId(0)).free(frame);
        }
        full
    }

    fn row(&self) -> Row {
        let [filling, emptying] =
            [&self.filling, &self.emptying].map(|times| Buckets::of(times.hold_ns.buckets()));
        let frames = to_f64(self.emptying.work.sum()) / to_f64(self.emptying.holds());
        Row::new(HOLDS, Source::Run, format!("here, scale {}", self.scale))
            .with("frames_a_drain_pages", frames)
            .with("frames_per_s", median(self.frames_per_s.clone()))
            .with("free_mean_us", median(self.empty_us.clone()))
            .with("free_p99_us", emptying.quantile_us(0.99))
            .with("alloc_mean_us", median(self.fill_us.clone()))
            .with("alloc_p99_us", filling.quantile_us(0.99))
            .with("cpu_of_a_frame_ns", median(self.cpu_ns.clone()))
    }
}
