//! What a lenient reader has skipped.

use std::fmt;

use crate::report::text::grouped;

/// What was skipped of a trace; nothing under [`Lenient::StopAtBad`](super::Lenient::StopAtBad).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Bad records.
    pub records: u64,
    /// Stored bytes after which the trace could not be read any more, because it is cut short or
    /// corrupt there: any number of records may have followed. Of a compressed trace, the bytes
    /// that the decoder had taken.
    pub cut_after: Option<u64>,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = match self.records {
            1 => "record",
            _ => "records",
        };
        write!(f, "{} bad {records} skipped", grouped(self.records))?;
        match self.cut_after {
            None => Ok(()),
            Some(bytes) => write!(
                f,
                "; the trace is cut short or corrupt after {} stored bytes, and what follows is \
                 missing",
                grouped(bytes)
            ),
        }
    }
}
