//! `flush-reads`: read latency of a group's statistics while a quarter of a million readers arrive
//! by schedule.
//!
//! 50,000 groups on 384 virtual CPUs, each updated from two; readers at the published rate for a
//! CPU; one thread that updates for a tenth of a CPU, and one that flushes the root every two
//! seconds. Compares the patch's rule, the rule before it, and the first posting, which has no
//! thresholds: each reader flushes, one after the other under a mutex.

mod groups;
mod kernel;
mod storm;
mod typed;

use std::sync::PoisonError;
use std::time::Duration;

use self::groups::{GROUP_CPUS, Groups, UPDATES_PERCENT};
use self::kernel::KernelRun;
use self::storm::{Served, reads_per_s, round_seed};
use self::typed::{TYPED, Typed};
use super::flushers::{Flusher, MUTEX, OURS, PATCH, SKIP};
use super::service::Times;
use super::{Experiment, ExperimentError, Extra, Findings, Setup, published};
use crate::baselines::flush::{FlushRule, LibraryStatistics, Shape};
use crate::control::Control;
use crate::report::{Check, Figures, Headline, Noun, Row, Source, Unit};

const PUBLISHED_FIGURES: &str = include_str!("../../../published/flush-reads.json");

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "flush-reads",
    thread: "memcg-subtree-flush-2023",
    summary: "latency of 13,020 reads a second of the statistics of 50,000 groups",
    headline: Headline::of_variants(
        "service time of a read",
        "p99_us",
        Noun::Mass("time for 99 % of reads"),
        ["Highwater", "subtree, always, under a mutex"],
    ),
    topology: "2x12x8x2",
    cpus: 2..=8192,
    extras: &[Extra::Kernel],
    run,
};

const READS: &str = "service time of a read";
const ARRIVALS: &str =
    "from the scheduled arrival to the end of the read, including other work of the machine";
const STALE: &str = "staleness of reads, beyond updates in flight";
const KERNEL: &str = "CPU time of a read of memory.stat";

/// Buckets of the published latencies.
const BUCKETS: [Duration; 3] = [
    Duration::from_micros(50),
    Duration::from_millis(1),
    Duration::from_millis(100),
];

const NOTE: &str = "Service time excludes the time that a reader spent runnable while other \
    threads ran: on few CPUs a preempted reader waits for whole time slices, whatever it reads. \
    Waits for locks are included. The second table includes everything. Readers arrive in open \
    loop, at the published machine's rate for a CPU; a late one is served at once. Each time \
    includes reading the clocks.";

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let shape = setup.pick(Shape::of(250, 200), Shape::of(20, 50));
    let time = setup.pick(Duration::from_secs(3), Duration::from_millis(200));
    let rounds: u32 = setup.repeats(3, 1, 2);
    let flushers = flushers(setup, &shape);
    let storms = flushers.len() as u64 + u64::from(setup.options.is_kernel);
    control.expect(storms * u64::from(rounds + 1) + typed::STEPS);

    let mut lanes = Vec::new();
    for flusher in &flushers {
        let cpus = setup.topology.nr_cpus();
        lanes.push(Groups::new(flusher, &shape, cpus, setup.options.seed));
        control.advance(1)?;
    }
    for round in 0..rounds {
        let count = lanes.len();
        for turn in 0..count {
            let at = (round as usize + turn) % count;
            lanes[at].round(time, round_seed(setup, round), control)?;
            control.advance(1)?;
        }
    }
    let kernel = match setup.options.is_kernel {
        true => kernel::run(setup, &shape, time, rounds, control)?,
        false => KernelRun::NotAsked,
    };
    let typed = typed::run(setup, control)?;
    let mut checks = Vec::new();
    typed.iter().for_each(|typed| typed.checks(&mut checks));
    value_checks(&lanes, &mut checks);
    time_checks(&lanes, PATCH, &mut checks);
    time_checks(&lanes, OURS, &mut checks);
    let rows = [
        rows(&lanes, |lane| {
            times_on(row(READS, lane), &lane.served.service)
        }),
        kernel_row(&kernel, READS, |served| &served.service),
        rows(&lanes, |lane| {
            times_on(row(ARRIVALS, lane), &lane.served.since_arrival)
        }),
        kernel_row(&kernel, ARRIVALS, |served| &served.since_arrival),
        rows(&lanes, stale_row),
        typed.iter().map(Typed::row).collect(),
    ];
    Ok(Findings {
        config: kernel_config(config(setup, &shape, time * rounds, &lanes), &kernel),
        rows: rows.concat(),
        published: published::rows(PUBLISHED_FIGURES, &[READS, KERNEL, TYPED]),
        checks,
    })
}

