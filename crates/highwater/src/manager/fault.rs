//! The page fault: the path of every miss.
//!
//! One thread reads a page; other threads that need it wait and then look it up again. The faulting
//! group pays. On any failure (no memory, an I/O error, a short read, a panic of the storage) the
//! page is absent as before: the frame is freed, nothing stays charged, and each waiting thread
//! tries for itself.

use std::time::Duration;

use super::Core;
use super::error::ReadError;
use super::fill::{MOVE_PAUSE, MOVES_MAX};
use super::slow::Patience;
use super::source::FillSource;
use crate::cache::{FileEntry, PageFlag, PageKey, Presence, VmArea, Window};
use crate::group::StatItem;
use crate::sync::Arc;
use crate::units::{FilePage, MapPage, Pfn};

/// Limit on the rounds of one fault. A round ends when another thread filled or evicted the page
/// meanwhile; a page that this thread has filled itself is taken before it can be evicted.
pub(super) const ROUNDS_MAX: u32 = 10_000;

/// The time until a thread that waits for a page looks for its flight in the queue of the threads
/// again. Chosen: a flight that is queued after the first look is rare.
const QUEUE_LOOK: Duration = Duration::from_millis(10);

/// The source of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// In the cache.
    Cached,
    /// In the cache by readahead, and this is its first access.
    Ahead,
    /// Read by this thread, from its file or from swap.
    Read,
    /// A new page of anonymous or shared memory, zeroed.
    Zeroed,
}

impl FileEntry {
    /// Checks that a page is not behind the end of the file.
    #[inline]
    pub(super) fn check_end(&self, page: FilePage) -> Result<(), ReadError> {
        let pages = self.pages();
        match page.0 < pages {
            true => Ok(()),
            false => Err(ReadError::BehindEnd { page, pages }),
        }
    }
}

impl VmArea {
    /// Returns whether a page was cut off: of anonymous memory, which is zeros once it is unmapped,
    /// or behind the file's end. Decided for as long as the caller holds the page's latch.
    #[inline]
    pub(super) fn is_cut_off(&self, page: MapPage) -> bool {
        let key = self.key(page);
        let is_unmapped = key.file().kind().is_swap_backed() && self.is_hole(page);
        is_unmapped || self.file().check_end(key.page()).is_err()
    }
}

impl Core {
    /// Makes a page of a mapping resident and hands its frame to `take`, which may find that the
    /// frame no longer holds the page.
    pub(super) fn fault<R>(
        &self,
        area: &Arc<VmArea>,
        page: MapPage,
        take: impl FnMut(Pfn) -> Option<R>,
    ) -> Result<R, ReadError> {
        debug_assert!(page.0 < area.pages(), "the caller has checked page {page}");
        let source = FillSource::of(area);
        let page = area.key(page).page();
        self.note_fault(source);
        let (taken, found) = self.bring_in(source, page, 1, take)?;
        self.note_found(source, page, found);
        Ok(taken)
    }

    /// Counts a page fault.
    pub(super) fn note_fault(&self, source: FillSource<'_>) {
        self.stats.pgfault.add(1);
        source.group.add_stat(StatItem::Pgfault, 1);
    }

    /// Records the page that a fault brought in, and counts it if it was read.
    pub(super) fn note_found(&self, source: FillSource<'_>, page: FilePage, found: Found) {
        source.readahead.note_asked(page);
        if found == Found::Read {
            self.stats.pgmajfault.add(1);
            source.group.add_stat(StatItem::Pgmajfault, 1);
        }
    }

    /// Makes a page resident, along with its readahead window. The caller goes on to read `asked`
    /// pages from it on.
    pub(super) fn bring_in<R>(
        &self,
        source: FillSource<'_>,
        page: FilePage,
        asked: u64,
        mut take: impl FnMut(Pfn) -> Option<R>,
    ) -> Result<(R, Found), ReadError> {
        debug_assert!(asked > 0, "the page itself is read");
        let mut nr_moves = 0;
        for _ in 0..ROUNDS_MAX {
            source.file.check_end(page)?;
            let key = source.file.key(page);
            if let Presence::Resident(pfn) = self.lookup(source, key) {
                let Some(taken) = self.take_resident(source, page, pfn, &mut take) else {
                    continue;
                };
                return Ok(taken);
            }
            let window = self.window_of_miss(source, page, asked);
            let supply = self.supply_one(source, page)?;
            let Some(mut fills) = self.begin_wanted(source, &window, supply) else {
                continue;
            };
            // Checked before the page becomes resident, which may change it.
            let is_stored = source.file.is_stored(page);
            let version = source.file.size_version();
            if let Err(error) = fills.read() {
                if !source.file.is_resized_since(version) || nr_moves == MOVES_MAX {
                    return Err(error);
                }
                // The file's end has moved while its page was read, or is about to move.
                nr_moves += 1;
                drop(fills);
                source.file.wait_for_resize(MOVE_PAUSE);
                continue;
            }
            let taken = fills.finish(take).expect("a page on no list stays");
            let found = if is_stored {
                Found::Read
            } else {
                Found::Zeroed
            };
            return Ok((taken, found));
        }
        Err(ReadError::Starved {
            page,
            rounds: ROUNDS_MAX,
        })
    }

