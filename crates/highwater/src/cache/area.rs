//! Areas (VMAs): ranges of files that spaces map, and page access through them.
//!
//! An access looks at the area's page table first. An entry that names a frame is a hint that saves
//! a walk of the index; borrowing, pinning or latching the frame then decides whether it still
//! holds the page, as after any other lookup. An access that found the page by the index *installs*
//! its frame in the table; this maps the page and adds it to the space's resident set:
//!
//! ```text
//! page held -> mapcount + 1 -> entry: absent -> present -> resident set + 1 -> page let go
//! ```
//!
//! Invariants, argued in the module `rmap`: the `mapcount` of a frame is at least the number of
//! entries that name it, and equal at rest; a space's resident set is, at rest, the number of
//! entries of its areas that name a frame; an entry names a frame only while that frame holds the
//! entry's page.
//!
//! A second look at the entry could not replace the frame's tag. While a frame is being retracted,
//! a thread that held the page before can install it and release it; eviction will then find the
//! frame mapped (`mapcount`), unless another thread unmaps it first. In between, after eviction has
//! scanned the hazard slots, another reader would find the entry naming the frame both times, and
//! read a frame that has an owner.
//!
//! An access that began before its page was unmapped may end after that: it gets the bytes, and
//! installs nothing.

use std::fmt;
use std::ops::Range;

use super::PageCache;
use super::file::FileEntry;
use super::key::PageKey;
use super::readahead::{ReadPattern, Readahead};
use super::space::{RssMember, SpaceEntry};
use super::table::{Entry, Installed, PageTable};
use crate::group::GroupNode;
use crate::memmap::Reader;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, LockClass, Mutex, Rank};
use crate::units::{FilePage, MapPage, Pfn};

static PARTS_LOCK: LockClass = LockClass::new("area_parts", Rank::Leaf);

/// Properties of a whole area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaFlag {
    /// Its pages are executable, and kept longer.
    Executable = 1 << 0,
    /// Its pages are mlocked: not evicted.
    Locked = 1 << 1,
    /// Read sequentially: accesses through it do not predict later ones.
    Sequential = 1 << 2,
}

/// Arguments for a new area.
#[derive(Clone, Debug)]
pub struct AreaSpec {
    /// The file.
    pub file: Arc<FileEntry>,
    /// The space that maps it, and counts its pages.
    pub space: Arc<SpaceEntry>,
    /// The group of the space.
    pub group: GroupNode,
    /// Pages of the file.
    pub pages: Range<FilePage>,
    /// The member of the resident set that counts the pages.
    pub member: RssMember,
}

/// A range of a file's pages in a space, without the parts that were unmapped.
pub struct VmArea {
    spec: AreaSpec,
    /// Key of the area's first page, copied here because every access needs it.
    first: PageKey,
    number: u64,
    /// Written by: the embedder's calls. Read by: reclaim and readahead. Publishes: nothing; a
    /// reader of an old value acts as it would have a moment before.
    flags: AtomicU32,
    readahead: Readahead,
    pub(super) table: PageTable,
    /// The parts that are still mapped, in pages of the file. Changed under the file's rmap lock.
    pub(super) parts: Mutex<Vec<Range<FilePage>>>,
}

impl VmArea {
    pub(super) fn new(spec: AreaSpec, number: u64, young_max: u32) -> Self {
        let len = spec.pages.end.0 - spec.pages.start.0;
        let pattern = spec.file.readahead().pattern();
        let area = Self {
            // An empty range may begin behind the last page that has a key.
            first: PageKey::new(
                spec.file.id(),
                spec.pages.start.0.min(spec.file.id().pages_max() - 1),
            ),
            readahead: Readahead::default(),
            table: PageTable::new(len, young_max),
            parts: Mutex::new(&PARTS_LOCK, vec![spec.pages.clone()]),
            flags: AtomicU32::new(0),
            spec,
            number,
        };
        area.set_read_pattern(pattern);
        area
    }

