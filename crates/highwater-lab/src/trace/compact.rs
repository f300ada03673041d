//! The project's own format, `highwater`, version 1: page requests, a few bytes each before
//! compression. [`recording`](super::recording) is version 2, with names.
//!
//! Layout, all little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | the magic number `HWTRACE1` |
//! | 8..16 | u64: number of records |
//! | 16..24 | u64: number of page accesses, the sum of the records' counts |
//! | 24.. | the records |
//!
//! A record is two LEB128 numbers (seven bits a byte, lowest first, top bit set when more follow,
//! at most ten bytes): `zigzag(first - end) << 1 | is_write`, where `end` is the page after the
//! previous record's last (0 before the first record), and `count - 1`. `zigzag(d)` is `2d` for
//! `d >= 0` and `-2d - 1` below. A sequential read of one page is two zero bytes.
//!
//! The counts in the header reveal a truncated trace, and bytes after the last record are an error.
//! A trace is normally stored compressed (`zstd -19`); this module does not compress.
//!
//! Source: LEB128 and zigzag as in DWARF 5, section 7.6, and the Protocol Buffers encoding.

use std::io::{self, Seek, SeekFrom, Write};

use thiserror::Error;

use super::error::Fault;
use super::request::{COUNT_LIMIT, Op, PAGE_LIMIT, Parsed, Request};

/// First bytes of a trace.
pub(super) const MAGIC: &[u8; 8] = b"HWTRACE1";

/// Bytes of the header: the magic number and two counts.
pub(super) const HEADER: usize = 24;

/// Longest LEB128 number of 64 bits.
const NUMBER_MAX: usize = 10;

/// Longest record.
pub(super) const RECORD_MAX: usize = 2 * NUMBER_MAX;

/// State of a reader between the header and the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    records_left: u64,
    accesses_left: u64,
    end: u64,
}

impl Cursor {
    /// Reads the header.
    pub(super) fn new(header: &[u8; HEADER]) -> Result<Self, Fault> {
        let (magic, counts) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Fault::shape("the magic number HWTRACE1"));
        }
        let (words, _) = counts.as_chunks::<8>();
        let [records_left, accesses_left] = [0, 1].map(|index| u64::from_le_bytes(words[index]));
        Self::of_block(records_left, accesses_left)
    }

    /// Begins to read so many records.
    pub(super) fn of_block(records_left: u64, accesses_left: u64) -> Result<Self, Fault> {
        let is_possible = accesses_left >= records_left && (records_left > 0 || accesses_left == 0);
        if !is_possible {
            let expected = "at least one page access for each record, and none without records";
            return Err(Fault::value("number of accesses", accesses_left, expected));
        }
        Ok(Self {
            records_left,
            accesses_left,
            end: 0,
        })
    }

    /// Checks that `content` consists of the records: two numbers each, of which only the last byte
    /// has a clear top bit.
    pub(super) fn check_length(&self, content: &[u8]) -> Result<(), Fault> {
        let ends = content.iter().filter(|byte| **byte & 0x80 == 0).count() as u64;
        let is_whole = content.last().is_none_or(|byte| byte & 0x80 == 0);
        if Some(ends) != self.records_left.checked_mul(2) || !is_whole {
            let expected = "as many records as the block says";
            return Err(Fault::value("numbers in a block", ends, expected));
        }
        Ok(())
    }

    /// Returns whether the header promises another record.
    pub(super) const fn has_more(&self) -> bool {
        self.records_left > 0
    }

    /// Decodes the first record of `bytes`; returns it and its length. `bytes` are at least
    /// [`RECORD_MAX`] unless the stream ends before.
    #[inline]
    pub(super) fn parse(&mut self, bytes: &[u8]) -> Result<(Parsed, usize), Fault> {
        let (head, head_len) = number(bytes)?;
        let (extra, extra_len) = number(&bytes[head_len..])?;
        let op = if head & 1 == 0 { Op::Read } else { Op::Write };
        let Some(first) = self.end.checked_add_signed(unzigzag(head >> 1)) else {
            return Err(Fault::shape("pages from 0 on"));
        };
        if extra >= COUNT_LIMIT {
            return Err(Fault::value(
                "count - 1",
                extra,
                "at most 2^20 pages, 4 GiB, in one request",
            ));
        }
        let count = extra + 1;
        let parsed = Request::on_pages(op, first, count)?;
        self.records_left -= 1;
        let Some(accesses_left) = self.accesses_left.checked_sub(count) else {
            let expected = "no more page accesses than the header says";
            return Err(Fault::value("count", count, expected));
        };
        if self.records_left == 0 && accesses_left > 0 {
            let expected = "as many page accesses as the header says";
            return Err(Fault::value(
                "page accesses missing",
                accesses_left,
                expected,
            ));
        }
        self.accesses_left = accesses_left;
        self.end = first + count;
        Ok((parsed, head_len + extra_len))
    }
}

