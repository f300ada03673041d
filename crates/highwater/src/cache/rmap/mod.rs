//! The reverse map: which entries name a frame.
//!
//! Every file has an interval tree of the areas that map it, under the file's *rmap lock*. Mapping
//! and unmapping hold it for writing; unmapping also while it clears the entries of the range, as
//! the kernel does. Reclaim finds the entries of a page by the tree, in one of three ways
//! ([`RmapAccess`]): holding the lock for reading, the same unless it would have to wait, or by the
//! tree's last *snapshot*, without the lock.
//!
//! **Snapshots.** The tree is changed by copying ([`tree`]). Its root lies under a lock of its own
//! that is held for the moment of taking or replacing it only. Whoever has a root walks a tree that
//! nobody changes.
//!
//! **Invariant.** An entry names a frame only while that frame holds the entry's page.
//! The parts of the argument:
//!
//! 1. *Install* (module `area`): under a hold on the page (borrow, pin, latch), count first, then
//!    the entry.
//! 2. *Clear* (by reclaim or by unmapping): the entry first, by one atomic step that only one
//!    thread succeeds with, then the count. So the count is never below the number of entries that
//!    name the frame.
//! 3. *Evict* ([`PageCache::evict`]): the frame is taken from its tag or latch, which fails while
//!    anybody holds the page, and then the count is looked at. If it is not 0, the frame goes back
//!    to its tag or latch and the page stays ([`Kept::Mapped`](super::Kept::Mapped)). An install
//!    that was under way either still holds the page, or has let go: then its count is seen,
//!    because the end of a hold releases and taking the frame acquires. After the frame was taken
//!    nobody can hold the page, so no entry is installed. A count of 0 thus means that no entry
//!    names the frame, and none will until it is filled again.
//! 4. *Missing an area*. An area is in the tree before its first entry is installed, and leaves it
//!    after its last one was cleared. A walk, of a locked tree or a snapshot, therefore misses an
//!    entry only if it was installed after the walk began; that one is seen by its count in 3. The
//!    lock is not needed for the invariant at all: it is what the kernel has, and what reclaim
//!    policies are compared by.
//! 5. *Area's end*. A snapshot keeps its areas alive. Their entries are holes by then, which nobody
//!    installs in or takes out of again, so that a late walker counts nothing.
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

use super::area::{Area, AreaFlag, AreaSpec};
use super::key::PageKey;
use super::space::RssMember;
use super::table::{Entry, Left};
use super::{FileEntry, PageCache};
use crate::group::GroupNode;
use crate::sync::{
    Arc, Hold, LockClass, LockTimes, Mutex, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TimeRecorder,
};
use crate::units::{GroupId, Pfn};
use tree::Tree;

/// Class of every file's reverse-map lock.
pub(super) static RMAP_LOCK: LockClass = LockClass::new("rmap", Rank::Rmap);
static ROOT_LOCK: LockClass = LockClass::new("rmap_root", Rank::Leaf);
static DEFERRED_LOCK: LockClass = LockClass::new("rmap_deferred", Rank::Leaf);

/// How reclaim comes by the areas that map a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmapAccess {
    /// Under the rmap lock, waiting for it.
    Wait,
    /// Under the rmap lock, unless that would have to be waited for.
    Try,
    /// By the tree as it is now, without the lock.
    Snapshot,
}

/// What the entries of a page say about its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Referenced {
    /// They were looked at.
    Seen {
        /// Young entries, which are not young any more.
        young: u32,
        /// Whether one of them is of an area that holds code.
        executable: bool,
        /// Whether any is of an area that is locked.
        locked: bool,
    },
    /// The rmap lock was held by somebody else.
    Contended,
}

/// Whether a page was accessed through an area, since reclaim last looked, that lets it go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WasYoung(pub bool);

/// Whether a page's entries were cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmapped {
    /// All that there were: this many.
    Done(u32),
    /// The rmap lock was held by somebody else; nothing was cleared.
    Contended,
}

/// For whom a page was to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictedFor {
    /// The group that is short of memory.
    pub short: GroupId,
    /// Whether the background thread has looked at it, and not whoever needs the memory.
    pub is_background: bool,
}

/// A page that reclaim passed over for whoever holds the rmap lock to evict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// The frame that it was in.
    pub pfn: Pfn,
    /// Its name.
    pub key: PageKey,
    /// For whom it goes.
    pub to: EvictedFor,
}

