//! Named figures in a fixed order, and the text form of their values.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::text::{grouped, latency, round, size, to_f64};

/// Unit of a value; the suffix of a figure's name tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes; shown in the largest unit of 1,024 in which the value is at least one.
    Bytes,
    /// Pages of 4 KiB.
    Pages,
    /// Nanoseconds, which may be fractions.
    Ns,
    /// Microseconds; shown in a suitable unit.
    Us,
    /// Seconds.
    Seconds,
    /// Events in a second.
    PerSecond,
    /// A part of a whole, or a multiple.
    Ratio,
    /// Parts of a hundred.
    Percent,
    /// A number without a unit.
    Plain,
}

impl Unit {
    /// Suffixes of names; a suffix precedes the ones that it ends with.
    const SUFFIXES: [(&'static str, Self); 8] = [
        ("_bytes", Self::Bytes),
        ("_pages", Self::Pages),
        ("_per_s", Self::PerSecond),
        ("_ns", Self::Ns),
        ("_us", Self::Us),
        ("_s", Self::Seconds),
        ("_ratio", Self::Ratio),
        ("_percent", Self::Percent),
    ];

    /// Returns the unit of the figure `name`, and the name without it.
    #[must_use]
    pub fn of(name: &str) -> (Self, &str) {
        let found = Self::SUFFIXES.iter().find_map(|&(suffix, unit)| {
            let stem = name.strip_suffix(suffix)?;
            Some((unit, stem))
        });
        found.unwrap_or((Self::Plain, name))
    }

    /// Returns `value` with the unit, as text.
    #[must_use]
    pub fn shown(self, value: f64) -> String {
        if !value.is_finite() {
            return "no number".to_owned();
        }
        let sign = if value < 0.0 { "-" } else { "" };
        let amount = value.abs();
        let text = match self {
            Self::Bytes => size(round(amount)),
            Self::Pages => format!("{} pages", number(amount)),
            Self::Ns => format!("{amount:.2} ns"),
            Self::Us => latency(amount),
            Self::Seconds => format!("{amount:.2} s"),
            Self::PerSecond => format!("{} /s", number(amount)),
            Self::Ratio => format!("{amount:.3}"),
            Self::Percent => format!("{amount:.2} %"),
            Self::Plain => number(amount),
        };
        format!("{sign}{text}")
    }
}

/// Formats a count with commas, or a fraction to four significant digits.
fn number(amount: f64) -> String {
    if amount.fract() == 0.0 || amount >= 1e4 {
        grouped(round(amount))
    } else if amount >= 1.0 {
        format!("{amount:.2}")
    } else if amount >= 1e-3 {
        format!("{amount:.5}")
    } else {
        format!("{amount:.2e}")
    }
}

/// The value of a figure.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A count.
    Count(u64),
    /// A difference.
    Signed(i64),
    /// A mean, a ratio or a time. `NaN` is `null` in JSON.
    Real(f64),
    /// Words.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// A list of values, in the order that the figure's name says.
    Each(Vec<f64>),
}

impl Value {
    /// Returns the value as a number; `None` for texts and lists.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Count(count) => Some(to_f64(count)),
            Self::Signed(amount) => {
                let size = to_f64(amount.unsigned_abs());
                Some(if amount < 0 { -size } else { size })
            }
            Self::Real(value) => Some(value),
            Self::Text(_) | Self::Flag(_) | Self::Each(_) => None,
        }
    }

    /// Returns the value as text, in `unit`.
    pub(super) fn shown(&self, unit: Unit) -> String {
        match self {
            Self::Count(count) => unit.shown(to_f64(*count)),
            Self::Signed(amount) => {
                let sign = if *amount < 0 { "-" } else { "" };
                format!("{sign}{}", unit.shown(to_f64(amount.unsigned_abs())))
            }
            Self::Real(value) => unit.shown(*value),
            Self::Text(text) => text.clone(),
            Self::Flag(true) => "yes".to_owned(),
            Self::Flag(false) => "no".to_owned(),
            Self::Each(values) => {
                let shown: Vec<String> = values.iter().map(|value| unit.shown(*value)).collect();
                shown.join(" / ")
            }
        }
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        // No platform has more than 64 bits.
        Self::Count(count as u64)
    }
}

impl From<i64> for Value {
    fn from(amount: i64) -> Self {
        Self::Signed(amount)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<f64>> for Value {
    fn from(values: Vec<f64>) -> Self {
        Self::Each(values)
    }
}

/// Figures by name, in the order of insertion.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(Vec<(&'static str, Value)>);

impl Figures {
    /// Adds a figure.
    ///
    /// # Panics
    ///
    /// When a figure of that name exists, because JSON could not hold both.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        assert!(self.get(name).is_none(), "two figures are called `{name}`");
        self.0.push((name, value.into()));
        self
    }

    /// Returns the figure called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        let found = self.0.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| value)
    }

    /// Iterates over all figures.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }
}

impl Serialize for Figures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.iter() {
            object.serialize_entry(name, value)?;
        }
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_the_ends_of_names() {
        assert_eq!(Unit::of("peak_bytes"), (Unit::Bytes, "peak"));
        assert_eq!(Unit::of("ops_per_s"), (Unit::PerSecond, "ops"));
        assert_eq!(Unit::of("build_s"), (Unit::Seconds, "build"));
        assert_eq!(Unit::of("add_ns"), (Unit::Ns, "add"));
        assert_eq!(Unit::of("cpus"), (Unit::Plain, "cpus"));
    }

    #[test]
    fn values_are_readable() {
        assert_eq!(Value::from(-4_096_000_i64).shown(Unit::Bytes), "-3.9 MiB");
        assert_eq!(Value::from(0.038_1).shown(Unit::Plain), "0.03810");
        assert_eq!(Value::from(1.5e-5).shown(Unit::Plain), "1.50e-5");
        assert_eq!(Value::from(12_345.6).shown(Unit::Plain), "12,346");
        assert_eq!(Value::from(1.5).shown(Unit::Ns), "1.50 ns");
        assert_eq!(
            Value::from(vec![1.0, 0.25]).shown(Unit::Plain),
            "1 / 0.25000"
        );
        assert_eq!(Value::from(f64::NAN).shown(Unit::Ns), "no number");
        assert_eq!(Value::from(true).shown(Unit::Plain), "yes");
    }

    #[test]
    #[should_panic(expected = "two figures are called `a`")]
    fn names_are_unique() {
        let _ = Figures::default().with("a", 1_u64).with("a", 2_u64);
    }
}
