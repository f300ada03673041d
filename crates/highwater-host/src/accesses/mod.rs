//! Page-cache accesses of traced tasks, decoded from the kernel's tracepoints.
//!
//! | event | kernel | access |
//! |---|---|---|
//! | `filemap:mm_filemap_get_pages` | from 6.12 | pages that `read(2)` looks up, without readahead |
//! | `filemap:mm_filemap_fault` | from 6.12 | the page of a fault in a file mapping |
//! | `filemap:mm_filemap_map_pages` | from 6.12 | the window of resident pages mapped around a fault; later accesses to them are invisible |
//! | `ext4:ext4_write_end`, `ext4_da_write_end`, `ext4_journalled_write_end` | all | pages of a buffered write |
//! | `xfs:xfs_file_buffered_write` | all | pages of a buffered write |
//! | `writeback:writeback_dirty_folio` (`writeback_dirty_page` before 5.16) | all | a page that a store through a mapping, or a write to another file system (btrfs, f2fs), makes dirty; writes to a dirty page are invisible |
//!
//! Three rules turn events into accesses ([`Decoder`]):
//!
//! - A long `read(2)` looks up its range in steps: each event begins later and ends at the same
//!   page. The first one is the access; its continuations by the same task are dropped.
//! - A page that faults is looked up again when the fault is retried, and may be in the window of
//!   `map_pages` that follows: it is counted once.
//! - A page that a traced buffered write makes dirty is part of that write; so is the first page of
//!   a folio (2 MiB at most) that the write reaches, since the event of a folio names no other.
//!
//! Events of pages that become dirty name the disk in place of the file system's device: the file
//! is then that of an earlier event with the same inode on a device of the same major number, if
//! there is exactly one.
//!
//! Accesses that no event shows: direct I/O, tmpfs, and those of tasks that are not traced, such as
//! the kernel's write-back.

mod decode;
mod names;
mod tasks;

use crate::tracefs::{Instance, TracefsError};

pub use decode::{Access, Decoder, Kind};
pub use names::{Found, Names};
pub use tasks::{is_removed, tasks_of_cgroup, tasks_of_processes};

use decode::Source;

/// A file: the device of its file system, and its inode there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileKey {
    /// Major number of the device.
    pub major: u32,
    /// Minor number of the device.
    pub minor: u32,
    /// Inode.
    pub inode: u64,
}

/// An event that is used where the kernel has it.
struct Wanted {
    system: &'static str,
    /// Names, of which a kernel has one.
    events: &'static [&'static str],
    /// Name in `/proc/filesystems`, if only that file system has the event.
    file_system: Option<&'static str>,
    /// Accesses that a trace lacks without it.
    accesses: &'static str,
}

const WANTED: [Wanted; 8] = [
    Wanted {
        system: "filemap",
        events: &["mm_filemap_get_pages"],
        file_system: None,
        accesses: "reads of files by read(2) (kernels from 6.12 report them)",
    },
    Wanted {
        system: "filemap",
        events: &["mm_filemap_fault"],
        file_system: None,
        accesses: "faults of file mappings on absent pages (kernels from 6.12 report them)",
    },
    Wanted {
        system: "filemap",
        events: &["mm_filemap_map_pages"],
        file_system: None,
        accesses: "faults of file mappings on resident pages (kernels from 6.12 report them)",
    },
    Wanted {
        system: "ext4",
        events: &["ext4_da_write_end"],
        file_system: Some("ext4"),
        accesses: "writes to ext4 files by delayed allocation",
    },
    Wanted {
        system: "ext4",
        events: &["ext4_write_end"],
        file_system: Some("ext4"),
        accesses: "writes to ext4 files without delayed allocation",
    },
    Wanted {
        system: "ext4",
        events: &["ext4_journalled_write_end"],
        file_system: Some("ext4"),
        accesses: "writes to ext4 files whose data is journalled",
    },
    Wanted {
        system: "xfs",
        events: &["xfs_file_buffered_write"],
        file_system: Some("xfs"),
        accesses: "writes to xfs files",
    },
    Wanted {
        system: "writeback",
        events: &["writeback_dirty_folio", "writeback_dirty_page"],
        file_system: None,
        accesses: "stores to file mappings, and writes to file systems other than ext4 and xfs",
    },
];

/// Enables every event of page-cache accesses that the kernel has.
///
/// # Errors
///
/// When an event that exists cannot be enabled, or has a format without a field that is needed.
pub fn enable(instance: &Instance) -> Result<Decoder, TracefsError> {
    let mut decoder = Decoder::new();
    let file_systems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    for wanted in &WANTED {
        let is_absent = |name| !file_systems.lines().any(|line| line.ends_with(name));
        if wanted.file_system.is_some_and(is_absent) {
            continue;
        }
        let mut is_enabled = false;
        for event in wanted.events {
            match instance.enable(wanted.system, event, None) {
                Ok(format) => {
                    decoder.add(format.id, Source::new(&format)?);
                    decoder.enabled.push(format!("{}:{event}", wanted.system));
                    is_enabled = true;
                    break;
                }
                Err(error) if error.is_no_event() => {}
                Err(error) => return Err(error),
            }
        }
        if !is_enabled {
            decoder.lacks.push(wanted.accesses);
        }
    }
    Ok(decoder)
}
