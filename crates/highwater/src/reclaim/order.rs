//! The order of accesses of a group's pages ([`Recency`](super::recency::Recency)), beside its
//! lists: pages enter it and leave it here, walks look at its pages, and LRU's victims are
//! isolated.
//!
//! A look at a page takes the accesses to it, for which its entries are searched; that is done
//! without the lists' lock, and without isolating the page. By the time the lock is taken again,
//! the page may have left its frame; what was found then is dropped, or counts for the page that
//! has replaced it on the same lists. Nothing but a mark is lost.
//!
//! Does nothing, and costs a load, under a policy that is not bounded by LRU.

use super::Reclaim;
use super::control::ScanControl;
use super::lists::{Lists, LruList, PageType};
use super::lruvec::Lruvec;
use super::policy::EvictedBy;
use super::recency::{LOOKS, Stamp};
use super::table::TooLarge;
use super::table::{Isolated, Lruvecs, type_of};
use crate::cache::{Evicted, PageCache};
use crate::group::GroupNode;
use crate::units::Pfn;

/// Pages that are looked at between two locks.
const LOOKS_MAX: usize = 128;

/// What a scan has found about pages that stay.
#[derive(Debug, Default)]
pub(super) struct ScanNotes {
    /// Pages that were accessed since the last look.
    pub(super) touched: Vec<Pfn>,
    /// Pages that were not, and cannot be evicted now.
    pub(super) held: Vec<Pfn>,
}

impl ScanNotes {
    pub(super) fn clear(&mut self) {
        self.touched.clear();
        self.held.clear();
    }
}

impl Lruvecs {
    /// Puts a page that was put on a list in the order too, or takes one out that is not to be
    /// evicted. The lists' lock is held.
    pub(super) fn note_listed(&self, cache: &PageCache, lists: &mut Lists, pfn: Pfn) {
        let Some(places) = &self.places else {
            return;
        };
        let page_type = type_of(cache, pfn);
        let is_evictable = self.links.list_of(pfn) != Some(LruList::Unevictable);
        match (is_evictable, places.has(pfn)) {
            (true, false) => {
                let now = cache.access_clock(cache.group_of(pfn));
                lists.recency(page_type).enter(places, pfn, now);
            }
            (false, true) => lists.recency(page_type).forget(places, pfn),
            _ => (),
        }
    }

    /// Takes pages that are being evicted out of the order of their lists; returns the stamp of
    /// each, or `None` if their group was removed.
    pub(super) fn leave_order(
        &self,
        cache: &PageCache,
        lruvec: &Lruvec,
        evicted: &[Evicted],
    ) -> Vec<Option<Stamp>> {
        let Some(places) = &self.places else {
            return Vec::new();
        };
        let mut lists = lruvec.lock();
        let mut leave = |evicted: &Evicted| {
            let pfn = evicted.frame.pfn();
            let order = lists.recency(type_of(cache, pfn));
            places.has(pfn).then(|| order.leave(places, pfn))
        };
        evicted.iter().map(&mut leave).collect()
    }

    /// Takes a page that leaves without a shadow out of the order.
    pub(super) fn forget_place(&self, page: &Isolated) {
        let Some(places) = &self.places else {
            return;
        };
        let mut lists = page.from.lock();
        // Not if it left with a shadow, or its group was removed.
        if places.has(page.pfn) {
            lists.recency(page.page_type).forget(places, page.pfn);
        }
    }

    /// Takes all pages out of the order.
    pub(super) fn forget_order(&self, lists: &mut Lists) {
        if let Some(places) = &self.places {
            lists.orders().for_each(|order| order.forget_all(places));
        }
    }

    /// Records what a scan has found about pages that are on the lists again.
    pub(super) fn note_seen(
        &self,
        cache: &PageCache,
        lruvec: &Lruvec,
        page_type: PageType,
        seen: &ScanNotes,
    ) {
        let Some(places) = &self.places else {
            return;
        };
        if seen.touched.is_empty() && seen.held.is_empty() {
            return;
        }
        let mut lists = lruvec.lock();
        for &pfn in &seen.touched {
            if self.is_evictable(cache, lruvec, &lists, pfn, page_type) {
                let time = cache.accessed_at(pfn);
                lists.recency(page_type).touch(places, pfn, time);
            }
        }
        let now = cache.access_clock(lruvec.group().id());
        for &pfn in &seen.held {
            if self.is_evictable(cache, lruvec, &lists, pfn, page_type) {
                lists.recency(page_type).renew(places, pfn, now);
            }
        }
    }

    /// Returns whether a page is on one of the two lists of a type.
    fn is_evictable(
        &self,
        cache: &PageCache,
        lruvec: &Lruvec,
        lists: &Lists,
        pfn: Pfn,
        page_type: PageType,
    ) -> bool {
        let list = self.list_within(cache, lruvec, lists, pfn);
        list.and_then(LruList::page_type) == Some(page_type)
    }

    /// Returns the `count` pages with the oldest known accesses that are not isolated.
    pub(super) fn oldest(&self, lruvec: &Lruvec, page_type: PageType, count: u64) -> Vec<Pfn> {
        let Some(places) = &self.places else {
            return Vec::new();
        };
        let mut lists = lruvec.lock();
        let oldest = lists.recency(page_type).oldest_first(places);
        let is_listed = |pfn: &Pfn| self.links.list_of(*pfn).is_some();
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        oldest.filter(is_listed).take(count).collect()
    }

