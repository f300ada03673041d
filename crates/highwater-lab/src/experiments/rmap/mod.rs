//! Common part of `rmap-mapped` and `rmap-read`: the discussion's two scenarios of reverse-map
//! (rmap) lock contention, run with real pages of real files.
//!
//! *A* maps a file of twice the pool and touches it in three passes. *B* maps and unmaps random
//! ranges of that file, and holds the lock of its reverse map, until A ends. In the second scenario
//! *C* repeatedly reads another file by `read_at`; that file fits the active list, lies on the same
//! disk, and is C's working set before the others begin. Each is a tenant of its own. One thread
//! reclaims in the background; a thread that finds no free frame reclaims directly. Every variant
//! is the library, configured by [`Builder::rmap`](highwater::Builder::rmap) for its
//! handling of a held lock. Variants take turns, round after round, each in a new manager over the
//! same files.
//!
//! All variants follow the kernel's rules for moving a page between lists
//! ([`KernelLists`](highwater::lab::reclaim::policy::KernelLists)), by which a mapped
//! page is scanned twice, and for the page that opens a readahead window
//! ([`MarkRule::Exact`](highwater::lab::cache::MarkRule::Exact)), so that only the handling of the
//! lock differs. Under `MarkRule::Exact`, a page that stayed from the previous pass, because its
//! lock was held, costs a major fault if a mark falls on it. That explains the published major
//! faults: under *skip* 334,600 pages stayed, a window of 32 pages has one mark, and 10,639 major
//! faults were counted.
//!
//! # Two clocks
//!
//! How often A finds no free frame depends on the ratio of the cost of scanning a page to A's cost
//! of a page. On the published machine these were 0.48 and 1.1 us, and its background thread could
//! not keep up when it had to scan twice as many pages for each freed one. The library scans in a
//! quarter of that time, and keeps up. So the published variants run on a *simulated clock* (module
//! `turns`): threads, memory, locks and files are real, but the threads take turns, on one CPU of
//! the manager's, and work takes the time that it took on the published machine: one seed gives one
//! outcome. On that clock B holds the lock for 43 % of the time.
//!
//! Beside C, B begins with one long hold, and then holds the lock for 36 %. The effect of *skip* on
//! other tenants starts in that hold. Reclaim skips every mapped page and finds only pages that are
//! not mapped yet: those that readahead has just brought in. A reads them again, which counts as a
//! new working set; so reclaim deactivates active pages, and those are C's. C's refaults count the
//! same way, and the effect outlasts the hold: skipping A's pages moves reclaim through the lists
//! faster, so that C's inactive pages are evicted before C comes back to them. Without the long
//! hold the effect starts later, with the first page of A that was skipped for almost a whole pass.
//!
//! The library's own variant runs on both clocks, beside *vanilla*, because its promise holds in
//! real time as well. On the *system's clock*, B's part of the time is calibrated before the first
//! round, and again after each round, so that under *skip* 40 to 50 of 100 looks at a page find the
//! lock held. In each round all variants on a clock meet the same B.

mod cell;
mod clock;
mod counters;
mod disk;
mod ground;
mod load;
mod round;
mod rows;
mod turns;
mod variants;

pub(super) use cell::{Cell, cell};
pub(super) use ground::Scenario;
pub(super) use rows::published_rows;
use variants::{HELD, REAL_OURS, REAL_SKIP, REAL_VANILLA};
pub(super) use variants::{OURS, PRIORITY, SKIP, VANILLA};

use self::clock::ClockKind;
use self::ground::Ground;
use self::round::{Plan, Round};
use self::variants::{Variant, variants};
use super::{ExperimentError, Findings, Setup};
use crate::control::Control;
use crate::report::text::to_f64;
use crate::report::{Check, Figures, Row, Unit};

