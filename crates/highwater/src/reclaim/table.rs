//! The table of lruvecs by group number, and reparenting.

use std::iter::Sum;

use super::LruvecRef;
use super::lists::{Links, Lists, LruList, PageType, Placement};
use super::lruvec::Lruvec;
use super::policy::EvictionPolicy;
use super::recency::Places;
use super::shadow::{AgeUnit, OWNERS_MAX};
use super::sizes::ListSizes;
use super::transit::{Departed, TransitState};
use crate::cache::{PageCache, PageFlag, PageKey};
use crate::group::{GroupKey, GroupNode, GroupTree, KeptData};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, LockClass, Rank, RwLock};
use crate::units::{GroupId, Pages, Pfn};

static TABLE_LOCK: LockClass = LockClass::new("lruvecs", Rank::Lruvecs);

/// The lists of all groups.
pub(super) struct Lruvecs {
    pub(super) links: Links,
    /// The places of pages in the order of accesses, if the policy is bounded by LRU.
    pub(super) places: Option<Places>,
    table: RwLock<ListsTable>,
    /// Lists that were made so far.
    /// Written by and read under: the table's lock. Publishes: nothing.
    nr_made: AtomicU32,
}

#[derive(Debug, Default)]
struct ListsTable {
    /// By group number.
    places: Vec<LruvecPlace>,
    /// Removed groups whose pages may be in transit, or have been until another was removed.
    departed: Vec<Departed>,
}

impl ListsTable {
    /// Iterates over the lists, in order of group number.
    fn lists(&self) -> impl Iterator<Item = &LruvecRef> {
        self.places.iter().filter_map(|place| place.lists.as_ref())
    }

    /// Keeps the transit of lists that were taken from the table, and lets go of what is over. The
    /// sum over each subtree stays as it is.
    fn depart(&mut self, former: &Lruvec) {
        debug_assert!(
            self.lists().all(|it| it.group() != former.group()),
            "the transit of lists in the table would be counted twice"
        );
        let Self { places, departed } = self;
        departed.retain(|departed| {
            let is_over = departed.is_over();
            if is_over {
                let lists = |key: &GroupKey| places[key.id().index()].lists.as_deref();
                let heir = departed
                    .path()
                    .iter()
                    .find_map(|key| lists(key).filter(|lruvec| lruvec.group().key() == *key));
                let heir = heir.expect("the root's lists are never removed");
                heir.transit.inherit(departed.load());
            }
            !is_over
        });
        departed.push(Departed::new(former.group(), &former.transit));
    }
}

/// A group number's place in the table.
#[derive(Debug, Default)]
struct LruvecPlace {
    lists: Option<LruvecRef>,
    /// Clock reading that the number's next group starts with.
    next_clock: u64,
}

impl LruvecPlace {
    /// Removes the lists; `gap` exceeds any refault distance that counts.
    fn take(&mut self, gap: u64) -> Option<LruvecRef> {
        let former = self.lists.take()?;
        let last_clock = former.last_clock();
        debug_assert!(
            last_clock >= self.next_clock,
            "a clock of {} went back",
            former.group().id()
        );
        self.next_clock = last_clock + gap;
        Some(former)
    }
}

/// A page that this thread has isolated, to put it back or to free it. It counts as isolated while
/// this lives.
#[derive(Debug)]
#[must_use = "the page is on no list"]
pub(super) struct Isolated {
    pub(super) pfn: Pfn,
    pub(super) page_type: PageType,
    /// The lists that it was on.
    pub(super) from: LruvecRef,
}

/// Whether a page was left on its list because it holds more frames than may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLarge(pub(super) bool);

impl Isolated {
    /// Counts a page that is about to be isolated. The list's lock is held.
    fn note(cache: &PageCache, from: &LruvecRef, pfn: Pfn) -> Self {
        let page_type = type_of(cache, pfn);
        from.note_isolated(page_type, 1);
        Self {
            pfn,
            page_type,
            from: Arc::clone(from),
        }
    }
}

impl Drop for Isolated {
    fn drop(&mut self) {
        self.from.note_settled(self.page_type, 1);
    }
}

impl Lruvecs {
    pub(super) fn new(frames: Pages) -> Self {
        Self {
            links: Links::new(frames),
            places: None,
            table: RwLock::new(&TABLE_LOCK, ListsTable::default()),
            nr_made: AtomicU32::new(0),
        }
    }

