//! Promise: a file that is opened for direct I/O reads and writes as a buffered one does, keeps its
//! length, and no page of it is in memory twice, except a partial last one while it is moved.
//!
//! Tests that need direct I/O use a directory of the build; where its file system has none, they
//! print that and skip.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]
#![expect(clippy::print_stdout, reason = "a test that skips something says so")]

#[path = "support/cgroup.rs"]
mod group;
#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use group::{Inside, run_within};
use highwater::lab::memmap::kernel_cached;
use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{Access, Backing, Bytes, FileBacking, Manager, Mapping, OpenError, Pages};
use support::{assert_empty, manager};
use tempfile::NamedTempFile;

/// Lengths around the end of a page, and one of many pages with a partial last one.
const LENGTHS: [usize; 8] = [0, 1, 511, 4095, 4096, 4097, 8192, 300 * 4096 + 1234];

/// Returns a new file with `bytes`, which the kernel does not cache; `None` if it cannot be opened
/// for direct I/O.
fn file_of(bytes: &[u8]) -> Option<NamedTempFile> {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(file.path(), bytes).unwrap();
    has_direct(&file).then_some(file)
}

fn has_direct(file: &NamedTempFile) -> bool {
    let opened = FileBacking::open_direct(file.path(), Access::ReadOnly);
    if let Err(error) = &opened {
        println!(
            "skipped: no direct I/O in {}: {error}",
            file.path().display()
        );
    }
    opened.is_ok()
}

