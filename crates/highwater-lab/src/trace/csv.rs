//! Comma-separated traces: `csv`, whose columns a header or the user names, and two published
//! layouts, `msr` and `twitter`.
//!
//! - `csv`: the first line names the columns, or [`ReaderOptions::columns`](super::ReaderOptions)
//!   does. Only the key is required. Without a size a key has one page, without an op it is read.
//! - `msr`: `time,host,disk,Read|Write,offset,size,latency` in bytes; one volume a file; names of
//!   the fields may stand above. Source: D. Narayanan, A. Donnelly and A. Rowstron, "Write
//!   Off-Loading", FAST 2008, and its traces.
//! - `twitter`: `time,key,key size,value size,client,op,TTL`; an object is its key and its value.
//!   Keys may hold commas, so fields are counted from both ends. Source: J. Yang, Y. Yue and K. V.
//!   Rashmi, "A large scale analysis of hundreds of in-memory cache clusters at Twitter", OSDI
//!   2020, and its traces.
//!
//! A key that is a whole number of at most 64 bits is used unchanged; any other text is replaced by
//! its 64-bit xxHash. Two of a million strings collide with a chance of about 2^-25. There is no
//! quoting.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use twox_hash::XxHash64;

use super::error::Fault;
use super::request::{Op, Parsed, Request};
use super::text::{is_blank, leading_number};

/// Fields of an `msr` record.
const MSR_FIELDS: usize = 7;

/// Fields of a `twitter` record behind the key: sizes of key and value, client, op, TTL.
const TWITTER_FIELDS_LAST: usize = 5;

/// The columns of a `csv` trace, numbered from 1.
///
/// # Examples
///
/// ```
/// use highwater_lab::trace::{Columns, ReaderOptions, TraceReader};
///
/// let columns: Columns = "time=1,key=3,size=2".parse()?;
/// assert_eq!(columns.to_string(), "time=1,key=3,size=2");
/// let options = ReaderOptions { columns: Some(columns), ..ReaderOptions::default() };
/// let text: &[u8] = b"0.5,4097,user:7\n";
/// let mut trace = TraceReader::from_reader("example", text, &options)?;
/// assert_eq!(trace.next().unwrap()?.target.page_count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Columns {
    time: Option<usize>,
    key: usize,
    size: Option<usize>,
    op: Option<usize>,
}

/// A text that is not a list of columns.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` does not name the columns: {why}; write NAME=NUMBER of key and, where there are, time, size and op, as in time=1,key=2,size=3,op=4"
)]
pub struct ParseColumnsError {
    /// The text as given.
    pub text: String,
    /// The error.
    pub why: &'static str,
}

/// Columns by name, while they are collected.
#[derive(Default)]
struct Named {
    time: Option<usize>,
    key: Option<usize>,
    size: Option<usize>,
    op: Option<usize>,
}

impl Named {
    /// Returns the slot of the column called `name`, in any letter case.
    fn place(&mut self, name: &str) -> Option<&mut Option<usize>> {
        match name.to_ascii_lowercase().as_str() {
            "time" | "timestamp" => Some(&mut self.time),
            "key" | "id" | "object" => Some(&mut self.key),
            "size" | "bytes" => Some(&mut self.size),
            "op" | "operation" => Some(&mut self.op),
            _ => None,
        }
    }

    fn columns(self) -> Option<Columns> {
        Some(Columns {
            time: self.time,
            key: self.key?,
            size: self.size,
            op: self.op,
        })
    }
}

impl FromStr for Columns {
    type Err = ParseColumnsError;

    /// Parses `NAME=NUMBER` pairs between commas.
    ///
    /// # Errors
    ///
    /// When a name is unknown or given twice, a number is invalid or used twice, or the key is
    /// missing.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = |why| ParseColumnsError {
            text: text.to_owned(),
            why,
        };
        let (mut named, mut numbers) = (Named::default(), Vec::new());
        for part in text.split(',') {
            let (name, number) = part.split_once('=').ok_or_else(|| refuse("no `=`"))?;
            let number = number
                .trim()
                .parse::<u16>()
                .ok()
                .filter(|&number| number > 0);
            let number = number.ok_or_else(|| refuse("columns have numbers from 1 to 65535"))?;
            let place = named.place(name.trim());
            let place = place.ok_or_else(|| refuse("there is no such name"))?;
            if numbers.contains(&number) || place.replace(number.into()).is_some() {
                return Err(refuse("a name or a number is given twice"));
            }
            numbers.push(number);
        }
        named.columns().ok_or_else(|| refuse("the key is missing"))
    }
}

