//! Reclaim's use of the reverse map, without blocking on a contended rmap lock.
//!
//! Mapping and unmapping hold a file's rmap lock for writing. Reclaim checks the young marks of a
//! page and unmaps it, which in the kernel takes the lock. A tenant that maps and unmaps without
//! end then either blocks requests for memory, or, if reclaim skips pages that it cannot check,
//! protects its own pages at the cost of other tenants'. Here reclaim does neither, by the tree's
//! snapshot (the module `rmap` of `cache`, which argues that it misses nothing). The feature `lab`
//! has the kernel's answers.
//!
//! **Deferral.** Marks are always checked by the snapshot. A page that is to be unmapped while the
//! lock is held goes back to its list with its marks, and on the file's list of *deferred* pages;
//! the lock's holder evicts those after it has released the lock ([`Reclaim::settle_deferred`]),
//! but for pages that are protected by then: the work is done by the thread that caused it. The
//! length of that list is the file's contention *debt*, bounded by [`DEBT_MAX`]. With a debt that
//! high, reclaim no longer defers, but unmaps by the snapshot.
//!
//! **Progress.** A scan skips at most [`DEBT_MAX`] pages of each file for a held lock until a
//! holder has settled them; every page after that is checked and unmapped as if the lock were free.
//! So a scan that finds more pages than that makes the same progress as without contention, and
//! never blocks on the lock. A deferred list that is never settled, because the last holder
//! released the lock before the page was added, loses nothing: its pages are on the LRU lists as
//! all others are.
//!
//! No lock of the lists is held here: the rmap lock ranks above them.
//!
//! Source: kshrinkd (2024, not merged), as the specification describes it. Deviation: kshrinkd
//! gives contended pages to a thread of its own that waits; here the lock's holder evicts them.

use std::collections::HashMap;

use super::Reclaim;
use super::control::{PassPriority, ScanControl};
use super::lists::PageType;
use super::stats::StatAccount;
use crate::cache::{
    Deferred, EvictBatch, Evicted, EvictedFor, FileEntry, Referenced, RmapAccess, Unmapped,
};
use crate::group::{Depth, GroupNode};
use crate::sync::StatCell;
use crate::units::{GroupId, Pages, Pfn};

/// Maximum number of deferred pages of a file. Chosen: two clusters; a holder evicts them in the
/// time of some tens of its own unmappings.
pub const DEBT_MAX: usize = 64;

/// Deferred pages that are evicted together: as many as a reclaimer takes of an excess, of which
/// others may take as well.
const TOGETHER: usize = DEBT_MAX / 2;

/// Events of reclaim at the reverse map.
#[derive(Debug, Default)]
pub struct RmapStats {
    pub(crate) checks: StatCell,
    pub(crate) checks_contended: StatCell,
    pub(crate) unmaps_contended: StatCell,
    pub(crate) deferred: StatCell,
    pub(crate) settled: StatCell,
    pub(crate) over_debt: StatCell,
}

#[cfg(not(feature = "lab"))]
impl Reclaim {
    fn check_entries(&self, pfn: Pfn, _: PassPriority, within: Option<&GroupNode>) -> Referenced {
        self.cache.referenced(pfn, RmapAccess::Snapshot, within)
    }

    fn clear_entries(&self, pfn: Pfn, _: PassPriority) -> Unmapped {
        self.cache.unmap_page(pfn, RmapAccess::Try)
    }

    const fn defers(&self) -> bool {
        true
    }
}

impl Reclaim {
    /// Returns the event counts so far.
    #[must_use]
    pub fn rmap_stats(&self) -> &RmapStats {
        &self.rmap_stats
    }

    /// Returns the accesses to an isolated page since reclaim last scanned it; clears the marks,
    /// unless they cannot be checked. If a group is short by itself (`within`), counts only
    /// accesses through mappings of the group and its descendants.
    pub(super) fn look(
        &self,
        pfn: Pfn,
        level: PassPriority,
        within: Option<&GroupNode>,
    ) -> Referenced {
        // A page that is not mapped is checked without the lock.
        if self.cache.mapcount(pfn) > 0 {
            self.rmap_stats.checks.add(1);
        }
        match self.check_entries(pfn, level, within) {
            Referenced::Contended => {
                self.rmap_stats.checks_contended.add(1);
                Referenced::Contended
            }
            Referenced::Seen {
                young,
                executable,
                locked,
            } => {
                // Accesses without an entry.
                let is_marked = self.cache.test_and_clear_young(pfn);
                Referenced::Seen {
                    young: young.max(u32::from(is_marked)),
                    executable,
                    locked,
                }
            }
        }
    }

    /// Clears the entries of a page that this thread has isolated; returns false if the page has
    /// to stay.
    pub(super) fn unmap(&self, pfn: Pfn, level: PassPriority, control: &ScanControl<'_>) -> bool {
        if self.clear_entries(pfn, level) != Unmapped::Contended {
            return true;
        }
        self.rmap_stats.unmaps_contended.add(1);
        if !self.defers() {
            return false;
        }
        let to = EvictedFor {
            short: control.target.id(),
            is_background: control.account().is_background,
        };
        if self.cache.defer(pfn, to, DEBT_MAX) {
            self.rmap_stats.deferred.add(1);
            return false;
        }
        self.rmap_stats.over_debt.add(1);
        self.cache.unmap_page(pfn, RmapAccess::Snapshot);
        true
    }

