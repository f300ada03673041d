//! Promise: a file grows and shrinks while it is in use. Bytes that it gains are zero, bytes that
//! it loses are gone, storage is given nothing behind its end, and a refusal changes nothing.

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{
    Access, Background, Backing, Bytes, File, Manager, Mapping, OpenError, Pages, RangeError,
    ReadError, SyncError,
};
use support::{assert_empty, manager};

fn pages(count: u64) -> Bytes {
    Bytes(count * PAGE_BYTES)
}

fn map(hw: &Manager, file: &File) -> Mapping {
    let map = hw.space(&hw.root()).map_file(file, 0..file.pages());
    map.expect("the whole file")
}

/// A temporary file of `len` sevens, open to write: buffered, and direct where that is possible.
#[expect(clippy::print_stdout, reason = "says what is not tested")]
fn opened(hw: &Manager, len: usize) -> Vec<(tempfile::NamedTempFile, File)> {
    let make = || {
        let source = tempfile::NamedTempFile::new().expect("a temporary file");
        fs::write(source.path(), vec![7; len]).expect("there is room");
        source
    };
    let (one, other) = (make(), make());
    let buffered = hw.open_writable(one.path()).expect("it can be read");
    let mut opened = vec![(one, buffered)];
    match hw.open_direct_writable(other.path()) {
        Ok(direct) => opened.push((other, direct)),
        Err(OpenError::NotDirect { source, .. }) => println!("not tested direct: {source}"),
        Err(error) => panic!("{error}"),
    }
    opened
}

#[test]
fn files_grow_and_shrink_by_pages_and_parts_of_pages() {
    let hw = manager(64);
    for (source, file) in opened(&hw, 3 * PAGE_SIZE) {
        // Grows by a page and a half: zeros, written to where they are needed.
        file.set_len(Bytes(4 * PAGE_BYTES + 2048))
            .expect("there is room");
        assert_eq!(file.pages(), 5);
        let all = map(&hw, &file);
        assert_eq!(*all.read_latched(3).expect("it is read"), [0; PAGE_SIZE]);
        all.write(4).expect("it is read").fill(8); // also behind the end
        all.write(2).expect("it is read").fill(9);
        file.sync().expect("there is room");
        let stored = fs::read(source.path()).expect("it is read");
        assert_eq!(stored.len(), 4 * PAGE_SIZE + 2048);
        assert!(stored[4 * PAGE_SIZE..].iter().all(|&byte| byte == 8));
        // Grows within the page: what was written behind the end was never part of the file.
        file.set_len(pages(5)).expect("there is room");
        let last = all.read_latched(4).expect("it is read");
        assert_eq!((last[2047], last[2048], last[PAGE_SIZE - 1]), (8, 0, 0));
        drop(last);
        // Shrinks into a dirty page; others are dirty behind the end.
        (2..5).for_each(|page| all.write(page).expect("it is read").fill(6));
        file.set_len(Bytes(2 * PAGE_BYTES + 100))
            .expect("the system shortens it");
        assert_eq!(file.pages(), 3);
        assert_eq!(file.dirty_pages().len(), 1, "the others are gone");
        for page in 3..5 {
            let refused = all.read_latched(page).map(drop);
            assert!(matches!(
                refused,
                Err(ReadError::BehindEnd { pages: 3, .. })
            ));
            assert!(matches!(all.write(page), Err(ReadError::BehindEnd { .. })));
        }
        let beyond = hw.space(&hw.root()).map_file(&file, 0..4);
        assert!(matches!(beyond, Err(RangeError::File { pages: 3, .. })));
        let mut tail = [1; 200];
        let at = 2 * PAGE_BYTES;
        assert_eq!(
            file.read_at(&hw.root(), at, &mut tail).expect("it is read"),
            100
        );
        assert_eq!(
            file.read_at(&hw.root(), at + 100, &mut tail)
                .expect("it is the end"),
            0
        );
        file.sync().expect("there is room");
        let stored = fs::read(source.path()).expect("it is read");
        assert_eq!(stored.len(), 2 * PAGE_SIZE + 100);
        assert!(stored[2 * PAGE_SIZE..].iter().all(|&byte| byte == 6));
        // Grows again, under the old mapping: nothing of what it lost comes back.
        file.set_len(pages(5)).expect("there is room");
        let cut = all.read_latched(2).expect("it is read");
        assert_eq!((cut[99], cut[100]), (6, 0));
        drop(cut);
        (3..5).for_each(|page| {
            assert_eq!(*all.read_latched(page).expect("it is read"), [0; PAGE_SIZE]);
        });
        file.set_len(Bytes(0)).expect("the system shortens it");
        file.sync().expect("nothing is left");
        assert_eq!(fs::read(source.path()).expect("it is read"), []);
        assert!(all.read_latched(0).is_err());
        hw.check_invariants();
    }
    assert_empty(&hw);
}

