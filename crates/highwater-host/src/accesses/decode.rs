//! From events to accesses, task by task.

use std::collections::{HashMap, HashSet};

use super::FileKey;
use crate::tracefs::{Event, EventFormat, Field, FormatError};

/// Bytes of a page of an access.
const PAGE_BYTES: u64 = 4096;

/// Bits of the minor number in the kernel's own device numbers.
const MINOR_BITS: u32 = 20;

/// Files whose devices are remembered at most. Chosen: some MiB.
const KNOWN_MAX: usize = 1 << 16;

/// Pages of this kernel in a folio at most: 2 MiB of pages of 4 KiB.
const FOLIO_PAGES_MAX: u64 = 512;

/// Operation of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A lookup by `read(2)`.
    Read,
    /// A page of a fault in a file mapping.
    Fault,
    /// Resident pages that were mapped around a fault.
    Window,
    /// A buffered write.
    Write,
    /// A clean page became dirty: by a store through a mapping, or by a write that has no event of
    /// its own.
    Dirty,
}

impl Kind {
    /// Returns whether pages are written.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Dirty)
    }
}

/// An access to pages of 4 KiB of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The task (thread number).
    pub task: u32,
    /// The file.
    pub file: FileKey,
    /// First page in the file.
    pub first: u64,
    /// Number of pages, at least 1. Reads may reach beyond the file's end.
    pub count: u64,
    /// Operation.
    pub kind: Kind,
}

/// Fields of one event.
#[derive(Debug)]
pub(super) enum Source {
    Lookup(Fields, Field, Field),
    Window(Fields, Field, Field),
    Fault(Fields, Field),
    Written {
        file: Fields,
        position: Field,
        bytes: Field,
    },
    Dirtied {
        task: Field,
        backing: Field,
        inode: Field,
        index: Field,
    },
}

/// Fields of every event of a file.
#[derive(Debug)]
pub(super) struct Fields {
    task: Field,
    device: Field,
    inode: Field,
}

impl Fields {
    fn new(format: &EventFormat, device: &str, inode: &str) -> Result<Self, FormatError> {
        Ok(Self {
            task: format.field("common_pid")?.clone(),
            device: format.field(device)?.clone(),
            inode: format.field(inode)?.clone(),
        })
    }

    fn read(&self, event: &[u8]) -> Option<(u32, FileKey)> {
        let task = u32::try_from(self.task.unsigned(event)?).ok()?;
        let device = u32::try_from(self.device.unsigned(event)?).ok()?;
        let file = FileKey {
            major: device >> MINOR_BITS,
            minor: device & ((1 << MINOR_BITS) - 1),
            inode: self.inode.unsigned(event)?,
        };
        Some((task, file))
    }
}

impl Source {
    /// Finds the fields of an event by its name.
    pub(super) fn new(format: &EventFormat) -> Result<Self, FormatError> {
        let field = |name| format.field(name).cloned();
        let of_filemap = || Fields::new(format, "s_dev", "i_ino");
        Ok(match format.name.as_str() {
            "mm_filemap_get_pages" => {
                Self::Lookup(of_filemap()?, field("index")?, field("last_index")?)
            }
            "mm_filemap_map_pages" => {
                Self::Window(of_filemap()?, field("index")?, field("last_index")?)
            }
            "mm_filemap_fault" => Self::Fault(of_filemap()?, field("index")?),
            "xfs_file_buffered_write" => Self::Written {
                file: Fields::new(format, "dev", "ino")?,
                position: field("offset")?,
                bytes: field("count")?,
            },
            "writeback_dirty_folio" | "writeback_dirty_page" => Self::Dirtied {
                task: field("common_pid")?,
                backing: field("name")?,
                inode: field("ino")?,
                index: field("index")?,
            },
            // The events `write_end` of ext4.
            _ => Self::Written {
                file: Fields::new(format, "dev", "ino")?,
                position: field("pos")?,
                bytes: field("copied")?,
            },
        })
    }
}

/// The previous access of a task, before any page was dropped or split.
#[derive(Clone, Copy, Debug)]
struct Previous {
    file: FileKey,
    first: u64,
    last: u64,
    kind: Kind,
}

/// The devices of files, from the events that have them.
#[derive(Debug, Default)]
struct Devices {
    /// Devices with file systems.
    numbers: HashSet<(u32, u32)>,
    /// Minor numbers of files by major number and inode; `None` for several.
    minors: HashMap<(u32, u64), Option<u32>>,
}

impl Devices {
    /// Remembers a file. Forgets all others when there are too many: they are remembered again at
    /// their next event.
    fn learn(&mut self, file: FileKey) {
        if self.minors.len() >= KNOWN_MAX && !self.has(file) {
            self.minors.clear();
        }
        self.numbers.insert((file.major, file.minor));
        let minor = Some(file.minor);
        let known = self.minors.entry((file.major, file.inode));
        let known = known.or_insert(minor);
        if *known != minor {
            *known = None;
        }
    }

