//! What an experiment found, for programs and for people.
//!
//! An [`Outcome`] is what the experiment ran with, one row of figures for each variant, the figures
//! that were published, and checks. Serialised, it is the JSON object that tools depend on:
//!
//! ```text
//! {"experiment", "thread", "config": {...}, "rows": [{"variant", "part", "source", <figures>}],
//!  "published": [...], "checks": [{"name", "want", "got", "pass"}], "pass"}
//! ```
//!
//! A figure's unit is the end of its name: `_bytes`, `_pages`, `_us`, `_ns`, `_s`, `_per_s`, `_ratio`, `_percent`;
//! a name without one is a plain number. [`Table`] shows bytes and times in units that suit, and puts published rows above
//! measured ones in one table for each *part*: rows that answer one question with the same figures.
//!
//! Invariant: an outcome passes when it has checks and all of them hold. One without checks fails:
//! it has shown nothing.

mod figures;
mod table;
pub(crate) mod text;

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

pub use figures::{Figures, Unit, Value};
pub use table::Table;

/// What one run of an experiment found.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The experiment's name.
    pub experiment: &'static str,
    /// The discussion that it reproduces.
    pub thread: &'static str,
    /// What it ran with; a `note_...` figure says what the rows can and cannot show.
    pub config: Figures,
    /// What was measured here.
    pub rows: Vec<Row>,
    /// What others published, and what real kernels showed in the same experiment.
    pub published: Vec<Row>,
    /// What must hold.
    pub checks: Vec<Check>,
}

impl Outcome {
    /// Whether there are checks and all of them hold.
    #[must_use]
    pub fn passes(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.pass)
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Outcome", 7)?;
        object.serialize_field("experiment", self.experiment)?;
        object.serialize_field("thread", self.thread)?;
        object.serialize_field("config", &self.config)?;
        object.serialize_field("rows", &self.rows)?;
        object.serialize_field("published", &self.published)?;
        object.serialize_field("checks", &self.checks)?;
        object.serialize_field("pass", &self.passes())?;
        object.end()
    }
}

/// Where the figures of a row come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Measured or simulated in this run.
    Run,
    /// Published in the thread, under the row names that it has there.
    Thread,
    /// Measured on a real kernel, elsewhere, in the same experiment.
    Kernel,
    /// Computed: a bound, not a measurement.
    Bound,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Thread => "thread",
            Self::Kernel => "kernel",
            Self::Bound => "bound",
        }
    }
}

/// The figures of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The variant, unique in its part and source.
    pub variant: String,
    /// The question that the row answers, as the heading of its table.
    pub part: &'static str,
    /// Where the figures come from.
    pub source: Source,
    /// The figures.
    pub figures: Figures,
}

impl Row {
    /// A row of `part` without figures.
    #[must_use]
    pub fn new(part: &'static str, source: Source, variant: impl Into<String>) -> Self {
        Self {
            variant: variant.into(),
            part,
            source,
            figures: Figures::default(),
        }
    }

    /// The row with one more figure.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.figures = self.figures.with(name, value);
        self
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("variant", &self.variant)?;
        object.serialize_entry("part", self.part)?;
        object.serialize_entry("source", &self.source)?;
        for (name, value) in self.figures.iter() {
            object.serialize_entry(name, value)?;
        }
        object.end()
    }
}

/// Something that must hold, and whether it does.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// What is checked.
    pub name: String,
    /// What is wanted, with its unit.
    pub want: String,
    /// What was found, with its unit.
    pub got: String,
    /// Whether it holds.
    pub pass: bool,
}

impl Check {
    /// `got` must not be above `limit`. A value that is no number fails.
    #[must_use]
    pub fn at_most(name: impl Into<String>, got: f64, limit: f64, unit: Unit) -> Self {
        let want = format!("<= {}", unit.shown(limit));
        Self {
            name: name.into(),
            want,
            got: unit.shown(got),
            pass: got <= limit,
        }
    }

