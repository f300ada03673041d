//! `highwater formats`: the trace formats, each with an example to paste.

use std::fmt::Write as _;

use clap::Args;
use highwater_lab::trace::{Format, FormatGuide, GUIDE};

use crate::Exit;
use crate::output::{complain, print};
use crate::trace_arg::format_parser;

const EXAMPLES: &str = "\
Examples:
  highwater formats
      every format, with a trace of each that can be pasted and replayed
  highwater formats csv
      one of them
  printf '17\\n18\\n17\\n' | highwater replay --format lirs -
      replays a trace from standard input";

const HEAD: &str = "\
Traces are plain or compressed with zstd, gzip or xz; `-` is standard input. The
content tells the format where --format does not, but for bare keys (u32be,
u64be, u32le) and for csv without a header. A key is an object with pages of its
own, as many as its size fills, at least one. Pages have 4 KiB; a request
touches at most 2^20 of them (4 GiB), below page 2^44.
";

/// Arguments of `highwater formats`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct FormatsArguments {
    /// The format [default: all]
    #[arg(value_name = "FORMAT", value_parser = format_parser())]
    format: Option<Format>,
}

/// Prints the guide of one format, or of all.
pub(crate) fn run(arguments: &FormatsArguments) -> Exit {
    let wanted =
        |guide: &&FormatGuide| arguments.format.is_none_or(|format| guide.format == format);
    let guides: Vec<String> = GUIDE.iter().filter(wanted).map(shown).collect();
    let head = if arguments.format.is_none() { HEAD } else { "" };
    let text = guides.join("\n");
    let gap = if head.is_empty() { "" } else { "\n" };
    match print(format_args!("{head}{gap}{text}")) {
        Ok(()) => Exit::Fine,
        Err(e) => {
            complain(format_args!("cannot write the formats: {e}"));
            Exit::Unusable
        }
    }
}

/// A format's name, its records, and its examples as commands.
fn shown(guide: &FormatGuide) -> String {
    let mut text = format!("{}\n", guide.format);
    for line in guide.record.lines() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {line}");
    }
    for example in guide.examples {
        let options = match example.options {
            "" => String::new(),
            options => format!("{options} "),
        };
        let _ = writeln!(
            text,
            "    printf '{}' | highwater replay --format {} {options}-\n      requests {}, page accesses {}",
            example.printf, guide.format, example.requests, example.accesses
        );
    }
    text
}
