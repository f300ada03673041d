//! Promise: with one thread and one tenant, a replay hits at least as often as an exact LRU of
//! `capacity / 4096` pages, less 3 points, on every recorded trace at 1 % and 10 % of its footprint
//! if that is 1,000 pages or more.
//!
//! The pool's reserve (watermarks, per-CPU lists) must not use up a small cache. The recorded
//! traces are not part of the project: the tests look for them in the folder that
//! `HIGHWATER_TRACES` names, then in `shared/traces` beside the workspace; without them the tests
//! say so and pass.

#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
#![expect(
    clippy::print_stderr,
    reason = "the promise asks to show both ratios; a skipped test says why"
)]

mod shared_traces;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use highwater::frame::Tunables;
use highwater::lab::reclaim::policy::PolicyKind;
use highwater::units::Pages;
use highwater_lab::control::Control;
use highwater_lab::models::Lru;
use highwater_lab::replay::{DataIo, Replay, ReplayConfig, Report, TenantConfig, TraceInput};
use highwater_lab::trace::{Format, KeyDirectory, ReaderOptions, Target, TraceReader};
use shared_traces::shared_traces;

/// Allowed difference to the hit ratio of the exact LRU.
const SLACK: f64 = 0.03;

/// Smaller caches have no promise.
const PAGES_MIN: usize = 1_000;

/// A recorded trace, with facts that its content does not tell.
struct Recorded {
    file: &'static str,
    format: Option<Format>,
    block_size: Option<u32>,
}

const fn told(file: &'static str) -> Recorded {
    Recorded {
        file,
        format: None,
        block_size: None,
    }
}

const fn named(file: &'static str, format: Format) -> Recorded {
    Recorded {
        format: Some(format),
        ..told(file)
    }
}

/// A block trace, and the quickest key trace that is large enough.
const QUICK: [Recorded; 2] = [
    told("block-io/P3.lis.zst"),
    named("kv-cdn/web07.trace.xz", Format::U32Be),
];

/// All traces that have 10,000 pages or more.
const ALL: [Recorded; 9] = [
    told("block-io/P3.lis.zst"),
    told("block-io/P6.lis.zst"),
    told("block-io/cloudPhysicsIO-w92.vscsi.xz"),
    told("kv-cdn/adaptsize-request.trace.xz"),
    told("kv-cdn/mooncake-synthetic_trace.jsonl.xz"),
    named("kv-cdn/scarab-recs.trace.xz", Format::U64Be),
    named("kv-cdn/web07.trace.xz", Format::U32Be),
    Recorded {
        block_size: Some(4096),
        ..told("oltp-db/OLTP.lis.zst")
    },
    named("oltp-db/orm-busy.trace.xz", Format::U32Be),
];

impl Recorded {
    fn options(&self) -> ReaderOptions {
        ReaderOptions {
            format: self.format,
            block_size: self.block_size,
            ..ReaderOptions::default()
        }
    }

    /// Returns the pages of the trace in order, with keys laid out as in a replay.
    fn pages(&self, folder: &Path) -> Vec<u64> {
        let mut keys = KeyDirectory::new_in(&std::env::temp_dir()).unwrap();
        let mut accesses = Vec::new();
        for request in TraceReader::open(&folder.join(self.file), &self.options()).unwrap() {
            match request.unwrap().target {
                Target::Pages { first, count } => accesses.extend(first..first + count),
                Target::Key { key, pages } => accesses.extend(keys.locate(key, pages).unwrap()),
            }
        }
        accesses
    }

    fn replay(&self, folder: &Path, capacity: Pages) -> Report {
        let tenant = TenantConfig {
            name: "recorded".to_owned(),
            trace: TraceInput::File(folder.join(self.file)),
            options: self.options(),
            max: None,
        };
        let config = ReplayConfig {
            tenants: vec![tenant],
            capacity: capacity.bytes(),
            threads: 1,
            in_flight: 1,
            backend: None,
            policy: PolicyKind::default(),
            tunables: Tunables::default(),
            seed: 1,
            readahead: Pages(0),
            io: DataIo::Buffered,
            dir: std::env::temp_dir(),
        };
        let outcome = Replay::prepare(&config).unwrap().run(&Control::default());
        outcome.unwrap().report
    }
}

/// Returns the hits of an exact LRU.
fn lru_hits(accesses: &[u64], capacity: usize) -> usize {
    let mut lru = Lru::new(capacity);
    accesses.iter().filter(|page| lru.access(**page)).count()
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

/// Compares a trace at 1 % and 10 % of its footprint; returns the ratios that are too low.
fn shortfalls(trace: &Recorded, folder: &Path) -> Vec<String> {
    let accesses = trace.pages(folder);
    let footprint = accesses.iter().collect::<HashSet<_>>().len();
    let mut shortfalls = Vec::new();
    for percent in [1, 10] {
        let capacity = footprint * percent / 100;
        if capacity < PAGES_MIN {
            continue;
        }
        let report = trace.replay(folder, Pages(capacity as u64));
        assert!(report.is_clean(), "{}: {report:?}", trace.file);
        assert_eq!(
            report.page_accesses,
            accesses.len() as u64,
            "{}",
            trace.file
        );
        let floor = ratio(lru_hits(&accesses, capacity), accesses.len());
        let line = format!(
            "{:<42} {percent:>2} % of {footprint:>7} pages: hit ratio {:.4}, exact LRU {floor:.4}, difference {:+.4}",
            trace.file,
            report.hit_ratio,
            report.hit_ratio - floor
        );
        eprintln!("{line}");
        if report.hit_ratio < floor - SLACK {
            shortfalls.push(line);
        }
    }
    shortfalls
}

fn assert_floor(traces: &[Recorded]) {
    let Some(folder) = shared_traces() else {
        return;
    };
    // One thread replays a trace; two threads take traces from one list.
    let left = Mutex::new(traces.iter());
    let next = || left.lock().unwrap().next();
    let replay_all = || {
        let mut low = Vec::new();
        while let Some(trace) = next() {
            low.extend(shortfalls(trace, &folder));
        }
        low
    };
    let low: Vec<String> = thread::scope(|scope| {
        let replayers = [(); 2].map(|()| scope.spawn(replay_all));
        let low = replayers.into_iter().map(|replayer| replayer.join());
        low.flat_map(Result::unwrap).collect()
    });
    assert!(
        low.is_empty(),
        "more than 3 points below an exact LRU:\n{}",
        low.join("\n")
    );
}

// Goal: the floor holds. Method: replay and the LRU model over the same page accesses.
#[test]
fn replay_hits_like_an_exact_lru() {
    assert_floor(&QUICK);
}

// Goal and method as above, on every recorded trace.
#[test]
#[ignore = "minutes; run with --release -- --ignored --nocapture"]
fn replay_hits_like_an_exact_lru_on_every_trace() {
    assert_floor(&ALL);
}
