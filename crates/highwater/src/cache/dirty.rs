//! Dirty pages: marks with times, counts and limits.
//!
//! A page is dirty from the first mutable access under a write latch until its storage has taken it
//! completely. The mark is set under the page's exclusive latch, before the bytes can change, and
//! cleared under the hold of write-back (module `writeback`). With it change the counts of the
//! cache and of the group that pays for the page.
//!
//! Dirty file pages are limited. Above the *background* limit they should be written back; above
//! the *dirty* limit writers are throttled, or write back themselves, before they take another
//! page. The cache only reports the state ([`DirtyPressure`], [`PageCache::is_dirty_exceeded`]).
//! Swap-backed pages have no file that must receive them in time: they are marked, but neither
//! counted nor limited.
//!
//! Pages are written back in the order in which they became dirty. A page whose write fails goes to
//! the end of that order: it counts as dirty since then, and comes after all pages that have not
//! failed. So storage that is full or broken does not delay the write-back of other files; nor do
//! latched pages, which are skipped.
//!
//! Source: `balance_dirty_pages` and the flusher of Linux (`redirty_tail` for failed writes).
//! Deviation: pages are found by their marks, a byte for each frame, instead of by lists of files.

use std::cmp::Reverse;
use std::ops::AddAssign;

use super::gather::IfHeld;
use super::{
    FileEntry, FileId, PageCache, PageFlag, PageKey, SyncError, WriteBackError, WriteBackOutcome,
    WrittenBack,
};
use crate::group::{GroupNode, GroupTree, StatItem};
use crate::memmap::zeroed;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{OnceLock, StatCell};
use crate::units::{GroupId, Order, Pages, Pfn};

/// Limit on pages skipped in one run. Chosen: more than threads latch at a time.
const PASSED_OVER_MAX: u64 = 1024;

/// The dirty marks of all frames.
pub(super) struct DirtyPages {
    /// By frame: written since the last write-back.
    /// Written by: latch holders. Read by: reclaim, write-back. Publishes: when clear, that the
    /// file has taken the page; a thread that acts on a set mark holds the latch.
    marks: Box<[AtomicBool]>,
    /// By frame: the time of `clock` at which it was marked, or its write last failed. Written and
    /// read as `marks`. Publishes: nothing.
    since: Box<[AtomicU32]>,
    /// Centiseconds, as last set. Written by: the timekeeper. Read by: threads that mark pages.
    /// Publishes: nothing.
    clock: AtomicU32,
    /// Frames of marked pages of files.
    /// Written by: latch holders. Read by: any thread. Publishes: nothing; a thread that acts on it
    /// looks again.
    nr_dirty: AtomicU64,
    /// Written by: setters of limits. Read by: threads that mark pages. Publishes: nothing.
    background: AtomicU64,
    /// As `background`.
    limit: AtomicU64,
    /// Whether dirty pages exceeded the limit at the last check: writers read it on a cache line
    /// that seldom changes. Written by: threads that mark pages or have written back. Read by:
    /// threads about to write. Publishes: nothing.
    is_exceeded: AtomicBool,
    /// The groups whose dirty pages are counted.
    groups: OnceLock<GroupTree>,
    nr_dirtied: StatCell,
    pub(super) nr_written: StatCell,
    pub(super) nr_write_failed: StatCell,
    pub(super) nr_wal_blocked: StatCell,
}

/// Events of file pages since the cache was created, as `docs/stats.md` defines them.
#[derive(Clone, Copy, Debug)]
pub struct DirtyEvents {
    /// Pages that became dirty.
    pub nr_dirtied: u64,
    /// Pages that were written back.
    pub nr_written: u64,
    /// Failed writes of pages.
    pub nr_write_failed: u64,
    /// Pages skipped because their logs were not durable as far.
    pub nr_wal_blocked: u64,
}

/// Dirty file pages in relation to the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirtyPressure {
    /// Below both limits.
    None,
    /// Above the background limit: pages should be written back.
    Background,
    /// Above the dirty limit: writers should be throttled.
    Exceeded,
}

