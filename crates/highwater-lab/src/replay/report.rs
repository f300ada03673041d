//! The report of a replay: the JSON object that tools depend on, and notes for people.

use std::fs;

use serde::Serialize;

use super::config::DataIo;
use super::latency::{LatencyCurve, LatencySummary};
use super::manifest::{Manifest, TraceReport};
use super::timeline::Timeline;
use super::victims::VictimRecord;
use crate::report::text::to_f64;
use crate::trace::Skipped;

/// The result of a replay; serialised, it is the program's JSON output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The configuration of the run, as fields of the same object.
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
    /// Pages read from the data files: missing ones, and those that were read ahead.
    pub pages_read: u64,
    /// Refaults: faults of pages that were evicted before (`workingset_refault_file`).
    pub refaults: u64,
    /// Pages scanned by background and direct reclaim.
    pub pgscan: u64,
    /// Pages freed by reclaim.
    pub pgsteal: u64,
    /// Wall time of the accesses, without set-up and without the final verification.
    pub elapsed_s: f64,
    /// `page_accesses / elapsed_s`.
    pub accesses_per_s: f64,
    /// Latency of hits.
    pub hit_latency_us: LatencySummary,
    /// Latency of misses.
    pub miss_latency_us: LatencySummary,
    /// How per-CPU words were written: `restartable` or `atomic`.
    pub regime: String,
    /// Why some per-CPU words were not written by restartable sequences; null if all were.
    pub regime_reason: Option<String>,
    /// How the data files were read and written: `direct`, past the kernel's page cache, or
    /// `buffered`, through it.
    pub io: DataIo,
    /// Why they were buffered although they were to be direct; null otherwise.
    pub io_reason: Option<String>,
    /// Bytes of the data files that the kernel cached after the last access; null if it does not
    /// tell.
    pub kernel_cached_bytes: Option<u64>,
    /// The capacity that the manager was given.
    pub capacity_bytes: u64,
    /// Peak of allocated frames.
    pub frames_peak_bytes: u64,
    /// Peak of the whole process's real memory (`VmHWM`).
    pub rss_peak_bytes: u64,
    /// Pages with wrong contents, at a read or at the end.
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
    /// Its trace.
    pub trace: TraceReport,
    /// Requests of its trace.
    pub requests: u64,
    /// Pages that they touched.
    pub page_accesses: u64,
    /// Accesses whose page was resident.
    pub hits: u64,
    /// `hits / page_accesses`; 0 without accesses.
    pub hit_ratio: f64,
    /// Estimated usage at the end of the accesses.
    pub usage_bytes: u64,
    /// Lower bound of the exact usage.
    pub usage_low_bytes: u64,
    /// Upper bound of the exact usage.
    pub usage_high_bytes: u64,
    /// The exact usage.
    pub usage_precise_bytes: u64,
    /// Peak usage.
    pub peak_bytes: u64,
    /// The limit; null without one.
    pub max_bytes: Option<u64>,
    /// How often the limit made the group reclaim from itself.
    pub max_events: u64,
    /// How often the group was chosen as a victim.
    pub victims: u64,
}

/// Results of a replay, including those that are not figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The figures.
    pub report: Report,
    /// The first pages that did not verify, described.
    pub mismatches: Vec<String>,
    /// Tenants whose traces had bad records, which were skipped.
    pub skipped: Vec<(String, Skipped)>,
    /// Pages laid out in all tenants' files. Requests touch all of them without readahead; with it,
    /// some may only have been read ahead.
    pub laid_out_pages: u64,
    /// Distribution of the latencies of hits.
    pub hit_latencies: LatencyCurve,
    /// Distribution of the latencies of misses.
    pub miss_latencies: LatencyCurve,
    /// Records of the first 100 selections of a victim.
    pub victims: Vec<VictimRecord>,
    /// The run over time, if it was [observed](super::Replay::observed).
    pub timeline: Option<Timeline>,
}

impl Report {
    /// Returns whether every page verified and nothing leaked.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.verify_failures == 0 && self.leaked_frames == 0 && self.leaked_bytes == 0
    }
}

/// Returns `part / whole`, or 0 if `whole` is 0.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        to_f64(part) / to_f64(whole)
    }
}

/// Returns the peak of this process's real memory (`VmHWM`), in bytes; 0 if the system does not
/// tell.
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
