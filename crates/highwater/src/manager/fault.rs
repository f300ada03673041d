//! The page fault: the path of every miss.
//!
//! One thread reads a page; other threads that need it wait and then look it up again. The faulting
//! group pays. On any failure (no memory, an I/O error, a short read, a panic of the storage) the
//! page is absent as before: the frame is freed, nothing stays charged, and each waiting thread
//! tries for itself.

use super::Core;
use super::error::ReadError;
use super::fill::FillSource;
use crate::cache::{PageFlag, Presence, VmArea, Window};
use crate::group::StatItem;
use crate::units::{FilePage, MapPage, Pfn};

/// Limit on the rounds of one fault. A round ends when another thread filled or evicted the page
/// meanwhile; a page that this thread has filled itself is taken before it can be evicted.
const ROUNDS_MAX: u32 = 10_000;

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

impl Core {
    /// Makes a page of a mapping resident and hands its frame to `take`, which may find that the
    /// frame no longer holds the page.
    pub(super) fn fault<R>(
        &self,
        area: &VmArea,
        page: MapPage,
        take: impl FnMut(Pfn) -> Option<R>,
    ) -> Result<R, ReadError> {
        debug_assert!(page.0 < area.pages(), "the caller has checked page {page}");
        let source = FillSource::of(area);
        let (group, page) = (source.group, area.key(page).page());
        self.stats.pgfault.add(1);
        group.add_stat(StatItem::Pgfault, 1);
        let (taken, found) = self.bring_in(source, page, 1, take)?;
        source.readahead.note_asked(page);
        if found == Found::Read {
            self.stats.pgmajfault.add(1);
            group.add_stat(StatItem::Pgmajfault, 1);
        }
        Ok(taken)
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
        for _ in 0..ROUNDS_MAX {
            if let Presence::Resident(pfn) = self.cache.lookup(source.file.key(page)) {
                // Before the page is pinned or latched, so that the I/O happens under no latch.
                if self.cache.clear_flag(pfn, PageFlag::Readahead) {
                    self.read_ahead_from(source, page);
                }
                let is_first = self.cache.clear_flag(pfn, PageFlag::Unread);
                let Some(taken) = take(pfn) else {
                    continue;
                };
                if is_first {
                    // As for a read that brings its page in.
                    self.cache.forget_young(pfn);
                    return Ok((taken, Found::Ahead));
                }
                return Ok((taken, Found::Cached));
            }
            let max = self.window_max(source);
            let FillSource {
                file, readahead, ..
            } = source;
            let window = self.cache.window_of_miss(readahead, file, page, asked, max);
            let Some(mut fills) = self.begin_wanted(source, &window)? else {
                continue;
            };
            // Checked before the page becomes resident, which may change it.
            let is_stored = file.is_stored(page);
            fills.read()?;
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

    /// Reads the window that a readahead mark triggers.
    #[cold]
    fn read_ahead_from(&self, source: FillSource<'_>, page: FilePage) {
        let FillSource {
            file, readahead, ..
        } = source;
        let max = self.window_max(source);
        if let Some(window) = self.cache.window_of_mark(readahead, file, page, max) {
            self.read_ahead(source, &window);
        }
    }

    /// Reads the missing pages of a window, as far as memory and storage allow.
    pub(super) fn read_ahead(&self, source: FillSource<'_>, window: &Window) {
        let mut fills = self.begin_ahead(source, window);
        match fills.read() {
            Ok(()) => fills.finish_ahead(),
            Err(error) => tracing::debug!(%error, "readahead gave up"),
        }
    }
}
