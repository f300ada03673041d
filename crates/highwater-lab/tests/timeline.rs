//! Promise: a replay that is observed over time counts the same, and its timeline is as bounded
//! and ordered as `replay::Timeline` says.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use highwater::frame::Tunables;
use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::{Bytes, Pages};
use highwater_lab::control::Control;
use highwater_lab::replay::{DataIo, Outcome, Replay, ReplayConfig, TenantConfig, TraceInput};
use highwater_lab::trace::{Format, ReaderOptions};

/// Writes a trace of single blocks: a loop over 3,000 pages beside a hot set of 200.
fn trace(dir: &Path) -> PathBuf {
    let mut text = String::new();
    for step in 0..60_000_u64 {
        let page = match step % 3 {
            0 => step * 7 % 200,
            _ => 200 + step % 3000,
        };
        writeln!(text, "{} 8 0 {step}", page * 8).unwrap();
    }
    let path = dir.join("loop.lis");
    std::fs::write(&path, text).unwrap();
    path
}

fn run(dir: &Path, prepared: fn(Replay) -> Replay) -> Outcome {
    let tenant = |name: &str, max| TenantConfig {
        name: name.to_owned(),
        trace: TraceInput::File(dir.join("loop.lis")),
        options: ReaderOptions {
            format: Some(Format::Arc),
            ..ReaderOptions::default()
        },
        max,
    };
    let config = ReplayConfig {
        tenants: vec![tenant("a", Some(Bytes::mib(4))), tenant("b", None)],
        capacity: Bytes::mib(12),
        threads: 1,
        in_flight: 1,
        backend: None,
        policy: PolicyKind::default(),
        tunables: Tunables::default(),
        readahead: Pages(0),
        io: DataIo::Buffered,
        seed: 3,
        dir: dir.to_owned(),
    };
    let replay = prepared(Replay::prepare(&config).unwrap());
    replay.run(&Control::default()).unwrap()
}

/// Goal: the header's promise. Method: the same run twice; all counts of the report are compared,
/// and every list of the timeline.
#[test]
fn sampling_changes_no_count() {
    let dir = tempfile::tempdir().unwrap();
    trace(dir.path());
    let plain = run(dir.path(), |replay| replay);
    let observed = run(dir.path(), Replay::observed);
    assert_eq!(plain.timeline, None);
    let timeline = observed.timeline.unwrap();
    let counts = |outcome: &highwater_lab::replay::Report| {
        let of_tenants =
            |t: &highwater_lab::replay::TenantReport| (t.hits, t.peak_bytes, t.max_events);
        (
            [
                outcome.hits,
                outcome.misses,
                outcome.refaults,
                outcome.pgscan,
                outcome.pgsteal,
            ],
            outcome.tenants.iter().map(of_tenants).collect::<Vec<_>>(),
        )
    };
    assert_eq!(counts(&plain.report), counts(&observed.report));

    let points = timeline.at_us.len();
    assert!((2..=256).contains(&points), "{points} points");
    let report = &observed.report;
    for (counter, total, is_whole) in [
        (&timeline.page_accesses, report.page_accesses, true),
        (&timeline.refaults, report.refaults, true),
        (&timeline.pgscan, report.pgscan, false),
        (&timeline.pgsteal, report.pgsteal, false),
    ] {
        assert_eq!(counter.len(), points);
        assert!(counter.is_sorted());
        let last = *counter.last().unwrap();
        // Reclaim at a tenant's own maximum is not in the report's counters.
        assert!(last == total || (!is_whole && last > total));
        assert!(total > 0);
    }
    assert!(timeline.at_us.is_sorted() && timeline.stalled_us.is_sorted());
    assert_eq!(timeline.tenants.len(), 2);
    for (tenant, of_report) in timeline.tenants.iter().zip(&report.tenants) {
        assert_eq!(tenant.name, of_report.name);
        assert_eq!(tenant.usage_bytes.last(), Some(&of_report.usage_bytes));
        let bounds = tenant.usage_low_bytes.iter().zip(&tenant.usage_high_bytes);
        for (usage, (low, high)) in tenant.usage_bytes.iter().zip(bounds) {
            assert!(low <= usage && usage <= high);
        }
    }
    for curve in [&observed.hit_latencies, &observed.miss_latencies] {
        assert_eq!(curve.at_most_us.len(), curve.accesses.len());
    }
    assert_eq!(observed.hit_latencies.accesses.last(), Some(&report.hits));
    assert_eq!(
        observed.miss_latencies.accesses.last(),
        Some(&report.misses)
    );
}