    /// Keeps the order of accesses if a policy needs it. There are no pages yet.
    pub(super) fn keep_order_for(&mut self, policy: &dyn EvictionPolicy) {
        debug_assert_eq!(
            self.sizes_of(|_| true).total(),
            Pages::ZERO,
            "pages on lists are in no order"
        );
        let frames = Pages(self.links.nr_frames() as u64);
        self.places = policy.is_bounded().then(|| Places::new(frames));
    }

    pub(super) fn nr_frames(&self) -> usize {
        self.links.nr_frames()
    }

    /// Returns the lists of a group, which are made when they are first asked for; `None` if it was
    /// removed.
    pub(super) fn of_or_new(&self, group: &GroupNode) -> Option<LruvecRef> {
        self.of(group).or_else(|| self.make(group))
    }

    /// Makes the lists of a group, and of those above it, unless another thread has.
    #[cold]
    fn make(&self, group: &GroupNode) -> Option<LruvecRef> {
        // A look before: threads may go on faulting for a removed group.
        if group.is_removed() {
            return None;
        }
        let parent = match group.parent() {
            Some(parent) => Some(self.of_or_new(&parent)?),
            None => None,
        };
        // Before the check: the group's removal sees this, or the check sees the removal.
        group.track();
        // Dropped after the lock, which is that of former lists that may be dropped here.
        let _kept = KeptData::new();
        let mut table = self.table.write();
        if group.is_removed() {
            return None;
        }
        let index = group.id().index();
        if table.places.len() <= index {
            table.places.resize_with(index + 1, LruvecPlace::default);
        }
        let place = &mut table.places[index];
        if let Some(made) = &place.lists
            && made.group() == group
        {
            return Some(Arc::clone(made));
        }
        let former = place.take(self.clock_gap());
        // Relaxed: the lock orders it.
        let serial = self.nr_made.fetch_add(1, Ordering::Relaxed) % OWNERS_MAX;
        let named = (group.clone(), serial);
        let new = Arc::new(Lruvec::new(named, parent, place.next_clock));
        place.lists = Some(Arc::clone(&new));
        if let Some(former) = former {
            table.depart(&former);
            // A number is reused once nothing is charged to its former group, possibly before the
            // thread that removes that group takes its lists.
            assert!(
                former.group().is_removed(),
                "{} has lists already",
                group.id()
            );
            let mut lists = former.lock();
            assert!(lists.is_empty(), "no group pays for these");
            self.forget_order(&mut lists);
            lists.is_dead = true;
        }
        Some(new)
    }

    /// Removes a group's lists, unless a later group of the same number has replaced them.
    pub(super) fn remove(&self, group: &GroupNode) -> Option<LruvecRef> {
        debug_assert!(group.parent_id().is_some(), "the root's lists are removed");
        let mut table = self.table.write();
        let place = table.places.get_mut(group.id().index())?;
        let is_its = place.lists.as_ref().is_some_and(|it| it.group() == group);
        let former = is_its.then(|| place.take(self.clock_gap())).flatten()?;
        table.depart(&former);
        Some(former)
    }

    /// Returns more ticks than the longest active list has pages, and than reclaimers that still
    /// hold lists may add to their clock; also if several groups have the number in turn.
    fn clock_gap(&self) -> u64 {
        AgeUnit::of(Pages(self.links.nr_frames() as u64)).gap()
    }

    pub(super) fn get(&self, group: GroupId) -> Option<LruvecRef> {
        self.table.read().places.get(group.index())?.lists.clone()
    }

    /// Returns the lists of a group, unless it was removed or never had a page.
    pub(super) fn of(&self, group: &GroupNode) -> Option<LruvecRef> {
        self.get(group.id())
            .filter(|lruvec| lruvec.group() == group)
    }

    /// Returns every group's lists, in order of group number.
    pub(super) fn live(&self) -> Vec<LruvecRef> {
        self.table.read().lists().cloned().collect()
    }

    /// Returns the pages on the lists of the groups that `accept` selects.
    ///
    /// # Cost
    ///
    /// A few loads a group; no allocation.
    pub(super) fn sizes_of(&self, accept: impl Fn(&Lruvec) -> bool) -> ListSizes {
        self.sum_of(accept, Lruvec::sizes)
    }

