//! Format 2 of `highwater`, which `highwater record` writes: requests in blocks, with the names of
//! the files that they touch.
//!
//! Layout, all little-endian: the magic number `HWTRACE2`, then blocks of one byte for the kind, a
//! u32 for the length of the content in bytes (at most 64 KiB), and the content. Numbers in it are
//! LEB128, as in format 1.
//!
//! | kind | content |
//! |---|---|
//! | 1 about | UTF-8 text, lines `name: value` |
//! | 2 file | number, device major, device minor, inode; then the name: the rest, UTF-8 |
//! | 3 extent | first page of the trace, pages, number of a file, first page in the file |
//! | 4 records | number of records, number of page accesses, then the records as in format 1, with `end` 0 before the first |
//! | 5 lost | number of events that the recorder lost since the previous such block |
//! | 6 end | totals of records, page accesses and lost events; nothing follows |
//!
//! Files are numbered from 0 in the order of their first block; a later block of the same file
//! replaces its name, which is empty while it is unknown. An extent gives pages of a file a place
//! in the trace's one space of pages; extents come in the order of that space and may leave gaps.
//!
//! A recorder does not know the sizes, the names and the counts in advance, and may be killed. So
//! all that is known is written about once a second, compressed as a frame of its own: a trace
//! without its end block is cut short, and each whole block of it can be read.

use std::io::Write;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::compact::{RECORD_MAX, WriteError, push_number, zigzag};
use super::request::{COUNT_LIMIT, Op, PAGE_LIMIT};

/// First bytes of a recording.
pub(super) const MAGIC: &[u8; 8] = b"HWTRACE2";

/// Bytes before a block's content: kind and length.
pub(super) const BLOCK_HEAD: usize = 5;

/// Most bytes of a block's content. Chosen: a quarter of the reader's window.
pub(super) const BLOCK_MAX: usize = 64 << 10;

/// A records block is ended when it has so many bytes.
const RECORDS_MAX: usize = 48 << 10;

/// Most files of a recording.
pub(super) const FILES_MAX: usize = 1 << 20;

/// Longest name of a file, in bytes: `PATH_MAX`.
pub(super) const NAME_MAX: usize = 4096;

/// Smallest extent of a file whose size is unknown, or that grows. Chosen: 256 KiB, so that small
/// files leave small gaps.
const EXTENT_MIN: u64 = 64;

/// Largest extent of that kind: 1 GiB.
const EXTENT_MAX: u64 = 1 << 18;

/// Largest file that gets one extent for all its pages: 1 TiB. Larger ones are mostly holes.
const WHOLE_MAX: u64 = 1 << 28;

/// Kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    About = 1,
    File,
    Extent,
    Records,
    Lost,
    End,
}

impl Kind {
    pub(super) fn of(byte: u8) -> Option<Self> {
        use Kind::{About, End, Extent, File, Lost, Records};
        let all = [About, File, Extent, Records, Lost, End];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Whether a recording is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Packing {
    /// As it is.
    Plain,
    /// A zstd frame for each flush.
    #[default]
    Zstd,
}

/// A file of a recording, as [`RecordingWriter::file`] numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileNumber(u32);

/// Identity of a file: its device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Major number of the device.
    pub major: u32,
    /// Minor number of the device.
    pub minor: u32,
    /// Inode on the device.
    pub inode: u64,
}

/// Pages of a file with a place in the trace.
#[derive(Clone, Copy, Debug)]
struct Extent {
    in_file: u64,
    in_trace: u64,
    pages: u64,
}

#[derive(Debug)]
struct WrittenFile {
    id: FileId,
    /// In the order of the pages in the file, without overlap.
    extents: Vec<Extent>,
    /// Pages that the file has, as far as known.
    pages: u64,
}

/// Totals of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordingTotals {
    /// Records written.
    pub records: u64,
    /// Page accesses: the sum of the records' pages.
    pub accesses: u64,
    /// Events that the recorder lost.
    pub lost_events: u64,
}

/// Writes a recording while it is made.
///
/// # Cost
///
/// A request costs some ten bytes of memory until the next [`flush`](Self::flush), which compresses
/// them and writes once.
///
/// # Examples
///
/// ```
/// use std::io::Cursor;
/// use highwater_lab::trace::{
///     FileId, Op, Packing, ReaderOptions, RecordingWriter, Target, TraceReader,
/// };
///
/// let mut writer = RecordingWriter::new(Vec::new(), Packing::Zstd, "kernel: 6.18\n")?;
/// let id = FileId { major: 254, minor: 0, inode: 12 };
/// let file = writer.file(id, 100, "data.db")?;
/// writer.push(file, Op::Read, 7, 3)?;
/// let (bytes, totals) = writer.finish()?;
/// assert_eq!(totals.accesses, 3);
///
/// let mut trace = TraceReader::from_reader("example", Cursor::new(bytes), &ReaderOptions::default())?;
/// let request = trace.next().expect("one record")?;
/// assert_eq!(request.target, Target::Pages { first: 7, count: 3 });
/// assert!(trace.next().is_none());
/// let recording = trace.recording().expect("format 2");
/// assert_eq!(recording.file_of_page(7).map(|(file, page)| (&*file.name, page)), Some(("data.db", 7)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a recording is whole only after `finish`"]
#[derive(Debug)]
pub struct RecordingWriter<W> {
    sink: W,
    packing: Packing,
    /// Blocks that are not written yet.
    blocks: Vec<u8>,
    /// Records of the current block.
    records: Vec<u8>,
    nr_records: u64,
    nr_accesses: u64,
    /// The page after the previous record's last.
    end: u64,
    files: Vec<WrittenFile>,
    /// First page of the trace that no extent has.
    next_page: u64,
    totals: RecordingTotals,
    bytes_written: u64,
}