/// Checks of values, which do not depend on time.
fn value_checks(lanes: &[Groups<'_>], checks: &mut Vec<Check>) {
    for lane in lanes {
        checks.push(
            Check::counted(format!(
                "{}: groups with wrong values, at the end",
                lane.flusher.name
            ))
            .equal(&lane.wrong(), &0),
        );
    }
    for lane in lanes.iter().filter(|lane| lane.flusher.name == OURS) {
        let stale = lane.stale.lock().unwrap_or_else(PoisonError::into_inner);
        checks.push(
            Check::counted(format!(
                "{OURS}: reads beyond their stated bound, of {}",
                stale.bounded
            ))
            .equal(&stale.violations, &0),
        );
    }
}

fn flushers(setup: &Setup, shape: &Shape) -> Vec<Flusher> {
    let rules = [
        (MUTEX, FlushRule::SubtreeUnderMutex),
        (SKIP, FlushRule::RootSkipIfBusy),
        (PATCH, FlushRule::SubtreeThresholds),
    ];
    let rstat = |(name, rule)| Flusher::rstat(name, rule, shape, &setup.topology);
    let ours = Flusher::ours(LibraryStatistics::new(shape, setup.topology.nr_cpus()));
    rules.map(rstat).into_iter().chain([ours]).collect()
}

fn config(setup: &Setup, shape: &Shape, time: Duration, lanes: &[Groups<'_>]) -> Figures {
    let unknown: usize = lanes.iter().map(|lane| lane.served.unknown_waits).sum();
    setup
        .config()
        .with("groups_read", shape.nr_groups() - shape.below(1).start)
        .with("cpus_of_a_group", GROUP_CPUS)
        .with("scheduled_reads_per_s", reads_per_s())
        .with("reading_s", time.as_secs_f64())
        .with("updates_of_a_cpu_percent", u64::from(UPDATES_PERCENT))
        .with("waits_for_cpus_known", unknown == 0)
        .with("note_scope", NOTE)
}

fn rows(lanes: &[Groups<'_>], row: impl Fn(&Groups<'_>) -> Row) -> Vec<Row> {
    lanes.iter().map(row).collect()
}

fn row(part: &'static str, lane: &Groups<'_>) -> Row {
    Row::new(part, Source::Run, lane.flusher.name)
}

fn kernel_row(
    kernel: &KernelRun,
    part: &'static str,
    times: impl Fn(&Served) -> &Times,
) -> Vec<Row> {
    match kernel {
        KernelRun::NotAsked | KernelRun::Skipped(_) => Vec::new(),
        KernelRun::Read {
            description,
            served,
        } => vec![times_on(
            Row::new(part, Source::Run, description),
            times(served),
        )],
    }
}

/// Returns `row` with the published buckets and quantiles.
fn times_on(row: Row, times: &Times) -> Row {
    let [short, middle, long] = BUCKETS.map(|bucket| times.above_percent(bucket));
    row.with("reads", times.calls())
        .with("within_50_us_percent", 100.0 - short)
        .with("within_1_ms_percent", short - middle)
        .with("within_100_ms_percent", middle - long)
        .with("longer_percent", long)
        .with("p50_us", times.quantile_us(0.5))
        .with("p99_us", times.quantile_us(0.99))
        .with("p999_us", times.quantile_us(0.999))
        .with("most_us", times.max_us())
}

/// States whether the kernel's groups were read, or why not, if the request asked for it.
fn kernel_config(config: Figures, kernel: &KernelRun) -> Figures {
    match kernel {
        KernelRun::NotAsked => config,
        KernelRun::Skipped(reason) => config.with("kernel_skipped", reason.as_str()),
        KernelRun::Read { description, .. } => config.with("kernel", description.as_str()),
    }
}

fn stale_row(lane: &Groups<'_>) -> Row {
    let stale = lane.stale.lock().unwrap_or_else(PoisonError::into_inner);
    let tally = lane.flusher.statistics.tally();
    let pages = &stale.pages;
    let row = row(STALE, lane)
        .with("p50_pages", pages.value_at_quantile(0.5))
        .with("p99_pages", pages.value_at_quantile(0.99))
        .with("max_pages", pages.max())
        .with("updates", lane.updates)
        .with("flushes_read", tally.flushes)
        .with("flushes_periodic", tally.periodic)
        .with("skipped_few", tally.skipped_few)
        .with("skipped_busy", tally.skipped_busy)
        .with("lock_waits", tally.waits);
    if stale.bounded == 0 {
        return row;
    }
    row.with("stated_most_pages", stale.bound_max)
        .with("beyond_stated", stale.violations)
}

fn service<'a>(lanes: &'a [Groups<'_>], name: &str) -> &'a Times {
    let found = lanes.iter().find(|lane| lane.flusher.name == name);
    &found.expect("every variant is read").served.service
}

/// Checks against the published times of the patch, and of the rule that it replaced.
fn time_checks(lanes: &[Groups<'_>], name: &str, checks: &mut Vec<Check>) {
    let times = service(lanes, name);
    checks.push(
        Check::timed(format!("{name}: 99.9 % of reads take")).at_most(
            times.quantile_us(0.999),
            50.0,
            Unit::Us,
        ),
    );
    let above = times.above_percent(Duration::from_millis(1));
    checks.push(Check {
        want: "< 0.0100 %".to_owned(),
        got: format!("{above:.4} %"),
        ..Check::timed(format!("{name}: reads above 1 ms")).below(above, 0.01, Unit::Percent)
    });
    checks.push(
        Check::timed(format!("{name}: the longest read takes")).at_most(
            times.max_us(),
            100_000.0,
            Unit::Us,
        ),
    );
    checks.push(
        Check::timed(format!("99 % of reads {MUTEX}, against {name}")).at_least(
            service(lanes, MUTEX).quantile_us(0.99) / times.quantile_us(0.99),
            20.0,
            Unit::Ratio,
        ),
    );
}