    /// Isolates those of `pages` that are still on the lists of a type, as far as they hold no more
    /// than `frames` frames; returns whether one was left because it holds too many.
    pub(super) fn isolate_listed(
        &self,
        cache: &PageCache,
        (lruvec, page_type): (&Lruvec, PageType),
        pages: &[Pfn],
        mut frames: u64,
        out: &mut Vec<Pfn>,
    ) -> TooLarge {
        let mut is_too_large = TooLarge(false);
        let nr_before = out.len();
        let mut lists = lruvec.lock();
        let nr_listed = lists.len_of(page_type);
        for &pfn in pages {
            if !self.is_evictable(cache, lruvec, &lists, pfn, page_type) {
                continue;
            }
            match frames.checked_sub(self.links.frames_of(pfn)) {
                None => is_too_large = TooLarge(true),
                Some(left) => {
                    frames = left;
                    self.links.unlink(&mut lists, pfn);
                    out.push(pfn);
                }
            }
        }
        debug_assert_eq!(
            lists.len_of(page_type) + (out.len() - nr_before) as u64,
            nr_listed,
            "pages left the lists of another type"
        );
        lruvec.note_sizes(&lists);
        is_too_large
    }

    /// Checks that the order has the pages of the lists. Requires quiescence.
    pub(super) fn check_order(&self, lists: &mut Lists) {
        let Some(places) = &self.places else {
            return;
        };
        for page_type in PageType::ALL {
            let listed = lists.len_of(page_type);
            let recency = lists.recency(page_type);
            assert_eq!(recency.check(places), listed, "{page_type:?} in order");
            for pfn in recency.oldest_first(places) {
                let list = self.links.list_of(pfn).and_then(LruList::page_type);
                assert_eq!(list, Some(page_type), "{pfn}");
            }
        }
    }
}

impl Reclaim {
    /// Takes looks that are due at the pages of a type; returns whose victims are to be evicted.
    pub(super) fn review(
        &self,
        lruvec: &Lruvec,
        page_type: PageType,
        control: &ScanControl<'_>,
    ) -> EvictedBy {
        if self.lruvecs.places.is_none() {
            return EvictedBy::Policy;
        }
        // Twice as many as come due for a cluster, so that looks that are overdue are made up for.
        let mut left = 2 * LOOKS * self.cluster(control.actor);
        loop {
            match self.walk(lruvec, page_type, control.within(), left) {
                0 => break,
                looks => left -= looks,
            }
        }
        let victims = lruvec.lock().recency(page_type).victims();
        let lens = lruvec.sizes().lens(page_type);
        lruvec.policy_state(page_type).follow(victims, lens);
        victims
    }

    /// Takes looks at the pages of a type that are overdue. Called after pages were added.
    ///
    /// # Cost
    ///
    /// The lists' lock if there is nothing to do; otherwise up to 1,024 looks, for a batch of
    /// pages.
    pub(super) fn catch_up(&self, lruvec: &Lruvec, page_type: PageType) {
        // Anonymous pages are evicted to swap alone.
        let is_evicted = page_type == PageType::File || self.has_swap();
        if self.lruvecs.places.is_none() || !is_evicted {
            return;
        }
        for _ in 0..1024 / LOOKS_MAX {
            let is_overdue = lruvec.lock().recency(page_type).is_overdue();
            if !is_overdue || self.walk(lruvec, page_type, None, LOOKS_MAX as u64) == 0 {
                return;
            }
        }
    }

    /// Takes up to `most` of the looks that are due, but only as many as one lock allows; returns
    /// their number.
    fn walk(
        &self,
        lruvec: &Lruvec,
        page_type: PageType,
        within: Option<&GroupNode>,
        most: u64,
    ) -> u64 {
        let Some(places) = &self.lruvecs.places else {
            return 0;
        };
        let mut pages = Vec::with_capacity(LOOKS_MAX);
        let now = self.cache.access_clock(lruvec.group().id());
        let most = most.min(LOOKS_MAX as u64);
        let mut lists = lruvec.lock();
        let order = lists.recency(page_type);
        order.walk(places, now, most, &mut pages);
        drop(lists);
        let looks = pages.len() as u64;
        self.look_at(lruvec, page_type, within, &mut pages);
        looks
    }

    /// Takes the accesses to pages, and keeps those pages that had none.
    fn look_at(
        &self,
        lruvec: &Lruvec,
        page_type: PageType,
        within: Option<&GroupNode>,
        pages: &mut Vec<Pfn>,
    ) {
        let mut seen = ScanNotes::default();
        pages.retain(|&pfn| {
            let accesses = self.cache.take_accesses(pfn, within);
            if accesses > 0 {
                self.cache.add_credit(pfn, accesses);
                seen.touched.push(pfn);
            }
            accesses == 0
        });
        self.lruvecs
            .note_seen(&self.cache, lruvec, page_type, &seen);
    }

    /// Isolates those of the `count` pages with the oldest known accesses that were not accessed
    /// since; returns the number of pages that were looked at.
    pub(super) fn isolate_oldest(
        &self,
        lruvec: &Lruvec,
        page_type: PageType,
        (count, frames): (u64, u64),
        control: &ScanControl<'_>,
        out: &mut Vec<Pfn>,
    ) -> (u64, TooLarge) {
        let mut oldest = self.lruvecs.oldest(lruvec, page_type, count);
        let looks = oldest.len() as u64;
        self.look_at(lruvec, page_type, control.within(), &mut oldest);
        let of = (lruvec, page_type);
        let is_too_large = self
            .lruvecs
            .isolate_listed(&self.cache, of, &oldest, frames, out);
        (looks, is_too_large)
    }
}
