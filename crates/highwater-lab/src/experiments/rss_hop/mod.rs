//! `rss-hop`: error of approximate RSS reads while a thread hops over many CPUs.
//!
//! A thread that moves to a random CPU before each step maps 1 to 8 pages into an empty slot of a
//! large array, or unmaps a full slot. Every counter gets every update. After every step each
//! counter's reading is compared with the exact sum, and the exact sum with the promised interval.
//! While the array fills, all per-CPU words drift in the same direction: the flat counter's worst
//! phase. Small processes do not fill the slots of 384 CPUs at all; they have a part of their own,
//! as measured on real kernels. The last parts drive each counter to its worst case, on this
//! machine and on one of 8,192 CPUs.

mod hop;
mod spread;
mod worst;

use self::hop::Hop;
use self::worst::worst_cases;
use super::lineup::{FLAT, OURS, PUBLISHED};
use super::pages::{bytes_f64, bytes_of_mean};
use super::{Experiment, ExperimentError, Findings, Setup, machine_of, published};
use crate::control::Control;
use crate::report::{Check, Figures, Headline, Noun, Unit};

const PUBLISHED_FIGURES: &str = include_str!("../../../published/rss-hop.json");

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "rss-hop",
    thread: "hierarchical-rss-counters-2026",
    summary: "errors of cheap reads while a thread hops over 384 CPUs",
    headline: Headline::of_variants(
        HOP,
        "error_rms_bytes",
        Noun::Mass("error"),
        ["Highwater", "flat per-CPU (upstream)"],
    ),
    topology: "2x12x8x2",
    cpus: 2..=8192,
    extras: &[],
    run,
};

const HOP: &str = "error of the cheap read after every step, positive where too little is shown";
const PHASES: &str = "while the array fills and once it is full, and the promised interval";
const WORST: &str = "worst case on this machine: promised, and reached by an adversary";
const WORST_8192: &str = "worst case on 8,192 CPUs";
const SMALL: &str = "a small process: 2,000 maps and unmaps of up to 64 pages";

/// Largest slot of the array, in pages. The discussion does not state it; with a million slots, the
/// array fills to 8.6 GiB.
const SLOT_PAGES: u8 = 8;

/// Slots of the small process, and the largest one's pages: fills to about the 1,690 pages of the
/// kernels' runs.
const SMALL_SLOTS: usize = 80;
const SMALL_SLOT_PAGES: u8 = 64;
const SMALL_STEPS: u64 = 2_000;

/// The published machine, for which the published figures are checked.
const THREAD_CPUS: usize = 384;

const MIB: f64 = 1_048_576.0;

const NOTE: &str = "Pages are simulated, counters are real: the library's is the production code, \
    driven with explicit CPUs. A shared line is one that several CPUs write; the cost of its \
    transfer is a model (0, 20, 60, 150 ns from the same core, cache, socket, another socket). A \
    process with few pages for each CPU that it hops over is below the resolution of per-CPU \
    words: Highwater's reading of the small one is off by as much as all of it, in either \
    direction, and its interval says so. Kernel rows are from other machines under emulation; only \
    their counts carry over. The published run lasted a few minutes.";

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let (steps, slots) = setup.pick((20_000_000, 1_000_000), (1_000_000, 250_000));
    control.expect(steps + SMALL_STEPS);
    let mut hop = Hop::new(setup, slots, SLOT_PAGES);
    hop.run(steps, control)?;
    let mut small = Hop::new(setup, SMALL_SLOTS, SMALL_SLOT_PAGES);
    small.run(SMALL_STEPS, control)?;
    let worst = worst_cases(&setup.topology);
    let worst_8192 = worst_cases(&machine_of(8192)?);

    let mut checks = Vec::new();
    if setup.topology.nr_cpus() == THREAD_CPUS {
        thread_checks(setup, &hop, &small, &mut checks);
    }
    general_checks(setup, &hop, &small, &mut checks);
    for (cases, machine) in [(&worst, "this machine"), (&worst_8192, "8,192 CPUs")] {
        for case in cases
            .iter()
            .filter(|case| [FLAT, PUBLISHED, OURS].contains(&case.name))
        {
            case.checks(machine, &mut checks);
        }
    }
    let worst_rows = worst.iter().map(|case| case.row(WORST));
    let worst_8192_rows = worst_8192.iter().map(|case| case.row(WORST_8192));
    let rows = hop.error_rows(HOP).into_iter();
    let rows = rows.chain(hop.phase_rows(PHASES)).chain(hop.cost_rows());
    let rows = rows.chain(small.error_rows(SMALL));
    Ok(Findings {
        config: config(setup, &hop, steps),
        rows: rows.chain(worst_rows).chain(worst_8192_rows).collect(),
        published: published::rows(PUBLISHED_FIGURES, &[HOP, PHASES, SMALL, WORST]),
        checks,
    })
}