#[test]
fn what_cannot_be_resized_says_so() {
    let hw = manager(64);
    let source = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(source.path(), [7; PAGE_SIZE]).expect("there is room");
    let kind = |file: &File, len| file.set_len(len).expect_err("it is refused").kind();
    let fixed = hw.open(source.path()).expect("it can be read");
    assert_eq!(kind(&fixed, pages(2)), io::ErrorKind::PermissionDenied);
    drop(fixed);
    let memory = hw.shared_memory(Pages(4)).expect("a little memory");
    assert_eq!(kind(&memory, pages(2)), io::ErrorKind::Unsupported);
    let file = hw.open_writable(source.path()).expect("it can be read");
    assert_eq!(kind(&file, Bytes(u64::MAX)), io::ErrorKind::FileTooLarge);
    // The system refuses a negative length.
    assert!(file.set_len(Bytes(1 << 63)).is_err());
    assert_eq!(file.pages(), 1);
}

/// Storage in memory that can be resized, refuses on demand, and checks what it is given. Each page
/// begins with its version.
#[derive(Debug)]
struct Elastic {
    stored: Mutex<Vec<u64>>,
    /// By page: the last version; 0 since the file lost it. Written by the holder of the page's
    /// latch, and when the file loses the page.
    last: Vec<AtomicU64>,
    refuses: AtomicBool,
    /// Pages that were written behind the end, or read or written in an old version.
    wrong: AtomicU64,
}

impl Elastic {
    fn new(most: u64, now: usize) -> Arc<Self> {
        Arc::new(Self {
            stored: Mutex::new(vec![0; now]),
            last: (0..most).map(|_| AtomicU64::new(0)).collect(),
            refuses: AtomicBool::new(false),
            wrong: AtomicU64::new(0),
        })
    }

    /// Opens it, and maps all of it.
    fn open(self: &Arc<Self>, hw: &Manager) -> (File, Mapping) {
        let backing = Arc::clone(self) as Arc<dyn Backing>;
        let file = hw.open_backing(backing, Access::ReadWrite);
        let file = file.expect("one file");
        let all = map(hw, &file);
        (file, all)
    }

    fn stored(&self) -> MutexGuard<'_, Vec<u64>> {
        self.stored.lock().expect("no panic under the lock")
    }

    fn last(&self, page: u64) -> u64 {
        self.last[index(page)].load(SeqCst)
    }
}

fn index(page: u64) -> usize {
    usize::try_from(page).expect("a small file")
}

