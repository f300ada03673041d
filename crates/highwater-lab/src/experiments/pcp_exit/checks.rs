//! Checks of `pcp-exit`: the discussion's findings, and those beyond them.
//!
//! Variants take turns, so that whatever slows a whole round down cancels out. Waits, holds and
//! refills are those of all rounds. Hold times and throughput are medians over rounds. Quantiles
//! are those of all rounds together.

use super::cell::{Cell, cell};
use super::round::Round;
use super::variants::{A, C, CONSERVED, D, OURS, PIECES, SCALES, in_turn};
use crate::experiments::fit::Line;
use crate::report::text::to_f64;
use crate::report::{Check, Unit};

/// Checks of values, which do not depend on time.
pub(super) fn value_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    let wrong: u64 = cells
        .iter()
        .flat_map(|cell| &cell.rounds)
        .map(|round| round.wrong)
        .sum();
    checks.push(
        Check::counted("frames that were lost, left charged, or found with the wrong owner")
            .equal(&wrong, &0),
    );
    let short: u64 = cells.iter().map(|cell| cell.stood().short).sum();
    checks.push(Check::counted("bystander's refills with too few frames").equal(&short, &0));
}

/// Fits a line to hold times by frames of a hold, over the scales.
pub(super) fn hold_line(cells: &[Cell]) -> Line {
    let points = SCALES.map(|scale| {
        let cell = cell(cells, &in_turn(scale));
        (
            cell.median_of(|round| round.exiting.frames_a_visit()),
            cell.median_of(Round::quiet_hold_ns),
        )
    });
    Line::through(&points)
}

/// Checks of the specification's criteria of reproduction, and of improvement.
pub(super) fn time_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    let line = hold_line(cells);
    checks.push(
        Check::timed("hold time for each frame more, scales 0 to 5").between(
            line.slope,
            20.0,
            60.0,
            Unit::Ns,
        ),
    );
    checks.push(
        Check::timed("part of the hold time that frames explain (R squared)").at_least(
            line.explained,
            0.95,
            Unit::Ratio,
        ),
    );
    drain_checks(cells, checks);
    conservation_checks(cells, checks);
    piece_checks(cells, checks);
    beyond_checks(cells, checks);
}

fn drain_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    let [legacy, zero] = [A, D].map(|name| cell(cells, name));
    for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
        checks.push(
            Check::timed(format!("{name} of a drain: {A} against {D}")).at_least(
                legacy.drains().quantile_us(quantile) / zero.drains().quantile_us(quantile),
                10.0,
                Unit::Ratio,
            ),
        );
    }
}

/// Contention is conserved: each scale is within 15 % of the mean over the scales.
fn conservation_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    let scaled = CONSERVED.map(|name| cell(cells, name));
    let mean_of = |figure: fn(&Cell) -> f64| {
        let sum: f64 = scaled.iter().map(|cell| figure(cell)).sum();
        sum / to_f64(scaled.len() as u64)
    };
    let freed_per_s = |cell: &Cell| cell.median_of(Round::freed_per_s);
    let (contention, freed) = (mean_of(Cell::contention), mean_of(freed_per_s));
    for cell in scaled {
        let name = &cell.variant.name;
        checks.push(
            Check::timed(format!(
                "waits and holds in a second: {name} against the mean over the scales"
            ))
            .between(cell.contention() / contention, 0.85, 1.15, Unit::Ratio),
        );
        checks.push(
            Check::timed(format!(
                "frames freed in a second: {name} against the mean over the scales"
            ))
            .between(freed_per_s(cell) / freed, 0.7, 1.3, Unit::Ratio),
        );
    }
}

fn piece_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    let [pieces, zero, whole] = [PIECES, D, C].map(|name| cell(cells, name));
    checks.push(
        Check::timed(format!("p99 of a hold: {PIECES} against {D}")).at_most(
            pieces.holds().quantile_us(0.99) / zero.holds().quantile_us(0.99),
            2.0,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::timed(format!("refills: {PIECES} against {C}")).between(
            pieces.against(whole, |round| to_f64(round.nr_refills)),
            0.85,
            1.15,
            Unit::Ratio,
        ),
    );
}

fn beyond_checks(cells: &[Cell], checks: &mut Vec<Check>) {
    let [ours, single] = [OURS, C].map(|name| cell(cells, name));
    checks.push(
        Check::timed(format!("waits and holds in a second: {C} against {OURS}")).at_least(
            single.contention() / ours.contention(),
            5.0,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::timed(format!("p99 of a bystander's refill: {C} against {OURS}")).at_least(
            single.stood().service.quantile_us(0.99) / ours.stood().service.quantile_us(0.99),
            10.0,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::timed(format!("exits in a second: {OURS} against {C}")).at_least(
            ours.against(single, Round::freed_per_s),
            1.0,
            Unit::Ratio,
        ),
    );
    let whole = |cell: &Cell| {
        cell.blocks()
            .map_or(f64::NAN, |blocks| to_f64(blocks.whole))
    };
    checks.push(
        Check::timed(format!(
            "free blocks of 2 MiB after churn: {OURS} against {C}"
        ))
        .at_least(whole(ours) / whole(single), 1.0, Unit::Ratio),
    );
}
