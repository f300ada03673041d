//! Latency of one victim selection, with cold caches.

use std::hint::black_box;
use std::time::Instant;

use highwater::victim::{Policy, Selector};

use super::effort::Effort;
use super::names::{ONE_PASS, OURS, TWO_PASS};
use super::population::{OurSpaces, Spaces};
use crate::baselines::select_two_pass;
use crate::control::Control;
use crate::experiments::ExperimentError;
use crate::experiments::clock::{median, thread_ns};
use crate::report::text::to_f64;
use crate::report::{Row, Source};

/// Memory that is written before each measurement, to evict everything else from the caches.
#[derive(Debug)]
pub(super) struct ColdCaches {
    words: Vec<u64>,
}

/// Words of a cache line.
const LINE_WORDS: usize = 8;

impl ColdCaches {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            words: vec![1; bytes / size_of::<u64>()],
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.words[..])
    }

    fn evict(&mut self) {
        for line in self.words.chunks_mut(LINE_WORDS) {
            line[0] = line[0].wrapping_add(1);
        }
        black_box(&self.words);
    }

    /// Returns the result of `work`, and its time with cold caches in microseconds: real time, or
    /// CPU time if that is less, because other threads ran meanwhile.
    pub(super) fn time<T>(&mut self, work: impl FnOnce() -> T) -> (T, f64) {
        self.evict();
        let cpu_begun = thread_ns();
        let begun = Instant::now();
        let result = black_box(work());
        let real_us = begun.elapsed().as_secs_f64() * 1e6;
        let cpu_us = to_f64(thread_ns().saturating_sub(cpu_begun)) / 1e3;
        (result, real_us.min(cpu_us))
    }
}

/// One selection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) us: f64,
    pub(super) is_right: bool,
    pub(super) exact_sums: usize,
}

/// Times of one variant.
#[derive(Debug)]
pub(super) struct Lane {
    variant: &'static str,
    times_us: Vec<f64>,
    pub(super) times_right: u64,
    pub(super) exact_sums: u64,
    bytes: Option<u64>,
    effort: Option<Effort>,
}

impl Lane {
    pub(super) const fn new(variant: &'static str, bytes: Option<u64>) -> Self {
        Self {
            variant,
            times_us: Vec::new(),
            times_right: 0,
            exact_sums: 0,
            bytes,
            effort: None,
        }
    }

    fn with_effort(self, effort: Effort) -> Self {
        let effort = Some(effort);
        Self { effort, ..self }
    }

    pub(super) fn add(&mut self, turn: Turn) {
        self.times_us.push(turn.us);
        self.times_right += u64::from(turn.is_right);
        self.exact_sums = turn.exact_sums as u64;
    }

    pub(super) fn selections(&self) -> u64 {
        self.times_us.len() as u64
    }

    pub(super) fn median_us(&self) -> f64 {
        median(self.times_us.clone())
    }

    fn row(&self, part: &'static str) -> Row {
        let times = || self.times_us.iter().copied();
        let row = Row::new(part, Source::Run, self.variant).with("median_us", self.median_us());
        let row = match self.effort {
            Some(effort) => effort.on(row),
            None => row.with("exact_sums", self.exact_sums),
        };
        let row = row
            .with("least_us", times().fold(f64::INFINITY, f64::min))
            .with("most_us", times().fold(0.0, f64::max))
            .with("right", self.times_right);
        match self.bytes {
            Some(bytes) => row.with("counters_bytes", bytes),
            None => row,
        }
    }
}

/// Three searches of one population, in turn.
#[derive(Debug)]
pub(super) struct Race {
    part: &'static str,
    /// Label in the names of its checks.
    pub(super) label: String,
    lanes: [Lane; 3],
    pub(super) faults: u64,
}

impl Race {
    pub(super) fn run(
        part: &'static str,
        label: String,
        spaces: &Spaces,
        rounds: u64,
        caches: &mut ColdCaches,
        control: &Control,
    ) -> Result<Self, ExperimentError> {
        let nr_spaces = spaces.ours.sets().len();
        let mut lanes = [
            Lane::new(ONE_PASS, Some(spaces.flat.bytes())).with_effort(Effort::of_one_pass(spaces)),
            Lane::new(TWO_PASS, Some(spaces.trees.bytes()))
                .with_effort(Effort::of_two_passes(spaces)),
            Lane::new(OURS, None).with_effort(Effort::of_ours(&spaces.ours)),
        ];
        let mut selector = Selector::with_capacity(Policy::READS_MAX + 1);
        for round in 0..usize::try_from(rounds).unwrap_or(usize::MAX) {
            for turn in 0..lanes.len() {
                let lane = (round + turn) % lanes.len();
                let turn = match lane {
                    0 => {
                        let (chosen, us) = caches.time(|| spaces.flat.select());
                        Turn {
                            us,
                            is_right: spaces.is_right(chosen),
                            exact_sums: nr_spaces,
                        }
                    }
                    1 => {
                        let (chosen, us) = caches.time(|| select_two_pass(&spaces.trees));
                        Turn {
                            us,
                            is_right: spaces.is_right(chosen.map(|chosen| chosen.task)),
                            exact_sums: chosen.map_or(0, |chosen| chosen.exact_sums),
                        }
                    }
                    _ => choose(&spaces.ours, &mut selector, caches, |id| {
                        spaces.is_right(id)
                    }),
                };
                lanes[lane].add(turn);
                control.advance(1)?;
            }
        }
        Ok(Self {
            part,
            label,
            lanes,
            faults: spaces.faults(),
        })
    }

    pub(super) fn median_us(&self, variant: &str) -> f64 {
        self.lane(variant).map_or(f64::NAN, Lane::median_us)
    }

    /// Returns the counted work of one selection.
    pub(super) fn effort(&self, variant: &str) -> Effort {
        let lane = self.lane(variant);
        lane.and_then(|lane| lane.effort).unwrap_or_default()
    }

    fn lane(&self, variant: &str) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.variant == variant)
    }

    pub(super) fn times_right(&self, variant: &str) -> u64 {
        self.lane(variant).map_or(0, |lane| lane.times_right)
    }

    pub(super) fn selections(&self, variant: &str) -> u64 {
        self.lane(variant).map_or(1, Lane::selections)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        self.lanes.iter().map(|lane| lane.row(self.part))
    }
}

/// Runs one selection of the library.
pub(super) fn choose(
    spaces: &OurSpaces,
    selector: &mut Selector<usize>,
    caches: &mut ColdCaches,
    is_right: impl Fn(Option<usize>) -> bool,
) -> Turn {
    let policy = Policy::default();
    let (decision, us) = caches.time(|| selector.select(spaces, &policy));
    let chosen = decision.chosen();
    Turn {
        us,
        is_right: is_right(chosen.map(|chosen| chosen.id)),
        exact_sums: chosen.map_or(0, |chosen| chosen.census.reads),
    }
}
