//! Detection of a trace's format from its content; file names are ignored.
//!
//! A wrong guess would replay nonsense without an error, so the rules are narrow, and a trace that
//! they do not cover is an error that asks for the name. They examine the first 64 KiB:
//!
//! 1. `highwater`: the magic number of one of its versions.
//! 2. `vscsi`: the version and a known opcode in at least three of four of the first records. (Not
//!    in all of them: a damaged record is for the reader to report, with its number.)
//! 3. text, which is UTF-8 without control characters: the first line names columns, a key among
//!    them (`csv`); or at least three of four of the first lines have one format's shape.
//! 4. `oracle-general`: the field that names the next access agrees, in every record, with the
//!    object's actual next access; times do not fall and sizes are plausible.
//!
//! Bare arrays of keys are never detected, because any bytes are one, nor is `csv` without a
//! header.

use super::blocks::{VSCSI_RECORD, parse_address, parse_arc, parse_lirs, parse_vscsi};
use super::compact::MAGIC;
use super::csv::{Layout, parse_msr, parse_twitter};
use super::error::{Fault, quote_bytes, quote_text};
use super::format::Format;
use super::keys::{ORACLE_RECORD, OracleRecord, parse_adaptsize, parse_mooncake};
use super::recording;
use super::request::Parsed;

/// Bytes examined. Chosen: some thousand records of any format.
pub(super) const PREFIX: usize = 64 << 10;

/// Records examined, if there are as many. One record of random bytes passes for `vscsi` with a
/// chance of 2^-29 (16 bits of version, 8 of 2^16 opcodes).
const RECORDS_MAX: usize = 128;

/// The fewest records that decide for `oracle-general`. Chosen: one record of random bytes passes
/// with a chance of about 2^-34 (31 bits of next access, sizes, times), and small keys in an array
/// are excluded by [`is_next_right`].
const RECORDS_MIN: usize = 4;

/// Lines examined.
const LINES_MAX: usize = 64;

/// The byte order mark of UTF-8, with which some programs begin a text.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The examined part of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sample<'bytes> {
    /// The whole stream.
    Whole(&'bytes [u8]),
    /// The beginning of a longer one: its last record may be incomplete.
    Beginning(&'bytes [u8]),
}

type ParseLine = fn(&[u8]) -> Result<Parsed, Fault>;

/// Returns the format of a stream, or a description of its content.
pub(super) fn detect(sample: Sample<'_>) -> Result<Format, String> {
    let (Sample::Whole(bytes) | Sample::Beginning(bytes)) = sample;
    if bytes.is_empty() {
        return Err("an empty stream".to_owned());
    }
    if bytes.starts_with(MAGIC) || bytes.starts_with(recording::MAGIC) {
        return Ok(Format::Highwater);
    }
    if is_vscsi(bytes) {
        return Ok(Format::Vscsi);
    }
    let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    if is_text(text) {
        return detect_text(match sample {
            Sample::Whole(_) => Sample::Whole(text),
            Sample::Beginning(_) => Sample::Beginning(text),
        });
    }
    if is_oracle(sample) {
        return Ok(Format::OracleGeneral);
    }
    let shown = quote_bytes(bytes);
    Err(format!("binary data that begins with {shown}"))
}

fn is_vscsi(prefix: &[u8]) -> bool {
    let (records, _) = prefix.as_chunks::<VSCSI_RECORD>();
    let looked_at = &records[..records.len().min(RECORDS_MAX)];
    let fitting = looked_at
        .iter()
        .filter(|record| parse_vscsi(record).is_ok());
    !looked_at.is_empty() && fitting.count() * 4 >= looked_at.len() * 3
}

/// Returns whether the bytes are UTF-8 without control characters, but for those of lines and
/// tables. The end of what is examined may cut a character.
fn is_text(prefix: &[u8]) -> bool {
    let whole = match std::str::from_utf8(prefix) {
        Err(error) if error.error_len().is_none() => &prefix[..error.valid_up_to()],
        _ => prefix,
    };
    let is_of_text = |c: char| !c.is_control() || matches!(c, '\t' | '\r' | '\n');
    std::str::from_utf8(whole).is_ok_and(|text| text.chars().all(is_of_text))
}

/// Returns the one text format whose shape three quarters of the lines have.
fn detect_text(sample: Sample<'_>) -> Result<Format, String> {
    let whole = match sample {
        Sample::Whole(bytes) => bytes,
        Sample::Beginning(bytes) => {
            let last = bytes.iter().rposition(|&byte| byte == b'\n');
            &bytes[..last.unwrap_or(bytes.len())]
        }
    };
    if Layout::of_header(first_line(whole)).is_some() {
        return Ok(Format::Csv);
    }
    let shapes: [(Format, ParseLine); 7] = [
        (Format::Lirs, parse_lirs),
        (Format::AdaptSize, parse_adaptsize),
        (Format::Arc, |line| parse_arc(line, 1)),
        (Format::Address, parse_address),
        (Format::Mooncake, parse_mooncake),
        (Format::Msr, |line| parse_msr(line, 1)),
        (Format::Twitter, parse_twitter),
    ];
    let is_record = |line: &&[u8]| !matches!(line.trim_ascii(), b"" | b"*");
    let lines = || {
        whole
            .split(|&byte| byte == b'\n')
            .filter(is_record)
            .take(LINES_MAX)
    };
    let count = lines().count();
    for (format, parse) in shapes {
        let fitting = lines().filter(|line| parse(line).is_ok()).count();
        if count > 0 && fitting * 4 >= count * 3 {
            return Ok(format);
        }
    }
    let shown = lines().next().unwrap_or_default();
    Err(format!("text with lines like {}", quote_text(shown)))
}

fn first_line(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == b'\n').next().unwrap_or_default()
}

