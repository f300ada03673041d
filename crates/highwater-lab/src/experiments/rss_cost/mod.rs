//! `rss-cost`: cost of RSS counting where pages are faulted in one by one and unmapped in large
//! batches.
//!
//! The body is that of will-it-scale's `page_fault1`: 32,768 additions of one page, then 64 of
//! minus 512. The experiment measures shared cache lines written for each page, on 192 virtual
//! CPUs that count for one space in turn; time for each page on the real CPUs; and the effect of
//! that time on the throughput of page faults.
//!
//! Two real CPUs cannot show the contention of 192 for a line. They show its direction, and the
//! cost of the accounting alone; the published benchmarks are of whole kernels.

mod timing;

use highwater::lab::percpu::has_restartable_sequences;
use highwater::units::CpuId;

use self::timing::{FAULTS, OURS_SET, Timed, UNMAP_PAGES, UNMAPS};
use super::lineup::{Entry, FLAT, Lineup, OURS, PUBLISHED};
use super::{Experiment, ExperimentError, Findings, Setup, published};
use crate::control::Control;
use crate::report::text::to_f64;
use crate::report::{Check, Figures, Headline, Noun, Row, Source, Unit};

const PUBLISHED_FIGURES: &str = include_str!("../../../published/rss-cost.json");

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "rss-cost",
    thread: "hierarchical-rss-counters-2026, rfc-2022-per-cpu-rss-cache",
    summary: "shared writes and time for each page faulted in, as in page_fault1",
    headline: Headline::of_variants(
        "shared lines written for each page faulted in, all CPUs counting for one space",
        "writes_per_page",
        Noun::Count("shared writes for a page"),
        ["Highwater", "one shared atomic"],
    ),
    topology: "2x12x8x1",
    cpus: 2..=8192,
    extras: &[],
    run,
};

const WRITES: &str =
    "shared lines written for each page faulted in, all CPUs counting for one space";
const TIMES: &str = "CPU time for each page counted, on this machine's CPUs";
const PAGE_FAULTS: &str =
    "page faults a second of a thread (here: a fault and its counting, added up)";
const WHOLE_BENCHMARKS: &str =
    "whole benchmarks of the active-space cache, which have no counterpart here";

/// Upper bound of the CPUs that take part in counting writes.
const CPUS_COUNTED_MAX: usize = 192;

/// The published machine with one thread for each core, for which the specification's figures are.
const THREAD_CPUS: usize = 192;

const NOTE: &str = "Writes are counted on virtual CPUs, each faulting in one page in turn: exact, \
    the same in each run. Times are medians of CPU time on the real CPUs, in counters of as many \
    CPUs as the machine above; per-CPU words are restartable adds, except for the last three rows. \
    The times compare the accounting alone, as a direction: this machine does not show the \
    contention of 192 CPUs, and the modelled cost of transfers (0, 20, 60, 150 ns from the same \
    core, cache, socket, another socket) stands in for it. Two threads that really run at once \
    (`at once` near 2) on neighbouring CPUs share a node of the trees that group neighbours, and \
    contend for it; in the published tree they share nodes with distant CPUs instead, which this \
    machine does not have. Page faults a second add the time of counting a page to that of a real \
    first touch here; the published ones are whole runs of will-it-scale.";

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let cpus = counted_cpus(setup);
    control.expect(cpus.len() as u64 + 2 * timing::steps(setup) + timing::fault_steps(setup));
    let lineup = count_writes(setup, &cpus, control)?;
    let single = timing::time_adds(setup, 1, control)?;
    let pair = timing::time_adds(setup, 2, control)?;
    let fault_ns = timing::fault_ns(setup, control)?;

    let mut checks = Vec::new();
    write_checks(setup, &lineup, &cpus, &mut checks);
    time_checks(&single, &pair, fault_ns, &mut checks);
    let pages = pages(&cpus);
    let writes = lineup.entries.iter().map(|entry| write_row(entry, pages));
    let faults = [
        (&single, "here, 1 thread"),
        (&pair, "here, 2 threads of one space"),
    ];
    let faults = faults.map(|(times, name)| fault_row(times, name, fault_ns));
    Ok(Findings {
        config: config(setup, cpus.len(), fault_ns),
        rows: writes
            .chain(time_rows(&single, &pair))
            .chain(faults)
            .collect(),
        published: published::rows(PUBLISHED_FIGURES, &[PAGE_FAULTS, WHOLE_BENCHMARKS]),
        checks,
    })
}

