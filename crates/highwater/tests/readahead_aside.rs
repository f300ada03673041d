//! Promise: with background threads, the window behind a readahead mark is read while the reader
//! goes on; what cannot be read is an error only of the read that needs it; a file's end waits for
//! what is in flight, and nothing stays charged.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(clippy::print_stderr, reason = "a test that skips something says so")]

mod support;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{
    Access, Background, Backing, Bytes, File, Group, Limits, Manager, Mapping, ReadError,
};
use support::{TestFile, assert_empty, fill_each, first_word};

const PAGES: u64 = 20_000;

/// Longer than any wait of a test that passes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pages that begin with their number. A read by another thread than the reader's waits until it
/// may go on.
#[derive(Debug)]
struct Storage {
    reader: ThreadId,
    state: Mutex<StorageState>,
    changed: Condvar,
    fails_from: AtomicU64,
    /// Whether a read waited for longer than it should.
    was_stuck: AtomicBool,
}

#[derive(Debug, Default)]
struct StorageState {
    /// The pages that the reader has read, from the first on.
    read: u64,
    /// Whether reads by others wait for nothing; or for that, and not for the reader.
    is_open: bool,
    is_closed: bool,
    /// First pages of the reads by the reader's thread, and by others.
    by_reader: Vec<u64>,
    by_others: Vec<u64>,
}

impl Storage {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            reader: thread::current().id(),
            state: Mutex::default(),
            changed: Condvar::new(),
            fails_from: AtomicU64::new(u64::MAX),
            was_stuck: AtomicBool::new(false),
        })
    }

    fn change(&self, change: impl FnOnce(&mut StorageState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Waits until a thread other than the reader's reads.
    fn wait_for_others(&self) {
        let state = self.state.lock().unwrap();
        let is_none = |state: &mut StorageState| state.by_others.is_empty();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, is_none);
        assert!(!waited.unwrap().1.timed_out(), "no window is read aside");
    }

    /// Records a read. One by another thread waits until the reader has read all pages before
    /// `first`, or the storage is open.
    fn note(&self, first: u64) {
        let mut state = self.state.lock().unwrap();
        if thread::current().id() == self.reader {
            return state.by_reader.push(first);
        }
        state.by_others.push(first);
        self.changed.notify_all();
        let is_early =
            |state: &mut StorageState| !state.is_open && (state.is_closed || state.read < first);
        let waited = self.changed.wait_timeout_while(state, PATIENCE, is_early);
        if waited.unwrap().1.timed_out() {
            self.was_stuck.store(true, Ordering::Relaxed);
        }
    }

    fn fill(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        if page >= self.fails_from.load(Ordering::Relaxed) {
            return Err(io::Error::other("as told"));
        }
        buf.fill(0x5a);
        buf[..8].copy_from_slice(&page.to_le_bytes());
        Ok(buf.len())
    }
}

impl Backing for Storage {
    fn len(&self) -> u64 {
        PAGES * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.note(page);
        self.fill(page, buf)
    }

    fn read_pages(&self, FilePage(first): FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        self.note(first);
        fill_each(first, bufs, |page, buf| self.fill(page, buf))
    }

