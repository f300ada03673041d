//! Check 14: flushes of group statistics. Needs the kernel's tracing.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, float};
use crate::machine::Machine;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 14,
    id: "flush_storms",
    title: "flushes of group statistics",
    run,
    needs_interval: false,
    mechanism: "Reading memory.stat, reclaim and refaults flush the statistics of a subtree over \
        all CPUs. Many readers at once queue on one lock; before 6.8 each of them flushed the \
        whole tree or read stale numbers.",
    formula: "memcg:memcg_flush_stats events a second, over 5 s, by the process that flushes",
    thresholds: "the kernel itself flushes every 2 s; 100 a second is a reader that polls, 1,000 \
        a storm.",
    thread: threads::FLUSH,
    kernels: "where the event memcg:memcg_flush_stats exists",
    advice: "read the statistics of fewer groups, or less often",
};

const THRESHOLDS: Thresholds = Thresholds::above(100.0, 1000.0);

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let traced = machine.traced()?;
    let counted = traced.flushes.as_ref().map_err(Machine::untraced)?;
    let flushes = counted.flushes();
    let figure = Figure {
        name: "flushes",
        value: float(flushes) / traced.seconds,
        // Every lost event may be a flush.
        error: float(traced.lost_events) / traced.seconds,
        unit: Unit::PerSecond,
        thresholds: THRESHOLDS,
    };
    let most = counted.most();
    let says = most.as_ref().map_or_else(
        || "no flush".to_owned(),
        |(of_task, name)| format!("{name} made {of_task} of {flushes}"),
    );
    let formula = format!(
        "{flushes} flushes / {:.1} s; {} calls found fresh statistics",
        traced.seconds,
        counted.skipped()
    );
    let mut finding = Finding::judged(figure, says, formula)
        .with("skipped_count", counted.skipped())
        .with("lost_events_count", traced.lost_events);
    if let Some((_, name)) = most {
        finding = finding.with("task", name.clone()).advise(format!(
            "let {name} read the statistics of fewer groups, or less often"
        ));
    }
    Ok(finding)
}
