//! `policies`: how many misses each way to choose who leaves would have, on every recorded trace.
//!
//! Every algorithm of [`models`](crate::models) runs over every trace, with a cache of 0.1, 1 and 10 % of the trace's
//! distinct pages, empty at first. A figure is the share of exact LRU's misses that an algorithm does without; below 0
//! it misses more. *balanced* is what the library does by default, with everything known at each access.

mod published;
mod traces;

use std::time::{Duration, Instant};

use self::traces::Source as Trace;
use super::{Control, Experiment, ExperimentError, Setup};
use crate::models::{AccessTrace, Algorithm};
use crate::report::text::to_f64;
use crate::report::{Check, Figures, Outcome, Row, Source, Unit};

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "policies",
    thread: "lru-rmap-lock-throttle-2022",
    summary: "misses of each eviction policy, as a model, on every recorded trace",
    topology: "1x1x2x1",
    cpus: 1..=1024,
    has_real: false,
    has_traces: true,
    has_kernel: false,
    has_matrix: false,
    run,
};

const PART_01: &str = "misses spared of LRU's, cache of 0.1 % of the footprint";
const PART_1: &str = "misses spared of LRU's, cache of 1 % of the footprint";
const PART_10: &str = "misses spared of LRU's, cache of 10 % of the footprint";
const SPEED: &str = "accesses of the models";

const SHARES: [(f64, &str); 3] = [(0.001, PART_01), (0.01, PART_1), (0.1, PART_10)];

/// Caches below this are shown, but no single one is held to anything. Chosen: with fewer pages, where one page comes back
/// decides the outcome (8 pages for twolf), and no pool is that small.
const PAGES_MIN: usize = 64;

/// By how much the default may miss more than LRU, in percent of LRU's misses.
const WORSE_MAX: f64 = 2.5;

const NOTE: &str = "A figure is the share of exact LRU's misses that an algorithm does without. A key is one page, whatever its size. Means are over the \
    recorded traces, each counted once; those of traces and caches of 64 pages or more leave out caches so small that one page decides.";

fn run(setup: &Setup, control: &Control) -> Result<Outcome, ExperimentError> {
    let recorded = traces::recorded(setup.size);
    let nr_recorded = recorded.len();
    let asked = setup.traces.iter().map(|path| traces::given(path));
    let others: Vec<Trace> = std::iter::once(traces::shipped()).chain(asked).collect();
    let steps = (nr_recorded + others.len()) * SHARES.len() * Algorithm::ALL.len();
    control.expect(steps as u64);
    let mut found = Found::default();
    for trace in recorded.iter().chain(&others) {
        found.add(trace, control)?;
    }
    Ok(Outcome {
        experiment: EXPERIMENT.name,
        thread: EXPERIMENT.thread,
        config: config(setup, nr_recorded, others.len()),
        checks: found.checks(nr_recorded),
        rows: found.rows(),
        published: published::rows(),
    })
}

fn config(setup: &Setup, nr_recorded: usize, nr_others: usize) -> Figures {
    setup
        .config()
        .with("recorded_traces", nr_recorded)
        .with("other_traces", nr_others)
        .with("note_figures", NOTE)
        .with("note_published", published::NOTE)
}

/// The figure of an algorithm's reduction.
const fn figure(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Lru => "lru_percent",
        Algorithm::Fifo => "fifo_percent",
        Algorithm::Clock => "clock_percent",
        Algorithm::Sieve => "sieve_percent",
        Algorithm::S3Fifo => "s3_fifo_percent",
        Algorithm::TwoQ => "two_q_percent",
        Algorithm::Arc => "arc_percent",
        Algorithm::Car => "car_percent",
        Algorithm::Balanced => "balanced_percent",
        Algorithm::Belady => "belady_percent",
    }
}

/// What one cache size showed on one trace.
#[derive(Debug)]
struct Cell {
    trace: String,
    is_recorded: bool,
    share: f64,
    capacity: usize,
    accesses: u64,
    /// In the order of [`Algorithm::ALL`].
    misses: Vec<u64>,
}

impl Cell {
    fn misses(&self, algorithm: Algorithm) -> u64 {
        let at = Algorithm::ALL.iter().position(|each| *each == algorithm);
        self.misses[at.expect("all are run")]
    }

    /// Percent of LRU's misses that an algorithm does without.
    fn reduction(&self, algorithm: Algorithm) -> f64 {
        100.0 * (1.0 - to_f64(self.misses(algorithm)) / to_f64(self.misses(Algorithm::Lru)))
    }

    fn row(&self, part: &'static str) -> Row {
        let lru = to_f64(self.misses(Algorithm::Lru)) / to_f64(self.accesses);
        let row = Row::new(part, Source::Run, &self.trace)
            .with("cache_pages", self.capacity)
            .with("lru_misses_ratio", lru);
        with_reductions(row, |algorithm| self.reduction(algorithm))
    }
}

fn with_reductions(row: Row, reduction: impl Fn(Algorithm) -> f64) -> Row {
    let others = Algorithm::ALL.iter().skip(1);
    others.fold(row, |row, &algorithm| {
        row.with(figure(algorithm), reduction(algorithm))
    })
}

