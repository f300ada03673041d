//! Check 6: pages that may be parked in per-CPU lists.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, amount, counted, saturating_sum, share};
use crate::machine::Machine;
use crate::parse::PageSet;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 6,
    id: "pcp_parkable",
    title: "pages that may be parked",
    run,
    needs_interval: false,
    mechanism: "Each per-CPU list has a limit. From 6.7 the kernel moves it between high_min and \
        high_max: bursts raise it, low memory and idleness lower it. A limit that is set by \
        hand, and those of older kernels, stay.",
    formula: "sum of `high_max` (else `high`) of all lists in /proc/zoneinfo / sum of `managed`",
    thresholds: "lists of a fixed size: 5 and 10 %, because memory is never given back. Tuned \
        lists: 13 and 25 %, because the kernel lets them grow to 1/8 of memory on purpose and \
        shrinks them near a watermark; more comes from the floor of 4 batches a CPU.",
    thread: threads::PCP,
    kernels: "all; tuned lists from 6.7",
    advice: "set vm.percpu_pagelist_high_fraction (8 or more; larger means smaller lists)",
};

const FIXED: Thresholds = Thresholds::above(5.0, 10.0);
const TUNED: Thresholds = Thresholds::above(13.0, 25.0);

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let zones = machine.zones()?;
    let managed = saturating_sum(zones.iter().map(|zone| zone.managed_pages));
    if managed == 0 {
        return Err(Missing::new(
            "needs a zone with managed pages in /proc/zoneinfo",
        ));
    }
    let lists: Vec<&PageSet> = zones.iter().flat_map(|zone| &zone.page_sets).collect();
    let most = |list: &&PageSet| list.high_max_pages.unwrap_or(list.high_pages);
    let least = |list: &&PageSet| list.high_min_pages.unwrap_or(list.high_pages);
    let parkable = saturating_sum(lists.iter().map(most));
    let is_tuned = saturating_sum(lists.iter().map(least)) < parkable
        && lists.iter().any(|list| list.high_max_pages.is_some());
    let figure = Figure {
        name: "parkable",
        value: 100.0 * share(parkable, managed),
        error: 0.0,
        unit: Unit::Percent,
        thresholds: if is_tuned { TUNED } else { FIXED },
    };
    let bytes = amount(parkable.saturating_mul(machine.page_bytes()));
    let kind = if is_tuned { "tuned" } else { "fixed" };
    let says = format!("up to {bytes} on {} {kind} lists", lists.len());
    let formula = format!("{} / {} pages", counted(parkable), counted(managed));
    Ok(Finding::judged(figure, says, formula)
        .with("parkable_pages", parkable)
        .with("managed_pages", managed)
        .with("is_tuned", is_tuned))
}
