//! `rmap-mapped`: one tenant streams a mapped file of twice the pool while another contends for the
//! lock of the file's reverse map.
//!
//! The discussion's first scenario. Its finding: if reclaim skips pages whose lock is held, it
//! scans twice as many pages to free the same number, and faulting threads wait for I/O themselves;
//! if it skips them at the first priorities only, less so.

use super::rmap::{self, Cell, PRIORITY, SKIP, Scenario, Story, VANILLA, published};
use super::{Control, Experiment, ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Check, Headline, Noun, Outcome, Row, Unit};

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
    has_real: false,
    has_traces: false,
    has_kernel: false,
    has_matrix: true,
    run,
};

fn run(setup: &Setup, control: &Control) -> Result<Outcome, ExperimentError> {
    let story = Story {
        experiment: &EXPERIMENT,
        scenario: Scenario::Mapped,
        published: published_rows(),
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

/// The discussion's first table.
fn published_rows() -> Vec<Row> {
    vec![
        published(
            VANILLA,
            24.64,
            5.04,
            [
                582, 232, 78, 58, 15_947_857, 105_439, 24_647_536, 8_398_139, 12_582_926,
            ],
        ),
        published(
            SKIP,
            25.20,
            4.16,
            [
                9772, 25_865, 17_265, 10_639, 15_133_195, 583_092, 52_768_898, 3_767_100,
                12_248_353,
            ],
        ),
        published(
            PRIORITY,
            23.62,
            6.61,
            [
                14_643, 4906, 651, 1376, 15_095_445, 943_195, 28_103_170, 7_966_353, 12_565_934,
            ],
        ),
    ]
}
