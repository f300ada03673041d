//! Check 1: by how much the cheap counter of resident pages may be off.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, amount, counted, float, saturating_sum};
use crate::machine::Machine;
use crate::process::{Process, bound_pages};
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 1,
    id: "rss_bound",
    title: "RSS error, bound",
    run,
    needs_interval: false,
    mechanism: "The kernel counts resident pages without a shared counter. Before 6.2 each thread \
        holds back up to 64 pages of each of three counters until it folds them; from 6.2 each \
        CPU holds back up to a batch of max(32, 2 CPUs) pages. A cheap read misses all that is \
        held back, so that its error grows with the threads, or with the square of the CPUs.",
    formula: "before 6.2: 64 pages x threads x 3 counters; from 6.2: CPUs x max(32, 2 CPUs) pages \
        x 3 counters; divided by the process's resident pages",
    thresholds: "above 1 % a monitor's number is off in the third digit; above 10 % limits and \
        alarms set on it are wrong. Processes below 1 % of memory are left out, except the \
        largest if it has 16 MiB: a small process is off by much of itself everywhere.",
    thread: threads::RSS_CACHE,
    kernels: "all",
    advice: "measure with smaps_rollup; stat field 24, VmHWM and ru_maxrss stay approximate",
};

const THRESHOLDS: Thresholds = Thresholds::above(1.0, 10.0);

/// The largest process is judged from so many bytes on.
const LARGE_BYTES: u64 = 16 << 20;

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let kernel = machine.kernel()?;
    let cpus = machine.cpus_online()?;
    let table = machine.processes()?;
    // Shares of memory decide which processes are large; without their sum, the largest one is.
    let zones = machine.zones().unwrap_or_default();
    let managed = saturating_sum(zones.iter().map(|zone| zone.managed_pages));
    let pages = |process: &Process| {
        let exact = process.exact.map_or(0, |exact| exact.pages);
        process.counter_pages.max(exact).max(1)
    };
    let largest = table.processes.iter().max_by_key(|process| pages(process));
    let is_judged =
        |process: &&Process| pages(process).saturating_mul(machine.page_bytes()) >= LARGE_BYTES;
    let largest = largest.filter(is_judged);
    let large = table
        .processes
        .iter()
        .filter(|process| managed > 0 && pages(process).saturating_mul(100) >= managed);
    let percent = |process: &Process| {
        let bound = bound_pages(kernel, cpus, process.threads);
        100.0 * float(bound) / float(pages(process))
    };
    let worst = large
        .chain(largest)
        .max_by(|a, b| percent(a).total_cmp(&percent(b)));
    let Some(worst) = worst else {
        let bound = bound_pages(kernel, cpus, 1).saturating_mul(machine.page_bytes());
        let says = format!(
            "no process of 16 MiB; one thread may be off by {}{}",
            amount(bound),
            table.caveat()
        );
        return Ok(Finding::fine(says));
    };
    let bound = bound_pages(kernel, cpus, worst.threads);
    let bytes = bound.saturating_mul(machine.page_bytes());
    let figure = Figure {
        name: "bound",
        value: percent(worst),
        error: 0.0,
        unit: Unit::Percent,
        thresholds: THRESHOLDS,
    };
    let name = worst.name();
    let says = format!("{name} may be off by {}{}", amount(bytes), table.caveat());
    let factors = if kernel.is_from(6, 2) {
        format!("{cpus} CPUs x {} pages", cpus.saturating_mul(2).max(32))
    } else {
        format!("64 pages x {} threads", worst.threads)
    };
    let formula = format!(
        "{factors} x 3 counters = {} pages; / {} pages of {name}",
        counted(bound),
        counted(pages(worst))
    );
    Ok(Finding::judged(figure, says, formula)
        .with("bound_pages", bound)
        .with("cpus_count", cpus)
        .with("threads_count", worst.threads)
        .with("pid", worst.pid))
}
