//! Isolating single pages by key: to evict pages of closed or discarded memory, deferred pages, and
//! unlocked pages.
//!
//! The caller knows a page's key and the frame that it was in; by now the frame may hold another
//! page. A page leaves its frame only while it is isolated, so a key that is checked under the
//! list's lock stays valid until this thread releases the page: the requested page is isolated, and
//! a page that has replaced it in the frame is not touched.
//!
//! **Locked pages.** A page that a locked mapping has goes to the unevictable list when reclaim
//! finds it (mlock). Three threads may race there: one that puts the page on that list, one that
//! unlocks the mapping (or unmaps), and one that reparents the list. A thread that puts a page on
//! that list or unlocks calls [`rescue_unlocked`](Lruvecs::rescue_unlocked) afterwards, which takes
//! the page off unless a mapping is locked. No page is missed:
//!
//! 1. One thread stores the flag, the other that the mapping is unlocked, and each looks for the
//!    other's store after a fence in between: at least one of them sees both, and tries to take the
//!    page off.
//! 2. If it does not find the page on a list, another thread has isolated it, and puts it back
//!    later. If that puts it on the unevictable list, it begins at 1 after that.
//!
//! Checked by the models in `loom`.

use super::Reclaim;
use super::lists::Placement;
use super::table::{Isolated, Lruvecs, list_for};
use crate::cache::{
    EvictBatch, Evicted, EvictedFor, FileId, PageCache, PageFlag, PageKey, RmapAccess,
};
use crate::group::GroupTree;
use crate::sync::Arc;
use crate::sync::atomic::{Ordering, fence};
use crate::units::{Pages, Pfn};

/// Pages that are evicted together.
const CLUSTER_MAX: usize = 32;

impl Lruvecs {
    /// Isolates a page if it is on a list and still has the key.
    pub(super) fn isolate_named(
        &self,
        cache: &PageCache,
        pfn: Pfn,
        key: PageKey,
    ) -> Option<Isolated> {
        self.isolate_page(cache, pfn, || cache.key_of(pfn) == Some(key))
    }

    /// Puts a page at the head of the list that its flags name.
    pub(super) fn put_back(&self, cache: &PageCache, groups: &GroupTree, isolated: Isolated) {
        let place = list_for(cache, isolated.pfn).into();
        let pfn = isolated.pfn;
        self.put_back_at(cache, groups, isolated, place);
        if place == Placement::Unevictable {
            self.rescue_unlocked(cache, groups, pfn);
        }
    }

    fn put_back_at(
        &self,
        cache: &PageCache,
        groups: &GroupTree,
        isolated: Isolated,
        place: Placement,
    ) {
        let lruvec = self.of_isolated(cache, groups, isolated.pfn);
        self.add_all(cache, &lruvec, [(isolated.pfn, place)]);
    }

    /// Puts a frame's page back on the inactive list, if it is on the unevictable list and no
    /// mapping that has it is locked. Called after unlocking or unmapping, and after putting a page
    /// on that list.
    pub(super) fn rescue_unlocked(&self, cache: &PageCache, groups: &GroupTree, pfn: Pfn) {
        let belongs = || cache.has_flag(pfn, PageFlag::Unevictable);
        // Terminates: each further round means that another thread has locked the page after the
        // last look.
        loop {
            // SeqCst. Pairs with: itself, in the thread that unlocks and in the one that puts the
            // page on the list; with Acquire and Release each could miss the other's store.
            fence(Ordering::SeqCst);
            if !belongs() || cache.is_locked(pfn) {
                return;
            }
            let Some(isolated) = self.isolate_page(cache, pfn, belongs) else {
                return;
            };
            if !cache.is_locked(pfn) {
                return self.put_back_at(cache, groups, isolated, Placement::Inactive);
            }
            self.put_back_at(cache, groups, isolated, Placement::Unevictable);
        }
    }
}

impl Reclaim {
    /// Evicts every page of a file that is clean and not pinned or latched; leaves no shadows.
    /// Returns true if no page is left.
    pub fn evict_file(&self, file: FileId) -> bool {
        let named = |pfn| Some((pfn, self.cache.key_of(pfn)?));
        let pages: Vec<(Pfn, PageKey)> = self
            .cache
            .pages_of(file)
            .filter_map(named)
            .filter(|(_, key)| key.file() == file)
            .collect();
        self.evict_pages(&pages)
    }

