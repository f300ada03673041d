//! The readahead state machine alone, over a cache that evicts only on request.

use std::collections::BTreeMap;

use super::{Miss, ReadPattern, Stream, Window, WindowBounds};
use crate::units::FilePage;

const FILE: u64 = 10_000;

/// A file's pages in a cache, and one handle that reads them.
struct Handle {
    stream: Stream,
    bounds: WindowBounds,
    last: Option<u64>,
    /// Pages in the cache, and whether they are marked.
    cached: BTreeMap<u64, bool>,
    /// Lengths of the windows that a read waited for.
    missed: Vec<u64>,
    /// Lengths of the windows that a mark opened.
    met: Vec<u64>,
}

impl Handle {
    fn new(max: u64, pattern: ReadPattern) -> Self {
        Self {
            stream: Stream::default(),
            bounds: WindowBounds {
                max,
                file: FILE,
                pattern,
            },
            last: None,
            cached: BTreeMap::new(),
            missed: Vec::new(),
            met: Vec::new(),
        }
    }

    fn fill(&mut self, window: &Window) -> u64 {
        let pages = FilePage::numbers(&window.pages);
        let len = pages.end - pages.start;
        for page in pages {
            let is_marked = window.mark == Some(FilePage(page));
            self.cached.entry(page).or_insert(is_marked);
        }
        len
    }

    /// Reads `asked` pages starting at `page`, as the manager does.
    fn read(&mut self, page: u64, asked: u64) {
        for at in page..(page + asked).min(FILE) {
            self.read_page(at, page + asked - at);
        }
    }

    fn read_page(&mut self, page: u64, asked: u64) {
        let (cached, bounds) = (&self.cached, self.bounds);
        match self.cached.get(&page) {
            None => {
                let last = self.last;
                let miss = Miss { page, asked, last };
                let window = self.stream.on_miss(miss, bounds, |most| {
                    let before = (0..page).rev().take(usize::try_from(most).expect("small"));
                    before.take_while(|page| cached.contains_key(page)).count() as u64
                });
                assert_eq!(
                    window.pages.start,
                    FilePage(page),
                    "the missing page comes first"
                );
                let len = self.fill(&window);
                self.missed.push(len);
            }
            Some(true) => {
                let window = self.stream.on_mark(page, bounds, |from, most| {
                    (from..from + most).find(|page| !cached.contains_key(page))
                });
                self.cached.insert(page, false);
                if let Some(window) = window {
                    let len = self.fill(&window);
                    self.met.push(len);
                }
            }
            Some(false) => {}
        }
        assert!(self.cached.contains_key(&page), "page {page} was not read");
        self.last = Some(page);
    }
}

// Goal: a stream misses once, and its windows grow to the maximum. Method: a file read in order, in
// calls of one page and of three.
#[test]
fn a_stream_misses_once_and_windows_grow() {
    for (asked, sizes) in [(1, [4, 8, 16, 32, 32]), (3, [8, 16, 32, 32, 32])] {
        let mut handle = Handle::new(32, ReadPattern::Normal);
        for page in (0..FILE).step_by(usize::try_from(asked).expect("small")) {
            handle.read(page, asked);
        }
        assert_eq!(handle.missed, [sizes[0]], "by {asked}");
        assert_eq!(handle.met[..4], sizes[1..], "by {asked}");
        assert_eq!(handle.cached.len() as u64, FILE);
        assert!(handle.met.len() as u64 <= FILE / 32 + 4, "by {asked}");
    }
}

// Goal: a stream whose marks are never read continues all the same. Method: remove the marks.
#[test]
fn a_stream_without_marks_misses_once_a_window() {
    let mut handle = Handle::new(32, ReadPattern::Normal);
    for page in 0..200 {
        handle.cached.values_mut().for_each(|mark| *mark = false);
        handle.read(page, 1);
    }
    assert_eq!(handle.missed[..6], [4, 8, 16, 32, 32, 32]);
    assert!(handle.met.is_empty());
}

// Goal: random accesses read only the requested pages and leave the stream alone. Method: single
// pages far apart, between the reads of a stream.
#[test]
fn jumps_read_nothing_else() {
    let mut handle = Handle::new(32, ReadPattern::Normal);
    for page in 0..100 {
        handle.read(page, 1);
        let before = handle.cached.len();
        handle.read(9_999 - page * 50, 1);
        assert_eq!(handle.cached.len(), before + 1, "at {page}");
    }
    assert_eq!(handle.missed[0], 4);
    assert!(handle.missed[1..].iter().all(|len| *len == 1));
    assert_eq!(handle.met[..3], [8, 16, 32]);
}

// Goal: a stream begins in the middle of a file at its second page, and one that comes back starts
// small.
#[test]
fn a_second_page_in_order_begins_a_stream() {
    let mut handle = Handle::new(32, ReadPattern::Normal);
    for page in 500..600 {
        handle.read(page, 1);
    }
    assert_eq!(handle.missed, [1, 4]);
    for page in 5_000..5_100 {
        handle.read(page, 1);
    }
    assert_eq!(handle.missed, [1, 4, 1, 4]);
}

// Goal: the window shrinks if memory does not hold it. Method: each time, the rest of the window is
// evicted before it is read.
#[test]
fn windows_that_are_lost_before_they_are_read_shrink() {
    let mut handle = Handle::new(32, ReadPattern::Normal);
    for page in 0..60 {
        handle.read(page, 1);
    }
    let mut lens = Vec::new();
    for page in 60..72 {
        handle.cached.retain(|cached, _| *cached < page);
        handle.read(page, 1);
        lens.push(*handle.missed.last().expect("just missed"));
    }
    assert_eq!(lens[..5], [16, 8, 4, 2, 2], "{lens:?}");
    assert!(lens.iter().all(|len| *len <= 16), "{lens:?}");
}