impl<W: Write> RecordingWriter<W> {
    /// Begins a recording; `about` are lines `name: value`, cut to 64 KiB.
    ///
    /// # Errors
    ///
    /// When the sink refuses the beginning.
    pub fn new(sink: W, packing: Packing, about: &str) -> Result<Self, WriteError> {
        let mut writer = Self {
            sink,
            packing,
            blocks: MAGIC.to_vec(),
            records: Vec::new(),
            nr_records: 0,
            nr_accesses: 0,
            end: 0,
            files: Vec::new(),
            next_page: 0,
            totals: RecordingTotals::default(),
            bytes_written: 0,
        };
        let about = cut(about, BLOCK_MAX);
        push_block(&mut writer.blocks, Kind::About, about.as_bytes());
        writer.flush()?;
        Ok(writer)
    }

    /// Adds a file that had `pages` pages when it was first seen, 0 if that is not known; the name
    /// may be empty until [`name`](Self::name).
    ///
    /// # Errors
    ///
    /// When there are 2^20 files.
    pub fn file(&mut self, id: FileId, pages: u64, name: &str) -> Result<FileNumber, WriteError> {
        let number = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        if self.files.len() >= FILES_MAX {
            return Err(WriteError::Files { files: number });
        }
        self.files.push(WrittenFile {
            id,
            extents: Vec::new(),
            pages,
        });
        let file = FileNumber(number);
        self.name(file, name);
        Ok(file)
    }

    /// Names a file, or names it again. Names longer than 4,096 bytes are cut.
    pub fn name(&mut self, file: FileNumber, name: &str) {
        let id = self.files[file.0 as usize].id;
        let mut content = Vec::new();
        let numbers = [file.0.into(), id.major.into(), id.minor.into(), id.inode];
        numbers
            .iter()
            .for_each(|number| push(&mut content, *number));
        content.extend_from_slice(cut(name, NAME_MAX).as_bytes());
        push_block(&mut self.blocks, Kind::File, &content);
    }

    /// Appends an access to the pages `first .. first + count` of a file: a record for each extent
    /// that they lie in, mostly one.
    ///
    /// # Errors
    ///
    /// When the file's pages are out of range, the trace has no pages left (2^44), or the sink
    /// refuses.
    pub fn push(
        &mut self,
        file: FileNumber,
        op: Op,
        first: u64,
        count: u64,
    ) -> Result<(), WriteError> {
        let range = WriteError::Range { first, count };
        let is_in_range = (1..=COUNT_LIMIT).contains(&count) && first.checked_add(count).is_some();
        if !is_in_range {
            return Err(range);
        }
        let (mut page, mut left) = (first, count);
        while left > 0 {
            let extent = self.extent(file, page, left).ok_or(WriteError::Range {
                first: page,
                count: left,
            })?;
            let skipped = page - extent.in_file;
            let pages = left.min(extent.pages - skipped);
            self.push_record(op, extent.in_trace + skipped, pages)?;
            page += pages;
            left -= pages;
        }
        Ok(())
    }

    /// Appends a record of the trace's pages.
    fn push_record(&mut self, op: Op, first: u64, count: u64) -> Result<(), WriteError> {
        let step = zigzag(first.cast_signed() - self.end.cast_signed());
        let is_write = u64::from(op == Op::Write);
        let mut record = [0; RECORD_MAX];
        let mut length = 0;
        push_number(&mut record, &mut length, step << 1 | is_write);
        push_number(&mut record, &mut length, count - 1);
        self.records.extend_from_slice(&record[..length]);
        self.end = first + count;
        self.nr_records += 1;
        self.nr_accesses += count;
        if self.records.len() >= RECORDS_MAX {
            self.end_records();
        }
        if self.blocks.len() >= BLOCK_MAX {
            self.flush()?;
        }
        Ok(())
    }

