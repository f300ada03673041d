//! The reverse map (rmap): finding the page table entries that name a frame.
//!
//! Every file has an interval tree of the areas that map it, under the file's *rmap lock*. Mapping
//! and unmapping hold it for writing; unmapping also while it clears the entries of the range, as
//! the kernel does. Reclaim finds the entries of a page by the tree, in one of three ways
//! ([`RmapAccess`]): with the lock held for reading, with a trylock, or by the tree's last
//! *snapshot*, without the lock.
//!
//! **Snapshots.** The tree is copy-on-write ([`tree`]). Its root is under a separate lock that is
//! held only to copy or replace it. A thread that has a root walks an immutable tree.
//!
//! **Invariant.** An entry names a frame only while that frame holds the entry's page. The parts of
//! the argument:
//!
//! 1. *Install* (module `area`): under a hold on the page (borrow, pin, latch), count first, then
//!    the entry.
//! 2. *Clear* (by reclaim or by unmapping): the entry first, by one atomic step that only one
//!    thread succeeds with, then the count. So the count is never below the number of entries that
//!    name the frame.
//! 3. *Evict* ([`PageCache::evict`]): the frame is taken from its tag or latch, which fails while
//!    any thread holds the page, and then the count is checked. If it is not 0, the frame goes back
//!    to its tag or latch and the page stays ([`Kept::Mapped`](super::Kept::Mapped)). A concurrent
//!    install either still holds the page, or has released it: then its count is seen, because the
//!    end of a hold releases and taking the frame acquires. After the frame was taken no thread can
//!    hold the page, so no entry is installed. A count of 0 thus means that no entry names the
//!    frame, and none will until it is filled again.
//! 4. *Missing an area*. An area is in the tree before its first entry is installed, and leaves it
//!    after its last one was cleared. A walk, of a locked tree or a snapshot, therefore misses an
//!    entry only if it was installed after the walk began; that one is seen by its count in 3. The
//!    invariant does not need the lock: it is there because the kernel has it, and reclaim policies
//!    differ in how they treat it.
//! 5. *The end of an area*. A snapshot keeps its areas alive. Their entries are holes by then, or
//!    absent ones of a leaf of holes, which no thread makes present or clears again, so a late
//!    walker counts nothing.
//!
//! Checked by the models in `loom` (`an_entry_installed_during_an_eviction_keeps_the_page` and
//! those beside it).
//!
//! Source: the reverse map of Linux (`mm/rmap.c`) as the frames-and-reclaim specification describes
//! it (section 10).
//! Deviation: anonymous memory is a file of its own, so that there is one kind of reverse map.

mod tree;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ops::Range;

use super::area::{AreaFlag, AreaSpec, VmArea};
use super::key::PageKey;
use super::space::RssMember;
use super::table::{Entry, Left};
use super::{FileEntry, PageCache};
use crate::group::GroupNode;
use crate::sync::{
    Arc, Hold, LockClass, LockTimes, Mutex, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TimeRecorder,
};
use crate::units::{FilePage, GroupId, MapPage, Pfn};
use tree::Tree;

/// Class of every file's rmap lock.
pub(super) static RMAP_LOCK: LockClass = LockClass::new("rmap", Rank::Rmap);
static ROOT_LOCK: LockClass = LockClass::new("rmap_root", Rank::Leaf);
static DEFERRED_LOCK: LockClass = LockClass::new("rmap_deferred", Rank::Leaf);

/// How reclaim accesses the areas that map a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmapAccess {
    /// Under the rmap lock, waiting for it.
    Wait,
    /// Under the rmap lock, by trylock.
    Try,
    /// By the current tree, without the lock.
    Snapshot,
}

/// Accessed state of a page's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referenced {
    /// The entries were read.
    Seen {
        /// Young entries, whose young marks were cleared.
        young: u32,
        /// Whether one of them belongs to an executable area.
        executable: bool,
        /// Whether any belongs to a locked area.
        locked: bool,
    },
    /// Another thread held the rmap lock.
    Contended,
}

/// Whether a page was accessed through the area that unmaps it, since reclaim last scanned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WasYoung(pub bool);

