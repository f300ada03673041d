//! The arguments that say how traces are read, for every command that reads them.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use highwater::units::Bytes;
use highwater_lab::trace::{Columns, Format, Lenient, ReaderOptions};

/// Options of the reader.
#[derive(Args, Debug)]
pub(crate) struct TraceArguments {
    /// Format of the traces; `highwater formats` explains each [default: detected from the content]
    #[arg(long, value_parser = format_parser())]
    format: Option<Format>,

    /// Columns of `csv` traces, numbered from 1, as in time=1,key=2,size=3,op=4; only the key is
    /// required [default: those that the header names]
    #[arg(long, value_name = "NAME=NUMBER,...")]
    columns: Option<Columns>,

    /// Size of a block in `arc` traces, as in 512 or 4KiB [default: 512]
    #[arg(long, value_name = "SIZE", value_parser = parse_block_size)]
    block_size: Option<u32>,

    /// Skip and count bad records instead of stopping at the first
    #[arg(long)]
    lenient: bool,
}

impl TraceArguments {
    /// Checks that the options fit together.
    pub(crate) fn check(&self) -> Result<(), String> {
        match (self.format, self.columns) {
            (Some(format), Some(_)) if format != Format::Csv => Err(format!(
                "`--columns` is for csv traces, not for `--format {format}`"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the options for a trace whose format may have been named for itself.
    pub(crate) fn options(&self, format: Option<Format>) -> ReaderOptions {
        ReaderOptions {
            format: format.or(self.format),
            block_size: self.block_size,
            columns: self.columns,
            lenient: match self.lenient {
                true => Lenient::SkipBad,
                false => Lenient::StopAtBad,
            },
            ..ReaderOptions::default()
        }
    }
}

/// Returns the parser of format names on the command line.
pub(crate) fn format_parser() -> impl TypedValueParser<Value = Format> {
    let names = Format::ALL.map(|format| format.name());
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Format>())
}

fn parse_block_size(text: &str) -> Result<u32, String> {
    let size: Bytes = text.parse().map_err(|e| format!("{e}"))?;
    let bytes = u32::try_from(size.0).ok().filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| format!("{size}: expected 1 B to {}", Bytes(u32::MAX.into())))
}
