//! Figures of benches in two checkouts, from runs that take turns: is anything slower?
//!
//! Each row of a bench is a *figure*: nanoseconds each, on a number of threads. `.ci/bench
//! --against` collects those of both checkouts and prints this table.
//!
//! Invariant: a comparison passes if each run of either checkout has measured, and no figure's
//! median here is more than [`SLOWER_MAX`] times its median there. Figures of one checkout alone
//! are counted and not compared. Quick runs are shown and not judged.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::experiments::clock::median;
use crate::report::text::{Side, write_rows};

/// Bound of a figure's median here, in its median there.
pub const SLOWER_MAX: f64 = 1.05;

/// One run's measurement of one row of a bench.
#[derive(Clone, Debug, Deserialize)]
pub struct BenchFigure {
    figure: String,
    threads: u32,
    ns: f64,
}

/// Parses the figures among the lines that a bench printed; some benches have promises alone. Rows
/// of one name are numbered.
///
/// # Errors
///
/// When such a line is no figure.
pub fn figures_of_bench(printed: &str) -> Result<Vec<BenchFigure>, String> {
    let lines = printed
        .lines()
        .filter(|line| line.starts_with("{\"figure\""));
    let mut seen: BTreeMap<(u32, String), u32> = BTreeMap::new();
    let figures = lines.map(|line| {
        let mut figure: BenchFigure =
            serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
        let times = seen.entry((figure.threads, figure.figure.clone()));
        let times = times.and_modify(|times| *times += 1).or_insert(1);
        if *times > 1 {
            figure.figure = format!("{} ({times})", figure.figure);
        }
        Ok(figure)
    });
    figures.collect()
}

/// The checkout that a run measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkout {
    /// The one that is compared.
    Here,
    /// The one that it is compared with.
    There,
}

/// Nanoseconds of each run, of both checkouts.
#[derive(Clone, Debug, Default)]
struct Runs {
    here: Vec<f64>,
    there: Vec<f64>,
}

impl Runs {
    /// Returns the medians here and there, and their ratio; `None` if one checkout lacks it.
    fn compared(&self) -> Option<[f64; 3]> {
        let is_measured = !self.here.is_empty() && !self.there.is_empty();
        let [here, there] = [&self.here, &self.there].map(|runs| median(runs.clone()));
        is_measured.then_some([here, there, here / there])
    }

    fn is_slower(&self) -> bool {
        // Also where a figure is no number.
        self.compared()
            .is_some_and(|[.., ratio]| ratio.is_nan() || ratio > SLOWER_MAX)
    }
}

/// The figures of all benches, in both checkouts.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// By bench, threads and row.
    figures: BTreeMap<(String, u32, String), Runs>,
    /// Failed runs, with the reason.
    failures: Vec<String>,
    is_quick: bool,
}

impl Comparison {
    /// Creates an empty comparison of runs that only show that the benches work: it passes if none
    /// fails.
    #[must_use]
    pub fn unjudged() -> Self {
        Self {
            is_quick: true,
            ..Self::default()
        }
    }

    /// Adds the figures of a run of `bench`, or the reason why there are none.
    pub fn add(&mut self, bench: &str, of: Checkout, figures: Result<Vec<BenchFigure>, String>) {
        match figures {
            Err(failure) => self.failures.push(format!("{bench}, {of:?}: {failure}")),
            Ok(figures) => figures.into_iter().for_each(
                |BenchFigure {
                     figure,
                     threads,
                     ns,
                 }| {
                    let runs = self
                        .figures
                        .entry((bench.to_owned(), threads, figure))
                        .or_default();
                    match of {
                        Checkout::Here => runs.here.push(ns),
                        Checkout::There => runs.there.push(ns),
                    }
                },
            ),
        }
    }

    /// Returns whether a run has failed.
    fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Returns whether every run has succeeded and no figure is slower here.
    #[must_use]
    pub fn passes(&self) -> bool {
        let is_any = self.figures.values().any(|runs| runs.compared().is_some());
        let holds = is_any && !self.figures.values().any(Runs::is_slower);
        !self.has_failed() && (self.is_quick || holds)
    }

