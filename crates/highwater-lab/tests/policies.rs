//! Promise: the reference models of eviction policies are exact, and the default policy misses at
//! most 2.5 % more than exact LRU on any of 18 recorded traces (caches of 0.1, 1 and 10 % of the
//! footprint, 64 pages or more), and on average 5 % (1 %) and 7.3 % (10 %) less.
//!
//! The recorded traces are not part of the project. The tests look for them in the folder that
//! `HIGHWATER_TRACES` names, then in `shared/traces` beside the workspace; without them the tests
//! that need them say so and pass.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![expect(clippy::print_stderr, reason = "a skipped test says why")]

mod shared_traces;

use highwater::frame::Tunables;
use highwater::lab::reclaim::policy::{
    Balanced, Car, Clock, EvictionPolicy, PolicyKind, S3Fifo, Sieve,
};
use highwater::units::Pages;
use highwater_lab::control::Control;
use highwater_lab::experiments::{Options, Request, Size, policies};
use highwater_lab::models::{AccessTrace, Algorithm, Decided, misses};
use highwater_lab::replay::{DataIo, Replay, ReplayConfig, TenantConfig, TraceInput};
use highwater_lab::report::Outcome;
use highwater_lab::trace::{ReaderOptions, Target, TraceReader};
use shared_traces::shared_traces;

/// Returns the allowed difference to a reference count, as a share of it: 0 except for ARC, where
/// the other simulator differs from the paper as well (it takes whole steps where the paper takes
/// fractions, in other places than we do).
fn tolerance(policy: &str) -> f64 {
    match policy {
        "ARC" => 0.005,
        _ => 0.0,
    }
}

fn run(size: Size) -> Outcome {
    let options = Options {
        size,
        ..Options::default()
    };
    let request = Request {
        options,
        ..Request::default()
    };
    let outcome = policies::EXPERIMENT.run(&request, &Control::default());
    outcome.unwrap()
}

// Goal: the models miss as often as other programs. Method: independent counts on one hour of a
// database.
#[test]
fn models_match_the_reference_counts() {
    let Some(folder) = shared_traces() else {
        return;
    };
    let options = ReaderOptions {
        block_size: Some(4096),
        ..ReaderOptions::default()
    };
    let reader = TraceReader::open(&folder.join("oltp-db/OLTP.lis.zst"), &options).unwrap();
    let pages = reader.flat_map(|request| match request.unwrap().target {
        Target::Pages { first, count } => first..first + count,
        Target::Key { .. } => panic!("OLTP is a trace of pages"),
    });
    let trace: AccessTrace = pages.collect();
    let counts = folder.join("oltp-db/OLTP-reference-miss-counts.csv");
    let mut compared = 0;
    for line in std::fs::read_to_string(counts).unwrap().lines().skip(1) {
        let mut fields = line.split(',');
        let policy = fields.next().unwrap();
        let algorithm = match policy {
            "LRU" => Algorithm::Lru,
            "ARC" => Algorithm::Arc,
            "MIN" => Algorithm::Belady,
            _ => continue,
        };
        let capacity = fields.next().unwrap().parse().unwrap();
        let expected: u32 = fields.next().unwrap().parse().unwrap();
        let misses = u32::try_from(algorithm.misses(&trace, capacity)).unwrap();
        let difference = f64::from(misses) / f64::from(expected) - 1.0;
        assert!(
            difference.abs() <= tolerance(policy),
            "{policy} of {capacity} pages misses {misses}, expected {expected}"
        );
        compared += 1;
    }
    assert!(compared >= 14, "{compared} counts were compared");
}

/// Returns the misses of a model, and of the library's policy, over random accesses to `footprint`
/// pages.
fn both(
    algorithm: Algorithm,
    policy: impl EvictionPolicy,
    random: &mut fastrand::Rng,
    capacity: usize,
) -> [u64; 2] {
    let footprint = random.u64(2 * capacity as u64..8 * capacity as u64);
    let mut pages = Vec::new();
    while pages.len() < 20_000 {
        // Low numbers more often, and now and then a run of neighbours: recency, frequency and
        // scans.
        let first = random.u64(0..footprint) * random.u64(0..footprint) / footprint;
        let run = if random.u8(0..50) == 0 {
            random.u64(1..footprint)
        } else {
            1
        };
        pages.extend((first..first + run).map(|page| page % footprint));
    }
    let trace: AccessTrace = pages.into_iter().collect();
    [
        algorithm.misses(&trace, capacity),
        decided(policy, &trace, capacity),
    ]
}

