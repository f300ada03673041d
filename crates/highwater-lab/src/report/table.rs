//! An outcome as text: the configuration, a table for each part, and the checks.

use std::fmt;

use super::narrow;
use super::text::{Side, write_rows};
use super::{Check, Figures, Outcome, Row, Source, Unit};

/// Prefix of configuration figures that are remarks, shown last, each on lines of its own.
const NOTE: &str = "note_";

/// Width of remarks in a wide table.
const NOTE_COLUMNS: usize = 100;

/// Shows an [`Outcome`] as aligned text.
#[derive(Debug)]
pub struct Table<'a> {
    outcome: &'a Outcome,
    conclusion: Option<String>,
    width: Width,
}

/// Selection of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    /// Columns that fit a terminal of 80 columns.
    Fitting,
    /// All.
    Wide,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = self.outcome;
        writeln!(f, "{} ({})", outcome.experiment, outcome.thread)?;
        if let Some(conclusion) = &self.conclusion {
            self.write_broken(f, conclusion)?;
            writeln!(f)?;
        }
        self.config(f)?;
        for part in self.parts() {
            let rows: Vec<&Row> = self.rows().filter(|row| row.part == part).collect();
            writeln!(f)?;
            let cells = cells(&joined(&rows));
            match self.width {
                Width::Wide => {
                    writeln!(f, "{part}")?;
                    write_rows(f, &cells, &[Side::Left, Side::Left])?;
                }
                Width::Fitting => {
                    self.write_broken(f, part)?;
                    narrow::write_table(f, &cells)?;
                }
            }
        }
        self.notes(f)?;
        writeln!(f)?;
        self.checks(f)
    }
}

impl<'a> Table<'a> {
    /// Shows an outcome in 80 columns.
    #[must_use]
    pub const fn new(outcome: &'a Outcome) -> Self {
        Self {
            outcome,
            conclusion: None,
            width: Width::Fitting,
        }
    }

    /// Shows every column, at any width.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.width = Width::Wide;
        self
    }

    /// Shows a conclusion above the tables.
    #[must_use]
    pub fn concluding(mut self, conclusion: Option<String>) -> Self {
        self.conclusion = conclusion;
        self
    }

    fn columns(&self) -> usize {
        match self.width {
            Width::Fitting => narrow::COLUMNS,
            Width::Wide => NOTE_COLUMNS,
        }
    }

    /// Writes text in lines of the table's width.
    fn write_broken(&self, f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
        let mut lines = narrow::wrapped(text, self.columns()).into_iter();
        lines.try_for_each(|line| writeln!(f, "{line}"))
    }

    /// Iterates over published rows, then bounds, then rows of this run.
    fn rows(&self) -> impl Iterator<Item = &'a Row> {
        self.outcome.published.iter().chain(&self.outcome.rows)
    }

    /// Returns the parts in the order in which measured rows, then published ones, name them.
    fn parts(&self) -> Vec<&'static str> {
        let mut parts = Vec::new();
        for row in self.outcome.rows.iter().chain(&self.outcome.published) {
            if !parts.contains(&row.part) {
                parts.push(row.part);
            }
        }
        parts
    }

    fn config(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.outcome.config.iter();
        let shown: Vec<String> = figures
            .filter(|(name, _)| !name.starts_with(NOTE))
            .map(|(name, value)| {
                let (unit, stem) = Unit::of(name);
                format!("{} {}", spaced(stem), value.shown(unit))
            })
            .collect();
        self.write_broken(f, &shown.join("; "))
    }

    fn checks(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.width {
            Width::Fitting => narrow::write_checks(f, &self.outcome.checks)?,
            Width::Wide => {
                let header = ["check", "want", "got", ""].map(str::to_owned).to_vec();
                let checks = self.outcome.checks.iter().map(check_cells);
                let rows: Vec<Vec<String>> = std::iter::once(header).chain(checks).collect();
                write_rows(f, &rows, &[Side::Left])?;
            }
        }
        let failed = self.outcome.judged().filter(|check| !check.pass).count();
        let total = self.outcome.judged().count();
        match (self.outcome.passes(), failed) {
            (true, _) => write!(f, "{total} checks hold"),
            (false, 0) => write!(f, "nothing was checked"),
            (false, failed) => write!(f, "{failed} of {total} checks FAILED"),
        }?;
        match self.outcome.checks.len() - total {
            0 => writeln!(f),
            left => writeln!(f, ", {left} are decided by times and not judged"),
        }
    }

    fn notes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.outcome.config.iter() {
            if name.starts_with(NOTE) {
                writeln!(f)?;
                self.write_broken(f, &value.shown(Unit::Plain))?;
            }
        }
        Ok(())
    }
}

