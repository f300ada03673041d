//! Published histograms: times of calls that drained a list, and of the follow-up's calls that
//! refilled one.

use std::ops::RangeInclusive;

use super::{DRAINED, DRAINS, REFILLS};
use crate::experiments::buckets::{BUCKETS, Buckets};
use crate::report::text::to_f64;
use crate::report::{Figures, Row, Source};

/// Calls by bucket from 128 ns, of the four published histograms.
const A_DEFAULT: [u64; 20] = [
    0, 148, 334, 33, 5, 7, 12, 30, 21, 15, 27, 84, 203, 284, 327, 215, 116, 47, 8, 3,
];
const B_FRACTION: [u64; 15] = [
    120, 365, 201, 103, 84, 87, 4777, 10_572, 13_544, 12_723, 8604, 3659, 921, 122, 5,
];
const C_AUTO: [u64; 18] = [
    0, 0, 0, 2, 11, 3, 1, 2, 7, 198, 530, 824, 852, 714, 389, 143, 29, 1,
];
const D_SCALE_0: [u64; 14] = [
    0, 0, 0, 36, 5063, 31_226, 37_606, 38_359, 30_652, 18_714, 7968, 1996, 302, 19,
];

/// Calls by bucket from 512 ns of the second version, which timed refills with a scale of 5.
const V2_SCALE_5: [u64; 17] = [
    12, 9116, 2004, 2497, 2127, 2483, 10_102, 212_730, 314_692, 430_058, 224_032, 73_567, 17_079,
    3900, 750, 88, 2,
];
/// The same with a scale of 0. The stored copy ends here.
const V2_SCALE_0: [u64; 5] = [92, 8594, 2_042_818, 8_737_624, 13_147_872];

/// A published histogram: its column, its name, the most frames that one of its calls moved.
struct Published {
    column: &'static str,
    name: &'static str,
    frames: u64,
    buckets: Buckets,
}

fn drains() -> [Published; 4] {
    let of = |column, name, frames, counts: &[u64]| Published {
        column,
        name,
        frames,
        buckets: Buckets::published(128, counts),
    };
    [
        of("a_visits", "A: 6.1.y as it comes", 6329, &A_DEFAULT),
        of("b_visits", "B: fraction 0x7fffffff", 189, &B_FRACTION),
        of("c_visits", "C: auto-tuning, scale 5", 2016, &C_AUTO),
        of("d_visits", "D: auto-tuning, scale 0", 63, &D_SCALE_0),
    ]
}

/// Returns the rows of the second version; figures that are not stored are in none.
fn refill_rows() -> Vec<Row> {
    let [five, zero] =
        [&V2_SCALE_5[..], &V2_SCALE_0[..]].map(|counts| Buckets::published(512, counts));
    let rows = bucket_rows(REFILLS, Source::Thread, &[("v2_scale_5_visits", &five)]);
    let known = Buckets::index(512) + V2_SCALE_0.len();
    let with_zero = |(row, index): (Row, usize)| match index < known {
        true => row.with("v2_scale_0_visits", zero.count(index)),
        false => row,
    };
    rows.into_iter().zip(SHOWN).map(with_zero).collect()
}

