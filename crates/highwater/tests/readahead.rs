//! Promise: sequential reads are read ahead, many pages by one call to the storage; a failed
//! readahead is no error and no charge; `read_at` returns the file's bytes, under any concurrent
//! activity.
#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

#[path = "../src/seed.rs"]
mod seed;
mod support;

use std::io;
use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use highwater::lab::cache::MarkRule;
use highwater::units::{FilePage, PAGE_BYTES, PAGE_SIZE};
use highwater::{
    Access, Background, Backing, File, Limits, Manager, Pages, ReadError, ReadPattern,
};
use support::{assert_empty, fill_each, first_word, manager};

/// Pages that begin with their number, and a record of the calls. Can fail from a given page on.
#[derive(Debug)]
struct Recorder {
    pages: u64,
    /// First page and number of pages of each call.
    calls: Mutex<Vec<(u64, u64)>>,
    fails_from: AtomicU64,
    panics_from: AtomicU64,
}

impl Recorder {
    fn new(pages: u64) -> Arc<Self> {
        Arc::new(Self {
            pages,
            calls: Mutex::new(Vec::new()),
            fails_from: AtomicU64::new(u64::MAX),
            panics_from: AtomicU64::new(u64::MAX),
        })
    }

    fn calls(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    fn fill(&self, page: u64, buf: &mut [u8]) -> io::Result<usize> {
        assert!(page < self.panics_from.load(Ordering::Relaxed), "as told");
        if page >= self.fails_from.load(Ordering::Relaxed) {
            return Err(io::Error::other("as told"));
        }
        buf.fill(0x5a);
        buf[..8].copy_from_slice(&page.to_le_bytes());
        Ok(buf.len())
    }
}

impl Backing for Recorder {
    fn len(&self) -> u64 {
        self.pages * PAGE_BYTES
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

fn open(hw: &Manager, storage: &Arc<Recorder>) -> File {
    let backing = Arc::clone(storage) as Arc<dyn Backing>;
    hw.open_backing(backing, Access::ReadOnly).unwrap()
}

fn counter(hw: &Manager, name: &str) -> u64 {
    hw.snapshot().counter(name)
}

// Goal: a file that is mapped and read in order is read by calls of up to 32 pages, and faults that
// read themselves are few. Method: 1,024 pages in a pool of 4,096, each looked at.
#[test]
fn a_mapping_read_in_order_is_read_ahead() {
    let hw = manager(4_096);
    let storage = Recorder::new(1_024);
    let file = open(&hw, &storage);
    let map = hw.space(&hw.root()).map_file(&file, 0..1_024).unwrap();
    for page in 0..1_024 {
        assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
    }
    let calls = storage.calls();
    assert_eq!(calls[..4], [(0, 4), (4, 8), (12, 16), (28, 32)]);
    let read: u64 = calls.iter().map(|(_, pages)| pages).sum();
    assert_eq!(read, 1_024, "each page once");
    assert!(calls.len() <= 36, "{} calls", calls.len());
    let (major, ahead) = (counter(&hw, "pgmajfault"), counter(&hw, "pgreadahead"));
    assert_eq!((major, ahead), (1, 1_023), "the others met their marks");
    drop((map, file));
    assert_empty(&hw);
}

// Goal: a stream through partly resident pages misses less than half as often as by Linux's rule,
// where it misses once a window. Method: two of three pages are there before; the windows' marks on
// those are lost.
#[test]
fn marks_of_pages_that_stayed_are_not_lost() {
    let misses = [MarkRule::NextMissing, MarkRule::Exact].map(|marks| {
        let builder = Manager::builder().capacity(Pages(4_096).bytes());
        let hw = builder.readahead_marks(marks).build().unwrap();
        let storage = Recorder::new(1_024);
        let file = open(&hw, &storage);
        let stayed = (0..1_024).filter(|page| page % 3 != 2);
        stayed.for_each(|page| file.will_need(&hw.root(), page..page + 1));
        let map = hw.space(&hw.root()).map_file(&file, 0..1_024).unwrap();
        for page in 0..1_024 {
            assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
        }
        let misses = counter(&hw, "pgmajfault");
        drop((map, file));
        assert_empty(&hw);
        misses
    });
    // Linux's: one for each window.
    assert!((30..=40).contains(&misses[1]), "{misses:?}");
    assert!(2 * misses[0] < misses[1], "{misses:?}");
}

// Goal: sequential read_at misses once: marks do the rest. Method: as above, by calls of 1,000
// bytes; the storage's calls count the pages.
#[test]
fn read_at_in_order_meets_its_marks() {
    let hw = manager(4_096);
    let storage = Recorder::new(1_000);
    let file = open(&hw, &storage);
    let (mut at, mut buf) = (0, [0; 1_000]);
    loop {
        let got = file.read_at(&hw.root(), at, &mut buf).unwrap();
        if got == 0 {
            break;
        }
        at += got as u64;
    }
    assert_eq!(at, 1_000 * PAGE_BYTES);
    let calls = storage.calls();
    assert_eq!(calls[..5], [(0, 4), (4, 8), (12, 16), (28, 32), (60, 32)]);
    assert_eq!(calls.last(), Some(&(988, 12)), "the end of the file");
    assert_eq!(hw.root().usage_precise(), Pages(1_000).bytes());
    drop(file);
    assert_empty(&hw);
}

// Goal: random reads read only the requested pages, and so do reads with that pattern.
#[test]
fn jumps_read_single_pages() {
    let hw = manager(4_096);
    let storage = Recorder::new(1_000);
    let file = open(&hw, &storage);
    let root = hw.root();
    for page in (1..140).map(|at| 1_000 - 7 * at) {
        file.read_at(&root, page * PAGE_BYTES, &mut [0; 100])
            .unwrap();
    }
    assert!(storage.calls().iter().all(|(_, pages)| *pages == 1));
    hw.drop_caches();
    file.set_read_pattern(ReadPattern::Random);
    file.read_at(&root, 0, &mut [0; 20 * PAGE_SIZE]).unwrap();
    assert_eq!(storage.calls(), [(0, 20)], "one call is one read");
    file.set_read_pattern(ReadPattern::Sequential);
    hw.set_readahead(Pages(0));
    hw.drop_caches();
    for page in 0..20 {
        file.read_at(&root, page * PAGE_BYTES, &mut [0; 1]).unwrap();
    }
    assert!(storage.calls().iter().all(|(_, pages)| *pages == 1));
    drop(file);
    assert_empty(&hw);
}

// Goal: a page whose readahead failed is an error for a read of that page, and for no other.
// Method: storage fails, then panics, from a page in the middle of a window on.
#[test]
fn what_cannot_be_read_ahead_is_nobodys_error() {
    let hw = manager(4_096);
    let storage = Recorder::new(100);
    let file = open(&hw, &storage);
    let map = hw.space(&hw.root()).map_file(&file, 0..100).unwrap();
    storage.fails_from.store(6, Ordering::Relaxed);
    for page in 0..6 {
        assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
    }
    for _ in 0..3 {
        let failed = map.read(&hw.enter(), 6).map(|_| ());
        assert!(
            matches!(
                failed,
                Err(ReadError::Io {
                    page: FilePage(6),
                    ..
                })
            ),
            "{failed:?}"
        );
    }
    // A call that has read something returns that, and the next one the error.
    let mut buf = [0; 4 * PAGE_SIZE];
    let root = hw.root();
    let got = file.read_at(&root, 4 * PAGE_BYTES, &mut buf).unwrap();
    assert_eq!(got, 2 * PAGE_SIZE);
    file.read_at(&root, 6 * PAGE_BYTES, &mut buf).unwrap_err();
    assert_eq!(
        hw.root().usage_precise(),
        Pages(6).bytes(),
        "those that are there"
    );

    storage.fails_from.store(u64::MAX, Ordering::Relaxed);
    storage.panics_from.store(8, Ordering::Relaxed);
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        map.read(&hw.enter(), 6).map(|_| ()).unwrap();
    }));
    assert!(panicked.is_err(), "the panic reaches the caller");
    hw.check_invariants();
    storage.panics_from.store(u64::MAX, Ordering::Relaxed);
    for page in 0..100 {
        assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
    }
    drop((map, file));
    assert_empty(&hw);
}