// Goal: a read right after a resident run continues that run.
#[test]
fn pages_before_the_missing_one_count() {
    let mut handle = Handle::new(32, ReadPattern::Normal);
    handle.cached = (200..210).map(|page| (page, false)).collect();
    handle.read(210, 1);
    assert_eq!(handle.missed, [11], "as many as lie before it, and itself");
    let mut handle = Handle::new(32, ReadPattern::Normal);
    handle.cached = (0..9).map(|page| (page, false)).collect();
    handle.read(9, 1);
    assert_eq!(handle.missed, [19], "the whole file so far counts twice");
}

// Goal: threads that share a handle disturb each other little. Method: two streams, one page each
// in turn.
#[test]
fn two_streams_on_one_handle_meet_their_marks() {
    let mut handle = Handle::new(32, ReadPattern::Normal);
    for page in 0..2_000 {
        handle.read(page, 1);
        handle.read(5_000 + page, 1);
    }
    let misses = handle.missed.len();
    assert!(misses <= 20, "{misses} misses in 4,000 reads");
}

// Goal: a read pattern is obeyed.
#[test]
fn patterns_are_obeyed() {
    let mut random = Handle::new(32, ReadPattern::Random);
    for page in 0..100 {
        random.read(page, 1);
    }
    assert_eq!((random.missed.len(), random.met.len()), (100, 0));
    random.read(200, 7);
    assert_eq!(*random.missed.last().expect("missed"), 7);

    let mut sequential = Handle::new(32, ReadPattern::Sequential);
    for page in 300..1_000 {
        sequential.read(page, 1);
    }
    assert_eq!(sequential.missed, [4]);
    assert_eq!(*sequential.met.last().expect("met"), 64);
}

// Goal: for any request in any state, a window begins with the missing page, is no longer than the
// maximum or the request, and ends with the file. Method: random calls, with pages evicted and
// windows cut between them.
#[test]
fn windows_stay_within_their_bounds() {
    let seed = std::env::var("SEED").map_or(0x5eed, |seed| seed.parse().expect("a number"));
    println!("SEED={seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    for max in [0, 1, 2, 3, 5, 31, 32, 33, 100] {
        let mut handle = Handle::new(max, ReadPattern::Normal);
        let mut page = 0;
        for _ in 0..4_000 {
            handle.bounds.pattern = [
                ReadPattern::Normal,
                ReadPattern::Normal,
                ReadPattern::Sequential,
                ReadPattern::Random,
            ][rng.usize(..4)];
            page = match rng.u32(..10) {
                0 => rng.u64(..FILE),
                1 => FILE - 1 - rng.u64(..40),
                2 => page.saturating_sub(rng.u64(..40)),
                _ => (page + 1).min(FILE - 1),
            };
            let asked = if rng.u32(..4) == 0 { rng.u64(1..70) } else { 1 };
            handle.read(page, asked);
            match rng.u32(..40) {
                0 => handle.cached.clear(),
                1 => handle.cached.retain(|_, _| rng.bool()),
                2 => handle.stream.cut(page + rng.u64(..40)),
                _ => {}
            }
        }
        let longest = handle.missed.iter().chain(&handle.met).max();
        let allowed = (2 * max).max(1);
        assert!(longest <= Some(&allowed), "{longest:?} of {allowed}");
        let end = handle.cached.keys().next_back();
        assert!(end < Some(&FILE), "read beyond the end: {end:?}");
    }
}

#[test]
fn windows_grow_beyond_the_usual_where_storage_is_late() {
    // Goal: a stream whose reader waits for pages that it reads ahead has longer windows, twice as
    // long each time, up to eight times; other waits, and windows that are not yet as long as
    // usual, change nothing. Method: marks in order, and a wait in each window or in none.
    const USUAL: u64 = 32;
    let lens = |is_late: fn(u64) -> bool| {
        let mut stream = Stream::default();
        let mut lens = Vec::new();
        let mut page = 0;
        for nth in 0..12 {
            let bounds = WindowBounds {
                max: 1000.min(stream.longest(USUAL)),
                file: FILE,
                pattern: ReadPattern::Normal,
            };
            let window = match nth {
                0 => {
                    let (asked, last) = (1, None);
                    stream.on_miss(Miss { page, asked, last }, bounds, |_| 0)
                }
                _ => stream.on_mark(page, bounds, |_, _| None).expect("more"),
            };
            lens.push(window.pages.end.0 - window.pages.start.0);
            if is_late(nth) {
                // Several threads, in the window before and in this one.
                let before = window.pages.start.0.saturating_sub(1);
                for late in [before, window.pages.start.0, before] {
                    stream.note_late(late, USUAL);
                }
            }
            stream.note_late(9_999, USUAL);
            page = window.mark.expect("a mark").0;
        }
        lens
    };
    let usual = [4, 8, 16, 32, 32, 32, 32, 32, 32, 32, 32, 32];
    assert_eq!(lens(|_| false), usual);
    assert_eq!(lens(|nth| nth < 3), usual, "short windows grow anyway");
    let late = [4, 8, 16, 32, 64, 128, 256, 256, 256, 256, 256, 256];
    assert_eq!(lens(|_| true), late);
    let once = [4, 8, 16, 32, 32, 32, 64, 64, 64, 64, 64, 64];
    assert_eq!(lens(|nth| nth == 5), once);
}
