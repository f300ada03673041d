//! Promise: a file ends at its byte, whatever the size of its pages: reads stop there, a page is
//! zero behind it, also in a frame that held another tenant's bytes, and a file of nothing is a
//! file.

#![expect(clippy::unwrap_used, reason = "a failure shows where it was")]

mod support;

use std::fs;
use std::io::Write;

use highwater::units::{PAGE_BYTES, PAGE_SIZE};
use highwater::{Access, Bytes, File, FileBacking, Manager, Mapping, Pages, RangeError, ReadError};
use support::{assert_empty, manager};
use tempfile::NamedTempFile;

const SIZES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];

/// Frames of the managers: a fifth may be dirty, four of the largest pages.
const FRAMES: u64 = 512;

/// A manager in which every frame has held bytes of another tenant.
fn manager_with_secrets() -> Manager {
    let hw = manager(FRAMES);
    let memory = hw.space(&hw.root()).map_anon(Pages(FRAMES)).unwrap();
    let written = (0..FRAMES).map_while(|page| memory.write(page).ok());
    let written = written.map(|mut page| page.fill(0xa5)).count();
    assert!(written as u64 >= FRAMES - 8, "{written} frames");
    drop(memory);
    assert_empty(&hw);
    hw
}

/// A file of bytes that tell their place.
fn source(len: usize) -> (NamedTempFile, Vec<u8>) {
    let bytes: Vec<u8> = (1..=251).cycle().take(len).collect();
    let mut source = NamedTempFile::new().unwrap();
    source.write_all(&bytes).unwrap();
    (source, bytes)
}

fn open(hw: &Manager, source: &NamedTempFile, size: usize, access: Access) -> File {
    let mut options = fs::File::options();
    options.read(true).write(access == Access::ReadWrite);
    let storage = FileBacking::new(options.open(source.path()).unwrap()).unwrap();
    let storage = storage.with_page_size(Bytes(size as u64)).unwrap();
    hw.open_file(storage, access).unwrap()
}

fn map(hw: &Manager, file: &File) -> Mapping {
    hw.space(&hw.root())
        .map_file(file, 0..file.pages())
        .unwrap()
}

/// Asserts that a copying read of up to `len` bytes is that of a file of `bytes`.
fn assert_copied(hw: &Manager, file: &File, bytes: &[u8], at: u64, len: usize) {
    let mut buf = vec![0; len];
    let got = file.read_at(&hw.root(), at, &mut buf).unwrap();
    let begin = usize::try_from(at).map_or(bytes.len(), |at| at.min(bytes.len()));
    let end = bytes.len().min(begin + len);
    assert!(buf[..got] == bytes[begin..end], "{len} at {at}: {got}");
}

#[test]
fn reads_stop_at_the_end_whatever_the_size_of_pages() {
    // Goal: every edge of a length, an offset and a buffer, against the bytes; and no more memory
    // than the pages that were read. Method: lengths around whole pages; offsets around the end,
    // the edges of pages and the largest number.
    for (size, access) in SIZES
        .iter()
        .flat_map(|size| [(*size, Access::ReadOnly), (*size, Access::ReadWrite)])
    {
        let hw = manager_with_secrets();
        for len in [0, 1, size - 1, size, size + 1, 2 * size + 4097] {
            let (source, bytes) = source(len);
            let file = open(&hw, &source, size, access);
            assert_eq!(file.pages(), len.div_ceil(size) as u64);
            let edges = [0, 1, size - 1, size, size + 1, 2 * size, len, len + 1];
            let before = [len.saturating_sub(1), len.saturating_sub(size)];
            for at in edges.into_iter().chain(before).map(|at| at as u64) {
                for count in [0, 1, size, size + 1, 3 * size] {
                    assert_copied(&hw, &file, &bytes, at, count);
                }
            }
            for at in [u64::MAX, u64::MAX - 1, 1 << 63] {
                assert_copied(&hw, &file, &bytes, at, 2 * size);
            }
            let frames = file.pages() * (size / PAGE_SIZE) as u64;
            assert_eq!(hw.root().usage_precise(), Pages(frames).bytes());
            drop(file);
            assert_empty(&hw);
        }
    }
}

#[test]
fn a_page_is_zero_behind_the_end() {
    // Goal: no byte of another tenant, and none that a file has lost, shows behind the end. Method:
    // frames of secrets; the last page by each way to it; then the file shrinks within the page,
    // after bytes were written on both sides of the new end, and grows again.
    for size in SIZES {
        let hw = manager_with_secrets();
        let (source, mut bytes) = source(size + 1000);
        let whole = |bytes: &[u8]| {
            let mut page = bytes[size..].to_vec();
            page.resize(size, 0);
            page
        };
        let file = open(&hw, &source, size, Access::ReadOnly);
        let all = map(&hw, &file);
        assert!(*all.read(&hw.enter(), 1).unwrap() == whole(&bytes));
        assert!(all.pin(1).unwrap()[..] == whole(&bytes));
        drop((all, file));
        assert_empty(&hw);

        let file = open(&hw, &source, size, Access::ReadWrite);
        let all = map(&hw, &file);
        assert!(all.read_latched(1).unwrap()[..] == whole(&bytes));
        all.write(1).unwrap()[900..].fill(9);
        assert_eq!(
            source.as_file().metadata().unwrap().len(),
            bytes.len() as u64
        );
        bytes[size + 900..].fill(9);
        for len in [size + 950, size + 2000, 2 * size, size + 1] {
            file.set_len(Bytes(len as u64)).unwrap();
            bytes.resize(len, 0);
            assert!(all.read_latched(1).unwrap()[..] == whole(&bytes), "{len}");
            let optimistic = all.read_optimistic(1).unwrap();
            let mut copy = vec![1; size];
            optimistic.copy_to(0, &mut copy);
            assert!(optimistic.validate() && copy == whole(&bytes));
            file.sync().unwrap();
            assert!(fs::read(source.path()).unwrap() == bytes, "{len}");
            hw.drop_caches();
            assert!(all.read_latched(1).unwrap()[..] == whole(&bytes), "{len}");
        }
        drop((all, file));
        assert_empty(&hw);
    }
}