/// The areas that map one file.
pub(super) struct Rmap {
    /// Held by writers while they change the tree and clear entries, by readers as [`RmapAccess`]
    /// says.
    lock: RwLock<()>,
    /// The tree. Replaced by holders of `lock` for writing.
    root: Mutex<Tree>,
    /// Pages that reclaim passed over because `lock` was held, for its holder to evict.
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

    /// The tree as it is now.
    fn snapshot(&self) -> Tree {
        self.root.lock().clone()
    }

    /// The areas, each once.
    fn areas(&self) -> Vec<Arc<Area>> {
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
        // Not under the root's lock: the last holder of a node frees it.
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

    /// The areas as `access` says; `None` when that would have to wait.
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

/// The areas of a file, to look at.
struct Reading<'a> {
    tree: Tree,
    _locked: Option<RwLockReadGuard<'a, ()>>,
}

impl PageCache {
    /// Maps a range of a file into a space: an area, with no page in it yet.
    ///
    /// # Cost
    ///
    /// The file's rmap lock, and a copy of O(log n) nodes of its tree.
    pub fn map(&self, spec: AreaSpec) -> Arc<Area> {
        let area = Arc::new(Area::new(spec, self.area_numbers.next(), self.young_max));
        let pages = area.parts.lock().first().cloned();
        let file = Arc::clone(area.file());
        let rmap = &file.rmap;
        let locked = rmap.write(area.pages(), &self.rmap_times);
        if let Some(pages) = pages.filter(|pages| !pages.is_empty()) {
            rmap.update(&locked, |tree| tree::with(&tree, pages, &area));
        }
        area
    }

