//! Check 16: groups that are throttled until they stand still.

use std::cmp::Ordering;

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, Verdict, printable, rounded};
use crate::groups::{GroupVersion, Groups};
use crate::machine::{Interval, Machine};
use crate::parse;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 16,
    id: "throttled",
    title: "throttled to death",
    run,
    needs_interval: true,
    mechanism: "A group above memory.high is never stopped: its threads reclaim, and then sleep \
        for 64 s x (excess / high) squared for each 64 pages (32 before 6.1), at most 2 s. At 18 % \
        above its limit a group allocates one such batch in 2 s and looks hung.",
    formula: "growth of `high` in memory.events.local a second (without that file: in \
        memory.events, less the growth of the groups below), with `full avg10` of \
        memory.pressure; groups without a memory.high are left out",
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

/// A group that was above its limit during the interval.
struct ThrottledGroup<'a> {
    path: &'a str,
    /// Events of its own a second.
    rate: f64,
    /// Percent of the time in which all its tasks stalled; not a number if unknown.
    full: f64,
}

impl ThrottledGroup<'_> {
    fn verdict(&self) -> Verdict {
        if self.is_throttled() && self.full > FULL_BAD {
            Verdict::Bad
        } else {
            THRESHOLDS.judge(self.rate)
        }
    }

    fn is_throttled(&self) -> bool {
        self.rate > THROTTLED_PER_S
    }

    /// Orders groups by their verdict, the longer stall of throttled ones, the rate, and the path.
    ///
    /// A stall counts in each group above too, and there is no file of a group's own: of a parent
    /// and a child that stall together, the one with more events is the worse.
    fn compare(&self, other: &Self) -> Ordering {
        let stall = |group: &Self| {
            if group.is_throttled() {
                group.full.max(0.0)
            } else {
                -1.0
            }
        };
        let by_verdict = other.verdict().cmp(&self.verdict());
        by_verdict
            .then(stall(self).total_cmp(&stall(other)))
            .then(self.rate.total_cmp(&other.rate))
            .then_with(|| other.path.cmp(self.path))
    }
}

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
    if interval.high_events.is_empty() {
        return Ok(Finding::fine("no group below the root was seen"));
    }
    let Some(worst) = worst(machine, groups, interval) else {
        let says = format!(
            "no group was above a memory.high of its own{}",
            groups.caveat()
        );
        let formula = format!("0 events/s in {} groups", interval.high_events.len());
        return Ok(Finding::judged(figure(0.0), says, formula).with("group", None::<&str>));
    };
    let ThrottledGroup { path, rate, full } = worst;
    let stalled = if full.is_nan() {
        "unknown".to_owned()
    } else {
        format!("{} %", rounded(full))
    };
    let name = printable(path);
    let says = format!("{name}, all its tasks stalled {stalled}{}", groups.caveat());
    let formula = format!(
        "{} events/s in {name}; full avg10 {stalled}, bad above {THROTTLED_PER_S} events/s \
         and {FULL_BAD} %",
        rounded(rate)
    );
    let mut finding = Finding::judged(figure(rate), says, formula)
        .with("group", path)
        .with("full_avg10_percent", full)
        .with("bad_full_avg10_percent", FULL_BAD)
        .with("bad_from_per_s", THROTTLED_PER_S)
        .advise(format!("raise memory.high of {name}, or lower its load"));
    finding.verdict = worst.verdict();
    Ok(finding)
}

fn figure(rate: f64) -> Figure {
    Figure {
        name: "high_events",
        value: rate,
        error: 0.0,
        unit: Unit::PerSecond,
        thresholds: THRESHOLDS,
    }
}

/// Returns the worst of the groups that were above a limit of their own.
fn worst<'a>(
    machine: &Machine,
    groups: &Groups,
    interval: &'a Interval,
) -> Option<ThrottledGroup<'a>> {
    let root = machine.root();
    // Without a limit there is nothing to raise: it was removed, or groups below were not seen.
    let has_limit = |path: &str| {
        let high = root.parse(&groups.file_at(path, "memory.high"), parse::limit_bytes);
        high.map_or(true, |high| high.is_some())
    };
    let grown = interval.high_events.iter();
    let grown = grown.filter(|(path, events)| **events > 0 && has_limit(path));
    let throttled = grown.map(|(path, events)| {
        let pressure = root.parse(&groups.file_at(path, "memory.pressure"), parse::pressure);
        ThrottledGroup {
            path,
            rate: interval.rate(*events),
            full: pressure.map_or(f64::NAN, |pressure| pressure.full.avg10),
        }
    });
    throttled.max_by(ThrottledGroup::compare)
}
