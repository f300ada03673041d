//! Readahead: which pages are read together with one that is missing.
//!
//! A [`Stream`] looks at the pages that a handle misses and decides, without I/O, locks or a clock,
//! how many are worth reading in one go (a [`Window`]):
//!
//! ```text
//!             |<------- window ------->|
//!             |  asked  |M             |      M: the mark. Who comes to a marked page has read what lies
//!             ^start    ^start+len-ahead      before it, and reads the next window before it goes on.
//! ```
//!
//! - A miss at the start of a file, or right behind the page asked for last, begins a stream with a
//!   small window.
//! - A miss or a mark where the stream goes on opens a window behind the last one, up to four times
//!   as long while it is short and twice as long then, up to the maximum. In a stream that is met
//!   by its marks no read misses.
//! - A mark that another handle left opens a window at the first page that is missing behind it, so
//!   that threads which share a handle, or a file, go on where others were.
//! - Where pages right before the missing one are in the cache, somebody reads there in order: as
//!   many pages as lie there.
//! - Any other miss is a jump: what was asked for is read and nothing else, and the stream stays as
//!   it is.
//! - A miss *inside* the last window is a page that was evicted before it was read: memory does not
//!   hold what the stream reads ahead, and the window is halved.
//!
//! Marks belong to pages, not to streams ([`PageFlag::Readahead`]), and are cleared by whoever acts
//! on them.
//!
//! Source: the on-demand readahead of Linux (`mm/readahead.c`, since 2.6.23; Fengguang Wu), whose
//! sizes for a maximum of 32 pages these are (4, 8, 16, 32). Deviations: mapped and read(2)-like
//! access share one machine (the kernel reads around a mapped miss); the page that is missing is
//! always the first of its window; a window that was evicted before it was read is halved; the
//! thread that meets a mark does the I/O itself.

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::{FileEntry, Filling, PageCache, PageFlag, PageKey};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{LockClass, Mutex, Rank};
use crate::units::Pages;

static READAHEAD_LOCK: LockClass = LockClass::new("readahead", Rank::Leaf);

/// The longest window unless another is asked for. Chosen: the kernel's `read_ahead_kb` of 128.
pub const READAHEAD_DEFAULT: Pages = Pages(32);

/// In which order pages are going to be read, as far as the program knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadPattern {
    /// Unknown: windows adapt.
    #[default]
    Normal,
    /// In order: every miss begins a stream, and windows become twice as long.
    Sequential,
    /// In no order: nothing is read that was not asked for.
    Random,
}

/// Which page of a window is marked, so that its reader opens the next one, where the page in
/// question is in the cache already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MarkRule {
    /// The first behind it that is not, if any of the window is: a stream through pages of which
    /// some have stayed misses less often.
    #[default]
    NextMissing,
    /// None, as in Linux: the reader who comes to the window's end misses.
    Exact,
}

/// Pages that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Which. Those that are in the cache already are passed over.
    pub pages: Range<u64>,
    /// The page whose next reader opens the next window.
    pub mark: Option<u64>,
}

/// What a read misses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Miss {
    /// The page that is not there.
    pub(super) page: u64,
    /// Pages that the same call will read, from that one on: at least 1.
    pub(super) asked: u64,
    /// The page that was asked for before.
    pub(super) last: Option<u64>,
}

/// The longest window, and how pages are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Pages of a window at most; below 2, there is no readahead.
    pub(super) max: u64,
    /// Pages of the file.
    pub(super) file: u64,
    pub(super) pattern: ReadPattern,
}

/// Where one handle reads in order, and how far ahead.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Stream {
    /// First page of the last window.
    start: u64,
    /// Its pages; 0 before the first window.
    len: u64,
    /// Pages of it from its mark on.
    ahead: u64,
}