/// The parts that differ between the experiments.
pub(super) struct Story {
    pub(super) scenario: Scenario,
    /// The published table.
    pub(super) published: Vec<Row>,
    /// Adds the scenario's checks, from the variants and the pages of A's file.
    pub(super) checks: fn(&[Cell], u64, &mut Vec<Check>),
}

/// Frames of the pool: 256 MiB. With half as many, direct reclaim could not complete its first
/// round, as the kernel does.
const CAPACITY: u64 = 65_536;
const CAPACITY_QUICK: u64 = 2048;

/// Passes of A over its file, as in the discussion.
const PASSES: u64 = 3;

/// Repetitions that the specification asks for.
const ROUNDS: u64 = 5;

/// Part of the looks that find the lock held under *skip*: the target, and the range that
/// calibration accepts.
const CONTENDED: [f64; 2] = [0.40, 0.50];
const CONTENT: [f64; 2] = [0.43, 0.47];
const CALIBRATIONS: u64 = 8;

const NOTE: &str = "Files, pages, page tables, locks and I/O are real; the files are read through \
    the system's page cache. The published variants, and ours, run on a simulated clock: threads \
    take turns on one CPU of the manager's, so that one seed gives one outcome. Scanning a page \
    takes 478 ns, and a page of A 1,130 ns without scans, beside C 1,380, as on the published \
    machine (52.77 million scans in the 25.2 s of skip; A's times less its own scans). On the \
    system's clock work takes the time that it takes here. Each run has a new manager, so that the \
    first pass reads every page for the first time. All variants move pages between lists by the \
    kernel's rules, by which a mapped page is scanned twice; ours differs in its handling of the \
    lock. Watermarks lie apart as on the published machine: 4.6 times the pages that reclaim scans \
    in a round at the first priority. Readahead windows open as in the kernel: not if the page \
    that would open one has stayed in the cache. Ten active pages are kept for each inactive one, \
    as on a machine of the published size. C's file is 0.62 of the pool, is resident before A \
    begins, and is read repeatedly: by the published counters, C mostly found its pages resident \
    under vanilla (1.6 million pages brought in that were no refaults, of 2.82 million that fit). \
    Beside C, reading a page takes 100 ns of A's time and of C's, and the rest of a page of C 300; \
    on the system's clock one disk of 2,000 MiB/s paces both files. B maps a random range of at \
    most a 16th of A's file, holds the lock of the reverse map for 200 us, asleep (on the \
    simulated clock for 1 to 399 us; beside C for 1 to 199, but 110 ms the first time), unmaps, \
    and sleeps for the rest of its period. Where it holds the lock for 95 % of the time, each hold \
    is 24 ms, and it sleeps only while it holds the lock. A's and C's refaults are those of their \
    groups. The lock admits readers that were there before a waiting writer; a look that fails \
    because a writer waits counts as contended. Elapsed times are means, with the coefficient of \
    variation over the rounds, and medians; counts are means, and efficiencies in the table are \
    computed from them. The chosen parameters (B's hold times, C's file, the cost of a page of C) \
    were searched until the published figures came out: they show what can cause the figures, and \
    predict none. Checks of the published variants compare medians of rounds: beside C, in one \
    round of twenty or fewer, C keeps its pages under skip, or loses them under another variant. \
    Ours must keep its promises in the mean of all its rounds, against vanilla's median.";

/// Runs a scenario.
pub(super) fn run(
    setup: &Setup,
    control: &Control,
    story: Story,
) -> Result<Findings, ExperimentError> {
    let scenario = story.scenario;
    let capacity = setup.pick(CAPACITY, CAPACITY_QUICK);
    let rounds = setup.pick(ROUNDS, 1);
    let variants = variants(setup);
    control.expect(variants.len() as u64 * rounds);
    let ground = Ground::new(setup.options.seed, capacity, scenario)?;
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
                seed: setup
                    .options
                    .seed
                    .wrapping_mul(1_000_003)
                    .wrapping_add(number),
            };
            cell.rounds.push(round::run(&ground, plan, control)?);
            control.advance(1)?;
        }
        share = adjusted(share, last(&cells, REAL_SKIP).contended_ratio());
    }
    let mut checks = value_checks(&cells, &ground);
    refused_checks(&cells, &mut checks);
    if is_of_size(setup) {
        (story.checks)(&cells, ground.pages(), &mut checks);
        beyond_checks(&cells, &mut checks);
    }
    Ok(Findings {
        config: config(setup, &ground, rounds, shares),
        rows: rows::rows(&cells, scenario),
        published: story.published,
        checks,
    })
}