    /// Returns the table as one JSON object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let figure = |((bench, threads, name), runs): (&(String, u32, String), &Runs)| {
            json!({
                "bench": bench,
                "threads": threads,
                "name": name,
                "here_ns": runs.here,
                "there_ns": runs.there,
                "ratio": runs.compared().map(|[.., ratio]| ratio),
                "slower": runs.is_slower(),
            })
        };
        json!({
            "slower_max": SLOWER_MAX,
            "judged": !self.is_quick,
            "figures": self.figures.iter().map(figure).collect::<Vec<_>>(),
            "failures": self.failures,
            "pass": self.passes(),
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = [
            "of",
            "threads, row",
            "there ns",
            "here ns",
            "ratio",
            "slower",
        ];
        let row = |((bench, threads, name), runs): (&(String, u32, String), &Runs)| {
            let [here, there, ratio] = runs.compared()?;
            Some(vec![
                bench.clone(),
                format!("{threads}, {name}"),
                format!("{there:.2}"),
                format!("{here:.2}"),
                format!("{ratio:.3}"),
                match (self.is_quick, runs.is_slower()) {
                    (true, _) => "-",
                    (_, true) => "YES",
                    (_, false) => "no",
                }
                .to_owned(),
            ])
        };
        let compared: Vec<Vec<String>> = self.figures.iter().filter_map(row).collect();
        let header = header.map(str::to_owned).to_vec();
        let nr_compared = compared.len();
        let rows: Vec<_> = std::iter::once(header).chain(compared).collect();
        write_rows(f, &rows, &[Side::Left, Side::Left])?;
        for failure in &self.failures {
            writeln!(f, "FAILED: {failure}")?;
        }
        let alone = self.figures.len() - nr_compared;
        if alone > 0 {
            writeln!(f, "{alone} figures are of one checkout alone")?;
        }
        if self.is_quick {
            return writeln!(f, "{nr_compared} figures of quick runs, not judged");
        }
        let slower = self.figures.values().filter(|runs| runs.is_slower());
        writeln!(
            f,
            "{} of {nr_compared} figures are slower here by more than {:.0} %",
            slower.count(),
            100.0 * (SLOWER_MAX - 1.0)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a comparison of one figure, from its runs here and there.
    fn of(here: &[f64], there: &[f64]) -> Comparison {
        let mut comparison = Comparison::default();
        for (checkout, runs) in [(Checkout::Here, here), (Checkout::There, there)] {
            for ns in runs {
                let line = format!("{{\"figure\":\"add\",\"threads\":2,\"ns\":{ns:?}}}");
                comparison.add("bench", checkout, figures_of_bench(&line));
            }
        }
        comparison
    }

    /// Goal: medians decide, with a margin of 5 %. Method: figures on both sides of it.
    #[test]
    fn a_figure_may_be_five_percent_slower() {
        assert!(of(&[104.0, 300.0, 90.0], &[100.0, 10.0, 900.0]).passes());
        assert!(!of(&[106.0, 300.0, 90.0], &[100.0, 10.0, 900.0]).passes());
    }

    /// Goal: what was not measured does not pass. Method: runs without figures, figures of one
    /// checkout alone, and a figure that is no number.
    #[test]
    fn nothing_passes_unmeasured() {
        assert!(!Comparison::default().passes());
        assert!(!of(&[1.0], &[]).passes());
        let without = figures_of_bench("  add  1.0\n{\"name\":\"add\"}\n");
        assert!(without.unwrap().is_empty());
        assert!(figures_of_bench("{\"figure\":\"add\",\"ns\":\"fast\"}\n").is_err());
        let mut comparison = of(&[1.0], &[1.0]);
        assert!(comparison.passes());
        comparison.add(
            "other",
            Checkout::There,
            Err("it has ended with 101".to_owned()),
        );
        assert!(!comparison.passes());
    }

    /// Goal: rows of one name are figures of their own. Method: one of two is slower.
    #[test]
    fn rows_of_one_name_are_told_apart() {
        let run = |second: f64| {
            let line = |ns: f64| format!("{{\"figure\":\"add\",\"threads\":1,\"ns\":{ns:?}}}\n");
            figures_of_bench(&(line(10.0) + &line(second)))
        };
        let mut comparison = Comparison::default();
        comparison.add("bench", Checkout::There, run(20.0));
        comparison.add("bench", Checkout::Here, run(20.0));
        assert!(comparison.passes());
        comparison.add("bench", Checkout::Here, run(40.0));
        assert!(!comparison.passes());
        assert_eq!(comparison.figures.len(), 2);
    }

    /// Goal: quick runs judge no time, but must run. Method: a figure twice as slow; a failed run.
    #[test]
    fn quick_runs_are_not_judged() {
        let mut comparison = Comparison {
            is_quick: true,
            ..of(&[2.0], &[1.0])
        };
        assert!(comparison.passes());
        let text = comparison.to_string();
        assert!(
            text.ends_with("  2.000       -\n1 figures of quick runs, not judged\n"),
            "{text}"
        );
        comparison.add("bench", Checkout::Here, Err("ended".to_owned()));
        assert!(!comparison.passes());
    }

    /// Goal: the table shows medians, ratio and verdict. Method: compare with the text.
    #[test]
    fn the_table_is_as_documented() {
        let comparison = of(&[12.0, 11.0, 13.0], &[10.0, 9.0, 20.0]);
        assert_eq!(
            comparison.to_string(),
            "of     threads, row  there ns  here ns  ratio  slower\n\
             bench  2, add           10.00    12.00  1.200     YES\n\
             1 of 1 figures are slower here by more than 5 %\n"
        );
        assert_eq!(
            comparison.to_json()["figures"][0]["here_ns"],
            json!([12.0, 11.0, 13.0])
        );
        assert_eq!(comparison.to_json()["pass"], false);
    }
}
