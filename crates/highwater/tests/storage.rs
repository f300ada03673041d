//! Promise: no byte is lost or leaked to another owner, whatever storage does: here, storage that
//! misreports how much it moved.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use highwater::frame::Tunables;
use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{Access, Background, Backing, File, Manager, Pages, ReadError, SyncError};
use support::{TestFile, assert_empty, manager};

/// Content of every frame before storage reads into it.
const SECRET: u8 = 0xa5;
/// Content of the storage.
const STORED: u8 = 1;
const PAGES: u64 = 8;

/// The storage's reports, from a page on; correct for those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    /// The truth.
    Truth,
    /// It moved only `of` bytes, and reports all.
    All { of: usize, from: u64 },
    /// It moved nothing, and reports twice the length.
    Twice { from: u64 },
}

/// Storage in memory with the multi-page operations of [`Backing`]: one by one.
#[derive(Debug)]
struct Liar {
    says: Mutex<Says>,
    pages: Mutex<Vec<[u8; PAGE_SIZE]>>,
    /// Whether it ever got a read buffer that was not zeroed.
    was_shown: AtomicBool,
}

/// The same with multi-page operations of its own, which report the total.
#[derive(Debug)]
struct ByMany(Arc<Liar>);

impl Liar {
    fn new(pages: u64, byte: u8) -> Arc<Self> {
        Arc::new(Self {
            says: Mutex::new(Says::Truth),
            pages: Mutex::new(vec![[byte; PAGE_SIZE]; index(pages)]),
            was_shown: AtomicBool::new(false),
        })
    }

    fn say(&self, says: Says) {
        *self.says.lock().unwrap() = says;
    }

    /// Returns how many bytes of a page it moves, and how many it reports.
    fn moves(&self, page: u64, len: usize) -> (usize, usize) {
        match *self.says.lock().unwrap() {
            Says::All { of, from } if page >= from => (of, len),
            Says::Twice { from } if page >= from => (0, 2 * len),
            _ => (len, len),
        }
    }
}

fn index(page: u64) -> usize {
    usize::try_from(page).unwrap()
}

impl Backing for Liar {
    fn len(&self) -> u64 {
        self.pages.lock().unwrap().len() as u64 * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        if buf.iter().any(|byte| *byte != 0) {
            self.was_shown.store(true, Ordering::Relaxed);
        }
        let (moved, says) = self.moves(page, buf.len());
        buf[..moved].copy_from_slice(&self.pages.lock().unwrap()[index(page)][..moved]);
        Ok(says)
    }

    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        let (moved, says) = self.moves(page, buf.len());
        self.pages.lock().unwrap()[index(page)][..moved].copy_from_slice(&buf[..moved]);
        Ok(says)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Backing for ByMany {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_page(page, buf)
    }

    fn read_pages(&self, FilePage(first): FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        let pages = (first..).zip(bufs);
        pages
            .map(|(page, buf)| self.0.read_page(FilePage(page), buf))
            .sum()
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.0.write_page(page, buf)
    }

