//! The report as people read it: figures first, then latencies, then one row for each tenant.

use std::fmt;

use super::latency::LatencySummary;
use super::report::{Outcome, TenantReport, to_f64};

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
        vec![
            row("requests", grouped(report.requests), none()),
            row("page accesses", grouped(report.page_accesses), per_second),
            row("hits", grouped(report.hits), percent(report.hit_ratio)),
            row("misses", grouped(report.misses), none()),
            row("refaults", grouped(report.refaults), none()),
            row("pages scanned", grouped(report.pgscan), none()),
            row(
                "pages reclaimed",
                grouped(report.pgsteal),
                format!("{steal} of the scanned"),
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

/// Where a column's cells are aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Writes rows of cells under each other. `sides` is for the first columns; the rest are numbers.
fn write_rows(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>], sides: &[Side]) -> fmt::Result {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            line += &match sides.get(column).unwrap_or(&Side::Right) {
                Side::Left => format!("{gap}{cell:<width$}"),
                Side::Right => format!("{gap}{cell:>width$}"),
            };
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A count with a comma between each three digits.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in the largest unit that leaves at least one, with one decimal.
fn size(bytes: u64) -> String {
    let (shift, unit) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..0x10_0000 => (10, "KiB"),
        0x10_0000..0x4000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    format!("{:.1} {unit}", to_f64(bytes) / to_f64(1 << shift))
}

fn percent(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

/// Microseconds in the unit that suits.
fn latency(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.0} ns", us * 1e3),
        us if us < 1e3 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate for people; saturates"
)]
fn round(rate: f64) -> u64 {
    rate.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(64 << 20), "64.0 MiB");
        assert_eq!(size(3 << 29), "1.5 GiB");
        assert_eq!(percent(0.5), "50.00 %");
        assert_eq!(latency(0.085), "85 ns");
        assert_eq!(latency(1_500.0), "1.5 ms");
        assert_eq!(latency(2e6), "2.00 s");
        assert_eq!(round(1e300), u64::MAX);
    }
}
