//! Options of a trace reader.

use super::csv::Columns;
use super::digest::Digesting;
use super::format::Format;
use crate::control::Stop;

/// Treatment of a record that the format does not allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lenient {
    /// End with an error that says where.
    #[default]
    StopAtBad,
    /// Skip it, count it, and continue with the next line or record. If the next one cannot be
    /// found (`highwater`, a broken compressed stream), count one and end.
    SkipBad,
}

/// Options of a reader.
#[derive(Clone, Debug, Default)]
pub struct ReaderOptions {
    /// The format; `None` detects it from the content.
    pub format: Option<Format>,
    /// Block size of `arc` in bytes; `None` is 512. Other formats define their units.
    pub block_size: Option<u32>,
    /// Columns of `csv`; `None` reads them from a header. A trace with columns and without a format
    /// is `csv`.
    pub columns: Option<Columns>,
    /// Treatment of bad records.
    pub lenient: Lenient,
    /// Whether the stored bytes are digested.
    pub digesting: Digesting,
    /// A request that ends the reading with an error, also while it waits for a pipe.
    pub stop: Stop,
}