    fn write_pages(&self, FilePage(first): FilePage, bufs: &[&[u8]]) -> io::Result<usize> {
        let pages = (first..).zip(bufs);
        pages
            .map(|(page, buf)| self.0.write_page(FilePage(page), buf))
            .sum()
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns storage with both kinds of multi-page operations.
fn both(pages: u64) -> [(Arc<Liar>, Arc<dyn Backing>); 2] {
    let (one, many) = (Liar::new(pages, STORED), Liar::new(pages, STORED));
    let by_many = Arc::new(ByMany(Arc::clone(&many)));
    [(Arc::clone(&one), one as Arc<dyn Backing>), (many, by_many)]
}

/// Creates a manager in which every frame holds another tenant's data.
fn manager_with_secrets() -> Manager {
    let hw = manager(64);
    let tenant = hw.space(&hw.root());
    let map = tenant.map_anon(Pages(60)).unwrap();
    for page in 0..60 {
        map.write(page).unwrap().fill(SECRET);
    }
    drop(map);
    assert_empty(&hw);
    hw
}

// Symptom: storage that reported 8 KiB read of a page was believed, and the page returned was the
// frame's old content. Method: frames that hold a secret; reads of one page and of windows, whose
// first or third page reports too much.
#[test]
fn a_read_that_says_too_much_shows_nothing_of_others() {
    for (from, (storage, backing)) in [0, 2]
        .into_iter()
        .flat_map(|from| both(PAGES).map(|both| (from, both)))
    {
        let hw = manager_with_secrets();
        let file = hw.open_backing(backing, Access::ReadOnly).unwrap();
        let (root, mut buf) = (hw.root(), vec![0; index(PAGES) * PAGE_SIZE]);
        storage.say(Says::Twice { from });
        let read = file.read_at(&root, 0, &mut buf);
        let whole = read.unwrap_or(0);
        assert!(whole <= index(from) * PAGE_SIZE, "{whole} from {from}");
        assert!(buf[..whole].iter().all(|byte| *byte == STORED));

        hw.set_readahead(Pages(1));
        let error = file.read_at(&root, 7 * PAGE_BYTES, &mut buf).unwrap_err();
        let is_refused = matches!(
            error,
            ReadError::Excess {
                page: FilePage(7),
                got: 8192,
                want: 4096
            }
        );
        assert!(is_refused, "{error}");
        let space = hw.space(&root);
        let map = space.map_file(&file, 0..PAGES).unwrap();
        assert!(map.read(&hw.enter(), 6).is_err());

        storage.say(Says::Truth);
        assert_eq!(file.read_at(&root, 0, &mut buf).unwrap(), buf.len());
        assert!(buf.iter().all(|byte| *byte == STORED));
        drop((map, file));
        assert_empty(&hw);
    }
}

// Symptom: as above, for storage that reports a complete read and has not written the buffer, or
// only half of it. Method: as above; the bytes that it did not write are zeros, and it does not see
// the frame's old content either.
#[test]
fn a_read_that_left_bytes_out_shows_zeros_there() {
    for (storage, backing) in both(PAGES) {
        for of in [0, 1, PAGE_SIZE / 2] {
            let hw = manager_with_secrets();
            let file = hw
                .open_backing(Arc::clone(&backing), Access::ReadOnly)
                .unwrap();
            storage.say(Says::All { of, from: 0 });
            let mut buf = vec![SECRET; index(PAGES) * PAGE_SIZE];
            assert_eq!(file.read_at(&hw.root(), 0, &mut buf).unwrap(), buf.len());
            for page in buf.chunks(PAGE_SIZE) {
                let (touched, rest) = page.split_at(of);
                assert!(touched.iter().all(|byte| *byte == STORED));
                assert!(rest.iter().all(|byte| *byte == 0), "bytes of others");
            }
            assert!(!storage.was_shown.load(Ordering::Relaxed));
            drop(file);
            assert_empty(&hw);
        }
    }
}

// Symptom: the same in swap. Method: pages of as many tenants, distinguished by their bytes, are
// swapped out and read back by reads that write nothing, or half; each page holds its own bytes or
// zeros.
#[test]
fn swap_that_left_bytes_out_shows_zeros_there() {
    for of in [0, PAGE_SIZE / 2] {
        let storage = Liar::new(256, 0);
        let hw = Manager::builder()
            .capacity(Pages(64).bytes())
            .swap_on(Arc::clone(&storage) as Arc<dyn Backing>)
            .build()
            .unwrap();
        let space = hw.space(&hw.root());
        let maps = [(); 200].map(|()| space.map_anon(Pages(1)).unwrap());
        for (byte, map) in (1..).zip(&maps) {
            map.write(0).unwrap().fill(byte);
        }
        assert!(hw.snapshot().counter("pswpout") > 100);
        storage.say(Says::All { of, from: 0 });
        for (byte, map) in (1_u8..).zip(&maps) {
            let bytes = map.read_latched(0).unwrap();
            let is_own = |found: &u8| *found == byte || *found == 0;
            assert!(bytes.iter().all(is_own), "tenant {byte} sees others");
        }
        assert!(!storage.was_shown.load(Ordering::Relaxed));
        drop(maps);
        assert_empty(&hw);
    }
}

// Symptom: of neighbouring pages written by one call, one with too high a count counted for its
// neighbours, which were not written and no longer dirty. Method: eight dirty pages, of which the
// second or the first reports too much; a sync fails, and when storage has recovered the next one
// writes every page.
#[test]
fn a_write_that_says_too_much_loses_no_neighbour() {
    for from in [0, 1] {
        for (storage, backing) in both(PAGES) {
            let hw = manager(64);
            let file = hw.open_backing(backing, Access::ReadWrite).unwrap();
            let space = hw.space(&hw.root());
            let map = space.map_file(&file, 0..PAGES).unwrap();
            for page in 0..PAGES {
                map.write(page).unwrap().fill(7);
            }
            storage.say(Says::Twice { from });
            let error = file.sync().unwrap_err();
            let nr_failed = PAGES - from;
            let is_all =
                matches!(error, SyncError::WriteBack { failed, .. } if failed == nr_failed);
            assert!(is_all, "{error}");
            storage.say(Says::Truth);
            file.sync().unwrap();
            assert!(
                storage
                    .pages
                    .lock()
                    .unwrap()
                    .iter()
                    .all(|page| *page == [7; PAGE_SIZE])
            );
            drop((map, file));
            assert_empty(&hw);
        }
    }
}

/// Storage of three pages that reports a failure to one sync, as the kernel does, slowly.
#[derive(Debug, Default)]
struct TellsOne {
    /// A write of page 2 has begun, and waits while `holds_writes`.
    is_writing: AtomicBool,
    holds_writes: AtomicBool,
    has_failed: AtomicBool,
    /// Syncs in progress.
    asked: AtomicU64,
    may_tell: AtomicBool,
}

impl Backing for TellsOne {
    fn len(&self) -> u64 {
        3 * 4096
    }
    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }
    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.is_writing.store(page == FilePage(2), Ordering::SeqCst);
        while page == FilePage(2) && self.holds_writes.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        Ok(buf.len())
    }
    fn sync(&self) -> io::Result<()> {
        let is_told = self.has_failed.swap(false, Ordering::SeqCst);
        self.asked.fetch_add(1, Ordering::SeqCst);
        if !is_told {
            return Ok(());
        }
        while !self.may_tell.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        Err(io::Error::from_raw_os_error(5 /* EIO */))
    }
}

