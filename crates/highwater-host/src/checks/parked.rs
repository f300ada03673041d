//! Check 5: free pages parked in per-CPU lists.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, amount, counted, saturating_sum, share};
use crate::machine::Machine;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 5,
    id: "pcp_parked",
    title: "pages parked per CPU",
    run,
    needs_interval: false,
    mechanism: "Each CPU holds free pages of each zone on a list of its own (pcp), so that most \
        allocations take no zone lock. Such pages are not counted as free: reclaim may start, \
        and an allocation fail, beside them.",
    formula: "sum of `count` of all lists in /proc/zoneinfo / sum of `managed`",
    thresholds: "2 % is about the distance between the usual watermarks; at 5 % the parked pages \
        are as much as all watermarks together.",
    thread: threads::PCP,
    kernels: "all",
    advice: "set vm.percpu_pagelist_high_fraction (8 or more; larger means smaller lists)",
};

const THRESHOLDS: Thresholds = Thresholds::above(2.0, 5.0);

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let zones = machine.zones()?;
    let managed = saturating_sum(zones.iter().map(|zone| zone.managed_pages));
    let lists = zones.iter().flat_map(|zone| &zone.page_sets);
    let parked = saturating_sum(lists.clone().map(|list| list.count_pages));
    if managed == 0 {
        return Err(Missing::new(
            "needs a zone with managed pages in /proc/zoneinfo",
        ));
    }
    let figure = Figure {
        name: "parked",
        value: 100.0 * share(parked, managed),
        error: 0.0,
        unit: Unit::Percent,
        thresholds: THRESHOLDS,
    };
    let bytes = amount(parked.saturating_mul(machine.page_bytes()));
    let says = format!("{bytes} on {} lists", lists.count());
    let formula = format!("{} / {} pages", counted(parked), counted(managed));
    Ok(Finding::judged(figure, says, formula)
        .with("parked_pages", parked)
        .with("managed_pages", managed))
}
