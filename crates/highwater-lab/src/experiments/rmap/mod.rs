//! What `rmap-mapped` and `rmap-read` share: the thread's two scenarios, run with real pages of
//! real files.
//!
//! *A* maps a file of twice the pool and touches it in three passes. *B* maps and unmaps random
//! ranges of that file, and holds the lock of its reverse map, until A has ended. In the second
//! scenario *C* reads another file by `read_at`, again and again, which fits the active list and
//! lies on the same disk; it has its working set before the others begin. Each is a tenant of its
//! own. One thread reclaims in the background, and whoever finds no frame. Every variant is the
//! library, told by [`Builder::rmap`](highwater::manager::Builder::rmap) what to do about a held
//! lock; variants take turns, round after round, each in a new manager over the same files. All go
//! by the kernel's rules of when a page moves between lists
//! ([`TwoListRules::Kernel`](highwater::reclaim::TwoListRules::Kernel)), by which a mapped page is
//! looked at twice, and of which page opens a window of readahead
//! ([`MarkRule::Exact`](highwater::cache::MarkRule::Exact)), so that what differs is the lock
//! alone. By the latter a page that has stayed from the pass before, because nobody could look at
//! it, costs a major fault where a mark falls on it. That is where the thread's major faults come
//! from: under *skip* 334,600 of its pages stayed, a window of 32 has one mark, and it counted
//! 10,639 of them.
//!
//! # Two clocks
//!
//! How often A finds no frame depends on what a look at a page takes against what A takes for a
//! page. On the thread's machine that was 0.48 against 1.1 us, and its background thread could not
//! keep up with twice as many looks for a page; the library's looks take a quarter of that, and it
//! can. So the thread's variants run on a *simulated clock* (module `turns`): threads, memory,
//! locks and files are real, but the threads take turns, on one CPU of the manager's, and work
//! takes what it took on the thread's machine: one seed gives one outcome. There B holds the lock
//! for 43 % of the time.
//!
//! Beside C it begins with one long hold, and it then takes 36 %. What *skip* does to others begins
//! there: reclaim that passes over whatever is mapped finds only what is not mapped yet, the pages
//! that readahead has just brought in. A reads them again, which counts as a new working set; so
//! active pages are looked at, and those are C's. What C then brings in again counts the same way,
//! and it goes on after the hold, because inactive pages of C are gone before C comes back to them:
//! who passes over A's pages goes through the lists faster. Without the long hold it begins later,
//! with the first page of A's that was passed over for almost a whole pass.
//!
//! Ours runs on both, beside *vanilla*: what is promised of it is promised in real time as well. By
//! the *system's clock* B's part of the time is calibrated before, and again after each round, so
//! that under *skip* 40 to 50 of 100 looks at a page find the lock held. In each round all variants
//! on a clock meet the same B.

mod cell;
mod clock;
mod disk;
mod ground;
mod load;
mod round;
mod rows;
mod turns;
mod variants;

pub(super) use cell::{Cell, cell};
pub(super) use rows::published;
use variants::{HELD, REAL_OURS, REAL_SKIP, REAL_VANILLA};
pub(super) use variants::{OURS, PRIORITY, SKIP, VANILLA};

use self::clock::ClockKind;
use self::ground::Ground;
use self::round::{Plan, Round};
use self::variants::{Variant, variants};
use super::{Control, Experiment, ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Check, Figures, Outcome, Row, Unit};

/// Which of the thread's scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// A and B.
    Mapped,
    /// And C.
    Read,
}

/// What an experiment has of its own.
pub(super) struct Story {
    pub(super) experiment: &'static Experiment,
    pub(super) scenario: Scenario,
    /// The thread's table.
    pub(super) published: Vec<Row>,
    /// Adds its checks, by the variants and the pages of A's file.
    pub(super) checks: fn(&[Cell], u64, &mut Vec<Check>),
}