/// Result of clearing a page's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// All entries were cleared: their number.
    Done(u32),
    /// Another thread held the rmap lock; nothing was cleared.
    Contended,
}

/// The reclaim that a page was to be evicted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictedFor {
    /// The group that is short of memory.
    pub short: GroupId,
    /// Whether background reclaim scanned the page, and not a request that needs the memory.
    pub is_background: bool,
}

/// A page that reclaim left to the holder of the rmap lock to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// Its frame.
    pub pfn: Pfn,
    /// Its key.
    pub key: PageKey,
    /// The reclaim that wants it.
    pub to: EvictedFor,
}

/// The areas that map one file.
pub(super) struct Rmap {
    /// Held for writing to change the tree and clear entries, and for reading as [`RmapAccess`]
    /// says.
    lock: RwLock<()>,
    /// The tree. Replaced by holders of `lock` for writing.
    root: Mutex<Tree>,
    /// Pages that reclaim left to the holder of `lock` to evict.
    deferred: Mutex<Vec<Deferred>>,
}

impl Rmap {
    pub(super) fn new() -> Self {
        Self {
            lock: RwLock::new(&RMAP_LOCK, ()),
            root: Mutex::new(&ROOT_LOCK, None),
            deferred: Mutex::new(&DEFERRED_LOCK, Vec::new()),
        }
    }

    /// Returns the current tree.
    fn snapshot(&self) -> Tree {
        self.root.lock().clone()
    }

    /// Returns the areas, each once.
    fn areas(&self) -> Vec<Arc<VmArea>> {
        let mut areas = Vec::new();
        tree::for_each(&self.snapshot(), &mut |_, area| {
            areas.push(Arc::clone(area))
        });
        areas.sort_by_key(|area| area.number());
        areas.dedup_by_key(|area| area.number());
        areas
    }

    /// Changes the tree.
    fn update(&self, _: &Writing<'_>, change: impl FnOnce(Tree) -> Tree) {
        let after = change(self.snapshot());
        let before = std::mem::replace(&mut *self.root.lock(), after);
        // Outside the root's lock: the last holder of a node frees it.
        drop(before);
    }

    fn read_waiting(&self, times: &TimeRecorder) -> RwLockReadGuard<'_, ()> {
        let (locked, waited) = self.lock.read_timed();
        if let Some(waited) = waited {
            times.waited(waited);
        }
        locked
    }

    /// Takes the lock to change areas and entries of `pages` pages.
    fn write<'a>(&'a self, pages: u64, times: &'a TimeRecorder) -> Writing<'a> {
        let locked = self.lock.write();
        Writing {
            hold: times.visit_begins(pages),
            pages,
            times,
            _locked: locked,
        }
    }

    /// Returns the areas, by `access`; `None` if a trylock fails.
    fn read(&self, access: RmapAccess, times: &TimeRecorder) -> Option<Reading<'_>> {
        let locked = match access {
            RmapAccess::Wait => Some(self.read_waiting(times)),
            RmapAccess::Try => Some(self.lock.try_read()?),
            RmapAccess::Snapshot => None,
        };
        Some(Reading {
            tree: self.snapshot(),
            _locked: locked,
        })
    }
}

/// The right to change the areas of a file.
struct Writing<'a> {
    hold: Hold,
    pages: u64,
    times: &'a TimeRecorder,
    _locked: RwLockWriteGuard<'a, ()>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.times.visit_ends(&self.hold, self.pages);
    }
}

/// The areas of a file, for a walk.
struct Reading<'a> {
    tree: Tree,
    _locked: Option<RwLockReadGuard<'a, ()>>,
}

impl PageCache {
    /// Maps a range of a file into a space: creates an area without entries.
    ///
    /// # Cost
    ///
    /// The file's rmap lock, and a copy of O(log n) nodes of its tree.
    pub fn map(&self, spec: AreaSpec) -> Arc<VmArea> {
        let area = Arc::new(VmArea::new(spec, self.area_numbers.next(), self.young_max));
        let pages = area.parts.lock().first().cloned();
        let file = Arc::clone(area.file());
        let rmap = &file.rmap;
        let locked = rmap.write(area.pages(), &self.rmap_times);
        if let Some(pages) = pages.filter(|pages| !pages.is_empty()) {
            rmap.update(&locked, |tree| tree::with(&tree, pages, &area));
        }
        area
    }

