//! Readahead: choosing the pages to read together with a missing one.
//!
//! A [`Stream`] follows the misses of a handle and decides, without I/O, locks or a clock, how many
//! pages to read at once (a [`Window`]):
//!
//! ```text
//!             |<------- window ------->|
//!             |  asked  |M             |      M: the mark. Its reader has read the pages
//!             ^start    ^start+len-ahead      before it, and opens the next window.
//! ```
//!
//! - A miss at the start of a file, or right after the previous page, begins a stream with a small
//!   window.
//! - A miss or a mark where the stream continues opens a window after the last one, up to four
//!   times as long while it is short and then twice as long, up to the maximum. A stream whose
//!   marks are read never misses.
//! - A mark that another handle left opens a window at the first missing page after it, so that
//!   threads which share a handle, or a file, continue where others were.
//! - If the pages right before the missing one are in the cache, another reader is sequential
//!   there: the window is as long as that run.
//! - Any other miss is a random access: only the requested pages are read, and the stream keeps its
//!   state.
//! - A miss *inside* the last window is a page that was evicted before it was read: memory does not
//!   hold the pages that the stream reads ahead, and the window is halved.
//! - A reader that comes to a page which its stream reads ahead, and storage has not brought yet,
//!   is ahead of storage: windows may be twice as long from then on, three times over, up to the
//!   maximum. So a window is as long as the device needs, and no longer.
//!
//! How much a file may read ahead is limited by what that has been good for (module `credit`).
//!
//! Marks belong to pages, not to streams ([`PageFlag::Readahead`]), and are cleared by the thread
//! that acts on them.
//!
//! Source: the on-demand readahead of Linux (`mm/readahead.c`, since 2.6.23; Fengguang Wu), whose
//! sizes for a maximum of 32 pages these are (4, 8, 16, 32). Deviations: mapped and read(2)-like
//! access share one state machine (the kernel reads around a mapped miss); the missing page is
//! always the first of its window; a window that was evicted before it was read is halved. As in
//! the kernel, the reader of a marked page goes on while storage fills the next window, if the
//! manager has threads and the kernel does not read the file ahead; otherwise it waits.

pub(super) mod credit;
pub(super) mod swapped;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::{FileEntry, Filling, PageCache, PageFlag, PageKey};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{LockClass, Mutex, Rank};
use crate::units::{FilePage, Pages};

static READAHEAD_LOCK: LockClass = LockClass::new("readahead", Rank::Leaf);

/// The longest window of a stream that storage keeps up with. Chosen: the kernel's `read_ahead_kb`
/// of 128.
pub const READAHEAD_USUAL: Pages = Pages(32);

/// Default of the longest window. Chosen: two of them in flight are what a disk of 140,000 reads of
/// 4 KiB a second needs for its full speed in order, 1.4 GB/s.
pub const READAHEAD_MAX: Pages = Pages(32 << REACH_MAX);

/// Times that the longest window of a stream is doubled at most.
const REACH_MAX: u32 = 3;

/// Misses in a row, each of them out of order, that make a file one that is read at random.
/// Chosen: two windows' worth.
const JUMPS: u32 = 64;

/// The order in which pages are going to be read, as far as the program knows (`MADV_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReadPattern {
    /// Unknown: windows adapt.
    #[default]
    Normal,
    /// Sequential: every miss begins a stream, and windows double.
    Sequential,
    /// Random: no readahead.
    Random,
}

/// Selects the page of a window that gets the mark, if the intended page is already in the cache.
#[cfg(feature = "lab")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MarkRule {
    /// The next page of the window that is missing, if any: a stream through partly resident pages
    /// misses less often.
    #[default]
    NextMissing,
    /// None, as in Linux: the reader misses at the end of the window.
    Exact,
}

/// Pages to read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The range. Pages that are already in the cache are skipped.
    pub pages: Range<FilePage>,
    /// The marked page, whose next reader opens the next window.
    pub mark: Option<FilePage>,
    /// The first page that no call has asked for.
    pub ahead: FilePage,
}

