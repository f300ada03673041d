//! `dirty-read`: readers beside writers under pressure, on a slow disk.
//!
//! 95 % reads and 5 % updates by a Zipf law, with memory for 4.5 tenths of the data: the mix in
//! which the reclaim series of Linux 7.2 gained 30 % on flash, and up to 100 % on slow disks. A
//! request that finds a dirty page at the tail of a list either writes it back, and its reader
//! waits for a page that is not its own, or leaves it there and takes a clean one.
//!
//! First on a simulated clock, where one seed gives one outcome; then by real threads on a real
//! file whose transfers sleep.

mod disk;
mod load;
mod simulated;
mod threads;
mod variants;

use self::load::Data;
use self::simulated::Ran;
use self::variants::{ALONE, BACKGROUND, OURS, REQUESTER, VARIANTS, Variant};
use super::{Experiment, ExperimentError, Findings, Setup, published};
use crate::control::Control;
use crate::report::text::to_f64;
use crate::report::{Check, Figures, Headline, Noun, Row, Source, Unit};

const PUBLISHED_FIGURES: &str = include_str!("../../../published/dirty-read.json");

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "dirty-read",
    thread: "mglru-dirty-folios-2026",
    summary: "95 % reads, 5 % updates on a slow disk: refaults, and readers that wait for write-back",
    headline: Headline::of_variants(
        SIMULATED,
        "refaults",
        Noun::Count("refaults"),
        [OURS, BACKGROUND],
    ),
    topology: "1x1x2x1",
    cpus: 1..=1024,
    extras: &[],
    run,
};

const SIMULATED: &str = "on a simulated clock: a slow disk, one operation after the other";
const THREADS: &str = "by real threads, on a real file whose transfers sleep";

const NOTE: &str = "A page is read, or updated under its latch, by a Zipf law (0.99). Waiting reads \
    are pages that a thread wrote back while it read another one: the library without background \
    threads, and Linux before 3.2. Refaults are pages read in again while their shadow was \
    remembered. The bound of faults is that of the law, by which pages are drawn independently, so \
    that a policy can at best keep those with the highest probabilities. On the simulated clock the \
    disk does one transfer at a time, 500 us a read and 1 ms a write, first come, first served, for \
    16 clients and the background threads; an operation takes a microsecond besides. Real transfers \
    sleep, 200 us and 400 us, and overlap. Each page that is read is verified.";

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    control.expect(2 * VARIANTS.len() as u64);
    let data = Data::new(setup.pick(40_000, 8_000))?;
    let mut all = Vec::new();
    for variant in &VARIANTS {
        let simulated = simulated::run(setup, &data, variant, control)?;
        control.advance(1)?;
        let real = threads::run(setup, &data, variant, control)?;
        control.advance(1)?;
        all.push(Lane {
            variant,
            simulated,
            real,
        });
    }
    let mut checks = Vec::new();
    count_checks(&data, &all, &mut checks);
    time_checks(&all, &mut checks);
    let rows = all
        .iter()
        .map(|lane| row(SIMULATED, lane.variant, &lane.simulated));
    let bound = Row::new(SIMULATED, Source::Bound, "any policy, on average, at least")
        .with("faults", faults_min(&data, &all));
    let rows = rows.chain([bound]);
    let rows = rows.chain(
        all.iter()
            .map(|lane| row(THREADS, lane.variant, &lane.real)),
    );
    Ok(Findings {
        config: config(setup, &data),
        rows: rows.collect(),
        published: published::rows(PUBLISHED_FIGURES, &[SIMULATED]),
        checks,
    })
}

fn config(setup: &Setup, data: &Data) -> Figures {
    setup
        .config()
        .with("data_pages", setup.pick(40_000_u64, 8_000))
        .with("memory_pages", data.memory().0)
        .with("clients_simulated", simulated::CLIENTS)
        .with("clients_real", threads::CLIENTS)
        .with("note_scope", NOTE)
}

/// Results of one variant.
struct Lane {
    variant: &'static Variant,
    simulated: Ran,
    real: Ran,
}

fn row(part: &'static str, variant: &Variant, ran: &Ran) -> Row {
    Row::new(part, Source::Run, variant.name)
        .with("operations_per_s", per_s(ran))
        .with("p999_us", ran.reads.quantile_us(0.999))
        .with("refaults", ran.refaults)
        .with("waiting_reads", ran.transfers.in_reads)
        .with("p99_us", ran.reads.quantile_us(0.99))
        .with("faults", ran.faults)
        .with("pages_written", ran.transfers.writes)
        .with("written_in_updates", ran.transfers.in_updates)
}

fn per_s(ran: &Ran) -> f64 {
    to_f64(ran.operations) / ran.seconds
}

