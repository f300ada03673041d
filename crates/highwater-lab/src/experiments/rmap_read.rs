//! `rmap-read`: `rmap-mapped`, and a third tenant that reads another file by read(2).
//!
//! The discussion's second scenario. Its finding: if reclaim skips pages whose lock is held,
//! refaults more than double and the first tenant takes longer. It does not say which tenant
//! refaults, and how much the reader read meanwhile; the tables here show both.

use super::rmap::{self, Cell, OURS, Scenario, Story, VANILLA, cell, published_rows};
use super::{Experiment, ExperimentError, Extra, Findings, Setup};
use crate::control::Control;
use crate::report::{Check, Headline, Noun, Unit};

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "rmap-read",
    thread: "lru-rmap-lock-throttle-2022",
    summary: "the same beside a tenant that reads another file: which tenant loses pages, and its progress",
    headline: Headline::of_variants(
        "vmstat and A's elapsed time, as published",
        "elapsed_s",
        Noun::Mass("time for A"),
        ["Highwater", "vanilla"],
    ),
    topology: "1x1x2x1",
    cpus: 1..=8192,
    extras: &[Extra::Matrix],
    run,
};

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let story = Story {
        scenario: Scenario::Read,
        published: published_rows(include_str!("../../published/rmap-read.json")),
        checks,
    };
    rmap::run(setup, control, story)
}

fn checks(cells: &[Cell], _: u64, checks: &mut Vec<Check>) {
    reproduced(cells, checks);
    rmap::refault_checks(cells, checks);
    let [vanilla, ours] = [VANILLA, OURS].map(|name| cell(cells, name));
    checks.push(
        Check::counted("C's reads that found their page resident: ours against vanilla").between(
            ours.in_all_against(vanilla, |round| round.c_kept()),
            0.95,
            1.05,
            Unit::Ratio,
        ),
    );
}

/// Checks of the specification's criteria of reproduction.
fn reproduced(cells: &[Cell], checks: &mut Vec<Check>) {
    let [vanilla, skip, priority] = rmap::of_the_thread(cells);
    for other in [skip, priority] {
        checks.push(
            Check::counted(format!(
                "efficiency of {} against vanilla's, in points",
                other.variant.name
            ))
            .between(
                100.0 * (other.efficiency() - vanilla.efficiency()),
                -3.0,
                3.0,
                Unit::Percent,
            ),
        );
    }
    let refaults =
        |cell: &Cell| cell.against(vanilla, |round| round.count("workingset_refault_file"));
    let elapsed = |cell: &Cell| cell.elapsed_s() / vanilla.elapsed_s();
    checks.push(
        Check::counted("refaults of all: rmap_skip against vanilla").at_least(
            refaults(skip),
            1.7,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::counted("refaults of all: priority against vanilla").at_most(
            refaults(priority),
            1.15,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::counted("A's elapsed time: rmap_skip against vanilla").at_least(
            elapsed(skip),
            1.1,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::counted("A's elapsed time: priority against vanilla").at_most(
            elapsed(priority),
            1.08,
            Unit::Ratio,
        ),
    );
}