/// Returns the misses of the library's decisions, one page at a time.
fn decided(policy: impl EvictionPolicy, trace: &AccessTrace, capacity: usize) -> u64 {
    misses(Decided::new(policy, capacity, trace.footprint()), trace)
}

// Goal: the library's policies decide as the exact models do: CLOCK and SIEVE every time, S3-FIFO
// and CAR within an eighth, because they remember ghosts for another time. Method: the policies'
// own decisions, one page at a time, over random accesses.
#[test]
fn the_library_decides_as_the_models_do() {
    let seed = std::env::var("SEED").map_or(7, |seed| seed.parse().unwrap());
    eprintln!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for capacity in [1, 2, 3, 9, 10, 64, 300] {
        for _ in 0..3 {
            let exact = [
                both(Algorithm::Clock, Clock, &mut random, capacity),
                both(Algorithm::Sieve, Sieve, &mut random, capacity),
            ];
            for [model, decided] in exact {
                assert_eq!(model, decided, "capacity {capacity}");
            }
            let close = [
                both(Algorithm::S3Fifo, S3Fifo, &mut random, capacity),
                both(Algorithm::Car, Car, &mut random, capacity),
            ];
            for [model, decided] in close {
                let slack = model / 8 + 20;
                assert!(
                    model.abs_diff(decided) <= slack,
                    "capacity {capacity}: {model} misses, decided by the library {decided}"
                );
            }
        }
    }
}

// Goal: the library misses as its policies' decisions with complete knowledge do: delayed marks,
// clusters and the pool's reserve cost at most one access of a hundred. Method: replay a recorded
// trace under each policy through the whole cache.
#[test]
fn the_library_misses_as_its_decisions_do() {
    let Some(folder) = shared_traces() else {
        return;
    };
    let path = folder.join("classic/lirs-multi3.trace.gz");
    let reader = TraceReader::open(&path, &ReaderOptions::default()).unwrap();
    let pages = reader.flat_map(|request| match request.unwrap().target {
        Target::Pages { first, count } => first..first + count,
        Target::Key { .. } => panic!("a trace of pages"),
    });
    let trace: AccessTrace = pages.collect();
    let capacity = trace.capacity(0.1);
    for kind in PolicyKind::ALL {
        let decided = match kind {
            PolicyKind::Clock => decided(Clock, &trace, capacity),
            PolicyKind::Sieve => decided(Sieve, &trace, capacity),
            PolicyKind::S3Fifo => decided(S3Fifo, &trace, capacity),
            PolicyKind::Car => decided(Car, &trace, capacity),
            PolicyKind::Balanced => decided(Balanced, &trace, capacity),
            _ => continue,
        };
        let tenant = TenantConfig {
            name: "recorded".to_owned(),
            trace: TraceInput::File(path.clone()),
            options: ReaderOptions::default(),
            max: None,
        };
        let config = ReplayConfig {
            tenants: vec![tenant],
            capacity: Pages(capacity as u64).bytes(),
            threads: 1,
            in_flight: 1,
            backend: None,
            policy: kind,
            tunables: Tunables::default(),
            seed: 1,
            readahead: Pages(0),
            io: DataIo::Buffered,
            dir: std::env::temp_dir(),
        };
        let outcome = Replay::prepare(&config).unwrap();
        let outcome = outcome.run(&Control::default());
        let report = outcome.unwrap().report;
        assert!(report.is_clean(), "{report:?}");
        let accesses = trace.pages().len() as u64;
        eprintln!(
            "{kind}: {} misses, decided {decided}, of {accesses}",
            report.misses
        );
        assert!(
            report.misses.abs_diff(decided) <= accesses / 100,
            "{kind}: {} misses, decided {decided}, of {accesses}",
            report.misses
        );
    }
}

// Goal: the promise, as far as the small traces show it. Method: the experiment's own checks; they
// cannot pass without at least the shipped trace.
#[test]
fn the_default_is_nowhere_much_worse_than_lru() {
    let outcome = run(Size::Quick);
    assert!(outcome.passes(), "{:#?}", outcome.checks);
    assert!(outcome.checks.len() >= 3);
}

// Goal: the promise. Method: as above, over every recorded trace.
#[test]
#[ignore = "a minute; run with --release -- --ignored"]
fn the_default_misses_less_than_lru_on_average() {
    if shared_traces().is_none() {
        return;
    }
    let outcome = run(Size::Full);
    assert!(outcome.passes(), "{:#?}", outcome.checks);
    let means = outcome
        .checks
        .iter()
        .filter(|check| check.name.contains("mean"));
    assert_eq!(means.count(), 4, "both means, against both marks");
}
