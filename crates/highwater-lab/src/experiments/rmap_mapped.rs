//! `rmap-mapped`: one tenant streams a mapped file of twice the pool while another contends for the
//! lock of the file's reverse map.
//!
//! The discussion's first scenario. Its finding: if reclaim skips pages whose lock is held, it
//! scans twice as many pages to free the same number, and faulting threads wait for I/O themselves;
//! if it skips them at the first priorities only, less so.

use super::rmap::{self, Cell, Scenario, Story, published_rows};
use super::{Experiment, ExperimentError, Extra, Findings, Setup};
use crate::control::Control;
use crate::report::text::to_f64;
use crate::report::{Check, Headline, Noun, Unit};

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "rmap-mapped",
    thread: "lru-rmap-lock-throttle-2022",
    summary: "one tenant streams a mapped file while another maps and unmaps it: scans, frees and waits of reclaim",
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
        scenario: Scenario::Mapped,
        published: published_rows(include_str!("../../published/rmap-mapped.json")),
        checks: reproduced,
    };
    rmap::run(setup, control, story)
}

/// Checks of the specification's criteria of reproduction.
fn reproduced(cells: &[Cell], pages: u64, checks: &mut Vec<Check>) {
    let [vanilla, skip, priority] = rmap::of_the_thread(cells);
    checks.push(
        Check::counted("refaults against twice the file: vanilla").between(
            vanilla.count("workingset_refault_file") / (2.0 * to_f64(pages)),
            0.99,
            1.01,
            Unit::Ratio,
        ),
    );
    let percent = |cell: &Cell| 100.0 * cell.efficiency();
    checks.push(Check::counted("efficiency: vanilla").between(
        percent(vanilla),
        45.0,
        50.0,
        Unit::Percent,
    ));
    checks.push(Check::counted("efficiency: rmap_skip").at_most(
        percent(skip),
        33.0,
        Unit::Percent,
    ));
    checks.push(
        Check::counted("pages scanned: rmap_skip against vanilla").at_least(
            skip.against(vanilla, |round| round.scanned()),
            1.5,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::counted("efficiency of priority against vanilla's, in points").between(
            percent(priority) - percent(vanilla),
            -5.0,
            5.0,
            Unit::Percent,
        ),
    );
    let elapsed = [vanilla, skip, priority].map(Cell::elapsed_s);
    let [least, most] = [f64::min, f64::max].map(|pick| elapsed.into_iter().reduce(pick));
    checks.push(
        Check::counted("elapsed: the longest of the three against the shortest").at_most(
            most.unwrap_or(f64::NAN) / least.unwrap_or(f64::NAN),
            1.1,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::counted("major faults: rmap_skip against vanilla").at_least(
            skip.against(vanilla, |round| round.count("pgmajfault")),
            10.0,
            Unit::Ratio,
        ),
    );
    checks.push(
        Check::counted("allocstalls: rmap_skip against vanilla").at_least(
            skip.against(vanilla, |round| round.count("allocstall_movable")),
            5.0,
            Unit::Ratio,
        ),
    );
}
