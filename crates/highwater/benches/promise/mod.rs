//! Promises of a bench, with their measured values: as text, and with `--json` for `.ci/bench`.
//!
//! A run by hand judges itself: it fails when a promise is not kept. With `--json` it prints one
//! object for each promise on a line of its own, among the tables, and leaves the judgement to the
//! reader, which has several runs.

use std::ops::{Bound, RangeBounds};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::timing::is_bench;

/// A measured number and its bound.
pub(crate) struct Promise {
    name: String,
    measured: f64,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

impl Promise {
    /// Returns a promise that `measured`, a ratio or a rate, lies in `bounds`: `..=2.0` or
    /// `15.0..`.
    pub(crate) fn new(
        name: impl Into<String>,
        measured: f64,
        bounds: impl RangeBounds<f64>,
    ) -> Self {
        let limit = |bound: Bound<&f64>| match bound {
            Bound::Included(limit) => Some(*limit),
            Bound::Unbounded => None,
            Bound::Excluded(limit) => panic!("{limit} itself is a bound that must hold"),
        };
        Self {
            name: name.into(),
            measured,
            at_least: limit(bounds.start_bound()),
            at_most: limit(bounds.end_bound()),
        }
    }

    fn is_kept(&self) -> bool {
        !self.measured.is_nan()
            && self.at_least.is_none_or(|limit| self.measured >= limit)
            && self.at_most.is_none_or(|limit| self.measured <= limit)
    }

    fn show(&self) {
        let limits = [("at least", self.at_least), ("at most", self.at_most)];
        let limits = limits
            .into_iter()
            .filter_map(|(word, limit)| Some(format!("{word} {}", limit?)));
        let limits: Vec<String> = limits.collect();
        println!(
            "  {:60}{:12.2}  {}: {}",
            self.name,
            self.measured,
            limits.join(", "),
            if self.is_kept() { "ok" } else { "NOT KEPT" }
        );
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "measured": self.measured,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "unit": "plain",
        })
    }
}

/// Shows the promises, or why there are none here; returns the program's exit status: without
/// `--bench`, or with `--quick`, nothing is judged.
pub(crate) fn report(promises: Result<&[Promise], &str>) -> ExitCode {
    let is_json = std::env::args().any(|argument| argument == "--json");
    let (kept, lines) = match promises {
        Ok(promises) => {
            println!("\npromises");
            promises.iter().for_each(Promise::show);
            let lines = promises.iter().map(Promise::json).collect();
            (promises.iter().all(Promise::is_kept), lines)
        }
        Err(reason) => {
            println!("\nnothing is promised here: {reason}");
            (true, vec![json!({ "nothing_promised": reason })])
        }
    };
    if is_json {
        lines.iter().for_each(|line| println!("{line}"));
    }
    ExitCode::from(u8::from(!kept && is_bench() && !is_json))
}
