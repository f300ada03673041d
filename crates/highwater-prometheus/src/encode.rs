//! Metric families and their names: kernel names under the prefix `highwater_`, units at the end.

use std::fmt;
use std::time::Instant;

use highwater::frame::FrameCounts;
use highwater::{Bytes, Counter, CounterKind, Pages, Snapshot};
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::sample::{EVENTS, Own, Row, Scrape, amounts, counters};

/// Labels of one series: names and values.
type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// Writes families one after the other, each with all of its series.
struct Families<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
}

pub(crate) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    scrape: &Scrape,
    begin: Instant,
) -> fmt::Result {
    let mut families = Families { encoder };
    families.usage(&scrape.rows)?;
    families.limits(&scrape.rows)?;
    families.statistics(&scrape.rows)?;
    families.events(&scrape.rows)?;
    families.vmstat(&scrape.snapshot)?;
    families.frames(scrape)?;
    families.stalls(&scrape.snapshot)?;
    let shown = [("named", scrape.nr_named), ("other", scrape.nr_rest)];
    families.gauge(
        "groups",
        "Groups with series of their own, and the topmost others",
        None,
        shown.map(|(shown, groups)| ([("shown", shown)], signed(groups as u64))),
    )?;
    families.gauge(
        "scrape_duration",
        "Time from the begin of this scrape to this line",
        Some(&Unit::Seconds),
        [(NO_LABELS, begin.elapsed().as_secs_f64())],
    )
}

impl Families<'_, '_> {
    fn usage(&mut self, rows: &[Row]) -> fmt::Result {
        type Of = fn(&Row) -> Option<Bytes>;
        let families: [(&str, &str, Of); 7] = [
            (
                "memory_current",
                "Usage of the group and its descendants",
                |row| Some(row.usage.value),
            ),
            (
                "memory_current_low",
                "Lower bound of the usage: the true value is not below it",
                |row| Some(row.usage.low),
            ),
            (
                "memory_current_high",
                "Upper bound of the usage: the true value is not above it",
                |row| Some(row.usage.high),
            ),
            ("memory_peak", "Highest usage so far", |row| {
                row.own.as_ref().map(|own| own.peak.value)
            }),
            (
                "memory_peak_low",
                "Lower bound of the highest usage",
                |row| row.own.as_ref().map(|own| own.peak.low),
            ),
            (
                "memory_peak_high",
                "Upper bound of the highest usage",
                |row| row.own.as_ref().map(|own| own.peak.high),
            ),
            ("memory_debt", "Usage above the maximum", |row| {
                row.own.as_ref().map(|own| own.debt)
            }),
        ];
        families
            .into_iter()
            .try_for_each(|(name, help, of)| self.bytes(name, help, rows, of))
    }

    fn limits(&mut self, rows: &[Row]) -> fmt::Result {
        type Of = fn(&Own) -> Bytes;
        // With the value of a limit that is not set.
        let families: [(&str, &str, Of, Bytes); 4] = [
            (
                "memory_min",
                "Hard protection from reclaim for others; no series where it is not set",
                |own| own.limits.min,
                Bytes::ZERO,
            ),
            (
                "memory_low",
                "Soft protection from reclaim for others; no series where it is not set",
                |own| own.limits.low,
                Bytes::ZERO,
            ),
            (
                "memory_high",
                "Throttling limit; no series where it is not set",
                |own| own.limits.high,
                Bytes::MAX,
            ),
            (
                "memory_max",
                "Hard limit; no series where it is not set",
                |own| own.limits.max,
                Bytes::MAX,
            ),
        ];
        families
            .into_iter()
            .try_for_each(|(name, help, of, unset)| {
                self.bytes(name, help, rows, |row| {
                    row.own.as_ref().map(of).filter(|limit| *limit != unset)
                })
            })
    }

    /// A gauge of bytes for each group that has a value.
    fn bytes(
        &mut self,
        name: &str,
        help: &str,
        rows: &[Row],
        of: impl Fn(&Row) -> Option<Bytes>,
    ) -> fmt::Result {
        let series = rows
            .iter()
            .filter_map(|row| Some((group(row), signed(of(row)?.0))));
        self.gauge(name, help, Some(&Unit::Bytes), series)
    }

    fn statistics(&mut self, rows: &[Row]) -> fmt::Result {
        for (at, item) in amounts().enumerate() {
            let bytes = |pages: i64| pages.saturating_mul(signed(Pages(1).bytes().0));
            self.gauge(
                &format!("memory_{item}"),
                &format!("`{item}` of memory.stat, as of the last flush"),
                Some(&Unit::Bytes),
                rows.iter().map(|row| (group(row), bytes(row.amounts[at]))),
            )?;
        }
        for (at, item) in counters().enumerate() {
            self.counter(
                &format!("memory_{item}"),
                &format!("`{item}` of memory.stat, as of the last flush"),
                None,
                rows.iter().map(|row| (group(row), row.counts[at])),
            )?;
        }
        self.gauge(
            "memory_stat_staleness",
            "Upper bound of the error of each statistic of the group, in pages or events",
            None,
            rows.iter().map(|row| (group(row), signed(row.staleness))),
        )?;
        self.gauge(
            "memory_stat_age",
            "Upper bound of the time since the statistics were exact; 0 if they are",
            Some(&Unit::Seconds),
            rows.iter().map(|row| (group(row), row.age.as_secs_f64())),
        )
    }