impl fmt::Display for Columns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [
            ("time", self.time),
            ("key", Some(self.key)),
            ("size", self.size),
            ("op", self.op),
        ];
        let shown = columns.into_iter().filter_map(|(name, number)| {
            let number = number?;
            Some(format!("{name}={number}"))
        });
        f.write_str(&shown.collect::<Vec<_>>().join(","))
    }
}

/// Layout of the lines of a `csv` trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    columns: Columns,
    header: Header,
}

/// Kind of the first line of a `csv` trace.
#[derive(Clone, Copy, Debug)]
enum Header {
    /// It names the columns; `nr_fields` is their number.
    Found { nr_fields: usize },
    /// It should name the columns and does not, which is an error of that line. A reader that skips
    /// it continues with the columns time, key, size and op.
    Missing,
    /// The user has named the columns; a line of words may still stand above them.
    NotNeeded,
}

impl Layout {
    /// Layout of a trace without a header.
    pub(super) const UNKNOWN: Self = Self {
        columns: Columns {
            time: Some(1),
            key: 2,
            size: Some(3),
            op: Some(4),
        },
        header: Header::Missing,
    };

    /// Parses a header; `None` if the line is not one.
    pub(super) fn of_header(line: &[u8]) -> Option<Self> {
        let (mut named, mut nr_fields) = (Named::default(), 0);
        for field in fields(line) {
            nr_fields += 1;
            let place = str::from_utf8(field)
                .ok()
                .and_then(|name| named.place(name));
            if place.is_some_and(|place| place.replace(nr_fields).is_some()) {
                return None;
            }
        }
        Some(Self {
            columns: named.columns()?,
            header: Header::Found { nr_fields },
        })
    }

    /// Returns the layout of the user's columns.
    pub(super) const fn of_columns(columns: Columns) -> Self {
        Self {
            columns,
            header: Header::NotNeeded,
        }
    }

    pub(super) const fn columns(&self) -> Columns {
        self.columns
    }

    /// Returns whether a record can be a write.
    pub(super) const fn may_write(&self) -> bool {
        self.columns.op.is_some()
    }

    fn record(&self, line: &[u8]) -> Option<(Kind, u64, u64)> {
        let Columns { key, size, op, .. } = self.columns;
        let (mut found_key, mut bytes, mut kind) = (None, Some(0), Some(Kind::Read));
        if size.is_some() {
            bytes = None;
        }
        if op.is_some() {
            kind = None;
        }
        let mut nr_fields = 0;
        for field in fields(line) {
            nr_fields += 1;
            if nr_fields == key {
                found_key = key_of(field);
            } else if Some(nr_fields) == size {
                bytes = size_of(field);
            } else if Some(nr_fields) == op {
                kind = Kind::of(field);
            }
        }
        let is_complete = match self.header {
            Header::Found { nr_fields: wanted } => wanted == nr_fields,
            Header::Missing => nr_fields == 4,
            Header::NotNeeded => true,
        };
        if !is_complete {
            return None;
        }
        Some((kind?, found_key?, bytes?))
    }

    /// Returns whether the first line is a header although the user has named the columns: it has
    /// no number, and a word where a record has a time, a size or an op, or a name of keys.
    fn has_words(&self, line: &[u8]) -> bool {
        let Columns {
            time,
            key,
            size,
            op,
        } = self.columns;
        let field = |number: usize| fields(line).nth(number - 1);
        let is_word = |number: Option<usize>| {
            number.and_then(field).is_some_and(|field| {
                field.first().is_some_and(u8::is_ascii_alphabetic) && Kind::of(field).is_none()
            })
        };
        let names_keys = field(key).is_some_and(|field| Layout::of_header(field).is_some());
        let starts_with_digit = |field: &[u8]| field.first().is_some_and(u8::is_ascii_digit);
        !fields(line).any(starts_with_digit)
            && (names_keys || is_word(time) || is_word(size) || is_word(op))
    }
}

