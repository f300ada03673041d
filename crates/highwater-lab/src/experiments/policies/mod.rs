//! `policies`: misses of each eviction policy on every recorded trace, relative to exact LRU.
//!
//! Every algorithm of [`models`](crate::models) runs over every trace, with a cache of 0.1, 1 and
//! 10 % of the trace's distinct pages, empty at first. A figure is the share of exact LRU's misses
//! that an algorithm avoids; below 0 it misses more. *balanced* is the library's default policy,
//! one page at a time.
//!
//! The library's own policies run beside the models, in clusters as large as reclaim's
//! ([`Decided`]); they are checked against the promise. With `--real`, traces are also replayed
//! through the library itself, under the two-list LRU and the balanced policy, if the cache is
//! large enough for a pool and no key is larger than a page.

mod real;
mod traces;

use std::time::{Duration, Instant};

use highwater::lab::reclaim::policy::{Balanced, Car, Clock, EvictionPolicy, S3Fifo, Sieve};

use self::traces::Source as Trace;
use super::{Experiment, ExperimentError, Extra, Findings, Setup, published};
use crate::control::Control;
use crate::models::{AccessTrace, Algorithm, Decided, misses};
use crate::report::text::to_f64;
use crate::report::{Check, Figures, Headline, Noun, Row, Side, Source, Unit};

const PUBLISHED_FIGURES: &str = include_str!("../../../published/policies.json");

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "policies",
    thread: "lru-rmap-lock-throttle-2022",
    summary: "misses of each eviction policy, as a model, on every recorded trace",
    headline: Headline {
        part: "LRU's misses avoided, cache of 10 % of the footprint",
        noun: Noun::Count("of LRU's misses avoided on pgbench"),
        ours: Side {
            name: "balanced",
            variant: "pgbench",
            figure: "balanced_percent",
        },
        theirs: Side {
            name: "S3-FIFO",
            variant: "pgbench",
            figure: "s3_fifo_percent",
        },
    },
    topology: "1x1x2x1",
    cpus: 1..=1024,
    extras: &[Extra::Real, Extra::Traces],
    run,
};

const PART_01: &str = "LRU's misses avoided, cache of 0.1 % of the footprint";
const PART_1: &str = "LRU's misses avoided, cache of 1 % of the footprint";
const PART_10: &str = "LRU's misses avoided, cache of 10 % of the footprint";
const REAL: &str = "misses avoided by the library itself, as replayed";
const SPEED: &str = "accesses of the models";

const DECIDED_01: &str =
    "misses avoided by the library's decisions, cache of 0.1 % of the footprint";
const DECIDED_1: &str = "misses avoided by the library's decisions, cache of 1 % of the footprint";
const DECIDED_10: &str =
    "misses avoided by the library's decisions, cache of 10 % of the footprint";

/// Shares of the footprint, and the names of the parts for models and for the library's policies.
const SHARES: [(f64, &str, &str); 3] = [
    (0.001, PART_01, DECIDED_01),
    (0.01, PART_1, DECIDED_1),
    (0.1, PART_10, DECIDED_10),
];

/// Algorithms that the library has a policy for.
const DECIDED: [Algorithm; 5] = [
    Algorithm::Clock,
    Algorithm::Sieve,
    Algorithm::S3Fifo,
    Algorithm::Car,
    Algorithm::Balanced,
];

/// Smaller caches are shown, but no check judges a single one. Chosen: with fewer pages, the place
/// of one page decides the outcome (8 pages for twolf), and no pool is that small.
const PAGES_MIN: usize = 64;

/// The most that the default may miss above LRU, in percent of LRU's misses.
const WORSE_MAX: f64 = 2.5;

const NOTE_PUBLISHED: &str = "The published means are of thousands of other traces, so ours \
    cannot reproduce them: over the traces here exact S3-FIFO, 2Q and ARC come out elsewhere, by \
    either mean. They remain the mark for the default policy; a fair comparison is that between \
    the columns.";

/// The default policy's promised mean at 1 %; at 10 % it is the one published for S3-FIFO.
const PROMISED_1: f64 = 5.0;

