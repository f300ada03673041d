//! Requests of a trace, in pages of 4,096 bytes.
//!
//! Every format is reduced to one of two targets. A block trace or an address trace names pages of
//! one address space ([`Target::Pages`]). A key trace names objects ([`Target::Key`]): a key has
//! pages of its own, which [`KeyDirectory`](super::KeyDirectory) lays out in a file.
//!
//! Invariant: a request that a reader returns touches at least one page; its pages lie below
//! [`PAGE_LIMIT`] and are at most [`COUNT_LIMIT`]. Only the constructors here check it.

use highwater::units::PAGE_BYTES;

use super::error::{Fault, Found};

/// Limit of page numbers: 2^44 pages, 64 PiB. Chosen: far above any recorded device, and low enough
/// that byte offsets (2^56) and sums of a few of them fit 64 bits.
pub const PAGE_LIMIT: u64 = 1 << 44;

/// Largest number of pages of one request: 2^20 pages, 4 GiB. Chosen: the largest that a size of 32
/// bits, as in `oracle-general`, can state, and few enough that a damaged record does not keep a
/// replay busy for hours.
pub const COUNT_LIMIT: u64 = 1 << 20;

/// Whether a request reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// The pages are read.
    Read,
    /// The pages are written.
    Write,
}

/// Pages that a request touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The pages `first .. first + count` of one address space.
    Pages {
        /// First page, below [`PAGE_LIMIT`].
        first: u64,
        /// Number of pages, 1 to [`COUNT_LIMIT`].
        count: u64,
    },
    /// An object with pages of its own.
    Key {
        /// The object's name: opaque, any 64 bits.
        key: u64,
        /// `ceil(size / 4096)`, and 1 when the format gives no size or the size is 0.
        pages: u64,
    },
}

impl Target {
    /// Returns the number of page accesses of the request.
    #[must_use]
    pub const fn page_count(&self) -> u64 {
        match *self {
            Self::Pages { count, .. } => count,
            Self::Key { pages, .. } => pages,
        }
    }
}

/// One record of a trace, or one element of a record that lists several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Whether it reads or writes.
    pub op: Op,
    /// Its pages.
    pub target: Target,
}

impl Request {
    /// Returns a request for the pages `first .. first + count`, if they are plausible.
    #[inline]
    pub(super) fn on_pages(op: Op, first: u64, count: u64) -> Result<Parsed, Fault> {
        if count == 0 {
            return Ok(Parsed::Empty);
        }
        if count > COUNT_LIMIT {
            return Err(Fault::value(
                "pages",
                count,
                "at most 2^20 pages, 4 GiB, in one request",
            ));
        }
        if first >= PAGE_LIMIT || count > PAGE_LIMIT - first {
            return Err(Fault::value("page", first, "pages below 2^44"));
        }
        let target = Target::Pages { first, count };
        Ok(Parsed::Request(Self { op, target }))
    }

    /// Returns a request for the pages that hold the bytes `start .. start + length`.
    #[inline]
    pub(super) fn on_bytes(op: Op, start: u64, length: u64) -> Result<Parsed, Fault> {
        if length == 0 {
            return Ok(Parsed::Empty);
        }
        let Some(last) = start.checked_add(length - 1) else {
            return Err(Fault::value("byte offset", start, "pages below 2^44"));
        };
        let first_page = start / PAGE_BYTES;
        Self::on_pages(op, first_page, last / PAGE_BYTES - first_page + 1)
    }

    /// Returns a request for an object of `bytes` bytes; an object without a size (0) has one page.
    #[inline]
    pub(super) fn on_key(op: Op, key: u64, bytes: u64) -> Result<Parsed, Fault> {
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        if pages > COUNT_LIMIT {
            return Err(Fault::value(
                "size",
                bytes,
                "a size of at most 4 GiB in one request",
            ));
        }
        let target = Target::Key { key, pages };
        Ok(Parsed::Request(Self { op, target }))
    }
}

/// Result of parsing one record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// One request.
    Request(Request),
    /// Several reads of one page each, in this order.
    Keys(Vec<u64>),
    /// A well-formed record that touches no page: a count or length of zero.
    Empty,
    /// No record: a blank line, a break mark, a header.
    Blank,
}

impl Fault {
    /// Returns a fault of one field.
    #[cold]
    pub(super) const fn value(field: &'static str, value: u64, expected: &'static str) -> Self {
        let found = Found::Value { field, value };
        Self { found, expected }
    }

    /// Returns a fault of the record's shape; the reader shows the record.
    #[cold]
    pub(super) const fn shape(expected: &'static str) -> Self {
        let found = Found::Record;
        Self { found, expected }
    }
}
