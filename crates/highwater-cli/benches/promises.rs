//! Question: do all promises about times hold?
//!
//! Command: `.ci/bench`. Runs the benches with promises, and `highwater lab` for the experiments,
//! in turn, several times, each in a process of its own, and prints one table: promise, bound,
//! median, spread, and whether the median is within the bound. Counts that an experiment checks
//! must hold in every run. Progress goes to standard error. Without `--bench` (as under
//! `cargo test --benches`) it does the same as with `--quick`.
//!
//! With `--against FOLDER` it asks instead: is any figure of a bench slower here than in another
//! checkout of the project? Each bench runs here and there in turn.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]
#![expect(clippy::print_stderr, reason = "progress")]

use std::collections::BTreeSet;
use std::env;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;
use highwater::topology::Topology;
use highwater_lab::comparison::{Checkout, Comparison, figures_of_bench};
use highwater_lab::experiments::{EXPERIMENTS, Size};
use highwater_lab::promises::{Promises, Readings, readings_of_bench, readings_of_outcome};
use serde_json::Value;

/// Benches with promises, and their crates.
const BENCHES: [(&str, &str); 12] = [
    ("counter_set", "highwater"),
    ("resident_read", "highwater"),
    ("long_reads", "highwater"),
    ("miss", "highwater"),
    ("latched_read", "highwater"),
    ("stat_update", "highwater"),
    ("usage_read", "highwater"),
    ("charge", "highwater"),
    ("group_churn", "highwater"),
    ("frame_alloc", "highwater"),
    ("recorder", "highwater"),
    ("scrape", "highwater-prometheus"),
];

/// The smallest number of runs whose median is judged.
const RUNS_MIN: usize = 5;

/// Runs of `--quick`: two, so that they take turns.
const RUNS_QUICK: usize = 2;

/// Measures all promises about times, and judges each by the median of several runs
#[derive(Debug, Parser)]
#[command(
    name = ".ci/bench",
    after_help = "\
Examples:
  .ci/bench --only charge --runs 9
  git worktree add ../before main~5 && .ci/bench --against ../before --only charge

Exit status: 0 when every promise holds, 1 when one does not or a run fails, 2 for bad input. With \
--against: 1 when a figure is more than 5 % slower here."
)]
struct Arguments {
    /// Run a small part of each to see that it works; judge no times
    #[arg(long)]
    quick: bool,

    /// Number of runs of each, at least 5
    #[arg(long, value_name = "N", default_value_t = RUNS_MIN, value_parser = runs, conflicts_with = "quick")]
    runs: usize,

    /// Only this bench or experiment; repeatable
    #[arg(long = "only", value_name = "NAME", value_parser = names())]
    chosen: Vec<String>,

    /// Compare the figures of the benches with those of this other checkout instead
    #[arg(long, value_name = "FOLDER", value_parser = checkout)]
    against: Option<PathBuf>,

    /// Print the table as one JSON object
    #[arg(long)]
    json: bool,

    /// Passed by cargo for a measurement
    #[arg(long, hide = true)]
    bench: bool,
}

fn runs(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(runs) if runs >= RUNS_MIN => Ok(runs),
        Ok(_) | Err(_) => Err(format!("a median of at least {RUNS_MIN} runs is judged")),
    }
}

/// `.ci/bench` and cargo change the working directory.
fn checkout(text: &str) -> Result<PathBuf, String> {
    let called_in = env::var_os("BENCH_CALLED_IN").map_or_else(PathBuf::new, PathBuf::from);
    let folder = called_in.join(text).canonicalize();
    let folder = folder.map_err(|e| e.to_string())?;
    match folder.join("crates/highwater/benches").is_dir() {
        true => Ok(folder),
        false => Err("it has no crates/highwater/benches: name a checkout of the project".into()),
    }
}

fn names() -> Vec<&'static str> {
    let experiments = EXPERIMENTS.iter().map(|experiment| experiment.name);
    let benches = BENCHES.iter().map(|(name, _)| *name);
    benches.chain(experiments).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (size, runs) = match arguments.quick || !arguments.bench {
        true => (Size::Quick, RUNS_QUICK),
        false => (Size::Full, arguments.runs),
    };
    eprintln!("{}, {runs} runs", Topology::detect());
    let is_chosen =
        |name: &&str| arguments.chosen.is_empty() || arguments.chosen.iter().any(|it| it == name);
    let names: Vec<&str> = names().into_iter().filter(is_chosen).collect();
    let passes = if let Some(there) = &arguments.against {
        if let Some(name) = names.iter().find(|name| !is_bench(name))
            && !arguments.chosen.is_empty()
        {
            eprintln!("error: {name} is an experiment: `--against` compares benches");
            return ExitCode::from(2);
        }
        let comparison = compare(there, &names, size, runs);
        show(&arguments, &comparison.to_json(), &comparison);
        comparison.passes()
    } else {
        let promises = measure(names, size, runs);
        show(&arguments, &promises.to_json(), &promises);
        promises.hold()
    };
    ExitCode::from(u8::from(!passes))
}

