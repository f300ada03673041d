//! `pcp-exit`: latency of per-CPU list (pcp) drains and refills while 18 tenants exit at once and a
//! nineteenth allocates a few frames.
//!
//! The discussion asks how many frames one hold of a zone's lock may free. Its reviewer asks how
//! long the exits take, and how allocations beside them fare. So each variant frees the same
//! interleaved frames and reports the times of the zone visits that drained a list, the waits for
//! zones and the holds, the exits per second, and the times of a bystander's refills of 63 frames.
//!
//! Each tenant is a thread that acts as a CPU of its own. Variants take turns, round after round,
//! on the same memory.

mod bystander;
mod cell;
mod checks;
mod histograms;
mod round;
mod tenants;
mod variants;
mod zone;

use self::bystander::TAKEN;
use self::cell::{Cell, cell};
use self::histograms::{Column, DRAINED, DRAINS, REFILLS, bucket_rows, quantiles};
use self::round::{Blocks, Ground};
use self::variants::{A, B, C, CONSERVED, D, Exits, OURS, TENANTS, Variant, variants};
use super::buckets::Buckets;
use super::{Experiment, ExperimentError, Extra, Findings, Setup};
use crate::control::Control;
use crate::report::text::to_f64;
use crate::report::{Figures, Headline, Noun, Row, Source};

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "pcp-exit",
    thread: "pcp-batch-scale-review-2024",
    summary: "18 tenants free their interleaved frames at once: times of drains, exits, a bystander's refills",
    headline: Headline::of_variants(
        "exits at once: throughput and waits",
        "exits_per_s",
        Noun::Count("exits"),
        ["Highwater", "auto, scale 5 (C)"],
    ),
    topology: "1x1x19x1",
    cpus: 2..=8192,
    extras: &[Extra::Matrix],
    run,
};

const EXITS: &str = "exits at once: throughput and waits";
const BYSTANDER: &str = "a bystander's refills of 63 frames while others exit";
const HOLDS: &str = "visits to the zones while tenants exit";

const NOTE: &str = "Threads, pages, locks and work are real: an exit clears page-table slots, \
    drops reverse-map entries, uncharges in batches and frees. CPUs are virtual, one for each \
    tenant, as in the discussion; on few real CPUs the longest times are those of the scheduler, \
    so look at p50 and p99. A visit waits for a zone and holds it, in real time. A drain in one \
    hold is one visit; a drain in pieces is one visit for each piece. Visits while tenants exit \
    are drains, except for the bystander's few. A bystander's service time excludes the time that \
    it spent runnable while other threads ran; waits for locks are included. Frames per second are \
    medians over rounds in which the variants take turns. In turn, tenants fill at once and exit \
    one after the other; the line is fitted to their holds, less the share of preemption. The \
    legacy lists are made as large as possible, because those of the discussion were (100 \
    batches). Visits of the trees hold no lock: the whole visit counts as held.";

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let rounds = setup.repeats(ROUNDS, COUNTED_ROUNDS, 1);
    let frames = setup.pick(FRAMES, FRAMES_QUICK);
    let variants = variants(setup);
    control.expect(variants.len() as u64 * rounds);
    let ground = Ground::new(setup, frames)?;
    let mut cells: Vec<_> = variants
        .into_iter()
        .map(|variant| Cell {
            variant,
            rounds: Vec::new(),
        })
        .collect();
    for number in 0..rounds {
        let count = cells.len();
        for turn in 0..count {
            let cell = &mut cells[(usize::try_from(number).unwrap_or(0) + turn) % count];
            let is_at_once = cell.variant.exits == Exits::AtOnce;
            let blocks = match is_at_once && number < COUNTED_ROUNDS {
                true => Blocks::Counted,
                false => Blocks::Left,
            };
            if number < rounds_of(&cell.variant) {
                let round = round::run(setup, &ground, &cell.variant, number, blocks)?;
                cell.rounds.push(round);
            }
            control.advance(1)?;
        }
    }
    let mut checks = Vec::new();
    checks::value_checks(&cells, &mut checks);
    checks::time_checks(&cells, &mut checks);
    Ok(Findings {
        config: config(setup, &ground, rounds, frames, &cells),
        rows: rows(&cells),
        published: histograms::published_rows(),
        checks,
    })
}

/// Frames of a tenant: 128 MiB, several times the capacity of a list.
const FRAMES: usize = 32_768;
const FRAMES_QUICK: usize = 1024;

/// Rounds of the variants whose contention is compared. One variant's contention differs by a fifth
/// from round to round; with so many rounds, exits add up to some seconds, and bystanders refill
/// thousands of times.
const ROUNDS: u64 = 21;

/// Rounds of the other variants.
const ROUNDS_APART: u64 = 5;

/// Rounds that count free blocks.
const COUNTED_ROUNDS: u64 = 3;

fn rounds_of(variant: &Variant) -> u64 {
    let name = variant.name.as_str();
    match variant.exits {
        Exits::InTurn => ROUNDS_APART,
        Exits::AtOnce if CONSERVED.contains(&name) || name == OURS => ROUNDS,
        Exits::AtOnce => ROUNDS_APART,
    }
}

