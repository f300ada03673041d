//! The outcome of an experiment, and its rows.

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use super::check::{Basis, Check, Judge};
use super::figures::{Figures, Value};

/// Results of one run of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The experiment's name.
    pub experiment: &'static str,
    /// The mailing-list discussion that it reproduces.
    pub thread: &'static str,
    /// Configuration; a `note_...` figure says what the rows can and cannot show.
    pub config: Figures,
    /// Results of this run.
    pub rows: Vec<Row>,
    /// Published results, and those of real kernels in the same experiment.
    pub published: Vec<Row>,
    /// Expectations.
    pub checks: Vec<Check>,
}

impl Outcome {
    /// Iterates over the checks that decide whether the outcome passes.
    pub fn judged(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.is_judged)
    }

    /// Chooses the checks that the verdict includes.
    #[must_use]
    pub fn judged_by(mut self, judge: Judge) -> Self {
        for check in &mut self.checks {
            check.is_judged = judge == Judge::All || check.basis == Basis::Counts;
        }
        self
    }

    /// Returns whether there are judged checks and all of them hold.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.judged().next().is_some() && self.judged().all(|check| check.pass)
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

/// Origin of a row's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Measured or simulated in this run.
    Run,
    /// Published in the discussion, under its own row names.
    Thread,
    /// Measured elsewhere on a real kernel, in the same experiment.
    Kernel,
    /// Computed: a bound, not a measurement.
    Bound,
}

impl Source {
    pub(super) fn name(self) -> &'static str {
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
    /// Origin of the figures.
    pub source: Source,
    /// The figures.
    pub figures: Figures,
}

impl Row {
    /// Returns a row of `part` without figures.
    #[must_use]
    pub fn new(part: &'static str, source: Source, variant: impl Into<String>) -> Self {
        Self {
            variant: variant.into(),
            part,
            source,
            figures: Figures::default(),
        }
    }

    /// Adds a figure.
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

#[cfg(test)]
mod tests {
    use super::super::{Subject, Unit};
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

    /// Goal: the JSON object is as documented. Method: compare with the text, fields in order.
    #[test]
    fn the_object_is_as_documented() {
        let found = outcome(vec![Check::timed("read").at_most(1.5, 2.0, Unit::Ns)]);
        let json = serde_json::to_string(&found).unwrap();
        assert_eq!(
            json,
            "{\"experiment\":\"demo\",\"thread\":\"a-thread\",\"config\":{\"cpus\":2},\
             \"rows\":[{\"variant\":\"ours\",\"part\":\"cost\",\"source\":\"run\",\"read_ns\":1.5,\
             \"error_bytes\":-4096}],\
             \"published\":[{\"variant\":\"flat\",\"part\":\"cost\",\"source\":\"thread\",\"read_ns\":9.0}],\
             \"checks\":[{\"name\":\"read\",\"want\":\"<= 2.00 ns\",\"got\":\"1.50 ns\",\"pass\":true,\
             \"decided_by\":\"times\",\"judged\":true,\"measured\":1.5,\"at_most\":2.0,\"unit\":\"ns\"}],\
             \"pass\":true}"
        );
    }

    /// Goal: an outcome without checks does not pass.
    #[test]
    fn an_outcome_without_checks_fails() {
        let holds = Check::counted("sum").equal(&3, &3);
        let fails = Check::counted("sum").equal(&4, &3);
        assert!(!outcome(Vec::new()).passes());
        assert!(outcome(vec![holds.clone()]).passes());
        assert!(!outcome(vec![holds, fails]).passes());
    }

    /// Goal: a verdict by counts ignores times only, and fails if there is nothing else. Method:
    /// every pair of a count and a time that holds or fails, judged both ways.
    #[test]
    fn times_are_left_out_of_a_verdict_by_counts() {
        let check = |subject: Subject, holds: bool| subject.equal(&holds, &true);
        for counts_hold in [true, false] {
            for times_hold in [true, false] {
                let count = check(Check::counted("count"), counts_hold);
                let time = check(Check::timed("time"), times_hold);
                let found = outcome(vec![count, time]).judged_by(Judge::All);
                assert_eq!(found.passes(), counts_hold && times_hold);
                let found = found.judged_by(Judge::Counts);
                assert_eq!(found.passes(), counts_hold);
                assert_eq!(found.checks.len(), 2, "both are shown");
            }
        }
        let only_times = outcome(vec![check(Check::timed("time"), true)]);
        assert!(!only_times.judged_by(Judge::Counts).passes());
    }
}
