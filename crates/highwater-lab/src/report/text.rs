//! Text forms of amounts, and rows of aligned cells.

use std::fmt;

/// Alignment of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Writes rows of cells under each other. `sides` is for the first columns; the rest are numbers.
pub(crate) fn write_rows(
    f: &mut fmt::Formatter<'_>,
    rows: &[Vec<String>],
    sides: &[Side],
) -> fmt::Result {
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

/// Formats a count with a comma between groups of three digits.
pub(crate) fn grouped(count: u64) -> String {
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

/// Formats bytes in the largest unit in which the value is at least one, with one decimal.
pub(crate) fn size(bytes: u64) -> String {
    let (shift, unit) = match bytes {
        0..1024 => return format!("{bytes} B"),
        1024..0x10_0000 => (10, "KiB"),
        0x10_0000..0x4000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    format!("{:.1} {unit}", to_f64(bytes) / to_f64(1 << shift))
}

pub(crate) fn percent(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

/// Formats microseconds in a suitable unit.
pub(crate) fn latency(us: f64) -> String {
    match us {
        us if us < 1.0 => format!("{:.0} ns", us * 1e3),
        us if us < 1e3 => format!("{us:.1} us"),
        us if us < 1e6 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// Converts to the nearest `f64`: exact below 2^53, which no count here reaches.
#[expect(clippy::cast_precision_loss, reason = "counts for people and ratios")]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate for people; saturates"
)]
pub(crate) fn round(rate: f64) -> u64 {
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