#[test]
fn a_file_of_nothing_is_a_file() {
    // Goal: every call takes a file of 0 bytes, also one that lost all its pages while they were
    // dirty, and what it gains later is zeros. Method: each call; then the file grows, is written
    // to, and shrinks to nothing, twice.
    for size in SIZES {
        let hw = manager_with_secrets();
        let (source, _) = source(0);
        let file = open(&hw, &source, size, Access::ReadWrite);
        let nothing = map(&hw, &file);
        assert_empty_file(&hw, &file, &nothing);
        for round in 1..3 {
            let len = 3 * size as u64 + round;
            file.set_len(Bytes(len)).unwrap();
            let all = map(&hw, &file);
            assert_eq!((all.pages(), nothing.pages()), (4, 0));
            for page in 0..4 {
                let mut write = all.write(page).unwrap();
                assert!(write.iter().all(|byte| *byte == 0), "page {page}");
                write.fill(7);
            }
            file.sync_range(1..2).unwrap();
            let dirty = file.dirty_pages();
            assert_eq!(dirty.len(), 3);
            file.set_len(Bytes(0)).unwrap();
            for page in 0..4 {
                let gone = all.read_latched(page).map(drop).unwrap_err();
                assert!(matches!(gone, ReadError::BehindEnd { pages: 0, .. }));
            }
            assert_empty_file(&hw, &file, &nothing);
            drop(all);
        }
        drop((nothing, file));
        assert_empty(&hw);
        assert_eq!(fs::read(source.path()).unwrap(), []);
    }
}

/// Asserts that each call takes the file and a mapping of none of its pages.
fn assert_empty_file(hw: &Manager, file: &File, nothing: &Mapping) {
    let root = hw.root();
    assert_eq!(file.pages(), 0);
    assert_eq!(file.read_at(&root, 0, &mut [0; 8]).unwrap(), 0);
    file.will_need(&root, 0..9);
    assert_eq!(
        (file.dirty_pages(), file.oldest_dirty_lsn()),
        (vec![], None)
    );
    file.sync().unwrap();
    file.sync_range(0..0).unwrap();
    file.sync_range(0..u64::MAX).unwrap();
    assert_eq!(file.checkpoint(5, Pages(1)).unwrap(), 5);
    nothing.will_need(0..0).unwrap();
    nothing.unmap(0..0).unwrap();
    assert!(nothing.try_read_latched(0).is_none() && nothing.try_write(0).is_none());
    let one = hw.space(&root).map_file(file, 0..1).map(drop);
    assert!(matches!(one, Err(RangeError::File { pages: 0, .. })));
    assert_eq!(hw.snapshot().counter("nr_dirty"), 0);
    assert_eq!(root.usage_precise(), Bytes::ZERO);
    hw.check_invariants();
}

#[test]
fn a_mapping_of_nothing_maps_nothing() {
    // Goal: a range of no pages, at any place in a file, and unmapping everything twice. Method:
    // both, on a file of three pages; its pages stay in the cache.
    let hw = manager(FRAMES);
    let (source, bytes) = source(2 * PAGE_SIZE + 5);
    let file = open(&hw, &source, PAGE_SIZE, Access::ReadOnly);
    for at in 0..=3 {
        let none = hw.space(&hw.root()).map_file(&file, at..at).unwrap();
        assert_eq!(none.pages(), 0);
        assert!(none.try_read(&hw.enter(), 0).is_none());
    }
    let space = hw.space(&hw.root());
    let all = space.map_file(&file, 0..3).unwrap();
    let pin = all.pin(2).unwrap();
    (0..3).for_each(|page| _ = all.read(&hw.enter(), page).unwrap());
    assert!(space.rss().contains(Pages(3)));
    (0..2).for_each(|_| all.unmap(0..3).unwrap());
    assert!(space.rss().contains(Pages(0)) && all.pages() == 3);
    assert_eq!(pin[..5], bytes[2 * PAGE_SIZE..]);
    assert_eq!(hw.root().usage_precise(), Bytes(3 * PAGE_BYTES));
    assert!(all.try_read(&hw.enter(), 2).is_none());
    drop((all, file, space));
    hw.drop_caches();
    assert_eq!(hw.root().usage_precise(), Bytes(PAGE_BYTES), "the pin's");
    assert_eq!(pin[..5], bytes[2 * PAGE_SIZE..]);
    drop(pin);
    assert_empty(&hw);
}