    fn write_page(&self, _: FilePage, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A manager in which the file fits, and the storage mapped for a group of its own.
struct Scene {
    map: Mapping,
    file: File,
    storage: Arc<Storage>,
    hw: Manager,
}

impl Scene {
    fn new(background: Background) -> Self {
        let capacity = Bytes::mib(128);
        let builder = Manager::builder().capacity(capacity).background(background);
        let hw = builder.build().unwrap();
        let storage = Storage::new();
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = hw.open_backing(backing, Access::ReadOnly).unwrap();
        let group = hw.root().child("reader", Limits::default()).unwrap();
        let map = hw.space(&group).map_file(&file, 0..PAGES).unwrap();
        Self {
            map,
            file,
            storage,
            hw,
        }
    }

    /// Returns the first word of a page, and tells the storage.
    fn read(&self, page: u64, way: Way) -> Result<u64, ReadError> {
        let word = match way {
            Way::Mapping => first_word(self.map.read(&self.hw.enter(), page)?),
            Way::Handle => {
                let mut buf = [0; 8];
                let root = self.hw.root();
                self.file.read_at(&root, page * PAGE_BYTES, &mut buf)?;
                u64::from_le_bytes(buf)
            }
        };
        self.storage.change(|state| state.read = page + 1);
        Ok(word)
    }

    /// Reads until another thread does, and is held.
    fn read_until_aside(&self, way: Way) {
        self.storage.change(|state| state.is_closed = true);
        // The mark is on the first page that no read has asked for.
        for page in 0..2 {
            assert_eq!(self.read(page, way).unwrap(), page);
        }
        self.storage.wait_for_others();
    }
}

/// How the test reads.
#[derive(Clone, Copy, Debug)]
enum Way {
    Mapping,
    Handle,
}

// Goal: the reader goes on while a window is read, and without threads reads each itself. Method:
// storage that delays each read by another thread until the reader has read all pages before.
#[test]
fn a_reader_goes_on_while_its_next_window_is_read() {
    for way in [Way::Mapping, Way::Handle] {
        let scene = Scene::new(Background::Thread);
        for page in 0..PAGES {
            assert_eq!(scene.read(page, way).unwrap(), page, "{way:?}");
        }
        {
            let state = scene.storage.state.lock().unwrap();
            let (aside, own) = (state.by_others.len(), state.by_reader.len());
            assert!(aside > 10 && own <= 2, "{way:?}: {state:?}");
            assert!(!scene.storage.was_stuck.load(Ordering::Relaxed), "{way:?}");
        }
        let Scene { map, file, hw, .. } = scene;
        drop((map, file));
        assert_empty(&hw);

        let scene = Scene::new(Background::Off);
        for page in 0..PAGES {
            assert_eq!(scene.read(page, way).unwrap(), page, "{way:?}");
        }
        let state = scene.storage.state.lock().unwrap();
        assert!(state.by_others.is_empty(), "{way:?}: {state:?}");
        assert!(state.by_reader.len() > 10, "{way:?}: {state:?}");
    }
}

// Goal: a window that fails is an error only of the reads of its pages, which can be read once
// storage can. Method: storage fails from a page within a window on.
#[test]
fn what_fails_aside_is_told_to_the_read_that_needs_it() {
    for way in [Way::Mapping, Way::Handle] {
        let scene = Scene::new(Background::Thread);
        scene.storage.change(|state| state.is_open = true);
        scene.storage.fails_from.store(100, Ordering::Relaxed);
        for page in 0..100 {
            assert_eq!(scene.read(page, way).unwrap(), page, "{way:?}");
        }
        for _ in 0..3 {
            let failed = scene.read(100, way);
            let is_its = matches!(failed, Err(ReadError::Io { page, .. }) if page == FilePage(100));
            assert!(is_its, "{way:?}: {failed:?}");
        }
        scene.hw.check_invariants();
        scene.storage.fails_from.store(u64::MAX, Ordering::Relaxed);
        for page in 100..PAGES {
            assert_eq!(scene.read(page, way).unwrap(), page, "{way:?}");
        }
        let Scene { map, file, hw, .. } = scene;
        drop((map, file));
        assert_empty(&hw);
    }
}

// Goal: a mapping, its group's last handle and the file may end while a window is in flight; the
// file's end waits for it. Method: storage that holds the read until the file is about to close.
#[test]
fn a_file_ends_after_what_is_in_flight() {
    for way in [Way::Mapping, Way::Handle] {
        let scene = Scene::new(Background::Thread);
        scene.read_until_aside(way);
        let Scene {
            map,
            file,
            storage,
            hw,
        } = scene;
        drop(map);
        let is_closed = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                drop(file);
                is_closed.store(true, Ordering::SeqCst);
            });
            thread::sleep(Duration::from_millis(50));
            assert!(!is_closed.load(Ordering::SeqCst), "closed under a read");
            storage.change(|state| state.is_open = true);
        });
        assert_empty(&hw);
        assert!(!storage.was_stuck.load(Ordering::Relaxed));
    }
}