/// Decodes the first LEB128 number of `bytes`; returns it and its length.
#[inline]
pub(super) fn number(bytes: &[u8]) -> Result<(u64, usize), Fault> {
    let mut value = 0_u64;
    for (index, &byte) in bytes.iter().take(NUMBER_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if index == NUMBER_MAX - 1 && bits > 1 {
            break;
        }
        value |= bits << (7 * index);
        if byte & 0x80 == 0 {
            return Ok((value, index + 1));
        }
    }
    if bytes.len() < NUMBER_MAX {
        return Err(Fault::shape("a whole record: the trace is truncated"));
    }
    Err(Fault::shape("a number of at most 64 bits"))
}

const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

pub(super) const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// Appends a LEB128 number to `record`, of which `length` bytes are used.
pub(super) fn push_number(record: &mut [u8; RECORD_MAX], length: &mut usize, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        record[*length] = if value == 0 { low } else { low | 0x80 };
        *length += 1;
        if value == 0 {
            return;
        }
    }
}

/// Why a trace could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The sink refused the bytes.
    #[error("cannot write the trace: {0}")]
    Io(#[from] io::Error),
    /// A request outside the format's range.
    #[error(
        "cannot write a request for {count} pages from page {first}: expected 1 to 2^20 pages below page 2^44"
    )]
    Range {
        /// First page of the request.
        first: u64,
        /// Pages of the request.
        count: u64,
    },
    /// A recording of too many files.
    #[error("cannot record more than {files} files")]
    Files {
        /// Files recorded.
        files: u32,
    },
    /// The promised counts differ from those written.
    #[error(
        "wrote {records} records with {accesses} page accesses, but {promised_records} with {promised_accesses} were promised"
    )]
    Counts {
        /// Records written.
        records: u64,
        /// Page accesses written.
        accesses: u64,
        /// Records promised.
        promised_records: u64,
        /// Page accesses promised.
        promised_accesses: u64,
    },
}

/// How the header gets its counts.
enum Counts<W> {
    /// Known in advance and written; `finish` checks them.
    Promised { records: u64, accesses: u64 },
    /// Written at the end by seeking back.
    Patched(fn(&mut W, [u8; HEADER]) -> io::Result<()>),
}

/// Writes a trace in the `highwater` format.
///
/// # Cost
///
/// One small write per record: use a buffered sink.
///
/// # Examples
///
/// ```
/// use std::io::Cursor;
/// use highwater_lab::trace::{CompactWriter, Op, ReaderOptions, Target, TraceReader};
///
/// let mut writer = CompactWriter::seekable(Cursor::new(Vec::new()))?;
/// writer.push(Op::Read, 7, 3)?;
/// let bytes = writer.finish()?.into_inner();
///
/// let mut trace = TraceReader::from_reader("example", Cursor::new(bytes), &ReaderOptions::default())?;
/// let request = trace.next().expect("one record")?;
/// assert_eq!(request.target, Target::Pages { first: 7, count: 3 });
/// assert!(trace.next().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a trace is whole only after `finish`"]
pub struct CompactWriter<W> {
    sink: W,
    records: u64,
    accesses: u64,
    end: u64,
    counts: Counts<W>,
}