    /// Evicts those of `pages` that are clean and not pinned or latched, clearing their mappings;
    /// leaves no shadows. Returns true if none of them is left in its frame. No rmap lock is held.
    pub fn evict_pages(&self, pages: &[(Pfn, PageKey)]) -> bool {
        self.evict_named(pages, RmapAccess::Wait, |_| false, |_| ())
    }

    /// Returns whether a page is on a list, and not in transit or isolated. Pages that came in
    /// lately may be in batches still ([`drain_batches`](Self::drain_batches)).
    pub fn is_listed(&self, pfn: Pfn) -> bool {
        self.lruvecs.links.list_of(pfn).is_some()
    }

    /// As [`evict_pages`](Self::evict_pages), for a request that is short of frames: leaves
    /// shadows, keeps pages that a locked mapping has, and does not wait for rmap locks.
    pub fn evict_unlocked(&self, pages: &[(Pfn, PageKey)]) -> bool {
        let to = EvictedFor {
            short: self.groups.root().id(),
            is_background: false,
        };
        let leave = |evicted: &[Evicted]| {
            for page in evicted {
                self.note_unlisted_scan(page);
                self.note_taken_over(page, to);
            }
        };
        let is_locked = |pfn| self.cache.is_locked(pfn);
        self.evict_named(pages, RmapAccess::Snapshot, is_locked, leave)
    }

    fn evict_named(
        &self,
        pages: &[(Pfn, PageKey)],
        access: RmapAccess,
        stays: impl Fn(Pfn) -> bool,
        leave: impl Fn(&[Evicted]),
    ) -> bool {
        self.drain_batches();
        let mut batch = EvictBatch::default();
        let mut is_empty = true;
        for cluster in pages.chunks(CLUSTER_MAX) {
            let mut isolated = Vec::with_capacity(cluster.len());
            for &(pfn, key) in cluster {
                match self.lruvecs.isolate_named(&self.cache, pfn, key) {
                    Some(page) if stays(pfn) => {
                        is_empty = false;
                        self.lruvecs.put_back(&self.cache, &self.groups, page);
                    }
                    Some(page) => isolated.push(page),
                    None => is_empty &= self.cache.key_of(pfn) != Some(key),
                }
            }
            let pfns: Vec<Pfn> = isolated.iter().map(|page| page.pfn).collect();
            for &pfn in &pfns {
                self.cache.unmap_page(pfn, access);
            }
            self.cache.evict_leaving(&pfns, &mut batch, &leave);
            is_empty &= batch.kept.is_empty();
            self.settle(isolated, &mut batch);
        }
        is_empty
    }

    /// Frees the evicted pages of `isolated` and puts the others back; returns the frames freed.
    pub(super) fn settle(&self, isolated: Vec<Isolated>, batch: &mut EvictBatch) -> Pages {
        let is_kept = |page: &Isolated| batch.kept.iter().any(|(kept, _)| *kept == page.pfn);
        let (kept, evicted): (Vec<_>, Vec<_>) = isolated.into_iter().partition(is_kept);
        for page in kept {
            let lruvec = Arc::clone(&page.from);
            self.lruvecs.put_back(&self.cache, &self.groups, page);
            self.note_arrival(&lruvec);
        }
        debug_assert_eq!(
            evicted.len(),
            batch.evicted.len(),
            "each isolated page is put back or evicted"
        );
        for page in &evicted {
            self.lruvecs.forget_place(page);
        }
        let freed = self.free_evicted(batch);
        for page in evicted {
            let lruvec = Arc::clone(&page.from);
            drop(page);
            self.note_arrival(&lruvec);
        }
        batch.woken.wake();
        freed
    }

    /// Moves pages that reclaim awaited during their write-back to the tails of their inactive
    /// lists, where reclaim finds them next. Called after write-back.
    ///
    /// A page that a reclaimer has isolated at the moment stays where that puts it, as in the
    /// kernel: it is on the active list then, clean, and ages like others. So does one that has
    /// been written to again.
    ///
    /// # Cost
    ///
    /// The lock of an lruvec for each page.
    pub fn rotate(&self, awaited: &[(Pfn, PageKey)]) {
        for &(pfn, key) in awaited {
            let was_rotated = self.lruvecs.rotate(&self.cache, pfn, key);
            self.stats.pgrotated.add(u64::from(was_rotated));
        }
    }

    /// Puts a page back on the inactive list, if it is on the unevictable list and no mapping that
    /// has it is locked. Called after unlocking or unmapping.
    pub fn rescue_unlocked(&self, pfn: Pfn) {
        self.lruvecs.rescue_unlocked(&self.cache, &self.groups, pfn);
    }
}