#[test]
fn no_sync_succeeds_while_another_is_being_told_of_a_failure() {
    // Goal: each open handle reports a failure once, and before it reports success. Method: storage
    // fails the first handle's sync, which is held up before it can return; the second handle's
    // sync runs meanwhile, and storage reports success; also a second thread's, of one handle.
    let hw = manager(64);
    let storage = Arc::new(TellsOne::default());
    let backing = Arc::clone(&storage) as Arc<dyn Backing>;
    let first = hw.open_backing(backing, Access::ReadWrite);
    let first = first.expect("one file more");
    let [other, third] = [(); 2].map(|()| first.clone());
    for (nth, second) in [&first, &other].repeat(10).into_iter().enumerate() {
        storage.has_failed.store(true, Ordering::SeqCst);
        storage.asked.store(0, Ordering::SeqCst);
        storage.may_tell.store(false, Ordering::SeqCst);
        let asked = |times| {
            while storage.asked.load(Ordering::SeqCst) < times {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let told = scope.spawn(|| first.sync());
            asked(1);
            let fooled = scope.spawn(|| second.sync());
            asked(2);
            thread::sleep(Duration::from_millis(2));
            storage.may_tell.store(true, Ordering::SeqCst);
            let [told, fooled] = [told, fooled].map(|it| it.join().expect("it does not panic"));
            assert!(matches!(told, Err(SyncError::Durability(_))), "{told:?}");
            let is_told = matches!(fooled, Err(SyncError::Earlier { failures: 1, .. }));
            assert!(is_told, "{fooled:?}");
        });
        let late = third.sync();
        assert!(
            matches!(late, Err(SyncError::Earlier { failures: 1, .. })),
            "{late:?}"
        );
        if nth % 2 == 0 {
            assert!(other.sync().is_err(), "it has not");
        }
        for handle in [&first, &other, &third] {
            handle.sync().expect("it has heard of it");
        }
    }
}

