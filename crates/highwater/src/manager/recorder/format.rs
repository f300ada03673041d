//! The file format of a recording: header, hint, records and their checksums, and the encoding of
//! numbers. `docs/recorder.md` describes it for other readers.
//!
//! Everything is little-endian. Numbers in payloads are varints (LEB128), signed ones zigzag
//! varints: most numbers of a group are small or zero, and a ring holds several times as much time.

use std::time::Duration;

use super::SIZES;
use crate::units::{Bytes, Estimate};

/// First bytes of every recording.
pub(super) const MAGIC: [u8; 8] = *b"HWRECORD";
/// Version of the format. Readers refuse any other.
pub(super) const VERSION: u32 = 1;
/// Offset of the ring: a block for the header and the hint.
pub(super) const RING_AT: u64 = 4096;
/// Offset of the hint in the file: in the header's block, behind the header.
pub(super) const HINT_AT: u64 = HEADER_MAX as u64;
/// Upper bound on the length of the header.
pub(super) const HEADER_MAX: usize = 2048;
/// Length of the hint.
pub(super) const HINT_LEN: usize = 24;
/// Records begin at multiples of this.
pub(super) const ALIGN: u64 = 8;
/// First bytes of every record.
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"HwRe");
/// Length of a record's header.
pub(super) const RECORD_HEAD: usize = 40;
/// Longest payload. Chosen: a moment of a thousand groups is one or two records, and a kill in the
/// middle of a large moment loses one record of it.
pub(super) const PAYLOAD_MAX: usize = 64 << 10;

/// The header of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) ring: u64,
    pub(super) started_unix: Duration,
    pub(super) pid: u32,
    pub(super) nr_cpus: u32,
    pub(super) page_size: u32,
    pub(super) program: String,
}

/// The reason why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    NotARecording,
    Version(u32),
    Damaged,
}

impl FileHeader {
    /// Longest program name that is kept.
    pub(super) const PROGRAM_MAX: usize = 255;

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let mut rest = Out(&mut out);
        rest.number(self.ring);
        rest.time(self.started_unix);
        for number in [self.pid, self.nr_cpus, self.page_size] {
            rest.number(u64::from(number));
        }
        rest.text(clip(&self.program, Self::PROGRAM_MAX));
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        debug_assert!(out.len() <= HEADER_MAX, "a header of {} bytes", out.len());
        out
    }

    /// Decodes the header at the start of `file`.
    pub(super) fn decode(file: &[u8]) -> Result<Self, HeaderFault> {
        let rest = file
            .strip_prefix(&MAGIC)
            .ok_or(HeaderFault::NotARecording)?;
        let (version, rest) = rest.split_first_chunk().ok_or(HeaderFault::Damaged)?;
        match u32::from_le_bytes(*version) {
            VERSION => Self::decode_body(file, rest).ok_or(HeaderFault::Damaged),
            other => Err(HeaderFault::Version(other)),
        }
    }

    fn decode_body(file: &[u8], rest: &[u8]) -> Option<Self> {
        let mut input = In(rest);
        let header = Self {
            ring: input.number()?,
            started_unix: input.time()?,
            pid: input.small()?,
            nr_cpus: input.small()?,
            page_size: input.small()?,
            program: input.text()?,
        };
        let (crc, after) = input.0.split_first_chunk()?;
        let covered = &file[..file.len() - after.len() - crc.len()];
        let is_ring = header.ring.is_multiple_of(ALIGN) && SIZES.contains(&Bytes(header.ring));
        (is_ring && u32::from_le_bytes(*crc) == crc32fast::hash(covered)).then_some(header)
    }
}

/// The newest record, so that a reader need not look for it. Never needed: a reader that finds it
/// torn scans the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hint {
    /// Number of the newest record.
    pub(super) seq: u64,
    /// Position behind it.
    pub(super) end: u64,
}

impl Hint {
    pub(super) fn encode(self) -> [u8; HINT_LEN] {
        let mut out = [0; HINT_LEN];
        out[..8].copy_from_slice(&self.seq.to_le_bytes());
        out[8..16].copy_from_slice(&self.end.to_le_bytes());
        let crc = crc32fast::hash(&out[..16]);
        out[16..20].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8; HINT_LEN]) -> Option<Self> {
        let crc = u32::from_le_bytes(bytes[16..20].try_into().ok()?);
        (crc == crc32fast::hash(&bytes[..16])).then(|| Self {
            seq: word(bytes, 0),
            end: word(bytes, 8),
        })
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A part of a whole moment.
    Whole = 1,
    /// Groups that changed since.
    Changed = 2,
    /// A mark of the program.
    Mark = 3,
    /// A victim selection.
    Victim = 4,
    /// The orderly end of the manager.
    End = 5,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Whole,
            Self::Changed,
            Self::Mark,
            Self::Victim,
            Self::End,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The header of a record. Its checksum covers the rest of the header and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    pub(super) kind: Kind,
    /// Length of the payload.
    pub(super) len: u32,
    /// Number of the record, from 1.
    pub(super) seq: u64,
    /// Position: bytes of the ring used before it, in all laps. Its offset in the ring is the
    /// remainder by the ring's size, so bytes that merely look like a record are no record.
    pub(super) at: u64,
    /// Since the manager was built.
    pub(super) time: Duration,
}

