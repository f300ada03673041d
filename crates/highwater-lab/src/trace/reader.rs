//! The trace reader: opens a trace, detects its compression and format, and returns its requests
//! one by one.
//!
//! Invariants: `record` is the number of the record of the last answer; after an error or the end,
//! the iterator returns only `None`. Memory is the window of [`Source`] and the decoder's,
//! independent of the length of the trace; the requests of one `mooncake` line are held until they
//! are returned.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::blocks::{SECTOR_BYTES, parse_address, parse_arc, parse_lirs, parse_vscsi};
use super::compact::{Cursor, HEADER, RECORD_MAX};
use super::csv::{Columns, Layout, parse_csv, parse_msr, parse_twitter};
use super::decompress::Decoder;
use super::detect::{BYTE_ORDER_MARK, PREFIX, Sample, detect};
use super::digest::Digest;
use super::error::{Fault, Found, TraceError, quote_bytes, quote_text};
use super::format::{Compression, Format};
use super::keys::{parse_adaptsize, parse_key, parse_mooncake, parse_oracle};
use super::options::{Lenient, ReaderOptions};
use super::recorded::{Recording, Taken};
use super::recording::{self, BLOCK_HEAD, BLOCK_MAX};
use super::request::{Op, Parsed, Request, Target};
use super::skipped::Skipped;
use super::source::{Line, Source};
use super::waiting;
use crate::control::Stop;

/// Progress of a reader in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Stored bytes of the file that the decoder has consumed; ahead of the requests by the
    /// buffered bytes.
    pub compressed_bytes_read: u64,
    /// Stored bytes of the file; `None` if it is not a file.
    pub compressed_bytes_total: Option<u64>,
}

/// An iterator over the requests of a trace.
///
/// # Cost
///
/// No allocation per request, except one per line of `mooncake`. Memory: 0.4 MiB, and the decoder's
/// window, at most 129 MiB, when the trace is compressed.
///
/// # Examples
///
/// ```
/// use highwater_lab::trace::{Op, ReaderOptions, Request, Target, TraceReader};
///
/// let text: &[u8] = b"16 9 0 0\n";
/// let trace = TraceReader::from_reader("example", text, &ReaderOptions::default())?;
/// assert_eq!(trace.format().name(), "arc");
/// let requests = trace.collect::<Result<Vec<_>, _>>()?;
/// // Blocks 16 to 24 of 512 bytes lie in pages 2 and 3.
/// let target = Target::Pages { first: 2, count: 2 };
/// assert_eq!(requests, [Request { op: Op::Read, target }]);
/// # Ok::<(), highwater_lab::trace::TraceError>(())
/// ```
pub struct TraceReader {
    source: Source,
    format: Format,
    block_size: u32,
    /// Columns of a `csv` trace.
    layout: Layout,
    lenient: Lenient,
    record: u64,
    is_done: bool,
    /// The rest of a `mooncake` line.
    keys: std::vec::IntoIter<u64>,
    /// Cursor of a `highwater` trace; `None` before its header.
    cursor: Option<Cursor>,
    /// Description of a `highwater` trace of version 2.
    recording: Option<Box<Recording>>,
    skipped: Skipped,
    empty_records: u64,
    file: Arc<Path>,
    file_bytes: Option<u64>,
    stop: Stop,
}

impl fmt::Debug for TraceReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceReader")
            .field("file", &self.file)
            .field("format", &self.format)
            .field("record", &self.record)
            .field("skipped", &self.skipped)
            .finish_non_exhaustive()
    }
}

impl TraceReader {
    /// Opens a trace file.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened or its beginning cannot be read, or when the options name no
    /// format and it cannot be detected.
    pub fn open(path: &Path, options: &ReaderOptions) -> Result<Self, TraceError> {
        Self::with_stream(path, waiting::open(path, &options.stop), options)
    }

