//! Errors of RSS trace readers, each with its line.

use std::io;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

/// Why an RSS trace could not be opened or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RssTraceError {
    /// The file could not be opened.
    #[error("{}: cannot open the rss trace: {source}", .file.display())]
    Open {
        /// The file as named.
        file: Arc<Path>,
        /// The system's error.
        source: io::Error,
    },
    /// A line that the format does not allow there.
    #[error("{}: line {line}: found {found}, expected {expected}", .file.display())]
    BadLine {
        /// The file as named.
        file: Arc<Path>,
        /// Number of the line, from 1.
        line: u64,
        /// The content found.
        found: Box<str>,
        /// The content expected.
        expected: &'static str,
    },
    /// The text ends before the events that its first line promises.
    #[error("{}: line {line}: the trace ends after {found} of {promised} events", .file.display())]
    Truncated {
        /// The file as named.
        file: Arc<Path>,
        /// Number of the missing line, from 1.
        line: u64,
        /// Events found.
        found: u64,
        /// Events that the first line states.
        promised: u64,
    },
    /// The stream broke: the disk failed, or the compressed data is truncated or corrupt.
    #[error("{}: reading the stream failed in line {line}: {source}", .file.display())]
    Stream {
        /// The file as named.
        file: Arc<Path>,
        /// Number of the line that could not be completed, from 1.
        line: u64,
        /// The error of the system or the decoder.
        source: io::Error,
    },
}