impl Stream {
    /// What to read for a missing page. `cached_before` counts the pages in the cache right before
    /// it, as far as it is told.
    pub(super) fn on_miss(
        &mut self,
        miss: Miss,
        bounds: Bounds,
        cached_before: impl FnOnce(u64) -> u64,
    ) -> Window {
        let Miss { page, asked, last } = miss;
        let asked = asked.clamp(1, bounds.max.max(1));
        let max = bounds.max_of_pattern();
        if max < 2 || bounds.pattern == ReadPattern::Random {
            return bounds.cut(page..page.saturating_add(asked), None);
        }
        if self.expects(page) {
            self.go_on(page, next_len(self.len, max), asked);
        } else if self.contains(page) {
            self.go_on(page, (self.len / 2).max(asked).max(2), asked);
        } else if self.begins_at(page, asked, last, bounds) {
            self.go_on(page, first_len(asked, max), asked);
        } else {
            let before = cached_before(max).min(page);
            if before <= asked {
                return bounds.cut(page..page.saturating_add(asked), None);
            }
            // All of the file so far: it is likely to be read to its end.
            let before = if before == page { before * 2 } else { before };
            self.go_on(page, (before + asked).min(max), asked);
        }
        self.window(bounds)
    }

    /// What to read at a marked page, if anything. `first_missing` finds the first page that is not
    /// in the cache, from a page on and within a number of pages.
    pub(super) fn on_mark(
        &mut self,
        page: u64,
        bounds: Bounds,
        first_missing: impl FnOnce(u64, u64) -> Option<u64>,
    ) -> Option<Window> {
        let max = bounds.max_of_pattern();
        if max < 2 || bounds.pattern == ReadPattern::Random {
            return None;
        }
        let (start, len) = if self.len > 0 && page == self.mark() {
            (self.end(), next_len(self.len, max))
        } else {
            let start = first_missing(page + 1, max)?;
            (start, next_len(start - page, max))
        };
        if start >= bounds.file {
            return None;
        }
        *self = Self {
            start,
            len,
            ahead: len,
        };
        Some(self.window(bounds))
    }

    /// Forgets what was not read of the last window: memory or storage refused it.
    pub(super) fn cut(&mut self, end: u64) {
        if self.contains(end) {
            self.len = end - self.start;
            self.ahead = self.ahead.min(self.len);
        }
    }

    fn go_on(&mut self, start: u64, len: u64, asked: u64) {
        *self = Self {
            start,
            len,
            ahead: len.saturating_sub(asked),
        };
    }

    /// Whether the stream goes on at a page, had nobody met its mark.
    fn expects(&self, page: u64) -> bool {
        self.len > 0 && page == self.end()
    }

    fn contains(&self, page: u64) -> bool {
        page.checked_sub(self.start).is_some_and(|at| at < self.len)
    }

    fn begins_at(&self, page: u64, asked: u64, last: Option<u64>, bounds: Bounds) -> bool {
        let is_next = last.is_some_and(|last| page == last || page == last.saturating_add(1));
        page == 0 || is_next || asked > 1 || bounds.pattern == ReadPattern::Sequential
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    fn mark(&self) -> u64 {
        self.end() - self.ahead
    }

    fn window(&mut self, bounds: Bounds) -> Window {
        let window = bounds.cut(
            self.start..self.end(),
            (self.ahead > 0).then_some(self.mark()),
        );
        self.cut(window.pages.end);
        window
    }
}

impl Bounds {
    fn max_of_pattern(&self) -> u64 {
        match self.pattern {
            ReadPattern::Sequential => self.max.saturating_mul(2),
            ReadPattern::Normal | ReadPattern::Random => self.max,
        }
    }