    /// Reads a trace from standard input.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn standard_input(options: &ReaderOptions) -> Result<Self, TraceError> {
        let name = Path::new("standard input");
        Self::with_stream(name, waiting::standard_input(&options.stop), options)
    }

    /// Reads a trace from any stream; messages use `name`.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn from_reader(
        name: impl AsRef<Path>,
        stream: impl Read + Send + 'static,
        options: &ReaderOptions,
    ) -> Result<Self, TraceError> {
        Self::with_stream(name.as_ref(), Ok((Box::new(stream), None)), options)
    }

    fn with_stream(
        file: &Path,
        stream: io::Result<waiting::Stream>,
        options: &ReaderOptions,
    ) -> Result<Self, TraceError> {
        let block_size = options.block_size.unwrap_or(SECTOR_BYTES);
        if block_size == 0 {
            return Err(TraceError::BlockSize { file: file.into() });
        }
        let refuse = |source| TraceError::Open {
            file: file.into(),
            source,
        };
        let (stream, file_bytes) = stream.map_err(refuse)?;
        let decoder = Decoder::new(stream, options.digesting).map_err(refuse)?;
        let mut reader = Self {
            source: Source::new(decoder),
            format: Format::Highwater,
            block_size,
            layout: options.columns.map_or(Layout::UNKNOWN, Layout::of_columns),
            lenient: options.lenient,
            record: 0,
            is_done: false,
            keys: Vec::new().into_iter(),
            cursor: None,
            recording: None,
            skipped: Skipped::default(),
            empty_records: 0,
            file: file.into(),
            file_bytes,
            stop: options.stop.clone(),
        };
        reader.format = match (options.format, options.columns) {
            (Some(format), _) => format,
            (None, Some(_)) => Format::Csv,
            (None, None) => reader.detect()?,
        };
        if reader.format.is_text() {
            reader.skip_byte_order_mark();
        }
        if reader.format == Format::Csv && options.columns.is_none() {
            reader.layout = reader.header();
        }
        Ok(reader)
    }

    fn detect(&mut self) -> Result<Format, TraceError> {
        let sample = if self.source.ensure(PREFIX) {
            Sample::Beginning(&self.source.bytes()[..PREFIX])
        } else {
            Sample::Whole(self.source.bytes())
        };
        detect(sample).map_err(|found| match self.source.take_failure() {
            // The bytes before the failure were too few to detect the format.
            Some(source) => {
                self.record = 1;
                self.stream_error(source)
            }
            None => TraceError::UnknownFormat {
                file: Arc::clone(&self.file),
                found: found.into(),
            },
        })
    }

    fn skip_byte_order_mark(&mut self) {
        self.source.ensure(BYTE_ORDER_MARK.len());
        if self.source.bytes().starts_with(BYTE_ORDER_MARK) {
            self.source.consume(BYTE_ORDER_MARK.len());
        }
    }

    /// Parses the first line as a header; does not consume it.
    fn header(&mut self) -> Layout {
        let named = match self.source.line() {
            Line::Whole { length, .. } => Layout::of_header(&self.source.bytes()[..length]),
            Line::TooLong | Line::End => None,
        };
        named.unwrap_or(Layout::UNKNOWN)
    }

    /// Returns the trace's format, as named or detected.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Returns the bytes of a block of an `arc` trace; `None` for other formats.
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        (self.format == Format::Arc).then_some(self.block_size)
    }

    /// Returns the columns of a `csv` trace, as named or as its header says; `None` for other
    /// formats.
    #[must_use]
    pub fn columns(&self) -> Option<Columns> {
        (self.format == Format::Csv).then_some(self.layout.columns())
    }

    /// Returns the trace's compression.
    #[must_use]
    pub fn compression(&self) -> Compression {
        self.source.compression()
    }

    /// Returns whether the trace can hold writes: its format can, and a `csv` trace has a column
    /// for the op.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.format.may_write() && (self.format != Format::Csv || self.layout.may_write())
    }

    /// Returns the description of a recording, a `highwater` trace of version 2, as far as it was
    /// read: its names are complete at the end.
    #[must_use]
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.as_deref()
    }

    /// Returns the progress in the file.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            compressed_bytes_read: self.source.compressed_bytes_read(),
            compressed_bytes_total: self.file_bytes,
        }
    }

    /// Returns the digest and the number of the trace's stored bytes. The option
    /// [`digesting`](ReaderOptions::digesting) must ask for it, and the stream must have been read
    /// to its end, which a reader that gives up does not do.
    #[must_use]
    pub fn digest(&self) -> Option<(Digest, u64)> {
        self.source.digest()
    }

    /// Returns the trace's name in messages: a path, or the one passed to
    /// [`from_reader`](Self::from_reader).
    #[must_use]
    pub fn name(&self) -> &Path {
        &self.file
    }

    /// Returns the request that ends the reading, with an error that is not the trace's.
    pub(crate) const fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Returns what was skipped.
    #[must_use]
    pub const fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Returns the number of records that touch no page, with a count or a length of zero.
    #[must_use]
    pub const fn empty_records(&self) -> u64 {
        self.empty_records
    }

    /// Returns the next request of a text format.
    #[inline]
    fn next_line(
        &mut self,
        parse: impl Fn(&[u8], u64) -> Result<Parsed, Fault>,
    ) -> Option<Result<Request, TraceError>> {
        loop {
            let (length, ending) = match self.source.line() {
                Line::Whole { length, ending } => (length, ending),
                Line::End => return self.finish(),
                Line::TooLong => match self.skip_long_line() {
                    None => continue,
                    error => return error,
                },
            };
            self.record += 1;
            let answer = match parse(&self.source.bytes()[..length], self.record) {
                Ok(Parsed::Request(request)) => Some(Ok(request)),
                other => self.settle(other, length),
            };
            self.source.consume(length + ending);
            if answer.is_some() {
                return answer;
            }
        }
    }

    /// Returns the next request of a format with records of `N` bytes.
    #[inline]
    fn next_chunk<const N: usize>(
        &mut self,
        parse: impl Fn(&[u8; N]) -> Result<Parsed, Fault>,
    ) -> Option<Result<Request, TraceError>> {
        while let Some(chunk) = self.source.first::<N>() {
            let parsed = parse(chunk);
            self.record += 1;
            let answer = match parsed {
                Ok(Parsed::Request(request)) => Some(Ok(request)),
                other => self.settle(other, N),
            };
            self.source.consume(N);
            if answer.is_some() {
                return answer;
            }
        }
        self.finish()
    }

    /// Returns the next request of a `mooncake` trace: from the current line, or the next one.
    fn next_key(&mut self) -> Option<Result<Request, TraceError>> {
        match self.keys.next() {
            Some(key) => Some(Ok(Request {
                op: Op::Read,
                target: Target::Key { key, pages: 1 },
            })),
            None => self.next_line(|line, _| parse_mooncake(line)),
        }
    }

    /// Returns the next request of a `highwater` trace.
    fn next_compact(&mut self) -> Option<Result<Request, TraceError>> {
        let mut cursor = match self.cursor {
            Some(cursor) => cursor,
            None => match self.compact_header() {
                Ok(cursor) => cursor,
                Err(fault) => return self.lose_rest(fault, HEADER),
            },
        };
        while !cursor.has_more() {
            match self.next_block() {
                Ok(Some(next)) => cursor = next,
                Ok(None) if self.source.ensure(1) => {
                    let expected = Fault::shape("the end, after the last record");
                    return self.lose_rest(expected, RECORD_MAX);
                }
                Ok(None) => return self.finish(),
                Err(fault) => return self.lose_rest(fault, RECORD_MAX),
            }
        }
        self.source.ensure(RECORD_MAX);
        let bytes = self.source.bytes();
        match cursor.parse(&bytes[..bytes.len().min(RECORD_MAX)]) {
            Ok((Parsed::Request(request), length)) => {
                self.cursor = Some(cursor);
                self.record += 1;
                self.source.consume(length);
                Some(Ok(request))
            }
            Ok(_) => unreachable!("a record of this format has one request of at least one page"),
            Err(fault) => self.lose_rest(fault, RECORD_MAX),
        }
    }

    fn compact_header(&mut self) -> Result<Cursor, Fault> {
        if self.source.first() == Some(recording::MAGIC) {
            self.source.consume(recording::MAGIC.len());
            self.recording = Some(Box::default());
            return Cursor::of_block(0, 0);
        }
        let Some(header) = self.source.first::<HEADER>() else {
            return Err(Fault::shape("a header of 24 bytes"));
        };
        let cursor = Cursor::new(header)?;
        self.source.consume(HEADER);
        self.cursor = Some(cursor);
        Ok(cursor)
    }

    /// Takes blocks of a recording up to the next one with records; `None` at the end, and for
    /// version 1, which has no blocks.
    fn next_block(&mut self) -> Result<Option<Cursor>, Fault> {
        let Some(recording) = &mut self.recording else {
            return Ok(None);
        };
        if recording.is_complete() {
            return Ok(None);
        }
        loop {
            let is_whole = self.source.ensure(BLOCK_HEAD);
            let Some([kind, length @ ..]) = self.source.first::<BLOCK_HEAD>().filter(|_| is_whole)
            else {
                let expected = "an end block: the recording was cut short; --lenient replays it";
                return Err(Fault::shape(expected));
            };
            let (kind, length) = (*kind, u32::from_le_bytes(*length));
            let whole = BLOCK_HEAD + usize::try_from(length).unwrap_or(usize::MAX - BLOCK_HEAD);
            if whole > BLOCK_HEAD + BLOCK_MAX {
                let expected = "at most 64 KiB";
                return Err(Fault::value("length of a block", length.into(), expected));
            }
            if !self.source.ensure(whole) {
                let expected = "a whole block: the recording was cut short; --lenient replays it";
                return Err(Fault::shape(expected));
            }
            let content = &self.source.bytes()[BLOCK_HEAD..whole];
            match recording.take(kind, content)? {
                Taken::Description => self.source.consume(whole),
                Taken::End => {
                    self.source.consume(whole);
                    return Ok(None);
                }
                Taken::Records(cursor, length) => {
                    cursor.check_length(&content[length..])?;
                    self.source.consume(BLOCK_HEAD + length);
                    if cursor.has_more() {
                        return Ok(Some(cursor));
                    }
                }
            }
        }
    }

    /// Handles a record that is not a plain request; it is still the next `length` bytes.
    #[cold]
    fn settle(
        &mut self,
        parsed: Result<Parsed, Fault>,
        length: usize,
    ) -> Option<Result<Request, TraceError>> {
        match parsed {
            Ok(Parsed::Request(request)) => Some(Ok(request)),
            Ok(Parsed::Blank) => None,
            Ok(Parsed::Empty) => {
                self.empty_records += 1;
                None
            }
            Ok(Parsed::Keys(keys)) => {
                self.keys = keys.into_iter();
                let key = self.keys.next()?;
                let target = Target::Key { key, pages: 1 };
                Some(Ok(Request {
                    op: Op::Read,
                    target,
                }))
            }
            Err(fault) => self.reject(fault, length),
        }
    }

    /// Counts a bad record, or makes it the last answer. It is the next `length` bytes.
    #[cold]
    fn reject(&mut self, fault: Fault, length: usize) -> Option<Result<Request, TraceError>> {
        if self.lenient == Lenient::SkipBad {
            self.skipped.records += 1;
            return None;
        }
        self.is_done = true;
        let bytes = self.source.bytes();
        let record = &bytes[..bytes.len().min(length)];
        let found = match fault.found {
            Found::Value { field, value } => format!("{field} {value}"),
            Found::Record if record.is_empty() => "the end of the stream".to_owned(),
            Found::Record if self.format.is_text() => quote_text(record),
            Found::Record => quote_bytes(record),
        };
        Some(Err(TraceError::BadRecord {
            file: Arc::clone(&self.file),
            record: self.record,
            offset: self.source.offset(),
            found: found.into(),
            expected: fault.expected,
        }))
    }

    /// Rejects or skips a line that does not fit the window.
    #[cold]
    fn skip_long_line(&mut self) -> Option<Result<Request, TraceError>> {
        self.record += 1;
        let answer = self.reject(Fault::shape("a line of at most 256 KiB"), usize::MAX);
        if answer.is_none() {
            self.source.skip_line();
        }
        answer
    }

    /// Rejects a record after which no other can be found, so that what follows is lost. A failure
    /// of the stream is the cause of a truncated record, so it is reported first.
    #[cold]
    fn lose_rest(&mut self, fault: Fault, length: usize) -> Option<Result<Request, TraceError>> {
        self.is_done = true;
        if let Some(source) = self.source.take_failure() {
            return self.break_off(source);
        }
        self.record += 1;
        let answer = self.reject(fault, length);
        if answer.is_none() {
            self.skipped.cut_after = Some(self.source.stored_offset());
        }
        answer
    }

    /// Ends the stream: complete, inside a record, or with a failure.
    #[cold]
    fn finish(&mut self) -> Option<Result<Request, TraceError>> {
        if self.source.bytes().is_empty() && !self.source.has_failed() {
            self.is_done = true;
            return None;
        }
        let truncated = Fault::shape("a whole record: the trace is truncated");
        self.lose_rest(truncated, usize::MAX)
    }

    /// Handles a failed stream. Corrupt content counts as one bad record; an I/O error is never
    /// skipped.
    #[cold]
    fn break_off(&mut self, source: io::Error) -> Option<Result<Request, TraceError>> {
        self.is_done = true;
        self.record += 1;
        if self.lenient == Lenient::SkipBad && !self.source.is_input_broken() {
            self.skipped.records += 1;
            self.skipped.cut_after = Some(self.source.compressed_bytes_read());
            return None;
        }
        Some(Err(self.stream_error(source)))
    }

    fn stream_error(&self, source: io::Error) -> TraceError {
        TraceError::Stream {
            file: Arc::clone(&self.file),
            compression: self.source.compression(),
            record: self.record,
            offset: self.source.offset() + self.source.bytes().len() as u64,
            source,
        }
    }
}