    /// Unmaps pages of an area, counted from its first; skips pages that are not mapped. Calls
    /// `leaving` with every page that the area had in a frame, while it is still there.
    ///
    /// # Cost
    ///
    /// The file's rmap lock, held while the entries of the range are cleared.
    ///
    /// # Panics
    ///
    /// When the range is not within the area.
    pub fn unmap(
        &self,
        area: &Arc<VmArea>,
        pages: Range<MapPage>,
        mut leaving: impl FnMut(Pfn, WasYoung),
    ) {
        assert!(
            pages.start <= pages.end && pages.end.0 <= area.pages(),
            "pages {pages:?} of {area:?}"
        );
        let rmap = &area.file().rmap;
        let numbers = MapPage::numbers(&pages);
        let locked = rmap.write(numbers.end - numbers.start, &self.rmap_times);
        area.table.punch(numbers, |_, was| {
            self.let_go(area, was, &mut leaving);
        });
        let gone = area.file_pages(&pages);
        let (before, after) = take_out(&mut area.parts.lock(), &gone);
        rmap.update(&locked, |mut tree| {
            for part in before {
                tree = tree::without(&tree, part.start, area);
            }
            for part in after {
                tree = tree::with(&tree, part, area);
            }
            tree
        });
    }

    /// Clears the entries of an area's pages, as if they had never been accessed. Calls `leaving`
    /// as [`unmap`](Self::unmap) does.
    ///
    /// # Cost
    ///
    /// Atomics on the entries; no lock.
    ///
    /// # Panics
    ///
    /// When the range is not within the area.
    pub fn zap(
        &self,
        area: &VmArea,
        pages: Range<MapPage>,
        mut leaving: impl FnMut(Pfn, WasYoung),
    ) {
        assert!(
            pages.start <= pages.end && pages.end.0 <= area.pages(),
            "pages {pages:?} of {area:?}"
        );
        area.table.zap(MapPage::numbers(&pages), |was| {
            self.let_go(area, was, &mut leaving)
        });
    }

    /// Calls `leaving` with a page that an area had in a frame, then lowers its count.
    fn let_go(&self, area: &VmArea, was: Entry, leaving: &mut impl FnMut(Pfn, WasYoung)) {
        if let Some(pfn) = was.pfn() {
            leaving(pfn, WasYoung(was.young() > 0));
        }
        self.note_taken(area, was);
    }

    /// Returns whether any area that has the page in its table is locked.
    #[must_use]
    pub fn is_locked(&self, pfn: Pfn) -> bool {
        let mut locked = false;
        let walked = self.walk(pfn, RmapAccess::Snapshot, |area, page| {
            // An area that has unmapped the page no longer counts.
            locked |= area.has(AreaFlag::Locked) && area.table.get(page.0).pfn() == Some(pfn);
        });
        walked.is_ok() && locked
    }

    /// Calls `visit` with the frame of every page that an area has in one at this moment.
    pub fn for_each_mapped(&self, area: &VmArea, mut visit: impl FnMut(Pfn)) {
        area.table
            .for_each(|_, entry| entry.pfn().into_iter().for_each(&mut visit));
    }

    /// Runs `within` while this thread holds a file's rmap lock, as map and unmap do.
    #[cfg(feature = "lab")]
    pub fn hold_rmap<R>(&self, file: &FileEntry, within: impl FnOnce() -> R) -> R {
        let _writing = file.rmap.write(0, &self.rmap_times);
        within()
    }

