//! What a replay reports: the JSON object that tools depend on, field by field, and the notes that
//! only people read.

use std::fs;

use serde::Serialize;

use super::latency::LatencySummary;
use super::manifest::{Manifest, TraceReport};
use crate::report::text::to_f64;

/// The result of a replay; serialised, it is the program's JSON output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// What was run, as fields of the same object.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// Requests of all traces.
    pub requests: u64,
    /// Pages that the requests touched, each time.
    pub page_accesses: u64,
    /// Accesses whose page was resident.
    pub hits: u64,
    /// Accesses that had to fault the page in, or to wait for a thread that did.
    pub misses: u64,
    /// `hits / page_accesses`; 0 without accesses.
    pub hit_ratio: f64,
    /// Faults of pages that were evicted before (`workingset_refault_file`).
    pub refaults: u64,
    /// Pages looked at by reclaim, in the background and by requesters.
    pub pgscan: u64,
    /// Pages that reclaim took back.
    pub pgsteal: u64,
    /// Wall time of the accesses, without setting up and without the final verification.
    pub elapsed_s: f64,
    /// `page_accesses / elapsed_s`.
    pub accesses_per_s: f64,
    /// How long hits took.
    pub hit_latency_us: LatencySummary,
    /// How long misses took.
    pub miss_latency_us: LatencySummary,
    /// How per-CPU words were written: `restartable` or `atomic`.
    pub regime: String,
    /// Why not all of them in restartable sequences; null where they were.
    pub regime_reason: Option<String>,
    /// The capacity that the manager was given.
    pub capacity_bytes: u64,
    /// Most frames allocated at a time.
    pub frames_peak_bytes: u64,
    /// Most real memory of the whole process at a time (`VmHWM`).
    pub rss_peak_bytes: u64,
    /// Pages that did not hold what they must, when read or at the end.
    pub verify_failures: u64,
    /// Frames still allocated after everything was dropped.
    pub leaked_frames: u64,
    /// Bytes still charged after everything was dropped.
    pub leaked_bytes: u64,
    /// One entry for each tenant, in the order given.
    pub tenants: Vec<TenantReport>,
}

/// One tenant's part of a [`Report`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TenantReport {
    /// The tenant's name.
    pub name: String,
    /// What it replayed.
    pub trace: TraceReport,
    /// Requests of its trace.
    pub requests: u64,
    /// Pages that they touched.
    pub page_accesses: u64,
    /// Accesses whose page was resident.
    pub hits: u64,
    /// `hits / page_accesses`; 0 without accesses.
    pub hit_ratio: f64,
    /// Memory charged at the end of the accesses, as estimated.
    pub usage_bytes: u64,
    /// The exact usage is not below this.
    pub usage_low_bytes: u64,
    /// The exact usage is not above this.
    pub usage_high_bytes: u64,
    /// The exact usage.
    pub usage_precise_bytes: u64,
    /// Most memory charged at a time.
    pub peak_bytes: u64,
    /// The limit; null without one.
    pub max_bytes: Option<u64>,
    /// How often the limit made the group reclaim from itself.
    pub max_events: u64,
    /// How often the group was chosen as a victim.
    pub victims: u64,
}

/// What a replay found, beyond the figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The figures.
    pub report: Report,
    /// The first pages that did not verify, described.
    pub mismatches: Vec<String>,
    /// Tenants whose traces had bad records that were skipped, and how many.
    pub bad_records: Vec<(String, u64)>,
    /// Pages of all tenants' files that were touched.
    pub footprint_pages: u64,
}

impl Report {
    /// Whether every page verified and nothing leaked.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.verify_failures == 0 && self.leaked_frames == 0 && self.leaked_bytes == 0
    }
}

/// `part / whole`, or 0 when there is no whole.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        to_f64(part) / to_f64(whole)
    }
}

/// Most real memory that this process has had at a time (`VmHWM`), in bytes; 0 where the system
/// does not tell.
pub(super) fn rss_peak_bytes() -> u64 {
    let kib = |status: String| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let status = fs::read_to_string("/proc/self/status").ok();
    status.and_then(kib).map_or(0, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_had_some_memory() {
        let peak = rss_peak_bytes();
        assert!(peak > 1 << 16 && peak < 1 << 40, "{peak} bytes");
    }

    #[test]
    fn a_ratio_of_nothing_is_zero() {
        assert!((ratio(1, 4) - 0.25).abs() < f64::EPSILON);
        assert!(ratio(0, 0).abs() < f64::EPSILON);
    }
}
