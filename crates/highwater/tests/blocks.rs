//! Promise: a page above 4 KiB finds a block of frames wherever the pages that are in its way can
//! go: also in a pool that has become smaller, once pages in transit have come, and after as many
//! flushes of a log as it takes. Where storage fails, the error has the numbers.

mod support;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use highwater::frame::Tunables;
use highwater::units::FilePage;
use highwater::{Access, Backing, File, Manager, Mapping, Pages, ReadError, WriteGate};
use support::{TestFile, mapped};

/// Frames of a pool of 1 MiB.
const POOL: u64 = 256;

/// A file of zeros in pages of a size.
#[derive(Debug)]
struct Large(usize);

impl Backing for Large {
    fn len(&self) -> u64 {
        1 << 20
    }

    fn page_size(&self) -> usize {
        self.0
    }

    fn read_page(&self, _page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        buf.fill(0);
        Ok(buf.len())
    }

    fn write_page(&self, _page: FilePage, _buf: &[u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(30 /* EROFS */))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn large(hw: &Manager, size: usize) -> (File, Mapping) {
    let file = hw.open_backing(Arc::new(Large(size)), Access::ReadOnly);
    let file = file.expect("one file more");
    let map = hw.space(&hw.root()).map_file(&file, 0..file.pages());
    (file, map.expect("the whole file"))
}

/// A manager whose pages may nearly all be dirty, and are written back by requests alone.
fn quiet_manager() -> Manager {
    let tunables = Tunables::default()
        .with("dirty_ratio", 95)
        .and_then(|it| it.with("dirty_background_ratio", 95))
        .and_then(|it| it.with("dirty_writeback_centisecs", 0));
    Manager::builder()
        .capacity(Pages(POOL).bytes())
        .readahead(Pages(0))
        .tunables(tunables.expect("in range"))
        .build()
        .expect("a small manager")
}

/// Fills the pool with pages of a file, all but some frames that are free and lie apart. `take`
/// takes a page and leaves it as it is wanted.
fn fill_but_scattered(hw: &Manager, mut take: impl FnMut(u64)) {
    let (gap_file, gaps) = mapped(hw, &TestFile::new(64), Access::ReadOnly);
    for page in 0..POOL - 2 {
        match page % 12 {
            7 => _ = gaps.read(&hw.enter(), page / 12).expect("there is room"),
            _ => take(page),
        }
    }
    drop((gaps, gap_file));
    hw.trim();
}

// Symptom: frames that had left the pool one by one left no block of 16, so that files with larger
// pages could not be read until the capacity grew again.
#[test]
fn a_pool_that_has_become_smaller_has_blocks() {
    let mut rng = Rng::with_seed(1);
    let hw = quiet_manager();
    let (_small_file, small) = mapped(&hw, &TestFile::new(512), Access::ReadOnly);
    for _ in 0..5000 {
        let page = rng.u64(..512);
        small.read(&hw.enter(), page).expect("it can be read");
    }
    hw.set_capacity(Pages(POOL / 2).bytes()).expect("in range");
    let (_large_file, map) = large(&hw, 65_536);
    for page in [0, 1, 2, 3, 0, 4, 5] {
        let read = map.pin(page);
        drop(read.unwrap_or_else(|error| panic!("page {page}: {error}")));
        assert!(hw.root().usage_precise() <= Pages(POOL / 2).bytes());
        hw.check_invariants();
    }
    let in_pool = || hw.snapshot().frames.managed;
    assert_eq!(in_pool(), Pages(POOL / 2));
    hw.set_capacity(Pages(POOL).bytes()).expect("in range");
    assert_eq!(in_pool(), Pages(POOL));
    hw.check_invariants();
}

/// Storage whose reads wait until they are let go.
#[derive(Debug)]
struct Gate {
    file: Arc<TestFile>,
    is_open: Mutex<bool>,
    opens: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().expect("no panic under the lock") = true;
        self.opens.notify_all();
    }
}

impl Backing for Gate {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let is_open = self.is_open.lock().expect("no panic under the lock");
        let is_open = self.opens.wait_while(is_open, |is_open| !*is_open);
        drop(is_open.expect("no panic under the lock"));
        self.file.read_page(page, buf)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.file.write_page(page, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

// Symptom: pages in transit in every block made a request evict the others, and fail while storage
// was about to answer.
#[test]
fn a_request_for_a_block_waits_for_pages_in_transit() {
    let hw = quiet_manager();
    let (_other_file, other) = mapped(&hw, &TestFile::new(512), Access::ReadOnly);
    let storage = Arc::new(Gate {
        file: TestFile::new(64),
        is_open: Mutex::new(false),
        opens: Condvar::new(),
    });
    let backing = Arc::clone(&storage) as Arc<dyn Backing>;
    let slow_file = hw.open_backing(backing, Access::ReadOnly).expect("one");
    let slow = hw
        .space(&hw.root())
        .map_file(&slow_file, 0..64)
        .expect("64");
    for page in 0..POOL - 2 {
        match page % 8 {
            3 => slow.prefetch([page / 8]).expect("in range"),
            _ => _ = other.read(&hw.enter(), page).expect("there is room"),
        }
    }
    let resident = || {
        let guard = hw.enter();
        (0..POOL)
            .filter(|page| other.try_read(&guard, *page).is_some())
            .count()
    };
    let (_large_file, map) = large(&hw, 65_536);
    thread::scope(|scope| {
        let reader = scope.spawn(|| map.pin(0).map(drop));
        thread::sleep(Duration::from_millis(300));
        let (is_refused, left) = (reader.is_finished(), resident());
        storage.open();
        assert!(!is_refused, "storage has not answered yet");
        assert!(left > 100, "{left} pages are left");
        let read = reader.join().expect("no panic");
        read.expect("storage has answered");
    });
    hw.check_invariants();
}

/// A log that becomes durable exactly as far as it is asked.
#[derive(Debug, Default)]
struct Log {
    durable: AtomicU64,
    flushes: AtomicU64,
}

impl WriteGate for Log {
    fn durable_lsn(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    fn flush(&self, lsn: u64) -> io::Result<()> {
        self.durable.fetch_max(lsn, Ordering::AcqRel);
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

// Symptom: a request asked the log once, for the first page of each block, and failed because of
// the pages behind it.
#[test]
fn a_log_is_asked_as_often_as_a_block_needs_it() {
    let hw = quiet_manager();
    let (file, map) = mapped(&hw, &TestFile::new(512), Access::ReadWrite);
    let log = Arc::new(Log::default());
    file.set_write_gate(Arc::clone(&log) as Arc<dyn WriteGate>);
    fill_but_scattered(&hw, |page| {
        let mut write = map.write(page).expect("there is room");
        let place = (write.as_ptr().addr() / 4096 % 4) as u64;
        write[8] = 1;
        write.set_lsn(1 + place * 1000 + page);
    });
    let (_large_file, large) = large(&hw, 16_384);
    for page in 0..8 {
        let read = large.pin(page);
        drop(read.unwrap_or_else(|error| panic!("page {page}: {error}")));
    }
    assert!(
        log.flushes.load(Ordering::Relaxed) > 0,
        "pages waited for it"
    );
    hw.check_invariants();
}

// Symptom: the error of a request for a block said that no page could not be written back, and each
// of 17 searches tried every page.
#[test]
fn a_block_that_storage_refuses_is_an_error_with_numbers() {
    let hw = quiet_manager();
    let storage = TestFile::new(512);
    let (_file, map) = mapped(&hw, &storage, Access::ReadWrite);
    fill_but_scattered(&hw, |page| {
        map.write(page).expect("there is room")[8] = 1;
    });
    storage.fails_writes.store(true, Ordering::Relaxed);
    let (_large_file, large) = large(&hw, 16_384);
    match large.pin(0) {
        Err(error @ ReadError::NoMemory { .. }) => {
            let text = error.to_string();
            assert!(text.contains("no block of 4 pages"), "{text}");
            assert!(!text.contains(" 0 could not be written back"), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let failed = hw.snapshot().counter("nr_vmscan_write_failed");
    assert!((1..=17 * 32).contains(&failed), "{failed} writes failed");
    storage.fails_writes.store(false, Ordering::Relaxed);
    large.pin(0).map(drop).expect("storage takes pages again");
    hw.check_invariants();
}

// Symptom: pages that one file's storage refused kept all other dirty pages in their frames too,
// and the request failed.
#[test]
fn storage_that_refuses_pages_does_not_hold_up_blocks_of_others() {
    let hw = quiet_manager();
    let [full, well] = [(); 2].map(|()| TestFile::new(512));
    let (_full_file, refused) = mapped(&hw, &full, Access::ReadWrite);
    let (_well_file, written) = mapped(&hw, &well, Access::ReadWrite);
    let (gap_file, gaps) = mapped(&hw, &TestFile::new(64), Access::ReadOnly);
    for page in 0..POOL - 2 {
        match page {
            // Blocks without a free frame.
            192..252 => written.write(page).expect("there is room")[8] = 1,
            _ if page % 12 == 7 && page < 192 => {
                _ = gaps.read(&hw.enter(), page / 12).expect("there is room")
            }
            _ => refused.write(page).expect("there is room")[8] = 1,
        }
    }
    drop((gaps, gap_file));
    hw.trim();
    full.fails_writes.store(true, Ordering::Relaxed);
    let (_large_file, large) = large(&hw, 16_384);
    large.pin(0).map(drop).expect("a block of the other file");
    let failed = hw.snapshot().counter("nr_vmscan_write_failed");
    assert!((32..=64).contains(&failed), "{failed} writes failed");
    full.fails_writes.store(false, Ordering::Relaxed);
    hw.check_invariants();
}
