//! Errors of trace readers, each with the place in the trace.
//!
//! A place is the file, the record (the line, in text formats), counted from 1, and the byte offset
//! in the *decompressed* stream, counted from 0: the end of the output of
//! `zstd -dc trace | head -c OFFSET`. Parsers return a [`Fault`], which allocates nothing, so that
//! skipping bad records is cheap; only the reader turns one into a [`TraceError`].

use std::io;
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use super::format::{Compression, FORMAT_NAMES};

/// Why a trace could not be opened or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened.
    #[error("{}: cannot open the trace: {source}", .file.display())]
    Open {
        /// The file as named.
        file: Arc<Path>,
        /// The system's error.
        source: io::Error,
    },
    /// The content does not tell which format it is in.
    #[error(
        "{}: cannot tell the trace format from the content: found {found}; name it with `--format`, one of {FORMAT_NAMES}, or the columns of comma-separated text with `--columns`; `highwater formats` shows each",
        .file.display()
    )]
    UnknownFormat {
        /// The file as named.
        file: Arc<Path>,
        /// A description of the content.
        found: Box<str>,
    },
    /// The options ask for blocks of 0 bytes.
    #[error("{}: a block size of 0 bytes: expected 1 byte to 4 GiB, usually 512 or 4096", .file.display())]
    BlockSize {
        /// The file as named.
        file: Arc<Path>,
    },
    /// A record that the format does not allow.
    #[error("{}: record {record} at byte {offset}: found {found}, expected {expected}", .file.display())]
    BadRecord {
        /// The file as named.
        file: Arc<Path>,
        /// Number of the record, or of the line in text formats, from 1.
        record: u64,
        /// Where it begins in the decompressed stream.
        offset: u64,
        /// The content found.
        found: Box<str>,
        /// The content expected.
        expected: &'static str,
    },
    /// The stream broke: the disk failed, or the compressed data is truncated or corrupt.
    #[error("{}: reading the {compression} stream failed in record {record}, after {offset} decompressed bytes: {source}", .file.display())]
    Stream {
        /// The file as named.
        file: Arc<Path>,
        /// Compression of the trace.
        compression: Compression,
        /// Number of the record that could not be completed, from 1.
        record: u64,
        /// Number of decompressed bytes before the failure.
        offset: u64,
        /// The error of the system or the decoder.
        source: io::Error,
    },
}

/// Why a key has no pages.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The bucket files could not be created, read or written.
    #[error("the key directory's file failed: {0}")]
    Io(#[from] io::Error),
    /// An earlier failure left the buckets unusable.
    #[error("the key directory is unusable: its file failed before")]
    Broken,
    /// A bucket with corrupt content.
    #[error(
        "bucket {bucket} of the key directory is corrupt: it claims {entries} of {most} entries"
    )]
    Corrupt {
        /// The bucket's number.
        bucket: u64,
        /// The entries that it claims.
        entries: u32,
        /// The most that it can have.
        most: usize,
    },
    /// A key with more pages than a request may have.
    #[error("key {key} asks for {pages} pages: expected at most 2^32")]
    TooLarge {
        /// The key.
        key: u64,
        /// The pages asked for.
        pages: u64,
    },
    /// All page numbers are allocated.
    #[error("key {key} asks for {pages} pages, but {allocated} of 2^44 are given out")]
    Full {
        /// The key.
        key: u64,
        /// The pages asked for.
        pages: u64,
        /// The pages allocated before.
        allocated: u64,
    },
}

/// Why one record is bad, as a parser reports it: without the place, and without allocating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The content found.
    pub(super) found: Found,
    /// The content expected.
    pub(super) expected: &'static str,
}

/// Content that a parser found in place of the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The record itself, which the reader still holds.
    Record,
    /// A field outside its range.
    Value {
        /// The field's name.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// Longest excerpt of a record in a message, in bytes. Chosen: a terminal's line.
const EXCERPT: usize = 60;

/// Quotes the beginning of a line of text.
pub(crate) fn quote_text(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(EXCERPT)];
    let more = if shown.len() < bytes.len() { "..." } else { "" };
    let text = String::from_utf8_lossy(shown);
    format!("`{}{more}`", text.escape_debug())
}

/// Shows the beginning of a binary record in hexadecimal.
pub(super) fn quote_bytes(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(EXCERPT / 3)];
    let digits: Vec<String> = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    let more = if shown.len() < bytes.len() {
        " ..."
    } else {
        ""
    };
    format!("the bytes {}{more}", digits.join(" "))
}
