//! Promise: the program still prints the figures of the README and of `docs/measurements.md` that
//! repeat exactly.
//!
//! Times are not among them: `.ci/bench` measures those.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

mod support;

use std::path::Path;

use highwater_lab::models::Lru;
use highwater_lab::trace::{ReaderOptions, Target, TraceReader};
use serde_json::Value;

use support::{run, text};

/// Pages of the pool that a replay has by default.
const REPLAY_PAGES: usize = (64 << 20) / 4096;

/// Returns the program's output as JSON.
fn json(args: &[&str]) -> Value {
    let output = run(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_str(&text(&output.stdout)).unwrap()
}

/// Formats a ratio in percent, as in the README.
fn percent(ratio: f64) -> String {
    format!("{:.2} %", 100.0 * ratio)
}

fn assert_published(figure: &str) {
    let documents = [
        ("README.md", include_str!("../../../README.md")),
        (
            "measurements.md",
            include_str!("../../highwater/docs/measurements.md"),
        ),
    ];
    for (name, text) in documents {
        assert!(text.contains(figure), "{name} lacks this figure: {figure}");
    }
}

/// Returns the hit ratio of an exact LRU on the trace that ships.
fn lru_hit_ratio() -> f64 {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/pgbench.hwt.zst");
    let (mut lru, mut hits, mut accesses) = (Lru::new(REPLAY_PAGES), 0_u32, 0_u32);
    for request in TraceReader::open(&trace, &ReaderOptions::default()).unwrap() {
        let Target::Pages { first, count } = request.unwrap().target else {
            panic!("a trace of pages");
        };
        for page in first..first + count {
            accesses += 1;
            hits += u32::from(lru.access(page));
        }
    }
    f64::from(hits) / f64::from(accesses)
}

// Symptom: the first figure of the README was that of an earlier version. Method: single-threaded
// replays of the default policy and of the one that it is compared with, and the model of an exact
// LRU.
#[test]
fn the_hit_ratios_of_the_shipped_trace_are_those_of_the_readme() {
    let ratios_of = |options: &[&str]| {
        let ratio_of = |policy| {
            let replay = ["replay", "--buffered", "--json", "--policy", policy];
            let report = json(&[&replay[..], options].concat());
            percent(report["hit_ratio"].as_f64().unwrap())
        };
        ["balanced", "s3-fifo"].map(ratio_of).join("; S3-FIFO: ")
    };
    let (default, alone) = (ratios_of(&[]), ratios_of(&["--readahead", "0"]));
    let lru = percent(lru_hit_ratio());
    assert_published(&format!(
        "{default}; without readahead: {alone}; exact LRU of as many pages: {lru}"
    ));
}

// Method: as above, for the errors of counters on a simulated machine.
#[test]
fn the_errors_of_counters_are_those_of_the_readme() {
    let outcome = json(&["lab", "rss-hop", "--judge", "counts", "--json"]);
    let row = |variant: &str| {
        let rows = outcome["rows"].as_array().unwrap();
        let is_it = |row: &&Value| row["variant"] == variant && row["source"] == "run";
        rows.iter().find(is_it).unwrap().clone()
    };
    let mib = |row: &Value, field: &str| row[field].as_f64().unwrap() / f64::from(1 << 20);
    let (ours, kernel) = (row("Highwater"), row("flat per-CPU (upstream)"));
    assert_published(&format!(
        "{:.1} MiB rms; the kernel's counters: {:.0} MiB rms, {:.0} MiB peak",
        mib(&ours, "error_rms_bytes"),
        mib(&kernel, "error_rms_bytes"),
        mib(&kernel, "error_peak_bytes"),
    ));
}