/// Everything that was run.
#[derive(Debug, Default)]
struct Found {
    cells: Vec<Cell>,
    /// Accesses, and the time they took, in the order of [`Algorithm::ALL`].
    accesses: u64,
    elapsed: [Duration; Algorithm::ALL.len()],
}

impl Found {
    fn add(&mut self, source: &Trace, control: &Control) -> Result<(), ExperimentError> {
        let trace = source.read(control)?;
        for (share, _) in SHARES {
            let capacity = trace.capacity(share);
            let misses = self.run_all(&trace, capacity, control)?;
            self.cells.push(Cell {
                trace: source.name.clone(),
                is_recorded: source.is_recorded,
                share,
                capacity,
                accesses: trace.pages().len() as u64,
                misses,
            });
        }
        Ok(())
    }

    fn run_all(
        &mut self,
        trace: &AccessTrace,
        capacity: usize,
        control: &Control,
    ) -> Result<Vec<u64>, ExperimentError> {
        let mut misses = Vec::new();
        for (algorithm, elapsed) in Algorithm::ALL.iter().zip(&mut self.elapsed) {
            let start = Instant::now();
            misses.push(algorithm.misses(trace, capacity));
            *elapsed += start.elapsed();
            control.advance(1)?;
        }
        self.accesses += trace.pages().len() as u64;
        Ok(misses)
    }

    fn of_share(&self, share: f64) -> impl Iterator<Item = &Cell> {
        // The shares are the same constants.
        self.cells
            .iter()
            .filter(move |cell| cell.share.total_cmp(&share).is_eq())
    }

    /// The mean reduction over recorded traces with caches of `pages_min` pages or more, and how many these are.
    fn mean(&self, share: f64, algorithm: Algorithm, pages_min: usize) -> (f64, usize) {
        let counted = self
            .of_share(share)
            .filter(|cell| cell.is_recorded && cell.capacity >= pages_min);
        let reductions: Vec<f64> = counted.map(|cell| cell.reduction(algorithm)).collect();
        let sum: f64 = reductions.iter().sum();
        (sum / to_f64(reductions.len() as u64), reductions.len())
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (share, part) in SHARES {
            rows.extend(self.of_share(share).map(|cell| cell.row(part)));
            for pages_min in [1, PAGES_MIN] {
                let (_, count) = self.mean(share, Algorithm::Lru, pages_min);
                if count == 0 {
                    continue;
                }
                let name = match pages_min {
                    1 => format!("mean of {count} recorded"),
                    _ => format!("mean of {count}, {PAGES_MIN} pages or more"),
                };
                let row = Row::new(part, Source::Run, name);
                rows.push(with_reductions(row, |algorithm| {
                    self.mean(share, algorithm, pages_min).0
                }));
            }
        }
        for (algorithm, elapsed) in Algorithm::ALL.iter().zip(&self.elapsed) {
            let per_s = to_f64(self.accesses) / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
            let row = Row::new(SPEED, Source::Run, algorithm.name());
            rows.push(row.with("accesses_per_s", per_s));
        }
        rows
    }

    fn checks(&self, nr_recorded: usize) -> Vec<Check> {
        let mut checks = vec![self.bound_check()];
        if nr_recorded == traces::nr_recorded() {
            for (share, promised) in published::PROMISED {
                checks.extend(self.mean_checks(share, promised));
            }
        }
        for (share, _) in SHARES {
            checks.extend(self.worst_check(share));
        }
        checks
    }

    fn bound_check(&self) -> Check {
        let least = |cell: &&Cell| *cell.misses.last().expect("all are run");
        let below = self
            .cells
            .iter()
            .filter(|cell| cell.misses.iter().any(|misses| *misses < least(cell)));
        Check::equal("caches that miss less than Belady's", &below.count(), &0)
    }

    /// The default on average: what was promised, and no less than exact S3-FIFO.
    fn mean_checks(&self, share: f64, promised: f64) -> [Check; 2] {
        let (mean, count) = self.mean(share, Algorithm::Balanced, 1);
        let (s3_fifo, _) = self.mean(share, Algorithm::S3Fifo, 1);
        let what = format!(
            "{} %: misses spared by balanced, mean of {count} traces",
            share * 100.0
        );
        [
            Check::at_least(what.clone(), mean, promised, Unit::Percent),
            Check::at_least(
                format!("{what}, against S3-FIFO"),
                mean,
                s3_fifo,
                Unit::Percent,
            ),
        ]
    }

    /// The trace on which the default does worst, where the cache is large enough.
    fn worst_check(&self, share: f64) -> Option<Check> {
        let large = self
            .of_share(share)
            .filter(|cell| cell.capacity >= PAGES_MIN);
        let of = |cell: &&Cell| cell.reduction(Algorithm::Balanced);
        let worst = large.min_by(|a, b| of(a).total_cmp(&of(b)))?;
        let name = format!(
            "{} %: misses spared by balanced at worst ({})",
            share * 100.0,
            worst.trace
        );
        Some(Check::at_least(name, of(&worst), -WORSE_MAX, Unit::Percent))
    }
}
