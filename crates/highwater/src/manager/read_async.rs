//! Reads through a mapping as futures, and prefetching: faults during which no thread waits.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::Core;
use super::access::PinnedPage;
use super::error::{RangeError, ReadError};
use super::fault_polled::TaskFault;
use super::flight::Arrived;
use super::mapping::Mapping;
use super::slow::Patience;
use super::source::FillSource;
use crate::cache::VmArea;
use crate::sync::Arc;
use crate::units::{FilePage, MapPage};

/// Pages that a prefetch takes memory for at once. Chosen: as many as a cluster of reclaim frees.
const PREFETCH_BATCH: usize = 32;

/// A page of a mapping that is read in without a thread that waits for it: a future of a
/// [`PinnedPage`], for any runtime. Returned by [`Mapping::read_async`].
///
/// Dropping it does not stop the read: the page becomes resident all the same.
///
/// # Cost
///
/// As [`Mapping::pin`] if the page is resident. Otherwise, in the polls, the processor time of a
/// fault, of which reclaim is a part.
///
/// # Errors
///
/// As [`Mapping::read`].
///
/// # Examples
///
/// ```
/// # use highwater::Manager;
/// # let source = tempfile::NamedTempFile::new()?;
/// # std::fs::write(source.path(), [7; 3 * 4096])?;
/// # let hw = Manager::builder().build()?;
/// # let file = hw.open(source.path())?;
/// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
/// let task = std::thread::spawn({
///     let hw = hw.clone();
///     move || hw.block_on(map.read_async(1))
/// });
/// assert_eq!(*task.join().unwrap()?, [7; 4096]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a read that is not awaited reads nothing"]
pub struct ReadWait {
    page: MapPage,
    // Before the mapping, which may be its file's last handle: a page that has landed here is
    // pinned.
    fault: TaskFault,
    map: Mapping,
}

impl Mapping {
    /// Reads a page of a read-only file as a future: many reads can be in flight on one thread. A
    /// resident page is pinned at once; a missing one is read in, with its readahead window, by
    /// io_uring or by threads of the manager.
    ///
    /// The future needs no runtime. [`Manager::block_on`](super::Manager::block_on) runs it with
    /// the least effort: outside of it, the system is called for each read, and a thread of the
    /// manager wakes the task.
    ///
    /// # Cost
    ///
    /// None until the future is polled; see [`ReadWait`]. A poll evicts clean pages to make room.
    /// Where there are none, the task waits for pages that are being read in for the full group;
    /// without those, the poll blocks as [`read`](Self::read) does.
    ///
    /// # Examples
    ///
    /// Reads in flight on one thread, without a runtime:
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let first = map.read_async(0);
    /// let page = hw.block_on(first)?;
    /// assert_eq!(*page, [7; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_async(&self, page: impl Into<MapPage>) -> ReadWait {
        ReadWait {
            page: page.into(),
            fault: TaskFault::default(),
            map: self.clone(),
        }
    }

    /// Begins to read missing pages in, in any order, and returns without waiting for storage: all
    /// are asked for at once. Takes memory as far as it is available without a victim and without
    /// write-back; skips pages that find none, that are unmapped, that were never written (of
    /// memory), or that cannot be read, with the rest of the same read of storage. A later read
    /// waits for a page in flight, and reports its error.
    ///
    /// # Cost
    ///
    /// A lookup for each page, memory for each missing one, and a system call.
    ///
    /// # Errors
    ///
    /// When a page is not within the mapping; nothing is read then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// map.prefetch([2, 0])?;
    /// let guard = hw.enter();
    /// assert_eq!(map.read(&guard, 0)?, map.read(&guard, 2)?); // one wait for both
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefetch(
        &self,
        pages: impl IntoIterator<Item = impl Into<MapPage>>,
    ) -> Result<(), RangeError> {
        let mut wanted: Vec<MapPage> = pages.into_iter().map(Into::into).collect();
        for page in &wanted {
            self.check_range(*page..MapPage(page.0.saturating_add(1)))?;
        }
        wanted.sort_unstable();
        wanted.dedup();
        self.core().prefetch(self.area(), &wanted);
        Ok(())
    }
}

impl Future for ReadWait {
    type Output = Result<PinnedPage, ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.fault.end_announcement(this.map.core());
        if !this.fault.is_afloat()
            && let Some(pinned) = this.map.pin_resident(this.page)?
        {
            return Poll::Ready(Ok(this.map.pinned_page(pinned)));
        }
        let arrived = ready!(this.fault.poll(&this.map, this.page, context))?;
        let Arrived::Pinned(pinned) = arrived else {
            unreachable!("pages of a file that is only read are pinned");
        };
        Poll::Ready(Ok(this.map.pinned_page(pinned)))
    }
}

impl Drop for ReadWait {
    fn drop(&mut self) {
        self.fault.end(&self.map, self.page);
    }
}

impl Core {
    /// Launches those of `pages` that are missing, as far as there is memory.
    fn prefetch(&self, area: &Arc<VmArea>, pages: &[MapPage]) {
        let source = FillSource::of(area);
        let is_missing =
            |page: &&MapPage| !area.is_hole(**page) && !self.cache.seems_cached(area.key(**page));
        let missing = pages.iter().filter(is_missing);
        let missing = missing.map(|page| area.key(*page).page());
        // Memory that was never written has nothing to be read.
        let missing: Vec<FilePage> = missing.filter(|it| source.file.is_stored(*it)).collect();
        let (mut at, mut batch) = (0, PREFETCH_BATCH);
        // Terminates: `batch` falls to 1 once, and then each round takes a page.
        while at < missing.len() {
            let some = missing[at..].iter().take(batch).copied().collect();
            let fills = self.begin_pages(source, some, None, Patience::Polled);
            let is_refused = !fills.has_memory();
            // Before the next ones take memory, which may need these.
            self.set_off(fills.set_afloat());
            match (is_refused, batch) {
                (false, _) => at += batch,
                (true, 1) => break,
                // Less than a batch may be left.
                (true, _) => batch = 1,
            }
        }
        // No task takes them.
        self.see_to_it();
    }
}

impl fmt::Debug for ReadWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, fault, .. } = self;
        f.debug_struct("ReadWait")
            .field("page", page)
            .field("fault", fault)
            .finish_non_exhaustive()
    }
}
