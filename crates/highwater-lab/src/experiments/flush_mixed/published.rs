//! Published run times of the patch.

use super::TIMES;
use crate::report::{Row, Source};

pub(super) fn rows() -> Vec<Row> {
    let times = |name, against_before: [f64; 2]| {
        Row::new(TIMES, Source::Thread, name).with("against_before_ratio", against_before.to_vec())
    };
    vec![
        times("5,000 workers, 1,000 readers: the patch", [1.0, 1.0]),
        times("no threshold, all flushers at the lock", [2.0, 3.0]),
        Row::new(
            TIMES,
            Source::Thread,
            "250 workers, 251 readers, 256 CPUs: before",
        )
        .with("whole_run_s", vec![22.5, 22.7]),
        Row::new(
            TIMES,
            Source::Thread,
            "250 workers, 251 readers, 256 CPUs: an earlier patch",
        )
        .with("whole_run_s", vec![22.3, 24.1]),
    ]
}
