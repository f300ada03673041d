//! Published figures of this experiment, and measurements of real kernels.
//!
//! The kernels ran under emulation, with the number of CPUs given; their exact sum is that of
//! `smaps_rollup`, 1,323,720 KB while all threads live. Kernels up to 6.1 have the per-task cache
//! and show it in `VmRSS`; later ones have the flat per-CPU counter, whose approximate reading is
//! field 24 of `/proc/PID/stat`.

use super::{ALIVE, ENDED};
use crate::report::{Row, Source};

const KB: i64 = 1024;

/// Memory of the program, as the published series counts it.
const TRUTH_KB: i64 = 1_498_856;

/// The same in the kernels' runs.
const KERNEL_TRUTH_KB: i64 = 1_323_720;

/// Kernels that show 43,468 KB while all threads sleep, and no error after all have ended.
const PER_TASK: [&str; 3] = [
    "5.10.262 (per-task cache), 64 CPUs",
    "6.1.176 (per-task cache), 2 CPUs",
    "6.1.176 (per-task cache), 64 CPUs",
];
const PER_TASK_SHOWN_KB: i64 = 43_468;

/// Kernel, error in KB while all threads sleep, and after all have ended.
const FLAT: [(&str, i64, i64); 5] = [
    ("6.12.107, 64 CPUs", -10_944, 12_248),
    ("6.12.107, 128 CPUs", -62_152, 57_172),
    ("6.18.15, 64 CPUs", -15_044, 9_432),
    ("7.2.13, 64 CPUs", -12_488, 12_500),
    ("7.3-rc7, 64 CPUs", -14_020, 10_316),
];

pub(super) fn rows() -> Vec<Row> {
    let shown = |source, name, shown: i64, truth: i64| {
        Row::new(ALIVE, source, name)
            .with("shown_bytes", shown * KB)
            .with("truth_bytes", truth * KB)
            .with("shown_percent", percent(shown, truth))
            .with("error_bytes", (shown - truth) * KB)
    };
    let ps = |name, kb| shown(Source::Thread, name, kb, TRUTH_KB);
    let mut rows = vec![
        ps("ps: RSS, per-task RSS cache", 43_888),
        ps("ps: RSS, per-CPU RSS cache", TRUTH_KB),
    ];
    rows.extend(
        PER_TASK.map(|name| shown(Source::Kernel, name, PER_TASK_SHOWN_KB, KERNEL_TRUTH_KB)),
    );
    rows.extend(FLAT.map(|(kernel, error, _)| {
        Row::new(ALIVE, Source::Kernel, kernel)
            .with(
                "shown_percent",
                percent(KERNEL_TRUTH_KB + error, KERNEL_TRUTH_KB),
            )
            .with("error_bytes", error * KB)
    }));
    let ended =
        |name, error: i64| Row::new(ENDED, Source::Kernel, name).with("error_bytes", error * KB);
    rows.extend(PER_TASK.map(|name| ended(name, 0)));
    rows.extend(FLAT.map(|(name, _, error)| ended(name, error)));
    rows
}

#[expect(clippy::cast_precision_loss, reason = "a few million")]
fn percent(part: i64, whole: i64) -> f64 {
    100.0 * part as f64 / whole as f64
}