impl Iterator for TraceReader {
    type Item = Result<Request, TraceError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        match self.format {
            Format::Arc => {
                let block_size = self.block_size;
                self.next_line(|line, _| parse_arc(line, block_size))
            }
            Format::Lirs => self.next_line(|line, _| parse_lirs(line)),
            Format::Address => self.next_line(|line, _| parse_address(line)),
            Format::AdaptSize => self.next_line(|line, _| parse_adaptsize(line)),
            Format::Csv => {
                let layout = self.layout;
                self.next_line(|line, record| parse_csv(line, record, &layout))
            }
            Format::Msr => self.next_line(parse_msr),
            Format::Twitter => self.next_line(|line, _| parse_twitter(line)),
            Format::Mooncake => self.next_key(),
            Format::U32Be => {
                self.next_chunk(|chunk| parse_key(u64::from(u32::from_be_bytes(*chunk))))
            }
            Format::U64Be => self.next_chunk(|chunk| parse_key(u64::from_be_bytes(*chunk))),
            Format::U32Le => {
                self.next_chunk(|chunk| parse_key(u64::from(u32::from_le_bytes(*chunk))))
            }
            Format::Vscsi => self.next_chunk(parse_vscsi),
            Format::OracleGeneral => self.next_chunk(parse_oracle),
            Format::Highwater => self.next_compact(),
        }
    }
}

impl std::iter::FusedIterator for TraceReader {}
