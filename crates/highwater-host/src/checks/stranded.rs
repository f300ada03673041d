//! Check 15: memory that is charged to a group and not in use.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, amount, float, printable, rounded};
use crate::groups::Group;
use crate::machine::Machine;
use crate::parse::KernelVersion;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 15,
    id: "stranded_charge",
    title: "stranded charge",
    run,
    needs_interval: false,
    mechanism: "Each CPU charges 64 pages (32 before 6.1) at once to a group and keeps the rest \
        as its stock. The stock counts as usage though no page uses it, so that a group meets \
        its limit early, and reclaims or is stopped with memory to spare. From 6.16 a CPU keeps \
        stocks of seven groups, which add up at their common parent.",
    formula: "CPUs x 64 pages (32 before 6.1; from 6.16 x the group and its descendants, at most \
        7) / memory.max, the worst group with a limit",
    thresholds: "5 % is the error that a limit with the usual headroom takes; at 25 % the limit \
        no longer says what it means.",
    thread: threads::FLUSH,
    kernels: "all; 64 pages a stock from 6.1, seven stocks a CPU from 6.16",
    advice: "give small groups larger limits on machines with many CPUs",
};

const THRESHOLDS: Thresholds = Thresholds::above(5.0, 25.0);

/// Groups of which a CPU keeps stocks from 6.16 on.
const STOCKS: u64 = 7;

/// Returns the pages that a CPU charges at once, `MEMCG_CHARGE_BATCH`, which 6.1 doubled
/// (1813e51eece0).
fn batch_pages(kernel: KernelVersion) -> u64 {
    if kernel.is_from(6, 1) { 64 } else { 32 }
}

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let kernel = machine.kernel()?;
    let cpus = machine.cpus_online()?;
    let groups = machine.groups()?;
    let stocks = |group: &Group| {
        if kernel.is_from(6, 16) {
            group.descendants.saturating_add(1).min(STOCKS)
        } else {
            1
        }
    };
    let pages = batch_pages(kernel);
    let batch = cpus
        .saturating_mul(pages)
        .saturating_mul(machine.page_bytes());
    let bound = |group: &Group| batch.saturating_mul(stocks(group));
    let percent = |group: &Group| {
        let max = group.max_bytes.unwrap_or(u64::MAX);
        100.0 * float(bound(group)) / float(max.max(1))
    };
    let limited = groups
        .groups
        .iter()
        .filter(|group| group.max_bytes.is_some());
    let count = limited.clone().count();
    let Some(worst) = limited.max_by(|a, b| percent(a).total_cmp(&percent(b))) else {
        let says = format!("no group has a limit{}", groups.caveat());
        return Ok(Finding::fine(says).with("limited_groups_count", 0));
    };
    let figure = Figure {
        name: "stranded",
        value: percent(worst),
        error: 0.0,
        unit: Unit::Percent,
        thresholds: THRESHOLDS,
    };
    let max = worst.max_bytes.unwrap_or(0);
    let blunt = amount(batch.saturating_mul(20));
    let says = format!(
        "up to {} of {} in {}{}",
        amount(bound(worst)),
        amount(max),
        printable(&worst.path),
        groups.caveat()
    );
    let formula = format!(
        "{cpus} CPUs x {pages} pages x {} = {}; / {} = {} %",
        stocks(worst),
        amount(bound(worst)),
        amount(max),
        rounded(percent(worst))
    );
    Ok(Finding::judged(figure, says, formula)
        .with("group", worst.path.clone())
        .with("stranded_bytes_max", bound(worst))
        .with("max_bytes", max)
        .with("limited_groups_count", count)
        .advise(format!("limits below {blunt} are blunt on this machine")))
}