fn config(setup: &Setup, hop: &Hop, steps: u64) -> Figures {
    setup
        .config()
        .with("steps", steps)
        .with("growth_steps", hop.growth_steps())
        .with("slots", hop.nr_slots())
        .with("pages_of_a_slot_max", u64::from(SLOT_PAGES))
        .with("note_scope", NOTE)
}

/// Checks of the published findings on the published machine, and of the library against them.
fn thread_checks(setup: &Setup, hop: &Hop, small: &Hop, checks: &mut Vec<Check>) {
    let mib = |pages: i64| bytes_f64(pages);
    let (flat, published) = (hop.errors_of(FLAT).all(), hop.errors_of(PUBLISHED).all());
    let ours = hop.errors_of(OURS).all();
    let promised = hop.entry(OURS).counter.approximate_sum();
    let after = hop.errors_of(PUBLISHED).after;
    // A twentieth of the steps has more variance; none of 150 seeds was outside these limits.
    let (mean_low, mean_high, rms) = setup.pick((75.0, 84.0, 10.0), (70.0, 89.0, 12.0));
    checks.extend([
        Check::counted("flat: peak of the error").at_least(
            mib(flat.peak()),
            700.0 * MIB,
            Unit::Bytes,
        ),
        Check::counted("published tree: mean of the error, once full").between(
            bytes_of_mean(after.mean()),
            mean_low * MIB,
            mean_high * MIB,
            Unit::Bytes,
        ),
        Check::counted("published tree: never too high").at_least(
            mib(published.min()),
            0.0,
            Unit::Bytes,
        ),
        Check::counted("published tree: never further off than 158.5 MiB").at_most(
            mib(published.max()),
            158.5 * MIB,
            Unit::Bytes,
        ),
        Check::counted("flat and published tree: ratio of peaks").at_least(
            bytes_f64(flat.peak()) / bytes_f64(published.peak()),
            6.0,
            Unit::Ratio,
        ),
        Check::counted("Highwater: root mean square of the error").at_most(
            bytes_of_mean(ours.rms()),
            rms * MIB,
            Unit::Bytes,
        ),
        Check::counted("Highwater: width of the guaranteed interval").at_most(
            bytes_f64(promised.high - promised.low),
            131.0 * MIB,
            Unit::Bytes,
        ),
        Check::counted("small process: part of it that flat does not show at its worst").at_least(
            bytes_f64(small.errors_of(FLAT).all().peak()) / bytes_f64(small.resident_peak),
            0.95,
            Unit::Ratio,
        ),
    ]);
}

/// Checks that hold on any machine.
fn general_checks(setup: &Setup, hop: &Hop, small: &Hop, checks: &mut Vec<Check>) {
    for name in [FLAT, PUBLISHED, OURS] {
        let outside = hop.errors_of(name).outside + small.errors_of(name).outside;
        let check = format!("{name}: steps outside its own interval");
        checks.push(Check::counted(check).equal(&outside, &0));
    }
    // Both carry one page in 32; they differ in the nodes that hover at a boundary, by 0.4 % in 12
    // full runs and less than 3 % in 150 quick ones. Where the traffic is regular, `rss-cost`
    // allows no difference.
    let (chance, percent) = setup.pick((1.01, 1), (1.03, 3));
    checks.push(
        Check::counted(format!(
            "Highwater: shared writes per page, at most {percent} % above the published tree's"
        ))
        .at_most(
            hop.writes_per_page(OURS),
            hop.writes_per_page(PUBLISHED) * chance,
            Unit::Plain,
        ),
    );
    checks.push(
        Check::counted(
            "Highwater: modelled cost of transfers per page, against the published tree's",
        )
        .at_most(
            hop.transfer_ns_per_page(OURS),
            hop.transfer_ns_per_page(PUBLISHED),
            Unit::Ns,
        ),
    );
    checks.push(
        Check::counted("Highwater: differences to a second implementation")
            .equal(&(hop.disagreements() + small.disagreements()), &0),
    );
}