fn config(setup: &Setup, cpus_counting: usize, fault_ns: f64) -> Figures {
    setup
        .config()
        .with("cpus_counting", cpus_counting)
        .with(
            "timed_in_counters_of_cpus",
            timing::timed_topology(setup).nr_cpus(),
        )
        .with("restartable", has_restartable_sequences())
        .with("first_touch_of_a_page_ns", fault_ns)
        .with("note_scope", NOTE)
}

/// Returns the CPUs that take part in counting writes: all, or as many as allowed, spread over the
/// machine.
fn counted_cpus(setup: &Setup) -> Vec<CpuId> {
    let all = setup.topology.nr_cpus();
    let counting = all.min(setup.pick(CPUS_COUNTED_MAX, 24));
    (0..counting)
        .map(|index| CpuId::from_index(index * all / counting))
        .collect()
}

/// Returns the pages that the CPUs fault in.
fn pages(cpus: &[CpuId]) -> f64 {
    to_f64(cpus.len() as u64) * f64::from(FAULTS)
}

/// Runs one body on each CPU, page by page, the CPUs in turn.
fn count_writes(
    setup: &Setup,
    cpus: &[CpuId],
    control: &Control,
) -> Result<Lineup, ExperimentError> {
    let mut lineup = Lineup::new(&setup.topology);
    let faults = (0..FAULTS).map(|_| 1);
    let unmaps = (0..UNMAPS).map(|_| -UNMAP_PAGES);
    for (index, delta) in faults.chain(unmaps).enumerate() {
        for entry in &mut lineup.entries {
            for &cpu in cpus {
                entry.add(cpu, delta);
            }
        }
        // As many steps as CPUs, a body for each.
        let share = (FAULTS + UNMAPS) as usize / cpus.len().max(1);
        if index % share == share - 1 {
            control.advance(1)?;
        }
    }
    Ok(lineup)
}

fn write_row(entry: &Entry, pages: f64) -> Row {
    let ledger = &entry.ledger;
    let per_page = |events: u64| to_f64(events) / pages;
    let by_level: Vec<f64> = ledger.writes_by_level().into_iter().map(per_page).collect();
    Row::new(WRITES, Source::Run, entry.name)
        .with("writes_per_page", per_page(ledger.writes()))
        .with("writes_per_page_by_level", by_level)
        .with("transfers_per_page", per_page(ledger.transfers()))
        .with(
            "modelled_transfer_per_page_ns",
            per_page(ledger.transfer_ns()),
        )
        .with("space_bytes", 4 * entry.counter.bytes())
}

/// Returns one row for each variant, with ratios to the flat counter.
fn time_rows(single: &[Timed], pair: &[Timed]) -> Vec<Row> {
    let ratio = |own: f64, flat: f64| own / flat;
    let (flat_single, flat_pair) = (timed(single, FLAT), timed(pair, FLAT));
    let row = |(single, pair): (&Timed, &Timed)| {
        Row::new(TIMES, Source::Run, single.name)
            .with("one_thread_page_ns", single.page_ns())
            .with(
                "one_thread_to_flat_ratio",
                single.against(flat_single, ratio),
            )
            .with("two_threads_page_ns", pair.page_ns())
            .with("two_threads_to_flat_ratio", pair.against(flat_pair, ratio))
            .with("two_threads_at_once", pair.at_once())
    };
    single.iter().zip(pair).map(row).collect()
}

fn timed<'a>(times: &'a [Timed], name: &str) -> &'a Timed {
    let found = times.iter().find(|timed| timed.name == name);
    found.expect("every variant is timed")
}

