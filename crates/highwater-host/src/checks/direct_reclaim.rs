//! Check 11: how much reclaim is done by the threads that allocate.

use super::reclaim_efficiency::{SCANNED_MIN, idle, scanned};
use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, counted, rounded, share};
use crate::machine::Machine;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 11,
    id: "direct_reclaim",
    title: "direct reclaim",
    run,
    needs_interval: true,
    mechanism: "The background thread (kswapd) should free pages before they are needed. A thread \
        that finds free memory below the minimum reclaims itself, and its request waits as long. \
        The cost falls on the thread that allocates next, not on the one that grew.",
    formula: "pgscan_direct / pages scanned by all actors, over the interval; and allocstall_* a \
        second",
    thresholds: "5 % is what a burst causes; at 25 % kswapd does not keep up.",
    thread: threads::RMAP,
    kernels: "all",
    advice: "raise vm.watermark_scale_factor; protect what matters with memory.low",
};

const THRESHOLDS: Thresholds = Thresholds::above(5.0, 25.0);

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let interval = machine.interval()?;
    let vmstat = &interval.vmstat;
    let scanned = scanned(vmstat)?;
    let stalls = vmstat.sum_of_prefix("allocstall").unwrap_or(0);
    let stalls_per_s = interval.rate(stalls);
    if scanned < SCANNED_MIN {
        return Ok(idle(scanned, interval.seconds).with("allocstall_per_s", stalls_per_s));
    }
    let direct = vmstat.get("pgscan_direct").unwrap_or(0);
    let figure = Figure {
        name: "direct",
        value: 100.0 * share(direct, scanned),
        error: 0.0,
        unit: Unit::Percent,
        thresholds: THRESHOLDS,
    };
    let says = format!("{} stalls of allocations a second", rounded(stalls_per_s));
    let formula = format!(
        "{} / {} scanned pages; {} stalls in {} s",
        counted(direct),
        counted(scanned),
        counted(stalls),
        rounded(interval.seconds)
    );
    Ok(Finding::judged(figure, says, formula)
        .with("direct_scanned_pages", direct)
        .with("scanned_pages", scanned)
        .with("allocstall_per_s", stalls_per_s))
}
