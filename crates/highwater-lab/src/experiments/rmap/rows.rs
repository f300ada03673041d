//! Rows of the tables, under the published row names where there are any.

use super::cell::Cell;
use super::counters::{KERNEL, RMAP};
use super::ground::Scenario;
use super::round::Tenant;
use crate::experiments::published;
use crate::report::{Row, Source};

const VMSTAT: &str = "vmstat and A's elapsed time, as published";
const TENANTS: &str = "throughput and cost of each tenant";
const LOCK: &str = "the lock of the reverse map";

/// Returns the published rows of a data file, with the summary that follows from their counts.
pub(crate) fn published_rows(file: &'static str) -> Vec<Row> {
    let rows = published::rows(file, &[VMSTAT]).into_iter();
    rows.map(with_efficiency).collect()
}

fn with_efficiency(row: Row) -> Row {
    let of = |name| published::figure(std::slice::from_ref(&row), VMSTAT, name);
    let [kswapd, direct, scan_kswapd, scan_direct] = [4, 5, 6, 7].map(|at| of(KERNEL[at]));
    row.with(
        "efficiency_percent",
        100.0 * (kswapd + direct) / (scan_kswapd + scan_direct),
    )
    .with("of_kswapd_percent", 100.0 * kswapd / scan_kswapd)
    .with("of_direct_percent", 100.0 * direct / scan_direct)
}

pub(super) fn rows(cells: &[Cell], scenario: Scenario) -> Vec<Row> {
    let vmstat = cells.iter().map(vmstat_row);
    let tenants = cells.iter().map(|cell| tenant_row(cell, scenario));
    vmstat
        .chain(tenants)
        .chain(cells.iter().map(lock_row))
        .collect()
}

fn row(part: &'static str, cell: &Cell) -> Row {
    Row::new(part, Source::Run, cell.variant.name.as_str())
}

fn vmstat_row(cell: &Cell) -> Row {
    let mut row = row(VMSTAT, cell)
        .with("elapsed_s", cell.mean_of(|round| round.elapsed_s))
        .with("elapsed_median_s", cell.elapsed_s())
        .with(
            "deviation_percent",
            cell.variation_percent(|round| round.elapsed_s),
        );
    for name in KERNEL {
        row = row.with(name, cell.count(name).round());
    }
    row.with("efficiency_percent", 100.0 * cell.efficiency_in_all())
        .with(
            "of_kswapd_percent",
            100.0 * cell.efficiency_of("pgsteal_kswapd", "pgscan_kswapd"),
        )
        .with(
            "of_direct_percent",
            100.0 * cell.efficiency_of("pgsteal_direct", "pgscan_direct"),
        )
}

fn tenant_row(cell: &Cell, scenario: Scenario) -> Row {
    let row = row(TENANTS, cell)
        .with(
            "refused_reads",
            cell.mean_of(|round| crate::report::text::to_f64(round.refused)),
        )
        .with("a_refaults", cell.mean_of(|round| round.a.refaults))
        .with("a_majfaults", cell.mean_of(|round| round.a.majfaults))
        .with(
            "a_bytes_per_s",
            cell.mean_of(|round| round.bytes_per_s(round.a)),
        )
        .with("b_maps_per_s", cell.mean_of(|round| round.b.maps_per_s()));
    if scenario == Scenario::Mapped {
        return row;
    }
    let of_c = |figure: fn(&Tenant) -> f64| {
        cell.mean_of(|round| round.c.as_ref().map_or(f64::NAN, figure))
    };
    row.with("c_refaults", of_c(|c| c.refaults))
        .with("c_refaults_of_reads_ratio", of_c(|c| c.refaults / c.pages))
        .with(
            "c_bytes_per_s",
            cell.mean_of(|round| round.c.map_or(f64::NAN, |c| round.bytes_per_s(c))),
        )
}

fn lock_row(cell: &Cell) -> Row {
    let blocked = cell.blocked();
    let mut row = row(LOCK, cell)
        .with(
            "contended_ratio",
            cell.mean_of(super::round::Round::contended_ratio),
        )
        .with("b_held_ratio", cell.mean_of(|round| round.b.held_ratio()))
        .with("blocked", blocked.calls())
        .with("blocked_in_a_run_s", cell.mean_of(|round| round.blocked_s))
        .with("blocked_p999_us", cell.blocked_p999_us())
        .with("blocked_at_most_us", cell.blocked_most_us());
    for name in RMAP {
        row = row.with(name, cell.count(name).round());
    }
    row
}

#[cfg(test)]
mod tests {
    use super::super::counters::COUNTED;
    use super::*;
    use crate::report::Value;

    /// Goal: the published summary follows from the published rows. Method: the first table's
    /// efficiency.
    #[test]
    fn efficiency_follows_from_the_published_counts() {
        let rows = published_rows(include_str!("../../../published/rmap-mapped.json"));
        let row = &rows[0];
        assert_eq!(row.variant, "vanilla");
        let Some(Value::Real(efficiency)) = row.figures.get("efficiency_percent") else {
            panic!("{row:?}");
        };
        assert!((efficiency - 48.58).abs() < 0.01, "{efficiency}");
        assert!(COUNTED.contains(&"rmap_over_debt") && COUNTED.contains(&"pgscan_direct"));
    }
}