    /// Returns whether a page was accessed through its mappings since the last call, and their
    /// kinds; clears the young marks. Counts accesses only through areas of `within` and its
    /// descendants, if given. The caller has isolated the page.
    ///
    /// # Cost
    ///
    /// One load for a page that is not mapped. Otherwise a walk of the file's tree, and a look at
    /// each entry.
    pub fn referenced(
        &self,
        pfn: Pfn,
        access: RmapAccess,
        within: Option<&GroupNode>,
    ) -> Referenced {
        let (mut young, mut executable, mut locked) = (0, false, false);
        let mut is_touched_apart = false;
        let looked = self.walk(pfn, access, |area, page| {
            // Only if the area has the page: the lock ends with the entry, and the page is scanned
            // again.
            locked |= area.has(AreaFlag::Locked) && area.table.get(page.0).pfn() == Some(pfn);
            if within.is_some_and(|group| !area.group().is_descendant_of(group)) {
                is_touched_apart |= area.table.get(page.0).young() > 0;
                return;
            }
            let taken = area.table.take_young(page.0, pfn);
            // Sequential accesses do not predict later ones. The kernel ignores those of areas that
            // are read at random too; but random advice often means just no readahead, and hot
            // pages are read more often in any order.
            if taken > 0 && !area.has(AreaFlag::Sequential) {
                young += taken;
                executable |= area.has(AreaFlag::Executable);
            }
        });
        if is_touched_apart {
            self.note_touched(pfn);
        }
        match looked {
            Ok(()) => Referenced::Seen {
                young,
                executable,
                locked,
            },
            Err(Contended) => Referenced::Contended,
        }
    }

    /// Takes the accesses to a page since reclaim last looked at it: through its mappings, as
    /// [`referenced`](Self::referenced) counts them, and by reads without one. The page need not be
    /// isolated: if another page is in the frame by now, its accesses are taken.
    ///
    /// # Cost
    ///
    /// A load of its flags and one of its mark, if it was not accessed; otherwise as `referenced`.
    pub fn take_accesses(&self, pfn: Pfn, within: Option<&GroupNode>) -> u32 {
        let entries = match self.take_touched(pfn) {
            true => self.take_entry_accesses(pfn, within),
            false => 0,
        };
        let is_marked = self.test_and_clear_young(pfn);
        entries.max(u32::from(is_marked)) + self.take_copies(pfn)
    }

    fn take_entry_accesses(&self, pfn: Pfn, within: Option<&GroupNode>) -> u32 {
        match self.referenced(pfn, RmapAccess::Snapshot, within) {
            Referenced::Seen { young, .. } => young,
            Referenced::Contended => {
                self.note_touched(pfn);
                0
            }
        }
    }

    /// Clears the entries of a page, so that it can be evicted. The caller has isolated the page.
    ///
    /// # Cost
    ///
    /// As [`referenced`](Self::referenced).
    pub fn unmap_page(&self, pfn: Pfn, access: RmapAccess) -> Unmapped {
        let mut cleared = 0;
        let walked = self.walk(pfn, access, |area, page| {
            let left = match area.member() {
                // Zero pages come back as zeros without swap.
                RssMember::Anon if area.file().is_stored(area.key(page).page()) => Left::Swapped,
                _ => Left::Absent,
            };
            if let Some(was) = area.table.clear(page.0, pfn, left) {
                if left == Left::Swapped {
                    area.space().add(RssMember::Swap, 1);
                }
                self.note_taken(area, was);
                cleared += 1;
            }
        });
        match walked {
            Ok(()) => Unmapped::Done(cleared),
            Err(Contended) => Unmapped::Contended,
        }
    }

    /// Clears the swap marks of entries whose pages are no longer in swap, in all areas of the
    /// file.
    ///
    /// # Cost
    ///
    /// A visit to every area of the file, and to the entries of the range.
    pub fn forget_swapped(&self, file: &FileEntry, pages: &Range<FilePage>) {
        tree::for_each(&file.rmap.snapshot(), &mut |part, area| {
            let first = area.key(MapPage(0)).page();
            let (start, end) = (pages.start.max(part.start), pages.end.min(part.end));
            if start < end {
                let is_swapped = |page| file.is_stored(first + page);
                let taken = area
                    .table
                    .take_swapped(start.0 - first.0..end.0 - first.0, is_swapped);
                area.space().add(RssMember::Swap, -taken);
            }
        });
    }

    /// Adds a page to its file's deferred list, for the holder of the rmap lock, unless `most`
    /// pages are on it already. The caller has isolated the page.
    pub fn defer(&self, pfn: Pfn, to: EvictedFor, most: usize) -> bool {
        let key = self.key_of(pfn);
        let file = key.and_then(|key| Some((key, self.files.get(key.file())?)));
        let Some((key, file)) = file else {
            return false;
        };
        let mut deferred = file.rmap.deferred.lock();
        let has_room = deferred.len() < most;
        if has_room {
            deferred.push(Deferred { pfn, key, to });
        }
        has_room
    }