    fn events(&mut self, rows: &[Row]) -> fmt::Result {
        let first = counters().count();
        let series = rows.iter().flat_map(|row| {
            let named = (first..).zip(EVENTS);
            named.map(|(at, event)| ([group(row)[0], ("event", event)], row.counts[at]))
        });
        self.counter(
            "memory_events",
            "Limit events of the group and its descendants, as in memory.events",
            None,
            series,
        )?;
        for (at, name, help) in [
            (0, "memory_pressure_some", "Time with a stalled thread"),
            (
                1,
                "memory_pressure_full",
                "Time in which no thread of the group could run",
            ),
        ] {
            let at = first + EVENTS.len() + at;
            self.counter(
                name,
                &format!("{help}, as in memory.pressure; other: sum of its groups"),
                Some(&Unit::Seconds),
                rows.iter()
                    .map(|row| (group(row), row.counts[at] as f64 / 1e6)),
            )?;
        }
        Ok(())
    }

    /// The manager's counters under their names; the split by reclaimer as a label.
    fn vmstat(&mut self, snapshot: &Snapshot) -> fmt::Result {
        for name in ["pgscan", "pgsteal"] {
            let reclaimers = ["kswapd", "direct"];
            let of = |reclaimer| snapshot.counter(&format!("{name}_{reclaimer}"));
            self.counter(
                name,
                &format!("`{name}_kswapd` and `{name}_direct` of the manager, in pages"),
                None,
                reclaimers.map(|by| ([("reclaimer", by)], of(by))),
            )?;
        }
        for counter in &snapshot.vmstat {
            self.vmstat_counter(*counter)?;
        }
        let rounds = snapshot.reclaim_rounds.iter();
        let rounds: Vec<_> = rounds.map(|(at, nr)| (at.to_string(), *nr)).collect();
        let series = rounds.iter().map(|(at, nr)| ([("priority", &**at)], *nr));
        let help = "Rounds of reclaim over the lists, by scan priority";
        self.counter("reclaim_rounds", help, None, series)
    }

    fn vmstat_counter(&mut self, Counter { name, value, kind }: Counter) -> fmt::Result {
        let help = format!("Counter `{name}` of the manager");
        match kind {
            _ if name.ends_with("_kswapd") || name.ends_with("scan_direct") => Ok(()),
            _ if name == "pgsteal_direct" => Ok(()),
            CounterKind::Count if name == "on_reclaim_given" => {
                self.counter(name, &help, Some(&Unit::Bytes), [(NO_LABELS, value)])
            }
            CounterKind::Count => self.counter(name, &help, None, [(NO_LABELS, value)]),
            CounterKind::Gauge if name.ends_with("_pages") || name.ends_with("_reads") => {
                self.gauge(name, &help, None, [(NO_LABELS, signed(value))])
            }
            // All other amounts are pages.
            CounterKind::Gauge => {
                let name = format!("{name}_pages");
                self.gauge(&name, &help, None, [(NO_LABELS, signed(value))])
            }
        }
    }

    fn frames(&mut self, scrape: &Scrape) -> fmt::Result {
        let FrameCounts {
            managed,
            ballooned,
            free,
            deferred,
            cached,
            allocated,
            peak,
        } = scrape.snapshot.frames;
        let states = [
            ("free", free),
            ("deferred", deferred),
            ("cached", cached),
            ("allocated", allocated),
            ("ballooned", ballooned),
        ];
        let bytes = Some(&Unit::Bytes);
        self.gauge(
            "frames",
            "Memory by the state of its frames",
            bytes,
            states.map(|(state, pages)| ([("state", state)], signed(pages.bytes().0))),
        )?;
        for (name, help, amount) in [
            ("capacity", "Capacity of the manager", scrape.capacity),
            (
                "frames_managed",
                "Free, deferred, cached and allocated frames",
                managed.bytes(),
            ),
            (
                "frames_peak",
                "Most memory that was outside the zones",
                peak.bytes(),
            ),
        ] {
            self.gauge(name, help, bytes, [(NO_LABELS, signed(amount.0))])?;
        }
        Ok(())
    }

    /// The latency histogram: each stall of a thread or task, by its duration.
    fn stalls(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        // 1 us to 69 s by factors of 4; the counts are by powers of two.
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        let mut least = 0;
        for bound in (10..=36).step_by(2).map(|log| 1_u64 << log) {
            let inside = |(from, _): &&(u64, u64)| (least..bound).contains(from);
            let stalls = snapshot.stall_ns.iter().filter(inside);
            buckets.push((seconds(bound), stalls.map(|(_, nr)| nr).sum()));
            least = bound;
        }
        let count = snapshot.stall_ns.iter().map(|(_, nr)| nr).sum::<u64>();
        let counted: u64 = buckets.iter().map(|(_, nr)| nr).sum();
        buckets.push((f64::INFINITY, count - counted));
        let sum = seconds(snapshot.stall_ns_total);
        self.encoder
            .encode_descriptor(
                "highwater_stall_duration",
                "Stalls of threads and tasks for memory: reclaim, waits for room, throttling",
                Some(&Unit::Seconds),
                MetricType::Histogram,
            )?
            .encode_histogram::<Labels<'_, 0>>(sum, count, &buckets, None)
    }

    fn gauge<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        series: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result
    where
        ConstGauge<V>: EncodeMetric,
    {
        let name = format!("highwater_{name}");
        let kind = MetricType::Gauge;
        let mut family = self.encoder.encode_descriptor(&name, help, unit, kind)?;
        for (labels, value) in series {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        series: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result
    where
        ConstCounter<V>: EncodeMetric,
    {
        let name = format!("highwater_{name}");
        let kind = MetricType::Counter;
        let mut family = self.encoder.encode_descriptor(&name, help, unit, kind)?;
        for (labels, value) in series {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

const NO_LABELS: Labels<'_, 0> = [];

fn group(row: &Row) -> Labels<'_, 1> {
    [("group", &row.group)]
}

/// The text format's gauges are signed; no amount of a machine is above.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