impl WriteBackOutcome {
    /// Records the result for one page.
    pub(super) fn note(
        &mut self,
        cache: &PageCache,
        pfn: Pfn,
        write_back: impl FnOnce() -> Result<WrittenBack, WriteBackError>,
    ) {
        let was_refused = cache.has_flag(pfn, PageFlag::Refused);
        let frames = cache.order_of(pfn).pages().0;
        match write_back() {
            Ok(WrittenBack::Written) => self.nr_written += frames,
            Ok(WrittenBack::Awaited(key)) => {
                self.nr_written += frames;
                self.awaited.push((pfn, key));
            }
            Ok(WrittenBack::Latched) => self.nr_latched += 1,
            Ok(WrittenBack::Clean | WrittenBack::NoSlot | WrittenBack::HeldUp) => {}
            Err(error) => {
                self.nr_failed += 1;
                self.nr_failed_first += u64::from(!was_refused);
                self.first_error.get_or_insert(error);
            }
        }
    }

    /// Converts to the result of a write-back of all pages.
    ///
    /// # Errors
    ///
    /// When any page's write failed.
    pub fn all_written(self) -> Result<(), SyncError> {
        match self.first_error {
            Some(first) => Err(SyncError::WriteBack {
                failed: self.nr_failed,
                first,
            }),
            None => Ok(()),
        }
    }
}

impl AddAssign for WriteBackOutcome {
    /// Adds the result for further pages.
    fn add_assign(&mut self, later: Self) {
        self.nr_written += later.nr_written;
        self.nr_failed += later.nr_failed;
        self.nr_failed_first += later.nr_failed_first;
        self.nr_latched += later.nr_latched;
        self.first_error = self.first_error.take().or(later.first_error);
        self.awaited.extend(later.awaited);
        self.held_up.extend(later.held_up);
    }
}

/// A dirty page, as seen without its latch.
#[derive(Clone, Copy, Debug)]
struct DirtyPage {
    was_refused: bool,
    /// Centiseconds since it became dirty, or its write failed.
    age: u32,
    key: PageKey,
    pfn: Pfn,
}

/// Returns the time from `since` to `now`, of a clock that wraps around: 0 where `since` is later,
/// as of a page that became dirty after the clock was read, or before it was set back.
fn age_at(now: u32, since: u32) -> u32 {
    u32::try_from(now.wrapping_sub(since).cast_signed()).unwrap_or(0)
}

/// Returns the group that pays for a page, by the number that `read` returns for that page.
pub(super) fn payer_of(groups: &GroupTree, mut read: impl FnMut() -> GroupId) -> GroupNode {
    // Terminates: each further round means that a group was removed, which has passed the page to
    // an ancestor; the root stays.
    loop {
        let id = read();
        // Read again: if the group was removed meanwhile, another may have its number.
        if let Some(payer) = groups.get(id)
            && read() == id
        {
            return payer;
        }
    }
}

/// Returns the pages in the order of files and pages.
fn in_order(pages: &[DirtyPage]) -> Vec<(PageKey, Pfn)> {
    let mut pages: Vec<_> = pages.iter().map(|page| (page.key, page.pfn)).collect();
    pages.sort_unstable();
    pages
}

/// Removes the first `count` pages in the order of write-back.
fn take_first(pages: &mut Vec<DirtyPage>, count: usize) -> Vec<DirtyPage> {
    if count < pages.len() {
        // Select the first to the end, where they can be split off.
        let at = pages.len() - count;
        pages.select_nth_unstable_by_key(at, |page| {
            (!page.was_refused, page.age, Reverse(page.key))
        });
        return pages.split_off(at);
    }
    std::mem::take(pages)
}

/// Returns the number of frames that hold pages.
fn frames_of(pages: &[DirtyPage]) -> u64 {
    pages.iter().map(|page| page.key.order().pages().0).sum()
}

/// Puts the last pages of a batch back among the others, so that it fills `frames` frames or one
/// page more.
fn spare_excess(batch: &mut Vec<DirtyPage>, others: &mut Vec<DirtyPage>, frames: u64) {
    batch.sort_unstable_by_key(|page| (page.was_refused, Reverse(page.age), page.key));
    let (mut count, mut taken) = (0, 0);
    while taken < frames && count < batch.len() {
        taken += batch[count].key.order().pages().0;
        count += 1;
    }
    others.extend(batch.drain(count..));
}