/// Returns the repetitions of a variant.
fn rounds_of(setup: &Setup, variant: &Variant) -> u64 {
    match variant.clock {
        ClockKind::Simulated => setup.pick(ROUNDS, 1),
        ClockKind::System => rounds_by_the_system(setup),
    }
}

/// Returns the repetitions on the system's clock: one is enough for checks that must hold in every
/// run.
fn rounds_by_the_system(setup: &Setup) -> u64 {
    setup.repeats(ROUNDS, 1, 1)
}

/// Returns whether the pool is large enough for figures to compare with the published ones.
fn is_of_size(setup: &Setup) -> bool {
    setup.pick(true, false)
}

/// Returns the part of the time for which B holds the lock, calibrated by runs of *skip* with one
/// pass of A.
fn calibrate(setup: &Setup, ground: &Ground, control: &Control) -> Result<f64, ExperimentError> {
    let mut share: f64 = 0.1;
    for attempt in 0..setup.repeats(CALIBRATIONS, 1, 1) {
        let (rmap, churn) = Variant::calibration(share);
        let plan = Plan {
            rmap,
            churn: Some(churn),
            clock: ClockKind::System,
            passes: 1,
            seed: setup.options.seed.wrapping_add(attempt),
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

/// Returns B's part of the time that would have given the target contention, if `share` gave
/// `contended`.
fn adjusted(share: f64, contended: f64) -> f64 {
    if contended.is_nan() {
        return share;
    }
    // Multiplies the odds by less than the missing factor, so that noise does not make it
    // oscillate.
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

/// Checks of values, which do not depend on time.
fn value_checks(cells: &[Cell], ground: &Ground) -> Vec<Check> {
    let rounds = || cells.iter().flat_map(|cell| &cell.rounds);
    let wrong: u64 = rounds().map(|round| round.wrong).sum();
    let passed = |round: &&Round| round.a.pages == to_f64(PASSES) * ground.pages_f64();
    let unfinished = rounds().filter(|round| !passed(round)).count();
    let freed_more = rounds().filter(|round| round.freed() > round.scanned());
    vec![
        Check::counted("pages with wrong bytes").equal(&wrong, &0),
        Check::counted("runs in which A did not read every page").equal(&unfinished, &0),
        Check::counted("runs in which more pages were freed than scanned")
            .equal(&freed_more.count(), &0),
    ]
}

/// Checks that reads of the library's variants are not refused. On the system's clock, how long
/// reclaim finds nothing depends on the scheduling of threads.
fn refused_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    for name in [OURS, REAL_OURS, HELD] {
        let cell = cell(cells, name);
        let refused: u64 = cell.rounds.iter().map(|round| round.refused).sum();
        let check = cell.check(format!("reads refused for lack of memory: {name}"));
        checks.push(check.at_most(to_f64(refused), 0.0, Unit::Plain));
    }
}

/// Returns the published variants: vanilla, skip and priority.
pub(super) fn of_the_thread(cells: &[Cell]) -> [&Cell; 3] {
    [VANILLA, SKIP, PRIORITY].map(|name| cell(cells, name))
}

/// Checks each variant's refaults of A against twice its file, the pages of its later passes.
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

/// Checks of both scenarios on the library's variant, on either clock, and on the simulated B.
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

/// The library scans no more than blocking reclaim does, and evicts no more of A's pages.
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
