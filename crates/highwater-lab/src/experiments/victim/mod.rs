//! `victim`: latency and correctness of OOM victim selection.
//!
//! Among many spaces on many CPUs, one holds a hundred times the memory of the others. Three
//! searches find it: exact sums of all spaces (Linux 7.0), the two passes proposed with the counter
//! tree, and the library's search. All have the same pages on the same CPUs; caches are evicted
//! before each selection, and the searches take turns.
//!
//! Any search finds a single hog. So the two searches that read cheaply also run over spaces whose
//! sizes follow four distributions, in random order, where the published one walks off to the end
//! of its list.

mod effort;
mod latency;
mod names;
mod population;
mod scale;
mod verdicts;

use self::latency::{ColdCaches, Race};
use self::names::{ONE_PASS, OURS, TWO_PASS};
use self::population::{Sizes, Spaces, Spread};
use self::scale::Scale;
use self::verdicts::Verdict;
use super::{Experiment, ExperimentError, Findings, Setup, published};
use crate::control::Control;
use crate::report::text::{grouped, to_f64};
use crate::report::{Check, Figures, Headline, Noun, Unit};

const PUBLISHED_FIGURES: &str = include_str!("../../../published/victim.json");

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "victim",
    thread: "hierarchical-rss-counters-2026",
    summary: "victim selection among 10,000 spaces on 256 CPUs: its latency, and how often it is right",
    headline: Headline::of_variants(
        "time of one selection: many spaces, each on every CPU",
        "median_us",
        Noun::Mass("time to choose a victim"),
        ["Highwater", "exact sum of all spaces"],
    ),
    topology: "2x8x8x2",
    cpus: 2..=1024,
    extras: &[],
    run,
};

const FEW: &str = "time of one selection: 40 spaces, each on every CPU";
const MANY: &str = "time of one selection: many spaces, each on every CPU";
const SPARSE: &str = "time of one selection: many spaces, each on 1 to 64 CPUs, as processes are";
const SIMILAR: &str =
    "time of one selection: many spaces of similar sizes, no hog, each on every CPU";

/// The published machine, for which the published figures are checked.
const THREAD_CPUS: usize = 256;

/// Spaces of the published small run.
const NR_FEW: usize = 40;

const NOTE: &str = "Pages are simulated, CPUs are virtual, counters are real: the library's are \
    production code, read as its documentation says. Kernel-like layouts hold the words of all \
    spaces CPU by CPU. No variant walks a task list or takes locks, which flatters the kernel's; \
    the published times are of whole invocations of the OOM killer. Sizes: 50 to 150 MiB, in most \
    parts one hog of 10 GiB. All variants have the same pages on the same CPUs, take turns, and \
    begin with cold caches; times exclude preemption. Lines are the \
    distinct cache lines of one selection, by the layouts. A victim is right if it holds at most 1 % \
    less than the largest. In the verdicts, errors of cheap reads are drawn from those of real \
    counters on 384 CPUs, all of them used.";

/// Results of the timed parts.
struct Times {
    few: Race,
    many: Race,
    sparse: Race,
    similar: Race,
    scale: Scale,
}

impl Times {
    fn races(&self) -> [&Race; 4] {
        [&self.few, &self.many, &self.sparse, &self.similar]
    }
}

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let rounds = setup.repeats(9, 3, 5);
    let nr_many = setup.pick(10_000, 500);
    let sizes = setup.pick([10_000, 100_000, 1_000_000], [500, 5_000, 50_000]);
    let lists = setup.pick(200, 10);
    let mut caches = ColdCaches::new(setup.pick(512 << 20, 32 << 20));
    control.expect(3 * (rounds_of_few(rounds) + 3 * rounds));
    control.expect(sizes.len() as u64 * rounds + verdicts::steps(lists));

    let mut race = |part, nr_spaces: usize, what, (spread, sizes), rounds| {
        let label = format!("{} {what}", grouped(nr_spaces as u64));
        let spaces = Spaces::new(setup, nr_spaces, spread, sizes, control)?;
        Race::run(part, label, &spaces, rounds, &mut caches, control)
    };
    let everywhere = (Spread::Everywhere, Sizes::OneHog);
    let sparse = (Spread::AsProcesses, Sizes::OneHog);
    let similar = (Spread::Everywhere, Sizes::Similar);
    let times = Times {
        few: race(FEW, NR_FEW, "spaces", everywhere, rounds_of_few(rounds))?,
        many: race(MANY, nr_many, "spaces", everywhere, rounds)?,
        sparse: race(SPARSE, nr_many, "spaces as processes are", sparse, rounds)?,
        similar: race(SIMILAR, nr_many, "similar spaces", similar, rounds)?,
        scale: Scale::run(setup, &sizes, rounds, &mut caches, control)?,
    };
    let verdicts = verdicts::all(setup.options.seed, lists, control)?;

    let mut checks = Vec::new();
    right_checks(&times, &mut checks);
    work_checks(setup, &times, &mut checks);
    time_checks(setup, &times, &mut checks);
    for verdict in &verdicts {
        verdict.checks(setup, &mut checks);
    }
    let races = times.races().into_iter().flat_map(Race::rows);
    let judged = verdicts.iter().flat_map(Verdict::rows);
    Ok(Findings {
        config: config(setup, nr_many, rounds, lists, &caches),
        rows: races.chain(times.scale.rows()).chain(judged).collect(),
        published: published::rows(PUBLISHED_FIGURES, &[FEW, MANY]),
        checks,
    })
}

