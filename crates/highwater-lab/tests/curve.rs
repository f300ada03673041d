//! Promise: a miss-ratio curve is that of exact replays, for each policy: exactly for a trace that
//! fits the sample, closely for others.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::fmt::Write as _;
use std::fs;

use fastrand::Rng;
use highwater::units::{Bytes, Pages};
use highwater_lab::control::Control;
use highwater_lab::curve::{
    Beside, CurveConfig, CurveError, CurveReport, Mode, NR_OF_MANAGER, NR_SIZES, POLICIES,
    SAMPLES_MAX, SAMPLES_OF_SIEVE, Sizes, TenantCurves, run,
};
use highwater_lab::models::Algorithm;
use highwater_lab::replay::{PageObserver as _, TenantConfig, TraceInput};
use highwater_lab::trace::{Format, ReaderOptions};

/// A folder with a trace.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(pages: &[u64]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut text = String::new();
        for page in pages {
            writeln!(text, "{page}").unwrap();
        }
        fs::write(folder.path().join("trace"), text).unwrap();
        Self { folder }
    }

    fn config(&self, mode: Mode) -> CurveConfig {
        let tenant = TenantConfig {
            name: "made".to_owned(),
            trace: TraceInput::File(self.folder.path().join("trace")),
            options: ReaderOptions {
                format: Some(Format::Lirs),
                ..ReaderOptions::default()
            },
            max: None,
        };
        CurveConfig {
            tenants: vec![tenant],
            policies: POLICIES.map(|(policy, _)| policy).to_vec(),
            sizes: Sizes::Ladder(20),
            mode,
            total: None,
            seed: 1,
            dir: self.folder.path().to_owned(),
        }
    }

    fn drawn(&self, config: &CurveConfig) -> TenantCurves {
        let CurveReport { mut tenants, .. } = run(config, &Control::default()).unwrap();
        let left = fs::read_dir(self.folder.path()).unwrap().count();
        assert_eq!(left, 1, "temporary files are unlinked");
        tenants.remove(0)
    }
}

/// Draws pages `0 .. footprint`, low ones much more often, with some scans.
fn skewed(seed: u64, footprint: u64, accesses: usize) -> Vec<u64> {
    let mut rng = Rng::with_seed(seed);
    let mut pages = Vec::new();
    while pages.len() < accesses {
        let first = rng.u64(..footprint).min(rng.u64(..footprint));
        let first = first.min(rng.u64(..footprint));
        let run = if rng.u8(..50) == 0 {
            rng.u64(1..200)
        } else {
            1
        };
        pages.extend((first..first + run).map(|page| page % footprint));
    }
    pages
}

fn mean_error(a: &TenantCurves, b: &TenantCurves, policy: &str) -> f64 {
    let [a, b] = [a, b].map(|it| it.curves.iter().find(|it| it.policy == policy).unwrap());
    let pairs = || a.points.iter().zip(&b.points);
    assert!(pairs().all(|(a, b)| a.size_bytes == b.size_bytes));
    let errors = pairs().map(|(a, b)| (a.miss_ratio - b.miss_ratio).abs());
    errors.sum::<f64>() / a.points.len() as f64
}

/// Goal: a trace that fits the sample has exact curves. Method: both modes on random traces, one
/// of which fits exactly.
#[test]
fn a_sample_of_every_page_is_exact() {
    for (seed, footprint) in [(1, 30), (2, 700), (3, SAMPLES_MAX as u64)] {
        let mut pages = skewed(seed, footprint, 12_000);
        pages.extend(0..footprint);
        let bench = Bench::new(&pages);
        let [sampled, exact] = [Mode::Sampled, Mode::Exact].map(|mode| {
            let drawn = bench.drawn(&bench.config(mode));
            assert_eq!(drawn.footprint_bytes, Pages(footprint).bytes().0);
            assert_eq!(drawn.page_accesses, pages.len() as u64);
            drawn
        });
        assert!(sampled.sample_ratio >= 1.0);
        for (_, policy) in POLICIES {
            let error = mean_error(&sampled, &exact, policy);
            assert!(error < 1e-12, "seed {seed}, {policy}: {error}");
        }
    }
}

