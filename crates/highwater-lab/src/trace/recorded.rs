//! Reader of format 2: what a recording says besides its requests.

use super::compact::{Cursor, number};
use super::error::Fault;
use super::recording::{FILES_MAX, FileId, Kind, NAME_MAX};
use super::request::PAGE_LIMIT;

/// Most bytes of all names.
const NAMES_MAX: usize = 256 << 20;
/// Most extents.
const EXTENTS_MAX: usize = 1 << 22;

/// A file of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFile {
    /// Device and inode.
    pub id: FileId,
    /// Its path, empty if the recorder could not find it.
    pub name: String,
}

/// Pages of a file and their place in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    in_trace: u64,
    pages: u64,
    file: usize,
    in_file: u64,
}

/// Description of a recording, as far as it was read.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    about: String,
    files: Vec<RecordedFile>,
    names: usize,
    /// In the order of the trace's pages.
    extents: Vec<Extent>,
    lost_events: u64,
    records: u64,
    accesses: u64,
    is_complete: bool,
}

/// Effect of a block on the reader.
pub(super) enum Taken {
    /// The next block follows.
    Description,
    /// Records follow, after so many bytes of the block's content.
    Records(Cursor, usize),
    /// Nothing follows.
    End,
}

impl Recording {
    /// Returns the lines `name: value` that the recorder wrote first.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Returns the files, in the order in which they were first accessed.
    #[must_use]
    pub fn files(&self) -> &[RecordedFile] {
        &self.files
    }

    /// Returns the number of events that the recorder lost: accesses that the trace lacks.
    #[must_use]
    pub const fn lost_events(&self) -> u64 {
        self.lost_events
    }

    /// Returns whether the recording's end was read.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the file of a page of the trace, and the page in the file.
    #[must_use]
    pub fn file_of_page(&self, page: u64) -> Option<(&RecordedFile, u64)> {
        let extent = self.extent_of(page)?;
        let file = self.files.get(extent.file)?;
        Some((file, extent.in_file + (page - extent.in_trace)))
    }

    /// Returns the place among [`files`](Self::files) of the file of a page of the trace.
    #[must_use]
    pub fn number_of_file(&self, page: u64) -> Option<usize> {
        self.extent_of(page).map(|extent| extent.file)
    }

    fn extent_of(&self, page: u64) -> Option<&Extent> {
        let after = self
            .extents
            .partition_point(|extent| extent.in_trace <= page);
        let extent = self.extents.get(after.checked_sub(1)?)?;
        (page - extent.in_trace < extent.pages).then_some(extent)
    }

    /// Takes a block.
    pub(super) fn take(&mut self, kind: u8, content: &[u8]) -> Result<Taken, Fault> {
        let Some(kind) = Kind::of(kind) else {
            let expected = "a block of kind 1 to 6";
            return Err(Fault::value("kind of a block", kind.into(), expected));
        };
        match kind {
            Kind::About => self.about = text(content)?.to_owned(),
            Kind::File => self.take_file(content)?,
            Kind::Extent => self.take_extent(content)?,
            Kind::Records => {
                let ([records, accesses], length) = numbers(content)?;
                self.records = self.records.saturating_add(records);
                self.accesses = self.accesses.saturating_add(accesses);
                let cursor = Cursor::of_block(records, accesses)?;
                return Ok(Taken::Records(cursor, length));
            }
            Kind::Lost => {
                let [lost] = exact(content)?;
                self.lost_events = self.lost_events.saturating_add(lost);
            }
            Kind::End => {
                let totals = exact(content)?;
                if totals != [self.records, self.accesses, self.lost_events] {
                    let expected = "as many records, accesses and lost events as the blocks have";
                    return Err(Fault::value(
                        "records of the end block",
                        totals[0],
                        expected,
                    ));
                }
                self.is_complete = true;
                return Ok(Taken::End);
            }
        }
        Ok(Taken::Description)
    }

    fn take_file(&mut self, content: &[u8]) -> Result<(), Fault> {
        let ([file, major, minor, inode], length) = numbers(content)?;
        let name = text(&content[length..])?;
        let id = match (u32::try_from(major), u32::try_from(minor)) {
            (Ok(major), Ok(minor)) => FileId {
                major,
                minor,
                inode,
            },
            _ => return Err(Fault::shape("numbers of a device below 2^32")),
        };
        self.names += name.len();
        let index = usize::try_from(file).unwrap_or(usize::MAX);
        let is_possible = index <= self.files.len() && index < FILES_MAX;
        if !is_possible || name.len() > NAME_MAX || self.names > NAMES_MAX {
            let expected = "files numbered from 0, fewer than 2^20, with names of 256 MiB at most";
            return Err(Fault::value("number of a file", file, expected));
        }
        let recorded = RecordedFile {
            id,
            name: name.to_owned(),
        };
        match self.files.get_mut(index) {
            Some(known) => *known = recorded,
            None => self.files.push(recorded),
        }
        Ok(())
    }

    fn take_extent(&mut self, content: &[u8]) -> Result<(), Fault> {
        let [in_trace, pages, file, in_file] = exact(content)?;
        let next = self
            .extents
            .last()
            .map_or(0, |last| last.in_trace + last.pages);
        let file = usize::try_from(file).unwrap_or(usize::MAX);
        let is_possible = in_trace >= next
            && (1..=PAGE_LIMIT).contains(&pages)
            && in_trace <= PAGE_LIMIT - pages
            && in_file.checked_add(pages).is_some()
            && file < self.files.len()
            && self.extents.len() < EXTENTS_MAX;
        if !is_possible {
            let expected = "an extent of a known file, above those before, below page 2^44";
            return Err(Fault::value("first page of an extent", in_trace, expected));
        }
        self.extents.push(Extent {
            in_trace,
            pages,
            file,
            in_file,
        });
        Ok(())
    }
}

/// Decodes the numbers at the beginning of a block; returns their length too.
fn numbers<const N: usize>(content: &[u8]) -> Result<([u64; N], usize), Fault> {
    let mut values = [0; N];
    let mut at = 0;
    for value in &mut values {
        let length;
        (*value, length) = number(&content[at..])?;
        at += length;
    }
    Ok((values, at))
}

/// Decodes a block that consists of numbers.
fn exact<const N: usize>(content: &[u8]) -> Result<[u64; N], Fault> {
    let (values, length) = numbers(content)?;
    if length < content.len() {
        return Err(Fault::shape("a block without further bytes"));
    }
    Ok(values)
}

fn text(content: &[u8]) -> Result<&str, Fault> {
    str::from_utf8(content).map_err(|_| Fault::shape("text in UTF-8"))
}