impl Window {
    /// A range that the program asked for.
    #[must_use]
    pub fn of_request(pages: Range<FilePage>) -> Self {
        Self {
            ahead: pages.end,
            pages,
            mark: None,
        }
    }

    /// Cuts what was not asked for to `allowed` pages.
    fn cut_ahead(&mut self, allowed: u64) {
        let end = FilePage(self.ahead.0.saturating_add(allowed)).max(self.pages.start);
        self.pages.end = self.pages.end.min(end);
        self.mark = self.mark.filter(|mark| *mark < self.pages.end);
    }
}

/// A page cache miss.
#[derive(Clone, Copy, Debug)]
pub(super) struct Miss {
    /// The missing page.
    pub(super) page: u64,
    /// Pages that the same call reads, from that page on: at least 1.
    pub(super) asked: u64,
    /// The page of the previous access.
    pub(super) last: Option<u64>,
}

/// The longest window, and the read pattern.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowBounds {
    /// Maximum pages of a window; below 2, there is no readahead.
    pub(super) max: u64,
    /// Pages of the file.
    pub(super) file: u64,
    pub(super) pattern: ReadPattern,
}

/// Position of one handle's sequential reads, and its window.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Stream {
    /// First page of the last window.
    start: u64,
    /// Pages of the last window; 0 before the first.
    len: u64,
    /// Pages of the last window from its mark on.
    ahead: u64,
    /// How often the longest window was doubled, and the window of the last time.
    reach: u32,
    late_at: u64,
}

impl Stream {
    /// Returns the longest window, where `usual` is that of a stream that storage keeps up with.
    fn longest(&self, usual: u64) -> u64 {
        usual << self.reach
    }

    /// Notes that a reader waits for a page. In the last window, or the one before, storage is
    /// late, if these are as long as they may be.
    fn note_late(&mut self, page: u64, usual: u64) {
        let is_ahead = page < self.end() && page.saturating_add(self.len) >= self.start;
        let is_longest = self.len >= self.longest(usual);
        if is_ahead && is_longest && self.late_at != self.start && self.reach < REACH_MAX {
            self.reach += 1;
            self.late_at = self.start;
        }
    }

    /// Returns the pages to read for a miss. `cached_before` counts the resident pages right before
    /// the missing one, up to its argument.
    pub(super) fn on_miss(
        &mut self,
        miss: Miss,
        bounds: WindowBounds,
        cached_before: impl FnOnce(u64) -> u64,
    ) -> Window {
        let Miss { page, asked, last } = miss;
        let asked = asked.clamp(1, bounds.max.max(1));
        let max = bounds.max_of_pattern();
        let alone = page..page.saturating_add(asked);
        if max < 2 || bounds.pattern == ReadPattern::Random {
            return bounds.cut(alone, None, asked);
        }
        if self.expects(page) {
            self.go_on(page, next_len(self.len, max), asked);
        } else if self.contains(page) {
            self.reach = 0;
            self.go_on(page, (self.len / 2).max(asked).max(2), asked);
        } else if self.begins_at(page, asked, last, bounds) {
            self.reach = 0;
            self.go_on(page, first_len(asked, max), asked);
        } else {
            let before = cached_before(max).min(page);
            if before <= asked {
                return bounds.cut(alone, None, asked);
            }
            // The run reaches the start of the file, which is likely to be read to its end.
            let before = if before == page { before * 2 } else { before };
            self.go_on(page, (before + asked).min(max), asked);
        }
        self.window(bounds, asked)
    }

    /// Returns the window to read at a marked page, if any. `first_missing` finds the first page
    /// that is not in the cache, within a number of pages from its argument.
    pub(super) fn on_mark(
        &mut self,
        page: u64,
        bounds: WindowBounds,
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
        self.go_on(start, len, 0);
        Some(self.window(bounds, 0))
    }