    /// Returns a number that is unique among areas.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &Arc<FileEntry> {
        &self.spec.file
    }

    /// Returns the space.
    #[must_use]
    pub fn space(&self) -> &Arc<SpaceEntry> {
        &self.spec.space
    }

    /// Returns the space's group.
    #[must_use]
    pub fn group(&self) -> &GroupNode {
        &self.spec.group
    }

    /// Returns the member of the resident set that counts the pages.
    #[must_use]
    pub fn member(&self) -> RssMember {
        self.spec.member
    }

    /// Returns the number of frames that hold one of its pages, as the space counts them.
    pub(super) fn frames_of_page(&self) -> i64 {
        self.file().order().pages().0.cast_signed()
    }

    /// Pages in the area as it was mapped.
    #[inline]
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.spec.pages.end.0 - self.spec.pages.start.0
    }

    /// Converts pages of the area into pages of its file.
    #[must_use]
    pub fn file_pages(&self, pages: &Range<MapPage>) -> Range<FilePage> {
        let first = self.first.page();
        first + pages.start.0..first + pages.end.0
    }

    /// Returns the key of a page.
    #[inline(always)]
    #[must_use]
    pub fn key(&self, page: MapPage) -> PageKey {
        self.first.plus(page.0)
    }

    /// Returns the frame of a mapped page. It may leave it right after.
    #[must_use]
    pub fn frame_of(&self, page: MapPage) -> Option<Pfn> {
        self.table.get(page.0).pfn()
    }

    /// Returns whether a page was unmapped.
    #[must_use]
    pub fn is_hole(&self, page: MapPage) -> bool {
        self.table.is_hole(page.0)
    }

    /// Returns the bytes of a page of a read-only file if the page table names its frame and the
    /// entry is young enough that the access would not be counted. Returns `None` for any other
    /// page, and for one that has just left its frame.
    ///
    /// `reader` belongs to the memory whose frames the table names.
    ///
    /// # Cost
    ///
    /// Four loads and a borrow; no store to shared memory.
    #[inline(always)]
    pub fn borrow_young<'r>(&self, reader: &'r Reader<'_>, page: MapPage) -> Option<&'r [u8]> {
        match self.table.get_at_once(page.0) {
            Some(entry) => self.borrow_if_young(reader, page, entry),
            None => self.borrow_young_apart(reader, page),
        }
    }

    /// As [`borrow_young`](Self::borrow_young), for a table in several leaves.
    #[inline(never)]
    fn borrow_young_apart<'r>(&self, reader: &'r Reader<'_>, page: MapPage) -> Option<&'r [u8]> {
        self.borrow_if_young(reader, page, self.table.get(page.0))
    }

    #[inline(always)]
    fn borrow_if_young<'r>(
        &self,
        reader: &'r Reader<'_>,
        page: MapPage,
        entry: Entry,
    ) -> Option<&'r [u8]> {
        let pfn = entry.often_accessed()?;
        // Pages of writable files are never published: their frames have no tag.
        reader.borrow_likely(pfn, self.key(page).get())
    }

    /// Returns the frame that a page's entry names, if the entry is young enough that the access
    /// would not be counted. Its latch decides whether it still holds the page.
    ///
    /// # Cost
    ///
    /// Three loads.
    #[inline(always)]
    pub fn frame_if_young(&self, page: MapPage) -> Option<Pfn> {
        match self.table.get_at_once(page.0) {
            Some(entry) => entry.often_accessed(),
            None => self.frame_if_young_apart(page),
        }
    }

    /// As [`frame_if_young`](Self::frame_if_young), for a table in several leaves.
    #[inline(never)]
    fn frame_if_young_apart(&self, page: MapPage) -> Option<Pfn> {
        self.table.get(page.0).often_accessed()
    }

    /// Returns the readahead state.
    #[must_use]
    pub fn readahead(&self) -> &Readahead {
        &self.readahead
    }

    /// Sets the order in which pages are going to be read.
    pub fn set_read_pattern(&self, pattern: ReadPattern) {
        self.readahead.set_pattern(pattern);
        match pattern {
            ReadPattern::Sequential => self.set(AreaFlag::Sequential),
            ReadPattern::Normal | ReadPattern::Random => self.clear(AreaFlag::Sequential),
        }
    }

    /// Returns whether a flag is set.
    #[must_use]
    pub fn has(&self, flag: AreaFlag) -> bool {
        // Relaxed: see the field.
        self.flags.load(Ordering::Relaxed) & flag as u32 != 0
    }

    /// Sets a flag.
    pub fn set(&self, flag: AreaFlag) {
        // Relaxed: see the field.
        self.flags.fetch_or(flag as u32, Ordering::Relaxed);
    }

    /// Clears a flag.
    pub fn clear(&self, flag: AreaFlag) {
        // Relaxed: see the field.
        self.flags.fetch_and(!(flag as u32), Ordering::Relaxed);
    }

    /// Returns the page of the table for a page of the file.
    pub(super) fn page_of(&self, key: PageKey) -> MapPage {
        debug_assert!(
            key.file() == self.spec.file.id() && self.spec.pages.contains(&key.page()),
            "{key:?} is not of {self:?}"
        );
        MapPage(key.page().0 - self.spec.pages.start.0)
    }
}

