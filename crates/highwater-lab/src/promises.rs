//! Promises about times: readings of several runs, their median and spread, and verdicts.
//!
//! A *reading* is one run's measurement of a promise, by a bench or an experiment. Benches print a
//! JSON object for each on a line of its own; experiments have checks that are decided by times.
//! `.ci/bench` collects the readings of interleaved runs and prints this table.
//!
//! Invariant: a promise holds if every run has measured it and the median is within the bounds. A
//! promise that one run lacks does not hold.

use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::experiments::clock::median;
use crate::report::Measured;
use crate::report::text::{Side, write_rows};

/// One run's measurement of one promise.
#[derive(Clone, Debug, Deserialize)]
pub struct Reading {
    name: String,
    #[serde(flatten)]
    measured: Measured,
}

/// Readings of one run, or why there are none.
pub type Readings = Result<Vec<Reading>, String>;

/// Parses the readings among the lines that a bench printed.
///
/// # Errors
///
/// When there is none, and the bench does not say that it promises nothing on this machine.
pub fn readings_of_bench(printed: &str) -> Readings {
    let mut readings = Vec::new();
    for line in printed.lines().filter(|line| line.starts_with('{')) {
        let object: Value = serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
        if object["figure"].is_string() {
            // Compared, and not promised: `comparison.rs`.
            continue;
        }
        if object["nothing_promised"].is_string() {
            return Ok(Vec::new());
        }
        readings.push(reading_of(&object)?);
    }
    match readings.is_empty() {
        true => Err("it has printed no promise".to_owned()),
        false => Ok(readings),
    }
}

/// Returns the checks of times in an experiment's outcome, as JSON.
///
/// # Errors
///
/// When it is no outcome, a check of counts fails, or a check of times compares no numbers.
pub fn readings_of_outcome(printed: &str) -> Readings {
    let outcome: Value = serde_json::from_str(printed).map_err(|e| e.to_string())?;
    let checks = outcome["checks"].as_array().ok_or("it has no checks")?;
    let (timed, counted): (Vec<&Value>, Vec<&Value>) = checks
        .iter()
        .partition(|check| check["decided_by"] == "times");
    if let Some(failed) = counted.into_iter().find(|check| check["pass"] != true) {
        return Err(format!("a check of counts fails: {failed}"));
    }
    timed.into_iter().map(reading_of).collect()
}

fn reading_of(object: &Value) -> Result<Reading, String> {
    Reading::deserialize(object).map_err(|e| format!("{e}: {object}"))
}

/// A promise and its readings, in the order of the runs.
#[derive(Clone, Debug)]
struct Promise {
    /// The bench or experiment.
    source: String,
    name: String,
    /// Reading of the first run: its bounds are those of all.
    first: Measured,
    measured: Vec<f64>,
}

impl Promise {
    fn median(&self) -> Measured {
        Measured {
            measured: median(self.measured.clone()),
            ..self.first
        }
    }

    /// Returns the minimum and the maximum of all runs.
    fn spread(&self) -> [f64; 2] {
        [f64::min, f64::max].map(|pick| self.measured.iter().copied().fold(f64::NAN, pick))
    }

    fn holds(&self, runs: usize) -> bool {
        let is_whole = self.measured.len() == runs && !self.measured.iter().any(|m| m.is_nan());
        is_whole && self.median().holds()
    }
}

/// All promises, and the number of runs that should measure them.
#[derive(Clone, Debug)]
pub struct Promises {
    runs: usize,
    promises: Vec<Promise>,
    /// Failed runs, with the reason.
    failures: Vec<String>,
    /// Whether runs were too short to judge times.
    is_quick: bool,
}

impl Promises {
    /// Creates an empty table for `runs` runs.
    #[must_use]
    pub const fn of_runs(runs: usize) -> Self {
        Self {
            runs,
            promises: Vec::new(),
            failures: Vec::new(),
            is_quick: false,
        }
    }