    /// Returns the frames of the pages on the lists of a group and its descendants.
    ///
    /// # Cost
    ///
    /// As [`sizes_of`](Self::sizes_of).
    pub(super) fn frames_below(&self, target: &GroupNode) -> ListSizes {
        self.sum_of(|lruvec| lruvec.is_in_subtree_of(target), Lruvec::frames)
    }

    /// Returns the frames of the pages on all lists.
    pub(super) fn frames(&self) -> ListSizes {
        self.sum_of(|_| true, Lruvec::frames)
    }

    /// Returns the evictions so far from the lists of the groups that `accept` selects.
    pub(super) fn evictions_of(&self, accept: impl Fn(&Lruvec) -> bool) -> u64 {
        self.sum_of(accept, Lruvec::nr_evicted)
    }

    pub(super) fn sum_of<T: Sum>(
        &self,
        accept: impl Fn(&Lruvec) -> bool,
        part: impl Fn(&Lruvec) -> T,
    ) -> T {
        let table = self.table.read();
        let lists = table.lists().filter(|lruvec| accept(lruvec));
        lists.map(|lruvec| part(lruvec)).sum()
    }

    /// Folds `step` over the transit of a group and its descendants, removed ones included.
    pub(super) fn fold_transit<T>(
        &self,
        target: &GroupNode,
        start: T,
        step: impl Fn(T, TransitState) -> T,
    ) -> T {
        let table = self.table.read();
        let lists = table.lists().filter(|it| it.is_in_subtree_of(target));
        let departed = table.departed.iter();
        let departed = departed.filter(|it| it.is_in_subtree_of(target));
        let transit = lists.map(|lruvec| lruvec.transit.load());
        transit
            .chain(departed.map(Departed::load))
            .fold(start, step)
    }

    /// Returns the next lists at or after a place in the table, wrapping around once.
    pub(super) fn next_from(
        &self,
        at: usize,
        accept: impl Fn(&Lruvec) -> bool,
    ) -> Option<(usize, LruvecRef)> {
        let table = self.table.read();
        let len = table.places.len();
        (0..len).map(|step| (at + step) % len).find_map(|index| {
            let lruvec = table.places[index]
                .lists
                .as_ref()
                .filter(|lruvec| accept(lruvec))?;
            Some((index, Arc::clone(lruvec)))
        })
    }

    /// Returns the lists of the group that pays for an isolated page; the page is charged to an
    /// ancestor if the group was removed.
    pub(super) fn of_isolated(&self, cache: &PageCache, groups: &GroupTree, pfn: Pfn) -> LruvecRef {
        let group = cache.group_of(pfn);
        self.get(group).unwrap_or_else(|| {
            let payer = groups
                .get(group)
                .expect("a group stays while pages are charged to it");
            let lists = self.of_or_new(&payer);
            lists.unwrap_or_else(|| self.adopt(cache, &payer, pfn))
        })
    }

    /// Puts pages of one group that are on no list at the heads of its lists.
    pub(super) fn add_all(
        &self,
        cache: &PageCache,
        lruvec: &LruvecRef,
        pages: impl IntoIterator<Item = (Pfn, Placement)>,
    ) {
        let mut lists = lruvec.lock();
        if lists.is_dead {
            drop(lists);
            for (pfn, place) in pages {
                // Terminates at the root, which is never removed.
                let heir = self.adopt(cache, lruvec.group(), pfn);
                self.add_all(cache, &heir, [(pfn, place)]);
            }
            return;
        }
        for (pfn, place) in pages {
            debug_assert_eq!(cache.group_of(pfn), lruvec.group().id(), "{pfn}");
            note_placement(cache, pfn, place);
            let order = cache.order_of(pfn);
            self.links
                .push_head(&mut lists, pfn, list_for(cache, pfn), order);
            self.note_listed(cache, &mut lists, pfn);
        }
        lruvec.note_sizes(&lists);
    }

    /// Isolates up to `count` pages from the tail of a list, as long as they hold no more than
    /// `frames` frames; returns whether a page was left because it holds too many.
    pub(super) fn isolate_tail(
        &self,
        lruvec: &Lruvec,
        from: LruList,
        (count, mut frames): (u64, u64),
        out: &mut Vec<Pfn>,
    ) -> TooLarge {
        let nr_before = out.len() as u64;
        let mut is_too_large = TooLarge(false);
        let mut lists = lruvec.lock();
        let pop = |_| {
            let tail = self.links.tail(&lists, from)?;
            let left = frames.checked_sub(self.links.frames_of(tail));
            is_too_large = TooLarge(left.is_none());
            frames = left?;
            self.links.pop_tail(&mut lists, from)
        };
        out.extend((0..count).map_while(pop));
        debug_assert!(
            out.len() as u64 == nr_before + count || lists.len(from) == 0 || is_too_large.0,
            "{from:?} has pages left and no tail"
        );
        lruvec.note_sizes(&lists);
        is_too_large
    }