    fn has(&self, file: FileKey) -> bool {
        self.minors.contains_key(&(file.major, file.inode))
    }

    /// Returns the file of a page by its inode on a disk, whose partitions have its major number.
    ///
    /// A disk with a file system of its own has no partitions. Without a disk, the major number is
    /// 0, and the minor number either that of the file system or 0.
    fn on_disk(&self, disk: FileKey) -> FileKey {
        let is_whole = self.numbers.contains(&(disk.major, disk.minor));
        let known = self.minors.get(&(disk.major, disk.inode));
        match known.copied().flatten() {
            Some(minor) if !is_whole && (disk.major > 0 || disk.minor == 0) => {
                FileKey { minor, ..disk }
            }
            _ => disk,
        }
    }
}

/// Turns events into accesses.
#[derive(Debug)]
pub struct Decoder {
    sources: HashMap<u16, Source>,
    previous: HashMap<u32, Previous>,
    devices: Devices,
    /// Pages of 4 KiB in a page of this kernel.
    scale: u64,
    pub(super) enabled: Vec<String>,
    pub(super) lacks: Vec<&'static str>,
    unknown: u64,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            sources: HashMap::new(),
            previous: HashMap::new(),
            devices: Devices::default(),
            scale: (rustix::param::page_size() as u64 / PAGE_BYTES).max(1),
            enabled: Vec::new(),
            lacks: Vec::new(),
            unknown: 0,
        }
    }

    /// Creates a decoder of these events, for recorded buffers.
    ///
    /// # Errors
    ///
    /// When a format lacks a field that its event has in every known kernel.
    pub fn of(formats: &[EventFormat]) -> Result<Self, FormatError> {
        let mut decoder = Self::new();
        decoder.scale = 1;
        for format in formats {
            decoder.add(format.id, Source::new(format)?);
        }
        Ok(decoder)
    }

    pub(super) fn add(&mut self, id: u16, source: Source) {
        self.sources.insert(id, source);
    }

    /// Returns the enabled events, as `system:event`.
    #[must_use]
    pub fn enabled(&self) -> &[String] {
        &self.enabled
    }

    /// Returns the kinds of accesses that this kernel has no event for.
    #[must_use]
    pub fn lacks(&self) -> &[&'static str] {
        &self.lacks
    }

    /// Returns the number of events that were not understood, which a kernel with other formats
    /// might write.
    #[must_use]
    pub const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Passes on the accesses of an event: mostly one, none if an earlier event included it.
    pub fn decode(&mut self, event: &Event<'_>, mut pass_on: impl FnMut(Access)) {
        let access = match self.sources.get(&event.id()) {
            Some(source) => self.read(source, event.bytes),
            None => None,
        };
        let Some(access) = access else {
            self.unknown += 1;
            return;
        };
        // A lookup or a write of no pages.
        if access.count > 0 {
            self.settle(access, &mut pass_on);
        }
    }

    fn read(&self, source: &Source, event: &[u8]) -> Option<Access> {
        let in_pages = |file: &Fields, first: u64, last: u64, kind| {
            let (task, file) = file.read(event)?;
            Some(Access {
                task,
                file,
                first: first.checked_mul(self.scale)?,
                count: (last.checked_add(1)?.saturating_sub(first)).checked_mul(self.scale)?,
                kind,
            })
        };
        match source {
            Source::Lookup(file, first, last) => in_pages(
                file,
                first.unsigned(event)?,
                last.unsigned(event)?,
                Kind::Read,
            ),
            Source::Window(file, first, last) => in_pages(
                file,
                first.unsigned(event)?,
                last.unsigned(event)?,
                Kind::Window,
            ),
            Source::Fault(file, index) => {
                let index = index.unsigned(event)?;
                in_pages(file, index, index, Kind::Fault)
            }
            Source::Written {
                file,
                position,
                bytes,
            } => {
                let (task, file) = file.read(event)?;
                let (start, bytes) = (position.unsigned(event)?, bytes.unsigned(event)?);
                let first = start / PAGE_BYTES;
                let end = start.checked_add(bytes)?.div_ceil(PAGE_BYTES);
                Some(Access {
                    task,
                    file,
                    first,
                    count: if bytes == 0 { 0 } else { end - first },
                    kind: Kind::Write,
                })
            }
            Source::Dirtied {
                task,
                backing,
                inode,
                index,
            } => {
                let task = u32::try_from(task.unsigned(event)?).ok()?;
                let file = self.dirtied(task, &backing.text(event)?, inode.unsigned(event)?);
                Some(Access {
                    task,
                    file,
                    first: index.unsigned(event)?.checked_mul(self.scale)?,
                    count: self.scale,
                    kind: Kind::Dirty,
                })
            }
        }
    }

    /// Returns the file of a page that became dirty. The event names the disk, not the device of
    /// the file system: the access before, mostly the fault, knows the latter, or an earlier one by
    /// any task.
    fn dirtied(&self, task: u32, backing: &str, inode: u64) -> FileKey {
        let previous = self.previous.get(&task);
        if let Some(previous) = previous.filter(|previous| previous.file.inode == inode) {
            return previous.file;
        }
        let numbers = backing.split_once(':');
        let parse = |text: &str| text.parse().ok();
        let (major, minor) = numbers
            .and_then(|(major, minor)| Some((parse(major)?, parse(minor)?)))
            .unwrap_or((0, 0));
        self.devices.on_disk(FileKey {
            major,
            minor,
            inode,
        })
    }

    /// Returns whether a page that became dirty is of a disk's own cache, whose inode is the number
    /// of the device. A file that an event with a device named is none.
    fn is_of_disk(&self, file: FileKey) -> bool {
        let is_number = file.major > 0 && file.inode >> MINOR_BITS == u64::from(file.major);
        is_number && !self.devices.has(file)
    }

    /// Returns whether a page that became dirty is part of a write, or the first page of a folio
    /// that the write reaches: the event names only that. Folios are aligned to their size.
    fn is_of_write(&self, write: &Previous, dirty: &Access) -> bool {
        let largest = FOLIO_PAGES_MAX * self.scale;
        let aligned = 1_u64 << dirty.first.trailing_zeros().min(largest.ilog2());
        let end = dirty.first.saturating_add(aligned.max(dirty.count));
        write.kind == Kind::Write && dirty.first <= write.last && end > write.first
    }

    /// Applies the rules of the module.
    fn settle(&mut self, access: Access, pass_on: &mut impl FnMut(Access)) {
        let Access {
            task,
            file,
            first,
            count,
            kind,
        } = access;
        let last = first.saturating_add(count - 1);
        let previous = self
            .previous
            .get(&task)
            .filter(|before| before.file == file);
        if kind == Kind::Dirty {
            let is_of_write = previous.is_some_and(|before| self.is_of_write(before, &access));
            if !self.is_of_disk(file) && !is_of_write {
                pass_on(access);
            }
            return;
        }
        let mut settled = Previous {
            file,
            first,
            last,
            kind,
        };
        match (kind, previous) {
            (Kind::Read, Some(before))
                if before.kind == Kind::Read && before.last == last && before.first < first => {}
            (Kind::Fault, Some(before)) if before.kind == Kind::Fault && before.first == first => {
                settled = *before;
            }
            (Kind::Window, Some(before))
                if before.kind == Kind::Fault && (first..=last).contains(&before.first) =>
            {
                let after = before.last.saturating_add(1);
                let parts = [(first, before.first), (after, last.saturating_add(1))];
                for (first, end) in parts.into_iter().filter(|(first, end)| first < end) {
                    pass_on(Access {
                        first,
                        count: end - first,
                        ..access
                    });
                }
            }
            _ => pass_on(access),
        }
        self.devices.learn(file);
        self.previous.insert(task, settled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: where a page of the kernel is 16 of an access, a fault and the window around it count
    /// each page once, and so do a write and the page that it makes dirty. Method: such a decoder,
    /// given accesses.
    #[test]
    fn large_pages_are_counted_once() {
        let mut decoder = Decoder::new();
        decoder.scale = 16;
        let file = FileKey {
            major: 8,
            minor: 1,
            inode: 5,
        };
        let mut passed = Vec::new();
        for (kind, first, count) in [
            (Kind::Fault, 32, 16),
            (Kind::Window, 16, 48),
            (Kind::Write, 5, 1),
            (Kind::Dirty, 0, 16),
            (Kind::Dirty, 16, 16),
        ] {
            let access = Access {
                task: 7,
                file,
                first,
                count,
                kind,
            };
            decoder.settle(access, &mut |access: Access| {
                passed.push((access.kind, access.first, access.count));
            });
        }
        let expected = [
            (Kind::Fault, 32, 16),
            (Kind::Window, 16, 16),
            (Kind::Window, 48, 16),
            (Kind::Write, 5, 1),
            (Kind::Dirty, 16, 16),
        ];
        assert_eq!(passed, expected);
    }

    /// Goal: the devices of files take a bounded amount of memory, and the file of the last event
    /// is known. Method: one file more than are remembered.
    #[test]
    fn devices_of_files_are_bounded() {
        let mut devices = Devices::default();
        let file = |minor: u32, inode: u64| FileKey {
            major: 8,
            minor,
            inode,
        };
        for inode in 0..=KNOWN_MAX as u64 {
            devices.learn(file(1, inode));
            devices.learn(file(1, inode));
            assert_eq!(devices.on_disk(file(0, inode)), file(1, inode));
        }
        assert!(devices.minors.len() <= KNOWN_MAX);
    }
}
