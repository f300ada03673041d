//! Published figures of the series that introduced auto-tuned lists (6.7).

use super::{HOLDS, ZONE};
use crate::report::{Row, Source};

/// Name, time or score, lock contention in per cent, `free_high`, `alloc_zone`: kernel builds, 224
/// CPUs, base = 100.
const KBUILD: [(&str, f64, f64, f64, f64); 6] = [
    ("base", 100.0, 14.0, 100.0, 100.0),
    ("p1", 99.5, 12.8, 19.5, 95.6),
    ("p3", 99.4, 12.6, 7.1, 95.6),
    ("p5", 98.6, 11.0, 8.1, 97.1),
    ("p7", 95.1, 0.5, 2.8, 15.6),
    ("p9", 95.0, 1.0, 8.8, 20.0),
];

/// Name, score, lock contention, `free_high`, `alloc_zone`, cache misses: flows from one CPU to
/// another.
type Flow = [(&'static str, f64, f64, f64, f64, f64); 6];
const NETPERF: Flow = [
    ("base", 100.0, 2.1, 100.0, 100.0, 1.3),
    ("p1", 99.4, 2.1, 99.4, 99.4, 1.3),
    ("p3", 106.4, 1.3, 13.3, 106.3, 1.3),
    ("p5", 106.0, 1.2, 13.2, 105.9, 1.3),
    ("p7", 103.4, 1.9, 6.7, 90.3, 7.6),
    ("p9", 108.6, 1.3, 13.7, 108.6, 1.3),
];
const LMBENCH: Flow = [
    ("base", 100.0, 51.4, 100.0, 100.0, 0.2),
    ("p1", 116.8, 46.1, 69.5, 104.3, 0.2),
    ("p3", 199.1, 21.3, 7.0, 104.9, 0.2),
    ("p5", 200.0, 20.8, 7.1, 106.9, 0.3),
    ("p7", 191.6, 19.9, 6.8, 103.8, 2.8),
    ("p9", 193.4, 21.7, 7.0, 104.7, 2.1),
];

/// Batch, pages a second, mean and p99 of a free's and of an allocation's hold in microseconds:
/// Sapphire Rapids, Ice Lake, Cascade Lake.
type Held = [(u64, f64, [f64; 4]); 6];
const SPR: Held = [
    (63, 513_633.0, [2.33, 3.57, 2.67, 6.83]),
    (127, 517_617.0, [4.35, 6.65, 4.22, 13.03]),
    (255, 520_823.0, [8.29, 13.32, 7.52, 25.24]),
    (511, 524_122.0, [15.79, 23.42, 14.02, 49.35]),
    (1023, 525_981.0, [30.25, 44.19, 25.36, 94.88]),
    (2047, 526_794.0, [59.39, 84.50, 45.22, 140.81]),
];
const ICX: Held = [
    (63, 620_210.0, [2.21, 3.68, 2.02, 4.35]),
    (127, 627_003.0, [4.09, 6.86, 3.51, 8.28]),
    (255, 630_778.0, [7.70, 13.50, 6.17, 15.97]),
    (511, 633_652.0, [14.85, 22.62, 11.66, 31.08]),
    (1023, 637_071.0, [28.55, 42.02, 20.81, 54.36]),
    (2047, 638_090.0, [56.54, 84.06, 39.28, 91.68]),
];
const CLX: Held = [
    (63, 404_707.0, [3.29, 5.03, 3.53, 4.75]),
    (127, 422_475.0, [6.12, 9.09, 6.36, 8.76]),
    (255, 411_522.0, [11.68, 16.97, 10.90, 16.39]),
    (511, 428_124.0, [22.54, 31.28, 19.86, 32.25]),
    (1023, 414_718.0, [43.39, 62.52, 40.00, 66.33]),
    (2047, 429_849.0, [86.64, 120.34, 71.14, 106.08]),
];

pub(super) fn rows() -> Vec<Row> {
    let kbuild = KBUILD.map(|(name, time, contended, free_high, alloc_zone)| {
        Row::new(ZONE, Source::Thread, format!("kernel build, {name}"))
            .with("alloc_zone_percent", alloc_zone)
            .with("free_high_percent", free_high)
            .with("contended_percent", contended)
            .with("build_time_percent", time)
    });
    let flow = |load: &str, flow: Flow| {
        flow.map(|(name, score, contended, free_high, alloc_zone, misses)| {
            Row::new(ZONE, Source::Thread, format!("{load}, {name}"))
                .with("alloc_zone_percent", alloc_zone)
                .with("free_high_percent", free_high)
                .with("contended_percent", contended)
                .with("score_percent", score)
                .with("cache_miss_percent", misses)
        })
    };
    let held = |machine: &str, held: Held| {
        held.map(|(batch, pages, [free, free_p99, alloc, alloc_p99])| {
            Row::new(HOLDS, Source::Thread, format!("{machine}, batch {batch}"))
                .with("frames_per_s", pages)
                .with("free_mean_us", free)
                .with("free_p99_us", free_p99)
                .with("alloc_mean_us", alloc)
                .with("alloc_p99_us", alloc_p99)
        })
    };
    let flows = [
        flow("netperf SCTP_STREAM_MANY", NETPERF),
        flow("lmbench3 AF_UNIX", LMBENCH),
    ];
    let holds = [
        held("Sapphire Rapids", SPR),
        held("Ice Lake", ICX),
        held("Cascade Lake", CLX),
    ];
    kbuild
        .into_iter()
        .chain(flows.into_iter().flatten())
        .chain(holds.into_iter().flatten())
        .collect()
}