/// A selection among few spaces takes microseconds, so noise is larger.
const fn rounds_of_few(rounds: u64) -> u64 {
    6 * rounds + 1
}

fn config(setup: &Setup, nr_many: usize, rounds: u64, lists: u64, caches: &ColdCaches) -> Figures {
    setup
        .config()
        .with("many_spaces", nr_many)
        .with("rounds", rounds)
        .with("rounds_of_40_spaces", rounds_of_few(rounds))
        .with("lists_of_each_distribution", lists)
        .with("tasks_of_a_list", verdicts::NR_TASKS)
        .with("written_to_cool_caches_bytes", caches.bytes())
        .with("note_scope", NOTE)
}

fn right_checks(times: &Times, checks: &mut Vec<Check>) {
    for race in times.races() {
        for variant in [ONE_PASS, TWO_PASS, OURS] {
            // Among similar spaces the two passes walk off; see the verdicts.
            if variant != TWO_PASS || race.label != times.similar.label {
                checks.push(
                    Check::counted(format!("{}: times that {variant} is right", race.label))
                        .equal(&race.times_right(variant), &race.selections(variant)),
                );
            }
        }
        checks.push(
            Check::counted(format!(
                "{}: outside their interval, or different in another layout",
                race.label
            ))
            .equal(&race.faults, &0),
        );
    }
    times.scale.right_checks(checks);
}

/// Cache lines of the marks of the CPUs that added, which an exact sum of ours reads too.
const MARK_LINES: u64 = 5;

/// The work of a search is counted, so that its verdict needs no clock: at most the lines of the
/// published two passes, marks apart. Lines are checked on the published machine: with few CPUs an
/// exact sum is as cheap as a look.
fn work_checks(setup: &Setup, times: &Times, checks: &mut Vec<Check>) {
    for race in times.races() {
        let [two_pass, ours] = [TWO_PASS, OURS].map(|variant| race.effort(variant));
        let label = &race.label;
        checks.push(
            Check::counted(format!("{label}: objects that Highwater looks at"))
                .equal(&ours.looks, &(two_pass.looks / 2)),
        );
        checks.push(
            Check::counted(format!("{label}: exact sums of Highwater")).at_most(
                to_f64(ours.exact_sums),
                to_f64(two_pass.exact_sums),
                Unit::Plain,
            ),
        );
        if setup.topology.nr_cpus() == THREAD_CPUS {
            let most = two_pass.lines + MARK_LINES * ours.exact_sums;
            checks.push(
                Check::counted(format!("{label}: cache lines that Highwater reads")).at_most(
                    to_f64(ours.lines),
                    to_f64(most),
                    Unit::Plain,
                ),
            );
        }
    }
}

/// The published machine has many CPUs. With few CPUs, the published walk over all of them is as
/// short as the library's over those that count, and its code is shorter, as the rows show.
fn time_checks(setup: &Setup, times: &Times, checks: &mut Vec<Check>) {
    times.scale.time_checks(checks);
    if setup.topology.nr_cpus() != THREAD_CPUS {
        return;
    }
    let ratio = |race: &Race, over, under| race.median_us(over) / race.median_us(under);
    for race in times.races() {
        checks.push(
            Check::timed(format!(
                "{}: Highwater against the published two passes",
                race.label
            ))
            .at_most(ratio(race, OURS, TWO_PASS), 1.0, Unit::Ratio),
        );
    }
    let (few, many) = (&times.few, &times.many);
    for (race, variant, limit) in [
        (few, TWO_PASS, 1.0),
        (many, TWO_PASS, 5.0),
        (many, OURS, 10.0),
    ] {
        checks.push(
            Check::timed(format!("{}: {ONE_PASS} against {variant}", race.label)).at_least(
                ratio(race, ONE_PASS, variant),
                limit,
                Unit::Ratio,
            ),
        );
    }
}