fn show(arguments: &Arguments, json: &Value, text: &impl Display) {
    match arguments.json {
        true => println!("{json}"),
        false => print!("{text}"),
    }
}

fn is_bench(name: &str) -> bool {
    BENCHES.iter().any(|(bench, _)| *bench == name)
}

/// Measures the promises.
fn measure(mut names: Vec<&str>, size: Size, runs: usize) -> Promises {
    let mut promises = match size {
        Size::Quick => Promises::unjudged(runs),
        Size::Full => Promises::of_runs(runs),
    };
    for run in 1..=runs {
        let mut without_times = BTreeSet::new();
        for &name in &names {
            let begun = Instant::now();
            let readings = readings(name, size);
            let seconds = begun.elapsed().as_secs();
            let said = match &readings {
                Ok(readings) => format!("{} promises", readings.len()),
                Err(failure) => failure.clone(),
            };
            eprintln!("run {run} of {runs}: {name}, {seconds} s: {said}");
            if readings.as_ref().is_ok_and(Vec::is_empty) {
                without_times.insert(name);
            }
            promises.add(name, readings);
        }
        names.retain(|name| !without_times.contains(name));
    }
    promises
}

/// Measures the benches of both checkouts.
fn compare(there: &Path, names: &[&str], size: Size, runs: usize) -> Comparison {
    let mut comparison = match size {
        Size::Quick => Comparison::unjudged(),
        Size::Full => Comparison::default(),
    };
    let benches = || BENCHES.iter().filter(|(name, _)| names.contains(name));
    for (run, (name, of)) in (1..=runs).flat_map(|run| benches().map(move |bench| (run, bench))) {
        for (checkout, folder) in [(Checkout::There, Some(there)), (Checkout::Here, None)] {
            let printed = bench(of, name, size, folder);
            let figures = printed.and_then(|printed| figures_of_bench(&printed));
            let said = match &figures {
                Ok(figures) => format!("{} figures", figures.len()),
                Err(failure) => failure.clone(),
            };
            eprintln!("run {run} of {runs}: {name}, {checkout:?}: {said}");
            comparison.add(name, checkout, figures);
        }
    }
    comparison
}

/// Runs a bench or an experiment once and returns its readings.
fn readings(name: &str, size: Size) -> Readings {
    match BENCHES.iter().find(|(bench, _)| *bench == name) {
        Some((_, of)) => readings_of_bench(&bench(of, name, size, None)?),
        None => readings_of_outcome(&experiment(name, size)?),
    }
}

/// Runs a bench here or in another checkout, which has build outputs of its own.
fn bench(of: &str, name: &str, size: Size, there: Option<&Path>) -> Result<String, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    if let Some(folder) = there {
        command.current_dir(folder);
        command.env("CARGO_TARGET_DIR", folder.join("target"));
    }
    command.args(["bench", "--locked", "--quiet", "-p", of]);
    command.args(["--bench", name, "--", "--json"]);
    command.args((size == Size::Quick).then_some("--quick"));
    let (printed, code) = printed(&mut command)?;
    match code {
        Some(0) => Ok(printed),
        code => Err(format!("it has ended with {code:?}:\n{printed}")),
    }
}

/// Succeeds also if checks fail, which the outcome names: medians decide those of times.
fn experiment(name: &str, size: Size) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(["lab", name, "--judge", "all", "--json"]);
    command.args((size == Size::Quick).then_some("--quick"));
    let (printed, code) = printed(&mut command)?;
    match code {
        Some(0 | 1) => Ok(printed),
        code => Err(format!("it has ended with {code:?}")),
    }
}

/// Returns a command's standard output, and its exit status.
fn printed(command: &mut Command) -> Result<(String, Option<i32>), String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let output = output.map_err(|e| format!("cannot start it: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((text, output.status.code()))
}