    /// Unmaps pages of an area, counted from its first; those that are not mapped are passed over.
    /// Shows `leaving` every page that the area had in a frame, while it is still there.
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
        area: &Arc<Area>,
        pages: Range<u64>,
        mut leaving: impl FnMut(Pfn, WasYoung),
    ) {
        assert!(
            pages.start <= pages.end && pages.end <= area.pages(),
            "pages {pages:?} of {area:?}"
        );
        let first = area.key(0).page();
        let rmap = &area.file().rmap;
        let locked = rmap.write(pages.end - pages.start, &self.rmap_times);
        area.table.punch(pages.clone(), |_, was| {
            self.let_go(area, was, &mut leaving);
        });
        let gone = first + pages.start..first + pages.end;
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

    /// Takes pages of an area out of its table, as if they had not been accessed yet. Shows
    /// `leaving` as [`unmap`](Self::unmap) does.
    ///
    /// # Cost
    ///
    /// Atomics on the entries; no lock.
    ///
    /// # Panics
    ///
    /// When the range is not within the area.
    pub fn zap(&self, area: &Area, pages: Range<u64>, mut leaving: impl FnMut(Pfn, WasYoung)) {
        assert!(
            pages.start <= pages.end && pages.end <= area.pages(),
            "pages {pages:?} of {area:?}"
        );
        area.table
            .zap(pages, |was| self.let_go(area, was, &mut leaving));
    }

    /// Shows a page that an area had in a frame, then counts that it has it no more.
    fn let_go(&self, area: &Area, was: Entry, leaving: &mut impl FnMut(Pfn, WasYoung)) {
        if let Some(pfn) = was.pfn() {
            leaving(pfn, WasYoung(was.young() > 0));
        }
        self.note_taken(area, was);
    }

    /// Whether any area that has a page in its table is locked.
    #[must_use]
    pub fn is_locked(&self, pfn: Pfn) -> bool {
        let mut locked = false;
        let walked = self.walk(pfn, RmapAccess::Snapshot, |area, page| {
            // A page that the area has unmapped is none of its business any more.
            locked |= area.has(AreaFlag::Locked) && area.table.get(page).pfn() == Some(pfn);
        });
        walked.is_ok() && locked
    }

    /// Shows `visit` the frame of every page that an area has in one at this moment.
    pub fn for_each_mapped(&self, area: &Area, mut visit: impl FnMut(Pfn)) {
        area.table
            .for_each(|_, entry| entry.pfn().into_iter().for_each(&mut visit));
    }

    /// Runs `within` while this thread holds a file's rmap lock, as if it mapped or unmapped.
    pub fn hold_rmap<R>(&self, file: &FileEntry, within: impl FnOnce() -> R) -> R {
        let _writing = file.rmap.write(0, &self.rmap_times);
        within()
    }

    /// Whether a page was accessed through its mappings since this was last asked, and what these
    /// are; clears the marks. Counts accesses only through areas of `within` and its descendants,
    /// if given. The caller has isolated the page.
    ///
    /// # Cost
    ///
    /// One load for a page that is not mapped. Else a walk of the file's tree, and a look at each
    /// entry.
    pub fn referenced(
        &self,
        pfn: Pfn,
        access: RmapAccess,
        within: Option<&GroupNode>,
    ) -> Referenced {
        let (mut young, mut executable, mut locked) = (0, false, false);
        let looked = self.walk(pfn, access, |area, page| {
            // Whoever has locked it, and has it: with the entry goes the lock, and the page is
            // looked at again.
            locked |= area.has(AreaFlag::Locked) && area.table.get(page).pfn() == Some(pfn);
            if within.is_some_and(|group| !area.group().is_descendant_of(group)) {
                return;
            }
            let taken = area.table.take_young(page, pfn);
            // As the kernel: of who reads front to back, or in no order, nothing follows.
            if taken > 0 && !area.has(AreaFlag::Sequential) && !area.has(AreaFlag::Random) {
                young += taken;
                executable |= area.has(AreaFlag::Executable);
            }
        });
        match looked {
            Ok(()) => Referenced::Seen {
                young,
                executable,
                locked,
            },
            Err(Contended) => Referenced::Contended,
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
                // Zeros come back as zeros without swap.
                RssMember::Anon if area.file().is_stored(area.key(page).page()) => Left::Swapped,
                _ => Left::Absent,
            };
            if let Some(was) = area.table.clear(page, pfn, left) {
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

    /// Has all that map pages of memory forget that those are in swap which are not there any more.
    ///
    /// # Cost
    ///
    /// A look at every area of the file, and at the entries of the range.
    pub fn forget_swapped(&self, file: &FileEntry, pages: &Range<u64>) {
        tree::for_each(&file.rmap.snapshot(), &mut |part, area| {
            let first = area.key(0).page();
            let (start, end) = (pages.start.max(part.start), pages.end.min(part.end));
            if start < end {
                let is_swapped = |page| file.is_stored(first + page);
                let taken = area
                    .table
                    .take_swapped(start - first..end - first, is_swapped);
                area.space().add(RssMember::Swap, -taken);
            }
        });
    }

    /// Puts a page on its file's list for whoever holds the file's rmap lock, unless there are
    /// `most` of them already. The caller has isolated the page.
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

    /// Takes the pages that were put on a file's list.
    #[must_use]
    pub fn take_deferred(&self, file: &FileEntry) -> Vec<Deferred> {
        std::mem::take(&mut *file.rmap.deferred.lock())
    }

    /// How long reclaim waited for rmap locks, and how long they were held to map and unmap, for
    /// how many pages.
    #[must_use]
    pub fn rmap_times(&self) -> LockTimes {
        self.rmap_times.read()
    }

    /// Shows `visit` every area that maps a page, and the page's place in it.
    fn walk(
        &self,
        pfn: Pfn,
        access: RmapAccess,
        mut visit: impl FnMut(&Area, u64),
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

    /// Checks that entries, counts and resident sets agree. For quiescent moments.
    ///
    /// # Panics
    ///
    /// When they do not.
    pub(super) fn check_mappings(&self) {
        let mut mapped = vec![0; self.groups.len()];
        let mut counted = std::collections::HashMap::new();
        for file in self.files.all() {
            for area in file.rmap.areas() {
                area.table.for_each(|page, entry| {
                    let member = match entry.pfn() {
                        Some(pfn) => {
                            assert_eq!(self.key_of(pfn), Some(area.key(page)), "{area:?}: {pfn}");
                            mapped[pfn.index()] += 1;
                            area.member()
                        }
                        None => RssMember::Swap,
                    };
                    *counted.entry((area.space().id(), member)).or_insert(0) += 1;
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

/// The rmap lock was held by somebody else.
struct Contended;

/// Takes a range out of parts: those that it met, and what is left of them.
fn take_out(parts: &mut Vec<Range<u64>>, gone: &Range<u64>) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    if gone.is_empty() {
        return Default::default();
    }
    let met = |part: &Range<u64>| part.start < gone.end && gone.start < part.end;
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
    /// Whether any space maps a page of the file at this moment.
    #[must_use]
    pub fn maps_page(&self, page: u64) -> bool {
        let mut is_mapped = false;
        tree::for_each_of(&self.rmap.snapshot(), page, &mut |_| is_mapped = true);
        is_mapped
    }

    /// Whether any space maps pages of the file.
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
