//! Pages of a ring buffer as `trace_pipe_raw` returns them: sub-buffers in the layout of the
//! kernel's memory.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | time of the first event, in ns of the trace clock |
//! | a machine word | committed bytes, in bits 0 to 26; bit 31: events were lost before this page; bit 30: their number follows the committed bytes |
//! | the committed bytes | entries, each of whole 4-byte words |
//!
//! The first word of an entry has `type_len` in bits 0 to 4 and the time since the previous entry
//! in the others:
//!
//! | `type_len` | entry |
//! |---|---|
//! | 0 | an event; the next word is its length in bytes, that word included |
//! | 1 to 28 | an event of `4 * type_len` bytes |
//! | 29 | padding: of the rest of the page without a time, of a discarded event with one |
//! | 30 | the next word has further bits of the time, above the 27 |
//! | 31 | an absolute time of 59 bits; the upper 5 bits are those of the time before |
//!
//! Source: `events/header_page` and `events/header_event` of tracefs describe it; the meaning of
//! the flags is that of `include/linux/ring_buffer.h` and libtraceevent's documentation.

use thiserror::Error;

use super::format::{FormatError, parse_fields};

/// Bits of the commit word that count bytes.
const COMMIT_MASK: u64 = (1 << 27) - 1;
/// Flag of the commit word: events were lost before this page.
const MISSED: u64 = 1 << 31;
/// Flag of the commit word: the number of lost events is stored after the committed bytes.
const MISSED_STORED: u64 = 1 << 30;
/// Bits of an entry's time.
const DELTA_BITS: u32 = 27;
/// Bits of an absolute time that an entry holds.
const ABSOLUTE_BITS: u32 = 59;

const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// Layout of a page's header, from `events/header_page`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLayout {
    word: usize,
    data: usize,
}

/// Why a page does not decode. Offsets are in bytes from the page's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PageError {
    /// The page is shorter than its header, or than the bytes that it says are committed.
    #[error("a page of {found} bytes, expected {expected} or more")]
    Short {
        /// Bytes of the page.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// An entry reaches beyond the committed bytes.
    #[error("the entry at byte {offset} reaches beyond the {end} committed bytes")]
    Entry {
        /// Where the entry begins.
        offset: usize,
        /// Where the committed bytes end.
        end: usize,
    },
}

/// Events that the kernel says it lost before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostBefore {
    /// None.
    None,
    /// So many.
    Events(u64),
    /// Some; the page had no room for their number.
    Unknown,
}

/// One event of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEvent<'page> {
    /// Time of the trace clock, in ns for the clocks that count in ns.
    pub time: u64,
    /// The event's fields, as [`EventFormat`](super::EventFormat) places them.
    pub bytes: &'page [u8],
}

impl PageLayout {
    /// The layout of a 64-bit kernel.
    pub const WORD_64: Self = Self { word: 8, data: 16 };

    /// Parses `events/header_page`.
    ///
    /// # Errors
    ///
    /// When a field is missing, or no number.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let fields = parse_fields(text)?;
        let place = |name: &str, line| {
            let found = fields.iter().find(|field| field.name == name);
            found.ok_or(FormatError::Missing { line })
        };
        let commit = place("commit", "field: local_t commit")?;
        let data = place("data", "field: char data")?;
        let is_known = commit.offset == 8 && matches!(commit.size, 4 | 8) && data.offset < 4096;
        if !is_known || data.offset < commit.offset + commit.size {
            return Err(FormatError::Missing {
                line: "field: local_t commit, of 4 or 8 bytes, at offset 8",
            });
        }
        Ok(Self {
            word: commit.size,
            data: data.offset,
        })
    }

    /// Begins to decode a page.
    ///
    /// # Errors
    ///
    /// When the page is shorter than its header says.
    pub fn events<'page>(&self, page: &'page [u8]) -> Result<PageEvents<'page>, PageError> {
        let short = |expected| PageError::Short {
            found: page.len(),
            expected,
        };
        let time = read_u64(page, 0).ok_or(short(self.data))?;
        let commit = self.read_word(page, 8).ok_or(short(self.data))?;
        let committed = usize::try_from(commit & COMMIT_MASK).unwrap_or(usize::MAX);
        let end = self.data.saturating_add(committed);
        if end > page.len() {
            return Err(short(end));
        }
        let lost = match (commit & MISSED != 0, commit & MISSED_STORED != 0) {
            (false, _) => LostBefore::None,
            (true, false) => LostBefore::Unknown,
            (true, true) => self
                .read_word(page, end)
                .map_or(LostBefore::Unknown, LostBefore::Events),
        };
        Ok(PageEvents {
            page: &page[..end],
            at: self.data.min(end),
            time,
            lost,
        })
    }

    fn read_word(&self, page: &[u8], at: usize) -> Option<u64> {
        match self.word {
            4 => read_u32(page, at).map(u64::from),
            _ => read_u64(page, at),
        }
    }
}