/// Frames of the pool: 256 MiB. Half as many are too few for direct reclaim to take its first round
/// whole, as the kernel does.
const CAPACITY: u64 = 65_536;
const CAPACITY_QUICK: u64 = 2048;

/// How often A touches every page, as in the thread.
const PASSES: u64 = 3;

/// Repetitions, as the specification wants them.
const ROUNDS: u64 = 5;

/// What a look finds held under *skip*: what is wanted, and with what calibration is content.
const CONTENDED: [f64; 2] = [0.40, 0.50];
const CONTENT: [f64; 2] = [0.43, 0.47];
const CALIBRATIONS: u64 = 8;

const NOTE: &str = "Files, pages, page tables, locks and I/O are real; the files are read through the system's cache. The thread's variants, and ours, run on a simulated clock: \
    threads take turns on one CPU of the manager's, so that one seed gives one outcome, and a look at a page takes 478 ns, a page of A 1,130 ns but for looks, beside C 1,380, as on the thread's machine (52.77 million looks in the 25.2 s of skip; A's times less its own looks). \
    On the system's clock everything takes what it takes here. Each run has a new manager, \
    so that the first pass reads every page for the first time. All variants move pages between lists by the kernel's rules, by which a mapped page is looked at twice; ours differs in what it does about the lock. \
    Watermarks lie apart as on the thread's machine: 4.6 times what reclaim looks at in a round at the first priority. \
    Windows of readahead are opened as in the kernel: not where the page that would do it has stayed in the cache. \
    Ten active pages are kept for each inactive one, as on a machine of the thread's size. C's file is 0.62 of the pool, is in memory before A begins, and is read again and \
    again: the thread's counters say that its C mostly found its pages in memory under vanilla (1.6 million pages brought in that were no refaults, of 2.82 million that fit). \
    Where there is a C, reading a page takes 100 ns of A's time and of C's, and the rest of a page of C 300; on the system's clock both files are read at the pace of one disk, 2,000 MiB/s. \
    B maps a random range of at most a 16th of A's file, keeps the lock of the reverse map for 200 us, asleep (on the simulated clock for 1 to 399 us; beside C for 1 to 199, but for 110 ms the first time), unmaps, \
    and sleeps as long as its part of the time asks for. Where it holds 95 % of the time, each time is 24 ms, and it sleeps with the lock only. A's and C's refaults are counted for their \
    groups. The lock lets readers in that were there before a writer waited; a look that fails because a writer waits counts as contended. \
    Elapsed times are means, with the coefficient of variation over the rounds, and medians; counts are means, and efficiencies in the table are theirs. \
    What is chosen (how long B holds the lock, C's file, what a page of C takes) was searched for until what was published came out: it shows what can bring \
    the figures about, and foretells none. \
    Checks of the thread's variants compare medians of rounds: beside C, in one round of twenty or less, C keeps its pages under skip, or loses them under another. \
    Ours is held to what it promises by the mean of all its rounds, against vanilla's median.";

/// Runs a scenario.
pub(super) fn run(
    setup: &Setup,
    control: &Control,
    story: Story,
) -> Result<Outcome, ExperimentError> {
    let scenario = story.scenario;
    let capacity = setup.pick(CAPACITY, CAPACITY_QUICK);
    let rounds = setup.pick(ROUNDS, 1);
    let variants = variants(setup);
    control.expect(variants.len() as u64 * rounds);
    let ground = Ground::new(setup.seed, capacity, scenario)?;
    let mut share = calibrate(setup, &ground, control)?;
    let mut shares = Vec::new();
    let mut cells: Vec<_> = variants.into_iter().map(Cell::new).collect();
    for number in 0..rounds {
        let count = cells.len();
        shares.push(share);
        for turn in 0..count {
            let cell = &mut cells[(usize::try_from(number).unwrap_or(0) + turn) % count];
            if number >= rounds_of(setup, &cell.variant) {
                control.advance(1)?;
                continue;
            }
            let plan = Plan {
                rmap: cell.variant.rmap,
                churn: cell.variant.churn(scenario, share),
                clock: cell.variant.clock,
                passes: PASSES,
                seed: setup.seed.wrapping_mul(1_000_003).wrapping_add(number),
            };
            cell.rounds.push(round::run(&ground, plan, control)?);
            control.advance(1)?;
        }
        share = adjusted(share, last(&cells, REAL_SKIP).contended_ratio());
    }
    let mut checks = value_checks(&cells, &ground);
    if is_of_size(setup) {
        (story.checks)(&cells, ground.pages(), &mut checks);
        beyond_checks(&cells, &mut checks);
    }
    Ok(Outcome {
        experiment: story.experiment.name,
        thread: story.experiment.thread,
        config: config(setup, &ground, rounds, shares),
        rows: rows::rows(&cells, scenario),
        published: story.published,
        checks,
    })
}