fn check_cells(check: &Check) -> Vec<String> {
    let Check {
        name, want, got, ..
    } = check;
    let verdict = check.verdict().to_owned();
    vec![name.clone(), want.clone(), got.clone(), verdict]
}

/// A line of a table: a row, or several of one variant.
struct Line {
    variant: String,
    sources: Vec<&'static str>,
    figures: Figures,
}

/// Returns a line for each row. A row joins an earlier line that has the same variant and none of
/// its figures, so that published and measured figures stand side by side.
fn joined(rows: &[&Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let source = match row.source {
            Source::Run => "this run",
            other => other.name(),
        };
        let is_free = |line: &&mut Line| {
            let mut figures = row.figures.iter();
            line.variant == row.variant && figures.all(|(name, _)| line.figures.get(name).is_none())
        };
        match lines.iter_mut().find(is_free) {
            None => lines.push(Line {
                variant: row.variant.clone(),
                sources: vec![source],
                figures: row.figures.clone(),
            }),
            Some(line) => {
                line.sources.push(source);
                for (name, value) in row.figures.iter() {
                    line.figures = std::mem::take(&mut line.figures).with(name, value.clone());
                }
            }
        }
    }
    lines
}

/// Returns a header and a row of cells for each line, with a column for each figure of any line:
/// those of the last rows first.
fn cells(rows: &[Line]) -> Vec<Vec<String>> {
    let mut columns: Vec<&'static str> = Vec::new();
    for row in rows.iter().rev() {
        for (name, _) in row.figures.iter() {
            if !columns.contains(&name) {
                columns.push(name);
            }
        }
    }
    let mut header = vec!["variant".to_owned(), "source".to_owned()];
    header.extend(columns.iter().map(|name| heading(name)));
    let line = |row: &Line| {
        let mut line = vec![row.variant.clone(), row.sources.join(", ")];
        line.extend(columns.iter().map(|name| {
            let value = row.figures.get(name);
            value.map_or_else(|| "-".to_owned(), |value| value.shown(Unit::of(name).0))
        }));
        line
    };
    std::iter::once(header)
        .chain(rows.iter().map(line))
        .collect()
}

/// Returns the heading of a figure's column: the name without its unit, which the cells show.
fn heading(name: &str) -> String {
    spaced(Unit::of(name).1)
}

