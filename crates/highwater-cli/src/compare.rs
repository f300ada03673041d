//! `highwater compare`: the differences of two runs, and which of them are noise.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::Exit;
use crate::output::{complain, print};
use crate::report::compare::{Comparison, Runs, cells, envelope};
use crate::report::{Envelope, destination, write};

const EXAMPLES: &str = "\
Examples:
  highwater replay --runs 5 --json > a.json
  highwater replay --runs 5 --policy sieve --json > b.json
  highwater compare a.json b.json
      the figures that differ by more than the runs of one side differ
  highwater compare a.html b.html --report differences.html
      the same from reports, as a report
  for run in 1 2 3; do highwater host --json >> before.json; done
      outcomes of one kind in one file are repeated runs, so that noise is known

A figure that was measured once on a side is marked `once`, and tells nothing, if it is a time or a
count that another run need not repeat: of `host`, all but the set-up and the verdicts; of `replay`
with several threads or reads in flight, all but the set-up, the trace and failures. Other counts
differ unless they are equal, also those that threads of an experiment decide.

Exit status: 0 when both runs were read, 2 for bad input or an I/O error.";

/// Arguments of `highwater compare`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompareArguments {
    /// A run: the JSON of `replay`, `curve`, `lab` or `host`, or a report of one
    #[arg(value_name = "A")]
    a: PathBuf,

    /// The other run
    #[arg(value_name = "B")]
    b: PathBuf,

    /// Print the comparison as one JSON object
    #[arg(long)]
    json: bool,

    /// Write the comparison as one HTML file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// Compares, and returns the exit status.
pub(crate) fn run(arguments: &CompareArguments) -> Exit {
    let destination = match destination(arguments.report.as_deref()) {
        Ok(destination) => destination,
        Err(exit) => return exit,
    };
    let (a, b) = match (read(&arguments.a), read(&arguments.b)) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(message), _) | (_, Err(message)) => return unusable(&message),
    };
    let names = [&arguments.a, &arguments.b].map(|path| path.display().to_string());
    let comparison = match Comparison::new((&names[0], &a), (&names[1], &b)) {
        Ok(comparison) => comparison,
        Err(message) => return unusable(&message),
    };
    let printed = if arguments.json {
        serde_json::to_string(&comparison)
            .map_err(Into::into)
            .and_then(|json| print(format_args!("{json}\n")))
    } else {
        print(format_args!("{}", text(&comparison)))
    };
    if let Err(e) = printed {
        return unusable(&format!("cannot write the comparison: {e}"));
    }
    match destination {
        None => Exit::Fine,
        Some(destination) => write(destination, envelope(&comparison), Exit::Fine),
    }
}

fn unusable(message: &str) -> Exit {
    complain(format_args!("{message}"));
    Exit::Unusable
}

/// Reads runs from JSON, or from the data in a report.
fn read(path: &Path) -> Result<Runs, String> {
    let named = |e: String| format!("cannot compare {}: {e}", path.display());
    let text = fs::read_to_string(path).map_err(|e| named(e.to_string()))?;
    let outcomes = if text.trim_start().starts_with('<') {
        Envelope::of_html(&text).map_err(named)?.outcomes()
    } else {
        let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
        values.collect::<Result<_, _>>().map_err(|e| {
            named(format!(
                "it is no run: {e}; expected the JSON of `replay`, `curve`, `lab` or `host`"
            ))
        })?
    };
    Runs::new(outcomes).map_err(named)
}

fn text(comparison: &Comparison) -> String {
    let mut text = format!("{}\n", comparison.verdict());
    for (name, a, b) in &comparison.settings {
        text += &format!("{name}: {a} | {b}\n");
    }
    let header = ["figure", "a", "b", "change", "meaning"].map(str::to_owned);
    let rows = comparison.differences.iter().map(cells);
    let rows: Vec<[String; 5]> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| {
        let widths = rows.iter().map(|row| row[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..5).map(width).collect();
    if rows.len() > 1 {
        for [figure, a, b, change, meaning] in &rows {
            text += &format!(
                "{figure:<0$}  {a:>1$}  {b:>2$}  {change:>3$}  {meaning}\n",
                widths[0], widths[1], widths[2], widths[3]
            );
        }
    }
    text
}