/// Repetitions of a variant.
fn rounds_of(setup: &Setup, variant: &Variant) -> u64 {
    match variant.clock {
        ClockKind::Simulated => setup.pick(ROUNDS, 1),
        ClockKind::System => rounds_by_the_system(setup),
    }
}

/// One is enough for what must hold of every run.
fn rounds_by_the_system(setup: &Setup) -> u64 {
    setup.repeats(ROUNDS, 1, 1)
}

/// Whether figures can be compared with those of the thread, which nothing can that has little
/// memory.
fn is_of_size(setup: &Setup) -> bool {
    setup.pick(true, false)
}

/// The part of the time that B holds the lock for, found by runs of *skip* in which A passes once.
fn calibrate(setup: &Setup, ground: &Ground, control: &Control) -> Result<f64, ExperimentError> {
    let mut share: f64 = 0.1;
    for attempt in 0..setup.repeats(CALIBRATIONS, 1, 1) {
        let (rmap, churn) = Variant::calibration(share);
        let plan = Plan {
            rmap,
            churn: Some(churn),
            clock: ClockKind::System,
            passes: 1,
            seed: setup.seed.wrapping_add(attempt),
        };
        let round = round::run(ground, plan, control)?;
        let contended = round.contended_ratio();
        if (CONTENT[0]..=CONTENT[1]).contains(&contended) || contended.is_nan() {
            break;
        }
        share = adjusted(share, contended);
    }
    Ok(share)
}

/// The part of the time for B that would have made looks find the lock held as often as is wanted,
/// if they found it held as often as `contended` says.
fn adjusted(share: f64, contended: f64) -> f64 {
    if contended.is_nan() {
        return share;
    }
    // As many times the odds as are missing, not all of them, so that noise does not make it swing.
    let odds = |part: f64| part / (1.0 - part).max(0.01);
    let missing = odds(0.45) / odds(contended).max(0.01);
    (share * missing.clamp(0.1, 10.0).powf(0.7)).clamp(0.001, 0.9)
}

fn last<'a>(cells: &'a [Cell], name: &str) -> &'a Round {
    let rounds = &cell(cells, name).rounds;
    rounds.last().expect("a round has just been run")
}

fn config(setup: &Setup, ground: &Ground, rounds: u64, shares: Vec<f64>) -> Figures {
    setup
        .config()
        .with("capacity_pages", ground.capacity)
        .with("file_pages", ground.pages())
        .with("passes", PASSES)
        .with("rounds", rounds)
        .with("rounds_of_the_systems_clock", rounds_by_the_system(setup))
        .with("watermark_scale_factor", round::WATERMARK_SCALE_FACTOR)
        .with("inactive_ratio", round::INACTIVE_RATIO)
        .with("calibrated_hold_of_each_round_ratio", shares)
        .with("note_scope", NOTE)
}