pub(super) fn rows() -> Vec<Row> {
    let drains = drains();
    let columns =
        |part, columns: &[(&'static str, &Buckets)]| bucket_rows(part, Source::Thread, columns);
    let drain_columns: Vec<_> = drains
        .iter()
        .map(|histogram| (histogram.column, &histogram.buckets))
        .collect();
    let summaries = drains.iter().map(|histogram| {
        quantiles(
            Row::new(DRAINED, Source::Thread, histogram.name),
            &histogram.buckets,
        )
        .with("frames_a_hold_max", histogram.frames)
    });
    columns(DRAINS, &drain_columns)
        .into_iter()
        .chain(summaries)
        .chain(refill_rows())
        .collect()
}

/// Buckets of the tables, from 128 ns; shorter and longer times are in the first and the last one.
const SHOWN: RangeInclusive<usize> = 7..=28;

/// Returns a row for each bucket of [`SHOWN`], by name, with the number of visits of each column.
pub(super) fn bucket_rows(
    part: &'static str,
    source: Source,
    columns: &[(&'static str, &Buckets)],
) -> Vec<Row> {
    let (first, last) = (*SHOWN.start(), *SHOWN.end());
    let row = |shown: usize| {
        let (mut from, mut until, mut name) = (shown, shown, Buckets::name(shown));
        if shown == first {
            (from, name) = (0, format!("up to {} ns", Buckets::bounds(first).1));
        }
        if shown == last {
            (until, name) = (BUCKETS - 1, format!("from {} ns", Buckets::bounds(last).0));
        }
        let mut row = Row::new(part, source, name);
        for (column, buckets) in columns {
            let calls = (from..=until).map(|index| buckets.count(index));
            row = row.with(column, calls.sum::<u64>());
        }
        row
    };
    SHOWN.map(row).collect()
}

/// Returns `row` with the number of visits and their quantiles.
pub(super) fn quantiles(row: Row, buckets: &Buckets) -> Row {
    let visits = to_f64(buckets.calls());
    row.with("visits", buckets.calls())
        .with("in_all_s", buckets.sum_s())
        .with("mean_us", buckets.sum_s() * 1e6 / visits)
        .with("p50_us", buckets.quantile_us(0.5))
        .with("p99_us", buckets.quantile_us(0.99))
        .with("p999_us", buckets.quantile_us(0.999))
}

/// Adds the known facts of the published machine and load.
pub(super) fn setting(config: Figures) -> Figures {
    config.with(
        "note_thread",
        "The published machine: 256 CPUs, 1 TB, one node, Linux 6.1; 18 processes of 6 GiB exit at once, high 6,392, batch 63. \
         Its follow-up (v2): 10 copies of a loop that maps 6 GiB, fills and unmaps it, for 600 s.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the histograms are the published ones. Method: the total of calls and sums of times
    /// that were derived from the discussion.
    #[test]
    fn histograms_are_the_threads() {
        let calls = drains().map(|histogram| histogram.buckets.calls());
        assert_eq!(calls, [1919, 55_887, 3706, 171_941]);
        let sums = drains().map(|histogram| histogram.buckets.sum_s());
        for (sum, wanted) in sums.into_iter().zip([6.4, 6.3, 4.8, 7.6]) {
            assert!((sum - wanted).abs() < 0.1, "{sum} for {wanted}");
        }
        let v2 = Buckets::published(512, &V2_SCALE_5);
        assert_eq!(v2.calls(), 1_305_239);
        let sum = v2.sum_s();
        // 587 s were published; buckets leave 10 % of play.
        assert!((sum - 587.0).abs() < 59.0, "{sum} s");
    }

    /// Goal: an unknown figure is not 0. Method: the second version's buckets with a scale of 0.
    #[test]
    fn what_is_not_stored_is_not_shown() {
        let rows = refill_rows();
        let mut shown = rows
            .iter()
            .filter(|row| row.figures.get("v2_scale_0_visits").is_some());
        assert_eq!(shown.next_back().unwrap().variant, "8192 -> 16383 ns");
    }

    /// Goal: no call is left out of the table. Method: calls in buckets at its ends, and beyond.
    #[test]
    fn every_call_is_in_a_row() {
        let times = [1, 130, 300, 1 << 28, 1 << 35];
        let buckets = Buckets::of(times.into_iter().map(|ns| (ns, 1)));
        let rows = bucket_rows(DRAINS, Source::Run, &[("ours_visits", &buckets)]);
        let calls = |row: &Row| row.figures.get("ours_visits").cloned();
        assert_eq!(rows.len(), SHOWN.count());
        assert_eq!(rows[0].variant, "up to 255 ns");
        assert_eq!(calls(&rows[0]), Some(2_u64.into()));
        assert_eq!(
            (rows[1].variant.as_str(), calls(&rows[1])),
            ("256 -> 511 ns", Some(1_u64.into()))
        );
        let last = rows.last().unwrap();
        assert_eq!(last.variant, "from 268435456 ns");
        assert_eq!(calls(last), Some(2_u64.into()));
    }
}
