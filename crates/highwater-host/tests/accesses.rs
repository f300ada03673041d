//! Promise: each page access of a traced task becomes one access, although the kernel reports some
//! of them twice.
//!
//! Method: events built by the recorded format files, and the recorded pages of `tracefs_6_18`.
#![expect(clippy::unwrap_used, reason = "a failure fails the test")]

use std::fs;
use std::path::Path;

use highwater_host::accesses::{Access, Decoder, FileKey, Kind};
use highwater_host::tracefs::page::PageLayout;
use highwater_host::tracefs::{Event, EventFormat};

fn recorded(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tracefs_6_18")
        .join(name)
}

fn formats() -> Vec<EventFormat> {
    let names = [
        "mm_filemap_get_pages",
        "mm_filemap_map_pages",
        "mm_filemap_fault",
        "ext4_da_write_end",
        "ext4_write_end",
        "xfs_file_buffered_write",
        "writeback_dirty_folio",
    ];
    let read = |name| fs::read_to_string(recorded(&format!("{name}.format"))).unwrap();
    names
        .map(|name| EventFormat::parse(&read(name)).unwrap())
        .into()
}

/// Builds an event from numbers and a text.
fn event(name: &str, fields: &[(&str, u64)], text: &str) -> Vec<u8> {
    let formats = formats();
    let format = formats.iter().find(|format| format.name == name).unwrap();
    let mut bytes = vec![0; 64];
    bytes[..2].copy_from_slice(&format.id.to_ne_bytes());
    for (field, value) in fields {
        let field = format.field(field).unwrap();
        let value = &value.to_ne_bytes()[..field.size];
        bytes[field.offset..field.offset + field.size].copy_from_slice(value);
    }
    if let Ok(name) = format.field("name") {
        bytes[name.offset..name.offset + text.len()].copy_from_slice(text.as_bytes());
    }
    bytes
}

const TASK: u64 = 77;
const DEVICE: u64 = 254 << 20 | 1;

fn lookup(first: u64, last: u64) -> Vec<u8> {
    filemap("mm_filemap_get_pages", first, last)
}

fn filemap(name: &str, first: u64, last: u64) -> Vec<u8> {
    let mut fields = vec![
        ("common_pid", TASK),
        ("s_dev", DEVICE),
        ("i_ino", 5),
        ("index", first),
    ];
    if name != "mm_filemap_fault" {
        fields.push(("last_index", last));
    }
    event(name, &fields, "")
}

fn written(position: u64, copied: u64) -> Vec<u8> {
    let fields = [
        ("common_pid", TASK),
        ("dev", DEVICE),
        ("ino", 5),
        ("pos", position),
        ("len", copied.max(1)),
        ("copied", copied),
    ];
    event("ext4_da_write_end", &fields, "")
}

fn dirtied(inode: u64, index: u64) -> Vec<u8> {
    dirtied_by(TASK, inode, index, "254:0")
}

fn dirtied_by(task: u64, inode: u64, index: u64, backing: &str) -> Vec<u8> {
    let fields = [("common_pid", task), ("ino", inode), ("index", index)];
    event("writeback_dirty_folio", &fields, backing)
}

/// A lookup of the first page of a file.
fn looked_up(device: u64, inode: u64) -> Vec<u8> {
    let fields = [("common_pid", TASK), ("s_dev", device), ("i_ino", inode)];
    event("mm_filemap_get_pages", &fields, "")
}

fn decoded(events: &[Vec<u8>]) -> Vec<(Kind, u64, u64)> {
    accesses(events)
        .iter()
        .map(|access| (access.kind, access.first, access.count))
        .collect()
}

fn accesses(events: &[Vec<u8>]) -> Vec<Access> {
    let mut decoder = Decoder::of(&formats()).unwrap();
    let mut all = Vec::new();
    for bytes in events {
        let event = Event {
            time_ns: 0,
            cpu: 0,
            bytes,
        };
        decoder.decode(&event, |access| all.push(access));
    }
    assert_eq!(decoder.unknown(), 0);
    all
}

#[test]
fn a_read_that_is_looked_up_in_steps_is_one_access() {
    let steps = [
        lookup(0, 73),
        lookup(31, 73),
        lookup(62, 73),
        lookup(74, 75),
    ];
    assert_eq!(decoded(&steps), [(Kind::Read, 0, 74), (Kind::Read, 74, 2)]);
    // The same read again is another access, and so is one that begins earlier.
    let again = [lookup(4, 7), lookup(4, 7), lookup(2, 7)];
    assert_eq!(decoded(&again).len(), 3);
    // Bytes 4000 to 4200 touch two pages; a write that copied nothing touches none.
    let writes = [
        written(4_000, 200),
        written(8_192, 0),
        written(8_192, 8_192),
    ];
    assert_eq!(decoded(&writes), [(Kind::Write, 0, 2), (Kind::Write, 2, 2)]);
    let first = accesses(&[lookup(0, 1)])[0];
    let file = FileKey {
        major: 254,
        minor: 1,
        inode: 5,
    };
    assert_eq!((first.task, first.file), (77, file));
}

#[test]
fn a_faulting_page_is_counted_once() {
    let (fault, window) = ("mm_filemap_fault", "mm_filemap_map_pages");
    let retried = [
        filemap(fault, 9, 9),
        filemap(fault, 9, 9),
        filemap(window, 8, 15),
    ];
    let expected = [
        (Kind::Fault, 9, 1),
        (Kind::Window, 8, 1),
        (Kind::Window, 10, 6),
    ];
    assert_eq!(decoded(&retried), expected);
    let elsewhere = [
        filemap(fault, 9, 9),
        filemap(window, 16, 31),
        filemap(fault, 9, 9),
    ];
    assert_eq!(decoded(&elsewhere).len(), 3);
}