/// What must hold of every variant, however long it took.
fn value_checks(cells: &[Cell], ground: &Ground) -> Vec<Check> {
    let rounds = || cells.iter().flat_map(|cell| &cell.rounds);
    let wrong: u64 = rounds().map(|round| round.wrong).sum();
    let passed = |round: &&Round| round.a.pages == to_f64(PASSES) * ground.pages_f64();
    let unfinished = rounds().filter(|round| !passed(round)).count();
    let ours = [OURS, REAL_OURS, HELD].map(|name| &cell(cells, name).rounds);
    let refused: u64 = ours
        .iter()
        .copied()
        .flatten()
        .map(|round| round.refused)
        .sum();
    let freed_more = rounds().filter(|round| round.freed() > round.scanned());
    vec![
        Check::counted("pages with bytes of others").equal(&wrong, &0),
        Check::counted("runs in which A did not read every page").equal(&unfinished, &0),
        Check::counted("reads refused for want of memory: ours").equal(&refused, &0),
        Check::counted("runs in which more pages were freed than looked at")
            .equal(&freed_more.count(), &0),
    ]
}

/// The three that the thread has: it calls them vanilla, skip and priority.
pub(super) fn of_the_thread(cells: &[Cell]) -> [&Cell; 3] {
    [VANILLA, SKIP, PRIORITY].map(|name| cell(cells, name))
}

/// A's refaults against twice its file, as many as its later passes read: of each variant.
pub(super) fn refault_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    for cell in cells {
        let name = format!("A's refaults against twice its file: {}", cell.variant.name);
        checks.push(cell.check(name).at_most(
            cell.mean_of(Round::a_refaults_of_later_passes),
            1.0,
            Unit::Ratio,
        ));
    }
}

/// What both scenarios ask of ours, on either clock, and of the simulated B.
fn beyond_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    checks.push(
        Check::counted("looks that find the lock held: skip").between(
            cell(cells, SKIP).mean_of(Round::contended_ratio),
            CONTENDED[0],
            CONTENDED[1],
            Unit::Ratio,
        ),
    );
    for (ours, vanilla) in [(OURS, VANILLA), (REAL_OURS, REAL_VANILLA)] {
        beside_vanilla(cell(cells, ours), cell(cells, vanilla), checks);
    }
    let [ours, vanilla] = [OURS, VANILLA].map(|name| cell(cells, name));
    checks.push(Check::counted("allocstalls: ours against vanilla").at_most(
        ours.in_all_against(vanilla, |round| round.count("allocstall_movable")),
        2.0,
        Unit::Ratio,
    ));
    for name in [REAL_OURS, HELD] {
        checks.push(
            Check::timed(format!("p99.9 of the time that reclaim is blocked: {name}")).at_most(
                cell(cells, name).blocked_p999_us(),
                1000.0,
                Unit::Us,
            ),
        );
    }
    let [held, vanilla] = [HELD, REAL_VANILLA].map(|name| cell(cells, name));
    checks.push(
        Check::timed("time that B holds the lock: ours, B holds 95 %").at_least(
            held.mean_of(|round| round.b.held_ratio()),
            0.95,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::timed("frames freed in a second: ours, B holds 95 %, against vanilla").at_least(
            held.median_of(Round::freed_per_s) / vanilla.median_of(Round::freed_per_s),
            0.8,
            Unit::Ratio,
        ),
    );
}

/// Ours does not scan more than where reclaim waits, and takes no more of A's pages.
fn beside_vanilla(ours: &Cell, vanilla: &Cell, checks: &mut Vec<Check>) {
    let name = &ours.variant.name;
    let efficiency = ours.check(format!("efficiency against vanilla's, in points: {name}"));
    checks.push(efficiency.between(
        100.0 * (ours.efficiency_in_all() - vanilla.efficiency()),
        -3.0,
        3.0,
        Unit::Percent,
    ));
    let refaults = ours.check(format!("A's refaults against vanilla's: {name}"));
    checks.push(refaults.between(
        ours.in_all_against(vanilla, |round| round.a.refaults),
        0.95,
        1.05,
        Unit::Ratio,
    ));
}