// Symptom: a sync that was writing a page back while another thread's sync, of the same handle, was
// told of a failure returned `Ok`, though the failure was about a page that this sync had found
// clean. The same of a checkpoint.
#[test]
fn a_sync_answers_for_failures_since_it_looked_for_pages() {
    type Sync = fn(&File) -> Result<(), SyncError>;
    let syncs: [Sync; 3] = [
        File::sync,
        |file| file.sync_range(0..3),
        |file| file.checkpoint(9, Pages(9)).map(drop),
    ];
    let hw = manager(64);
    for sync in syncs {
        let storage = Arc::new(TellsOne::default());
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = hw
            .open_backing(backing, Access::ReadWrite)
            .expect("one file more");
        let map = hw
            .space(&hw.root())
            .map_file(&file, 0..3)
            .expect("the whole file");
        for page in [0, 2] {
            map.write(page).expect("there is memory").set_lsn(page + 1);
        }
        storage.has_failed.store(true, Ordering::SeqCst);
        storage.holds_writes.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let told = scope.spawn(|| file.sync_range(0..1));
            while storage.asked.load(Ordering::SeqCst) < 1 {
                thread::yield_now();
            }
            let fooled = scope.spawn(|| sync(&file));
            while !storage.is_writing.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            storage.may_tell.store(true, Ordering::SeqCst);
            let told = told.join().expect("it does not panic");
            assert!(matches!(told, Err(SyncError::Durability(_))), "{told:?}");
            storage.holds_writes.store(false, Ordering::SeqCst);
            let fooled = fooled.join().expect("it does not panic");
            let is_told = matches!(fooled, Err(SyncError::Earlier { failures: 1, .. }));
            assert!(is_told, "{fooled:?}");
        });
        file.sync().expect("it has heard of it");
    }
}

/// Storage whose destructor panics in a thread of the manager.
#[derive(Debug)]
struct PanicsAtEnd(Arc<TestFile>, Arc<AtomicBool>);

impl Backing for PanicsAtEnd {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_page(page, buf)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.0.write_page(page, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

impl Drop for PanicsAtEnd {
    fn drop(&mut self) {
        if thread::current().name() == Some("highwater-writeback") {
            self.1.store(true, Ordering::Relaxed);
            panic!("as told");
        }
    }
}

// Symptom: a storage whose destructor panicked ended the write-back thread, and the pages of other
// files that were closed stayed dirty.
// Goal: they are written. Method: two files are closed while their storages refuse pages; then the
// first one recovers, whose destructor panics when the thread has written it, and then the other.
#[test]
fn a_storage_that_panics_when_it_is_dropped_loses_no_page_of_others() {
    let builder = Manager::builder().background(Background::Thread);
    let hw = builder.build().unwrap();
    let often = Tunables::default().with("dirty_writeback_centisecs", 1);
    hw.set_tunables(often.unwrap());
    let has_panicked = Arc::new(AtomicBool::new(false));
    let storages = [TestFile::new(1), TestFile::new(1)];
    let panics = PanicsAtEnd(Arc::clone(&storages[0]), Arc::clone(&has_panicked));
    let backings: [Arc<dyn Backing>; 2] = [Arc::new(panics), Arc::clone(&storages[1]) as _];
    for (storage, backing) in storages.iter().zip(backings) {
        storage.fails_writes.store(true, Ordering::Relaxed);
        let file = hw.open_backing(backing, Access::ReadWrite).unwrap();
        let map = hw.space(&hw.root()).map_file(&file, 0..1).unwrap();
        map.write(0).unwrap()[0] = SECRET;
    }
    let until = |is_so: &dyn Fn() -> bool, what: &str| {
        let end = Instant::now() + Duration::from_secs(30);
        while !is_so() {
            assert!(Instant::now() < end, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    };
    storages[0].fails_writes.store(false, Ordering::Relaxed);
    until(&|| has_panicked.load(Ordering::Relaxed), "it is not closed");
    storages[1].fails_writes.store(false, Ordering::Relaxed);
    until(
        &|| storages[1].pages.lock().unwrap()[0][0] == SECRET,
        "it is not written",
    );
    assert_eq!(storages[0].pages.lock().unwrap()[0][0], SECRET);
    assert_empty(&hw);
}
