//! Published figures of this experiment, and measurements of real kernels.
//!
//! The kernels ran under emulation, with the number of CPUs given; their exact sum is that of
//! `smaps_rollup`. Kernels up to 6.1 have the per-task cache, later ones the flat per-CPU counter,
//! whose approximate reading is field 24 of `/proc/PID/stat`. None has the proposed tree.

use highwater::units::PAGE_BYTES;

use super::{HOP, PHASES, SMALL, WORST};
use crate::report::{Row, Source};

const MIB: i64 = 1 << 20;

/// Kernel, CPUs, peak and root mean square of the error in pages, most pages resident: one thread,
/// 2,000 maps and unmaps of up to 64 pages, sampled 200 times.
const SMALL_HOPS: [(&str, i64, i64, i64); 9] = [
    ("6.1 (per-task cache), 64 CPUs", 65, 28, 1_689),
    ("6.1 (per-task cache), 128 CPUs", 65, 28, 1_689),
    ("6.12, 64 CPUs", 1_293, 894, 1_688),
    ("6.12, 128 CPUs", 1_689, 1_179, 1_689),
    ("6.12, 255 CPUs", 1_689, 1_182, 1_689),
    ("6.12, 384 CPUs", 1_688, 1_181, 1_688),
    ("7.2.13, 64 CPUs", 1_295, 868, 1_690),
    ("7.2.13, 128 CPUs", 1_689, 1_179, 1_690),
    ("7.3-rc7, 64 CPUs", 1_295, 864, 1_690),
];

/// Kernel, CPUs, error and exact sum in pages: 24 pages less than a batch touched on each CPU.
const FILLS: [(&str, i64, i64); 4] = [
    ("6.12, 64 CPUs", 3_788, 6_863),
    ("6.12, 128 CPUs", 15_422, 29_904),
    ("6.12, 255 CPUs", 69_083, 124_138),
    ("6.12, 384 CPUs", 180_736, 285_903),
];

pub(super) fn rows() -> Vec<Row> {
    let page = PAGE_BYTES.cast_signed();
    let mut rows = vec![
        Row::new(HOP, Source::Thread, "upstream").with("error_peak_bytes", 1024 * MIB),
        Row::new(HOP, Source::Thread, "hierarchical").with("error_peak_bytes", 80 * MIB),
        Row::new(PHASES, Source::Thread, "hierarchical").with("promised_under_bytes", 192 * MIB),
    ];
    rows.extend(SMALL_HOPS.map(|(kernel, peak, rms, resident)| {
        Row::new(SMALL, Source::Kernel, kernel)
            .with("error_peak_bytes", peak * page)
            .with("error_rms_bytes", rms * page)
            .with("resident_peak_bytes", resident * page)
    }));
    rows.extend(FILLS.map(|(kernel, error, resident)| {
        Row::new(WORST, Source::Kernel, kernel)
            .with("reached_under_bytes", error * page)
            .with("resident_bytes", resident * page)
    }));
    rows
}
