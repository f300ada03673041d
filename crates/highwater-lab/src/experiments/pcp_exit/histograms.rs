//! Times of visits by bucket, ours and published ones: of calls that drained a list, and of the
//! follow-up's calls that refilled one.

use std::ops::RangeInclusive;

use crate::experiments::buckets::{BUCKETS, Buckets};
use crate::experiments::published::{self, Histogram};
use crate::report::text::to_f64;
use crate::report::{Figures, Row, Source};

pub(super) const DRAINED: &str = "visits that drained a list, waits and holds together";
pub(super) const DRAINS: &str = "visits that drained a list, by time";
pub(super) const REFILLS: &str = "visits that refilled a list while tenants filled, by time";

const PUBLISHED_FIGURES: &str = include_str!("../../../published/pcp-exit.json");

/// Buckets of the tables, from 128 ns; shorter and longer times are in the first and the last one.
const SHOWN: RangeInclusive<usize> = 7..=28;

/// A column of a table by bucket.
pub(super) struct Column {
    name: &'static str,
    buckets: Buckets,
    /// The first bucket with an unknown number of visits.
    unknown: usize,
}

impl Column {
    pub(super) fn new(name: &'static str, buckets: Buckets) -> Self {
        Self {
            name,
            buckets,
            unknown: BUCKETS,
        }
    }

    fn of(published: &Histogram<'static>) -> Self {
        let column = Self::new(published.column, buckets(published));
        match published.is_cut_off {
            true => Self {
                unknown: Buckets::index(published.first_ns) + published.visits.len(),
                ..column
            },
            false => column,
        }
    }
}

fn buckets(published: &Histogram<'_>) -> Buckets {
    Buckets::published(published.first_ns, &published.visits)
}

/// Returns the published histograms of one table by bucket.
fn published_in(part: &str) -> Vec<Histogram<'static>> {
    let mut all = published::histograms(PUBLISHED_FIGURES);
    all.retain(|histogram| histogram.part == part);
    all
}

/// Returns the rows of all published histograms.
pub(super) fn published_rows() -> Vec<Row> {
    let by_bucket = |part| {
        let columns: Vec<Column> = published_in(part).iter().map(Column::of).collect();
        bucket_rows(part, Source::Thread, &columns)
    };
    let summary = |histogram: &Histogram<'_>| {
        let row = Row::new(DRAINED, Source::Thread, histogram.variant);
        let row = quantiles(row, &buckets(histogram));
        match histogram.frames_max {
            Some(frames) => row.with("frames_a_hold_max", frames),
            None => row,
        }
    };
    let summaries = published_in(DRAINS).iter().map(summary).collect();
    [by_bucket(DRAINS), summaries, by_bucket(REFILLS)].concat()
}

/// Returns a row for each bucket of [`SHOWN`], by name, with the number of visits of each column.
pub(super) fn bucket_rows(part: &'static str, source: Source, columns: &[Column]) -> Vec<Row> {
    let (first, last) = (*SHOWN.start(), *SHOWN.end());
    let row = |shown: usize| {
        let (mut from, mut until, mut name) = (shown, shown, Buckets::name(shown));
        if shown == first {
            (from, name) = (0, format!("up to {} ns", Buckets::bounds(first).1));
        }
        if shown == last {
            (until, name) = (BUCKETS - 1, format!("from {} ns", Buckets::bounds(last).0));
        }
        let known = columns.iter().filter(|column| shown < column.unknown);
        known.fold(Row::new(part, source, name), |row, column| {
            let calls = (from..=until).map(|index| column.buckets.count(index));
            row.with(column.name, calls.sum::<u64>())
        })
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
        let drains = published_in(DRAINS);
        let calls: Vec<u64> = drains.iter().map(|each| buckets(each).calls()).collect();
        assert_eq!(calls, [1919, 55_887, 3706, 171_941]);
        for (each, wanted) in drains.iter().zip([6.4, 6.3, 4.8, 7.6]) {
            let sum = buckets(each).sum_s();
            assert!((sum - wanted).abs() < 0.1, "{sum} for {wanted}");
        }
        let v2 = buckets(&published_in(REFILLS)[0]);
        assert_eq!(v2.calls(), 1_305_239);
        let sum = v2.sum_s();
        // 587 s were published; buckets leave 10 % of play.
        assert!((sum - 587.0).abs() < 59.0, "{sum} s");
    }

    /// Goal: an unknown figure is not 0. Method: the second version's buckets with a scale of 0.
    #[test]
    fn what_is_not_stored_is_not_shown() {
        let rows = published_rows();
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
        let rows = bucket_rows(DRAINS, Source::Run, &[Column::new("ours_visits", buckets)]);
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
