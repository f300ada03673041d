//! The lists of one group's pages.
//!
//! Lists are threaded through one array of links, indexed by frame, that all groups share; a
//! frame's link belongs to the group that pays for its page and is touched under that group's
//! lruvec lock only. A page's group changes under the locks of both lruvecs (reparenting), so
//! whoever locks the lruvec of a page's group looks again whether it still is.
//!
//! Invariant: a link's `list` says which list the frame is on; [`ListId::None`] means isolated or
//! not a page. Lengths are the number of links on each list.

use std::iter::Sum;

use super::cursor::Cursor;
use super::shadow::WorkingsetClock;
use super::stats::signed;
use super::{ListSizes, LruvecRef};
use crate::cache::PageCache;
use crate::group::{GroupNode, GroupTree, StatItem};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Arc, LockClass, Mutex, Rank, RwLock};
use crate::units::{GroupId, Pages, Pfn};

/// Class of every lruvec's lock.
pub(super) static LRUVEC_LOCK: LockClass = LockClass::new("lruvec", Rank::Lruvec);
static TABLE_LOCK: LockClass = LockClass::new("lruvecs", Rank::Lruvecs);
static CURSOR_LOCK: LockClass = LockClass::new("reclaim_cursor", Rank::ReclaimCursor);

const NIL: u32 = u32::MAX;

/// Where a page is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// At the head of the inactive list.
    Inactive,
    /// At the head of the active list.
    Active,
}

/// The list that a link is on, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListId {
    None = 0,
    Inactive = 1,
    Active = 2,
}

/// One group's lists.
#[derive(Debug)]
pub(super) struct Lruvec {
    group: GroupNode,
    lists: Mutex<Lists>,
    /// Written by: holders of the lists' lock. Read by: anybody. Publishes: nothing.
    sizes: [AtomicU64; 2],
    /// Evictions and activations: the clock of refault distances. Begins far ahead of where the clock
    /// of the number's former group ended, so that its shadows are too old for this one.
    /// Written by: reclaimers. Read by: refaults. Publishes: nothing.
    nonresident_age: AtomicU64,
    /// Evictions so far: the progress that those who wait for room look at. Activations are none: who
    /// finds only pages that cannot be written activates them, and would take itself for progress.
    /// Written by: reclaimers. Read by: those who found nothing to reclaim. Publishes: nothing.
    nr_evicted: AtomicU64,
    /// Pages that reclaimers have taken off the lists and not yet put back or freed.
    /// Written by: reclaimers. Read by: those that found nothing to reclaim. Publishes: nothing.
    nr_isolated: AtomicU64,
    /// Pages that are being read in for the group, and paid for by it.
    /// Written by: those who read them. Read by: those that found nothing to reclaim. Publishes: nothing.
    nr_filling: AtomicU64,
    /// Where the reclaimers of this group as a target go on.
    pub(super) cursor: Mutex<Cursor>,
}

#[derive(Debug, Default)]
struct Lists {
    inactive: List,
    active: List,
    /// The group was removed; its pages are the parent's.
    is_dead: bool,
}

#[derive(Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u64,
}

impl Default for List {
    fn default() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            len: 0,
        }
    }
}

/// A frame's place in a list.
/// Written by and read under: the lruvec lock of the page's group. Publishes: nothing.
struct Link {
    next: AtomicU32,
    prev: AtomicU32,
    list: AtomicU8,
}

impl Lruvec {
    fn new(group: GroupNode, clock: u64) -> Self {
        Self {
            group,
            lists: Mutex::new(&LRUVEC_LOCK, Lists::default()),
            sizes: [AtomicU64::new(0), AtomicU64::new(0)],
            nonresident_age: AtomicU64::new(clock),
            nr_evicted: AtomicU64::new(0),
            nr_isolated: AtomicU64::new(0),
            nr_filling: AtomicU64::new(0),
            cursor: Mutex::new(&CURSOR_LOCK, Cursor::default()),
        }
    }

    pub(super) fn group(&self) -> &GroupNode {
        &self.group
    }

    pub(super) fn is_in_subtree_of(&self, target: &GroupNode) -> bool {
        // Not by number: that of a removed target may be another group's by now.
        self.group.is_descendant_of(target)
    }

