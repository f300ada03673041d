//! The conclusion of an experiment in one line: a figure of ours beside that of another design.

use super::text::{grouped, round};
use super::{Outcome, Unit, Value};

/// The two figures of a conclusion.
#[derive(Clone, Copy, Debug)]
pub struct Headline {
    /// The table that holds both figures.
    pub part: &'static str,
    /// The quantity that the figures measure.
    pub noun: Noun,
    /// Our side.
    pub ours: Side,
    /// The other.
    pub theirs: Side,
}

/// One side of a conclusion.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// Its name in the conclusion.
    pub name: &'static str,
    /// Prefix of its row's variant.
    pub variant: &'static str,
    /// The figure.
    pub figure: &'static str,
}

/// The noun of the comparison.
#[derive(Clone, Copy, Debug)]
pub enum Noun {
    /// A mass noun: less time.
    Mass(&'static str),
    /// A count noun: fewer writes.
    Count(&'static str),
}

impl Headline {
    /// Compares a figure of two variants of one table, each under its own name.
    #[must_use]
    pub const fn of_variants(
        part: &'static str,
        figure: &'static str,
        noun: Noun,
        [ours, theirs]: [&'static str; 2],
    ) -> Self {
        Self {
            part,
            noun,
            ours: Side::named(ours, figure),
            theirs: Side::named(theirs, figure),
        }
    }

    /// Returns the conclusion of an outcome; `None` if a figure is missing or `NaN`.
    #[must_use]
    pub fn conclusion(&self, outcome: &Outcome) -> Option<String> {
        let ours = self.ours.amount(self.part, outcome)?;
        let theirs = self.theirs.amount(self.part, outcome)?;
        let shown = |side: Side, amount| format!("{} {}", side.name, side.unit().shown(amount));
        Some(format!(
            "{}, {}: {}",
            shown(self.ours, ours),
            shown(self.theirs, theirs),
            self.noun.compared(ours, theirs)
        ))
    }
}

impl Side {
    const fn named(name: &'static str, figure: &'static str) -> Self {
        Self {
            name,
            variant: name,
            figure,
        }
    }

    fn unit(self) -> Unit {
        Unit::of(self.figure).0
    }

    /// Returns the value of the figure.
    fn amount(self, part: &str, outcome: &Outcome) -> Option<f64> {
        let mut rows = outcome.rows.iter();
        let row = rows.find(|row| row.part == part && row.variant.starts_with(self.variant))?;
        let amount = row.figures.get(self.figure).and_then(Value::as_f64)?;
        amount.is_finite().then_some(amount.abs())
    }
}

impl Noun {
    /// Describes the ratio of `ours` to `theirs`.
    fn compared(self, ours: f64, theirs: f64) -> String {
        let (name, less, many) = match self {
            Self::Mass(name) => (name, "less", "much"),
            Self::Count(name) => (name, "fewer", "many"),
        };
        let (low, high) = (ours.min(theirs), ours.max(theirs));
        let word = if ours < theirs { less } else { "more" };
        // Below 5 %, the two figures tell more than a factor.
        if high <= low * 1.05 {
            return format!("as {many} {name}");
        }
        if low <= 0.0 {
            return format!("{word} {name}");
        }
        let factor = match high / low {
            factor if factor < 10.0 => format!("{factor:.1}"),
            factor => grouped(round(factor)),
        };
        format!("{factor} times {word} {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Figures, Row, Source};

    /// Goal: a conclusion says both figures and their ratio, also where ours is the worse.
    #[test]
    fn conclusions_name_both_sides_and_the_factor() {
        let outcome = |ours: f64, theirs: f64| Outcome {
            experiment: "demo",
            thread: "a-thread",
            config: Figures::default(),
            rows: vec![
                Row::new("a", Source::Run, "Highwater").with("error_bytes", ours),
                Row::new("a", Source::Run, "kernel").with("error_bytes", theirs),
            ],
            published: Vec::new(),
            checks: Vec::new(),
        };
        let sides = ["Highwater", "kernel"];
        let error = Headline::of_variants("a", "error_bytes", Noun::Mass("error"), sides);
        let said = |ours, theirs| error.conclusion(&outcome(ours, theirs)).unwrap();
        let mib = 1_048_576.0;
        assert_eq!(
            said(-8.7 * mib, 202.0 * mib),
            "Highwater 8.7 MiB, kernel 202.0 MiB: 23 times less error"
        );
        assert_eq!(
            said(3.0, 2.0),
            "Highwater 3 B, kernel 2 B: 1.5 times more error"
        );
        assert_eq!(
            said(100.0, 101.0),
            "Highwater 100 B, kernel 101 B: as much error"
        );
        assert_eq!(said(0.0, 101.0), "Highwater 0 B, kernel 101 B: less error");
        assert_eq!(said(0.0, 0.0), "Highwater 0 B, kernel 0 B: as much error");
        assert!(error.conclusion(&outcome(f64::NAN, 1.0)).is_none());
        let other = Headline { part: "b", ..error };
        assert!(other.conclusion(&outcome(1.0, 1.0)).is_none());
    }
}
