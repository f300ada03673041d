//! Axes of a figure: ranges, ticks at round values, and their labels.

use highwater_lab::report::Unit;

/// Ticks that an axis has at most, besides its ends.
const TICKS_MAX: u32 = 6;

/// How values are placed along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// In proportion.
    Linear,
    /// By their logarithms. Values of zero and below are placed at the lower end.
    Log,
}

/// One axis.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) scale: Scale,
    /// Values that the axis must show.
    low: f64,
    high: f64,
}

impl Axis {
    /// A linear axis from zero, or from the lowest value if that is below.
    pub(crate) fn linear(name: &str, unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = extent(values.chain([0.0]));
        // An axis without extent has no scale.
        let high = if high > low { high } else { low + 1.0 };
        Self {
            name: name.to_owned(),
            unit,
            scale: Scale::Linear,
            low,
            high: high + (high - low) * 0.05,
        }
    }

    /// A logarithmic axis over the positive values.
    pub(crate) fn log(name: &str, unit: Unit, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = extent(values.filter(|value| *value > 0.0));
        let (low, high) = if low.is_finite() {
            (low, high)
        } else {
            (1.0, 10.0)
        };
        Self {
            name: name.to_owned(),
            unit,
            scale: Scale::Log,
            low: low * 0.9,
            high: (high * 1.1).max(low * 4.0),
        }
    }

    /// Returns the ends of the axis, in the coordinates of [`place`](Self::place).
    pub(crate) fn ends(&self) -> [f64; 2] {
        [self.place(self.low), self.place(self.high)]
    }

