//! Question: how long do six queries of two tenants take under Highwater, and how much do they
//! write to disk, beside the same six under one `FairSpillPool` of the same size that fails none?
//!
//! Command: `cargo bench -p highwater-datafusion-tests`, in `adapters/datafusion`; 20 seeds, or
//! `SCENARIO_RUNS`. Highwater and its adapter are optimised, and DataFusion is not: that takes four
//! times as long to build. For each seed both run in turn, a few times; what is promised are the
//! medians of the ratios of two runs beside each other, of those in which `FairSpillPool` failed
//! nothing. Without `--bench` one seed runs, and nothing is promised.
//!
//! What would change our mind: a median above the bound on an idle machine.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

#[path = "../../../../crates/highwater/benches/promise/mod.rs"]
mod promise;
#[expect(dead_code, reason = "the queries time themselves")]
#[path = "../../../../crates/highwater/benches/timing/mod.rs"]
mod timing;

use std::process::ExitCode;

use datafusion::error::Result;
use highwater_datafusion_tests::{Outcome, Pools, limit_for_fair_spill, scenario};
use promise::Promise;
use timing::is_bench;

const ROWS: u64 = 40_000;
/// Pairs of runs for each seed.
const PAIRS: u64 = 3;

/// Runs that stand beside each other.
struct Pair {
    fair: Outcome,
    ours: Outcome,
}

/// Runs both a few times, each of them first in turn.
async fn pairs(seed: u64) -> Result<Vec<Pair>> {
    let (limit, _) = limit_for_fair_spill(ROWS, seed).await?;
    let fair = Pools::FairSpill(limit);
    let ours = Pools::Highwater { limit, max: limit };
    let mut pairs = Vec::new();
    for nth in 0..PAIRS {
        let pair = if nth % 2 == 0 {
            let fair = scenario(fair, ROWS, seed).await?;
            let ours = scenario(ours, ROWS, seed).await?;
            Pair { fair, ours }
        } else {
            let ours = scenario(ours, ROWS, seed).await?;
            let fair = scenario(fair, ROWS, seed).await?;
            Pair { fair, ours }
        };
        println!("seed {seed}: {}", pair.fair.describe(fair));
        println!("seed {seed}: {}", pair.ours.describe(ours));
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Returns the median of the ratios of one figure, where `FairSpillPool` failed no query.
fn ratio(pairs: &[Pair], of: impl Fn(&Outcome) -> f64) -> f64 {
    let comparable = pairs.iter().filter(|pair| pair.fair.failed().is_empty());
    let ratios = comparable.map(|Pair { fair, ours }| of(ours) / of(fair));
    let mut ratios: Vec<f64> = ratios.filter(|ratio| !ratio.is_nan()).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<ExitCode> {
    let runs = std::env::var("SCENARIO_RUNS").ok();
    let runs = runs.map_or(20, |runs| runs.parse().expect("SCENARIO_RUNS is a number"));
    let mut all = Vec::new();
    for seed in 0..if is_bench() { runs } else { 1 } {
        all.extend(pairs(seed).await?);
    }
    let failed =
        |of: fn(&Pair) -> &Outcome| all.iter().map(|it| of(it).failed().len()).sum::<usize>();
    println!(
        "\n{} pairs of runs; FairSpillPool failed {} queries",
        all.len(),
        failed(|it| &it.fair)
    );
    let promises = [
        Promise::new(
            "queries that Highwater failed",
            failed(|it| &it.ours) as f64,
            ..=0.0,
        ),
        Promise::new(
            "time until the last query ended, to FairSpillPool",
            ratio(&all, |it| it.elapsed.as_secs_f64()),
            ..=1.2,
        ),
        Promise::new(
            "bytes spilled, to FairSpillPool",
            ratio(&all, |it| it.spilled as f64),
            ..=1.0,
        ),
    ];
    Ok(promise::report(Ok(&promises)))
}