/// Returns the row of page faults per second, if each costs `fault_ns` beside its counting.
fn fault_row(times: &[Timed], name: &str, fault_ns: f64) -> Row {
    let per_s = |name: &str| 1e9 / (fault_ns + timed(times, name).page_ns());
    let speedup = |name: &str| (throughput_ratio(times, name, fault_ns) - 1.0) * 100.0;
    Row::new(PAGE_FAULTS, Source::Run, name)
        .with("upstream_per_s", per_s(FLAT))
        .with("hierarchical_per_s", per_s(PUBLISHED))
        .with("hierarchical_speedup_percent", speedup(PUBLISHED))
        .with("highwater_per_s", per_s(OURS))
        .with("highwater_speedup_percent", speedup(OURS))
}

/// Returns the throughput of page faults with a counter, relative to that with the flat one.
fn throughput_ratio(times: &[Timed], name: &str, fault_ns: f64) -> f64 {
    let faster = |own: f64, flat: f64| (fault_ns + flat) / (fault_ns + own);
    timed(times, name).against(timed(times, FLAT), faster)
}

fn write_checks(setup: &Setup, lineup: &Lineup, cpus: &[CpuId], checks: &mut Vec<Check>) {
    let ledger = |name: &str| {
        let found = lineup.entries.iter().find(|entry| entry.name == name);
        &found.expect("every counter counts").ledger
    };
    let writes = |name: &str| to_f64(ledger(name).writes()) / pages(cpus);
    if setup.topology.nr_cpus() == THREAD_CPUS {
        checks.push(
            Check::counted("published tree: shared writes per page").between(
                writes(PUBLISHED),
                0.036,
                0.040,
                Unit::Plain,
            ),
        );
        checks.push(
            Check::counted("flat, batch of 384: shared writes per page").between(
                writes(FLAT),
                0.0043,
                0.0047,
                Unit::Plain,
            ),
        );
    }
    checks.push(
        Check::counted("Highwater: shared writes per page, against the published tree's").at_most(
            writes(OURS),
            writes(PUBLISHED),
            Unit::Plain,
        ),
    );
    checks.push(
        Check::counted("Highwater: modelled cost of transfers, against the published tree's")
            .at_most(
                to_f64(ledger(OURS).transfer_ns()) / pages(cpus),
                to_f64(ledger(PUBLISHED).transfer_ns()) / pages(cpus),
                Unit::Ns,
            ),
    );
    let left = lineup
        .entries
        .iter()
        .map(|entry| entry.counter.precise_sum().abs());
    checks.push(Check::counted("pages left in any counter").equal(&left.sum::<i64>(), &0));
    checks.push(
        Check::counted("Highwater: differences to a second implementation")
            .equal(&lineup.disagreements(), &0),
    );
}

fn time_checks(single: &[Timed], pair: &[Timed], fault_ns: f64, checks: &mut Vec<Check>) {
    for name in [OURS, OURS_SET] {
        let (own, flat) = (timed(single, name), timed(single, FLAT));
        let ratio = own.against(flat, |own, flat| own / flat);
        let more_ns = own.against(flat, |own, flat| own - flat);
        // Either limit suffices: the smaller part of an allowance decides.
        let part_of_allowed = (ratio / 1.03).min(more_ns / 1.0);
        let subject = Check::timed(format!("{name}: a page on 1 thread, against flat"));
        checks.push(Check {
            want: "<= 1.030 times, or 1.00 ns more".to_owned(),
            got: format!("{ratio:.3} times, {more_ns:+.2} ns"),
            ..subject.at_most(part_of_allowed, 1.0, Unit::Ratio)
        });
    }
    for name in [PUBLISHED, OURS, OURS_SET] {
        checks.push(
            Check::timed(format!(
                "{name}: page faults a second of 2 threads, against flat"
            ))
            .at_least(throughput_ratio(pair, name, fault_ns), 0.97, Unit::Ratio),
        );
    }
}