    /// Isolates one page if it is on a list and `is_it` returns true; the condition still holds
    /// afterwards.
    pub(super) fn isolate_page(
        &self,
        cache: &PageCache,
        pfn: Pfn,
        is_it: impl FnOnce() -> bool,
    ) -> Option<Isolated> {
        let lruvec = self.get(cache.group_of(pfn))?;
        let mut lists = lruvec.lock();
        let list = self.list_within(cache, &lruvec, &lists, pfn)?;
        if !is_it() {
            return None;
        }
        // Counted before it is isolated: a thread that finds the lists empty knows that pages may
        // come back.
        let isolated = Isolated::note(cache, &lruvec, pfn);
        debug_assert!(
            list.page_type().is_none_or(|it| it == isolated.page_type),
            "{pfn} is on {list:?}, a list of the other type"
        );
        self.links.unlink(&mut lists, pfn);
        lruvec.note_sizes(&lists);
        Some(isolated)
    }

    /// Returns the list of a group that a page is on, if any; valid while the lists are locked.
    pub(super) fn list_within(
        &self,
        cache: &PageCache,
        lruvec: &Lruvec,
        lists: &Lists,
        pfn: Pfn,
    ) -> Option<LruList> {
        // The page may have been passed to the parent since its group was read, and the number to
        // another group. The frame may also be another group's, on whose lists it is: its group is
        // read on both sides of the lookup, which acquires it.
        let is_its = || cache.group_of(pfn) == lruvec.group().id();
        if lists.is_dead || !is_its() {
            return None;
        }
        self.links.list_of(pfn).filter(|_| is_its())
    }

    /// Moves a page from the inactive to the active list of its type, if it is still there and the
    /// same page.
    pub(super) fn activate(
        &self,
        cache: &PageCache,
        lruvec: &Lruvec,
        pfn: Pfn,
        key: PageKey,
    ) -> bool {
        let mut lists = lruvec.lock();
        let list = self.list_within(cache, lruvec, &lists, pfn);
        let is_inactive = matches!(list, Some(LruList::InactiveAnon | LruList::InactiveFile));
        if !is_inactive || cache.key_of(pfn) != Some(key) {
            return false;
        }
        self.links.unlink(&mut lists, pfn);
        cache.set_flag(pfn, PageFlag::Active);
        debug_assert!(
            list_for(cache, pfn).is_active(),
            "{pfn} was on an inactive list"
        );
        let (to, order) = (list_for(cache, pfn), cache.order_of(pfn));
        self.links.push_head(&mut lists, pfn, to, order);
        lruvec.note_sizes(&lists);
        true
    }

    /// Moves a page that was written back to the tail of its inactive list; returns whether it did.
    /// Does nothing if the page is isolated, unevictable, dirty again, or was replaced in its
    /// frame.
    pub(super) fn rotate(&self, cache: &PageCache, pfn: Pfn, key: PageKey) -> bool {
        let Some(lruvec) = self.get(cache.group_of(pfn)) else {
            return false;
        };
        let mut lists = lruvec.lock();
        let list = self.list_within(cache, &lruvec, &lists, pfn);
        if list.is_none_or(|list| list == LruList::Unevictable)
            || cache.key_of(pfn) != Some(key)
            || cache.is_dirty(pfn)
        {
            return false;
        }
        self.links.unlink(&mut lists, pfn);
        cache.clear_flag(pfn, PageFlag::Active);
        let to = list_for(cache, pfn);
        debug_assert!(!to.is_active(), "{pfn} is put at the tail of {to:?}");
        self.links
            .push_tail(&mut lists, pfn, to, cache.order_of(pfn));
        lruvec.note_sizes(&lists);
        true
    }

