//! Promise: the counters of a snapshot balance with each other and with the calls to storage:
//! faults with reads, pages that came with pages that went, swap with its area; for pages of 4 KiB
//! and above, and beside other threads.

#![expect(clippy::unwrap_used, reason = "a failure shows where it was")]

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use fastrand::Rng;
use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{
    Access, Background, Backing, Bytes, File, Manager, Mapping, Pages, ReadError, ReadPattern,
};
use support::{TestFile, assert_empty, fill_each, first_word};

/// Pages that begin with their number; some fail. Counts pages, and keeps the calls.
#[derive(Debug)]
struct Counted {
    pages: u64,
    page_size: usize,
    fails_every: u64,
    read: AtomicU64,
    failed: AtomicU64,
    calls: Mutex<Vec<(u64, u64)>>,
}

impl Counted {
    fn new(pages: u64, page_size: usize, fails_every: u64) -> Arc<Self> {
        Arc::new(Self {
            pages,
            page_size,
            fails_every,
            read: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            calls: Mutex::default(),
        })
    }

    fn open(self: &Arc<Self>, hw: &Manager) -> File {
        let backing = Arc::clone(self) as Arc<dyn Backing>;
        hw.open_backing(backing, Access::ReadOnly).unwrap()
    }

    fn map(self: &Arc<Self>, hw: &Manager) -> Mapping {
        let file = self.open(hw);
        hw.space(&hw.root()).map_file(&file, 0..self.pages).unwrap()
    }

    /// Returns the calls since the last time: first page, and number of pages.
    fn calls(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn fill(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        if page.checked_rem(self.fails_every) == Some(1) {
            self.failed.fetch_add(1, Relaxed);
            return Err(io::Error::other("as told"));
        }
        self.read.fetch_add(1, Relaxed);
        buf[..8].copy_from_slice(&page.to_le_bytes());
        Ok(buf.len())
    }
}

impl Backing for Counted {
    fn len(&self) -> u64 {
        self.pages * self.page_size as u64
    }

    fn page_size(&self) -> usize {
        self.page_size
    }

    fn read_page(&self, FilePage(page): FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.calls.lock().unwrap().push((page, 1));
        self.fill(page, buf)
    }

    fn read_pages(&self, FilePage(first): FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        self.calls.lock().unwrap().push((first, bufs.len() as u64));
        fill_each(first, bufs, |page, buf| self.fill(page, buf))
    }