    pub(super) fn sizes(&self) -> ListSizes {
        // Relaxed: each length is of its own moment.
        let [inactive, active] = &self.sizes;
        let load = |size: &AtomicU64| Pages(size.load(Ordering::Relaxed));
        ListSizes {
            inactive: load(inactive),
            active: load(active),
        }
    }

    pub(super) fn workingset_clock(&self) -> WorkingsetClock {
        // Relaxed: a clock that is a few ticks behind judges a few pages differently.
        let now = self.nonresident_age.load(Ordering::Relaxed);
        WorkingsetClock {
            now,
            nr_active: self.sizes().active.0,
        }
    }

    /// Pages that some reclaimer is about to put back or to free.
    pub(super) fn nr_isolated(&self) -> u64 {
        // Relaxed: who acts on it looks again.
        self.nr_isolated.load(Ordering::Relaxed)
    }

    /// Pages that will soon be on the lists, or given back.
    pub(super) fn nr_filling(&self) -> u64 {
        // Relaxed: as above.
        self.nr_filling.load(Ordering::Relaxed)
    }

    pub(super) fn note_filling(&self) {
        // Relaxed: as above.
        self.nr_filling.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn note_filled(&self) {
        // Relaxed: as above.
        self.nr_filling.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn note_isolated(&self, count: u64) {
        // Relaxed: as above.
        self.nr_isolated.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn note_settled(&self, count: u64) {
        // Relaxed: as above.
        self.nr_isolated.fetch_sub(count, Ordering::Relaxed);
    }

    /// Counts pages that are about to leave, and advances the clock; returns its reading before.
    pub(super) fn evict(&self, count: u64) -> u64 {
        // Relaxed: who acts on it looks again.
        self.nr_evicted.fetch_add(count, Ordering::Relaxed);
        self.age(count)
    }

    /// Advances the clock; returns its reading before.
    pub(super) fn age(&self, ticks: u64) -> u64 {
        // Relaxed: as above.
        self.nonresident_age.fetch_add(ticks, Ordering::Relaxed)
    }

    fn note_sizes(&self, lists: &Lists) {
        let items = [StatItem::InactiveFile, StatItem::ActiveFile];
        let lens = [lists.inactive.len, lists.active.len];
        for ((size, item), len) in self.sizes.iter().zip(items).zip(lens) {
            // Relaxed, here and below: stores are in the lock's order.
            let before = size.load(Ordering::Relaxed);
            if before != len {
                size.store(len, Ordering::Relaxed);
                self.group.add_stat(item, signed(len) - signed(before));
            }
        }
    }
}

/// The lists of every group.
pub(super) struct Lruvecs {
    links: Box<[Link]>,
    /// By group number.
    table: RwLock<Vec<Place>>,
}

/// A group number's place in the table.
#[derive(Debug, Default)]
struct Place {
    lists: Option<LruvecRef>,
    /// Where the clock of the number's next group begins.
    next_clock: u64,
}

impl Place {
    /// Takes the lists out; `gap` is more than any refault distance that counts.
    fn take(&mut self, gap: u64) -> Option<LruvecRef> {
        let former = self.lists.take()?;
        self.next_clock = former.workingset_clock().now + gap;
        Some(former)
    }
}

impl Lruvecs {
    pub(super) fn new(frames: Pages) -> Self {
        let link = || Link {
            next: AtomicU32::new(NIL),
            prev: AtomicU32::new(NIL),
            list: AtomicU8::new(ListId::None as u8),
        };
        Self {
            links: (0..frames.0).map(|_| link()).collect(),
            table: RwLock::new(&TABLE_LOCK, Vec::new()),
        }
    }

    pub(super) fn nr_frames(&self) -> usize {
        self.links.len()
    }

    pub(super) fn insert(&self, group: &GroupNode) {
        let mut table = self.table.write();
        let index = group.id().index();
        if table.len() <= index {
            table.resize_with(index + 1, Place::default);
        }
        let place = &mut table[index];
        let former = place.take(self.clock_gap());
        place.lists = Some(Arc::new(Lruvec::new(group.clone(), place.next_clock)));
        if let Some(former) = former {
            // A number is used again once nothing is charged to its former group, which may be
            // before that group's remover comes for the lists.
            assert!(
                former.group.is_removed(),
                "{} has lists already",
                group.id()
            );
            let mut lists = former.lists.lock();
            assert_eq!(
                lists.inactive.len + lists.active.len,
                0,
                "nobody pays for these"
            );
            lists.is_dead = true;
        }
    }

    /// Takes a group's lists out, unless a later group of the same number has replaced them.
    pub(super) fn remove(&self, group: &GroupNode) -> Option<LruvecRef> {
        let mut table = self.table.write();
        let place = table.get_mut(group.id().index())?;
        let is_its = place.lists.as_ref().is_some_and(|it| it.group == *group);
        is_its.then(|| place.take(self.clock_gap())).flatten()
    }

    /// More than the longest active list, and than what reclaimers that still hold lists may add to
    /// their clock.
    fn clock_gap(&self) -> u64 {
        self.links.len() as u64 + (1 << 20)
    }

    pub(super) fn get(&self, group: GroupId) -> Option<LruvecRef> {
        self.table.read().get(group.index())?.lists.clone()
    }

    /// The lists of a group, unless it was removed.
    pub(super) fn of(&self, group: &GroupNode) -> Option<LruvecRef> {
        self.get(group.id()).filter(|lruvec| lruvec.group == *group)
    }

    /// Every group's lists, in order of group number.
    pub(super) fn live(&self) -> Vec<LruvecRef> {
        let table = self.table.read();
        table
            .iter()
            .filter_map(|place| place.lists.clone())
            .collect()
    }

    /// Pages on the lists of the groups that `accept` takes.
    ///
    /// # Cost
    ///
    /// Three loads a group; no allocation.
    pub(super) fn sizes_of(&self, accept: impl Fn(&Lruvec) -> bool) -> ListSizes {
        self.sum_of(accept, Lruvec::sizes)
    }

    /// Pages that reclaimers hold of the groups that `accept` takes.
    pub(super) fn isolated_of(&self, accept: impl Fn(&Lruvec) -> bool) -> u64 {
        self.sum_of(accept, Lruvec::nr_isolated)
    }

    /// Pages that are being read in for the groups that `accept` takes.
    pub(super) fn filling_of(&self, accept: impl Fn(&Lruvec) -> bool) -> u64 {
        self.sum_of(accept, Lruvec::nr_filling)
    }

    /// Evictions so far from the lists of the groups that `accept` takes.
    pub(super) fn evictions_of(&self, accept: impl Fn(&Lruvec) -> bool) -> u64 {
        // Relaxed: as in `evict`.
        self.sum_of(accept, |lruvec| lruvec.nr_evicted.load(Ordering::Relaxed))
    }

    fn sum_of<T: Sum>(&self, accept: impl Fn(&Lruvec) -> bool, part: impl Fn(&Lruvec) -> T) -> T {
        let table = self.table.read();
        table
            .iter()
            .filter_map(|place| place.lists.as_ref())
            .filter(|lruvec| accept(lruvec))
            .map(|lruvec| part(lruvec))
            .sum()
    }

    /// The next lists at or after a place in the table, going round once.
    pub(super) fn next_from(
        &self,
        at: usize,
        accept: impl Fn(&Lruvec) -> bool,
    ) -> Option<(usize, LruvecRef)> {
        let table = self.table.read();
        let len = table.len();
        (0..len).map(|step| (at + step) % len).find_map(|index| {
            let lruvec = table[index]
                .lists
                .as_ref()
                .filter(|lruvec| accept(lruvec))?;
            Some((index, Arc::clone(lruvec)))
        })
    }

    /// The lists of the group that pays for a page which this thread has isolated; the page is
    /// given to an ancestor if the group was removed.
    pub(super) fn of_isolated(&self, cache: &PageCache, groups: &GroupTree, pfn: Pfn) -> LruvecRef {
        let group = cache.group_of(pfn);
        self.get(group).unwrap_or_else(|| {
            let removed = groups
                .get(group)
                .expect("a group stays while pages are charged to it");
            self.adopt(cache, &removed, pfn)
        })
    }

    /// Puts a page that is on no list at the head of one.
    pub(super) fn add(&self, cache: &PageCache, lruvec: LruvecRef, pfn: Pfn, place: Placement) {
        self.add_all(cache, lruvec, [(pfn, place)]);
    }

    /// Puts pages of one group that are on no list at the heads of its lists.
    pub(super) fn add_all(
        &self,
        cache: &PageCache,
        lruvec: LruvecRef,
        pages: impl IntoIterator<Item = (Pfn, Placement)>,
    ) {
        let mut lists = lruvec.lists.lock();
        if lists.is_dead {
            drop(lists);
            for (pfn, place) in pages {
                // Ends at the root, which is never removed.
                let heir = self.adopt(cache, &lruvec.group, pfn);
                self.add(cache, heir, pfn, place);
            }
            return;
        }
        for (pfn, place) in pages {
            debug_assert_eq!(cache.group_of(pfn), lruvec.group.id(), "{pfn}");
            self.push_head(&mut lists, pfn, place);
        }
        lruvec.note_sizes(&lists);
    }

    /// Takes up to `count` pages off the tail of the inactive list.
    pub(super) fn isolate_tail(&self, lruvec: &Lruvec, count: u64, out: &mut Vec<Pfn>) {
        let mut lists = lruvec.lists.lock();
        for _ in 0..count.min(lists.inactive.len) {
            let pfn = Pfn(lists.inactive.tail);
            self.unlink(&mut lists, pfn);
            out.push(pfn);
        }
        lruvec.note_sizes(&lists);
    }

    /// Looks at up to `count` pages at the tail of the active list: those for which `stays` go to
    /// its head, the others to the inactive list. Returns how many of each.
    pub(super) fn age_active(
        &self,
        lruvec: &Lruvec,
        count: u64,
        mut stays: impl FnMut(Pfn) -> bool,
    ) -> (u64, u64) {
        let mut lists = lruvec.lists.lock();
        let (mut rotated, mut deactivated) = (0, 0);
        for _ in 0..count.min(lists.active.len) {
            let pfn = Pfn(lists.active.tail);
            self.unlink(&mut lists, pfn);
            if stays(pfn) {
                self.push_head(&mut lists, pfn, Placement::Active);
                rotated += 1;
            } else {
                self.push_head(&mut lists, pfn, Placement::Inactive);
                deactivated += 1;
            }
        }
        lruvec.note_sizes(&lists);
        (rotated, deactivated)
    }

    /// Takes one page off whatever list it is on; false when it is on none.
    pub(super) fn isolate_page(&self, cache: &PageCache, pfn: Pfn) -> bool {
        let Some(lruvec) = self.get(cache.group_of(pfn)) else {
            return false;
        };
        let mut lists = lruvec.lists.lock();
        // The page may have been given to the parent since its group was read, and the number to
        // another group.
        if lists.is_dead
            || cache.group_of(pfn) != lruvec.group.id()
            || self.list_of(pfn) == ListId::None
        {
            return false;
        }
        self.unlink(&mut lists, pfn);
        lruvec.note_sizes(&lists);
        true
    }

    /// Gives every page on a removed group's lists to its parent's, in order. Pages that are on no
    /// list are given by whoever has isolated them, when they are put back.
    pub(super) fn reparent(&self, cache: &PageCache, child: &Lruvec) {
        let mut pages = Vec::new();
        {
            let mut lists = child.lists.lock();
            lists.is_dead = true;
            for place in [Placement::Inactive, Placement::Active] {
                while let Some(pfn) = self.pop_tail(&mut lists, place) {
                    pages.push((pfn, place));
                }
            }
            child.note_sizes(&lists);
        }
        // Where nothing is charged any more, the parent may be gone by now too.
        if pages.is_empty() {
            return;
        }
        let heir = self.hand_up(&child.group, Pages(pages.len() as u64));
        for &(pfn, _) in &pages {
            cache.set_group(pfn, heir.group.id());
        }
        self.add_all(cache, heir, pages);
    }

    /// Makes the nearest ancestor of a removed group that has lists pay for pages of it.
    fn hand_up(&self, removed: &GroupNode, pages: Pages) -> LruvecRef {
        let mut from = removed.clone();
        // Ends at the root, which is never removed.
        loop {
            let parent = from.parent().expect("the root is never removed");
            from.uncharge_to_parent(pages);
            if let Some(heir) = self.get(parent.id()) {
                return heir;
            }
            from = parent;
        }
    }

    /// Gives one isolated page of a removed group to the nearest ancestor that has lists.
    fn adopt(&self, cache: &PageCache, removed: &GroupNode, pfn: Pfn) -> LruvecRef {
        let heir = self.hand_up(removed, Pages(1));
        cache.set_group(pfn, heir.group.id());
        heir
    }

    fn pop_tail(&self, lists: &mut Lists, place: Placement) -> Option<Pfn> {
        let tail = lists.get(place).tail;
        if tail == NIL {
            return None;
        }
        self.unlink(lists, Pfn(tail));
        Some(Pfn(tail))
    }

    // Relaxed throughout below: links are touched under their lruvec's lock only.

    fn push_head(&self, lists: &mut Lists, pfn: Pfn, place: Placement) {
        let link = &self.links[pfn.index()];
        let id = match place {
            Placement::Inactive => ListId::Inactive,
            Placement::Active => ListId::Active,
        };
        assert_eq!(
            self.list_of(pfn),
            ListId::None,
            "{pfn} is on a list already"
        );
        let list = lists.get(place);
        link.list.store(id as u8, Ordering::Relaxed);
        link.prev.store(NIL, Ordering::Relaxed);
        link.next.store(list.head, Ordering::Relaxed);
        match self.links.get(list.head as usize) {
            Some(old_head) => old_head.prev.store(pfn.0, Ordering::Relaxed),
            None => list.tail = pfn.0,
        }
        list.head = pfn.0;
        list.len += 1;
    }

    fn unlink(&self, lists: &mut Lists, pfn: Pfn) {
        let link = &self.links[pfn.index()];
        let place = match self.list_of(pfn) {
            ListId::Inactive => Placement::Inactive,
            ListId::Active => Placement::Active,
            ListId::None => unreachable!("{pfn} is on no list"),
        };
        let list = lists.get(place);
        let (next, prev) = (
            link.next.load(Ordering::Relaxed),
            link.prev.load(Ordering::Relaxed),
        );
        match self.links.get(prev as usize) {
            Some(before) => before.next.store(next, Ordering::Relaxed),
            None => list.head = next,
        }
        match self.links.get(next as usize) {
            Some(after) => after.prev.store(prev, Ordering::Relaxed),
            None => list.tail = prev,
        }
        link.list.store(ListId::None as u8, Ordering::Relaxed);
        list.len -= 1;
    }

    fn list_of(&self, pfn: Pfn) -> ListId {
        match self.links[pfn.index()].list.load(Ordering::Relaxed) {
            id if id == ListId::Inactive as u8 => ListId::Inactive,
            id if id == ListId::Active as u8 => ListId::Active,
            _ => ListId::None,
        }
    }

    /// Checks one group's lists; returns how many pages are on them.
    pub(super) fn check_invariants(&self, cache: &PageCache, lruvec: &Lruvec) -> Pages {
        let mut lists = lruvec.lists.lock();
        lruvec.note_sizes(&lists);
        for (place, id) in [
            (Placement::Inactive, ListId::Inactive),
            (Placement::Active, ListId::Active),
        ] {
            let list = lists.get(place);
            let (mut at, mut prev, mut len) = (list.head, NIL, 0);
            while at != NIL {
                let link = &self.links[at as usize];
                assert_eq!(self.list_of(Pfn(at)), id, "F{at}");
                assert_eq!(link.prev.load(Ordering::Relaxed), prev, "F{at}");
                assert_eq!(cache.group_of(Pfn(at)), lruvec.group.id(), "F{at}");
                (prev, at, len) = (at, link.next.load(Ordering::Relaxed), len + 1);
            }
            assert_eq!(
                (list.tail, list.len),
                (prev, len),
                "tail and length of {place:?}"
            );
        }
        lruvec.sizes().total()
    }
}

impl Lists {
    fn get(&mut self, place: Placement) -> &mut List {
        match place {
            Placement::Inactive => &mut self.inactive,
            Placement::Active => &mut self.active,
        }
    }
}
