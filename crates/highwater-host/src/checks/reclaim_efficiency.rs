//! Check 10: how many of the pages that reclaim scans it also frees.

use super::{Check, threads};
use crate::finding::{Figure, Finding, Thresholds, Unit, counted, share};
use crate::machine::Machine;
use crate::parse::Counters;
use crate::root::Missing;

pub(super) const CHECK: Check = Check {
    nr: 10,
    id: "reclaim_efficiency",
    title: "reclaim efficiency",
    run,
    needs_interval: true,
    mechanism: "Reclaim examines pages at the tail of the LRU lists and frees some. Pages that it \
        keeps, because they are in use, dirty, or behind a reverse map (rmap) whose lock is held, \
        cost the same CPU time and yield nothing.",
    formula: "pgsteal / pgscan over the interval, each the sum of kswapd, direct, khugepaged and \
        proactive; from 10,000 scanned pages on",
    thresholds: "a stream over twice the memory frees 45 to 50 % of what it scans through a \
        mapping and 100 % through read(2); with skipped rmap locks it was 33 %. Below 20 % five \
        pages are scanned for one.",
    thread: threads::RMAP,
    kernels: "all",
    advice: "look at check 9 (rmap), at dirty file pages (nr_vmscan_immediate_reclaim) and at \
        swap (pswpout, zswpout)",
};

const THRESHOLDS: Thresholds = Thresholds::below(50.0, 20.0);

/// Scanned pages from which on a ratio means something.
pub(super) const SCANNED_MIN: u64 = 10_000;

/// Pages scanned by each actor. Groups' own reclaim is in neither of these.
const SCANNED: [&str; 4] = [
    "pgscan_kswapd",
    "pgscan_direct",
    "pgscan_khugepaged",
    "pgscan_proactive",
];

/// Pages freed by each actor.
const FREED: [&str; 4] = [
    "pgsteal_kswapd",
    "pgsteal_direct",
    "pgsteal_khugepaged",
    "pgsteal_proactive",
];

fn run(machine: &Machine) -> Finding {
    Finding::of(measure(machine))
}

/// Returns the pages that all actors scanned.
pub(super) fn scanned(vmstat: &Counters) -> Result<u64, Missing> {
    let missing = || Missing::new("needs pgscan_kswapd and pgscan_direct in /proc/vmstat");
    vmstat.sum(&SCANNED).ok_or_else(missing)
}

/// Returns the pages that all actors freed.
pub(super) fn freed(vmstat: &Counters) -> Result<u64, Missing> {
    let missing = || Missing::new("needs pgsteal_kswapd and pgsteal_direct in /proc/vmstat");
    vmstat.sum(&FREED).ok_or_else(missing)
}

fn measure(machine: &Machine) -> Result<Finding, Missing> {
    let interval = machine.interval()?;
    let vmstat = &interval.vmstat;
    let (scanned, freed) = (scanned(vmstat)?, freed(vmstat)?);
    if scanned < SCANNED_MIN {
        return Ok(idle(scanned, interval.seconds));
    }
    let figure = Figure {
        name: "efficiency",
        value: 100.0 * share(freed, scanned),
        error: 0.0,
        unit: Unit::Percent,
        thresholds: THRESHOLDS,
    };
    let says = format!(
        "{} of {} scanned pages freed",
        counted(freed),
        counted(scanned)
    );
    let kswapd = vmstat.get("pgscan_kswapd").unwrap_or(0);
    let formula = format!(
        "{} / {} pages; kswapd scanned {}",
        counted(freed),
        counted(scanned),
        counted(kswapd)
    );
    let kept = KeptPages::of(vmstat);
    Ok(Finding::judged(figure, says, formula)
        .with("scanned_pages", scanned)
        .with("freed_pages", freed)
        .with("deferred_dirty_pages", kept.dirty)
        .with("written_pages", kept.written)
        .with("swapped_out_pages", kept.swapped)
        .advise(kept.advice(scanned)))
}

/// Pages that reclaim scanned and could not free at once, because they had to be written first.
struct KeptPages {
    /// Dirty file pages that were met.
    dirty: u64,
    /// Pages that reclaim wrote: few of files, most to swap.
    written: u64,
    /// Pages that were swapped out, those in zswap included.
    swapped: u64,
}

impl KeptPages {
    fn of(vmstat: &Counters) -> Self {
        let written = vmstat.get("nr_vmscan_write").unwrap_or(0);
        Self {
            dirty: vmstat.get("nr_vmscan_immediate_reclaim").unwrap_or(0),
            written,
            swapped: vmstat.sum(&["pswpout", "zswpout"]).unwrap_or(written),
        }
    }

    /// Returns advice about each kind that is more than a tenth of the scanned pages, the larger
    /// one first.
    fn advice(&self, scanned: u64) -> String {
        let dirty = format!(
            "{} dirty pages were met: write back earlier",
            counted(self.dirty)
        );
        let swapped = format!(
            "{} pages were swapped out: lower vm.swappiness, use faster swap, or add memory",
            counted(self.swapped)
        );
        let mut causes = [(self.dirty, dirty), (self.swapped, swapped)];
        causes.sort_by_key(|(pages, _)| std::cmp::Reverse(*pages));
        let large = causes
            .into_iter()
            .filter(|(pages, _)| *pages > scanned / 10);
        let large: Vec<String> = large.map(|(_, advice)| advice).collect();
        if large.is_empty() {
            "few pages were dirty or swapped out: look at check 9 (rmap) and at mapped files"
                .to_owned()
        } else {
            large.join("; ")
        }
    }
}

/// The finding of a machine with too little reclaim for a ratio.
pub(super) fn idle(scanned: u64, seconds: f64) -> Finding {
    let seconds = crate::finding::rounded(seconds);
    let says = format!(
        "too little reclaim to judge: {} pages in {seconds} s",
        counted(scanned)
    );
    let mut finding = Finding::fine(says).with("scanned_pages", scanned);
    finding.formula = format!(
        "{} pages scanned in {seconds} s; {} are needed for a ratio",
        counted(scanned),
        counted(SCANNED_MIN)
    );
    finding
}