impl<W> std::fmt::Debug for CompactWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompactWriter")
            .field("records", &self.records)
            .field("accesses", &self.accesses)
            .finish_non_exhaustive()
    }
}

fn header(records: u64, accesses: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&records.to_le_bytes());
    header[16..].copy_from_slice(&accesses.to_le_bytes());
    header
}

impl<W: Write + Seek> CompactWriter<W> {
    /// Begins a trace whose counts are filled in at the end.
    ///
    /// # Errors
    ///
    /// When the sink refuses the header.
    pub fn seekable(mut sink: W) -> Result<Self, WriteError> {
        // Until `finish`, the header promises more than any file holds, so that a torn trace is
        // invalid.
        sink.write_all(&header(u64::MAX, u64::MAX))?;
        Ok(Self::with_sink(sink, Counts::Patched(patch)))
    }
}

fn patch<W: Write + Seek>(sink: &mut W, header: [u8; HEADER]) -> io::Result<()> {
    sink.seek(SeekFrom::Start(0))?;
    sink.write_all(&header)?;
    sink.seek(SeekFrom::End(0))?;
    Ok(())
}

impl<W: Write> CompactWriter<W> {
    /// Begins a trace of `records` records and `accesses` page accesses, for a sink that cannot
    /// seek.
    ///
    /// # Errors
    ///
    /// When the sink refuses the header.
    pub fn with_counts(mut sink: W, records: u64, accesses: u64) -> Result<Self, WriteError> {
        sink.write_all(&header(records, accesses))?;
        Ok(Self::with_sink(
            sink,
            Counts::Promised { records, accesses },
        ))
    }

    const fn with_sink(sink: W, counts: Counts<W>) -> Self {
        Self {
            sink,
            records: 0,
            accesses: 0,
            end: 0,
            counts,
        }
    }

    /// Appends a request for the pages `first .. first + count`.
    ///
    /// # Errors
    ///
    /// When the pages are out of range, in which case nothing is written, or the sink refuses.
    pub fn push(&mut self, op: Op, first: u64, count: u64) -> Result<(), WriteError> {
        let is_in_range =
            (1..=COUNT_LIMIT).contains(&count) && first < PAGE_LIMIT && count <= PAGE_LIMIT - first;
        if !is_in_range {
            return Err(WriteError::Range { first, count });
        }
        let step = zigzag(first.cast_signed() - self.end.cast_signed());
        let mut record = [0; RECORD_MAX];
        let mut length = 0;
        push_number(
            &mut record,
            &mut length,
            step << 1 | u64::from(op == Op::Write),
        );
        push_number(&mut record, &mut length, count - 1);
        self.sink.write_all(&record[..length])?;
        self.records += 1;
        self.accesses += count;
        self.end = first + count;
        Ok(())
    }

    /// Completes the trace and returns the sink, flushed.
    ///
    /// # Errors
    ///
    /// When the sink refuses, or the counts differ from those promised.
    pub fn finish(mut self) -> Result<W, WriteError> {
        match self.counts {
            Counts::Patched(patch) => patch(&mut self.sink, header(self.records, self.accesses))?,
            Counts::Promised { records, accesses } => {
                if (records, accesses) != (self.records, self.accesses) {
                    return Err(WriteError::Counts {
                        records: self.records,
                        accesses: self.accesses,
                        promised_records: records,
                        promised_accesses: accesses,
                    });
                }
            }
        }
        self.sink.flush()?;
        Ok(self.sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_steps_read_back() {
        for value in [0, 1, 127, 128, 1 << 45, u64::MAX - 1, u64::MAX] {
            let mut record = [0; RECORD_MAX];
            let mut length = 0;
            push_number(&mut record, &mut length, value);
            assert_eq!(number(&record[..length]), Ok((value, length)));
            assert!(number(&record[..length - 1]).is_err());
        }
        for step in [0, 1, -1, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(step)), step);
        }
        assert!(number(&[0xff; 10]).is_err());
    }
}
