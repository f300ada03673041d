//! Check 12: how many of the evicted pages come back.

use super::reclaim_efficiency::{SCANNED_MIN, freed};
use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, amount, counted, rounded, share};
use crate::machine::Machine;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 12,
    id: "thrashing",
    title: "thrashing",
    run,
    needs_interval: true,
    mechanism: "An evicted page leaves a shadow. A read that finds one is a refault: the page was \
        evicted too early. If it had been in use before (restored), memory is smaller than the \
        working set, and every eviction costs a read.",
    formula: "workingset_refault_anon + _file / pages freed, over the interval; and restored / \
        refaulted. Freed is pgsteal_anon + _file where it exists: it counts groups, as \
        refaults do",
    thresholds: "a streaming reader refaults little; at 0.3 a third of what reclaim gains is read \
        again, at 0.7 nearly all.",
    thread: threads::RMAP,
    kernels: "all; anonymous pages and files apart from 5.9",
    advice: "give the working set more memory, or keep streams out of it (O_DIRECT, \
        POSIX_FADV_DONTNEED, a group of their own)",
};

const THRESHOLDS: Thresholds = Thresholds::above(0.3, 0.7);

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let interval = machine.interval()?;
    let vmstat = &interval.vmstat;
    let by_type = |name: &str| {
        let split = [format!("{name}_anon"), format!("{name}_file")];
        vmstat
            .sum(&[&split[0], &split[1]])
            .or_else(|| vmstat.get(name))
    };
    let freed = match vmstat.sum(&["pgsteal_anon", "pgsteal_file"]) {
        Some(freed) => freed,
        None => freed(vmstat)?,
    };
    let Some(refaulted) = by_type("workingset_refault") else {
        return Err(Missing::new("needs workingset_refault in /proc/vmstat"));
    };
    let restored = by_type("workingset_restore").unwrap_or(0);
    let seconds = rounded(interval.seconds);
    if freed < SCANNED_MIN {
        let says = format!(
            "too few evictions to judge: {} in {seconds} s",
            counted(freed)
        );
        return Ok(Finding::fine(says)
            .with("freed_pages", freed)
            .with("refaulted_pages", refaulted));
    }
    let figure = Figure {
        name: "refault",
        value: share(refaulted, freed),
        error: 0.0,
        unit: Unit::Ratio,
        thresholds: THRESHOLDS,
    };
    let restored_ratio = share(restored, refaulted);
    let bytes = refaulted.saturating_mul(machine.page_bytes());
    let says = format!(
        "{} read again in {seconds} s, {} restored",
        amount(bytes),
        rounded(restored_ratio)
    );
    let formula = format!(
        "{} refaults / {} evictions; {} restored / {} refaults = {}",
        counted(refaulted),
        counted(freed),
        counted(restored),
        counted(refaulted),
        rounded(restored_ratio)
    );
    // A page that is kept saves each of its refaults, so that this is enough for all of them.
    let advice = format!(
        "at most {} more memory would have kept these pages",
        amount(bytes)
    );
    Ok(Finding::judged(figure, says, formula)
        .with("refaulted_pages", refaulted)
        .with("freed_pages", freed)
        .with("restored_ratio", restored_ratio)
        .with("more_memory_bytes_max", bytes)
        .advise(advice))
}
