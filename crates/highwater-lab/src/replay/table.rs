//! The report as text: figures first, then latencies, then one row for each tenant.

use std::fmt;

use super::latency::LatencySummary;
use super::report::{Outcome, TenantReport};
use crate::report::text::{Side, grouped, latency, percent, round, size, write_rows};

/// Shows an [`Outcome`] as aligned text.
#[derive(Debug)]
pub struct Table<'a>(pub &'a Outcome);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rows(f, &self.figures(), &[Side::Left, Side::Right, Side::Left])?;
        writeln!(f)?;
        write_rows(f, &self.latencies(), &[Side::Left])?;
        writeln!(f)?;
        write_rows(f, &self.tenants(), &[Side::Left])?;
        self.notes(f)
    }
}

impl Table<'_> {
    fn figures(&self) -> Vec<Vec<String>> {
        let report = &self.0.report;
        let row = |name: &str, value: String, note: String| vec![name.to_owned(), value, note];
        let none = String::new;
        let steal = percent(super::report::ratio(report.pgsteal, report.pgscan));
        let per_second = format!(
            "in {:.2} s, {} per second",
            report.elapsed_s,
            grouped(round(report.accesses_per_s))
        );
        let footprint = self.0.footprint_pages * highwater::units::PAGE_BYTES;
        let footprint = format!("footprint of the traces {}", size(footprint));
        let manifest = &report.manifest;
        let how = format!(
            "back end {}, seed {}, threads {}",
            manifest.backend, manifest.seed, manifest.threads
        );
        vec![
            row("policy", manifest.policy.clone(), how),
            row("requests", grouped(report.requests), none()),
            row("page accesses", grouped(report.page_accesses), per_second),
            row("hits", grouped(report.hits), percent(report.hit_ratio)),
            row(
                "misses",
                grouped(report.misses),
                "read page by page; the kernel caches the data files too".to_owned(),
            ),
            row("refaults", grouped(report.refaults), none()),
            row("pages scanned", grouped(report.pgscan), none()),
            row(
                "pages reclaimed",
                grouped(report.pgsteal),
                format!("{steal} of the scanned"),
            ),
            row(
                "per-CPU words",
                report.regime.clone(),
                report.regime_reason.clone().unwrap_or_default(),
            ),
            row("capacity", size(report.capacity_bytes), footprint),
            row("frames, peak", size(report.frames_peak_bytes), none()),
            row(
                "process, peak",
                size(report.rss_peak_bytes),
                "resident memory".to_owned(),
            ),
            row("verify failures", grouped(report.verify_failures), none()),
            row(
                "leaked",
                grouped(report.leaked_frames),
                leaked(report.leaked_bytes),
            ),
        ]
    }

    fn latencies(&self) -> Vec<Vec<String>> {
        let report = &self.0.report;
        let row = |name: &str, count: u64, summary: &LatencySummary| {
            let LatencySummary {
                p50,
                p99,
                p999,
                max,
            } = *summary;
            let figures = [p50, p99, p999, max].map(|us| match count {
                0 => "-".to_owned(),
                _ => latency(us),
            });
            let mut row = vec![name.to_owned()];
            row.extend(figures);
            row
        };
        vec![
            cells(["latency", "p50", "p99", "p99.9", "max"]),
            row("hit", report.hits, &report.hit_latency_us),
            row("miss", report.misses, &report.miss_latency_us),
        ]
    }

    fn tenants(&self) -> Vec<Vec<String>> {
        let header = [
            "tenant",
            "requests",
            "accesses",
            "hit ratio",
            "usage",
            "between",
            "exact",
            "peak",
            "max",
            "max events",
            "victims",
        ];
        let rows = self.0.report.tenants.iter().map(tenant_row);
        std::iter::once(cells(header)).chain(rows).collect()
    }

    fn notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (tenant, count) in &self.0.bad_records {
            writeln!(
                f,
                "\ntenant `{tenant}`: {} bad records skipped",
                grouped(*count)
            )?;
        }
        Ok(())
    }
}

fn tenant_row(tenant: &TenantReport) -> Vec<String> {
    vec![
        tenant.name.clone(),
        grouped(tenant.requests),
        grouped(tenant.page_accesses),
        percent(tenant.hit_ratio),
        size(tenant.usage_bytes),
        format!(
            "{} to {}",
            size(tenant.usage_low_bytes),
            size(tenant.usage_high_bytes)
        ),
        size(tenant.usage_precise_bytes),
        size(tenant.peak_bytes),
        tenant.max_bytes.map_or_else(|| "none".to_owned(), size),
        grouped(tenant.max_events),
        grouped(tenant.victims),
    ]
}

fn cells<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

fn leaked(bytes: u64) -> String {
    format!("frames; {} still charged", size(bytes))
}