    /// Drops the unread end of the last window: memory or storage refused it.
    pub(super) fn cut(&mut self, end: u64) {
        if self.contains(end) {
            self.len = end - self.start;
            self.ahead = self.ahead.min(self.len);
        }
    }

    fn go_on(&mut self, start: u64, len: u64, asked: u64) {
        let ahead = len.saturating_sub(asked);
        (self.start, self.len, self.ahead) = (start, len, ahead);
    }

    /// Returns whether the stream continues at `page` if its mark was not read.
    fn expects(&self, page: u64) -> bool {
        self.len > 0 && page == self.end()
    }

    fn contains(&self, page: u64) -> bool {
        page.checked_sub(self.start).is_some_and(|at| at < self.len)
    }

    fn begins_at(&self, page: u64, asked: u64, last: Option<u64>, bounds: WindowBounds) -> bool {
        let is_next = last.is_some_and(|last| page == last || page == last.saturating_add(1));
        page == 0 || is_next || asked > 1 || bounds.pattern == ReadPattern::Sequential
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    fn mark(&self) -> u64 {
        self.end() - self.ahead
    }

    fn window(&mut self, bounds: WindowBounds, asked: u64) -> Window {
        let mark = (self.ahead > 0).then_some(self.mark());
        let window = bounds.cut(self.start..self.end(), mark, asked);
        self.cut(window.pages.end.0);
        window
    }
}

impl WindowBounds {
    fn max_of_pattern(&self) -> u64 {
        match self.pattern {
            ReadPattern::Sequential => self.max.saturating_mul(2),
            ReadPattern::Normal | ReadPattern::Random => self.max,
        }
    }

    /// Cuts a window at the end of the file. A call asks for its first `asked` pages.
    fn cut(&self, pages: Range<u64>, mark: Option<u64>, asked: u64) -> Window {
        let end = pages.end.min(self.file.max(pages.start));
        Window {
            mark: mark.filter(|mark| *mark < end).map(FilePage),
            ahead: FilePage(pages.start.saturating_add(asked).min(end)),
            pages: FilePage(pages.start)..FilePage(end),
        }
    }
}

/// Returns the size of a stream's first window.
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

/// Returns the size of the window after one of `len`.
fn next_len(len: u64, max: u64) -> u64 {
    if len < max / 16 {
        len * 4
    } else if len <= max / 2 {
        len * 2
    } else {
        max
    }
}

/// The readahead state of one handle. Threads may share it; each decides at once, and together they
/// read at worst as much as each would have read alone.
#[derive(Debug)]
pub struct Readahead {
    state: Mutex<ReadaheadState>,
    /// The page of the last access, plus one; 0 before the first. Written and read by: readers.
    /// Publishes: nothing; a page that is mistaken for the successor of another thread's costs a
    /// window of the smallest size.
    last: AtomicU64,
}

#[derive(Debug, Default)]
struct ReadaheadState {
    stream: Stream,
    pattern: ReadPattern,
    /// Misses in a row that were out of order.
    jumps: u32,
}

impl ReadaheadState {
    /// Counts misses that are out of order.
    fn note_miss(&mut self, Miss { page, last, .. }: Miss) {
        let follows = last.is_some_and(|last| page == last || page == last.saturating_add(1));
        self.jumps = match follows || self.stream.expects(page) {
            true => 0,
            false => self.jumps.saturating_add(1),
        };
    }

    fn bounds(&self, file: &FileEntry, max: Pages) -> WindowBounds {
        WindowBounds {
            max: max.0.min(self.stream.longest(usual(file))),
            file: file.pages(),
            pattern: self.pattern,
        }
    }
}

/// Returns the longest window of a stream that storage keeps up with, in pages of the file.
fn usual(file: &FileEntry) -> u64 {
    READAHEAD_USUAL.0 >> file.order().get()
}

impl Default for Readahead {
    fn default() -> Self {
        Self {
            state: Mutex::new(&READAHEAD_LOCK, ReadaheadState::default()),
            last: AtomicU64::new(0),
        }
    }
}

impl Readahead {
    /// Sets the read pattern.
    pub fn set_pattern(&self, pattern: ReadPattern) {
        self.state.lock().pattern = pattern;
    }