impl DirtyPages {
    pub(super) fn new(frames: Pages) -> Self {
        let nr_frames = usize::try_from(frames.0).expect("frames fit memory");
        Self {
            marks: zeroed(nr_frames),
            since: zeroed(nr_frames),
            clock: AtomicU32::new(0),
            nr_dirty: AtomicU64::new(0),
            background: AtomicU64::new(u64::MAX),
            limit: AtomicU64::new(u64::MAX),
            is_exceeded: AtomicBool::new(false),
            groups: OnceLock::new(),
            nr_dirtied: StatCell::new(),
            nr_written: StatCell::new(),
            nr_write_failed: StatCell::new(),
            nr_wal_blocked: StatCell::new(),
        }
    }

    fn nr_dirty(&self) -> u64 {
        // Relaxed: see the field.
        self.nr_dirty.load(Ordering::Relaxed)
    }

    fn exceeds(&self, limit: &AtomicU64) -> bool {
        // Relaxed: see the fields.
        self.nr_dirty() > limit.load(Ordering::Relaxed)
    }
}

impl PageCache {
    /// Counts dirty pages for the paying groups of `groups`. Call it on a cache without pages.
    #[must_use]
    pub fn counting_dirty_for(self, groups: GroupTree) -> Self {
        let was_set = self.dirty.groups.set(groups).is_err();
        debug_assert!(!was_set, "the groups are known already");
        self
    }

    /// Returns whether a page must be written back before it can be evicted.
    #[must_use]
    pub fn is_dirty(&self, pfn: Pfn) -> bool {
        // Acquire. Pairs with: the release of `clear_dirty`. A thread that acts on a dirty page
        // holds its latch; one that finds it clean may rely on the file having it.
        self.dirty.marks[pfn.index()].load(Ordering::Acquire)
    }

    /// Returns the current number of frames that hold dirty file pages.
    #[must_use]
    pub fn nr_dirty(&self) -> Pages {
        Pages(self.dirty.nr_dirty())
    }

    /// Returns the events so far.
    #[must_use]
    pub fn dirty_events(&self) -> DirtyEvents {
        DirtyEvents {
            nr_dirtied: self.dirty.nr_dirtied.get(),
            nr_written: self.dirty.nr_written.get(),
            nr_write_failed: self.dirty.nr_write_failed.get(),
            nr_wal_blocked: self.dirty.nr_wal_blocked.get(),
        }
    }

    /// Sets the limits on dirty pages: for background write-back, and for throttling.
    pub fn set_dirty_limits(&self, background: Pages, limit: Pages) {
        // Relaxed, both: see the fields.
        self.dirty.background.store(background.0, Ordering::Relaxed);
        self.dirty.limit.store(limit.0, Ordering::Relaxed);
        self.look_at_dirty_limit();
    }

    /// Returns the limits: background, and dirty.
    #[must_use]
    pub fn dirty_limits(&self) -> (Pages, Pages) {
        // Relaxed, both: see the fields.
        let [background, limit] =
            [&self.dirty.background, &self.dirty.limit].map(|limit| limit.load(Ordering::Relaxed));
        (Pages(background), Pages(limit))
    }

    /// Sets the clock: the time of pages that become dirty from now on.
    pub fn set_dirty_clock(&self, centisecs: u32) {
        // Relaxed: see the field.
        self.dirty.clock.store(centisecs, Ordering::Relaxed);
    }

    /// Compares the dirty pages with the limits.
    #[must_use]
    pub fn dirty_pressure(&self) -> DirtyPressure {
        let dirty = &self.dirty;
        match (
            dirty.exceeds(&dirty.background),
            dirty.exceeds(&dirty.limit),
        ) {
            (_, true) => DirtyPressure::Exceeded,
            (true, false) => DirtyPressure::Background,
            (false, false) => DirtyPressure::None,
        }
    }

