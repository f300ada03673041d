//! Promise: storage that seals pages is given sealed images, each of one moment; a page that it
//! rejects is not shown to anyone, and the cached pages do not change by sealing.

mod support;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;

use highwater::frame::Tunables;
use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{Access, Background, Backing, File, Manager, Mapping, Pages, ReadError, SyncError};
use support::assert_empty;

/// Storage whose pages end with a checksum.
#[derive(Debug)]
struct Sealed {
    len: u64,
    stored: Mutex<Vec<Vec<u8>>>,
    seals: AtomicU64,
    verified: AtomicU64,
    /// Images that came with a wrong checksum.
    unsealed: AtomicU64,
    /// Most pages that came by one call.
    most: AtomicU64,
    panics: AtomicBool,
}

/// Returns the bytes of a page of a file.
fn page_len(len: u64, page: u64) -> usize {
    index((len - page * 4096).min(4096))
}

fn index(page: u64) -> usize {
    usize::try_from(page).expect("a small file")
}

/// A sum in which each place counts.
fn checksum(page: FilePage, bytes: &[u8]) -> [u8; 8] {
    let sum = bytes[..bytes.len() - 8].iter().fold(page.0, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    });
    sum.to_le_bytes()
}

fn is_sound(page: FilePage, bytes: &[u8]) -> bool {
    bytes[bytes.len() - 8..] == checksum(page, bytes)
}

impl Sealed {
    fn new(len: u64) -> Arc<Self> {
        let storage = Self {
            len,
            stored: Mutex::default(),
            seals: AtomicU64::new(0),
            verified: AtomicU64::new(0),
            unsealed: AtomicU64::new(0),
            most: AtomicU64::new(0),
            panics: AtomicBool::new(false),
        };
        let page = |page| {
            let mut bytes = vec![7; page_len(storage.len, page)];
            let at = bytes.len() - 8;
            let sum = checksum(FilePage(page), &bytes);
            bytes[at..].copy_from_slice(&sum);
            bytes
        };
        let pages = (0..storage.len.div_ceil(4096)).map(page).collect();
        *storage.stored.lock().expect("no panic under the lock") = pages;
        Arc::new(storage)
    }

    fn spoil(&self, page: u64) {
        let mut stored = self.stored.lock().expect("no panic under the lock");
        stored[index(page)][100] ^= 1;
    }
}

impl Backing for Sealed {
    fn len(&self) -> u64 {
        self.len
    }

    fn seals(&self) -> bool {
        true
    }

    fn seal(&self, page: FilePage, copy: &mut [u8]) {
        assert!(!self.panics.load(SeqCst), "as told");
        assert!(
            copy.as_ptr().addr().is_multiple_of(PAGE_SIZE),
            "aligned like a frame"
        );
        let (at, sum) = (copy.len() - 8, checksum(page, copy));
        copy[at..].copy_from_slice(&sum);
        self.seals.fetch_add(1, SeqCst);
    }