impl PageCache {
    /// Accesses a resident, mapped page through an area, by `hold`: it borrows, pins or latches the
    /// page in a frame, unless the page has left that frame.
    ///
    /// # Cost
    ///
    /// Three loads if the page is mapped, plus the cost of `hold`; no store once the page is young.
    /// Otherwise a walk of the index, and installing the page.
    #[inline]
    pub fn hold_mapped<R>(
        &self,
        area: &VmArea,
        page: MapPage,
        mut hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Option<R> {
        match self.hold_by_entry(area, page, &mut hold) {
            None if area.is_hole(page) => None,
            None => self.hold_unmapped(area, page, hold),
            held => held,
        }
    }

    /// As [`hold_mapped`](Self::hold_mapped), only by the page table.
    #[inline]
    pub fn hold_by_entry<R>(
        &self,
        area: &VmArea,
        page: MapPage,
        mut hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Option<R> {
        let seen = area.table.get(page.0);
        let pfn = seen.pfn()?;
        let held = hold(area.key(page), pfn)?;
        if let Some(before) = area.table.touch(page.0, seen) {
            self.note_time(pfn);
            if before == 0 {
                self.note_touched(pfn);
            }
        }
        Some(held)
    }

    /// As [`hold_mapped`](Self::hold_mapped), by the index, for a page that was not unmapped.
    #[cold]
    pub fn hold_unmapped<R>(
        &self,
        area: &VmArea,
        page: MapPage,
        mut hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Option<R> {
        let key = area.key(page);
        let (held, pfn) = self
            .index
            .find(key, |pfn| hold(key, pfn).map(|held| (held, pfn)))?;
        self.install(area, page, pfn);
        if self.note_access(area.file(), pfn) {
            // As for a read that brings its page in.
            self.forget_young(pfn);
        }
        Some(held)
    }

    /// Maps a page that the caller has borrowed, pinned or latched.
    pub fn install(&self, area: &VmArea, page: MapPage, pfn: Pfn) {
        let mapcount = &self.mapcounts[pfn.index()];
        // Relaxed: the caller's hold prevents eviction from looking at the count, and its end
        // publishes it.
        mapcount.fetch_add(1, Ordering::Relaxed);
        match area.table.install(page.0, pfn) {
            Installed::Now(was) => {
                self.note_time(pfn);
                self.note_touched(pfn);
                area.space().add(area.member(), area.frames_of_page());
                if was.is_swapped() {
                    area.space().add(RssMember::Swap, -1);
                }
            }
            // Relaxed: as above; no entry was changed.
            Installed::Before | Installed::Hole => _ = mapcount.fetch_sub(1, Ordering::Relaxed),
        }
    }

    /// Updates the counts for an entry that was cleared. The page's mapcount comes last: until then
    /// the page stays.
    pub(super) fn note_taken(&self, area: &VmArea, was: Entry) {
        if let Some(pfn) = was.pfn() {
            area.space().add(area.member(), -area.frames_of_page());
            // Release. Pairs with: the acquire of `mapcount`: a thread that finds no entry left
            // sees that this one is clear.
            let before = self.mapcounts[pfn.index()].fetch_sub(1, Ordering::Release);
            debug_assert!(before > 0, "{pfn} was unmapped more often than mapped");
        } else if was.is_swapped() {
            area.space().add(RssMember::Swap, -1);
        }
    }

    /// Returns the number of entries that name a frame, or slightly more while entries come and go.
    #[must_use]
    pub fn mapcount(&self, pfn: Pfn) -> u32 {
        // Acquire. Pairs with: the release of `note_taken`.
        self.mapcounts[pfn.index()].load(Ordering::Acquire)
    }
}

impl fmt::Debug for VmArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { spec, number, .. } = self;
        let (space, file) = (spec.space.id(), spec.file.id());
        write!(f, "area {number} of {space}: {:?} of {file:?}", spec.pages)
    }
}