    /// Returns whether dirty pages exceeded the limit at the last check.
    ///
    /// # Cost
    ///
    /// One load of a cache line that is written when the result changes.
    #[inline]
    #[must_use]
    pub fn is_dirty_exceeded(&self) -> bool {
        // Relaxed: see the field.
        self.dirty.is_exceeded.load(Ordering::Relaxed)
    }

    /// Checks whether dirty pages exceed the limit.
    pub fn look_at_dirty_limit(&self) -> bool {
        let is_exceeded = self.dirty.exceeds(&self.dirty.limit);
        // Relaxed: see the field. Stored only when it changes.
        if self.is_dirty_exceeded() != is_exceeded {
            self.dirty.is_exceeded.store(is_exceeded, Ordering::Relaxed);
        }
        is_exceeded
    }

    /// Writes back as many dirty file pages as `pages` frames hold, or one more, oldest first, that
    /// are not pinned or latched.
    ///
    /// # Cost
    ///
    /// A load for each frame, a sort of the dirty pages, and the I/O.
    pub fn write_back_oldest(&self, pages: Pages) -> WriteBackOutcome {
        let mut outcome = WriteBackOutcome::default();
        let pages = usize::try_from(pages.0).unwrap_or(usize::MAX);
        self.write_back_first(pages, self.dirty_pages(), &mut outcome);
        self.look_at_dirty_limit();
        outcome
    }

    /// Returns the file pages that have been dirty for at least so many centiseconds, in the order
    /// of files and pages.
    ///
    /// # Cost
    ///
    /// A load for each frame, and a sort of the pages.
    #[must_use]
    pub fn expired_pages(&self, centisecs: u32) -> Vec<(PageKey, Pfn)> {
        let mut expired = self.dirty_pages();
        expired.retain(|page| page.age >= centisecs);
        in_order(&expired)
    }

    /// Writes back those of the pages that are dirty, and not pinned or latched.
    ///
    /// # Cost
    ///
    /// A lookup for each page, and the I/O.
    pub fn write_back_unheld(&self, pages: &[(PageKey, Pfn)]) -> WriteBackOutcome {
        let mut outcome = WriteBackOutcome::default();
        self.write_back_in_order(pages, IfHeld::Pass, &mut outcome);
        self.look_at_dirty_limit();
        outcome
    }

    /// Writes back as many pages as `pages` frames hold, oldest first, skipping those that are held
    /// or fail.
    ///
    /// Terminates: each batch is taken from the rest.
    fn write_back_first(
        &self,
        pages: usize,
        mut left: Vec<DirtyPage>,
        outcome: &mut WriteBackOutcome,
    ) {
        let mut passed_over = 0;
        while outcome.nr_written < pages as u64 && passed_over <= PASSED_OVER_MAX {
            let wanted = pages - usize::try_from(outcome.nr_written).expect("fewer than `pages`");
            let mut batch = take_first(&mut left, wanted);
            if self.order_max() > Order::ZERO {
                spare_excess(&mut batch, &mut left, wanted as u64);
            }
            if batch.is_empty() {
                return;
            }
            let were_refused = batch.iter().all(|page| page.was_refused);
            let (tried, before) = (frames_of(&batch), outcome.nr_written);
            let nr_pages = batch.len() as u64;
            self.write_back_in_order(&in_order(&batch), IfHeld::Pass, outcome);
            let written = outcome.nr_written - before;
            // Storage that failed before usually fails again: one batch is enough to find out.
            if were_refused && written == 0 {
                return;
            }
            debug_assert!(written <= tried, "{written} frames of {tried} were written");
            // In pages, of which some are larger.
            passed_over += (tried - written) * nr_pages / tried;
        }
    }

    /// Returns the dirty file pages.
    fn dirty_pages(&self) -> Vec<DirtyPage> {
        // Relaxed, both: a thread that acts on a page looks again under its latch.
        let now = self.dirty.clock.load(Ordering::Relaxed);
        let since = |pfn: Pfn| self.dirty.since[pfn.index()].load(Ordering::Relaxed);
        let frames = (0..).map(Pfn).take(self.dirty.marks.len());
        let dirty = frames.filter(|&pfn| self.is_dirty(pfn)).filter_map(|pfn| {
            let key = self.key_of(pfn)?;
            (!key.file().kind().is_swap_backed()).then(|| DirtyPage {
                was_refused: self.has_flag(pfn, PageFlag::Refused),
                age: age_at(now, since(pfn)),
                key,
                pfn,
            })
        });
        dirty.collect()
    }

