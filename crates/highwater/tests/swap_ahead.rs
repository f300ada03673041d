//! Promise: pages that were swapped out one after the other come back by few requests, also to
//! tasks and on both engines; reads at random bring in few pages for nothing.

#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a test stops where it goes wrong")]
#![expect(clippy::print_stderr, reason = "a test that skips something says so")]

#[path = "support/engines.rs"]
mod engines;
#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater::units::FilePage;
use highwater::{Backing, Builder, Bytes, Manager, Mapping, Pages, ReadPattern};
use support::{TestFile, assert_empty, first_word};

/// Swap in memory that counts the requests to read it, and the pages.
#[derive(Debug)]
struct Counting {
    slots: Arc<TestFile>,
    requests: AtomicU64,
    pages: AtomicU64,
}

impl Counting {
    fn new(slots: u64) -> Arc<Self> {
        Arc::new(Self {
            slots: TestFile::new(slots),
            requests: AtomicU64::new(0),
            pages: AtomicU64::new(0),
        })
    }

    fn count(&self, pages: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.pages.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Returns requests and pages so far.
    fn counts(&self) -> (u64, u64) {
        let [requests, pages] = [&self.requests, &self.pages];
        (
            requests.load(Ordering::Relaxed),
            pages.load(Ordering::Relaxed),
        )
    }
}

impl Backing for Counting {
    fn len(&self) -> u64 {
        self.slots.len()
    }
    fn read_page(&self, slot: FilePage, buf: &mut [u8]) -> io::Result<usize> {
        self.count(1);
        self.slots.read_page(slot, buf)
    }
    fn read_pages(&self, first: FilePage, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        self.count(bufs.len());
        self.slots.read_pages(first, bufs)
    }
    fn write_page(&self, slot: FilePage, buf: &[u8]) -> io::Result<usize> {
        self.slots.write_page(slot, buf)
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn written(hw: &Manager, pages: u64) -> Mapping {
    let map = hw.space(&hw.root()).map_anon(Pages(pages)).unwrap();
    for page in 0..pages {
        map.write(page).unwrap()[..8].copy_from_slice(&(page + 1).to_le_bytes());
    }
    map
}

fn check(map: &Mapping, page: u64) {
    assert_eq!(first_word(&map.read_latched(page).unwrap()), page + 1);
}

/// Writes sorted runs and merges them: reads of each the next page, in an order of their own.
/// Returns the requests and the pages that this read from swap.
fn merge((runs, len, frames): (u64, u64, u64), pattern: ReadPattern) -> (u64, u64) {
    let storage = Counting::new(runs * len);
    let hw = Manager::builder()
        .capacity(Pages(frames).bytes())
        .swap_on(Arc::clone(&storage) as Arc<dyn Backing>)
        .build()
        .unwrap();
    let map = written(&hw, runs * len);
    map.set_read_pattern(pattern);
    let mut rng = seed::rng(41);
    let mut order: Vec<u64> = (0..runs).collect();
    let before = storage.counts();
    for at in 0..len {
        rng.shuffle(&mut order);
        order.iter().for_each(|run| check(&map, run * len + at));
    }
    let after = storage.counts();
    drop(map);
    assert_empty(&hw);
    (after.0 - before.0, after.1 - before.1)
}

// Goal: a merge of sorted runs that were swapped out reads them back by runs of pages, as many at
// once as memory holds for each, and hardly more pages. Method: 128 runs of 74 pages; a merge of
// 4,096 such runs read single pages back 304,202 times. Memory for 4 to 64 pages of each run.
#[test]
fn merging_sorted_runs_reads_swap_by_few_requests() {
    const RUNS: u64 = 128;
    const LEN: u64 = 74;
    for (of_each, gain_tenths) in [(4, 15), (16, 30), (64, 60)] {
        let shape = (RUNS, LEN, RUNS * of_each);
        let (single, without) = merge(shape, ReadPattern::Random);
        assert_eq!(single, without, "one page at a time");
        let (requests, with) = merge(shape, ReadPattern::Normal);
        println!(
            "memory for {of_each} pages of each run: {requests} requests for {with} pages, and \
             {single} without readahead"
        );
        assert!(
            requests * gain_tenths <= single * 10,
            "{requests} requests, not {single}"
        );
        // As in `readahead/credit.rs`, new pages included.
        let bound = 32 + (RUNS * LEN + with) / 32 + 32;
        assert!(with <= without + bound, "{with} pages, not {without}");
    }
}

// Goal: the bound of `readahead/credit.rs`, for memory. Method: reads at random of memory that was
// written in order, so that each page has neighbours in swap.
#[test]
fn reads_at_random_bring_in_few_pages_for_nothing() {
    const PAGES: u64 = 8192;
    let storage = Counting::new(PAGES);
    let hw = Manager::builder()
        .capacity(Pages(512).bytes())
        .swap_on(Arc::clone(&storage) as Arc<dyn Backing>)
        .build()
        .unwrap();
    let map = written(&hw, PAGES);
    let mut rng = seed::rng(42);
    for _ in 0..12_000 {
        check(&map, rng.u64(..PAGES));
    }
    let (requests, pages) = storage.counts();
    let unread = hw.snapshot().counter("pgreadahead_unread");
    println!("{requests} requests for {pages} pages, {unread} of them for nothing");
    // Pages that were brought in, new ones included.
    let bound = 32 + (PAGES + pages) / 32 + 32;
    assert!(unread <= bound, "{unread} of {pages} pages");
    assert!(requests > 8_000, "{requests} misses");
    drop(map);
    assert_empty(&hw);
}

/// Builders with each engine that the system has.
fn engines() -> Vec<(&'static str, Builder)> {
    let hw = Manager::builder().build().unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[1; 4096]).unwrap();
    let open = hw.open(file.path()).unwrap();
    let map = hw.space(&hw.root()).map_file(&open, 0..1).unwrap();
    hw.block_on(map.read_async(0)).unwrap();
    engines::engines(&hw)
}

// Goal: tasks read swapped pages without a thread that waits, by either engine; what is discarded
// while it is read is zeros, and everything else as it was written. Method: pages are swapped out
// to a file, then prefetched in any order, and read or written by tasks; some are discarded while
// they are in flight.
#[test]
fn tasks_read_swapped_pages_on_both_engines() {
    const PAGES: u64 = 1024;
    for (name, builder) in engines() {
        let dir = tempfile::tempdir().unwrap();
        let hw = builder
            .capacity(Pages(256).bytes())
            .swap(dir.path(), Bytes::mib(8))
            .build()
            .unwrap();
        let map = written(&hw, PAGES);
        let mut values: Vec<u64> = (1..=PAGES).collect();
        let mut rng = seed::rng(43);
        for round in 0..50 {
            let first = rng.u64(..PAGES - 64);
            let mut wanted: Vec<u64> = (first..first + 48).filter(|_| rng.u8(..4) > 0).collect();
            rng.shuffle(&mut wanted);
            map.prefetch(wanted.iter().copied()).unwrap();
            if round % 4 == 0 {
                let gone = first + rng.u64(..40);
                map.discard(gone..gone + 4).unwrap();
                values[usize::try_from(gone).unwrap()..][..4].fill(0);
            }
            for page in wanted {
                let value = &mut values[usize::try_from(page).unwrap()];
                if rng.bool() {
                    let bytes = hw.block_on(map.read_latched_async(page)).unwrap();
                    assert_eq!(first_word(&bytes), *value, "page {page} by {name}");
                } else {
                    let mut bytes = hw.block_on(map.write_async(page)).unwrap();
                    assert_eq!(first_word(&bytes), *value, "page {page} by {name}");
                    *value = rng.u64(..) | 1;
                    bytes[..8].copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        for (page, value) in (0..).zip(values) {
            assert_eq!(first_word(&map.read_latched(page).unwrap()), value);
        }
        let snapshot = hw.snapshot();
        assert!(snapshot.counter("pswpin") > 0);
        let by_ring = snapshot.counter("async_reads_ring");
        assert_eq!(
            by_ring > 0,
            name == "io_uring",
            "{by_ring} reads by the ring"
        );
        drop(map);
        assert_empty(&hw);
    }
}

// Goal: prefetching memory that was never written takes no memory. Method: as the name says.
#[test]
fn a_prefetch_brings_in_only_what_is_in_swap() {
    let storage = Counting::new(64);
    let hw = Manager::builder()
        .capacity(Pages(64).bytes())
        .swap_on(storage as Arc<dyn Backing>)
        .build()
        .unwrap();
    let map = hw.space(&hw.root()).map_anon(Pages(1000)).unwrap();
    map.prefetch(0..1000_u64).unwrap();
    assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
    drop(map);
    assert_empty(&hw);
}