impl RecordHead {
    /// Writes the header into the first bytes of `record`, whose payload is complete.
    pub(super) fn seal(self, record: &mut [u8]) {
        debug_assert_eq!(
            record.len(),
            RECORD_HEAD + self.len as usize,
            "a header tells the length of its record"
        );
        record[..4].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
        record[8..12].copy_from_slice(&self.len.to_le_bytes());
        record[12..16].copy_from_slice(&u32::from(self.kind as u8).to_le_bytes());
        record[16..24].copy_from_slice(&self.seq.to_le_bytes());
        record[24..32].copy_from_slice(&self.at.to_le_bytes());
        record[32..40].copy_from_slice(&nanos(self.time).to_le_bytes());
        let crc = crc32fast::hash(&record[8..]);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Returns the header at the start of `bytes`, and its payload, if there is a record with the
    /// right checksum.
    pub(super) fn open(bytes: &[u8]) -> Opened<'_> {
        let Some(head) = bytes.get(..RECORD_HEAD) else {
            return Opened::Nothing;
        };
        if head[..4] != RECORD_MAGIC.to_le_bytes() {
            return Opened::Nothing;
        }
        match Self::open_marked(bytes, head) {
            Some((head, payload)) => Opened::Record(head, payload),
            None => Opened::Torn,
        }
    }

    fn open_marked<'a>(bytes: &'a [u8], head: &[u8]) -> Option<(Self, &'a [u8])> {
        let half = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| head[at + byte]));
        let len = half(8) as usize;
        if len > PAYLOAD_MAX {
            return None;
        }
        let record = bytes.get(..RECORD_HEAD + len)?;
        if half(4) != crc32fast::hash(&record[8..]) {
            return None;
        }
        let this = Self {
            kind: Kind::of(u8::try_from(half(12)).ok()?)?,
            len: half(8),
            seq: word(head, 16),
            at: word(head, 24),
            time: Duration::from_nanos(word(head, 32)),
        };
        Some((this, &record[RECORD_HEAD..]))
    }

    /// Returns the bytes of the ring that the record uses.
    pub(super) fn size(&self) -> u64 {
        (RECORD_HEAD as u64 + u64::from(self.len)).next_multiple_of(ALIGN)
    }

    /// Returns the position behind the record.
    pub(super) fn end(&self) -> u64 {
        self.at.saturating_add(self.size())
    }
}

/// Result of looking for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened<'a> {
    Record(RecordHead, &'a [u8]),
    /// A record begins there, and its checksum is wrong.
    Torn,
    Nothing,
}

/// Appends to a payload.
pub(super) struct Out<'a>(pub(super) &'a mut Vec<u8>);

impl Out<'_> {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    #[inline]
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.0.push(number.to_le_bytes()[0]);
    }

    pub(super) fn signed(&mut self, number: i64) {
        self.number((number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned());
    }

    pub(super) fn time(&mut self, time: Duration) {
        self.number(nanos(time));
    }

    /// An interval as its lower end and the distances to value and upper end.
    pub(super) fn estimate(&mut self, estimate: Estimate<Bytes>) {
        let Estimate { value, low, high } = estimate;
        self.number(low.0);
        self.number(value.0.saturating_sub(low.0));
        self.number(high.0.saturating_sub(low.0));
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// Reads a payload. Each method returns `None` at the first byte that is missing or wrong.
#[derive(Debug)]
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl In<'_> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if (bits << shift) >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(super) fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    pub(super) fn time(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_nanos)
    }

    pub(super) fn bytes(&mut self) -> Option<Bytes> {
        self.number().map(Bytes)
    }

    pub(super) fn estimate(&mut self) -> Option<Estimate<Bytes>> {
        let low = self.number()?;
        let (value, high) = (self.number()?, self.number()?);
        Some(Estimate {
            value: Bytes(low.checked_add(value)?),
            low: Bytes(low),
            high: Bytes(low.checked_add(high)?),
        })
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let len = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

/// Returns the longest prefix of `text` of at most `max` bytes.
pub(super) fn clip(text: &str, max: usize) -> &str {
    let fits = |at: &usize| text.is_char_boundary(*at);
    let end = (0..=max.min(text.len())).rev().find(fits);
    &text[..end.unwrap_or(0)]
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| bytes[at + byte]))
}