    /// Takes the pages from a file's deferred list.
    #[must_use]
    pub fn take_deferred(&self, file: &FileEntry) -> Vec<Deferred> {
        std::mem::take(&mut *file.rmap.deferred.lock())
    }

    /// Returns how long reclaim waited for rmap locks, how long map and unmap held them, and for
    /// how many pages.
    #[must_use]
    pub fn rmap_times(&self) -> LockTimes {
        self.rmap_times.read()
    }

    /// Calls `visit` with every area that maps a page, and the page's number in it.
    fn walk(
        &self,
        pfn: Pfn,
        access: RmapAccess,
        mut visit: impl FnMut(&VmArea, MapPage),
    ) -> Result<(), Contended> {
        if self.mapcount(pfn) == 0 {
            return Ok(());
        }
        let key = self.key_of(pfn);
        let file = key.and_then(|key| Some((key, self.files.get(key.file())?)));
        let Some((key, file)) = file else {
            return Ok(());
        };
        let reading = file.rmap.read(access, &self.rmap_times).ok_or(Contended)?;
        tree::for_each_of(&reading.tree, key.page(), &mut |area| {
            visit(area, area.page_of(key));
        });
        Ok(())
    }

    /// Checks that entries, counts and resident sets agree. Requires quiescence.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub(super) fn check_mappings(&self) {
        let mut mapped = vec![0; self.groups.len()];
        let mut counted = std::collections::HashMap::new();
        for file in self.files.all() {
            for area in file.rmap.areas() {
                area.table.for_each(|page, entry| {
                    let member = match entry.pfn() {
                        Some(pfn) => {
                            assert_eq!(
                                self.key_of(pfn),
                                Some(area.key(MapPage(page))),
                                "{area:?}: {pfn}"
                            );
                            mapped[pfn.index()] += 1;
                            area.member()
                        }
                        None => RssMember::Swap,
                    };
                    let frames = area.frames_of_page();
                    *counted.entry((area.space().id(), member)).or_insert(0) += frames;
                });
            }
        }
        for (pfn, mapped) in (0..).map(Pfn).zip(mapped) {
            assert_eq!(self.mapcount(pfn), mapped, "entries that name {pfn}");
        }
        for space in self.spaces.all() {
            for member in RssMember::ALL {
                let pages = counted.remove(&(space.id(), member)).unwrap_or(0);
                space.check(member, pages);
            }
        }
        assert!(counted.is_empty(), "pages of spaces that are gone");
    }
}

/// Another thread held the rmap lock.
struct Contended;

/// The parts that overlap a range, and their remainders.
type TakenOut = (Vec<Range<FilePage>>, Vec<Range<FilePage>>);

/// Removes a range from parts; returns the overlapping parts, and their remainders.
fn take_out(parts: &mut Vec<Range<FilePage>>, gone: &Range<FilePage>) -> TakenOut {
    if gone.is_empty() {
        return Default::default();
    }
    let met = |part: &Range<FilePage>| part.start < gone.end && gone.start < part.end;
    let (before, mut rest): (Vec<_>, Vec<_>) = parts.drain(..).partition(met);
    let left = before.iter().flat_map(|part| {
        let sides = [part.start..gone.start, gone.end..part.end];
        sides.into_iter().filter(|side| side.start < side.end)
    });
    let left: Vec<_> = left.collect();
    rest.extend(left.iter().cloned());
    *parts = rest;
    (before, left)
}

impl FileEntry {
    /// Returns whether any space maps a page of the file at this moment.
    #[must_use]
    pub fn maps_page(&self, page: FilePage) -> bool {
        let mut is_mapped = false;
        tree::for_each_of(&self.rmap.snapshot(), page, &mut |_| is_mapped = true);
        is_mapped
    }

    /// Returns whether any space maps pages of the file.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.rmap.snapshot().is_some()
    }
}

impl fmt::Debug for Rmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rmap").finish_non_exhaustive()
    }
}