    /// Evicts the pages that reclaim deferred because this thread held a file's rmap lock. Pages
    /// that were accessed since stay, and so do those that are protected by now: a deferral frees
    /// nothing, so reclaim defers more pages of a group than the group may lose. Returns the number
    /// evicted.
    ///
    /// # Cost
    ///
    /// One uncontended lock if there are none. Otherwise the cost of evicting at most [`DEBT_MAX`]
    /// pages; no I/O.
    pub fn settle_deferred(&self, file: &FileEntry) -> u64 {
        let deferred = self.cache.take_deferred(file);
        let clusters = deferred.chunks(TOGETHER);
        clusters.map(|cluster| self.settle_cluster(cluster)).sum()
    }

    fn settle_cluster(&self, deferred: &[Deferred]) -> u64 {
        let mut isolated = Vec::with_capacity(deferred.len());
        let mut taken: HashMap<GroupId, Pages> = HashMap::new();
        for &Deferred { pfn, key, to } in deferred {
            let Some(page) = self.lruvecs.isolate_named(&self.cache, pfn, key) else {
                continue;
            };
            let group = page.from.group();
            let taken = taken.entry(group.id()).or_default();
            let frames = *taken + self.cache.order_of(pfn).pages();
            if self.spares(group, frames, to.short) && self.is_idle(pfn) {
                *taken = frames;
                isolated.push(page);
            } else {
                self.lruvecs.put_back(&self.cache, &self.groups, page);
            }
        }
        let candidates: Vec<Pfn> = isolated.iter().map(|page| page.pfn).collect();
        let mut batch = EvictBatch::default();
        let note = |evicted: &[Evicted]| {
            for evicted in evicted {
                let is_it = |deferred: &&Deferred| deferred.key == evicted.key;
                if let Some(deferred) = deferred.iter().find(is_it) {
                    self.note_taken_over(evicted, deferred.to);
                }
            }
        };
        self.cache.evict_leaving(&candidates, &mut batch, note);
        let evicted = batch.evicted.len() as u64;
        self.settle(isolated, &mut batch);
        self.rmap_stats.settled.add(evicted);
        evicted
    }

    /// Counts a page that is evicted on behalf of the reclaimer that deferred it, or of a request
    /// for a block; the scan is counted before.
    pub(super) fn note_taken_over(&self, evicted: &Evicted, to: EvictedFor) {
        let Some(lruvec) = self.lruvecs.get(evicted.group) else {
            return;
        };
        // A removed group is no longer short.
        let short = self.lruvecs.get(to.short);
        let short = short.as_ref().unwrap_or(&lruvec);
        self.leave_shadows(&lruvec, short, std::slice::from_ref(evicted));
        let account = StatAccount {
            is_background: to.is_background,
            is_pool_wide: short.group().parent().is_none(),
        };
        let page_type = type_of_evicted(evicted);
        self.stats
            .count_freed(lruvec.group(), account, page_type, 1);
    }

    /// Counts the scan of a page that is evicted to empty a block, where it was found by its frame
    /// and not on a list.
    pub(super) fn note_unlisted_scan(&self, evicted: &Evicted) {
        let Some(lruvec) = self.lruvecs.get(evicted.group) else {
            return;
        };
        let account = StatAccount {
            is_background: false,
            is_pool_wide: true,
        };
        self.stats
            .count_scanned(lruvec.group(), account, type_of_evicted(evicted), 1);
    }

    /// Returns whether a group may lose so many frames for one that was short, to which it does not
    /// give what is below its `low`: that one may be short no longer.
    fn spares(&self, group: &GroupNode, frames: Pages, short: GroupId) -> bool {
        let short = self.groups.get(short);
        // A removed group is no longer short, and another may have its number.
        let short = short.filter(|short| group.is_descendant_of(short));
        let short = short.unwrap_or_else(|| self.groups.root());
        self.exposes(group.id(), frames, (&short, Depth::AboveLow))
    }

    /// Returns whether an isolated page is clean and was not accessed; clears its entries then.
    fn is_idle(&self, pfn: Pfn) -> bool {
        let is_wanted = match self.cache.referenced(pfn, RmapAccess::Snapshot, None) {
            Referenced::Seen { young, locked, .. } => young > 0 || locked,
            Referenced::Contended => true,
        };
        // By a copying read, since it was deferred: reclaim had decided to evict it then.
        let is_marked = self.cache.has_accesses(pfn) || self.cache.test_and_clear_young(pfn);
        if is_wanted || is_marked || self.cache.is_dirty(pfn) {
            return false;
        }
        self.cache.unmap_page(pfn, RmapAccess::Snapshot);
        true
    }
}

fn type_of_evicted(evicted: &Evicted) -> PageType {
    match evicted.key.file().kind().is_swap_backed() {
        true => PageType::Anon,
        false => PageType::File,
    }
}