/// Goal: SIEVE's own sample is larger; a trace that fits it has SIEVE's exact curve. Method: caches
/// for which it is used; with the first access to each page, the larger sample is full.
#[test]
fn sieve_has_a_larger_sample() {
    let footprint = SAMPLES_OF_SIEVE as u64;
    let mut pages: Vec<u64> = (0..footprint).collect();
    pages.extend(skewed(8, footprint, 60_000));
    let bench = Bench::new(&pages);
    let [sampled, exact] = [Mode::Sampled, Mode::Exact].map(|mode| {
        bench.drawn(&CurveConfig {
            policies: vec![Algorithm::Sieve, Algorithm::Clock],
            sizes: Sizes::Given(
                [1000, 2000, 5000, 12_000]
                    .map(|size| Pages(size).bytes())
                    .to_vec(),
            ),
            ..bench.config(mode)
        })
    });
    assert!(mean_error(&sampled, &exact, "sieve") < 1e-9);
    assert!(mean_error(&sampled, &exact, "clock") > 1e-4);
}

/// Goal: a trace of more pages has nearly the exact curves. Method: a skewed trace and a loop, ten
/// times the sample, at the sizes that were sampled; a loop's LRU curve is a cliff, so that sizes
/// next to its end are left out.
#[test]
fn a_larger_trace_is_nearly_exact() {
    let footprint = 10 * SAMPLES_MAX as u64;
    let looped = (0..4 * footprint).map(|page| page % footprint);
    for (name, pages) in [
        ("skewed", skewed(4, footprint, 400_000)),
        ("loop", looped.collect()),
    ] {
        let bench = Bench::new(&pages);
        let shares = [1, 2, 5, 10, 20, 35, 50, 70, 90, 120];
        let size = |share| Bytes(footprint * 4096 / 100 * share / 4096 * 4096);
        let sizes = Sizes::Given(shares.map(size).to_vec());
        let [sampled, exact] = [Mode::Sampled, Mode::Exact].map(|mode| {
            let config = CurveConfig {
                sizes: sizes.clone(),
                ..bench.config(mode)
            };
            bench.drawn(&config)
        });
        assert!(sampled.sample_ratio < 0.15 && sampled.sampled_pages == SAMPLES_MAX as u64);
        let [found, expected] = [&sampled, &exact].map(|it| it.footprint_bytes as f64);
        assert!(
            (found / expected - 1.0).abs() < 0.02,
            "{found} of {expected}"
        );
        for (_, policy) in POLICIES {
            let error = mean_error(&sampled, &exact, policy);
            assert!(error < 0.01, "{name}, {policy}: {error}");
        }
    }
}

/// Goal: SIEVE's hand may stay nearer to the head than sampled pages are to each other. Method:
/// popular pages beside new ones, one in ten of which is soon accessed again; small caches.
#[test]
fn sieve_is_nearly_exact_where_new_pages_leave_at_once() {
    let mut rng = Rng::with_seed(5);
    let (mut pages, mut new) = (Vec::new(), 30_000);
    let mut again: Vec<(usize, u64)> = Vec::new();
    while pages.len() < 400_000 {
        let now = pages.len();
        if let Some(due) = again.iter().position(|(time, _)| *time <= now) {
            pages.push(again.swap_remove(due).1);
        } else if rng.bool() {
            pages.push(skewed(rng.u64(..), 30_000, 1)[0]);
        } else {
            new += 1;
            pages.push(new);
            if rng.u8(..10) == 0 {
                again.push((now + rng.usize(10..400), new));
            }
        }
    }
    let bench = Bench::new(&pages);
    let [sampled, exact] = [Mode::Sampled, Mode::Exact].map(|mode| {
        bench.drawn(&CurveConfig {
            policies: vec![Algorithm::Sieve],
            sizes: Sizes::Given([2000, 3000, 5000].map(|size| Pages(size).bytes()).to_vec()),
            ..bench.config(mode)
        })
    });
    let error = mean_error(&sampled, &exact, "sieve");
    assert!(
        error < 0.03,
        "{error:.4}: 0.039 if the hand moves by whole sampled pages"
    );
}

/// Symptom: sizes below a sampled page had the miss ratio of the cache for which one page stands,
/// and those of a few pages one nearly as wrong. Method: each page again after nine others, which
/// LRU caches of up to nine pages miss; the smallest size that is drawn is nearly exact.
#[test]
fn sizes_of_too_few_sampled_pages_are_refused() {
    let footprint = 16 * SAMPLES_MAX as u64;
    let pages: Vec<u64> = (0..footprint)
        .flat_map(|page| [Some(page), page.checked_sub(9)])
        .flatten()
        .collect();
    let bench = Bench::new(&pages);
    let config = |mode, pages: &[u64]| CurveConfig {
        policies: vec![Algorithm::Lru],
        sizes: Sizes::Given(pages.iter().map(|pages| Pages(*pages).bytes()).collect()),
        ..bench.config(mode)
    };
    let ratio = |mode, size| {
        let drawn = bench.drawn(&config(mode, &[size]));
        drawn.curves[0].points[0].miss_ratio
    };
    assert!(ratio(Mode::Exact, 1) >= 1.0);
    for sizes in [&[1][..], &[900], &[1, 100_000]] {
        let error = run(&config(Mode::Sampled, sizes), &Control::default()).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("`--exact`") && said.contains("KiB"), "{said}");
    }
    let [sampled, exact] = [Mode::Sampled, Mode::Exact].map(|mode| ratio(mode, 1200));
    assert!((sampled - exact).abs() < 0.01, "{sampled} for {exact}");
}