// Goal: what is in flight counts as read ahead, so that its bound holds. Method: three
// pages in order at 400 places, the last of which opens a window, while storage holds as many
// windows as there are threads.
#[test]
fn windows_in_flight_use_up_the_credit() {
    for way in [Way::Mapping, Way::Handle] {
        let scene = Scene::new(Background::Thread);
        scene.read_until_aside(way);
        for first in (100..PAGES).step_by(50) {
            for page in first..first + 3 {
                assert_eq!(scene.read(page, way).unwrap(), page, "{way:?}");
            }
        }
        scene.storage.change(|state| state.is_open = true);
        scene.hw.check_invariants();
        assert!(!scene.storage.was_stuck.load(Ordering::Relaxed), "{way:?}");
        scene.hw.drop_caches();
        let (unread, read) = (scene.file.readahead_unread(), 3 * PAGES / 50);
        assert!(
            unread <= 256 + read / 32 + 32,
            "{way:?}: {unread} of {read}"
        );
        assert!(unread >= 256, "{way:?}: {unread}: the credit was spent");
    }
}

// Goal: windows that fail cost no credit. Method: 100 windows of 8 pages and more fail, at places
// of their own; then storage recovers, and a scan is read ahead as that of a new file.
#[test]
fn windows_that_fail_cost_no_credit() {
    let scene = Scene::new(Background::Thread);
    let way = Way::Mapping;
    scene.storage.change(|state| state.is_open = true);
    for first in (100..5_100).step_by(50) {
        for page in first..first + 2 {
            assert_eq!(scene.read(page, way).unwrap(), page);
        }
        // The next page has the mark.
        scene.storage.fails_from.store(0, Ordering::Relaxed);
        assert_eq!(scene.read(first + 2, way).unwrap(), first + 2);
        scene.hw.check_invariants();
        scene.storage.fails_from.store(u64::MAX, Ordering::Relaxed);
    }
    let before = scene.storage.state.lock().unwrap().by_others.len();
    assert!(before >= 100, "{before} windows have failed");
    for page in 6_000..PAGES {
        assert_eq!(scene.read(page, way).unwrap(), page);
    }
    let read = scene.storage.state.lock().unwrap().by_others.len() - before;
    let whole = (PAGES - 6_000) / 32;
    assert!(
        (read as u64) < whole + whole / 8,
        "{read} windows, {whole} whole ones"
    );
}

/// Pages of a layer.
const LAYER: u64 = 512;

/// Storage that reads each page from a mapping of the same manager.
#[derive(Debug)]
struct Layered(Mapping);

impl Backing for Layered {
    fn len(&self) -> u64 {
        LAYER * PAGE_BYTES
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        let pinned = self.0.pin(page).map_err(io::Error::other)?;
        buf.copy_from_slice(&pinned[..]);
        Ok(buf.len())
    }

    fn write_page(&self, _: FilePage, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("never written"))
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

// Goal: storage that reads from the cache in order, for more windows at once than there are threads
// to read them, waits for no window that waits for it. Method: 32 threads each scan such a file.
// The lower file takes its time, and its group is so small that its windows are short: each window
// above needs several. A watchdog.
#[test]
fn layers_of_storage_do_not_wait_for_each_other_for_ever() {
    let (sender, done) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let builder = Manager::builder().capacity(Bytes::mib(64));
        let hw = builder.background(Background::Thread).build().unwrap();
        let mapped = |group: &Group, backing| {
            let file = hw.open_backing(backing, Access::ReadOnly).unwrap();
            hw.space(group).map_file(&file, 0..LAYER).unwrap()
        };
        thread::scope(|scope| {
            for nth in 0..32 {
                let (hw, mapped) = (&hw, &mapped);
                scope.spawn(move || {
                    let limits = Limits::max(Bytes(64 * PAGE_BYTES));
                    let group = hw.root().child(&format!("lower-{nth}"), limits).unwrap();
                    let lower = TestFile::new(LAYER);
                    lower.read_pause_us.store(200, Ordering::Relaxed);
                    let map = mapped(&hw.root(), Arc::new(Layered(mapped(&group, lower))));
                    for page in 0..LAYER {
                        assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
                    }
                });
            }
        });
        sender.send(()).unwrap();
    });
    let waited = done.recv_timeout(Duration::from_secs(120));
    assert!(waited.is_ok(), "{waited:?}: windows wait for each other");
}