    /// Ends a window with the file.
    fn cut(&self, pages: Range<u64>, mark: Option<u64>) -> Window {
        let end = pages.end.min(self.file.max(pages.start));
        Window {
            mark: mark.filter(|mark| *mark < end),
            pages: pages.start..end,
        }
    }
}

/// Pages of a stream's first window.
fn first_len(asked: u64, max: u64) -> u64 {
    let len = asked.next_power_of_two();
    if len <= max / 32 {
        len * 4
    } else if len <= max / 4 {
        len * 2
    } else {
        max
    }
}

/// Pages of the window after one of `len`.
fn next_len(len: u64, max: u64) -> u64 {
    if len < max / 16 {
        len * 4
    } else if len <= max / 2 {
        len * 2
    } else {
        max
    }
}

/// The readahead of one handle. Threads may share it; each decides at once, and what they read is
/// at worst what each would have read alone.
#[derive(Debug)]
pub struct Readahead {
    state: Mutex<State>,
    /// The page asked for last, plus one; 0 before the first. Written and read by: readers.
    /// Publishes: nothing; a page that is taken for another's successor costs a window of the
    /// smallest size.
    last: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    stream: Stream,
    pattern: ReadPattern,
}

impl State {
    fn bounds(&self, file: &FileEntry, max: Pages) -> Bounds {
        Bounds {
            max: max.0,
            file: file.pages(),
            pattern: self.pattern,
        }
    }
}

impl Default for Readahead {
    fn default() -> Self {
        Self {
            state: Mutex::new(&READAHEAD_LOCK, State::default()),
            last: AtomicU64::new(0),
        }
    }
}

impl Readahead {
    /// Says how pages are going to be read from now on.
    pub fn set_pattern(&self, pattern: ReadPattern) {
        self.state.lock().pattern = pattern;
    }

    /// How pages are going to be read.
    #[must_use]
    pub fn pattern(&self) -> ReadPattern {
        self.state.lock().pattern
    }

    /// Notes that a page was asked for; whether it is another than last time.
    pub fn note_asked(&self, page: u64) -> bool {
        // Relaxed, both: see the field.
        let is_other = self.last.load(Ordering::Relaxed) != page + 1;
        if is_other {
            self.last.store(page + 1, Ordering::Relaxed);
        }
        is_other
    }

    /// Forgets what was not read of a window.
    pub fn cut(&self, end: u64) {
        self.state.lock().stream.cut(end);
    }
}

impl Filling {
    /// The page's name.
    #[must_use]
    pub fn key(&self) -> PageKey {
        self.key
    }

    /// The page's number in its file.
    #[must_use]
    pub fn page(&self) -> u64 {
        self.key.page()
    }
}

impl PageCache {
    /// What to read with a missing page of a file, of which the caller will go on to read `asked`
    /// pages. Windows have at most `max` pages.
    pub fn window_of_miss(
        &self,
        readahead: &Readahead,
        file: &FileEntry,
        page: u64,
        asked: u64,
        max: Pages,
    ) -> Window {
        // Relaxed: see the field.
        let last = readahead.last.load(Ordering::Relaxed).checked_sub(1);
        let mut state = readahead.state.lock();
        let bounds = state.bounds(file, max);
        let miss = Miss { page, asked, last };
        state.stream.on_miss(miss, bounds, |most| {
            let mut before = (page.saturating_sub(most)..page).rev();
            let missing = before.position(|page| !self.seems_cached(file.key(page)));
            missing.map_or(most.min(page), |at| at as u64)
        })
    }

    /// What to read when a page of a window is met whose mark was set, if anything.
    pub fn window_of_mark(
        &self,
        readahead: &Readahead,
        file: &FileEntry,
        page: u64,
        max: Pages,
    ) -> Option<Window> {
        let mut state = readahead.state.lock();
        let bounds = state.bounds(file, max);
        state.stream.on_mark(page, bounds, |from, most| {
            let mut after = from..from.saturating_add(most).min(bounds.file);
            after.find(|page| !self.seems_cached(file.key(*page)))
        })
    }

    /// Whether a page is in the index, as seen without a lock: it may have come or gone meanwhile,
    /// and a walk that races with a change can miss it.
    #[must_use]
    pub fn seems_cached(&self, key: PageKey) -> bool {
        let is_there = |pfn| (self.index.key_of(pfn) == Some(key)).then_some(());
        self.index.find(key, is_there).is_some()
    }

    /// Whether a page seems to be resident and marked: who wants it has to read the next window
    /// first.
    #[must_use]
    pub fn is_marked_ahead(&self, key: PageKey) -> bool {
        let mark = |pfn| {
            (self.index.key_of(pfn) == Some(key)).then(|| self.has_flag(pfn, PageFlag::Readahead))
        };
        self.index.find(key, mark) == Some(true)
    }

    /// Sets a flag of a page that is being read in.
    pub fn flag_filling(&self, filling: &Filling, flag: PageFlag) {
        self.set_flag(filling.frame.pfn(), flag);
    }
}