    /// Returns the extent of a file that holds a page, made for `count` pages if there is none;
    /// `None` if the trace has no pages left.
    fn extent(&mut self, file: FileNumber, page: u64, count: u64) -> Option<Extent> {
        let written = &mut self.files[file.0 as usize];
        let after = written
            .extents
            .partition_point(|extent| extent.in_file <= page);
        let before = after
            .checked_sub(1)
            .and_then(|index| written.extents.get(index));
        let gap_start = before.map_or(0, |extent| extent.in_file + extent.pages);
        if let Some(extent) = before.filter(|_| page < gap_start) {
            return Some(*extent);
        }
        let gap_end = written
            .extents
            .get(after)
            .map_or(u64::MAX, |next| next.in_file);
        let (start, end) = written.gap(page, count, gap_start, gap_end);
        let extent = Extent {
            in_file: start,
            in_trace: self.next_page,
            pages: end - start,
        };
        if extent.pages > PAGE_LIMIT - self.next_page {
            return None;
        }
        self.next_page += extent.pages;
        written.extents.insert(after, extent);
        let mut content = Vec::new();
        let numbers = [extent.in_trace, extent.pages, file.0.into(), extent.in_file];
        numbers
            .iter()
            .for_each(|number| push(&mut content, *number));
        push_block(&mut self.blocks, Kind::Extent, &content);
        Some(extent)
    }

    /// Records that events were lost since the last call.
    pub fn lost(&mut self, events: u64) {
        if events > 0 {
            self.end_records();
            let mut content = Vec::new();
            push(&mut content, events);
            push_block(&mut self.blocks, Kind::Lost, &content);
            self.totals.lost_events = self.totals.lost_events.saturating_add(events);
        }
    }

    /// Ends the current block of records.
    fn end_records(&mut self) {
        if self.nr_records == 0 {
            return;
        }
        let mut content = Vec::new();
        push(&mut content, self.nr_records);
        push(&mut content, self.nr_accesses);
        content.append(&mut self.records);
        push_block(&mut self.blocks, Kind::Records, &content);
        self.totals.records += self.nr_records;
        self.totals.accesses += self.nr_accesses;
        (self.nr_records, self.nr_accesses, self.end) = (0, 0, 0);
    }

    /// Writes all that is known by now. If the program is killed later, this much can be read.
    ///
    /// # Errors
    ///
    /// When the sink refuses.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.end_records();
        if self.blocks.is_empty() {
            return Ok(());
        }
        let packed = match self.packing {
            Packing::Plain => std::mem::take(&mut self.blocks),
            Packing::Zstd => {
                let packed = compress_to_vec(self.blocks.as_slice(), CompressionLevel::Fastest);
                self.blocks.clear();
                packed
            }
        };
        self.sink.write_all(&packed)?;
        self.sink.flush()?;
        self.bytes_written += packed.len() as u64;
        Ok(())
    }

    /// Returns the totals, without the current block of records.
    #[must_use]
    pub const fn totals(&self) -> RecordingTotals {
        self.totals
    }

    /// Returns the bytes given to the sink so far.
    #[must_use]
    pub const fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Completes the recording; returns the sink and the totals.
    ///
    /// # Errors
    ///
    /// When the sink refuses.
    pub fn finish(mut self) -> Result<(W, RecordingTotals), WriteError> {
        self.end_records();
        let totals = self.totals;
        let mut content = Vec::new();
        push(&mut content, totals.records);
        push(&mut content, totals.accesses);
        push(&mut content, totals.lost_events);
        push_block(&mut self.blocks, Kind::End, &content);
        self.flush()?;
        Ok((self.sink, totals))
    }
}

impl WrittenFile {
    /// Returns the pages of the file that get an extent, within a gap between others: the whole
    /// file as it was when first seen, or as many pages as it has already, so that a growing file
    /// has few extents.
    fn gap(&mut self, page: u64, count: u64, gap_start: u64, gap_end: u64) -> (u64, u64) {
        if (page..WHOLE_MAX).contains(&self.pages.saturating_sub(1)) {
            let end = self.pages.max(page + count).min(gap_end);
            return (gap_start, end);
        }
        let length = self.pages.clamp(EXTENT_MIN, EXTENT_MAX);
        let start = if page - gap_start < length {
            gap_start
        } else {
            page & !(EXTENT_MIN - 1)
        };
        let start = start.max(gap_start);
        let end = start.saturating_add(length).max(page + count).min(gap_end);
        self.pages = self.pages.max(end);
        (start, end)
    }
}

/// Appends a LEB128 number.
fn push(content: &mut Vec<u8>, number: u64) {
    let mut bytes = [0; RECORD_MAX];
    let mut length = 0;
    push_number(&mut bytes, &mut length, number);
    content.extend_from_slice(&bytes[..length]);
}

fn push_block(blocks: &mut Vec<u8>, kind: Kind, content: &[u8]) {
    let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
    debug_assert!(content.len() <= BLOCK_MAX, "a reader's window holds it");
    blocks.push(kind as u8);
    blocks.extend(length.to_le_bytes());
    blocks.extend_from_slice(content);
}

/// Returns the beginning of a text, at most `length` bytes.
fn cut(text: &str, length: usize) -> &str {
    let end = (0..=length.min(text.len())).rev();
    let end = end
        .into_iter()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    &text[..end]
}