    /// Creates an empty table for `runs` runs that are shown and not judged.
    #[must_use]
    pub fn unjudged(runs: usize) -> Self {
        Self {
            is_quick: true,
            ..Self::of_runs(runs)
        }
    }

    /// Adds the readings of a run of `source`.
    pub fn add(&mut self, source: &str, readings: Readings) {
        match readings {
            Err(failure) => self.failures.push(format!("{source}: {failure}")),
            Ok(readings) => readings.into_iter().for_each(|one| self.read(source, one)),
        }
    }

    fn read(&mut self, source: &str, Reading { name, measured }: Reading) {
        let is_it = |known: &&mut Promise| known.source == source && known.name == name;
        match self.promises.iter_mut().find(is_it) {
            Some(known) => known.measured.push(measured.measured),
            None => self.promises.push(Promise {
                source: source.to_owned(),
                name,
                first: measured,
                measured: vec![measured.measured],
            }),
        }
    }

    /// Returns whether a run has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Returns whether every run has succeeded and, if times are judged, every promise holds.
    #[must_use]
    pub fn hold(&self) -> bool {
        let judged = || self.promises.iter().all(|promise| promise.holds(self.runs));
        !self.has_failed() && !self.promises.is_empty() && (self.is_quick || judged())
    }

    /// Returns the table as one JSON object: for each promise the median, the spread and the
    /// measurement of each run, in its unit.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let promise = |promise: &Promise| {
            let mut object = json!(promise.median());
            object["source"] = json!(promise.source);
            object["name"] = json!(promise.name);
            object["spread"] = json!(promise.spread());
            object["runs"] = json!(promise.measured);
            if !self.is_quick {
                object["holds"] = json!(promise.holds(self.runs));
            }
            object
        };
        let promises: Vec<Value> = self.promises.iter().map(promise).collect();
        json!({
            "runs": self.runs,
            "judged": !self.is_quick,
            "promises": promises,
            "failures": self.failures,
            "pass": self.hold(),
        })
    }

    fn row(&self, promise: &Promise) -> Vec<String> {
        let unit = promise.first.unit;
        let [least, most] = promise.spread().map(|value| unit.shown(value));
        let verdict = match (self.is_quick, promise.holds(self.runs)) {
            (true, _) => "not judged".to_owned(),
            (false, true) => "yes".to_owned(),
            (false, false) if promise.measured.len() < self.runs => {
                format!("NO: {} of {} runs", promise.measured.len(), self.runs)
            }
            (false, false) => "NO".to_owned(),
        };
        let median = promise.median();
        vec![
            promise.source.clone(),
            promise.name.clone(),
            median.want(),
            unit.shown(median.measured),
            format!("{least} to {most}"),
            verdict,
        ]
    }
}

