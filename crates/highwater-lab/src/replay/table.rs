//! The report as text: figures first, then latencies, then one row for each tenant.

use std::fmt;

use super::config::DataIo;
use super::latency::LatencySummary;
use super::recorded::RecordingReport;
use super::report::{Outcome, TenantReport};
use crate::report::narrow::{self, wrapped};
use crate::report::text::{Side, grouped, latency, percent, round, size, write_rows};

/// Files of a recording that are shown: those with the most misses.
const FILES_SHOWN: usize = 10;

/// Shows an [`Outcome`] as aligned text.
#[derive(Debug)]
pub struct Table<'a> {
    outcome: &'a Outcome,
    is_wide: bool,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides = [Side::Left, Side::Right, Side::Left];
        let (figures, tenants) = (self.figures(), self.tenants());
        if self.is_wide {
            write_rows(f, &figures, &sides)?;
        } else {
            write_rows(f, &with_broken_notes(&figures), &sides)?;
        }
        writeln!(f)?;
        write_rows(f, &self.latencies(), &[Side::Left])?;
        writeln!(f)?;
        if self.is_wide {
            write_rows(f, &tenants, &[Side::Left])?;
        } else {
            narrow::write_fitting(f, &tenants)?;
        }
        self.notes(f)
    }
}

impl<'a> Table<'a> {
    /// A table that fits 80 columns.
    #[must_use]
    pub const fn new(outcome: &'a Outcome) -> Self {
        Self {
            outcome,
            is_wide: false,
        }
    }

    /// The same with every column, however wide that is.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.is_wide = true;
        self
    }

    fn figures(&self) -> Vec<Vec<String>> {
        let report = &self.outcome.report;
        let row = |name: &str, value: String, note: String| vec![name.to_owned(), value, note];
        let none = String::new;
        let steal = percent(super::report::ratio(report.pgsteal, report.pgscan));
        let per_second = format!(
            "in {:.2} s, {} per second",
            report.elapsed_s,
            grouped(round(report.accesses_per_s))
        );
        let laid_out = self.outcome.laid_out_pages * highwater::units::PAGE_BYTES;
        let laid_out = format!("{} laid out in the data files", size(laid_out));
        let manifest = &report.manifest;
        let how = format!(
            "back end {}, seed {}, threads {}, in flight {}",
            manifest.backend, manifest.seed, manifest.threads, manifest.in_flight
        );
        let io = match report.io {
            DataIo::Direct => "direct",
            DataIo::Buffered => "buffered",
        };
        let cached = match (report.kernel_cached_bytes, &report.io_reason) {
            (None, _) => "the kernel does not tell how much of them it caches".to_owned(),
            (Some(bytes), None) => format!("{} cached by the kernel", size(bytes)),
            (Some(bytes), Some(reason)) => {
                format!("{} cached by the kernel; {reason}", size(bytes))
            }
        };
        vec![
            row("policy", manifest.policy.clone(), how),
            row("requests", grouped(report.requests), none()),
            row("page accesses", grouped(report.page_accesses), per_second),
            row("hits", grouped(report.hits), percent(report.hit_ratio)),
            row(
                "misses",
                grouped(report.misses),
                format!("{} pages read", grouped(report.pages_read)),
            ),
            row("data files", io.to_owned(), cached),
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
            row("capacity", size(report.capacity_bytes), laid_out),
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
        let report = &self.outcome.report;
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

    /// The columns that fit 80 come first.
    fn tenants(&self) -> Vec<Vec<String>> {
        let header = [
            "tenant",
            "requests",
            "accesses",
            "hit ratio",
            "usage",
            "peak",
            "max",
            "max events",
            "victims",
            "usage between",
            "exact usage",
        ];
        let rows = self.outcome.report.tenants.iter().map(tenant_row);
        std::iter::once(cells(header)).chain(rows).collect()
    }

    fn notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (tenant, skipped) in &self.outcome.skipped {
            let note = format!("tenant `{tenant}`: {skipped}");
            writeln!(f)?;
            for line in wrapped(&note, narrow::COLUMNS) {
                writeln!(f, "{line}")?;
            }
        }
        for tenant in &self.outcome.report.tenants {
            if let Some(recording) = &tenant.trace.recording {
                recorded(f, &tenant.name, recording)?;
            }
        }
        Ok(())
    }
}

/// Writes where a recording comes from, and the files with the most misses.
fn recorded(f: &mut fmt::Formatter<'_>, tenant: &str, recording: &RecordingReport) -> fmt::Result {
    let of = |name| recording.said(name).unwrap_or("unknown");
    let end = match recording.is_complete {
        true => "",
        false => "; it was killed, and ends early",
    };
    let note = format!(
        "`{tenant}` is a recording of {} on Linux {}: {} files, {} without a name; {} events \
         lost{end}",
        of("target"),
        of("kernel"),
        grouped(recording.nr_files as u64),
        grouped((recording.nr_files - recording.nr_named) as u64),
        grouped(recording.lost_events),
    );
    writeln!(f)?;
    for line in wrapped(&note, narrow::COLUMNS) {
        writeln!(f, "{line}")?;
    }
    let rows = recording.files.iter().take(FILES_SHOWN).map(|file| {
        vec![
            grouped(file.page_accesses - file.hits),
            grouped(file.page_accesses),
            percent(file.hit_ratio),
            file.name.clone(),
        ]
    });
    let header = cells(["misses", "accesses", "hit ratio", "file"]);
    let rows: Vec<_> = std::iter::once(header).chain(rows).collect();
    let sides = [Side::Right, Side::Right, Side::Right, Side::Left];
    write_rows(f, &rows, &sides)
}

/// The rows with their third cell, a note, broken into lines of which all fit 80 columns.
fn with_broken_notes(rows: &[Vec<String>]) -> Vec<Vec<String>> {
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let columns = narrow::COLUMNS.saturating_sub(widest(0) + 2 + widest(1) + 2);
    let mut broken = Vec::new();
    for row in rows {
        let (figure, note) = row.split_at(row.len().min(2));
        let mut lines = wrapped(&note.concat(), columns.max(1)).into_iter();
        let mut first = figure.to_vec();
        first.extend(lines.next());
        broken.push(first);
        broken.extend(lines.map(|line| vec![String::new(), String::new(), line]));
    }
    broken
}

fn tenant_row(tenant: &TenantReport) -> Vec<String> {
    vec![
        tenant.name.clone(),
        grouped(tenant.requests),
        grouped(tenant.page_accesses),
        percent(tenant.hit_ratio),
        size(tenant.usage_bytes),
        size(tenant.peak_bytes),
        tenant.max_bytes.map_or_else(|| "none".to_owned(), size),
        grouped(tenant.max_events),
        grouped(tenant.victims),
        format!(
            "{} to {}",
            size(tenant.usage_low_bytes),
            size(tenant.usage_high_bytes)
        ),
        size(tenant.usage_precise_bytes),
    ]
}

fn cells<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

fn leaked(bytes: u64) -> String {
    format!("frames; {} still charged", size(bytes))
}
