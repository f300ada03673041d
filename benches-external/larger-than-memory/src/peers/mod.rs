//! Highwater beside what its users would use instead, each in a memory cgroup of the same size:
//! what a column keeps in memory, the kernel's cache of its files included, fits the same limit.
//!
//! Each turn of a column is a process of its own in a new group, on files that the kernel has
//! dropped from its cache; it warms up for as long as it measures. The columns take turns in each
//! round.

mod cgroup;
mod columns;
mod log;
mod workload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use hdrhistogram::Histogram;

use crate::{Error, median, number};
use cgroup::MemoryGroup;
use columns::COLUMNS;
use workload::{Accesses, WORKLOADS, Workload};

/// Bytes of a page, and of a value of the stores minus what they add to it.
const PAGE: usize = 4096;
/// Updates that become durable together.
const COMMIT: u64 = 64;

/// The longest latency that is told apart, in nanoseconds.
const LATENCY_MAX: u64 = 60_000_000_000;

/// The least rate of a column of Highwater's, as times that of the best peer.
const RATES: [(&str, f64); 2] = [("Highwater", 1.0), ("Highwater, in flight", 2.0)];
/// The highest p99 of an access, as times that of a mapping.
const P99_OF_MMAP: f64 = 0.5;

/// What one turn has measured, or the medians of several.
struct Turn {
    rate: f64,
    /// Latency in microseconds: median, 99 %, 99.9 %.
    latency: [f64; 3],
    /// Most memory of the group, in MiB.
    peak: f64,
}

/// Measures all columns on all workloads, on files in `dir`.
pub fn run(dir: &Path) -> Result<(), Error> {
    let pages = number("FILE_MIB", 1024)? * 256;
    let rounds = number("ROUNDS", 5)?;
    let dir = tempfile::Builder::new()
        .prefix("larger-than-memory")
        .tempdir_in(dir)?;
    println!("writing {} MiB for each kind of column ...", pages / 256);
    columns::create_all(dir.path(), pages)?;
    for workload in WORKLOADS {
        if is_wanted("WORKLOADS", workload.name) {
            measure(dir.path(), workload, pages, rounds)?;
        }
    }
    Ok(())
}

/// Returns whether a name is asked for by an environment variable; all are without it.
fn is_wanted(variable: &str, name: &str) -> bool {
    env::var(variable).map_or(true, |wanted| {
        wanted.split(',').any(|part| name.contains(part))
    })
}

fn measure(dir: &Path, workload: &Workload, pages: u64, rounds: u64) -> Result<(), Error> {
    let memory = number("MEMORY_MIB", 64)? * workload.memory_factor;
    let mut turns: BTreeMap<usize, Vec<Turn>> = BTreeMap::new();
    for round in 0..rounds {
        for (at, column) in COLUMNS.iter().enumerate() {
            let has_it = workload.is_for(column.kind);
            if has_it && column.is_here() && is_wanted("COLUMNS", column.name) {
                let turn = take_turn(dir, (workload, column.name), (pages, memory), round)?;
                turns.entry(at).or_default().push(turn);
            }
        }
    }
    println!(
        "\n{}: {} MiB through {memory} MiB, median of {rounds}",
        workload.name,
        pages / 256
    );
    println!(
        "{:28} {:>9} {:>19} {:>8} {:>8} {:>8} {:>6}",
        "", "a second", "least and most", "p50 us", "p99 us", "99.9 us", "MiB"
    );
    let mut medians = BTreeMap::new();
    for (at, turns) in &turns {
        let name = COLUMNS[*at].name;
        let median_of =
            |of: &dyn Fn(&Turn) -> f64| median(&mut turns.iter().map(of).collect::<Vec<_>>());
        let middle = Turn {
            rate: median_of(&|turn| turn.rate),
            latency: [0, 1, 2].map(|of: usize| median_of(&|turn| turn.latency[of])),
            peak: turns.iter().map(|turn| turn.peak).fold(0.0, f64::max),
        };
        let rates = || turns.iter().map(|turn| turn.rate);
        let (least, most) = (
            rates().fold(f64::MAX, f64::min),
            rates().fold(0.0, f64::max),
        );
        let spread = format!("{least:.0} to {most:.0}");
        let Turn {
            rate,
            latency: [p50, p99, p999],
            peak,
        } = middle;
        println!("{name:28} {rate:9.0} {spread:>19} {p50:8.1} {p99:8.0} {p999:8.0} {peak:6.0}");
        medians.insert(name, middle);
    }
    print_promises(&medians);
    Ok(())
}