    /// Moves every page on a removed group's lists to its parent's, in order. Isolated pages follow
    /// when they are put back.
    pub(super) fn reparent(&self, cache: &PageCache, groups: &GroupTree, child: &Lruvec) {
        let mut pages = Vec::new();
        let nr_taken;
        {
            let mut lists = child.lock();
            self.forget_order(&mut lists);
            lists.is_dead = true;
            // As for isolated pages: requests above wait until they are back.
            nr_taken = LruList::ALL.iter().map(|list| lists.len(*list)).sum();
            child.note_isolated(PageType::File, nr_taken);
            for list in LruList::ALL {
                while let Some(pfn) = self.links.pop_tail(&mut lists, list) {
                    pages.push((pfn, list.into()));
                }
            }
            debug_assert_eq!(
                pages.len() as u64,
                nr_taken,
                "lists are as long as they say"
            );
            child.note_sizes(&lists);
        }
        // Without charges, the parent may have been removed by now too.
        if pages.is_empty() {
            return;
        }
        let heir = self.hand_up(cache, child.group(), pages.iter().map(|&(pfn, _)| pfn));
        self.add_all(cache, &heir, pages.iter().copied());
        child.note_settled(PageType::File, nr_taken);
        // A thread that has unlocked one meanwhile has found it on no list.
        for (pfn, place) in pages {
            if place == Placement::Unevictable {
                self.rescue_unlocked(cache, groups, pfn);
            }
        }
    }

    /// Charges isolated pages of a removed group to its nearest living ancestor.
    fn hand_up(
        &self,
        cache: &PageCache,
        removed: &GroupNode,
        pages: impl Iterator<Item = Pfn>,
    ) -> LruvecRef {
        debug_assert!(removed.is_removed(), "a living group keeps its pages");
        let mut count = Pages::ZERO;
        let heir = self.heir_of(removed);
        // Before the charge is moved, which keeps the group alive: a thread that counts for the
        // group of a page finds an existing one.
        pages.for_each(|pfn| {
            cache.set_group(pfn, heir.group().id());
            count += cache.order_of(pfn).pages();
        });
        let mut from = removed.clone();
        while from != *heir.group() {
            from.uncharge_to_parent(count.bytes());
            from = from.parent().expect("the heir is above");
        }
        heir
    }

    /// Returns the lists of the nearest living ancestor of a removed group.
    fn heir_of(&self, removed: &GroupNode) -> LruvecRef {
        let mut above = std::iter::successors(removed.parent(), GroupNode::parent);
        let heir = above.find_map(|ancestor| self.of_or_new(&ancestor));
        heir.expect("the root is never removed")
    }

    /// Charges one isolated page of a removed group to the nearest living ancestor.
    fn adopt(&self, cache: &PageCache, removed: &GroupNode, pfn: Pfn) -> LruvecRef {
        self.hand_up(cache, removed, std::iter::once(pfn))
    }

    /// Checks one group's lists; returns the number of pages on them.
    pub(super) fn check_invariants(&self, cache: &PageCache, lruvec: &Lruvec) -> Pages {
        let mut lists = lruvec.lock();
        lruvec.note_sizes(&lists);
        self.check_order(&mut lists);
        for list in LruList::ALL {
            self.links.check(&lists, list, |pfn| {
                assert_eq!(cache.group_of(pfn), lruvec.group().id(), "{pfn}");
                assert_eq!(list_for(cache, pfn), list, "{pfn}");
            });
        }
        lruvec.sizes().total()
    }
}

/// Returns whether a page is anonymous (swap-backed) or of a file.
pub(super) fn type_of(cache: &PageCache, pfn: Pfn) -> PageType {
    match cache.has_flag(pfn, PageFlag::Swapbacked) {
        true => PageType::Anon,
        false => PageType::File,
    }
}

/// Returns the list that a page belongs on, by its flags.
pub(super) fn list_for(cache: &PageCache, pfn: Pfn) -> LruList {
    if cache.has_flag(pfn, PageFlag::Unevictable) {
        return LruList::Unevictable;
    }
    let page_type = type_of(cache, pfn);
    match cache.has_flag(pfn, PageFlag::Active) {
        true => page_type.active(),
        false => page_type.inactive(),
    }
}

/// Sets a page's flags for its placement. The page is on no list.
pub(super) fn note_placement(cache: &PageCache, pfn: Pfn, place: Placement) {
    let note = |flag, is_wanted| match is_wanted {
        true => cache.set_flag(pfn, flag),
        false => cache.clear_flag(pfn, flag),
    };
    note(PageFlag::Active, place == Placement::Active);
    note(PageFlag::Unevictable, place == Placement::Unevictable);
}
