//! The curves as text, in 80 columns.

use std::fmt;

use super::meaning::ALIKE;
use super::report::{Curve, CurveReport, Mode, Split, TenantCurves, sample_note};
use crate::report::narrow::write_fitting;
use crate::report::text::{grouped, size};
use crate::report::wrapped;
use crate::trace::Skipped;

const COLUMNS: usize = 80;

/// Shows a [`CurveReport`] as tables and sentences.
#[derive(Debug)]
pub struct Table<'a> {
    report: &'a CurveReport,
}

impl<'a> Table<'a> {
    /// Shows a report.
    #[must_use]
    pub const fn new(report: &'a CurveReport) -> Self {
        Self { report }
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, tenant) in self.report.tenants.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            write_tenant(f, tenant, self.report.mode)?;
        }
        match &self.report.split {
            Some(split) => write_split(f, split),
            None => Ok(()),
        }
    }
}

fn write_lines(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let mut lines = wrapped(text, COLUMNS).into_iter();
    lines.try_for_each(|line| writeln!(f, "{line}"))
}

fn write_tenant(f: &mut fmt::Formatter<'_>, tenant: &TenantCurves, mode: Mode) -> fmt::Result {
    let is_estimate = tenant.sample_ratio < 1.0;
    let about = if is_estimate { "about " } else { "" };
    let method = match (mode, is_estimate) {
        (Mode::Exact, _) => "each size in full, by exact models".to_owned(),
        (Mode::Sampled, false) => "every page: exact models".to_owned(),
        (Mode::Sampled, true) => format!(
            "from {} sampled pages, {:.2} % of them{}",
            grouped(tenant.sampled_pages),
            100.0 * tenant.sample_ratio,
            sample_note(&tenant.curves)
        ),
    };
    let head = format!(
        "{}: {} page accesses to {about}{} ({}); {method}",
        tenant.name,
        grouped(tenant.page_accesses),
        size(tenant.footprint_bytes),
        tenant.trace,
    );
    write_lines(f, &head)?;
    if tenant.bad_records > 0 {
        let skipped = Skipped {
            records: tenant.bad_records,
            cut_after: tenant.cut_after_bytes,
        };
        write_lines(f, &skipped.to_string())?;
    }
    writeln!(f, "\nmiss ratio in %")?;
    write_fitting(f, &ratios(&tenant.curves))?;
    writeln!(f, "\nsmallest size for a part of the best hit ratio; knees")?;
    write_fitting(f, &meanings(&tenant.curves))?;
    writeln!(f)?;
    write_lines(f, &winners(tenant))
}

/// Returns a row for each size, with a column for each policy.
fn ratios(curves: &[Curve]) -> Vec<Vec<String>> {
    let header = curves.iter().map(|curve| curve.policy.clone());
    let mut rows: Vec<Vec<String>> =
        vec![std::iter::once("size".to_owned()).chain(header).collect()];
    let sizes = curves.first().map_or(&[][..], |curve| &curve.points);
    for (at, point) in sizes.iter().enumerate() {
        let cells = curves.iter().map(|curve| {
            let ratio = curve.points[at].miss_ratio;
            format!("{:.2}", 100.0 * ratio)
        });
        rows.push(
            std::iter::once(size(point.size_bytes))
                .chain(cells)
                .collect(),
        );
    }
    rows
}

fn meanings(curves: &[Curve]) -> Vec<Vec<String>> {
    let header = ["policy", "95 %", "99 %", "knees"].map(str::to_owned);
    let row = |curve: &Curve| {
        let knees: Vec<String> = curve.knees_bytes.iter().map(|knee| size(*knee)).collect();
        let knees = match knees.is_empty() {
            true => "none".to_owned(),
            false => knees.join(", "),
        };
        vec![
            curve.policy.clone(),
            size(curve.within_5_percent_bytes),
            size(curve.within_1_percent_bytes),
            knees,
        ]
    };
    std::iter::once(header.to_vec())
        .chain(curves.iter().map(row))
        .collect()
}

fn winners(tenant: &TenantCurves) -> String {
    let ranges = tenant.winners.iter().map(|winner| {
        let range = match winner.from_bytes == winner.to_bytes {
            true => format!("at {}", size(winner.from_bytes)),
            false => format!("{} to {}", size(winner.from_bytes), size(winner.to_bytes)),
        };
        match &winner.policy {
            Some(policy) => format!("{range}: {policy}"),
            None => format!("{range}: all alike"),
        }
    });
    let ranges: Vec<String> = ranges.collect();
    let points = 100.0 * ALIKE;
    format!(
        "fewest misses, to within {points} points: {}",
        ranges.join("; ")
    )
}

fn write_split(f: &mut fmt::Formatter<'_>, split: &Split) -> fmt::Result {
    let head = format!(
        "\nbest split of {} under {}: {}",
        size(split.total_bytes),
        split.policy,
        split.advice
    );
    writeln!(f)?;
    write_lines(f, head.trim_start())?;
    let mut rows = vec![["tenant", "equal", "best"].map(str::to_owned).to_vec()];
    rows.extend(split.shares.iter().map(|share| {
        let amounts = [share.even_bytes, share.best_bytes].map(size);
        std::iter::once(share.tenant.clone())
            .chain(amounts)
            .collect()
    }));
    write_fitting(f, &rows)
}
