//! Measures how far sampled miss-ratio curves are from exact ones, on recorded traces, and how much
//! faster: `HIGHWATER_TRACES=DIR cargo test --release -p highwater-lab --test curve_error -- \
//! --ignored --nocapture`. The results are in `docs/measurements.md`.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::path::{Path, PathBuf};

use highwater::units::Bytes;
use highwater_lab::control::Control;
use highwater_lab::curve::{
    CurveConfig, CurveReport, Mode, NR_OF_MANAGER, POLICIES, Sizes, TenantCurves, run,
};
use highwater_lab::replay::{TenantConfig, TraceInput};
use highwater_lab::trace::{Format, ReaderOptions};

const TRACES: [(&str, Option<Format>, Option<u32>); 7] = [
    ("block-io/P3.lis.zst", None, None),
    ("block-io/P6.lis.zst", None, None),
    ("block-io/cloudPhysicsIO-w92.vscsi.xz", None, None),
    ("kv-cdn/scarab-recs.trace.xz", Some(Format::U64Be), None),
    ("oltp-db/OLTP.lis.zst", None, Some(4096)),
    ("oltp-db/orm-busy.trace.xz", Some(Format::U32Be), None),
    ("kv-cdn/mooncake-synthetic_trace.jsonl.xz", None, None),
];

/// The error of one seed is a matter of luck: on P6, SIEVE's is between 0.2 and 0.9 points.
const SEEDS: u64 = 16;

/// Limit of the mean error of a policy, in the mean of the seeds.
const ERROR_MAX: f64 = 0.005;

fn config(path: PathBuf, format: Option<Format>, block_size: Option<u32>) -> CurveConfig {
    let tenant = TenantConfig {
        name: "recorded".to_owned(),
        trace: TraceInput::File(path),
        options: ReaderOptions {
            format,
            block_size,
            ..ReaderOptions::default()
        },
        max: None,
    };
    CurveConfig {
        tenants: vec![tenant],
        policies: (POLICIES.iter().take(NR_OF_MANAGER))
            .map(|(policy, _)| *policy)
            .collect(),
        sizes: Sizes::Ladder(20),
        mode: Mode::Exact,
        total: None,
        seed: 0,
        dir: std::env::temp_dir(),
    }
}

fn drawn(config: &CurveConfig) -> CurveReport {
    run(config, &Control::default()).unwrap()
}

/// Returns the mean error of each policy.
fn errors(a: &TenantCurves, b: &TenantCurves) -> Vec<f64> {
    let curves = a.curves.iter().zip(&b.curves);
    let error = curves.map(|(a, b)| {
        let pairs = a.points.iter().zip(&b.points);
        let errors = pairs.map(|(a, b)| (a.miss_ratio - b.miss_ratio).abs());
        errors.sum::<f64>() / a.points.len() as f64
    });
    error.collect()
}

#[test]
#[ignore = "needs the recorded traces, and minutes without optimisation"]
fn errors_on_recorded_traces() {
    let Some(folder) = std::env::var_os("HIGHWATER_TRACES") else {
        println!("skipped: HIGHWATER_TRACES names no folder");
        return;
    };
    for (file, format, block_size) in TRACES {
        let exact_config = config(Path::new(&folder).join(file), format, block_size);
        let exact = drawn(&exact_config);
        let tenant = &exact.tenants[0];
        let sizes = tenant.curves[0].points.iter();
        let sizes = Sizes::Given(sizes.map(|at| Bytes(at.size_bytes)).collect());
        let mut sums = [0.0; NR_OF_MANAGER];
        let mut seconds = 0.0;
        for seed in 0..SEEDS {
            let sampled = drawn(&CurveConfig {
                sizes: sizes.clone(),
                mode: Mode::Sampled,
                seed,
                ..exact_config.clone()
            });
            seconds += sampled.elapsed_s / SEEDS as f64;
            let errors = errors(&sampled.tenants[0], tenant);
            for (sum, error) in sums.iter_mut().zip(errors) {
                *sum += error / SEEDS as f64;
            }
        }
        let shown: Vec<String> = (tenant.curves.iter().zip(sums))
            .map(|(curve, error)| format!("{} {:.2} %", curve.policy, 100.0 * error))
            .collect();
        println!(
            "{file}: {} pages; {}; {:.3} s exact, {seconds:.3} s sampled",
            tenant.footprint_bytes / 4096,
            shown.join(", "),
            exact.elapsed_s
        );
        for (curve, error) in tenant.curves.iter().zip(sums) {
            assert!(error < ERROR_MAX, "{file}, {}: {error}", curve.policy);
        }
    }
}