/// Reads 2,000 pages in order, three times, in a pool of `capacity` pages, for a group of at most
/// `max` pages or a child of it without a maximum; returns the calls of the storage.
fn calls_within(capacity: u64, max: u64, payer: Payer) -> Vec<(u64, u64)> {
    let hw = manager(capacity);
    let limits = Limits::max(Pages(max).bytes());
    let group = hw.root().child("small", limits).unwrap();
    let payer = match payer {
        Payer::Limited => group.clone(),
        Payer::Child => group.child("unlimited", Limits::default()).unwrap(),
    };
    let storage = Recorder::new(2_000);
    let file = open(&hw, &storage);
    let map = hw.space(&payer).map_file(&file, 0..2_000).unwrap();
    for _ in 0..3 {
        for page in 0..2_000 {
            assert_eq!(first_word(map.read(&hw.enter(), page).unwrap()), page);
            assert!(group.usage_precise() <= Pages(max).bytes());
        }
    }
    drop((map, file));
    assert_empty(&hw);
    storage.calls()
}

#[derive(Clone, Copy)]
enum Payer {
    Limited,
    Child,
}

// Goal: readahead stays within the available memory, also where an ancestor has the maximum.
// Method: a group of 64 pages, and a pool of 128, read 2,000 pages in order three times; usage is
// checked after each read. A child without a maximum reads in the same windows.
#[test]
fn readahead_fits_into_a_group_and_a_pool() {
    for (capacity, max) in [(4_096, 64), (128, 128)] {
        let calls = calls_within(capacity, max, Payer::Limited);
        let longest = calls.iter().map(|(_, pages)| *pages).max();
        let share = (capacity / 64).min(max / 16);
        assert!(longest <= Some(share), "{longest:?} of {share}");
        assert!(calls.len() < 4_000, "{} calls", calls.len());
        assert_eq!(calls_within(capacity, max, Payer::Child), calls);
    }
}