    fn verify(&self, page: FilePage, bytes: &[u8]) -> io::Result<()> {
        assert!(!self.panics.load(SeqCst), "as told");
        self.verified.fetch_add(1, SeqCst);
        match is_sound(page, bytes) {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let stored = self.stored.lock().expect("no panic under the lock");
        buf.copy_from_slice(&stored[index(page.0)]);
        Ok(buf.len())
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.write_pages(page, &[buf])
    }

    fn write_pages(&self, first: FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        let mut stored = self.stored.lock().expect("no panic under the lock");
        for (page, buf) in (first.0..).zip(bufs) {
            let is_wrong = !is_sound(FilePage(page), buf);
            self.unsealed.fetch_add(u64::from(is_wrong), SeqCst);
            stored[index(page)] = buf.to_vec();
        }
        self.most.fetch_max(bufs.len() as u64, SeqCst);
        Ok(bufs.iter().map(|buf| buf.len()).sum())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A manager without background threads, all of whose pages may be dirty.
fn quiet(pages: u64) -> Manager {
    let tunables = Tunables::default()
        .with("dirty_ratio", 100)
        .expect("in range");
    let tunables = tunables
        .with("dirty_background_ratio", 100)
        .expect("in range");
    let hw = Manager::builder().capacity(Pages(pages).bytes());
    let hw = hw.tunables(tunables).background(Background::Off);
    hw.build().expect("a manager")
}

fn opened(hw: &Manager, storage: &Arc<Sealed>, access: Access) -> (File, Mapping) {
    let backing = Arc::clone(storage) as Arc<dyn Backing>;
    let file = hw.open_backing(backing, access).expect("one file");
    let map = hw.space(&hw.root()).map_file(&file, 0..file.pages());
    (file, map.expect("the whole file"))
}

#[test]
fn each_page_is_sealed_as_it_is_written_and_the_cached_one_stays() {
    // Method: neighbours, which are written by one call, a page alone, and a partial last page.
    let (hw, storage) = (quiet(64), Sealed::new(19 * PAGE_BYTES + 512));
    let (file, map) = opened(&hw, &storage, Access::ReadWrite);
    for page in [2, 3, 4, 9, 19] {
        map.write(page).expect("memory")[..512].fill(8);
    }
    let old = map.read_latched(2).expect("it is there")[PAGE_SIZE - 8..].to_vec();
    file.sync().expect("storage works");
    assert_eq!(
        (storage.seals.load(SeqCst), storage.most.load(SeqCst)),
        (5, 3)
    );
    assert_eq!(storage.unsealed.load(SeqCst), 0);
    assert_eq!(
        map.read_latched(2).expect("it is there")[PAGE_SIZE - 8..],
        old
    );
    hw.drop_caches();
    assert_ne!(
        map.read_latched(2).expect("it is sound")[PAGE_SIZE - 8..],
        old
    );
    assert_eq!(map.read_latched(19).expect("it is sound")[0], 8);
    drop((file, map));
    assert_empty(&hw);
}

#[test]
fn a_page_that_is_rejected_is_not_cached() {
    // Goal: the error is that of the read and names the page, also by read(2)-like calls; pages
    // that were read ahead before it are there, and the rejected one once it is sound again.
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let (hw, storage) = (quiet(2048), Sealed::new(20 * PAGE_BYTES));
        let (file, map) = opened(&hw, &storage, access);
        storage.spoil(3);
        file.will_need(&hw.root(), 0..8);
        let read = |page: u64| match access {
            Access::ReadOnly => map.read(&hw.enter(), page).map(|bytes| bytes[0]),
            Access::ReadWrite => map.read_latched(page).map(|bytes| bytes[0]),
        };
        assert_eq!(
            hw.root().usage_precise(),
            Pages(3).bytes(),
            "as far as they are sound"
        );
        for _ in 0..2 {
            let Err(ReadError::Io { page, source }) = read(3) else {
                panic!("page 3 is spoilt");
            };
            assert_eq!(
                (page, source.kind()),
                (FilePage(3), io::ErrorKind::InvalidData)
            );
        }
        let copied = file.read_at(&hw.root(), 3 * PAGE_BYTES, &mut [0; 8]);
        assert!(matches!(
            copied,
            Err(ReadError::Io {
                page: FilePage(3),
                ..
            })
        ));
        assert_eq!(read(2).expect("it is sound"), 7);
        assert_eq!(read(4).expect("it is sound"), 7);
        storage.spoil(3);
        assert_eq!(read(3).expect("it is sound again"), 7);
        let verified = storage.verified.load(SeqCst);
        assert_eq!(read(3).expect("it is cached"), 7);
        assert_eq!(
            storage.verified.load(SeqCst),
            verified,
            "once for each read of storage"
        );
        drop((file, map));
        assert_empty(&hw);
    }
}

#[test]
fn a_panic_of_a_seal_loses_nothing() {
    let (hw, storage) = (quiet(64), Sealed::new(20 * PAGE_BYTES));
    let (file, map) = opened(&hw, &storage, Access::ReadWrite);
    (0..5).for_each(|page| map.write(page).expect("memory")[0] = 8);
    storage.panics.store(true, SeqCst);
    let Err(SyncError::WriteBack { failed: 5, first }) = file.sync() else {
        panic!("nothing was sealed");
    };
    assert!(first.to_string().contains("panicked"), "{first}");
    let read = catch_unwind(AssertUnwindSafe(|| map.read_latched(9).map(drop)));
    assert!(read.is_err(), "a panic of a check is that of the reader");
    storage.panics.store(false, SeqCst);
    file.sync().expect("storage works");
    map.read_latched(9).expect("it is sound");
    assert_eq!(storage.unsealed.load(SeqCst), 0);
    drop((file, map));
    assert_empty(&hw);
}

#[test]
fn images_are_whole_beside_writers() {
    // Goal: no image is torn, and the last one wins. Method: two threads that fill whole pages, of
    // a file larger than the pool, beside background write-back and one that syncs; each byte of
    // an image counts in its checksum, and each page holds one value.
    let hw = Manager::builder().capacity(Pages(48).bytes());
    let hw = hw
        .background(Background::Thread)
        .build()
        .expect("a manager");
    let storage = Sealed::new(80 * PAGE_BYTES);
    let (file, map) = opened(&hw, &storage, Access::ReadWrite);
    let last: Vec<AtomicU64> = (0..80).map(|_| AtomicU64::new(7)).collect();
    thread::scope(|scope| {
        for seed in 0..2 {
            let (map, last) = (&map, &last);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                for _ in 0..5000 {
                    let page = rng.u64(..80);
                    let mut bytes = map.write(page).expect("memory");
                    let last = &last[index(page)];
                    let value = u8::try_from(last.load(SeqCst)).expect("one byte");
                    assert!(bytes[..PAGE_SIZE - 8].iter().all(|&byte| byte == value));
                    let next = value.wrapping_add(1);
                    bytes[..PAGE_SIZE - 8].fill(next);
                    last.store(u64::from(next), SeqCst);
                }
            });
        }
        scope.spawn(|| (0..50).for_each(|_| file.sync().expect("storage works")));
    });
    file.sync().expect("storage works");
    assert_eq!(storage.unsealed.load(SeqCst), 0);
    let stored = storage
        .stored
        .lock()
        .expect("no panic under the lock")
        .clone();
    for (stored, last) in stored.iter().zip(&last) {
        assert_eq!(u64::from(stored[0]), last.load(SeqCst));
    }
    drop((file, map));
    assert_empty(&hw);
}