fn read_u32(page: &[u8], at: usize) -> Option<u32> {
    let bytes = page.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn read_u64(page: &[u8], at: usize) -> Option<u64> {
    let bytes = page.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

/// Iterator over the events of a page, in the order of the buffer. Ends after an error.
#[derive(Clone, Debug)]
pub struct PageEvents<'page> {
    /// Header and committed bytes.
    page: &'page [u8],
    at: usize,
    time: u64,
    lost: LostBefore,
}

impl PageEvents<'_> {
    /// Returns the events lost before this page.
    #[must_use]
    pub const fn lost(&self) -> LostBefore {
        self.lost
    }
}

/// One entry: the bytes from its beginning to the next one, and its event, if it is one.
struct Entry<'page> {
    length: usize,
    time: u64,
    event: Option<&'page [u8]>,
}

impl<'page> PageEvents<'page> {
    /// Decodes the next entry; `None` if it reaches beyond the page.
    fn entry(&self) -> Option<Entry<'page>> {
        let head = read_u32(self.page, self.at)?;
        let delta = u64::from(head >> 5);
        let time = self.time.wrapping_add(delta);
        let of_event = |from: usize, length: usize| {
            let start = self.at.checked_add(from)?;
            let event = self.page.get(start..start.checked_add(length)?)?;
            Some(Entry {
                length: from + length,
                time,
                event: Some(event),
            })
        };
        let without_event = |length, time| Entry {
            length,
            time,
            event: None,
        };
        let next_word = || read_u32(self.page, self.at + 4);
        match head & 31 {
            0 => of_event(8, usize::try_from(next_word()?).ok()?.checked_sub(4)?),
            PADDING if delta == 0 => Some(without_event(self.page.len() - self.at, self.time)),
            PADDING => {
                let length = usize::try_from(next_word()?).ok()?.checked_add(4)?;
                let is_inside = length <= self.page.len() - self.at;
                is_inside.then(|| without_event(length, time))
            }
            TIME_EXTEND => {
                let upper = u64::from(next_word()?) << DELTA_BITS;
                Some(without_event(8, time.wrapping_add(upper)))
            }
            TIME_STAMP => {
                let low = u64::from(next_word()?) << DELTA_BITS | delta;
                Some(without_event(8, absolute(low, self.time)))
            }
            words => of_event(4, usize::try_from(words).ok()? * 4),
        }
    }
}

/// Completes an absolute time of 59 bits by the upper bits of the time before it.
const fn absolute(low: u64, before: u64) -> u64 {
    let upper = before >> ABSOLUTE_BITS << ABSOLUTE_BITS;
    let time = upper | (low & ((1 << ABSOLUTE_BITS) - 1));
    if time < before && before - time > 1 << (ABSOLUTE_BITS - 1) {
        return time.wrapping_add(1 << ABSOLUTE_BITS);
    }
    time
}

impl<'page> Iterator for PageEvents<'page> {
    type Item = Result<RawEvent<'page>, PageError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.page.len() {
            let Some(entry) = self.entry() else {
                let error = PageError::Entry {
                    offset: self.at,
                    end: self.page.len(),
                };
                self.at = self.page.len();
                return Some(Err(error));
            };
            self.at += entry.length;
            self.time = entry.time;
            if let Some(bytes) = entry.event {
                let time = self.time;
                return Some(Ok(RawEvent { time, bytes }));
            }
        }
        None
    }
}