    /// Returns the coordinate of a value, within the ends.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.low, self.high);
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.log10(),
        }
    }

    /// Returns the round values at which the axis has ticks, ascending.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let is_within = |tick: &f64| *tick >= self.low && *tick <= self.high;
        match self.scale {
            Scale::Linear => {
                let step = self.step();
                let first = (self.low / step).ceil();
                (0..=TICKS_MAX + 1)
                    .map(|index| (first + f64::from(index)) * step)
                    .filter(is_within)
                    .collect()
            }
            Scale::Log => {
                let (base, low) = self.base();
                let decades = (self.high / low).log(base).ceil().max(1.0);
                let every = (decades / f64::from(TICKS_MAX)).ceil().max(1.0);
                (0..=TICKS_MAX + 1)
                    .map(|index| low * base.powf(f64::from(index) * every))
                    .filter(is_within)
                    .collect()
            }
        }
    }

    /// Returns the ratio of neighbouring ticks of a log axis, before some are left out, and its
    /// first tick or one before.
    fn base(&self) -> (f64, f64) {
        let base: f64 = match self.unit {
            Unit::Bytes => 2.0,
            _ if self.high / self.low < 50.0 => 2.0,
            _ => 10.0,
        };
        (base, base.powf(self.low.log(base).floor()))
    }

    /// Returns the distance of ticks of a linear axis: 1, 2 or 5 times a power of ten, or a power
    /// of two for bytes.
    fn step(&self) -> f64 {
        let least = (self.high - self.low) / f64::from(TICKS_MAX);
        if self.unit == Unit::Bytes {
            return least.log2().ceil().exp2();
        }
        let power = 10_f64.powf(least.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        steps
            .into_iter()
            .find(|step| *step >= least)
            .unwrap_or(least)
    }

    /// Returns the text of the tick at a coordinate.
    pub(crate) fn label(&self, place: f64) -> String {
        let value = match self.scale {
            Scale::Linear => place,
            Scale::Log => 10_f64.powf(place),
        };
        short(self.unit, value)
    }
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// Formats a value for a tick: few digits, and no fraction of zero.
fn short(unit: Unit, value: f64) -> String {
    if value.abs() < 1e-12 {
        return "0".to_owned();
    }
    let scaled = |value: f64, units: &[(f64, &str)]| {
        let found = units.iter().find(|(size, _)| value.abs() >= *size * 0.9995);
        let (size, name) = found.or(units.last()).copied().unwrap_or((1.0, ""));
        format!("{}{name}", trimmed(value / size))
    };
    match unit {
        Unit::Bytes => {
            let units = [
                ((1_u64 << 40) as f64, " TiB"),
                ((1_u64 << 30) as f64, " GiB"),
                ((1_u64 << 20) as f64, " MiB"),
                (1024.0, " KiB"),
                (1.0, " B"),
            ];
            scaled(value, &units)
        }
        Unit::Us => scaled(
            value,
            &[(1e6, " s"), (1e3, " ms"), (1.0, " µs"), (1e-3, " ns")],
        ),
        Unit::Ns => scaled(
            value,
            &[(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1.0, " ns")],
        ),
        Unit::Seconds => scaled(value, &[(1.0, " s"), (1e-3, " ms"), (1e-6, " µs")]),
        Unit::Percent => format!("{} %", trimmed(value)),
        _ => scaled(
            value,
            &[(1e9, " G"), (1e6, " M"), (1e4 * 0.1, " k"), (1.0, "")],
        ),
    }
}

/// Formats to three significant digits, without zeros at the end.
fn trimmed(value: f64) -> String {
    let size = value.abs();
    let text = if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 1.0 {
        format!("{value:.1}")
    } else if size >= 1e-4 {
        format!("{value:.4}")
    } else {
        return format!("{value:.0e}");
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Formats a coordinate of a drawing.
pub(crate) fn coordinate(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ticks are round, in order, within the axis, and neither too few nor too many, for any
    /// range. Method: ranges over 18 decades, linear and logarithmic, of each unit; labels are
    /// short up to 9 TiB, 115 days and a million percent.
    #[test]
    fn ticks_fit_any_range() {
        let units = [Unit::Bytes, Unit::Us, Unit::Plain, Unit::Percent];
        for (unit, largest) in units.into_iter().zip([1e13, 1e13, 1e13, 1e6]) {
            for exponent in -4..14 {
                for spread in [1.5, 3.0, 40.0, 1e3, 1e7] {
                    let low = 10_f64.powi(exponent) * 1.3;
                    let values = || [low, low * spread].into_iter();
                    for axis in [
                        Axis::linear("a", unit, values()),
                        Axis::log("a", unit, values()),
                    ] {
                        let ticks = axis.ticks();
                        assert!((1..=9).contains(&ticks.len()), "{axis:?}: {ticks:?}");
                        assert!(ticks.is_sorted(), "{axis:?}: {ticks:?}");
                        let [first, last] = axis.ends();
                        for tick in ticks {
                            let place = axis.place(tick);
                            assert!(place >= first && place <= last);
                            let label = axis.label(place);
                            assert!(tick > largest || label.chars().count() <= 10, "{label}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn labels_are_short() {
        assert_eq!(short(Unit::Bytes, 67_108_864.0), "64 MiB");
        assert_eq!(short(Unit::Us, 0.1), "100 ns");
        assert_eq!(short(Unit::Us, 2500.0), "2.5 ms");
        assert_eq!(short(Unit::Seconds, 0.2), "200 ms");
        assert_eq!(short(Unit::Plain, 20_000.0), "20 k");
        assert_eq!(short(Unit::Percent, 0.01), "0.01 %");
        assert_eq!(short(Unit::Plain, 0.0), "0");
    }

    /// Goal: an axis without values, or with one, still has a scale.
    #[test]
    fn an_axis_without_extent_has_a_scale() {
        for axis in [
            Axis::linear("a", Unit::Plain, std::iter::empty()),
            Axis::log("a", Unit::Plain, std::iter::empty()),
            Axis::log("a", Unit::Plain, std::iter::once(5.0)),
            Axis::linear("a", Unit::Plain, std::iter::once(f64::NAN)),
        ] {
            let [low, high] = axis.ends();
            assert!(
                low < high && low.is_finite() && high.is_finite(),
                "{axis:?}"
            );
            assert!(!axis.ticks().is_empty(), "{axis:?}");
        }
    }
}