// Goal: pages of a group that is removed while they are in flight are charged to no other for
// good. Method: the group goes while storage holds a window; then the file closes.
#[test]
fn a_group_may_go_while_its_window_is_in_flight() {
    let scene = Scene::new(Background::Thread);
    scene.read_until_aside(Way::Mapping);
    let Scene {
        map,
        file,
        storage,
        hw,
    } = scene;
    let [group] = &hw.root().children()[..] else {
        panic!("one group");
    };
    drop(map);
    group.remove().unwrap();
    storage.change(|state| state.is_open = true);
    hw.check_invariants();
    assert!(hw.root().usage_precise() > Bytes::ZERO, "its pages stay");
    drop(file);
    assert_empty(&hw);
}

/// Returns a new file with `bytes`, opened past the kernel's cache; `None` where that cannot be.
fn direct(hw: &Manager, bytes: &[u8]) -> Option<(tempfile::NamedTempFile, File)> {
    let mut temporary = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    temporary.write_all(bytes).unwrap();
    temporary.as_file().sync_all().unwrap();
    let opened = hw.open_direct(temporary.path());
    let opened = opened.inspect_err(|error| eprintln!("skipped: no direct I/O here: {error}"));
    Some((temporary, opened.ok()?))
}

// Goal: a window that a blocking read opens within `block_on` is read although the thread does not
// come back to the ring. Method: the poll reads up to the mark, and then waits for the counter.
#[test]
fn a_driver_that_reads_in_order_is_read_ahead_at_once() {
    let builder = Manager::builder().capacity(Bytes::mib(16));
    let hw = builder.background(Background::Thread).build().unwrap();
    let Some((_temporary, file)) = direct(&hw, &[7; 64 * PAGE_SIZE]) else {
        return;
    };
    let map = hw.space(&hw.root()).map_file(&file, 0..64).unwrap();
    hw.block_on(async {
        for page in 0..2 {
            assert_eq!(map.read(&hw.enter(), page).unwrap()[0], 7);
        }
        let begun = Instant::now();
        while hw.snapshot().counter("nr_async_reads") > 0 {
            assert!(
                begun.elapsed() < PATIENCE,
                "the window waits for the driver"
            );
            thread::yield_now();
        }
    });
    assert_eq!(
        hw.snapshot().counter("async_reads"),
        1,
        "a window was opened"
    );
}

// Goal: reads give the file's bytes while windows are in flight, also where they take most of the
// memory. Method: four threads scan and jump through mappings and handles of a file of random
// bytes, four times as large as the pool, past the kernel's cache, by both engines.
#[test]
fn scans_of_many_threads_read_the_files_bytes() {
    let mut bytes = vec![0; 1024 * PAGE_SIZE];
    fastrand::Rng::with_seed(7).fill(&mut bytes);
    let builder = || {
        let builder = Manager::builder().capacity(Bytes::mib(1));
        builder.background(Background::Thread)
    };
    for (engine, builder) in [
        ("io_uring, if there is one", builder()),
        ("threads", builder().without_io_uring()),
    ] {
        let hw = builder.build().unwrap();
        let Some((_temporary, file)) = direct(&hw, &bytes) else {
            return;
        };
        let map = hw.space(&hw.root()).map_file(&file, 0..1024).unwrap();
        thread::scope(|scope| {
            for seed in 0..4 {
                let (hw, file, map, bytes) = (&hw, &file, &map, &bytes);
                scope.spawn(move || scan(hw, (file, map), bytes, seed));
            }
        });
        let shown = hw.snapshot().to_string();
        let line = shown.lines().find(|line| line.starts_with("io: ")).unwrap();
        assert_ne!(line, "io: not used yet", "{engine}");
        drop((map, file));
        assert_empty(&hw);
    }
}

/// Reads in order, with a jump now and then, and compares.
fn scan(hw: &Manager, (file, map): (&File, &Mapping), bytes: &[u8], seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut page, mut buf) = (0, vec![0; 3 * PAGE_SIZE]);
    for _ in 0..4_000 {
        if random.u8(..64) == 0 {
            page = random.usize(..1024);
        }
        let at = page * PAGE_SIZE;
        if seed.is_multiple_of(2) {
            let guard = hw.enter();
            let read = map.read(&guard, page as u64).unwrap();
            assert_eq!(read[..], bytes[at..at + PAGE_SIZE], "page {page}");
            page = (page + 1) % 1024;
        } else {
            let root = hw.root();
            let got = file.read_at(&root, at as u64, &mut buf).unwrap();
            assert_eq!(buf[..got], bytes[at..at + got], "page {page}");
            page = (page + 3) % 1024;
        }
    }
}