/// Parses one line of `csv`; `record` is its number from 1.
#[inline]
pub(super) fn parse_csv(line: &[u8], record: u64, layout: &Layout) -> Result<Parsed, Fault> {
    match layout.header {
        _ if record > 1 => {}
        Header::Found { .. } => return Ok(Parsed::Blank),
        Header::Missing => {
            return Err(Fault::shape(
                "a header with the column `key` and perhaps time, size and op, or `--columns key=NUMBER`",
            ));
        }
        Header::NotNeeded if layout.has_words(line) => return Ok(Parsed::Blank),
        Header::NotNeeded => {}
    }
    match layout.record(line) {
        Some((kind, key, bytes)) => kind.on_key(key, bytes),
        None if is_blank(line) => Ok(Parsed::Blank),
        None => Err(Fault::shape(
            "in the columns as named a key, a size in bytes or nothing, an op (read, get, r, write, set, put, w, delete ...)",
        )),
    }
}

/// Parses one line of `msr`; `record` is its number from 1.
pub(super) fn parse_msr(line: &[u8], record: u64) -> Result<Parsed, Fault> {
    match msr_fields(line) {
        Some((op, offset, bytes)) => Request::on_bytes(op, offset, bytes),
        None if record == 1 && is_msr_header(line) => Ok(Parsed::Blank),
        None if is_blank(line) => Ok(Parsed::Blank),
        None => Err(Fault::shape(
            "seven fields: time, host, disk, Read or Write, offset, size, latency",
        )),
    }
}

/// Returns whether a line names the fields, as some copies of the traces do.
fn is_msr_header(line: &[u8]) -> bool {
    let named = |(field, name): (&[u8], &[u8])| field.eq_ignore_ascii_case(name);
    let names: [&[u8]; 3] = [b"type", b"offset", b"size"];
    fields(line).count() == MSR_FIELDS && fields(line).skip(3).zip(names).all(named)
}

fn msr_fields(line: &[u8]) -> Option<(Op, u64, u64)> {
    let mut all = fields(line);
    let [time, _host, disk, op, offset, bytes, latency]: [&[u8]; MSR_FIELDS] =
        std::array::from_fn(|_| all.next().unwrap_or_default());
    for field in [time, disk, latency] {
        number(field)?;
    }
    let op = match op {
        op if op.eq_ignore_ascii_case(b"read") => Op::Read,
        op if op.eq_ignore_ascii_case(b"write") => Op::Write,
        _ => return None,
    };
    let record = (op, number(offset)?, number(bytes)?);
    all.next().is_none().then_some(record)
}

/// Parses one line of `twitter`.
pub(super) fn parse_twitter(line: &[u8]) -> Result<Parsed, Fault> {
    match twitter_fields(line) {
        Some((kind, key, bytes)) => kind.on_key(key, bytes),
        None if is_blank(line) => Ok(Parsed::Blank),
        None => Err(Fault::shape(
            "seven fields: time, key, key size, value size, client, op (get, set, add ...), TTL",
        )),
    }
}

fn twitter_fields(line: &[u8]) -> Option<(Kind, u64, u64)> {
    let time_end = line.iter().position(|&byte| byte == b',')?;
    number(&line[..time_end])?;
    let mut last = line[time_end + 1..].rsplitn(TWITTER_FIELDS_LAST + 1, |&byte| byte == b',');
    let [ttl, op, client, value, key_bytes] =
        std::array::from_fn(|_| last.next().unwrap_or_default().trim_ascii());
    let key = key_of(last.next()?.trim_ascii())?;
    number(ttl)?;
    number(client)?;
    let bytes = number(key_bytes)?.checked_add(number(value)?)?;
    Some((Kind::of(op)?, key, bytes))
}

/// Effect of an op on its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    /// Its pages are not touched.
    Delete,
}

