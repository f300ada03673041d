//! Parsers of the kernel's text files: pure functions from text to values.
//!
//! Each reads by name, never by position, except `stat` and `statm` of a process, which have no
//! names. Unknown lines are skipped, because every kernel adds some. A known line that holds no
//! number is an error with its line. No input makes a parser panic: `tests/parsers.rs` mutates
//! real files.

mod cgroups;
mod config;
mod cpus;
mod flat;
mod mounts;
mod pressure;
mod process;
mod version;
mod zoneinfo;

pub use cgroups::{Membership, limit_bytes, memberships, memory_groups};
pub use config::config_value;
pub use cpus::{cpu_list, cpus_of_stat};
pub use flat::{Counters, counters, kilobytes};
pub use mounts::{Mount, mounts};
pub use pressure::{Pressure, Stall, pressure};
pub use process::{PidStat, PidStatm, PidStatus, oom_score_adj, rollup, stat, statm, status};
pub use version::{KernelVersion, kernel_version};
pub use zoneinfo::{PageSet, Zone, zoneinfo};

/// A line that a parser does not understand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Number of the line, from 1.
    pub line: usize,
    /// Says which value is missing or wrong.
    pub message: String,
}

impl ParseError {
    /// Creates an error in the line of this index, from 0.
    fn at(index: usize, message: impl Into<String>) -> Self {
        Self {
            line: index + 1,
            message: message.into(),
        }
    }
}

/// Longest part of a wrong value that an error repeats, in characters.
const SHOWN_MAX: usize = 40;

/// Parses the number of `name` in the line of this index.
fn number<N: std::str::FromStr>(index: usize, name: &str, text: &str) -> Result<N, ParseError> {
    let text = text.trim();
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(SHOWN_MAX).collect();
        ParseError::at(index, format!("`{name}` is no number here: `{shown}`"))
    })
}