    fn write_page(&self, _: FilePage, buf: &[u8]) -> io::Result<usize> {
        Ok(buf.len())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// No page fails.
const NEVER: u64 = 0;

fn build(frames: u64, readahead: u64) -> Manager {
    let builder = Manager::builder().capacity(Pages(frames).bytes());
    builder.readahead(Pages(readahead)).build().unwrap()
}

/// Returns counters of the manager, at rest.
fn read<const N: usize>(hw: &Manager, names: [&str; N]) -> [u64; N] {
    let snapshot = hw.snapshot();
    names.map(|name| snapshot.counter(name))
}

/// Asserts that every page that came is on a list or was freed, each by one reclaimer.
fn assert_balance(hw: &Manager, filled: u64, frames_a_page: u64, what: &str) {
    let [inactive, active, stolen, direct, kswapd, scanned] = read(
        hw,
        [
            "nr_inactive_file",
            "nr_active_file",
            "pgsteal_file",
            "pgsteal_direct",
            "pgsteal_kswapd",
            "pgscan_file",
        ],
    );
    let resident = hw.snapshot().frames.allocated.0;
    assert_eq!(inactive + active, resident, "{what}");
    assert_eq!(hw.root().usage_precise(), Pages(resident).bytes(), "{what}");
    assert_eq!((filled - stolen) * frames_a_page, resident, "{what}");
    assert_eq!(direct + kswapd, stolen, "{what}");
    assert!(scanned >= stolen, "{what}: {scanned} and {stolen}");
}

#[test]
fn faults_are_the_reads_that_found_no_page() {
    // Goal: `pgfault` counts each access that misses, `pgmajfault` each that read its page whole;
    // pages that came are those that are there and those that were freed; a page above 4 KiB counts
    // once. Method: random reads and pins of a file of twice the pool, a part of which fails; after
    // each step the counters are compared with residency before it, and with storage.
    let mut rng = seed::rng(0xfa);
    for page_size in [4096, 65_536] {
        let frames = (page_size / PAGE_SIZE) as u64;
        let hw = build(40 * frames, 0);
        let storage = Counted::new(80, page_size, 13);
        let map = storage.map(&hw);
        let (mut faults, mut asked) = (0, 0);
        for step in 0..1500 {
            let page = rng.u64(..80);
            let guard = hw.enter();
            let was_there = map.try_read(&guard, page).is_some();
            drop(guard);
            faults += u64::from(!was_there);
            let seen = match rng.u8(..8) {
                0 if !was_there => {
                    (faults, asked) = (faults - 1, asked + u64::from(page % 13 != 1));
                    map.will_need(page..page + 1).unwrap();
                    Ok(page)
                }
                1..4 => map.pin(page).map(|pin| first_word(&pin)),
                _ => map.read(&hw.enter(), page).map(first_word),
            };
            match seen {
                Ok(number) => assert_eq!(number, page),
                Err(error) => assert!(page % 13 == 1 && matches!(error, ReadError::Io { .. })),
            }
            let counted = read(&hw, ["pgfault", "pgmajfault", "pgreadahead"]);
            let filled = storage.read.load(Relaxed);
            assert_eq!(counted, [faults, filled - asked, asked], "step {step}");
            assert_balance(&hw, filled, frames, "one thread");
            if rng.u8(..) == 0 {
                hw.check_invariants();
                hw.drop_caches();
            }
        }
        let stolen = read(&hw, ["pgsteal_file"])[0];
        assert!(
            stolen > 300 && storage.failed.load(Relaxed) > 20,
            "{stolen}"
        );
        hw.drop_caches();
        assert_balance(&hw, storage.read.load(Relaxed), frames, "all went");
        assert_eq!(hw.snapshot().frames.allocated, Pages::ZERO);
    }
}

#[test]
fn pages_that_came_are_those_read_and_those_read_ahead() {
    // Goal: the same beside other threads, with windows of readahead that fail in the middle, read
    // by background threads or not. Method: four threads that read in order and at random; at rest
    // the pages that storage has read are compared with the counters.
    let seed = seed::seed(0xfb);
    for background in [Background::Off, Background::Thread] {
        let hw = Manager::builder().capacity(Pages(2048).bytes());
        let hw = hw.background(background).build().unwrap();
        let storage = Counted::new(4000, PAGE_SIZE, 97);
        let map = storage.map(&hw);
        thread::scope(|scope| {
            for nth in 0..4 {
                let (hw, map, mut rng) = (&hw, &map, Rng::with_seed(seed ^ nth));
                scope.spawn(move || {
                    let mut page = 0;
                    for _ in 0..3000 {
                        match map.read(&hw.enter(), page).map(first_word) {
                            Ok(number) => assert_eq!(number, page),
                            Err(_) => assert_eq!(page % 97, 1),
                        }
                        page = match rng.u8(..60) {
                            0 => rng.u64(..4000),
                            _ => (page + 1) % 4000,
                        };
                    }
                });
            }
        });
        // Waits for windows in flight and for the background threads.
        hw.check_invariants();
        hw.drop_caches();
        hw.check_invariants();
        let filled = storage.read.load(Relaxed);
        let [major, ahead, faults] = read(&hw, ["pgmajfault", "pgreadahead", "pgfault"]);
        assert_eq!(major + ahead, filled, "{background:?}");
        assert!(faults >= major && ahead > major, "{faults} {major} {ahead}");
        assert_balance(&hw, filled, 1, "four threads");
        assert_eq!(hw.snapshot().frames.allocated, Pages::ZERO);
        drop(map);
        assert_empty(&hw);
    }
}

/// Swap of a length in bytes, of which only whole pages may be used.
#[derive(Debug)]
struct Area(Arc<TestFile>, u64);

impl Backing for Area {
    fn len(&self) -> u64 {
        self.1
    }

    fn read_page(&self, page: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        assert!((page.0 + 1) * PAGE_BYTES <= self.1, "no whole page");
        self.0.read_page(page, buf)
    }

    fn write_page(&self, page: FilePage, buf: &[u8]) -> io::Result<usize> {
        assert!((page.0 + 1) * PAGE_BYTES <= self.1, "no whole page");
        assert_eq!(buf.len(), PAGE_SIZE);
        self.0.write_page(page, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// Reads or writes a page of memory that has a version; returns whether there was memory for it.
fn touch(map: &Mapping, page: u64, version: &mut u64, rng: &mut Rng) -> bool {
    let accessed = match rng.bool() {
        true => map.write(page).map(|mut write| {
            assert_eq!(first_word(&write), *version, "page {page}");
            *version += 1;
            write[..8].copy_from_slice(&version.to_le_bytes());
        }),
        false => map.read_latched(page).map(|read| {
            assert_eq!(first_word(&read), *version, "page {page}");
        }),
    };
    let is_memory = |error: &ReadError| matches!(error, ReadError::NoMemory { .. });
    assert!(
        accessed.as_ref().err().is_none_or(is_memory),
        "{accessed:?}"
    );
    accessed.is_ok()
}

#[test]
fn swap_has_whole_slots_and_its_counters_balance() {
    // Goal: slots are the whole pages of the area; one that is full counts each page that found no
    // slot, and no area counts none; pages read from swap are the faults that read, and some are
    // refaults; pages that came are those that are there and those that were freed. Method: random
    // reads and writes of three times the pool, in areas of few bytes, of fewer pages, and of more.
    let seed = seed::seed(0x5a);
    for len in [
        None,
        Some(0),
        Some(4095),
        Some(4096),
        Some(50 * 4096 - 1),
        Some(250 * 4096),
    ] {
        let builder = Manager::builder().capacity(Pages(64).bytes());
        let builder = match len {
            Some(len) => builder.swap_on(Arc::new(Area(TestFile::new(250), len))),
            None => builder,
        };
        let hw = builder.build().unwrap();
        let slots = len.unwrap_or(0) / PAGE_BYTES;
        let map = hw.space(&hw.root()).map_anon(Pages(192)).unwrap();
        let (mut rng, mut versions) = (Rng::with_seed(seed), vec![0; 192]);
        let (mut came, mut refused) = (0, 0);
        for _ in 0..1000 {
            if refused == 4 {
                // Each takes a while: a request does not give up at once.
                break;
            }
            let at = rng.usize(..192);
            let page = at as u64;
            let was_there = map.try_read_latched(page).is_some();
            let is_held = touch(&map, page, &mut versions[at], &mut rng);
            came += u64::from(is_held && !was_there);
            refused += u64::from(!is_held);
            assert!(is_held || slots < 192, "{slots} slots are enough");
            let [used, total] = read(&hw, ["nr_swap_used", "nr_swap_total"]);
            assert!(used <= total && total == slots, "{used} of {total}");
        }
        hw.check_invariants();
        let [input, output, fails, zeros] =
            read(&hw, ["pswpin", "pswpout", "swap_fail", "swpout_zero"]);
        let [major, stolen] = read(&hw, ["pgmajfault", "pgsteal_anon"]);
        let refaults = ["refault", "activate", "restore"];
        let names = refaults.map(|of| format!("workingset_{of}_anon"));
        let refaults = read(&hw, names.each_ref().map(String::as_str));
        assert_eq!(major, input, "{len:?}");
        assert_eq!(came - stolen, hw.snapshot().frames.allocated.0, "{len:?}");
        assert_eq!(
            fails > 0,
            len.is_some() && slots < 192,
            "{fails} of {len:?}"
        );
        assert_eq!(output > 0, slots > 0, "{len:?}");
        assert!(input > 0 || slots < 2, "{len:?}");
        assert!(refaults.is_sorted_by(|a, b| a >= b), "{refaults:?}");
        assert!(
            refaults[0] <= came && stolen >= output,
            "{refaults:?} {zeros}"
        );
        assert!(refaults[0] > 0 || slots < 2, "{refaults:?} of {len:?}");
        drop(map);
        assert_eq!(read(&hw, ["nr_swap_used"]), [0]);
        assert_empty(&hw);
    }
}

/// Reads pages `first` to `first + 24` in order; returns the calls to storage.
fn calls_in_order(hw: &Manager, storage: &Counted, map: &Mapping, first: u64) -> Vec<(u64, u64)> {
    hw.drop_caches();
    storage.calls();
    for page in first..first + 24 {
        assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
    }
    storage.calls()
}

#[test]
fn a_read_pattern_is_of_a_mapping_and_of_those_made_afterwards() {
    // Goal: nothing is read ahead in random order; in order each miss begins a window, also after a
    // jump, and windows are twice as long in the end; a mapping keeps its pattern when the file's
    // changes, and can be set back. Method: the calls to storage of 24 pages in order, and of 400.
    let hw = build(4096, 32);
    let storage = Counted::new(2000, PAGE_SIZE, NEVER);
    let file = storage.open(&hw);
    let map = || hw.space(&hw.root()).map_file(&file, 0..2000).unwrap();
    let alone: Vec<(u64, u64)> = (1000..1024).map(|page| (page, 1)).collect();
    let normal = map();
    file.set_read_pattern(ReadPattern::Random);
    let random = map();
    file.set_read_pattern(ReadPattern::Sequential);
    let sequential = map();
    file.set_read_pattern(ReadPattern::Normal);

    let calls = |map: &Mapping| calls_in_order(&hw, &storage, map, 1000);
    let begins_alone = calls(&normal);
    assert_eq!(begins_alone[..2], [(1000, 1), (1001, 4)], "a jump");
    assert!(begins_alone.len() < 6, "{begins_alone:?}");
    assert_eq!(calls(&random), alone);
    let in_order = calls(&sequential);
    assert_eq!(in_order[..3], [(1000, 4), (1004, 8), (1012, 16)]);
    random.set_read_pattern(ReadPattern::Sequential);
    sequential.set_read_pattern(ReadPattern::Random);
    assert_eq!(calls(&sequential), alone);
    assert_eq!(calls(&random), in_order);
    random.set_read_pattern(ReadPattern::Random);
    assert_eq!(calls(&random), alone);

    // The file's own pattern is that of its copying reads.
    file.set_read_pattern(ReadPattern::Random);
    hw.drop_caches();
    storage.calls();
    for page in 1000..1024 {
        let at = page * PAGE_BYTES;
        file.read_at(&hw.root(), at, &mut [0; 8]).unwrap();
    }
    assert_eq!(storage.calls(), alone);
    assert_eq!(hw.root().usage_precise(), Bytes(24 * PAGE_BYTES));
    assert!(calls(&map()) == alone, "a mapping made now");
    sequential.set_read_pattern(ReadPattern::Sequential);
    for (map, longest) in [(&normal, 32), (&sequential, 64), (&random, 1)] {
        hw.drop_caches();
        storage.calls();
        (0..400).for_each(|page| _ = map.read(&hw.enter(), page).unwrap());
        let calls = storage.calls();
        assert_eq!(calls.iter().map(|call| call.1).max(), Some(longest));
    }
    drop((normal, random, sequential, file));
    assert_empty(&hw);
}
