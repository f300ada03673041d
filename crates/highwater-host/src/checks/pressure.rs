//! Check 17: time that tasks stalled for memory.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, rounded};
use crate::machine::Machine;
use crate::parse;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 17,
    id: "pressure",
    title: "pressure",
    run,
    needs_interval: false,
    mechanism: "Pressure stall information (PSI) counts the time in which tasks wait for memory: \
        for reclaim, for refaults, for throttling. It is the sum of everything above, as the \
        programs feel it.",
    formula: "`some avg60` of /proc/pressure/memory; `full avg60` beside it",
    thresholds: "at 5 % a request in twenty meets a stall; at 20 % the machine mostly waits.",
    thread: threads::RMAP,
    kernels: "4.20 and later, with CONFIG_PSI",
    advice: "look at the checks above for the cause; more memory, or less load",
};

const THRESHOLDS: Thresholds = Thresholds::above(5.0, 20.0);

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let pressure = machine
        .root()
        .parse("proc/pressure/memory", parse::pressure);
    let pressure = pressure.map_err(|missing| {
        let boot = "needs /proc/pressure/memory: boot with psi=1";
        if missing.need.starts_with("cannot parse") {
            missing
        } else {
            Missing::new(boot)
        }
    })?;
    let (some, full) = (pressure.some, pressure.full);
    let figure = Figure {
        name: "some_avg60",
        value: some.avg60,
        // The average is of a window that decays; the kernel shows two digits of it.
        error: 0.01,
        unit: Unit::Percent,
        thresholds: THRESHOLDS,
    };
    let says = format!("all tasks at once: {} %", rounded(full.avg60));
    let formula = format!(
        "some avg60 {} %, full avg60 {} %; avg10 {} and {} %",
        rounded(some.avg60),
        rounded(full.avg60),
        rounded(some.avg10),
        rounded(full.avg10)
    );
    Ok(Finding::judged(figure, says, formula)
        .with("full_avg60_percent", full.avg60)
        .with("some_avg10_percent", some.avg10)
        .with("full_avg10_percent", full.avg10))
}