impl fmt::Display for Promises {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["of", "promise", "bound", "measured", "spread", "holds"];
        let header = header.map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> = std::iter::once(header)
            .chain(self.promises.iter().map(|promise| self.row(promise)))
            .collect();
        write_rows(f, &rows, &[Side::Left, Side::Left])?;
        let runs = self.runs;
        for failure in &self.failures {
            writeln!(f, "FAILED: {failure}")?;
        }
        let total = self.promises.len();
        let broken = self.promises.iter().filter(|promise| !promise.holds(runs));
        match self.is_quick {
            true => writeln!(f, "{total} promises, {runs} quick runs, not judged"),
            false => writeln!(
                f,
                "{} of {total} promises hold in the median of {runs} runs",
                total - broken.count()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCH: &str = "2 CPUs\n  table 1.0\n\
        {\"figure\":\"add\",\"threads\":1,\"ns\":3.0}\n\
        {\"name\":\"add\",\"measured\":3.0,\"at_least\":null,\"at_most\":4.0,\"unit\":\"plain\"}\n";

    fn bench(measured: &str) -> Readings {
        readings_of_bench(&BENCH.replace("3.0", measured))
    }

    fn of(measured: &[&str]) -> Promises {
        let mut promises = Promises::of_runs(measured.len());
        for one in measured {
            promises.add("bench", bench(one));
        }
        promises
    }

    /// Goal: the median decides, not the best run or the worst. Method: readings on both sides of a
    /// bound of 4.
    #[test]
    fn medians_decide() {
        assert!(of(&["9.0", "3.0", "3.9", "9.0", "1.0"]).hold());
        assert!(!of(&["9.0", "3.0", "4.1", "9.0", "1.0"]).hold());
        assert!(!of(&[]).hold(), "nothing was measured");
    }

    /// Goal: a missing number never keeps a promise. Method: a run without the promise, a run whose
    /// number is `NaN`, and a run that failed.
    #[test]
    fn what_is_missing_does_not_hold() {
        let mut promises = Promises::of_runs(3);
        promises.add("bench", bench("1.0"));
        promises.add("bench", bench("1.0"));
        assert!(!promises.hold());
        assert!(promises.to_string().contains("NO: 2 of 3 runs"));
        promises.add("bench", bench("1.0"));
        assert!(promises.hold());
        assert!(!of(&["1.0", "null", "1.0"]).hold());
        promises.add("other", Err("it has ended with 101".to_owned()));
        assert!(!promises.hold() && promises.has_failed());
        assert!(readings_of_bench("no promise\n").is_err());
        let nothing = readings_of_bench("{\"nothing_promised\":\"no sequences\"}\n");
        assert!(nothing.unwrap().is_empty());
    }

    /// Goal: exactly an experiment's checks of times are read, and counts that fail are no reading.
    /// Method: an outcome as `highwater lab --json` prints it.
    #[test]
    fn checks_of_times_are_read() {
        use crate::report::{Check, Figures, Judge, Outcome, Unit};
        let outcome = |counted: i32| Outcome {
            experiment: "demo",
            thread: "none",
            config: Figures::default(),
            rows: Vec::new(),
            published: Vec::new(),
            checks: vec![
                Check::counted("sum").equal(&counted, &3),
                Check::timed("time").below(0.5, 1.0, Unit::Percent),
            ],
        };
        let readings = |counted| {
            let outcome = outcome(counted).judged_by(Judge::Counts);
            readings_of_outcome(&serde_json::to_string(&outcome).unwrap())
        };
        let mut promises = Promises::of_runs(1);
        promises.add("demo", readings(3));
        assert!(promises.hold());
        assert_eq!(promises.promises.len(), 1);
        assert!(promises.promises[0].first.below.is_some());
        assert!(readings(4).unwrap_err().contains("\"sum\""));
        let without_numbers = "{\"checks\":[{\"name\":\"a\",\"decided_by\":\"times\"}]}";
        assert!(readings_of_outcome(without_numbers).is_err());
    }

    /// Goal: the table shows bound, median, spread and verdict; quick runs are shown and not
    /// judged. Method: compare with the text.
    #[test]
    fn the_table_is_as_documented() {
        let mut promises = of(&["9.0", "3.0", "4.5"]);
        assert_eq!(
            promises.to_string(),
            "of     promise  bound  measured  spread  holds\n\
             bench  add       <= 4      4.50  3 to 9     NO\n\
             0 of 1 promises hold in the median of 3 runs\n"
        );
        let json = promises.to_json();
        assert_eq!(json["promises"][0]["measured"], 4.5);
        assert_eq!(json["promises"][0]["spread"], json!([3.0, 9.0]));
        assert_eq!(json["promises"][0]["runs"], json!([9.0, 3.0, 4.5]));
        assert_eq!(json["promises"][0]["holds"], false);
        assert_eq!(json["pass"], false);
        promises.is_quick = true;
        assert!(promises.hold());
        assert!(promises.to_string().contains("not judged"));
    }
}
