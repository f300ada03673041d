//! Check 18: which LRU this kernel uses, and whether dirty pages block it.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, counted, rounded, share};
use crate::machine::Machine;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 18,
    id: "lru_flavour",
    title: "LRU flavour",
    run,
    needs_interval: true,
    mechanism: "With generations on (multi-gen LRU), kernels before 7.2 evict in order of age and \
        meet dirty pages at the tail that cannot go yet; each is put back and met again. 7.2 \
        has a series for dirty folios.",
    formula: "generations on, kernel before 7.2, and nr_vmscan_immediate_reclaim a second",
    thresholds: "any growth is a warning: each page was scanned for nothing.",
    thread: threads::RMAP,
    kernels: "6.1 to 7.1 with CONFIG_LRU_GEN",
    advice: "7.2 has the dirty-folio series; before it, write back earlier \
        (vm.dirty_background_bytes) or turn the generations off",
};

const THRESHOLDS: Thresholds = Thresholds::warn_above(0.0);

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let kernel = machine.kernel()?;
    let enabled = machine.root().read("sys/kernel/mm/lru_gen/enabled");
    let has_sys = machine.root().entries("sys/kernel/mm").is_ok();
    let enabled = match enabled {
        Ok(text) => is_on(&text)?,
        Err(_) if has_sys || !kernel.is_from(6, 1) => false,
        Err(missing) => return Err(missing),
    };
    if !enabled {
        return Ok(Finding::fine("active and inactive lists").with("has_generations", false));
    }
    if kernel.is_from(7, 2) {
        let says = "generations, with the dirty-folio series";
        return Ok(Finding::fine(says).with("has_generations", true));
    }
    let interval = machine.interval()?;
    let vmstat = &interval.vmstat;
    let Some(deferred) = vmstat.get("nr_vmscan_immediate_reclaim") else {
        return Err(Missing::new(
            "needs nr_vmscan_immediate_reclaim in /proc/vmstat",
        ));
    };
    let figure = Figure {
        name: "deferred_dirty",
        value: interval.rate(deferred),
        error: 0.0,
        unit: Unit::PerSecond,
        thresholds: THRESHOLDS,
    };
    let memory = machine.memory_kib()?;
    let of_memory = |name| memory.get(name).unwrap_or(0);
    let dirty = 100.0 * share(of_memory("Dirty"), of_memory("MemTotal"));
    let says = format!("generations; {} % of memory is dirty", rounded(dirty));
    let formula = format!(
        "{} dirty pages met in {} s, kernel {kernel}",
        counted(deferred),
        rounded(interval.seconds)
    );
    Ok(Finding::judged(figure, says, formula)
        .with("has_generations", true)
        .with("dirty_percent", dirty))
}

/// The main switch among the bits of the mask; the others refine what it turned on.
const MAIN_SWITCH: u32 = 0x0001;

/// Parses a mask such as `0x0007`, or `y` and `n`.
fn is_on(text: &str) -> Result<bool, Missing> {
    let text = text.trim();
    let mask = text
        .strip_prefix("0x")
        .map(|mask| u32::from_str_radix(mask, 16));
    match (text, mask) {
        (_, Some(Ok(mask))) => Ok(mask & MAIN_SWITCH != 0),
        ("y" | "1", _) => Ok(true),
        ("n" | "0", _) => Ok(false),
        _ => Err(Missing::new("cannot parse /sys/kernel/mm/lru_gen/enabled")),
    }
}