fn random_bytes(rng: &mut fastrand::Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

/// The way of a file's pages.
#[derive(Clone, Copy)]
enum Io {
    Direct,
    Buffered,
}

fn open(hw: &Manager, path: &Path, io: Io) -> highwater::File {
    match io {
        Io::Direct => hw.open_direct_writable(path).unwrap(),
        Io::Buffered => hw.open_writable(path).unwrap(),
    }
}

fn mapped(hw: &Manager, file: &highwater::File) -> Mapping {
    let space = hw.space(&hw.root());
    space.map_file(file, 0..file.pages()).unwrap()
}

// Goal: direct and buffered files behave alike, at any length, through evictions, write-back and
// reopening, and neither becomes longer. Method: random operations on one of each and on a vector,
// through managers much smaller than the longest file.
#[test]
fn direct_and_buffered_files_are_alike() {
    let mut rng = seed::rng(1);
    for len in LENGTHS {
        let mut model = random_bytes(&mut rng, len);
        let Some(direct) = file_of(&model) else {
            return;
        };
        let buffered = file_of(&model).unwrap();
        let files = [(direct, Io::Direct), (buffered, Io::Buffered)];
        let managers = [manager(64), manager(64)];
        for _reopened in 0..4 {
            let opened: Vec<_> = std::iter::zip(&files, &managers)
                .map(|((file, io), hw)| open(hw, file.path(), *io))
                .collect();
            let maps: Vec<_> = std::iter::zip(&managers, &opened)
                .map(|(hw, file)| mapped(hw, file))
                .collect();
            for _step in 0..if len < PAGE_SIZE { 20 } else { 300 } {
                step(&mut rng, &mut model, &managers, &opened, &maps);
            }
        }
        for ((file, _), hw) in std::iter::zip(&files, &managers) {
            assert!(fs::read(file.path()).unwrap() == model, "{len} bytes");
            assert_empty(hw);
        }
    }
}

/// Makes one step on the model and on both files.
fn step(
    rng: &mut fastrand::Rng,
    model: &mut [u8],
    managers: &[Manager],
    files: &[highwater::File],
    maps: &[Mapping],
) {
    let at = rng.usize(0..=model.len());
    let len = rng.usize(0..=(model.len() - at).min(3 * PAGE_SIZE));
    match rng.u8(0..10) {
        0..5 => {
            for (hw, file) in std::iter::zip(managers, files) {
                let mut bytes = vec![0; len];
                file.read_at(&hw.root(), at as u64, &mut bytes).unwrap();
                assert!(bytes == model[at..at + len], "{len} bytes at {at}");
            }
        }
        5..8 if at < model.len() => {
            let (page, within) = (at / PAGE_SIZE, at % PAGE_SIZE);
            let end = (within + len).min(PAGE_SIZE).min(within + model.len() - at);
            let bytes = random_bytes(rng, end - within);
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            for map in maps {
                map.write(page as u64).unwrap()[within..end].copy_from_slice(&bytes);
            }
        }
        8 => files.iter().for_each(|file| file.sync().unwrap()),
        _ => managers.iter().for_each(|hw| _ = hw.drop_caches()),
    }
}

// Goal: scattered dirty pages of a direct file, which are written many at once, are all in the file
// with the bytes of their last write, the partial last page too, and the file keeps its length; by
// the ring and without it. Method: runs of one to four pages, in files of small and of large pages,
// by a sync beside a thread that goes on writing.
#[test]
fn scattered_pages_are_all_written_back() {
    let Some(file) = file_of(&vec![0; 1000 * PAGE_SIZE + 1234]) else {
        return;
    };
    let builders = [
        Manager::builder(),
        Manager::builder().without_io_uring(),
        Manager::builder(),
    ];
    for (size, builder) in [4, 4, 16].into_iter().zip(builders) {
        let hw = builder.capacity(Bytes::mib(8)).build().unwrap();
        let storage = FileBacking::open_direct(file.path(), Access::ReadWrite).unwrap();
        let storage = storage.with_page_size(Bytes::kib(size)).unwrap();
        let open = hw.open_file(storage, Access::ReadWrite).unwrap();
        let map = mapped(&hw, &open);
        let pages = open.pages();
        let dirty = || (0..pages).filter(|page| page % 7 < page % 5 || page + 1 == pages);
        for round in 1..=3_u8 {
            dirty().for_each(|page| map.write(page).unwrap()[9] = round);
            std::thread::scope(|scope| {
                scope.spawn(|| dirty().for_each(|page| map.write(page).unwrap()[10] = round));
                open.sync().unwrap();
            });
            open.sync().unwrap();
            let bytes = fs::read(file.path()).unwrap();
            assert_eq!(bytes.len(), 1000 * PAGE_SIZE + 1234);
            let step = usize::try_from(size).unwrap() * 1024;
            for page in dirty() {
                let at = usize::try_from(page).unwrap() * step;
                assert_eq!(
                    bytes[at + 9..at + 11],
                    [round; 2],
                    "page {page} of {size} KiB"
                );
            }
        }
        drop((map, open));
        assert_empty(&hw);
    }
}

// Goal: a write to the partial last page changes neither its length nor what is beyond it. Method:
// each page is filled, whole frames of it, and the file read by the system.
#[test]
fn the_last_page_is_written_up_to_the_end() {
    for len in LENGTHS {
        let Some(file) = file_of(&vec![1; len]) else {
            return;
        };
        let hw = manager(64);
        let opened = hw.open_direct_writable(file.path()).unwrap();
        let map = mapped(&hw, &opened);
        for page in 0..opened.pages() {
            map.write(page).unwrap().fill(7);
        }
        opened.sync().unwrap();
        assert!(
            fs::read(file.path()).unwrap() == vec![7; len],
            "{len} bytes"
        );
    }
}

// Goal: a direct backing moves pages from and to buffers that are not aligned. Method: as storage
// of an embedder would call it, from odd addresses, for single pages and runs with a partial last
// page.
#[test]
fn a_direct_backing_takes_buffers_at_any_address() {
    let mut rng = seed::rng(2);
    let content = random_bytes(&mut rng, 3 * PAGE_SIZE + 77);
    let Some(file) = file_of(&content) else {
        return;
    };
    let storage = FileBacking::open_direct(file.path(), Access::ReadWrite).unwrap();
    let mut memory = vec![0; content.len() + 1];
    let mut bufs: Vec<_> = memory[1..].chunks_mut(PAGE_SIZE).collect();
    let read = storage.read_pages(FilePage(0), &mut bufs).unwrap();
    assert_eq!(read, content.len());
    assert!(memory[1..] == content);
    let other = random_bytes(&mut rng, content.len() + 1);
    let bufs: Vec<_> = other[1..].chunks(PAGE_SIZE).collect();
    assert_eq!(
        storage.write_pages(FilePage(0), &bufs).unwrap(),
        content.len()
    );
    assert!(fs::read(file.path()).unwrap() == other[1..]);
    for page in (0..4).map(FilePage) {
        let mut page_memory =
            vec![0; (storage.len() - page.0 * PAGE_BYTES).min(PAGE_BYTES) as usize + 3];
        let read = storage.read_page(page, &mut page_memory[3..]).unwrap();
        let start = usize::try_from(page.0 * PAGE_BYTES).unwrap();
        assert!(
            page_memory[3..] == other[1 + start..][..read],
            "page {page}"
        );
    }
    let page = &content[5..][..PAGE_SIZE];
    assert_eq!(storage.write_page(FilePage(1), page).unwrap(), PAGE_SIZE);
    storage.sync().unwrap();
    assert!(fs::read(file.path()).unwrap()[PAGE_SIZE..][..PAGE_SIZE] == *page);
}

// Goal: a file system without direct I/O is an error that names the file, the reason and the
// remedy; a missing file is the ordinary error. Method: the kernel's own files have none.
// Symptom: a request for a page behind what the system can address wrapped around and changed the
// file's first pages; one for no pages at a partial last page panicked.
#[test]
fn extreme_and_empty_requests_of_a_backing_are_harmless() {
    let source = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(source.path(), [7; PAGE_SIZE + 100]).unwrap();
    let mut to_write = fs::OpenOptions::new();
    let opened = to_write.read(true).write(true).open(source.path()).unwrap();
    let buffered = FileBacking::new(opened).unwrap();
    let direct = has_direct(&source)
        .then(|| FileBacking::open_direct(source.path(), Access::ReadWrite).unwrap());
    for backing in [Some(buffered), direct].into_iter().flatten() {
        for page in [1 << 52, (1 << 51) - 1 + (1 << 52), u64::MAX].map(FilePage) {
            let mut bytes = vec![9; PAGE_SIZE];
            let kinds = [
                backing.write_page(page, &bytes).map_err(|it| it.kind()),
                backing.write_pages(page, &[&bytes]).map_err(|it| it.kind()),
                backing.read_page(page, &mut bytes).map_err(|it| it.kind()),
                backing
                    .read_pages(page, &mut [&mut bytes])
                    .map_err(|it| it.kind()),
            ];
            assert_eq!(kinds, [Err(ErrorKind::InvalidInput); 4]);
        }
        for page in [0, 1, 2].map(FilePage) {
            assert_eq!(backing.read_pages(page, &mut []).unwrap(), 0);
            assert_eq!(backing.write_pages(page, &[]).unwrap(), 0);
        }
        let stored = fs::read(source.path()).unwrap();
        assert_eq!(stored, [7; PAGE_SIZE + 100]);
    }
}

#[test]
fn a_refusal_says_what_to_do() {
    let hw = manager(64);
    let refused = hw.open_direct("/proc/version").unwrap_err();
    assert!(matches!(refused, OpenError::NotDirect { .. }), "{refused}");
    let text = refused.to_string();
    for part in ["/proc/version", "O_DIRECT", "`Manager::open`"] {
        assert!(text.contains(part), "{text}");
    }
    hw.open("/proc/version").unwrap();
    let missing = hw.open_direct("/no/such/file").unwrap_err();
    assert!(matches!(missing, OpenError::Io { .. }), "{missing}");
}

/// Returns a file of zeros without blocks.
fn sparse_file(len: u64) -> NamedTempFile {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(len).unwrap();
    file
}

/// Reads every page of a file through a mapping; returns how many there are.
fn read_all(hw: &Manager, file: &highwater::File) -> u64 {
    let map = mapped(hw, file);
    for page in 0..map.pages() {
        let guard = hw.enter();
        assert_eq!(map.read(&guard, page).unwrap()[..8], [0; 8]);
    }
    map.pages()
}

// Goal: the kernel keeps no page of a direct file that is read, written or synced. Method: its own
// count of the file's cached bytes; a buffered read of the same shows that it counts.
#[test]
fn the_kernel_caches_nothing_of_a_direct_file() {
    const LEN: u64 = 1000 * PAGE_BYTES + 100;
    let hw = manager(128);
    let cached = |file: &NamedTempFile| kernel_cached(file.as_file()).unwrap();
    let buffered = sparse_file(LEN);
    read_all(&hw, &hw.open(buffered.path()).unwrap());
    if cached(&buffered) == Bytes::ZERO || !has_direct(&buffered) {
        return println!("skipped: the file system of the build is not on a device");
    }
    assert!(cached(&buffered) >= Bytes(LEN), "{}", cached(&buffered));

    let direct = sparse_file(LEN);
    let file = hw.open_direct(direct.path()).unwrap();
    assert_eq!(read_all(&hw, &file), 1001);
    assert_eq!(cached(&direct), Bytes::ZERO);

    drop(file);
    let file = hw.open_direct_writable(direct.path()).unwrap();
    let map = mapped(&hw, &file);
    for page in 0..map.pages() {
        map.write(page).unwrap()[0] = 1;
    }
    file.sync().unwrap();
    assert_eq!(cached(&direct), Bytes::ZERO);
}

// Goal: no page is in memory twice. Method: 1 GiB read through 64 MiB in a memory cgroup of 128
// MiB, which counts the kernel's cache for the program; then buffered, which fills the rest of it.
#[test]
fn no_page_is_in_memory_twice() {
    let name = "no_page_is_in_memory_twice";
    run_within(name, Bytes::mib(128), reads_a_gibibyte);
}

fn reads_a_gibibyte(inside: &Inside) -> String {
    let hw = Manager::builder().capacity(Bytes::mib(64)).build().unwrap();
    let cache = || inside.stat(&["cache", "file"]);
    let direct = sparse_file(Bytes::gib(1).0);
    if !has_direct(&direct) {
        return "skipped".to_owned();
    }
    let before = cache();
    let file = hw.open_direct(direct.path()).unwrap();
    assert_eq!(read_all(&hw, &file), Bytes::gib(1).0 / PAGE_BYTES);
    let by_direct = cache();
    assert_eq!(kernel_cached(direct.as_file()).unwrap(), Bytes::ZERO);
    // What else the process reads, such as its own program.
    let others = before.0 + Bytes::mib(4).0;
    assert!(by_direct.0 <= others, "{by_direct} after {before}");

    let buffered = sparse_file(Bytes::gib(1).0);
    read_all(&hw, &hw.open(buffered.path()).unwrap());
    let by_buffered = cache();
    let twice = Bytes::mib(16);
    assert!(by_buffered.0 >= by_direct.0 + twice.0, "{by_buffered}");
    format!(
        "the kernel caches {} of 1 GiB that was read directly, {} when buffered",
        Bytes(by_direct.0.saturating_sub(before.0)),
        Bytes(by_buffered.0 - by_direct.0)
    )
}

// Goal: memory that is swapped out to a direct file leaves memory. Method: the kernel's count of
// the file's cached bytes, after twice the capacity was written and read again.
#[test]
fn a_direct_swap_file_is_not_cached() {
    const PAGES: u64 = 512;
    let storage = sparse_file(2 * PAGES * PAGE_BYTES);
    if !has_direct(&storage) {
        return;
    }
    let direct = FileBacking::open_direct(storage.path(), Access::ReadWrite).unwrap();
    let hw = Manager::builder()
        .capacity(Bytes::mib(1))
        .swap_on(Arc::new(direct))
        .build()
        .unwrap();
    let scratch = hw.space(&hw.root()).map_anon(Pages(PAGES)).unwrap();
    for page in 0..PAGES {
        scratch.write(page).unwrap()[..8].copy_from_slice(&(page + 1).to_le_bytes());
    }
    for page in 0..PAGES {
        let read = scratch.read_latched(page).unwrap();
        assert_eq!(read[..8], (page + 1).to_le_bytes());
    }
    assert!(hw.snapshot().counter("pswpout") >= PAGES / 2);
    assert_eq!(kernel_cached(storage.as_file()).unwrap(), Bytes::ZERO);
}

// Goal: a direct file serves under a wrapper of the embedder as a buffered one does.
#[test]
fn a_direct_backing_serves_an_open_backing() {
    let Some(file) = file_of(&[9; 3 * PAGE_SIZE + 1]) else {
        return;
    };
    let storage = FileBacking::open_direct(file.path(), Access::ReadWrite).unwrap();
    assert!(storage.is_direct());
    let hw = manager(64);
    let opened = hw
        .open_backing(Arc::new(storage), Access::ReadWrite)
        .unwrap();
    let map = mapped(&hw, &opened);
    for page in 0..4 {
        map.write(page).unwrap()[0] = 8;
    }
    opened.sync().unwrap();
    let bytes = fs::read(file.path()).unwrap();
    assert_eq!(bytes.len(), 3 * PAGE_SIZE + 1);
    assert_eq!((bytes[0], bytes[1], bytes[3 * PAGE_SIZE]), (8, 9, 8));
}