/// How writers of `oracle-general` number an object's next access: the request's number from 0,
/// from 1, or the distance to it.
const NEXT_OF: [fn(usize, usize) -> usize; 3] =
    [|_, next| next, |_, next| next + 1, |at, next| next - at];

fn is_oracle(sample: Sample<'_>) -> bool {
    let (Sample::Whole(bytes) | Sample::Beginning(bytes)) = sample;
    let (chunks, _) = bytes.as_chunks::<ORACLE_RECORD>();
    if chunks.len() < RECORDS_MIN {
        return false;
    }
    let looked_at = &chunks[..chunks.len().min(RECORDS_MAX)];
    let records: Vec<OracleRecord> = looked_at.iter().map(OracleRecord::new).collect();
    let are_plausible = records
        .iter()
        .all(|record| (1..=1 << 30).contains(&record.size))
        && records.is_sorted_by_key(|record| record.time);
    are_plausible
        && NEXT_OF.iter().any(|next_of| {
            let mut numbered = records.iter().enumerate();
            numbered.all(|(at, record)| is_next_right(&records, at, record, *next_of))
        })
}

/// Returns whether a record's next access is its object's next place among `records`, or "none", or
/// beyond them. Rejects a claim beyond 2^32 requests: two small 32-bit keys in a row look like one.
fn is_next_right(
    records: &[OracleRecord],
    at: usize,
    record: &OracleRecord,
    next_of: fn(usize, usize) -> usize,
) -> bool {
    let mut later = (at + 1..records.len()).filter(|&next| records[next].key == record.key);
    let claimed = record.next_access;
    match later.next() {
        Some(next) => usize::try_from(claimed) == Ok(next_of(at, next)),
        None if matches!(claimed, -2 | -1 | i64::MAX) => true,
        None => usize::try_from(claimed)
            .is_ok_and(|claimed| claimed >= next_of(at, records.len()) && claimed < 1 << 32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Symptom: text with keys beyond ASCII was called binary data.
    #[test]
    fn text_may_have_any_printable_characters() {
        let text = "key,size\ncafé,100\n";
        assert_eq!(detect(Sample::Whole(text.as_bytes())), Ok(Format::Csv));
        // What is examined ends within the last character.
        let cut = "key,size\ncafé,100\ncafé".as_bytes();
        let cut = &cut[..cut.len() - 1];
        assert_eq!(detect(Sample::Beginning(cut)), Ok(Format::Csv));
        for binary in [
            &b"key,size\ncaf\xe9,100\n"[..],
            b"key,size\n\x1b[2J,100\n",
            b"key,size\n\xc2\x9b2J,100\n",
            b"key,size\n\0,100\n",
        ] {
            let found = detect(Sample::Whole(binary));
            assert!(found.is_err_and(|found| found.starts_with("binary data")));
        }
    }
}