/// Goal: the ends of what a trace can be. Method: one page, a page once, sizes beyond the
/// footprint, and no page at all.
#[test]
fn the_smallest_traces() {
    let once = Bench::new(&[77]);
    let drawn = once.drawn(&once.config(Mode::Sampled));
    assert_eq!(drawn.footprint_bytes, 4096);
    for curve in &drawn.curves {
        assert_eq!(curve.points.len(), 1, "{}", curve.policy);
        assert_eq!(curve.points[0].miss_ratio.to_bits(), 1.0_f64.to_bits());
    }
    let often = Bench::new(&[77; 100]);
    let config = CurveConfig {
        sizes: Sizes::Given(vec![Bytes(4096), Bytes(1 << 40)]),
        ..often.config(Mode::Sampled)
    };
    for curve in &often.drawn(&config).curves {
        for point in &curve.points {
            assert!((point.miss_ratio - 0.01).abs() < 1e-12, "{}", curve.policy);
        }
        assert_eq!(curve.within_1_percent_bytes, 4096);
    }
    let none = Bench::new(&[]);
    let error = run(&none.config(Mode::Sampled), &Control::default()).unwrap_err();
    assert!(matches!(error, CurveError::NoRecord { .. }), "{error}");
}

/// Goal: no two keys share a page. Method: key 0 with ten pages, and the keys with the numbers
/// after it.
#[test]
fn key_0_shares_no_page_with_the_next_keys() {
    let bench = Bench::new(&[]);
    let others = (1..10).map(|key| format!("2 {key} 10\n"));
    let text = format!("1 0 40960\n{}", others.collect::<String>());
    fs::write(bench.folder.path().join("trace"), text).unwrap();
    let mut config = bench.config(Mode::Exact);
    config.tenants[0].options.format = Some(Format::AdaptSize);
    let drawn = bench.drawn(&config);
    assert_eq!(drawn.footprint_bytes, Pages(19).bytes().0);
}

/// Goal: the same trace and seed give the same curves; another seed takes other pages.
#[test]
fn curves_repeat_exactly() {
    let bench = Bench::new(&skewed(5, 20_000, 60_000));
    let config = bench.config(Mode::Sampled);
    let first = bench.drawn(&config);
    assert_eq!(first, bench.drawn(&config));
    let other = bench.drawn(&CurveConfig { seed: 2, ..config });
    assert_ne!(first.curves, other.curves);
}

/// Goal: a replay's curves are those of a pass over the same trace, and are drawn once. Method: the
/// same pages and seed, told in runs as by a replay.
#[test]
fn curves_of_a_replay_are_those_of_a_pass() {
    for footprint in [3_000, 3 * SAMPLES_MAX as u64] {
        let pages = skewed(7, footprint, 60_000);
        let bench = Bench::new(&pages);
        let config = CurveConfig {
            sizes: Sizes::Ladder(NR_SIZES),
            ..bench.config(Mode::Sampled)
        };
        let expected = bench.drawn(&config);
        let mut beside = Beside::new(config.seed, bench.folder.path());
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            beside.pages(run[0]..run[0] + run.len() as u64);
        }
        let drawn = beside.draw("made").unwrap();
        assert_eq!(drawn.curves, expected.curves[..NR_OF_MANAGER]);
        assert_eq!(drawn.footprint_bytes, expected.footprint_bytes);
        assert_eq!(drawn.sampled_pages, expected.sampled_pages);
        assert!(beside.draw("made").is_err());
    }
}

/// Goal: a run that is told to stop ends with an error, and leaves nothing.
#[test]
fn a_run_can_be_stopped() {
    let bench = Bench::new(&skewed(6, 2_000, 5_000));
    let control = Control::default();
    control.stop();
    let error = run(&bench.config(Mode::Sampled), &control).unwrap_err();
    assert!(matches!(error, CurveError::Interrupted), "{error}");
    assert_eq!(fs::read_dir(bench.folder.path()).unwrap().count(), 1);
}