    /// `got` must not be below `limit`. A value that is no number fails.
    #[must_use]
    pub fn at_least(name: impl Into<String>, got: f64, limit: f64, unit: Unit) -> Self {
        let want = format!(">= {}", unit.shown(limit));
        Self {
            name: name.into(),
            want,
            got: unit.shown(got),
            pass: got >= limit,
        }
    }

    /// `got` must lie between `low` and `high`, or on them. A value that is no number fails.
    #[must_use]
    pub fn between(name: impl Into<String>, got: f64, low: f64, high: f64, unit: Unit) -> Self {
        let want = format!("{} to {}", unit.shown(low), unit.shown(high));
        Self {
            name: name.into(),
            want,
            got: unit.shown(got),
            pass: low <= got && got <= high,
        }
    }

    /// `got` must be `want`, exactly.
    #[must_use]
    pub fn equal<T: PartialEq + std::fmt::Display>(
        name: impl Into<String>,
        got: &T,
        want: &T,
    ) -> Self {
        Self {
            name: name.into(),
            want: want.to_string(),
            got: got.to_string(),
            pass: got == want,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(checks: Vec<Check>) -> Outcome {
        Outcome {
            experiment: "demo",
            thread: "a-thread",
            config: Figures::default().with("cpus", 2_u64),
            rows: vec![
                Row::new("cost", Source::Run, "ours")
                    .with("read_ns", 1.5)
                    .with("error_bytes", -4096_i64),
            ],
            published: vec![Row::new("cost", Source::Thread, "flat").with("read_ns", 9.0)],
            checks,
        }
    }

    /// Goal: tools can depend on the object. Method: compare with the text, fields in order.
    #[test]
    fn the_object_is_as_documented() {
        let found = outcome(vec![Check::at_most("read", 1.5, 2.0, Unit::Ns)]);
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(
            json,
            "{\"experiment\":\"demo\",\"thread\":\"a-thread\",\"config\":{\"cpus\":2},\
             \"rows\":[{\"variant\":\"ours\",\"part\":\"cost\",\"source\":\"run\",\"read_ns\":1.5,\
             \"error_bytes\":-4096}],\
             \"published\":[{\"variant\":\"flat\",\"part\":\"cost\",\"source\":\"thread\",\"read_ns\":9.0}],\
             \"checks\":[{\"name\":\"read\",\"want\":\"<= 2.00 ns\",\"got\":\"1.50 ns\",\"pass\":true}],\
             \"pass\":true}"
        );
    }

    /// Goal: no outcome passes by having nothing to fail.
    #[test]
    fn an_outcome_without_checks_fails() {
        let holds = Check::equal("sum", &3, &3);
        let fails = Check::equal("sum", &4, &3);
        assert!(!outcome(Vec::new()).passes());
        assert!(outcome(vec![holds.clone()]).passes());
        assert!(!outcome(vec![holds, fails]).passes());
    }

    /// Goal: limits are inclusive, and what is no number holds nowhere.
    #[test]
    fn checks_are_sharp() {
        let unit = Unit::Plain;
        assert!(Check::at_most("a", 2.0, 2.0, unit).pass);
        assert!(!Check::at_most("a", 2.001, 2.0, unit).pass);
        assert!(Check::at_least("a", 2.0, 2.0, unit).pass);
        assert!(!Check::at_least("a", 1.999, 2.0, unit).pass);
        assert!(Check::between("a", 1.0, 1.0, 2.0, unit).pass);
        assert!(!Check::between("a", 2.001, 1.0, 2.0, unit).pass);
        assert!(!Check::at_most("a", f64::NAN, 2.0, unit).pass);
        assert!(!Check::at_least("a", f64::NAN, 2.0, unit).pass);
        assert!(!Check::between("a", f64::NAN, 1.0, 2.0, unit).pass);
    }
}
