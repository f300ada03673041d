//! Promise: curves take at most 1 MiB of memory beside the trace reader's, for traces of any
//! length. A binary of its own, because every allocation of the process is counted.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot set itself up has failed"
)]

use std::fmt::Write as _;
use std::path::Path;

use fastrand::Rng;
use highwater_lab::control::Control;
use highwater_lab::curve::{
    CurveConfig, Mode, NR_SIZES, NR_SIZES_MAX, POLICIES, SAMPLES_MAX, Sizes, run,
};
use highwater_lab::replay::{TenantConfig, TraceInput};
use highwater_lab::trace::{Format, ReaderOptions, TraceReader};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MEMORY_MAX: usize = 1 << 20;

/// Returns the bytes that were allocated at once, at most, while `work` ran.
fn peak_bytes(work: impl FnOnce()) -> usize {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    work();
    ALLOCATOR.peak_usage().saturating_sub(before)
}

fn options() -> ReaderOptions {
    ReaderOptions {
        format: Some(Format::Lirs),
        ..ReaderOptions::default()
    }
}

fn config(path: &Path, nr_sizes: usize) -> CurveConfig {
    let tenant = TenantConfig {
        name: "made".to_owned(),
        trace: TraceInput::File(path.to_owned()),
        options: options(),
        max: None,
    };
    CurveConfig {
        tenants: vec![tenant],
        policies: POLICIES.map(|(policy, _)| policy).to_vec(),
        sizes: Sizes::Ladder(nr_sizes),
        mode: Mode::Sampled,
        total: None,
        seed: 1,
        dir: path.parent().unwrap().to_owned(),
    }
}

/// Goal: all policies together stay below the limit, whether or not the sample is full. Method:
/// traces of random pages, counted beside a reader that throws its records away.
#[test]
fn curves_take_at_most_a_mebibyte() {
    let folder = tempfile::tempdir().unwrap();
    for (footprint, accesses, nr_sizes) in [
        (SAMPLES_MAX as u64, 30_000, NR_SIZES),
        (60_000, 200_000, NR_SIZES),
        (60_000, 200_000, NR_SIZES_MAX),
    ] {
        let mut rng = Rng::with_seed(footprint);
        let mut text = String::new();
        for _ in 0..accesses {
            let page = rng.u64(..footprint).min(rng.u64(..footprint));
            writeln!(text, "{page}").unwrap();
        }
        let path = folder.path().join("trace");
        std::fs::write(&path, text).unwrap();
        let read = peak_bytes(|| {
            let reader = TraceReader::open(&path, &options()).unwrap();
            assert_eq!(reader.count(), accesses);
        });
        let config = config(&path, nr_sizes);
        let both = peak_bytes(|| {
            let report = run(&config, &Control::default()).unwrap();
            assert_eq!(report.tenants[0].curves.len(), POLICIES.len());
        });
        let curves = both - read;
        println!("{footprint} pages, {nr_sizes} sizes: {curves} bytes, {read} of the reader");
        assert!(curves > SAMPLES_MAX * 8, "something was counted");
        assert!(
            curves <= MEMORY_MAX,
            "{footprint} pages, {nr_sizes} sizes: {curves} bytes"
        );
    }
}
