//! Check 4: the cost of an exact read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, float, rounded};
use crate::groups::cpu_time;
use crate::machine::Machine;
use crate::process::ExactBy;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 4,
    id: "exact_cost",
    title: "cost of exact reads",
    run,
    needs_interval: false,
    mechanism: "Where statm is exact, each read sums three counters over all CPUs: 3 us with the \
        per-task counters of 6.1, 28 us on 64 CPUs and 0.4 ms on 255 under one emulator. A \
        monitor that reads every process pays that for each.",
    formula: "CPU time of 1,000 reads of /proc/self/statm less that of 1,000 reads of \
        /proc/self/oom_score_adj, which costs the same but for the sum; fewer reads where \
        they are dear",
    thresholds: "at 20 us a monitor of 500 processes spends 1 % of a CPU at one poll a second; at \
        200 us, 10 %.",
    thread: threads::TREE,
    kernels: "6.12 and later, and others whose statm is exact",
    advice: "poll less often, or only the processes that matter",
};

const THRESHOLDS: Thresholds = Thresholds::above(20.0, 200.0);

/// Rounds; each reads both files in turn.
const ROUNDS: usize = 20;

/// Reads of each file in a round.
const READS: u32 = 50;

/// CPU time after which no further round begins.
const TIME_MAX: Duration = Duration::from_millis(8);

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    if !machine.root().is_live() {
        return Err(Missing::new("needs a live machine, to measure times"));
    }
    let table = machine.processes()?;
    if table.exact_by != ExactBy::Statm {
        return Err(Missing::new(
            "needs a kernel whose statm is exact (6.12 and later)",
        ));
    }
    let statm = machine.root().open("proc/self/statm")?;
    let empty = machine.root().open("proc/self/oom_score_adj")?;
    let start = cpu_time();
    let mut differences_us = Vec::new();
    for _ in 0..ROUNDS {
        let sum = time_of_reads(&statm)?.as_secs_f64() - time_of_reads(&empty)?.as_secs_f64();
        differences_us.push(sum.max(0.0) * 1e6 / f64::from(READS));
        if cpu_time().saturating_sub(start) > TIME_MAX {
            break;
        }
    }
    differences_us.sort_by(f64::total_cmp);
    let rounds = differences_us.len();
    let median = differences_us[rounds / 2];
    // Half of the rounds lie so close to the median.
    let spread = (differences_us[rounds * 3 / 4] - differences_us[rounds / 4]) / 2.0;
    let processes = table.processes.len() as u64;
    let all_us = median * float(processes);
    let per_second = if all_us > 0.0 {
        1e4 / all_us
    } else {
        f64::INFINITY
    };
    let figure = Figure {
        name: "exact_read",
        value: median,
        error: spread,
        unit: Unit::Us,
        thresholds: THRESHOLDS,
    };
    let says = if per_second.is_finite() {
        format!(
            "{} polls a second of all processes take 1 % of a CPU",
            rounded(per_second)
        )
    } else {
        "below what can be measured".to_owned()
    };
    let formula = format!(
        "median of {rounds} rounds of {READS} reads; {} us x {processes} processes = {} us a poll",
        rounded(median),
        rounded(all_us)
    );
    Ok(Finding::judged(figure, says, formula)
        .with("poll_us", all_us)
        .with("processes_count", processes))
}

fn time_of_reads(file: &File) -> Result<Duration, Missing> {
    let mut bytes = [0_u8; 256];
    let start = cpu_time();
    for _ in 0..READS {
        let read = file.read_at(&mut bytes, 0);
        read.map_err(|e| Missing::new(format!("needs files of /proc/self that can be read: {e}")))?;
    }
    Ok(cpu_time().saturating_sub(start))
}
