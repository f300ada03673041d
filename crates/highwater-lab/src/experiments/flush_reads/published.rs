//! Published read latencies of a storm, and read times measured on a kernel.

use super::{KERNEL, READS};
use crate::report::{Row, Source};

/// Name, then percentages: within 50 us, to 1 ms, to 100 ms, longer.
const FINAL: (&str, [f64; 4]) = (
    "250,000 readers, 50,000 groups: the patch (at least / at most)",
    [99.9, 0.1, 0.01, 0.0],
);

/// Name, and CPU time of a read in microseconds: p50, p99, p99.9, maximum.
const KERNELS: [(&str, [f64; 4]); 2] = [
    (
        "Linux 6.18, 20,000 groups, idle, 1,000 readers",
        [9.2, 29.0, 60.0, 3634.0],
    ),
    (
        "Linux 6.18, 20,000 groups, 200 workers, 1,000 readers",
        [9.2, 33.0, 96.0, 197.0],
    ),
];

pub(super) fn rows() -> Vec<Row> {
    let (name, [short, middle, long, longer]) = FINAL;
    let storm = Row::new(READS, Source::Thread, name)
        .with("within_50_us_percent", short)
        .with("within_1_ms_percent", middle)
        .with("within_100_ms_percent", long)
        .with("longer_percent", longer);
    let kernels = KERNELS.map(|(name, [p50, p99, p999, most])| {
        Row::new(KERNEL, Source::Kernel, name)
            .with("p50_us", p50)
            .with("p99_us", p99)
            .with("p999_us", p999)
            .with("most_us", most)
    });
    std::iter::once(storm).chain(kernels).collect()
}
