//! Reads through a mapping as futures, and prefetching: faults during which no thread waits.
//!
//! The steps are those of a blocking fault (`fault.rs`, `fill.rs`), except for the three that wait:
//!
//! | a blocking fault waits for | a polled one |
//! |---|---|
//! | a fill or eviction of the page by another thread | is woken when it ends, and looks again |
//! | memory | reclaims clean pages; if there are none, is woken when a flight lands, or polled again while other tasks have pages to take; if there is neither, waits like a blocking fault |
//! | storage | launches the window, and is woken when its own page has landed |

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::Core;
use super::access::PinnedPage;
use super::error::{RangeError, ReadError};
use super::fault::{Found, ROUNDS_MAX};
use super::fill::FillSource;
use super::flight::Landing;
use super::mapping::Mapping;
use super::slow::Patience;
use crate::cache::{PageFlag, Presence, VmArea};
use crate::memmap::Pinned;
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
    map: Mapping,
    page: MapPage,
    /// Where the page will land, once it is afloat.
    landing: Option<Arc<Landing>>,
    /// Whether this was counted as a page fault.
    is_counted: bool,
    /// Looks at the page that another thread had been first at.
    rounds: u32,
    /// Looks that found no memory.
    nr_short: u32,
    /// Whether it is counted as waiting for a page that another thread fills.
    is_announced: bool,
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
    /// None until the future is polled; see [`ReadWait`]. A poll evicts clean pages to make room,
    /// and waits for no write-back as long as there are any, or any read is in flight; otherwise it
    /// blocks as [`read`](Self::read) does.
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
            map: self.clone(),
            page: page.into(),
            landing: None,
            is_counted: false,
            rounds: 0,
            nr_short: 0,
            is_announced: false,
        }
    }

    /// Begins to read missing pages in, in any order, and returns without waiting for storage: all
    /// are asked for at once. Takes memory as far as it is available without a victim and without
    /// write-back; skips pages that find none, that are unmapped, or that cannot be read. A later
    /// read waits for a page in flight, and reports its error.
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

/// Result of one look at a missing page.
enum PolledFault {
    /// It was in the cache after all.
    Taken(Pinned, Found),
    /// It is afloat, and will land there.
    Launched(Arc<Landing>),
    /// Another thread was first: look again.
    Again,
    /// The task is woken when another thread's fill or eviction of the page ends.
    Waits,
    /// The task is woken when memory may have come.
    Short,
}

impl Future for ReadWait {
    type Output = Result<PinnedPage, ReadError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.end_announcement();
        let polled = this.advance(context);
        polled.map_ok(|pinned| this.map.pinned_page(pinned))
    }
}

impl ReadWait {
    fn advance(&mut self, context: &mut Context<'_>) -> Poll<Result<Pinned, ReadError>> {
        if self.landing.is_some() {
            debug_assert!(self.is_counted, "a page that is afloat was a fault");
            let landed = self.poll_landing(context);
            if landed.is_pending() {
                self.map.core().see_to_it_from_outside();
            }
            return landed;
        }
        if let Some(pinned) = self.map.pin_resident(self.page)? {
            return Poll::Ready(Ok(pinned));
        }
        let source = FillSource::of(self.map.area());
        if !std::mem::replace(&mut self.is_counted, true) {
            self.map.core().note_fault(source);
        }
        self.look(context)
    }