fn spaced(name: &str) -> String {
    name.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: published and measured figures stand under each other, kernels are marked, and checks
    /// come last. Method: compare with the text.
    #[test]
    fn published_and_measured_rows_share_a_table() {
        let outcome = Outcome {
            experiment: "demo",
            thread: "a-thread",
            config: Figures::default()
                .with("cpus", 384_u64)
                .with("note_scope", "Directions only."),
            rows: vec![
                Row::new("error", Source::Run, "ours")
                    .with("error_max_bytes", 31_457_280_i64)
                    .with("writes", 0.038),
            ],
            published: vec![
                Row::new("error", Source::Thread, "upstream").with("error_max_bytes", 1_i64 << 30),
                Row::new("error", Source::Kernel, "6.12").with("error_max_bytes", 1_i64 << 20),
            ],
            checks: vec![Check::counted("error").at_most(30.0, 29.0, Unit::Pages)],
        };
        assert_eq!(
            Table::new(&outcome).wide().to_string(),
            "demo (a-thread)\n\
             cpus 384\n\
             \n\
             error\n\
             variant   source    error max   writes\n\
             upstream  thread      1.0 GiB        -\n\
             6.12      kernel      1.0 MiB        -\n\
             ours      this run   30.0 MiB  0.03800\n\
             \n\
             Directions only.\n\
             \n\
             check         want       got\n\
             error  <= 29 pages  30 pages  FAILED\n\
             1 of 1 checks FAILED\n"
        );
    }

    /// Goal: one variant's published and measured figures stand on one line, and never replace each
    /// other. Method: rows with different figures, and rows with the same.
    #[test]
    fn rows_of_one_variant_are_joined_when_they_have_different_figures() {
        let outcome = Outcome {
            experiment: "demo",
            thread: "a-thread",
            config: Figures::default(),
            rows: vec![
                Row::new("times", Source::Run, "1 -> 2 ns").with("ours", 3_u64),
                Row::new("times", Source::Run, "4 -> 8 ns").with("theirs", 4_u64),
            ],
            published: vec![
                Row::new("times", Source::Thread, "1 -> 2 ns").with("theirs", 1_u64),
                Row::new("times", Source::Thread, "4 -> 8 ns").with("theirs", 2_u64),
            ],
            checks: Vec::new(),
        };
        let table = Table::new(&outcome).wide().to_string();
        let lines: Vec<_> = table.lines().skip(3).take(4).collect();
        assert_eq!(
            lines,
            [
                "variant    source            theirs  ours",
                "1 -> 2 ns  thread, this run       1     3",
                "4 -> 8 ns  thread                 2     -",
                "4 -> 8 ns  this run               4     -",
            ]
        );
    }

    /// Goal: a table fits a terminal for any names, figures and checks. Method: words longer than a
    /// terminal, texts of many words, and more figures than fit.
    #[test]
    fn a_table_fits_80_columns_whatever_it_holds() {
        let words = "several words of a name ".repeat(9);
        let long = "x".repeat(200);
        let figures = [
            "one_bytes",
            "a_name_of_many_words_for_a_column_ns",
            "third",
            "fourth",
            "fifth",
        ];
        let row = |source, variant: &str| {
            figures.iter().fold(
                Row::new("a part of the run ", source, variant),
                |row, figure| row.with(figure, 1_234_567_890_123_u64),
            )
        };
        let outcome = Outcome {
            experiment: "demo",
            thread: "a-thread",
            config: Figures::default()
                .with("topology", words.clone())
                .with("note_scope", long.clone()),
            rows: vec![
                row(Source::Run, "ours"),
                row(Source::Run, &words).with("said", words.clone()),
            ],
            published: vec![row(Source::Thread, &long), row(Source::Kernel, "6.12")],
            checks: vec![
                Check::counted(words.clone()).equal(&long, &words),
                Check::timed("time").at_most(1.0, 2.0, Unit::Ns),
            ],
        };
        let shown = Table::new(&outcome)
            .concluding(Some(words.clone()))
            .to_string();
        for line in shown.lines() {
            assert!(line.chars().count() <= 80, "{line}\n{shown}");
            assert_eq!(line, line.trim_end());
        }
        let conclusion = shown.lines().nth(1);
        assert!(
            conclusion.is_some_and(|line| words.starts_with(line)),
            "{shown}"
        );
        assert!(shown.contains("columns more with --wide"), "{shown}");
        assert!(
            shown.contains("[kernel]") && shown.contains("GiB"),
            "{shown}"
        );
        assert!(
            shown.ends_with("2 of 2 checks FAILED\n") || shown.ends_with("1 of 2 checks FAILED\n")
        );
        let wide = Table::new(&outcome).wide().to_string();
        for figure in ["fifth", "a name of many words for a column"] {
            assert!(wide.contains(figure), "{wide}");
        }
    }
}