#[test]
fn a_dirtied_page_belongs_to_the_write_before() {
    let write = [
        written(0, 4_096),
        dirtied(5, 0),
        written(4_096, 4_096),
        dirtied(5, 0),
    ];
    assert_eq!(decoded(&write).len(), 2);
    // A store through a mapping, after its fault: the device is that of the fault.
    let store = accesses(&[filemap("mm_filemap_fault", 3, 3), dirtied(5, 3)]);
    assert_eq!(
        (store[1].kind, store[1].first, store[1].file),
        (Kind::Dirty, 3, store[0].file)
    );
    // Another file system, whose writes have no event of their own; the disk's own cache is none.
    let other = accesses(&[dirtied(6, 2), dirtied(254 << 20, 9)]);
    assert_eq!(
        (other.len(), other[0].file.major, other[0].file.minor),
        (1, 254, 0)
    );
    let xfs = [
        ("common_pid", TASK),
        ("dev", 7),
        ("ino", 5),
        ("offset", 100),
        ("count", 8_192),
    ];
    let xfs = accesses(&[event("xfs_file_buffered_write", &xfs, ""), dirtied(6, 1)]);
    assert_eq!(
        (xfs[0].kind, xfs[0].first, xfs[0].count),
        (Kind::Write, 0, 3)
    );
    assert!(xfs[0].kind.is_write() && xfs[1].kind.is_write());
}

/// Goal: a file has one key, whichever event names it. Method: lookups by one task, then a page
/// that another makes dirty, which names the disk: of a partition, of a file system without a disk,
/// of a disk without partitions, and of an inode on two partitions.
#[test]
fn a_file_that_other_tasks_make_dirty_is_one_file() {
    let of = |events: &[Vec<u8>]| {
        let file = accesses(events).last().unwrap().file;
        (file.major, file.minor, file.inode)
    };
    let dirty = |backing| dirtied_by(78, 5, 3, backing);
    let files = accesses(&[lookup(0, 3), dirty("254:0")]);
    assert_eq!(files[0].file, files[1].file);
    let (first, second) = (8 << 20 | 1, 8 << 20 | 2);
    assert_eq!(of(&[looked_up(45, 5), dirty("btrfs-1")]), (0, 45, 5));
    assert_eq!(of(&[looked_up(45, 5), dirty("0:50")]), (0, 50, 5));
    assert_eq!(of(&[looked_up(first, 5), dirty("254:0")]), (254, 0, 5));
    let both = [looked_up(first, 5), looked_up(second, 5), dirty("8:0")];
    assert_eq!(of(&both), (8, 0, 5));
    let whole = [looked_up(8 << 20, 7), looked_up(second, 5), dirty("8:0")];
    assert_eq!(of(&whole), (8, 0, 5));
}

// Symptom: files of a disk whose inodes are in the range of its device numbers were never dirty.
#[test]
fn a_file_with_the_number_of_a_device_becomes_dirty() {
    let inode = 8 << 20 | 99;
    let dirty = || dirtied_by(78, inode, 3, "8:0");
    let known = accesses(&[looked_up(8 << 20 | 1, inode), dirty()]);
    assert_eq!(known.len(), 2);
    assert_eq!(known[0].file, known[1].file);
    assert_eq!(accesses(&[dirty()]), []);
}

// Symptom: after a write, no page of its file became dirty, wherever it lay.
#[test]
fn a_page_beside_a_write_becomes_dirty() {
    let events = [written(0, 4_096), dirtied(5, 0), dirtied(5, 9)];
    assert_eq!(decoded(&events), [(Kind::Write, 0, 1), (Kind::Dirty, 9, 1)]);
    // A folio of eight pages is named by its first one; pages 9 and 12 begin none that has page 10.
    let write = written(10 * 4_096, 4_096);
    let events = [write, dirtied(5, 8), dirtied(5, 9), dirtied(5, 12)];
    let expected = [
        (Kind::Write, 10, 1),
        (Kind::Dirty, 9, 1),
        (Kind::Dirty, 12, 1),
    ];
    assert_eq!(decoded(&events), expected);
}

/// Goal: real events decode. Method: the recorded pages, whose commands wrote 5,473 and 300,000
/// bytes with `head`; events that were dropped when the buffer was full are missing.
#[test]
fn recorded_events_decode() {
    let mut all = formats();
    let exec = fs::read_to_string(recorded("sched_process_exec.format")).unwrap();
    let exec = EventFormat::parse(&exec).unwrap().id;
    all.retain(|format| format.id != exec);
    let mut decoder = Decoder::of(&all).unwrap();
    let mut accesses = Vec::new();
    for cpu in 0..2 {
        let pages = fs::read(recorded(&format!("cpu{cpu}.pages"))).unwrap();
        for page in pages.chunks(4096) {
            for event in PageLayout::WORD_64.events(page).unwrap() {
                let raw = event.unwrap();
                let event = Event {
                    time_ns: raw.time,
                    cpu,
                    bytes: raw.bytes,
                };
                if event.id() != exec {
                    decoder.decode(&event, |access| accesses.push(access));
                }
            }
        }
    }
    let count = |kind| accesses.iter().filter(|access| access.kind == kind).count();
    assert!(count(Kind::Window) > 100 && count(Kind::Read) > 5 && count(Kind::Write) > 5);
    assert!(
        accesses
            .iter()
            .all(|access| access.count >= 1 && access.file.major == 254)
    );
    assert_eq!(decoder.unknown(), 0);
}
