//! Check 9: time spent waiting for memory locks. Needs the kernel's tracing.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, float, rounded};
use crate::machine::Machine;
use crate::root::Missing;
use crate::traced::LockClass;

pub(super) const CHECK: Check = Check {
    nr: 9,
    id: "lock_waits",
    title: "waiting for memory locks",
    run,
    needs_interval: false,
    mechanism: "Zone locks, rmap locks, LRU locks and the locks of memory groups are shared by \
        CPUs or processes that otherwise have nothing in common; one that holds such a lock \
        stops them all.",
    formula: "time waited, by class of the caller / (time x CPUs), over 5 s of \
        lock:contention_begin and contention_end",
    thresholds: "1 % of all CPUs is a CPU of a hundred; at 5 % lock waits show in every profile.",
    thread: threads::RMAP,
    kernels: "5.19 and later",
    advice: "zone: fewer pages per drain; rmap: fewer mmap calls of shared files; LRU and memory \
        groups: fewer groups under pressure at once",
};

const THRESHOLDS: Thresholds = Thresholds::above(1.0, 5.0);

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

/// The discussion of a class, and what helps.
fn about(class: LockClass) -> (&'static str, &'static str) {
    match class {
        LockClass::Zone => (
            threads::PCP,
            "free fewer pages at once (CONFIG_PCP_BATCH_SCALE_MAX, vm.percpu_pagelist_high_fraction)",
        ),
        LockClass::Rmap => (
            threads::RMAP,
            "map and unmap shared files less often, or in fewer processes",
        ),
        LockClass::Lru => (
            threads::RMAP,
            "put fewer tasks under pressure in one group, or split the group",
        ),
        LockClass::Memcg => (
            threads::FLUSH,
            "read memory.stat of fewer groups, or less often",
        ),
        LockClass::Other => ("", ""),
    }
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let traced = machine.traced()?;
    let waits = traced.lock_waits.as_ref().map_err(Machine::untraced)?;
    if !waits.has_symbols() {
        let need = "needs addresses in /proc/kallsyms: kernel.kptr_restrict below 2";
        return Err(Missing::new(need));
    }
    let available_ns = traced.seconds * 1e9 * float(machine.cpus_online()?);
    let percent = |ns| 100.0 * float(ns) / available_ns;
    let classes = LockClass::OF_MEMORY.map(|class| (class, waits.of(class)));
    let waited_ns = classes.iter().map(|(_, of)| of.waited_ns).sum::<u64>();
    let figure = Figure {
        name: "waited",
        value: percent(waited_ns),
        error: percent(waited_ns) * traced.lost_share(),
        unit: Unit::Percent,
        thresholds: THRESHOLDS,
    };
    let (worst, of_worst) = classes
        .iter()
        .max_by_key(|(_, of)| of.waited_ns)
        .ok_or_else(|| Missing::new("needs a class of locks"))?;
    let says = if of_worst.waits == 0 {
        "no wait for a lock of memory management".to_owned()
    } else {
        let (class, most) = (worst.name(), &of_worst.most);
        format!(
            "most for {class} locks: {} waits, {most} longest",
            of_worst.waits
        )
    };
    let parts = classes.each_ref().map(|(class, of)| {
        let ms = rounded(float(of.waited_ns) / 1e6);
        format!("{} {ms} ms", class.name())
    });
    let (thread, help) = about(*worst);
    let mut formula = format!(
        "({}) / ({:.1} s x {} CPUs)",
        parts.join(" + "),
        traced.seconds,
        machine.cpus_online()?
    );
    if of_worst.waits > 0 {
        formula = format!("{formula}; {} is about {thread}", worst.name());
    }
    let mut finding = Finding::judged(figure, says, formula);
    for (name, (_, of)) in ["zone_ns", "rmap_ns", "lru_ns", "memcg_ns"]
        .iter()
        .zip(&classes)
    {
        finding = finding.with(name, of.waited_ns);
    }
    let other_ns = waits.of(LockClass::Other).waited_ns;
    Ok(finding
        .with("other_ns", other_ns)
        .with("lost_events_count", traced.lost_events)
        .advise(help))
}