fn config(setup: &Setup, ground: &Ground, rounds: u64, frames: usize, cells: &[Cell]) -> Figures {
    let knows_waits = cell(cells, C).stood().knows_waits;
    let config = setup
        .config()
        .with("tenants", TENANTS)
        .with("tenant_pages", frames)
        .with("pool_pages", ground.pages().0)
        .with("bystander_takes_pages", TAKEN)
        .with("rounds", rounds)
        .with("rounds_of_other_variants", rounds.min(ROUNDS_APART))
        .with("exits_of_a_round_and_tenant", round::TURNS)
        .with("waits_for_cpus_known", knows_waits)
        .with("note_scope", NOTE);
    histograms::setting(variants::setting(config))
}

fn rows(cells: &[Cell]) -> Vec<Row> {
    let each = |row: fn(&Cell) -> Row| cells.iter().map(row).collect::<Vec<_>>();
    let columns = [
        ("legacy_visits", A),
        ("fraction_visits", B),
        ("auto_5_visits", C),
        ("auto_0_visits", D),
        ("highwater_visits", OURS),
    ];
    let by_bucket = |part, visits: fn(&Cell) -> Buckets| {
        let column = |(name, variant)| Column::new(name, visits(cell(cells, variant)));
        bucket_rows(part, Source::Run, &columns.map(column))
    };
    let watched = cells
        .iter()
        .filter(|cell| cell.variant.exits == Exits::AtOnce);
    let stood = watched.map(bystander_row).collect();
    [
        each(exit_row),
        stood,
        each(hold_row),
        vec![line_row(cells)],
        each(drain_row),
        by_bucket(DRAINS, Cell::drains),
        by_bucket(REFILLS, Cell::refills),
    ]
    .concat()
}

fn row(part: &'static str, cell: &Cell) -> Row {
    Row::new(part, Source::Run, cell.variant.name.as_str())
}

fn exit_row(cell: &Cell) -> Row {
    let row = cell.variant.on(row(EXITS, cell));
    let visits = |round: &round::Round| round.exiting.nr_visits() / to_f64(round.freed) * 1e3;
    let row = row
        .with("exits_per_s", cell.median_of(round::Round::exits_per_s))
        .with("frames_per_s", cell.median_of(round::Round::freed_per_s))
        .with(
            "exit_us",
            cell.median_of(|round| 1e6 * round.exits_s / to_f64(round.exits)),
        )
        .with(
            "cpu_of_a_frame_ns",
            cell.median_of(|round| 1e9 * round.cpu_s / to_f64(round.freed)),
        )
        .with("waited_and_held_s_per_s", cell.contention())
        .with(
            "held_s_per_s",
            cell.median_of(|round| round.exiting.held_s() / round.exit_s),
        )
        .with("visits_per_1000_frames", cell.median_of(visits))
        .with(
            "cached_when_full_pages",
            cell.median_of(|round| to_f64(round.cached_when_full)),
        )
        .with(
            "cached_when_empty_pages",
            cell.median_of(|round| to_f64(round.cached_when_empty)),
        )
        .with("refills", cell.median_of(|round| to_f64(round.nr_refills)));
    match cell.blocks() {
        None => row,
        Some(blocks) => row
            .with("free_2_mib_blocks", blocks.whole)
            .with("of_possible_blocks", blocks.possible),
    }
}

fn bystander_row(cell: &Cell) -> Row {
    let stood = cell.stood();
    row(BYSTANDER, cell)
        .with("refills", stood.service.calls())
        .with("p50_us", stood.service.quantile_us(0.5))
        .with("p99_us", stood.service.quantile_us(0.99))
        .with("p999_us", stood.service.quantile_us(0.999))
        .with("most_us", stood.service.max_us())
        .with("real_p50_us", stood.real.quantile_us(0.5))
        .with("real_p99_us", stood.real.quantile_us(0.99))
}

fn hold_row(cell: &Cell) -> Row {
    let (waits, holds) = (cell.waits(), cell.holds());
    row(HOLDS, cell)
        .with("visits", holds.calls())
        .with(
            "contended_ratio",
            cell.median_of(|round| round.exiting.contended_part()),
        )
        .with(
            "frames_a_visit_pages",
            cell.median_of(|round| round.exiting.frames_a_visit()),
        )
        .with(
            "hold_mean_us",
            cell.median_of(|round| round.exiting.hold_ns() / 1e3),
        )
        .with(
            "hold_of_a_frame_ns",
            cell.median_of(|round| round.exiting.frame_ns()),
        )
        .with("hold_p50_us", holds.quantile_us(0.5))
        .with("hold_p99_us", holds.quantile_us(0.99))
        .with("wait_p50_us", waits.quantile_us(0.5))
        .with("wait_p99_us", waits.quantile_us(0.99))
}

/// Returns the row of the line through hold times by frames, of tenants in turn.
fn line_row(cells: &[Cell]) -> Row {
    let line = checks::hold_line(cells);
    Row::new(
        HOLDS,
        Source::Run,
        "the line through the holds in turn, scales 0 to 5",
    )
    .with("hold_of_a_frame_ns", line.slope)
    .with("hold_of_no_frame_ns", line.intercept)
    .with("explained_ratio", line.explained)
}

fn drain_row(cell: &Cell) -> Row {
    quantiles(row(DRAINED, cell), &cell.drains())
}