    /// Returns the read pattern.
    #[must_use]
    pub fn pattern(&self) -> ReadPattern {
        self.state.lock().pattern
    }

    /// Records an access to a page; returns whether it is a different page from last time.
    pub fn note_asked(&self, FilePage(page): FilePage) -> bool {
        // Relaxed, both: see the field.
        let is_other = self.last.load(Ordering::Relaxed) != page + 1;
        if is_other {
            self.last.store(page + 1, Ordering::Relaxed);
        }
        is_other
    }

    /// Notes that a reader waits for a page that is being read.
    pub fn note_late(&self, file: &FileEntry, FilePage(page): FilePage) {
        self.state.lock().stream.note_late(page, usual(file));
    }

    /// Drops the unread end of a window.
    pub fn cut(&self, end: FilePage) {
        self.state.lock().stream.cut(end.0);
    }
}

impl Filling {
    /// Returns the page's key.
    #[must_use]
    pub fn key(&self) -> PageKey {
        self.key
    }

    /// Returns the page's number in its file.
    #[must_use]
    pub fn page(&self) -> FilePage {
        self.key.page()
    }
}

impl PageCache {
    /// Returns the window to read for a missing page; the caller is going to read `asked` pages
    /// from it on. Windows have at most `max` pages.
    pub fn window_of_miss(
        &self,
        readahead: &Readahead,
        file: &FileEntry,
        FilePage(page): FilePage,
        asked: u64,
        max: Pages,
    ) -> Window {
        // Relaxed: see the field.
        let last = readahead.last.load(Ordering::Relaxed).checked_sub(1);
        let mut state = readahead.state.lock();
        let bounds = state.bounds(file, max);
        let miss = Miss { page, asked, last };
        state.note_miss(miss);
        let mut window = state.stream.on_miss(miss, bounds, |most| {
            let mut before = (page.saturating_sub(most)..page).rev();
            let missing = before.position(|page| !self.seems_cached(file.key(page)));
            missing.map_or(most.min(page), |at| at as u64)
        });
        window.cut_ahead(file.credit().allowed());
        state.stream.cut(window.pages.end.0);
        if max >= Pages(2) {
            match state.jumps {
                0 => file.note_order(ReadPattern::Normal),
                JUMPS => file.note_order(ReadPattern::Random),
                _ => {}
            }
        }
        window
    }

    /// Returns the window to read at a page whose mark was set, if any.
    pub fn window_of_mark(
        &self,
        readahead: &Readahead,
        file: &FileEntry,
        FilePage(page): FilePage,
        max: Pages,
    ) -> Option<Window> {
        let mut state = readahead.state.lock();
        let bounds = state.bounds(file, max);
        let mut window = state.stream.on_mark(page, bounds, |from, most| {
            let mut after = from..from.saturating_add(most).min(bounds.file);
            after.find(|page| !self.seems_cached(file.key(*page)))
        })?;
        window.cut_ahead(file.credit().allowed());
        state.stream.cut(window.pages.end.0);
        (window.pages.start < window.pages.end).then_some(window)
    }

    /// Returns whether a page is in the index, by a lookup without a lock: it may be inserted or
    /// removed meanwhile, and a walk that races with a change can miss it.
    #[must_use]
    pub fn seems_cached(&self, key: PageKey) -> bool {
        let is_there = |pfn| (self.index.key_of(pfn) == Some(key)).then_some(());
        self.index.find(key, is_there).is_some()
    }

    /// Returns whether a page seems to be resident and marked: its reader has to read the next
    /// window first.
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

    /// Returns whether no call has asked for a page that is being read in.
    #[must_use]
    pub fn is_filled_ahead(&self, filling: &Filling) -> bool {
        self.has_flag(filling.frame.pfn(), PageFlag::Ahead)
    }
}
