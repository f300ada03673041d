//! Check 7: the longest drain of a per-CPU list under one hold of the zone lock.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, Verdict, counted};
use crate::machine::Machine;
use crate::parse::PageSet;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 7,
    id: "pcp_drain",
    title: "longest drain under a lock",
    run,
    needs_interval: false,
    mechanism: "A list over its limit returns pages to its zone under the zone's one lock, up to \
        batch << CONFIG_PCP_BATCH_SCALE_MAX at once (before 6.7, all but a batch). While many \
        processes exit, every other CPU that needs the zone waits for as many holds as there \
        are contenders: 18 exits on 256 CPUs kept others waiting for tens of milliseconds.",
    formula: "largest `batch` of /proc/zoneinfo << CONFIG_PCP_BATCH_SCALE_MAX; from 5.14 to 6.6 \
        the largest `high` - `batch`; before 5.14, and where drains go in pieces (6.19), `batch`",
    thresholds: "2,047 pages take up to 140 us under the lock, 511 about 40 us (published for \
        three servers); times the number of contenders. Judged above 32 CPUs only.",
    thread: threads::PCP,
    kernels: "all; batch << scale from 6.7; frees and decays in pieces of a batch from 6.19, where \
        only a CPU that goes offline and a drain of all lists still take batch << scale",
    advice: "build with CONFIG_PCP_BATCH_SCALE_MAX=0 to 3, or use a kernel that drains in pieces",
};

const THRESHOLDS: Thresholds = Thresholds::above(512.0, 1024.0);

/// On fewer CPUs there are too few contenders for a verdict.
const CPUS_MANY: u64 = 32;

/// Highest scale that the kernel can be built with.
const SCALE_MAX: u32 = 6;

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let kernel = machine.kernel()?;
    let zones = machine.zones()?;
    let cpus = machine.cpus_online()?;
    let lists = || zones.iter().flat_map(|zone| &zone.page_sets);
    let batch = lists().map(|list| list.batch_pages).max();
    let Some(batch) = batch else {
        return Err(Missing::new("needs per-CPU lists in /proc/zoneinfo"));
    };
    let (pages, formula) = if kernel.is_from(6, 19) {
        (batch, format!("drained in pieces: batch {batch}"))
    } else if kernel.is_from(6, 7) {
        let scale = scale(machine)?;
        let pages = batch.saturating_mul(1 << scale);
        (pages, format!("batch {batch} << scale {scale}"))
    } else if kernel.is_from(5, 14) {
        let rest = |list: &PageSet| list.high_pages.saturating_sub(list.batch_pages);
        let pages = lists().map(rest).max().unwrap_or(0).max(batch);
        (pages, "largest high - batch".to_owned())
    } else {
        (batch, format!("batch {batch}"))
    };
    let is_judged = cpus > CPUS_MANY;
    let figure = Figure {
        name: "drain",
        value: crate::finding::float(pages),
        error: 0.0,
        unit: Unit::Pages,
        thresholds: THRESHOLDS,
    };
    let says = format!("{} pages at once, {cpus} CPUs", counted(pages));
    let formula = format!(
        "{formula} = {} pages; judged above {CPUS_MANY} CPUs",
        counted(pages)
    );
    let mut finding = Finding::judged(figure, says, formula).with("cpus_count", cpus);
    if !is_judged {
        finding.verdict = Verdict::Ok;
    }
    Ok(finding)
}

fn scale(machine: &Machine) -> Result<u32, Missing> {
    let option = "CONFIG_PCP_BATCH_SCALE_MAX";
    let value = machine.config(option)?;
    let scale = value.as_deref().and_then(|value| value.parse().ok());
    match scale {
        Some(scale) if scale <= SCALE_MAX => Ok(scale),
        _ => Err(Missing::new(format!(
            "needs {option} from 0 to {SCALE_MAX} in the config"
        ))),
    }
}