fn lane<'a>(lanes: &'a [Lane], name: &str) -> &'a Lane {
    let found = lanes.iter().find(|lane| lane.variant.name == name);
    found.expect("every variant runs")
}

/// Returns the faults that no policy can avoid, on average: the misses that the law imposes.
fn faults_min(data: &Data, lanes: &[Lane]) -> f64 {
    data.misses_min() * to_f64(lane(lanes, OURS).simulated.operations)
}

fn count_checks(data: &Data, lanes: &[Lane], checks: &mut Vec<Check>) {
    let wrong: u64 = lanes
        .iter()
        .map(|lane| lane.simulated.wrong + lane.real.wrong)
        .sum();
    checks.push(Check::counted("pages with the wrong bytes").equal(&wrong, &0));
    fault_checks(data, lanes, checks);
    let [ours, alone, requester] = [OURS, ALONE, REQUESTER].map(|name| lane(lanes, name));
    checks.push(
        Check::counted(format!(
            "{OURS}: reads that wait for write-back of another page, simulated"
        ))
        .equal(&ours.simulated.transfers.in_reads, &0),
    );
    for lane in [ours, alone] {
        checks.push(
            Check::counted(format!("{}: dirty pages, at most", lane.variant.name)).at_most(
                lane.simulated.dirty_most_percent,
                50.0,
                Unit::Percent,
            ),
        );
    }
    checks.push(
        Check::counted(format!("{REQUESTER}: reads that wait for write-back")).at_least(
            to_f64(requester.simulated.reads_that_wrote),
            1.0,
            Unit::Plain,
        ),
    );
    simulated_time_checks(lanes, checks);
}

fn fault_checks(data: &Data, lanes: &[Lane], checks: &mut Vec<Check>) {
    let ours = lane(lanes, OURS);
    for other in [BACKGROUND, REQUESTER].map(|name| lane(lanes, name)) {
        let name = other.variant.name;
        checks.push(
            Check::counted(format!("refaults: {OURS} against {name}")).at_most(
                to_f64(ours.simulated.refaults) / to_f64(other.simulated.refaults),
                1.0,
                Unit::Ratio,
            ),
        );
    }
    checks.push(
        Check::counted(format!(
            "faults: {OURS} against the least that any policy can have"
        ))
        .at_most(
            to_f64(ours.simulated.faults) / faults_min(data, lanes),
            1.45,
            Unit::Ratio,
        ),
    );
}

fn simulated_time_checks(lanes: &[Lane], checks: &mut Vec<Check>) {
    let [ours, background, requester] = [OURS, BACKGROUND, REQUESTER].map(|name| lane(lanes, name));
    // Threads that keep 10 % dirty write pages more often than writers that wait until 20 % are,
    // and this disk does not prefer reads.
    let p999 = |lane: &Lane| lane.simulated.reads.quantile_us(0.999);
    checks.push(
        Check::counted(format!(
            "p99.9 of reads, simulated: {OURS} against {REQUESTER}"
        ))
        .at_most(p999(ours) / p999(requester), 0.7, Unit::Ratio),
    );
    checks.push(
        Check::counted(format!(
            "p99.9 of reads, simulated: {OURS} against {BACKGROUND}"
        ))
        .at_most(p999(ours) / p999(background), 1.1, Unit::Ratio),
    );
    checks.push(
        Check::counted(format!(
            "operations in a second, simulated: {OURS} against {REQUESTER}"
        ))
        .at_least(
            per_s(&ours.simulated) / per_s(&requester.simulated),
            0.9,
            Unit::Ratio,
        ),
    );
}

fn time_checks(lanes: &[Lane], checks: &mut Vec<Check>) {
    let [ours, requester] = [OURS, REQUESTER].map(|name| lane(lanes, name));
    // A pass that finds no clean page, since other threads that wait for a CPU hold those that it
    // looks at, writes one back.
    checks.push(
        Check::timed(format!(
            "{OURS}: pages written back in reads of others, real threads, against {REQUESTER}"
        ))
        .at_most(
            to_f64(ours.real.transfers.in_reads) / to_f64(requester.real.transfers.in_reads.max(1)),
            0.01,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::timed(format!(
            "operations in a second, real threads: {OURS} against {REQUESTER}"
        ))
        .at_least(per_s(&ours.real) / per_s(&requester.real), 1.0, Unit::Ratio),
    );
    checks.push(
        Check::timed(format!(
            "p99.9 of reads, real threads: {OURS} against {REQUESTER}"
        ))
        .at_most(
            ours.real.reads.quantile_us(0.999) / requester.real.reads.quantile_us(0.999),
            1.0,
            Unit::Ratio,
        ),
    );
}