    /// Looks at a missing page until it is afloat, another thread has it, or it is found.
    fn look(&mut self, context: &mut Context<'_>) -> Poll<Result<Pinned, ReadError>> {
        debug_assert!(self.landing.is_none(), "a page is launched once");
        while self.rounds < ROUNDS_MAX {
            let (core, area) = (self.map.core(), self.map.area());
            let looks_left = ROUNDS_MAX - self.nr_short;
            match core.fault_polled(area, self.page, looks_left, context)? {
                PolledFault::Again => self.rounds += 1,
                PolledFault::Taken(pinned, found) => {
                    core.note_found(FillSource::of(area), area.key(self.page).page(), found);
                    return Poll::Ready(Ok(pinned));
                }
                PolledFault::Launched(landing) => {
                    self.landing = Some(landing);
                    return self.poll_landing(context);
                }
                waits @ (PolledFault::Waits | PolledFault::Short) => {
                    self.nr_short += u32::from(matches!(waits, PolledFault::Short));
                    self.is_announced = core.announce_from_outside();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Err(ReadError::Starved {
            page: self.map.area().key(self.page).page(),
            rounds: ROUNDS_MAX,
        }))
    }

    fn poll_landing(&mut self, context: &mut Context<'_>) -> Poll<Result<Pinned, ReadError>> {
        debug_assert!(!self.is_announced, "the page is in this task's own flight");
        let landing = self.landing.as_ref().expect("it is afloat");
        let landed = landing.poll(context);
        if landed.is_ready() {
            self.landing = None;
        }
        if let Poll::Ready(Ok(_)) = &landed {
            let area = self.map.area();
            let page = area.key(self.page).page();
            self.map
                .core()
                .note_found(FillSource::of(area), page, Found::Read);
        }
        landed
    }

    fn end_announcement(&mut self) {
        if std::mem::take(&mut self.is_announced) {
            self.map.core().io.flights.end_announcement();
        }
    }
}

impl Drop for ReadWait {
    fn drop(&mut self) {
        self.end_announcement();
        // Before the mapping, which may be its file's last handle: a page that has landed here is
        // pinned.
        self.landing = None;
    }
}

impl Core {
    /// Looks at a page of a mapping once: takes it, launches it, or has the task woken. If no
    /// looks are left, takes memory by any means.
    fn fault_polled(
        &self,
        area: &Arc<VmArea>,
        page: MapPage,
        looks_left: u32,
        context: &mut Context<'_>,
    ) -> Result<PolledFault, ReadError> {
        let source = FillSource::of(area);
        let key = area.key(page);
        source.file.check_end(key.page())?;
        match self.cache.poll_lookup(key, context) {
            Poll::Pending => return Ok(PolledFault::Waits),
            Poll::Ready(Presence::Absent) => {}
            Poll::Ready(Presence::Resident(pfn)) => {
                let take = |pfn| {
                    let pinned = self.cache.pin_at(key, pfn)?;
                    self.cache.install(area, page, pfn);
                    Some(pinned)
                };
                if self.cache.clear_flag(pfn, PageFlag::Readahead) {
                    self.launch_ahead(area, key.page());
                }
                let taken = self.take_cached(area.file(), pfn, take);
                return Ok(taken.map_or(PolledFault::Again, |(pinned, found)| {
                    PolledFault::Taken(pinned, found)
                }));
            }
        }
        let window = self.window_of_miss(source, key.page(), 1);
        let supply = match self.supply_now(source) {
            Some(supply) => supply,
            None if looks_left > 0 && self.may_have_memory(context) => {
                return Ok(PolledFault::Short);
            }
            None => self.supply_one(source, key.page())?,
        };
        let Some(fills) = self.begin_wanted(source, &window, supply) else {
            return Ok(PolledFault::Again);
        };
        let mut flights = fills.set_afloat(area);
        let landing = flights[0].deliver(page, &self.io.flights);
        self.launch(flights);
        Ok(PolledFault::Launched(landing))
    }

    /// Returns whether other reads may give memory back; has the task woken then.
    fn may_have_memory(&self, context: &mut Context<'_>) -> bool {
        if self.io.flights.watch(context) {
            return true;
        }
        // Other tasks have pages pinned that they have not been polled for.
        let is_any_untaken = self.io.flights.is_any_untaken();
        if is_any_untaken {
            context.waker().wake_by_ref();
        }
        is_any_untaken
    }

    /// Launches the window that a readahead mark triggers.
    #[cold]
    fn launch_ahead(&self, area: &Arc<VmArea>, page: FilePage) {
        let source = FillSource::of(area);
        if let Some(window) = self.window_of_mark(source, page) {
            let fills = self.begin_ahead(source, &window, Patience::Polled);
            self.launch(fills.set_afloat(area));
        }
    }

    /// Launches those of `pages` that are missing, as far as there is memory.
    fn prefetch(&self, area: &Arc<VmArea>, pages: &[MapPage]) {
        let source = FillSource::of(area);
        let is_missing =
            |page: &&MapPage| !area.is_hole(**page) && !self.cache.seems_cached(area.key(**page));
        let missing = pages.iter().filter(is_missing);
        let missing: Vec<FilePage> = missing.map(|page| area.key(*page).page()).collect();
        let (mut at, mut batch) = (0, PREFETCH_BATCH);
        let mut flights = Vec::new();
        // Terminates: `batch` falls to 1 once, and then each round takes a page.
        while at < missing.len() {
            let some = missing[at..].iter().take(batch).copied().collect();
            let fills = self.begin_pages(source, some, None, Patience::Polled);
            let is_refused = !fills.has_memory();
            flights.extend(fills.set_afloat(area));
            match (is_refused, batch) {
                (false, _) => at += batch,
                (true, 1) => break,
                // Less than a batch may be left.
                (true, _) => batch = 1,
            }
        }
        self.launch(flights);
        // No task takes them.
        self.see_to_it();
    }
}

impl fmt::Debug for ReadWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, landing, .. } = self;
        f.debug_struct("ReadWait")
            .field("page", page)
            .field("landing", landing)
            .finish_non_exhaustive()
    }
}