const NOTE: &str = "A figure is the share of exact LRU's misses that an algorithm avoids. A key is \
    one page, whatever its size. Means are over the recorded traces, each counted once; those of \
    traces and caches of 64 pages or more exclude caches so small that one page decides.";

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let recorded = traces::recorded(setup.options.size);
    let nr_recorded = recorded.len();
    let asked = setup.options.traces.iter().map(|path| traces::given(path));
    let others: Vec<Trace> = std::iter::once(traces::shipped()).chain(asked).collect();
    let steps =
        (nr_recorded + others.len()) * SHARES.len() * (Algorithm::ALL.len() + DECIDED.len());
    control.expect(steps as u64);
    let mut found = Found::default();
    for trace in recorded.iter().chain(&others) {
        found.add(trace, setup, control)?;
    }
    Ok(Findings {
        config: config(setup, nr_recorded, others.len()),
        checks: found.checks(setup, nr_recorded),
        rows: found.rows(),
        published: published::rows(PUBLISHED_FIGURES, &[PART_1, PART_10]),
    })
}

fn config(setup: &Setup, nr_recorded: usize, nr_others: usize) -> Figures {
    setup
        .config()
        .with("recorded_traces", nr_recorded)
        .with("other_traces", nr_others)
        .with("note_figures", NOTE)
        .with("note_published", NOTE_PUBLISHED)
}

/// Returns the figure for an algorithm's reduction.
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

/// Results of one cache size on one trace.
#[derive(Debug)]
struct Cell {
    trace: String,
    is_recorded: bool,
    share: f64,
    capacity: usize,
    accesses: u64,
    /// Misses in the order of [`Algorithm::ALL`].
    misses: Vec<u64>,
    /// Misses under the library's policies, in the order of [`DECIDED`].
    decided: Vec<u64>,
    /// Misses of the library itself, in the order of [`real::REPLAYED`].
    replayed: Option<[u64; real::REPLAYED.len()]>,
}

/// Implementation whose misses are meant.
#[derive(Clone, Copy, Debug)]
enum By {
    Model(Algorithm),
    Library(Algorithm),
}

impl Cell {
    fn misses(&self, by: By) -> u64 {
        let (of, all, algorithm) = match by {
            By::Model(algorithm) => (&self.misses, &Algorithm::ALL[..], algorithm),
            By::Library(algorithm) => (&self.decided, &DECIDED[..], algorithm),
        };
        let at = all.iter().position(|each| *each == algorithm);
        of[at.expect("all are run")]
    }

    /// Returns the percentage of LRU's misses that is avoided.
    fn reduction(&self, by: By) -> f64 {
        let lru = self.misses(By::Model(Algorithm::Lru));
        100.0 * (1.0 - to_f64(self.misses(by)) / to_f64(lru))
    }

    fn row(&self, part: &'static str) -> Row {
        let lru = to_f64(self.misses(By::Model(Algorithm::Lru))) / to_f64(self.accesses);
        Row::new(part, Source::Run, &self.trace)
            .with("cache_pages", self.capacity)
            .with("lru_misses_ratio", lru)
    }
}

impl Cell {
    /// Returns the percentages of LRU's misses that the library avoids, in the order of
    /// [`real::REPLAYED`].
    fn real_reductions(&self) -> Option<[f64; real::REPLAYED.len()]> {
        let lru = to_f64(self.misses(By::Model(Algorithm::Lru)));
        let spared = |misses| 100.0 * (1.0 - to_f64(misses) / lru);
        self.replayed.map(|replayed| replayed.map(spared))
    }

    fn real_row(&self) -> Option<Row> {
        let name = format!("{}, {} %", self.trace, self.share * 100.0);
        let row = Row::new(REAL, Source::Run, name).with("cache_pages", self.capacity);
        let figures = real::REPLAYED.iter().zip(self.real_reductions()?);
        let with = |row: Row, (&(_, figure), spared)| row.with(figure, spared);
        Some(figures.fold(row, with))
    }
}

/// Returns the misses under the library's policy for `algorithm`, in clusters.
fn decided(algorithm: Algorithm, trace: &AccessTrace, capacity: usize) -> u64 {
    match algorithm {
        Algorithm::Clock => decided_by(Clock, trace, capacity),
        Algorithm::Sieve => decided_by(Sieve, trace, capacity),
        Algorithm::S3Fifo => decided_by(S3Fifo, trace, capacity),
        Algorithm::Car => decided_by(Car, trace, capacity),
        Algorithm::Balanced => decided_by(Balanced, trace, capacity),
        other => unreachable!("the library has no policy {}", other.name()),
    }
}

