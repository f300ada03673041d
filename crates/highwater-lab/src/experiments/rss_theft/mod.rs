//! `rss-theft`: memory of 10,000 threads that the RSS counter of their process does not show.
//!
//! Each thread touches 32 pages and sleeps. A kernel whose tasks cache their counts until the 66th
//! fault then never adds them up, and shows a process of 1.5 GB with 44 MB. Here every design
//! counts the same faults on 16 virtual CPUs. Each design is read while all tasks sleep, and again
//! after all have exited, each on another CPU than it began on.
//!
//! With `--real`, real threads also read real pages through a real space of the library, whose
//! reading is compared with the number of allocated frames and with the system's count for this
//! process.

mod real;
mod seen;
mod simulated;

use self::real::RealRun;
use self::seen::Seen;
use self::simulated::{FAULTS, simulate};
use super::contenders::{ACTIVE, PER_TASK, PER_TASK_0};
use super::lineup::{FLAT, OURS, PUBLISHED, SHARED};
use super::pages::bytes_f64;
use super::{Experiment, ExperimentError, Extra, Findings, Setup, published};
use crate::control::Control;
use crate::report::{Check, Figures, Headline, Noun, Row, Unit};

const PUBLISHED_FIGURES: &str = include_str!("../../../published/rss-theft.json");

/// The experiment.
pub static EXPERIMENT: Experiment = Experiment {
    name: "rss-theft",
    thread: "rfc-2022-per-cpu-rss-cache",
    summary: "readings of RSS counters for 10,000 threads that touch a few pages each and sleep",
    headline: Headline::of_variants(
        "while all threads sleep",
        "error_bytes",
        Noun::Mass("error"),
        ["Highwater", "per-task cache (64)"],
    ),
    topology: "1x1x8x2",
    cpus: 1..=8192,
    extras: &[Extra::Real],
    run,
};

const ALIVE: &str = "while all threads sleep";
const ENDED: &str = "after all threads have ended";

/// Threads of the published program.
const THREADS: u32 = 10_000;

/// The largest part of the exact sum, in percent, at which the published finding is reproduced.
const SHOWN_PERCENT_MAX: f64 = 5.0;

const NOTE: &str = "Pages are simulated, counters are real. Each thread faults in 36 pages, one by \
    one: 32 of data and 4 of its stack and tables. Starting a thread touches one page of its stack \
    from the thread that starts it, which counts those pages for itself and folds every 66th; this \
    is what the per-task cache shows. That the published 43,888 KB are these pages is our reading, \
    not the discussion's. Shown is each design's cheap reading; promised is its own interval \
    around that; exact is its exact reading, which the per-task cache has only in this model. \
    Kernel rows are from other machines under emulation: VmRSS up to 6.1, field 24 of \
    /proc/PID/stat for later ones, whose VmRSS is an exact sum.";

fn run(setup: &Setup, control: &Control) -> Result<Findings, ExperimentError> {
    let threads = setup.options.threads.unwrap_or(THREADS);
    let simulated = simulate(setup, threads, control)?;
    let real = if setup.options.is_real {
        let threads = setup.options.threads.unwrap_or(setup.pick(THREADS, 500));
        Some(real::run(threads, control)?)
    } else {
        None
    };

    let mut checks = Vec::new();
    design_checks("", &simulated.alive, &mut checks);
    for seen in &simulated.ended {
        let check = format!("{}: pages left after all threads have ended", seen.name);
        checks.push(Check::counted(check).equal(&seen.precise, &0));
    }
    let mut rows: Vec<Row> = simulated.alive.iter().map(|seen| seen.row(ALIVE)).collect();
    rows.extend(simulated.ended.iter().map(|seen| seen.row(ENDED)));
    if let Some(real) = &real {
        design_checks("real: ", &real.designs, &mut checks);
        real.checks(&mut checks);
        rows.extend(real.rows());
    }
    Ok(Findings {
        config: config(setup, threads, real.as_ref()),
        rows,
        published: published::rows(PUBLISHED_FIGURES, &[ALIVE, ENDED]),
        checks,
    })
}

fn config(setup: &Setup, threads: u32, real: Option<&RealRun>) -> Figures {
    let config = setup
        .config()
        .with("threads", u64::from(threads))
        .with("faults_of_a_thread", u64::from(FAULTS))
        .with("real", real.is_some());
    let config = match real {
        None => config,
        Some(real) => real.config(config),
    };
    config.with("note_scope", NOTE)
}

/// Checks of the readings while all threads sleep.
fn design_checks(run: &str, alive: &[Seen], checks: &mut Vec<Check>) {
    let named = |name: &str| alive.iter().find(|seen| seen.name == name);
    let named = |name: &str| named(name).expect("every design is read");
    checks.push(
        Check::counted(format!("{run}{PER_TASK}: part of the truth that it shows")).at_most(
            named(PER_TASK).shown_percent(),
            SHOWN_PERCENT_MAX,
            Unit::Percent,
        ),
    );
    for name in [ACTIVE, PER_TASK_0, SHARED] {
        let seen = named(name);
        let check = format!("{run}{name}: pages shown");
        checks.push(Check::counted(check).equal(&seen.shown, &seen.truth));
    }
    for name in [FLAT, PUBLISHED, OURS] {
        let seen = named(name);
        let anon = seen.anon.expect("per-CPU counters promise an interval");
        let bound = if seen.truth > anon.value {
            anon.high - anon.value
        } else {
            anon.value - anon.low
        };
        checks.push(
            Check::counted(format!(
                "{run}{name}: error, at most the bound of its counter"
            ))
            .at_most(
                bytes_f64((seen.truth - anon.value).abs()),
                bytes_f64(bound),
                Unit::Bytes,
            ),
        );
    }
    let ours = named(OURS);
    let check = format!("{run}{OURS}: exact reading in pages");
    checks.push(Check::counted(check).equal(&ours.precise, &ours.truth));
}