    /// Looks a page up, after waiting for a fill or eviction of it.
    fn lookup(&self, source: FillSource<'_>, key: PageKey) -> Presence {
        if let Some(presence) = self.cache.lookup_now(key) {
            return presence;
        }
        source.readahead.note_late(source.file, key.page());
        // The page may be afloat, and no other thread waiting for storage.
        let _waiting = self.wait_for_others();
        loop {
            // Or in a flight that no thread has begun, because all are in storage that itself waits
            // for pages such as this one.
            self.fly_queued(key);
            if let Some(presence) = self.cache.lookup_for(key, QUEUE_LOOK) {
                return presence;
            }
        }
    }

    /// Returns the window to read for a missing page.
    pub(super) fn window_of_miss(
        &self,
        source: FillSource<'_>,
        page: FilePage,
        asked: u64,
    ) -> Window {
        let max = self.window_max(source);
        let FillSource {
            file, readahead, ..
        } = source;
        if file.id().kind().is_swap_backed() {
            let memory = (
                self.pool.managed(),
                source.group.effective_max().pages_floor(),
            );
            return self
                .cache
                .window_of_swapped(readahead, file, page, max, memory);
        }
        self.cache.window_of_miss(readahead, file, page, asked, max)
    }

    /// Takes a page that a lookup found in a frame, unless it has left.
    fn take_resident<R>(
        &self,
        source: FillSource<'_>,
        page: FilePage,
        pfn: Pfn,
        take: impl FnOnce(Pfn) -> Option<R>,
    ) -> Option<(R, Found)> {
        // Before the page is pinned or latched, so that the I/O happens under no latch.
        if self.cache.clear_flag(pfn, PageFlag::Readahead) {
            self.read_ahead_from(source, page, Patience::Modest);
        }
        self.take_cached(source.file, pfn, take)
    }

    /// As [`take_resident`](Self::take_resident), for a page whose mark was seen to.
    pub(super) fn take_cached<R>(
        &self,
        file: &FileEntry,
        pfn: Pfn,
        take: impl FnOnce(Pfn) -> Option<R>,
    ) -> Option<(R, Found)> {
        let is_first = self.cache.note_access(file, pfn);
        let taken = take(pfn)?;
        if !is_first {
            return Some((taken, Found::Cached));
        }
        // As for a read that brings its page in.
        self.cache.forget_young(pfn);
        Some((taken, Found::Ahead))
    }

    /// Reads the window that a readahead mark triggers: while the caller goes on, if it must not
    /// wait or the manager [reads aside](Self::reads_aside).
    #[cold]
    pub(super) fn read_ahead_from(
        &self,
        source: FillSource<'_>,
        page: FilePage,
        patience: Patience,
    ) {
        let FillSource {
            file, readahead, ..
        } = source;
        let max = self.window_max(source);
        let Some(window) = self.cache.window_of_mark(readahead, file, page, max) else {
            return;
        };
        let begin = || self.begin_ahead(source, &window, patience);
        match patience {
            Patience::Polled => self.launch(begin().set_afloat()),
            _ if self.reads_aside(file) => self.launch_beside(begin().set_afloat()),
            _ => self.read_ahead(source, &window),
        }
    }

    /// Returns whether windows of a file are read while the thread that came to the mark goes on.
    ///
    /// Not without background threads, because a flight needs one to land it. Not of a buffered
    /// file, which the kernel reads ahead aside: what is left is a copy, and a scan of cached pages
    /// takes 1.7 times as long where another thread makes it.
    fn reads_aside(&self, file: &FileEntry) -> bool {
        let is_buffered = file.system_file().is_some_and(|it| !it.is_direct());
        !is_buffered && self.wakeup.has_thread()
    }

    /// Reads the missing pages of a window, as far as memory and storage allow.
    pub(super) fn read_ahead(&self, source: FillSource<'_>, window: &Window) {
        let mut fills = self.begin_ahead(source, window, Patience::Modest);
        match fills.read() {
            Ok(()) => fills.finish_ahead(),
            Err(error) => tracing::debug!(%error, "readahead gave up"),
        }
    }
}
