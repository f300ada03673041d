//! Usage bars: certain memory full, the uncertain part of the interval hatched, ticks at limits.

use highwater::{Bytes, Estimate};

use super::model::Limits;

/// Meaning of one cell of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    /// Used for certain.
    Full,
    /// Between the ends of the usage's interval.
    Uncertain,
    /// Not used.
    Empty,
}

/// A cell, and the limit of which it holds the tick: `m` min, `l` low, `h` high, `M` max.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) cell: Cell,
    pub(crate) tick: Option<char>,
}

/// Returns the cells of a bar whose right end is `scale`.
pub(crate) fn cells(
    usage: &Estimate<Bytes>,
    limits: &Limits,
    scale: Bytes,
    width: usize,
) -> Vec<Marked> {
    // Uncertainty of any size is seen: its ends are rounded outwards.
    let (full, uncertain) = if usage.low == usage.high {
        let nearest = rounded(usage.low, scale, width);
        (nearest, nearest)
    } else {
        let high = part_up(usage.high, scale, width).min(width);
        (part(usage.low, scale, width).min(high), high)
    };
    let cell_at = |index| match index {
        index if index < full => Cell::Full,
        index if index < uncertain => Cell::Uncertain,
        _ => Cell::Empty,
    };
    let cell = |index| Marked {
        cell: cell_at(index),
        tick: None,
    };
    let mut cells: Vec<Marked> = (0..width).map(cell).collect();
    // Of several ticks in one cell the most binding one is shown: it comes last.
    let ticks = [
        ('m', limits.min),
        ('l', limits.low),
        ('h', limits.high),
        ('M', limits.max),
    ];
    for (name, limit) in ticks {
        let on_scale = limit.filter(|limit| *limit <= scale && *limit > Bytes::ZERO);
        if let Some(limit) = on_scale
            && let Some(cell) = cells.get_mut(position(limit, scale, width))
        {
            cell.tick = Some(name);
        }
    }
    cells
}

/// Returns the number of cells that an exact amount fills, rounded to the nearest.
fn rounded(amount: Bytes, scale: Bytes, width: usize) -> usize {
    let twice = part(amount, scale, width * 2);
    twice.div_ceil(2).min(width)
}

/// Returns the cell that holds an amount; the right end is in the last cell.
fn position(amount: Bytes, scale: Bytes, width: usize) -> usize {
    part(amount, scale, width).min(width.saturating_sub(1))
}

fn part(amount: Bytes, scale: Bytes, width: usize) -> usize {
    let part = u128::from(amount.0) * width as u128 / u128::from(scale.0.max(1));
    usize::try_from(part).unwrap_or(usize::MAX)
}

fn part_up(amount: Bytes, scale: Bytes, width: usize) -> usize {
    let part = (u128::from(amount.0) * width as u128).div_ceil(u128::from(scale.0.max(1)));
    usize::try_from(part).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(interval: (u64, u64), limits: [Option<u64>; 4], scale: u64) -> String {
        let usage = Estimate {
            value: Bytes(interval.0),
            low: Bytes(interval.0),
            high: Bytes(interval.1),
        };
        let [min, low, high, max] = limits.map(|limit| limit.map(Bytes));
        let limits = Limits {
            min,
            low,
            high,
            max,
        };
        let shown = |marked: &Marked| match (marked.tick, marked.cell) {
            (Some(tick), _) => tick,
            (None, Cell::Full) => '#',
            (None, Cell::Uncertain) => '/',
            (None, Cell::Empty) => '.',
        };
        let cells = cells(&usage, &limits, Bytes(scale), 10);
        cells.iter().map(shown).collect()
    }

    #[test]
    fn the_uncertain_part_is_between_full_and_empty() {
        let none = [None; 4];
        assert_eq!(drawn((0, 0), none, 100), "..........");
        assert_eq!(drawn((30, 30), none, 100), "###.......");
        assert_eq!(drawn((30, 60), none, 100), "###///....");
        assert_eq!(drawn((39, 51), none, 100), "###///....");
        assert_eq!(drawn((31, 32), none, 100), "###/......");
        assert_eq!(drawn((0, 1), none, 100), "/.........");
        assert_eq!(drawn((99, 100), none, 100), "#########/");
        assert_eq!(drawn((100, 100), none, 100), "##########");
        assert_eq!(drawn((90, 200), none, 100), "#########/");
        assert_eq!(drawn((u64::MAX, u64::MAX), none, u64::MAX), "##########");
        assert_eq!(drawn((0, 0), none, 0), "..........");
    }

    #[test]
    fn ticks_are_at_their_limits_and_not_beyond_the_scale() {
        let all = [Some(10), Some(25), Some(80), Some(100)];
        assert_eq!(drawn((50, 60), all, 100), "#ml##/..hM");
        let beyond = [Some(0), None, Some(101), Some(u64::MAX)];
        assert_eq!(drawn((50, 60), beyond, 100), "#####/....");
        let together = [Some(50), Some(50), Some(50), Some(50)];
        assert_eq!(drawn((0, 0), together, 100), ".....M....");
    }
}