// Goal: `will_need` reads a range once, as far as it exists, and later reads find it.
#[test]
fn what_will_be_needed_is_there() {
    let hw = manager(4_096);
    let storage = Recorder::new(100);
    let file = open(&hw, &storage);
    let map = hw.space(&hw.root()).map_file(&file, 0..100).unwrap();
    file.will_need(&hw.root(), 30..130);
    assert_eq!(storage.calls(), [(30, 64), (94, 6)], "windows of a 64th");
    file.will_need(&hw.root(), 0..100);
    assert_eq!(storage.calls(), [(0, 30)], "resident pages are skipped");
    assert_eq!(counter(&hw, "pgmajfault"), 0);
    let guard = hw.enter();
    assert!((0..15).all(|page| map.try_read(&guard, page).is_some()));
    drop(guard);
    drop((map, file));
    assert_empty(&hw);
}

// Goal: `read_at` gives the file's bytes: any offset and length, read-only and writable, by one
// call to the system for many pages, the last of them partial. Method: random calls of four threads
// on a real file of random bytes, in a pool of a quarter of it, against the bytes.
#[test]
fn read_at_gives_the_files_bytes() {
    let seed = std::env::var("SEED").map_or(0xb17e5, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; 1_024 * PAGE_SIZE - 1_234];
    rng.fill(&mut bytes);
    let mut temporary = tempfile::NamedTempFile::new().unwrap();
    temporary.write_all(&bytes).unwrap();
    for is_writable in [false, true] {
        let hw = manager(256);
        let file = if is_writable {
            hw.open_writable(temporary.path())
        } else {
            hw.open(temporary.path())
        };
        let file = file.unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (hw, file, bytes) = (&hw, &file, &bytes);
                scope.spawn(move || {
                    let mut rng = fastrand::Rng::with_seed(seed + thread);
                    let mut buf = vec![0; 5 * PAGE_SIZE];
                    let mut at = 0;
                    for _ in 0..2_000 {
                        if rng.u32(..8) == 0 {
                            at = rng.usize(..bytes.len() + 10);
                        }
                        let len = rng.usize(..buf.len());
                        let got = file
                            .read_at(&hw.root(), at as u64, &mut buf[..len])
                            .unwrap();
                        let want = bytes.get(at..).unwrap_or(&[]);
                        assert_eq!(buf[..got], want[..len.min(want.len())], "{len} at {at}");
                        at += got;
                    }
                });
            }
        });
        drop(file);
        assert_empty(&hw);
    }
}

