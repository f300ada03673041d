//! A check of an outcome: its expectation, its basis, and its verdict.

use serde::{Deserialize, Deserializer};

use super::Unit;

/// Basis of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Counts, sums, bounds or invariants, on simulated clocks if a clock matters: the check holds
    /// in every run, independently of the machine's load.
    Counts,
    /// Wall-clock or CPU time, or counts that depend on the scheduling of real threads: the check
    /// holds in the median of several runs.
    Times,
}

/// The checks that decide whether an outcome passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judge {
    /// Every check.
    All,
    /// Checks decided by counts.
    Counts,
}

/// An expectation, and whether it holds.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Check {
    /// Its subject.
    pub name: String,
    /// The expectation, with its unit.
    pub want: String,
    /// The result, with its unit.
    pub got: String,
    /// Whether it holds.
    pub pass: bool,
    /// Its basis.
    #[serde(rename = "decided_by")]
    pub basis: Basis,
    /// Whether it counts in the outcome's verdict.
    #[serde(rename = "judged")]
    pub is_judged: bool,
    /// The same as numbers, if it compares numbers.
    #[serde(flatten)]
    pub measured: Option<Measured>,
}

/// A number and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Measured {
    /// The number; `null` in JSON if it is `NaN`.
    #[serde(deserialize_with = "number_or_none")]
    pub measured: f64,
    /// Inclusive lower bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
    /// Inclusive upper bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_most: Option<f64>,
    /// Exclusive upper bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below: Option<f64>,
    /// The unit of all of them.
    pub unit: Unit,
}

impl Measured {
    const fn new(measured: f64, unit: Unit) -> Self {
        Self {
            measured,
            at_least: None,
            at_most: None,
            below: None,
            unit,
        }
    }

    /// Returns whether the number is within its bounds. `NaN` is not.
    #[must_use]
    pub fn holds(&self) -> bool {
        let Self { measured, .. } = *self;
        !measured.is_nan()
            && self.at_least.is_none_or(|limit| measured >= limit)
            && self.at_most.is_none_or(|limit| measured <= limit)
            && self.below.is_none_or(|limit| measured < limit)
    }

    /// Returns the bounds as text.
    #[must_use]
    pub fn want(&self) -> String {
        let shown = |limit| self.unit.shown(limit);
        match (self.at_least, self.at_most, self.below) {
            (Some(low), Some(high), _) => format!("{} to {}", shown(low), shown(high)),
            (Some(low), None, _) => format!(">= {}", shown(low)),
            (None, Some(high), _) => format!("<= {}", shown(high)),
            (None, None, Some(end)) => format!("< {}", shown(end)),
            (None, None, None) => "anything".to_owned(),
        }
    }
}

fn number_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Subject and basis of a check, before the comparison.
#[derive(Debug)]
#[must_use]
pub struct Subject {
    name: String,
    basis: Basis,
}

impl Check {
    /// Returns a check that is decided by counts.
    pub fn counted(name: impl Into<String>) -> Subject {
        Subject {
            name: name.into(),
            basis: Basis::Counts,
        }
    }

    /// Returns a check that is decided by times, or by counts that depend on the scheduling of
    /// threads.
    pub fn timed(name: impl Into<String>) -> Subject {
        Subject {
            name: name.into(),
            basis: Basis::Times,
        }
    }

    /// Returns the verdict, in a word or two.
    pub(super) fn verdict(&self) -> &'static str {
        match (self.is_judged, self.pass) {
            (false, _) => "not judged",
            (true, true) => "ok",
            (true, false) => "FAILED",
        }
    }
}

impl Subject {
    /// Expects `got` to be at most `limit`. `NaN` fails.
    #[must_use]
    pub fn at_most(self, got: f64, limit: f64, unit: Unit) -> Check {
        self.compared(Measured {
            at_most: Some(limit),
            ..Measured::new(got, unit)
        })
    }

    /// Expects `got` to be below `limit`. `NaN` fails.
    #[must_use]
    pub fn below(self, got: f64, limit: f64, unit: Unit) -> Check {
        self.compared(Measured {
            below: Some(limit),
            ..Measured::new(got, unit)
        })
    }

    /// Expects `got` to be at least `limit`. `NaN` fails.
    #[must_use]
    pub fn at_least(self, got: f64, limit: f64, unit: Unit) -> Check {
        self.compared(Measured {
            at_least: Some(limit),
            ..Measured::new(got, unit)
        })
    }

    /// Expects `got` to lie between `low` and `high`, inclusive. `NaN` fails.
    #[must_use]
    pub fn between(self, got: f64, low: f64, high: f64, unit: Unit) -> Check {
        self.compared(Measured {
            at_least: Some(low),
            at_most: Some(high),
            ..Measured::new(got, unit)
        })
    }

    /// Expects `got` to equal `want` exactly.
    #[must_use]
    pub fn equal<T: PartialEq + std::fmt::Display>(self, got: &T, want: &T) -> Check {
        Check {
            pass: got == want,
            ..self.said(want.to_string(), got.to_string())
        }
    }

    fn compared(self, measured: Measured) -> Check {
        let got = measured.unit.shown(measured.measured);
        Check {
            pass: measured.holds(),
            measured: Some(measured),
            ..self.said(measured.want(), got)
        }
    }

    fn said(self, want: String, got: String) -> Check {
        Check {
            name: self.name,
            want,
            got,
            pass: false,
            basis: self.basis,
            is_judged: true,
            measured: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: limits are inclusive except for `below`, and `NaN` holds nowhere.
    #[test]
    fn checks_are_sharp() {
        let unit = Unit::Plain;
        let subject = || Check::counted("a");
        assert!(subject().at_most(2.0, 2.0, unit).pass);
        assert!(!subject().at_most(2.001, 2.0, unit).pass);
        assert!(subject().below(1.999, 2.0, unit).pass);
        assert!(!subject().below(2.0, 2.0, unit).pass);
        assert!(subject().at_least(2.0, 2.0, unit).pass);
        assert!(!subject().at_least(1.999, 2.0, unit).pass);
        assert!(subject().between(1.0, 1.0, 2.0, unit).pass);
        assert!(!subject().between(2.001, 1.0, 2.0, unit).pass);
        assert!(!subject().between(0.999, 1.0, 2.0, unit).pass);
        for check in [
            subject().at_most(f64::NAN, 2.0, unit),
            subject().below(f64::NAN, 2.0, unit),
            subject().at_least(f64::NAN, 2.0, unit),
            subject().between(f64::NAN, 1.0, 2.0, unit),
        ] {
            assert!(!check.pass, "{check:?}");
        }
    }

    /// Goal: bounds are shown with their unit.
    #[test]
    fn bounds_are_shown_with_their_unit() {
        let subject = || Check::timed("a");
        let shown = [
            subject().at_most(1.0, 2.0, Unit::Ns).want,
            subject().below(1.0, 0.5, Unit::Percent).want,
            subject().at_least(1.0, 2.0, Unit::Ratio).want,
            subject().between(1.0, 2.0, 3.0, Unit::Seconds).want,
        ];
        let want = ["<= 2.00 ns", "< 0.50 %", ">= 2.000", "2.00 s to 3.00 s"];
        assert_eq!(shown, want);
    }
}
