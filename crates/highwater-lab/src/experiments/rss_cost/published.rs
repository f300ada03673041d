//! Published costs of the two proposals.

use super::{PAGE_FAULTS, WHOLE_BENCHMARKS};
use crate::report::{Row, Source};

/// Name, upstream, hierarchical, speedup in percent: pages a second of will-it-scale, on 192 CPUs.
const PAGE_FAULT1: [(&str, u64, u64, f64); 6] = [
    ("page_fault1_processes -s 100 -t 1", 614_783, 615_558, 0.1),
    ("page_fault1_threads -s 100 -t 1", 612_788, 612_447, -0.1),
    (
        "page_fault1_processes -s 100 -t 96",
        37_994_977,
        37_932_035,
        -0.2,
    ),
    (
        "page_fault1_threads -s 100 -t 96",
        2_484_130,
        2_504_860,
        0.8,
    ),
    (
        "page_fault1_processes -s 100 -t 192",
        71_262_917,
        71_118_830,
        -0.2,
    ),
    (
        "page_fault1_threads -s 100 -t 192",
        2_446_437,
        2_469_296,
        0.1,
    ),
];

/// Name, seconds before and after: whole runs, of the per-task and the active-space cache.
const RUNS: [(&str, f64, f64); 4] = [
    (
        "hackbench (32 process, 100 test run), 8 cores",
        125.317,
        123.482,
    ),
    (
        "Linux kernel build (tineyconfig, 20 test run), 8 cores",
        20.9947,
        20.9955,
    ),
    (
        "hackbench (32 process, 100 test run), 2 x 48 cores",
        48.774,
        48.540,
    ),
    (
        "Linux kernel build (defconfig, 20 test run), 2 x 48 cores",
        42.7050,
        42.7121,
    ),
];

pub(super) fn rows() -> Vec<Row> {
    let faults = PAGE_FAULT1.map(|(name, upstream, hierarchical, speedup)| {
        Row::new(PAGE_FAULTS, Source::Thread, name)
            .with("upstream_per_s", upstream)
            .with("hierarchical_per_s", hierarchical)
            .with("hierarchical_speedup_percent", speedup)
    });
    let pgbench = |name, before: (u64, f64), after: (u64, f64)| {
        Row::new(WHOLE_BENCHMARKS, Source::Thread, name)
            .with("before_per_s", before.0)
            .with("after_per_s", after.0)
            .with("before_latency_us", before.1)
            .with("after_latency_us", after.1)
    };
    let runs = RUNS.map(|(name, before, after)| {
        Row::new(WHOLE_BENCHMARKS, Source::Thread, name)
            .with("before_s", before)
            .with("after_s", after)
    });
    let [hackbench_8, build_8, hackbench_96, build_96] = runs;
    let benchmarks = [
        pgbench(
            "pts/pgbench (100 clients, 12 test run), 8 cores",
            (16_073, 6_241.0),
            (16_829, 5_962.0),
        ),
        hackbench_8,
        build_8,
        pgbench(
            "pts/pgbench (100 Clients, 24 test run), 2 x 48 cores",
            (22_556, 4_458.0),
            (23_025, 4_347.0),
        ),
        hackbench_96,
        build_96,
    ];
    faults.into_iter().chain(benchmarks).collect()
}
