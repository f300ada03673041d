//! Concurrent threads, storage that panics, and handles that are dropped in unusual places: nothing
//! hangs, nothing is lost, and the invariants hold afterwards.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use highwater::frame::Tunables;
use highwater::units::{FilePage, PAGE_BYTES};
use highwater::{
    Access, Background, Backing, Bytes, Charge, File, Limits, Manager, Pages, ReadPattern,
};

/// Pages of zeros that count their writes, and can panic on demand.
#[derive(Debug, Default)]
struct TestFile {
    pages: u64,
    panics: AtomicBool,
    written: AtomicU64,
}

impl TestFile {
    fn new(pages: u64) -> Arc<Self> {
        Arc::new(Self {
            pages,
            ..Self::default()
        })
    }

    fn panic_if_told(&self) {
        assert!(!self.panics.load(Ordering::Relaxed), "as told");
    }
}

impl Backing for TestFile {
    fn len(&self) -> u64 {
        self.pages * PAGE_BYTES
    }

    fn read_page(&self, _: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.panic_if_told();
        buf.fill(0);
        Ok(buf.len())
    }

    fn write_page(&self, _: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.panic_if_told();
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn manager(pages: u64) -> Manager {
    let builder = Manager::builder().capacity(Pages(pages).bytes());
    builder.build().unwrap()
}

/// Asserts that everything was released: nothing allocated, nothing charged.
fn assert_empty(hw: &Manager) {
    hw.drop_caches();
    hw.check_invariants();
    assert_eq!(hw.snapshot().frames.allocated, Pages::ZERO);
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}

#[test]
fn groups_come_and_go_on_many_threads() {
    // Goal: a group's number may be reused before its remover has finished. Method: threads create
    // a group, read in it and remove it, so that numbers are reused all the time.
    let hw = manager(256);
    let file = hw
        .open_backing(TestFile::new(64), Access::ReadOnly)
        .unwrap();
    thread::scope(|scope| {
        for thread in 0..3 {
            let (hw, file) = (&hw, &file);
            scope.spawn(move || {
                for round in 0..10_000 {
                    let group = hw.root().child(&format!("g{thread}"), Limits::default());
                    let group = group.unwrap();
                    if round % 4 == 0 {
                        let map = hw.space(&group).map_file(file, 0..64).unwrap();
                        map.read(&hw.enter(), (round / 4) % 64).unwrap();
                        assert_eq!(group.list_sizes().total().bytes(), group.usage_precise());
                    }
                    group.remove().unwrap();
                }
            });
        }
    });
    hw.check_invariants();
    assert_empty(&hw);
}

#[test]
fn the_holder_of_a_page_gets_those_that_are_read_ahead_with_it() {
    // Goal: a thread that brings a page in waits for its latch without holding anything that the
    // latch's holder can wait for. Method: one thread reads the first page of a window; another
    // latches that page for writing as soon as it is there, and then reads the others of the
    // window. 300 rounds, each within a minute.
    let hw = manager(1024);
    let file = hw.open_backing(TestFile::new(16), Access::ReadWrite);
    let file = file.unwrap();
    file.set_read_pattern(ReadPattern::Sequential);
    let (done, rounds) = mpsc::channel();
    thread::spawn(move || {
        for _ in 0..300 {
            let map = hw.space(&hw.root()).map_file(&file, 0..16).unwrap();
            let reads = || drop(map.read_latched(0).unwrap());
            let holds = || {
                let held = (0..u32::MAX).find_map(|_| map.try_write(0)).unwrap();
                for page in 1..16 {
                    map.read_latched(page).unwrap();
                }
                drop(held);
            };
            thread::scope(|scope| {
                scope.spawn(reads);
                holds();
            });
            file.sync().unwrap();
            hw.drop_caches();
            done.send(hw.snapshot().counter("pgreadahead")).unwrap();
        }
    });
    let minute = Duration::from_secs(60);
    let mut read_ahead = 0;
    for _ in 0..300 {
        read_ahead = rounds.recv_timeout(minute).expect("a round that ends");
    }
    assert!(read_ahead > 300, "nothing was read ahead");
}

#[test]
fn storage_that_panics_while_reading_leaves_the_page_absent() {
    // Goal: the fault's promise for panics. Method: a read that panics, then one that does not.
    let hw = manager(64);
    let storage = TestFile::new(8);
    let file = hw
        .open_backing(Arc::clone(&storage) as Arc<dyn Backing>, Access::ReadOnly)
        .unwrap();
    let map = hw.space(&hw.root()).map_file(&file, 0..8).unwrap();
    storage.panics.store(true, Ordering::Relaxed);
    let read = || map.read(&hw.enter(), 3).map(|bytes| bytes[0]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err());
    assert_eq!(hw.snapshot().frames.allocated, Pages::ZERO);
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
    storage.panics.store(false, Ordering::Relaxed);
    assert_eq!(read().unwrap(), 0);
    assert_empty(&hw);
}

#[test]
fn storage_that_panics_while_writing_loses_nothing_and_stops_nobody() {
    // Goal: a panic of one file's storage is that file's failure: the page stays dirty and listed,
    // and reclaim for other requests works. Method: dirty pages, storage that panics, and a reader
    // that needs more memory than is free; with and without the background thread.
    for background in [Background::Off, Background::Thread] {
        let builder = Manager::builder().capacity(Pages(64).bytes());
        let hw = builder.background(background).build().unwrap();
        let storage = TestFile::new(16);
        let dirty = hw
            .open_backing(Arc::clone(&storage) as Arc<dyn Backing>, Access::ReadWrite)
            .unwrap();
        let clean = hw
            .open_backing(TestFile::new(256), Access::ReadOnly)
            .unwrap();
        let space = hw.space(&hw.root());
        let dirty_map = space.map_file(&dirty, 0..16).unwrap();
        let clean_map = space.map_file(&clean, 0..256).unwrap();
        // All of them may be dirty; only direct reclaim writes them.
        let tunables = Tunables::default().with("dirty_ratio", 100).unwrap();
        hw.set_tunables(tunables.with("dirty_background_ratio", 100).unwrap());
        for page in 0..16 {
            dirty_map.write(page).unwrap()[8] = 1;
        }
        storage.panics.store(true, Ordering::Relaxed);
        for page in 0..256 {
            clean_map.read(&hw.enter(), page).unwrap();
        }
        assert!(dirty.sync().is_err());
        hw.drop_caches();
        hw.check_invariants();
        assert_eq!(hw.snapshot().counter("nr_dirty"), 16);
        storage.panics.store(false, Ordering::Relaxed);
        dirty.sync().unwrap();
        assert_eq!(storage.written.load(Ordering::Relaxed), 16);
        assert_empty(&hw);
    }
}

#[test]
fn a_handler_is_dropped_without_a_lock() {
    // Goal: a handler may own anything, also the last handle of a file. Method: replace it.
    let hw = manager(64);
    let file = hw.open_backing(TestFile::new(8), Access::ReadWrite);
    let file = file.unwrap();
    hw.space(&hw.root())
        .map_file(&file, 0..8)
        .unwrap()
        .write(1)
        .unwrap()[0] = 1;
    hw.root().on_exhausted(move |_| assert!(file.pages() > 0));
    hw.root().on_exhausted(|_| ());
    assert_empty(&hw);
}

#[test]
fn handles_may_end_with_their_thread() {
    // Goal: a file in a thread-local is closed when the thread ends. Method: a thread-local that is
    // created before the thread's first lock, and therefore dropped after the locks' thread-local.
    thread_local! {
        static KEPT: RefCell<Option<(File, Charge, Manager)>> = const { RefCell::new(None) };
    }
    let hw = manager(64);
    thread::spawn({
        let hw = hw.clone();
        move || {
            KEPT.with_borrow_mut(|kept| {
                let file = hw.open_backing(TestFile::new(8), Access::ReadOnly).unwrap();
                let map = hw.space(&hw.root()).map_file(&file, 0..8).unwrap();
                map.read(&hw.enter(), 1).unwrap();
                drop(map);
                let charge = hw.root().charge(Pages(1).bytes()).unwrap();
                *kept = Some((file, charge, hw));
            });
        }
    })
    .join()
    .unwrap();
    assert_empty(&hw);
}

// Symptom: reclaiming all that is evictable went on for as long as others read pages in. Method:
// two threads read more than fits, until it returns.
#[test]
fn reclaiming_everything_ends_beside_readers() {
    let hw = Manager::builder().capacity(Bytes::mib(1)).build().unwrap();
    let tenant = hw.root().child("tenant", Limits::max(Pages(64).bytes()));
    let tenant = tenant.unwrap();
    let file = hw
        .open_backing(TestFile::new(512), Access::ReadOnly)
        .unwrap();
    let (is_over, began) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let map = hw.space(&tenant).map_file(&file, 0..512).unwrap();
                for page in (0..512).cycle() {
                    map.read(&hw.enter(), page).unwrap();
                    let is_late = began.elapsed() > Duration::from_secs(60);
                    if is_over.load(Ordering::Relaxed) || is_late {
                        assert!(!is_late, "it goes on");
                        break;
                    }
                }
            });
        }
        while tenant.usage_precise() == Bytes::ZERO {
            thread::yield_now();
        }
        for _ in 0..500 {
            // Of what it used at first, and the rest of a cluster.
            let evicted = tenant.reclaim(Bytes::MAX);
            assert!(evicted <= Pages(64 + 32), "{evicted}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
