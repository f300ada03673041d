//! An in-memory file that can misbehave, and helpers of the manager's tests.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{Access, Backing, Bytes, File, Manager, Mapping, Pages};

/// An in-memory file whose pages begin with their number, and which can misbehave.
#[derive(Debug)]
pub(crate) struct TestFile {
    pub(crate) pages: Mutex<Vec<[u8; PAGE_SIZE]>>,
    len: u64,
    pub(crate) fails_reads: AtomicBool,
    pub(crate) fails_writes: AtomicBool,
    pub(crate) falls_short: AtomicBool,
    pub(crate) fails_syncs: AtomicBool,
    pub(crate) reads: AtomicU64,
    pub(crate) read_pause_us: AtomicU64,
    pub(crate) write_pause_us: AtomicU64,
}

impl TestFile {
    pub(crate) fn new(pages: u64) -> Arc<Self> {
        let content = |page: u64| {
            let mut bytes = [0x5a; PAGE_SIZE];
            bytes[..8].copy_from_slice(&page.to_le_bytes());
            bytes
        };
        Arc::new(Self {
            pages: Mutex::new((0..pages).map(content).collect()),
            len: pages * PAGE_BYTES,
            fails_reads: AtomicBool::new(false),
            fails_writes: AtomicBool::new(false),
            falls_short: AtomicBool::new(false),
            fails_syncs: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            read_pause_us: AtomicU64::new(0),
            write_pause_us: AtomicU64::new(0),
        })
    }

    fn misbehaviour(&self, fails: &AtomicBool, len: usize) -> io::Result<usize> {
        if fails.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(5 /* EIO */));
        }
        Ok(if self.falls_short.load(Ordering::Relaxed) {
            len / 2
        } else {
            len
        })
    }
}

/// Fills neighbouring pages by `fill`, as [`Backing::read_pages`] does: up to the first error,
/// which is returned if it is about the first page.
pub(crate) fn fill_each(
    first: u64,
    bufs: &mut [&mut [u8]],
    fill: impl Fn(u64, &mut [u8]) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    for (page, buf) in (first..).zip(bufs) {
        match fill(page, buf) {
            Ok(got) => done += got,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn pause(us: &AtomicU64) {
    let us = us.load(Ordering::Relaxed);
    if us > 0 {
        std::thread::sleep(std::time::Duration::from_micros(us));
    }
}

impl Backing for TestFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        pause(&self.read_pause_us);
        let len = self.misbehaviour(&self.fails_reads, buf.len())?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let pages = self.pages.lock().expect("no panic under the lock");
        buf[..len].copy_from_slice(&pages[usize::try_from(page).expect("small")][..len]);
        Ok(len)
    }

    fn write_page(&self, FilePage(page): FilePage, buf: &[u8]) -> io::Result<usize> {
        pause(&self.write_pause_us);
        let len = self.misbehaviour(&self.fails_writes, buf.len())?;
        let mut pages = self.pages.lock().expect("no panic under the lock");
        pages[usize::try_from(page).expect("small")][..len].copy_from_slice(&buf[..len]);
        Ok(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.misbehaviour(&self.fails_syncs, 0).map(|_| ())
    }
}

pub(crate) fn manager(pages: u64) -> Manager {
    Manager::builder()
        .capacity(Pages(pages).bytes())
        .build()
        .expect("a small manager")
}

pub(crate) fn first_word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

/// Asserts that everything was released: nothing allocated, nothing charged.
pub(crate) fn assert_empty(hw: &Manager) {
    // Also waits for pages in flight.
    hw.check_invariants();
    hw.drop_caches();
    hw.check_invariants();
    let snapshot = hw.snapshot();
    assert_eq!(snapshot.frames.allocated, Pages::ZERO);
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
}

/// Opens storage and maps all of it for the root.
pub(crate) fn mapped(hw: &Manager, storage: &Arc<TestFile>, access: Access) -> (File, Mapping) {
    let backing = Arc::clone(storage) as Arc<dyn Backing>;
    let file = hw.open_backing(backing, access).expect("one file more");
    let map = hw
        .space(&hw.root())
        .map_file(&file, 0..file.pages())
        .expect("the whole file");
    (file, map)
}