/// Prints which promises hold in the medians of one workload.
fn print_promises(medians: &BTreeMap<&str, Turn>) {
    let is_ours = |name: &str| RATES.iter().any(|(ours, _)| *ours == name);
    let verdict = |holds| if holds { "holds" } else { "does not hold" };
    let peers = medians.iter().filter(|(name, _)| !is_ours(name));
    let Some((peer, best)) = peers.max_by(|a, b| a.1.rate.total_cmp(&b.1.rate)) else {
        return;
    };
    for (ours, least) in RATES {
        let Some(turn) = medians.get(ours) else {
            continue;
        };
        let times = turn.rate / best.rate;
        let verdict_of_rate = verdict(times >= least);
        println!("{ours}: {times:.2} of {peer}, the best (at least {least}): {verdict_of_rate}");
        for mapping in ["mmap", "mmap, random advice"] {
            let Some(mapped) = medians.get(mapping) else {
                continue;
            };
            let times = turn.latency[1] / mapped.latency[1];
            let verdict_of_p99 = verdict(times <= P99_OF_MMAP);
            println!(
                "{ours}: p99 {times:.2} of {mapping} (at most {P99_OF_MMAP}): {verdict_of_p99}"
            );
        }
    }
}

/// Has a process of its own measure a column, in a new group.
fn take_turn(
    dir: &Path,
    (workload, column): (&Workload, &str),
    (pages, memory): (u64, u64),
    round: u64,
) -> Result<Turn, Error> {
    columns::forget_cached(dir)?;
    let group = MemoryGroup::new(memory << 20)?;
    let output = Command::new(env::current_exe()?)
        .arg("turn")
        .args([dir.as_os_str(), group.path().as_os_str()])
        .args([workload.name, column])
        .args([pages, memory, round].map(|it| it.to_string()))
        .output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}, {column}: {}: {text}", workload.name, output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    let numbers = numbers?;
    let [rate, p50, p99, p999] = numbers[..] else {
        return Err(format!("{}, {column}: bad answer: {text}", workload.name).into());
    };
    Ok(Turn {
        rate,
        latency: [p50, p99, p999],
        peak: group.peak()? as f64 / f64::from(1 << 20),
    })
}

/// The process of one turn: joins the group, warms up, measures and prints the figures.
pub fn turn(arguments: &[String]) -> Result<(), Error> {
    let [dir, group, workload, column, pages, memory, round] = arguments else {
        return Err("a turn is started by `peers`".into());
    };
    fs::write(
        PathBuf::from(group).join("cgroup.procs"),
        std::process::id().to_string(),
    )?;
    let workload = workload::by_name(workload)?;
    let (pages, memory) = (pages.parse()?, memory.parse::<u64>()? << 20);
    let mut store = columns::open(column, Path::new(dir), memory, workload.writes())?;
    let mut accesses = Accesses::new(workload, pages, memory / PAGE as u64, round.parse()?)?;
    let turn = Duration::from_secs(number("SECONDS", 3)?);
    let mut latency = Histogram::<u64>::new_with_bounds(1, LATENCY_MAX, 3)?;
    store.run(&mut accesses, Instant::now() + turn, &mut latency)?;
    latency.reset();
    let begun = Instant::now();
    store.run(&mut accesses, begun + turn, &mut latency)?;
    let rate = latency.len() as f64 / begun.elapsed().as_secs_f64();
    let micros = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
    println!("{rate} {} {} {}", micros(0.5), micros(0.99), micros(0.999));
    Ok(())
}
