//! Published figures of this experiment.

use super::{FEW, MANY};
use crate::report::{Row, Source};

/// On a guest of 256 CPUs (EPYC 9654, KVM), with one `tail -f /dev/zero`; whole invocations of the
/// OOM killer. The names are the published ones: the sums of approach 4 of its list, and what it
/// prepares.
pub(super) fn rows() -> Vec<Row> {
    let times = [
        (FEW, "precise per-cpu counter sum, 40 processes", 500.0),
        (FEW, "2-pass OOM killer task selection, 40 processes", 300.0),
        (
            MANY,
            "precise per-cpu counter sum, 10,000 processes",
            80_000.0,
        ),
        (
            MANY,
            "2-pass OOM killer task selection, 10,000 processes",
            7_900.0,
        ),
    ];
    let row = |(part, name, us): (&'static str, &str, f64)| {
        Row::new(part, Source::Thread, name).with("median_us", us)
    };
    times.into_iter().map(row).collect()
}