impl Kind {
    /// Returns the op called `name`, in any letter case.
    #[inline]
    fn of(name: &[u8]) -> Option<Self> {
        const READS: [&str; 4] = ["read", "get", "gets", "r"];
        const WRITES: [&str; 11] = [
            "write", "set", "put", "w", "add", "replace", "cas", "append", "prepend", "incr",
            "decr",
        ];
        let is_in = |names: &[&str]| {
            let mut names = names.iter();
            names.any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
        };
        if is_in(&READS) {
            Some(Self::Read)
        } else if is_in(&WRITES) {
            Some(Self::Write)
        } else if is_in(&["delete"]) {
            Some(Self::Delete)
        } else {
            None
        }
    }

    #[inline]
    fn on_key(self, key: u64, bytes: u64) -> Result<Parsed, Fault> {
        match self {
            Self::Read => Request::on_key(Op::Read, key, bytes),
            Self::Write => Request::on_key(Op::Write, key, bytes),
            Self::Delete => Ok(Parsed::Empty),
        }
    }
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii)
}

/// Parses a field that is one whole number.
#[inline]
fn number(field: &[u8]) -> Option<u64> {
    let (value, rest) = leading_number(field)?;
    rest.is_empty().then_some(value)
}

/// Parses a size in bytes; 0 if the field is empty.
#[inline]
fn size_of(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return Some(0);
    }
    number(field)
}

/// Returns the key of a text.
#[inline]
fn key_of(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    Some(number(field).unwrap_or_else(|| XxHash64::oneshot(0, field)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_read_back_and_mistakes_are_named() {
        for text in ["key=1", "time=1,key=2,size=3,op=4", "key=4,op=2"] {
            assert_eq!(text.parse::<Columns>().unwrap().to_string(), text);
        }
        let spaced: Columns = "Key = 2, bytes=7".parse().unwrap();
        assert_eq!(spaced.to_string(), "key=2,size=7");
        for (text, why) in [
            ("", "no `=`"),
            ("key", "no `=`"),
            ("key=0", "from 1"),
            ("key=x", "from 1"),
            ("key=1,ttl=2", "no such name"),
            ("key=1,key=2", "twice"),
            ("key=1,size=1", "twice"),
            ("time=1,size=2", "the key is missing"),
        ] {
            let error = text.parse::<Columns>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("key=2"), "{error}");
        }
    }

    #[test]
    fn a_header_needs_a_key_and_names_columns_once() {
        let columns = |line: &str| {
            let layout = Layout::of_header(line.as_bytes())?;
            Some(layout.columns.to_string())
        };
        assert_eq!(
            columns("Timestamp, op ,latency,KEY\r").as_deref(),
            Some("time=1,key=4,op=2")
        );
        assert_eq!(columns("time,size,op"), None);
        assert_eq!(columns("key,size,key"), None);
        assert_eq!(columns("1,2,3"), None);
    }

    #[test]
    fn a_first_line_of_words_is_a_header_also_where_columns_are_named() {
        let has_words = |columns: &str, line: &str| {
            Layout::of_columns(columns.parse().unwrap()).has_words(line.as_bytes())
        };
        assert!(has_words("time=1,key=2,op=3", "when,what,verb"));
        assert!(has_words("key=2", "time,key,size"));
        assert!(has_words("key=1,size=2", "Object,length"));
        // These are records, good ones or bad ones.
        assert!(!has_words("time=1,key=2,op=3", "1,k,GETX"));
        assert!(!has_words("key=2,size=3", "1,k,abc"));
        assert!(!has_words("key=1,op=2", "user:7,get"));
        assert!(!has_words("key=1", "user:7"));
    }

    #[test]
    fn keys_are_numbers_or_hashes() {
        assert_eq!(key_of(b"18446744073709551615"), Some(u64::MAX));
        // Computed with `xxhsum -H1`.
        assert_eq!(key_of(b"a"), Some(0xd24e_c4f1_a98c_6e5b));
        assert_ne!(
            key_of(b"18446744073709551616"),
            key_of(b"18446744073709551617")
        );
        assert_eq!(key_of(b""), None);
    }
}