fn version(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

impl Backing for Elastic {
    fn len(&self) -> u64 {
        self.stored().len() as u64 * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let stored = self.stored();
        let Some(version) = stored.get(index(page)) else {
            return Ok(0);
        };
        let is_old = *version != self.last(page);
        self.wrong.fetch_add(u64::from(is_old), SeqCst);
        buf[..8].copy_from_slice(&version.to_le_bytes());
        Ok(buf.len())
    }

    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        let mut stored = self.stored();
        let is_wrong = index(page) >= stored.len() || version(buf) != self.last(page);
        self.wrong.fetch_add(u64::from(is_wrong), SeqCst);
        if let Some(stored) = stored.get_mut(index(page)) {
            *stored = version(buf);
        }
        Ok(buf.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if self.refuses.load(SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let pages = index(len / PAGE_BYTES);
        let mut stored = self.stored();
        for last in &self.last[pages..] {
            last.store(0, SeqCst);
        }
        stored.resize(pages, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_refused_resize_changes_nothing() {
    // Goal: pages that the file would have lost are dirty as before, and reach storage.
    let hw = manager(64);
    let storage = Elastic::new(20, 10);
    let (file, all) = storage.open(&hw);
    for page in 0..10 {
        let mut bytes = all.write(page).expect("memory");
        bytes[..8].copy_from_slice(&(page + 1).to_le_bytes());
        storage.last[index(page)].store(page + 1, SeqCst);
    }
    storage.refuses.store(true, SeqCst);
    for len in [3, 15] {
        let refused = file.set_len(pages(len)).expect_err("it is refused");
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.pages(), 10);
    }
    assert_eq!(version(&all.read_latched(9).expect("it is there")), 10);
    file.sync().expect("storage takes pages");
    assert_eq!(*storage.stored(), (1..=10).collect::<Vec<_>>());
    assert_eq!(storage.wrong.load(SeqCst), 0);
}

#[test]
fn a_shrink_waits_for_latched_pages_behind_the_end() {
    // Goal: a writer ends what it has begun, and the page is gone then; pages before the end do not
    // matter.
    let hw = manager(64);
    let storage = Elastic::new(20, 10);
    let (file, all) = storage.open(&hw);
    let before = all.read_latched(1).expect("memory");
    let behind = all.write(8).expect("memory");
    thread::scope(|scope| {
        let shrink = scope.spawn(|| file.set_len(pages(5)));
        thread::sleep(Duration::from_millis(20));
        assert!(!shrink.is_finished(), "a page behind the end is latched");
        drop(behind);
        shrink.join().expect("no panic").expect("storage shrinks");
    });
    drop(before);
    assert!(all.write(8).is_err());
    assert_eq!(storage.stored().len(), 5);
}

/// One thread's accesses, while others resize: each sees the last version of its page.
fn access(storage: &Elastic, file: &File, all: &Mapping, rng: &mut Rng) {
    let page = rng.u64(..all.pages());
    let excused = |error: ReadError| {
        let is_excused = matches!(
            error,
            ReadError::BehindEnd { .. } | ReadError::NoMemory { .. }
        );
        assert!(is_excused, "{error}");
    };
    match rng.u8(..16) {
        0..8 => match all.write(page) {
            Ok(mut bytes) => {
                assert_eq!(version(&bytes), storage.last(page), "page {page} to write");
                let next = rng.u64(1..);
                bytes[..8].copy_from_slice(&next.to_le_bytes());
                storage.last[index(page)].store(next, SeqCst);
            }
            Err(error) => excused(error),
        },
        8..14 => match all.read_latched(page) {
            Ok(bytes) => assert_eq!(version(&bytes), storage.last(page), "page {page} to read"),
            Err(error) => excused(error),
        },
        14 => match file.sync() {
            Ok(()) | Err(SyncError::Earlier { .. }) => {}
            Err(error) => panic!("{error}"),
        },
        _ => {
            let len = rng.u64(..=all.pages());
            match file.set_len(pages(len)) {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::StorageFull),
            }
        }
    }
}

#[test]
fn files_are_resized_under_load() {
    // Goal: readers, writers, write-back, eviction, syncs and resizes at once: storage is given
    // nothing behind its end and nothing old, and each access sees the last version of its page, or
    // zeros if the file has lost it since. Method: three threads, a pool smaller than the file,
    // with and without background threads.
    let first = seed::seed(400);
    for seed in first..first + 8 {
        seed::show(seed);
        let mut rng = Rng::with_seed(seed);
        let background = match seed % 2 {
            0 => Background::Thread,
            _ => Background::Off,
        };
        let hw = Manager::builder().capacity(Pages(rng.u64(40..120)).bytes());
        let hw = hw.background(background).build().expect("a manager");
        let most = rng.u64(50..300);
        let storage = Elastic::new(most, index(most));
        let (file, all) = storage.open(&hw);
        for round in 0..4 {
            storage.refuses.store(round == 1, SeqCst);
            thread::scope(|scope| {
                for nth in 0..3 {
                    let mut rng = Rng::with_seed((seed * 4 + round) * 3 + nth);
                    let (storage, file, all) = (&storage, &file, &all);
                    scope.spawn(move || {
                        (0..1500).for_each(|_| access(storage, file, all, &mut rng));
                    });
                }
            });
            hw.check_invariants();
        }
        file.sync().expect("storage takes pages");
        let stored = storage.stored().clone();
        let last: Vec<u64> = (0..stored.len() as u64)
            .map(|page| storage.last(page))
            .collect();
        assert_eq!(stored, last);
        assert_eq!(
            storage.wrong.load(SeqCst),
            0,
            "storage was given something wrong"
        );
        drop((all, file));
        assert_empty(&hw);
    }
}

// Symptom: a read that a shrink overtook returned the bytes behind the new end, as zeros. Method: a
// read of two pages waits for the latch of the first; the file shrinks into the second.
#[test]
fn a_read_beside_a_shrink_ends_at_the_end() {
    let hw = manager(64);
    for (_source, file) in opened(&hw, 2 * PAGE_SIZE) {
        let all = map(&hw, &file);
        assert_eq!(all.read_latched(1).expect("it is read")[0], 7);
        let first = all.write(0).expect("it is read");
        let mut bytes = [1; 2 * PAGE_SIZE];
        let count = thread::scope(|scope| {
            let read = scope.spawn(|| file.read_at(&hw.root(), 0, &mut bytes));
            // Long enough for the read to wait; otherwise it begins with the new length.
            thread::sleep(Duration::from_millis(50));
            let shrunk = file.set_len(Bytes(PAGE_BYTES + 100));
            shrunk.expect("the system shortens it");
            drop(first);
            read.join().expect("no panic").expect("both are resident")
        });
        assert_eq!(count, PAGE_SIZE + 100);
        assert!(bytes[..count].iter().all(|&byte| byte == 7));
    }
}
