//! Check 16: groups that are throttled until they stand still.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, Verdict, rounded};
use crate::groups::GroupVersion;
use crate::machine::Machine;
use crate::parse;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 16,
    id: "throttled",
    title: "throttled to death",
    run,
    needs_interval: true,
    mechanism: "A group above memory.high is never stopped: its threads reclaim, and then sleep \
        for 64 s x (excess / high) squared for each 64 pages, at most 2 s. At 18 % above its \
        limit a group allocates about 32 pages a second and looks hung.",
    formula: "growth of `high` in memory.events a second, with `full avg10` of memory.pressure",
    thresholds: "10 events a second are a warning. Bad from 0.4 a second on if all tasks of the \
        group also stood still for 20 % of the time: a thread that sleeps 2 s each time makes \
        0.5 a second, so that the worst throttling has few events.",
    thread: threads::FLUSH,
    kernels: "cgroup v2",
    advice: "raise memory.high of the group, or lower its load",
};

const THRESHOLDS: Thresholds = Thresholds::warn_above(10.0).or_bad("stall > 20 %");

/// Events a second that a single thread at the longest throttle makes, and a margin.
const THROTTLED_PER_S: f64 = 0.4;

/// Percent of the last 10 s in which all tasks stalled, above which throttling is bad.
const FULL_BAD: f64 = 20.0;

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let groups = machine.groups()?;
    if groups.version == GroupVersion::V1 {
        return Err(Missing::new(
            "needs cgroup v2 with the memory controller; this is v1",
        ));
    }
    let interval = machine.interval()?;
    let full = |path: &str| {
        let path = groups.file_at(path, "memory.pressure");
        let pressure = machine.root().parse(&path, parse::pressure);
        pressure.map_or(f64::NAN, |pressure| pressure.full.avg10)
    };
    // Of the groups that are throttled, the one that stands still longest.
    let throttled = interval.high_events.iter();
    let throttled = throttled.map(|(path, events)| (path, interval.rate(*events)));
    let beyond = throttled
        .clone()
        .filter(|(_, rate)| *rate > THROTTLED_PER_S);
    let stalled = beyond.map(|(path, rate)| (path, rate, full(path)));
    let worst = stalled.max_by(|a, b| a.2.max(0.0).total_cmp(&b.2.max(0.0)));
    let worst = worst.or_else(|| {
        let most = throttled.max_by(|a, b| a.1.total_cmp(&b.1));
        most.map(|(path, rate)| (path, rate, full(path)))
    });
    let Some((path, rate, full)) = worst else {
        return Ok(Finding::fine("no group below the root was seen"));
    };
    let figure = Figure {
        name: "high_events",
        value: rate,
        error: 0.0,
        unit: Unit::PerSecond,
        thresholds: THRESHOLDS,
    };
    let stalled = if full.is_nan() {
        "unknown".to_owned()
    } else {
        format!("{} %", rounded(full))
    };
    let says = format!("{path}, all its tasks stalled {stalled}{}", groups.caveat());
    let formula = format!(
        "{} events/s in {path}; full avg10 {stalled}, bad above {THROTTLED_PER_S} events/s \
         and {FULL_BAD} %",
        rounded(rate)
    );
    let mut finding = Finding::judged(figure, says, formula)
        .with("group", path.clone())
        .with("full_avg10_percent", full)
        .with("bad_full_avg10_percent", FULL_BAD)
        .with("bad_from_per_s", THROTTLED_PER_S)
        .advise(format!("raise memory.high of {path}, or lower its load"));
    if rate > THROTTLED_PER_S && full > FULL_BAD {
        finding.verdict = Verdict::Bad;
    }
    Ok(finding)
}