    /// Records that a dirty page's write failed. It is held for write-back.
    pub(super) fn note_refused(&self, pfn: Pfn) {
        self.set_flag(pfn, PageFlag::Refused);
        // Relaxed, both: as in `mark_dirty`.
        let now = self.dirty.clock.load(Ordering::Relaxed);
        self.dirty.since[pfn.index()].store(now, Ordering::Relaxed);
    }

    /// Marks a page dirty; returns whether it was clean. The exclusive latch is held.
    pub(super) fn mark_dirty(&self, pfn: Pfn, key: PageKey) -> bool {
        let dirty = &self.dirty;
        // Relaxed, all: ordered by the latch.
        if dirty.marks[pfn.index()].load(Ordering::Relaxed) {
            return false;
        }
        let now = dirty.clock.load(Ordering::Relaxed);
        dirty.since[pfn.index()].store(now, Ordering::Relaxed);
        if key.file().kind().is_swap_backed() {
            // The swap slot becomes stale.
            let file = self.open_file(key.file());
            file.anon().iter().for_each(|anon| anon.forget(key.page()));
        } else {
            let frames = key.order().pages().0;
            dirty.nr_dirty.fetch_add(frames, Ordering::Relaxed);
            dirty.nr_dirtied.add(frames);
            self.count_for_group(pfn, StatItem::FileDirty, frames.cast_signed());
            if dirty.exceeds(&dirty.limit) {
                self.look_at_dirty_limit();
            }
        }
        dirty.marks[pfn.index()].store(true, Ordering::Relaxed);
        true
    }

    /// Clears the mark of a dirty page, which is held for write-back.
    pub(super) fn clear_dirty(&self, pfn: Pfn, key: PageKey) {
        // Release. Pairs with: the acquire of `is_dirty`: a sync that finds the page clean without
        // its latch makes durable the bytes that were written here.
        self.dirty.marks[pfn.index()].store(false, Ordering::Release);
        self.clear_flag(pfn, PageFlag::Refused);
        self.lsns.clear(pfn);
        if !key.file().kind().is_swap_backed() {
            let frames = key.order().pages().0;
            // Relaxed: see the field.
            self.dirty.nr_dirty.fetch_sub(frames, Ordering::Relaxed);
            self.count_for_group(pfn, StatItem::FileDirty, -frames.cast_signed());
        }
    }

    /// Adds to a statistic of the group that pays for a page.
    pub(super) fn count_for_group(&self, pfn: Pfn, item: StatItem, delta: i64) {
        if let Some(groups) = self.dirty.groups.get() {
            payer_of(groups, || self.group_of(pfn)).add_stat(item, delta);
        }
    }

    fn open_file(&self, id: FileId) -> crate::sync::Arc<FileEntry> {
        self.files
            .get(id)
            .expect("a file with pages in the cache is open")
    }

    /// Checks that dirty file pages agree with their count, slots in use with places, and that no
    /// dirty page has a slot.
    pub(super) fn check_dirty(&self) {
        let mut nr_dirty = Pages::ZERO;
        for pfn in (0..).map(Pfn).take(self.dirty.marks.len()) {
            let Some(key) = self.key_of(pfn).filter(|_| self.is_dirty(pfn)) else {
                continue;
            };
            let file = self.open_file(key.file());
            match file.anon() {
                Some(_) => assert!(
                    !file.is_stored(key.page()),
                    "{key:?} is dirty and has a slot"
                ),
                None => nr_dirty += key.order().pages(),
            }
        }
        assert_eq!(self.nr_dirty(), nr_dirty, "dirty marks and their count");
        if let Some(swap) = self.swap() {
            swap.check_invariants();
            let used = swap.used();
            assert_eq!(
                self.files.nr_places(),
                used,
                "pages in slots, and slots in use"
            );
        }
    }
}