// Goal: reads of a file that has become shorter report it. Method: a real file, cut in the middle
// of a window.
#[test]
fn a_file_cut_short_is_an_error_where_it_was_cut() {
    let mut temporary = tempfile::NamedTempFile::new().unwrap();
    temporary.write_all(&vec![7; 40 * PAGE_SIZE]).unwrap();
    let hw = manager(4_096);
    let file = hw.open(temporary.path()).unwrap();
    let cut = 10 * PAGE_BYTES + 5;
    temporary.as_file().set_len(cut).unwrap();
    let (root, mut buf) = (hw.root(), vec![0; 40 * PAGE_SIZE]);
    assert_eq!(file.read_at(&root, 0, &mut buf).unwrap(), 10 * PAGE_SIZE);
    let short = file.read_at(&root, 10 * PAGE_BYTES, &mut buf);
    let is_short = matches!(
        short,
        Err(ReadError::Short {
            page: FilePage(10),
            got: 5,
            want: PAGE_SIZE
        })
    );
    assert!(is_short, "{short:?}");
    drop(file);
    assert_empty(&hw);
}

/// Reads one word of a page.
fn look(hw: &Manager, file: &File, page: u64) {
    let mut word = [0; 8];
    file.read_at(&hw.root(), page * PAGE_BYTES, &mut word)
        .unwrap();
    assert_eq!(u64::from_le_bytes(word), page);
}

// Goal: whatever the order of reads, pages that were read ahead and evicted unread are at most 256,
// and one for 32 of the others. Method: adversaries that look sequential, and leave each window
// as soon as it was read: pairs of pages, short runs, only the marked pages of windows, and random
// ones of these, in a pool much smaller than the file.
#[test]
fn no_order_of_reads_makes_more_useless_than_stated() {
    const PAGES: u64 = 200_000;
    let mut rng = seed::rng(0xad);
    for (adversary, background) in
        (0..4).flat_map(|of| [(of, Background::Off), (of, Background::Thread)])
    {
        let builder = Manager::builder().capacity(Pages(2_048).bytes());
        let hw = builder.background(background).build().unwrap();
        let storage = Recorder::new(PAGES);
        let file = open(&hw, &storage);
        for _ in 0..6_000 {
            let start = rng.u64(..PAGES - 100);
            let kind = if adversary == 3 {
                rng.u64(..3)
            } else {
                adversary
            };
            match kind {
                0 => (start..start + 2).for_each(|page| look(&hw, &file, page)),
                1 => (start..start + rng.u64(2..7)).for_each(|page| look(&hw, &file, page)),
                _ => {
                    let marked = [0, 1, 2, 5, 13, 29, 61];
                    marked.iter().for_each(|at| look(&hw, &file, start + at));
                }
            }
        }
        // Waits for windows in flight.
        hw.check_invariants();
        hw.drop_caches();
        let read: u64 = storage.calls().iter().map(|(_, pages)| pages).sum();
        let unread = counter(&hw, "pgreadahead_unread");
        assert_eq!(unread, file.readahead_unread());
        let of_use = read - unread;
        assert!(
            unread <= 256 + of_use / 32 + 32,
            "{unread} of {read}, adversary {adversary}"
        );
        // The credit was spent: what bounds it is the bound.
        assert!(unread >= 256, "{unread} of {read}, adversary {adversary}");
        drop(file);
        assert_empty(&hw);
    }
}

// Goal: windows shrink to nothing where they do not pay, and come back where they do. Method: pairs
// of pages until nothing is read ahead any more, and then a scan: its last part is read as that of
// a new file.
#[test]
fn windows_that_do_not_pay_shrink_and_come_back() {
    const PAGES: u64 = 100_000;
    let hw = manager(2_048);
    let storage = Recorder::new(PAGES);
    let file = open(&hw, &storage);
    let mut rng = seed::rng(0xba);
    for _ in 0..8_000 {
        let start = rng.u64(..PAGES / 2);
        (start..start + 2).for_each(|page| look(&hw, &file, page));
    }
    let calls = storage.calls();
    let pages = |calls: &[(u64, u64)]| calls.iter().map(|(_, pages)| pages).sum::<u64>();
    let tail = &calls[calls.len() - 4_000..];
    assert!(
        pages(tail) <= tail.len() as u64 * 33 / 32 + 32,
        "{}",
        pages(tail)
    );
    assert!(pages(&calls[..400]) > 600, "it began with windows");

    (PAGES / 2..PAGES).for_each(|page| look(&hw, &file, page));
    let calls = storage.calls();
    let back = calls.iter().position(|(_, pages)| *pages == 32).unwrap();
    let scanned = calls[back].0 - PAGES / 2;
    assert!(
        scanned < 4_096,
        "the first whole window after {scanned} pages"
    );
    let tail = &calls[calls.len() - 1_000..];
    let whole = tail.iter().filter(|(_, pages)| *pages == 32).count();
    assert!(whole >= 990, "{whole} of 1,000 windows are whole");
}