fn decided_by(policy: impl EvictionPolicy, trace: &AccessTrace, capacity: usize) -> u64 {
    let cache = Decided::new(policy, capacity, trace.footprint());
    misses(cache.in_clusters(), trace)
}

fn with_reductions(row: Row, columns: &[By], reduction: impl Fn(By) -> f64) -> Row {
    columns.iter().fold(row, |row, &by| {
        let (By::Model(algorithm) | By::Library(algorithm)) = by;
        row.with(figure(algorithm), reduction(by))
    })
}

/// All results.
#[derive(Debug, Default)]
struct Found {
    cells: Vec<Cell>,
    /// Accesses, and their time in the order of [`Algorithm::ALL`].
    accesses: u64,
    elapsed: [Duration; Algorithm::ALL.len()],
}

impl Found {
    fn add(
        &mut self,
        source: &Trace,
        setup: &Setup,
        control: &Control,
    ) -> Result<(), ExperimentError> {
        let traces::Loaded { trace, has_sizes } = source.read(control)?;
        for (share, ..) in SHARES {
            let capacity = trace.capacity(share);
            let misses = self.run_all(&trace, capacity, control)?;
            let mut decisions = Vec::new();
            for algorithm in DECIDED {
                decisions.push(decided(algorithm, &trace, capacity));
                control.advance(1)?;
            }
            let replayed = match setup.options.is_real && !has_sizes {
                true => real::misses(source, capacity, setup, control)?,
                false => None,
            };
            self.cells.push(Cell {
                trace: source.name.clone(),
                is_recorded: source.is_recorded,
                share,
                capacity,
                accesses: trace.pages().len() as u64,
                misses,
                decided: decisions,
                replayed,
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
        // Exact comparison: the shares are the same constants.
        self.cells
            .iter()
            .filter(move |cell| cell.share.total_cmp(&share).is_eq())
    }

    /// Returns the mean reduction over recorded traces with caches of `pages_min` pages or more,
    /// and their number.
    fn mean(&self, share: f64, by: By, pages_min: usize) -> (f64, usize) {
        let counted = self
            .of_share(share)
            .filter(|cell| cell.is_recorded && cell.capacity >= pages_min);
        let reductions: Vec<f64> = counted.map(|cell| cell.reduction(by)).collect();
        let sum: f64 = reductions.iter().sum();
        (sum / to_f64(reductions.len() as u64), reductions.len())
    }

    fn rows(&self) -> Vec<Row> {
        let models: Vec<By> = Algorithm::ALL.into_iter().skip(1).map(By::Model).collect();
        let mut rows = Vec::new();
        for (share, part, _) in SHARES {
            rows.extend(self.rows_of(share, part, &models));
        }
        for (share, _, part) in SHARES {
            rows.extend(self.rows_of(share, part, &DECIDED.map(By::Library)));
        }
        rows.extend(self.cells.iter().filter_map(Cell::real_row));
        for (algorithm, elapsed) in Algorithm::ALL.iter().zip(&self.elapsed) {
            let per_s = to_f64(self.accesses) / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
            let row = Row::new(SPEED, Source::Run, algorithm.name());
            rows.push(row.with("accesses_per_s", per_s));
        }
        rows
    }

    /// Returns the rows of one part: each trace, and the means.
    fn rows_of(&self, share: f64, part: &'static str, columns: &[By]) -> Vec<Row> {
        let with = |cell: &Cell| with_reductions(cell.row(part), columns, |by| cell.reduction(by));
        let mut rows: Vec<Row> = self.of_share(share).map(with).collect();
        for pages_min in [1, PAGES_MIN] {
            let (_, count) = self.mean(share, columns[0], pages_min);
            let name = match (count, pages_min) {
                (0, _) => continue,
                (_, 1) => format!("mean of {count} recorded"),
                _ => format!("mean of {count}, {PAGES_MIN} pages or more"),
            };
            let row = Row::new(part, Source::Run, name);
            let mean = |by| self.mean(share, by, pages_min).0;
            rows.push(with_reductions(row, columns, mean));
        }
        rows
    }

    fn checks(&self, setup: &Setup, nr_recorded: usize) -> Vec<Check> {
        let mut checks = vec![self.bound_check()];
        if nr_recorded == traces::nr_recorded() {
            let rows = published::rows(PUBLISHED_FIGURES, &[PART_1, PART_10]);
            let s3_fifo = published::figure(&rows, PART_10, figure(Algorithm::S3Fifo));
            for (share, promised) in [(0.01, PROMISED_1), (0.1, s3_fifo)] {
                checks.extend(self.mean_checks(share, promised));
            }
        }
        for (share, ..) in SHARES {
            checks.extend(self.worst_check(share));
        }
        checks.extend(self.real_check(setup));
        checks
    }

    fn bound_check(&self) -> Check {
        let least = |cell: &&Cell| *cell.misses.last().expect("all are run");
        let below = self
            .cells
            .iter()
            .filter(|cell| cell.misses.iter().any(|misses| *misses < least(cell)));
        Check::counted("caches that miss less than Belady's").equal(&below.count(), &0)
    }

    /// Checks the default's mean reduction: at least the promised one, and exact S3-FIFO's.
    fn mean_checks(&self, share: f64, promised: f64) -> [Check; 2] {
        let (mean, count) = self.mean(share, By::Library(Algorithm::Balanced), 1);
        let (s3_fifo, _) = self.mean(share, By::Model(Algorithm::S3Fifo), 1);
        let what = format!(
            "{} %: misses avoided by balanced, mean of {count} traces",
            share * 100.0
        );
        [
            Check::counted(what.clone()).at_least(mean, promised, Unit::Percent),
            Check::counted(format!("{what}, against exact S3-FIFO")).at_least(
                mean,
                s3_fifo,
                Unit::Percent,
            ),
        ]
    }

    /// Checks the replay with the library's worst result, under the balanced policy. Scheduling of
    /// the threads and background reclaim make replays differ slightly.
    fn real_check(&self, setup: &Setup) -> Option<Check> {
        let spared = |cell: &Cell| cell.real_reductions().map(|[_, balanced]| balanced);
        let replayed = self
            .cells
            .iter()
            .filter_map(|cell| Some((cell, spared(cell)?)));
        let (cell, worst) = replayed.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let name = format!(
            "replayed: misses avoided by balanced at worst ({})",
            cell.trace
        );
        let subject = match real::threads(setup) {
            1 => Check::counted(name),
            _ => Check::timed(name),
        };
        Some(subject.at_least(worst, -WORSE_MAX, Unit::Percent))
    }

    /// Checks the trace with the default's worst result, among caches that are large enough.
    fn worst_check(&self, share: f64) -> Option<Check> {
        let large = self
            .of_share(share)
            .filter(|cell| cell.capacity >= PAGES_MIN);
        let of = |cell: &&Cell| cell.reduction(By::Library(Algorithm::Balanced));
        let worst = large.min_by(|a, b| of(a).total_cmp(&of(b)))?;
        let name = format!(
            "{} %: misses avoided by balanced at worst ({})",
            share * 100.0,
            worst.trace
        );
        Some(Check::counted(name).at_least(of(&worst), -WORSE_MAX, Unit::Percent))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::experiments::{Options, Size};
    use crate::report::Judge;

    /// Goal: no replay of several pages for each key is compared with models that count one.
    /// Method: a given trace of keys of one page, and the same with one key of two.
    #[test]
    fn given_traces_with_large_keys_are_not_replayed() {
        let options = Options {
            size: Size::Quick,
            is_real: true,
            ..Options::default()
        };
        let setup = Setup {
            topology: EXPERIMENT.topology.parse().unwrap(),
            judge: Judge::Counts,
            options,
        };
        for (last, nr_replayed) in [(4096, 1), (8192, 0)] {
            let mut text = String::new();
            for key in 1..11 * real::POOL_MIN {
                writeln!(text, "{key} {key} 10").unwrap();
            }
            writeln!(text, "9999 0 {last}").unwrap();
            let file = tempfile::Builder::new()
                .suffix(".trace")
                .tempfile()
                .unwrap();
            std::fs::write(file.path(), text).unwrap();
            let mut found = Found::default();
            let given = traces::given(file.path());
            found.add(&given, &setup, &Control::default()).unwrap();
            let replayed = found.cells.iter().filter(|cell| cell.replayed.is_some());
            assert_eq!(replayed.count(), nr_replayed, "keys of up to {last} bytes");
        }
    }
}
