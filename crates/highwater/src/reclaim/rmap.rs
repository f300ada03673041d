//! Reclaim's use of the reverse map, and its policies for a contended rmap lock.
//!
//! Mapping and unmapping hold a file's rmap lock for writing. The kernel's reclaim takes it for
//! reading, to check the young marks of a page and again to unmap it. A tenant that maps and unmaps
//! without end then either blocks requests for memory, or, if reclaim skips pages that it cannot
//! check, protects its own pages at the cost of other tenants'. [`RmapPolicy`] holds the kernel's
//! three answers for comparison, and two that do neither, by the tree's snapshot (the module `rmap`
//! of `cache`, which argues that it misses nothing).
//!
//! **Deferral**, the default. Marks are always checked by the snapshot. A page that is to be
//! unmapped while the lock is held goes back to its list with its marks, and on the file's list of
//! *deferred* pages; the lock's holder evicts those after it has released the lock
//! ([`Reclaim::settle_deferred`]): the work is done by the thread that caused it. The length of
//! that list is the file's contention *debt*, bounded by [`DEBT_MAX`]. With a debt that high,
//! reclaim no longer defers, but unmaps by the snapshot.
//!
//! **Progress.** A scan skips at most [`DEBT_MAX`] pages of each file for a held lock until a
//! holder has settled them; every page after that is checked and unmapped as if the lock were free.
//! So a scan that finds more pages than that makes the same progress as without contention, and
//! never blocks on the lock. A deferred list that is never settled, because the last holder
//! released the lock before the page was added, loses nothing: its pages are on the LRU lists as
//! all others are.
//!
//! **The kernel's quirks** (section 10.3 of the specification), fixed here unless
//! [`RmapQuirks::KernelFaithful`] is set: (a) an active page whose check is contended is
//! deactivated instead of rotated; (b) the check clears a page's own mark even if it then is
//! contended; (c) unmapping waits for the lock under every policy.
//!
//! No lock of the lists is held here: the rmap lock ranks above them.
//!
//! Source: "don't be stuck to rmap lock on reclaim path" (2022, merged), the throttling patch that
//! followed (2022, not merged), kshrinkd (2024, not merged), all as the specification describes
//! them. Deviation: kshrinkd gives contended pages to a thread of its own that waits; here the
//! lock's holder evicts them.

use super::Reclaim;
use super::lists::PageType;
use super::scan::ScanControl;
use super::stats::StatAccount;
use crate::cache::{
    Deferred, EvictBatch, Evicted, EvictedFor, FileEntry, Referenced, RmapAccess, Unmapped,
};
use crate::group::GroupNode;
use crate::sync::StatCell;
use crate::units::Pfn;

/// Maximum number of deferred pages of a file. Chosen: two clusters; a holder evicts them in the
/// time of some tens of its own unmappings.
pub const DEBT_MAX: usize = 64;

/// Reclaim's treatment of a file whose rmap lock is held by map or unmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RmapPolicy {
    /// Wait for the lock, as Linux until 5.18.
    Blocking,
    /// Keep the page, as Linux since 5.19.
    Skip,
    /// Keep the page at the first priority and the two after it, then wait: a patch for Linux that
    /// was not merged.
    Throttle,
    /// Check and unmap by the last snapshot of the file's mappings.
    Snapshot,
    /// Check by the snapshot; leave a bounded number of pages for the holder to evict, and unmap
    /// the rest by the snapshot.
    #[default]
    Defer,
}

/// Treatment of the kernel's own mistakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RmapQuirks {
    /// Fixed: a page that cannot be checked keeps its place and its marks.
    #[default]
    Mended,
    /// Reproduced.
    KernelFaithful,
}

/// Reclaim's treatment of contended rmap locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RmapConfig {
    /// The policy.
    pub policy: RmapPolicy,
    /// Which of the kernel's quirks it reproduces.
    pub quirks: RmapQuirks,
}

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

/// Progress of a pass: its priority, and the one it began with.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassPriority {
    pub(super) priority: u32,
    pub(super) first: u32,
}

impl RmapConfig {
    /// Returns how marks are checked.
    fn tries(self, level: PassPriority) -> RmapAccess {
        match self.policy {
            RmapPolicy::Blocking => RmapAccess::Wait,
            RmapPolicy::Skip => RmapAccess::Try,
            RmapPolicy::Throttle if level.priority + 2 >= level.first => RmapAccess::Try,
            RmapPolicy::Throttle => RmapAccess::Wait,
            RmapPolicy::Snapshot | RmapPolicy::Defer => RmapAccess::Snapshot,
        }
    }

    /// Returns how entries are cleared.
    fn to_unmap(self, level: PassPriority) -> RmapAccess {
        match (self.policy, self.quirks) {
            (RmapPolicy::Defer, _) => RmapAccess::Try,
            (RmapPolicy::Skip | RmapPolicy::Throttle, RmapQuirks::KernelFaithful) => {
                RmapAccess::Wait
            }
            _ => self.tries(level),
        }
    }
}

impl Reclaim {
    /// Sets the treatment of contended rmap locks.
    #[must_use]
    pub fn with_rmap(mut self, config: RmapConfig) -> Self {
        self.rmap = config;
        self
    }

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
        let access = self.rmap.tries(level);
        // A page that is not mapped is checked without the lock.
        if self.cache.mapcount(pfn) > 0 {
            self.rmap_stats.checks.add(1);
        }
        let look = |access| self.cache.referenced(pfn, access, within);
        match self.look_paced(access, &Referenced::Contended, look) {
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

    /// Clears the entries of a page that this thread has isolated; returns false if the page has to
    /// stay.
    pub(super) fn unmap(&self, pfn: Pfn, level: PassPriority, control: &ScanControl<'_>) -> bool {
        let access = self.rmap.to_unmap(level);
        let unmap = |access| self.cache.unmap_page(pfn, access);
        if self.look_paced(access, &Unmapped::Contended, unmap) != Unmapped::Contended {
            return true;
        }
        self.rmap_stats.unmaps_contended.add(1);
        if self.rmap.policy != RmapPolicy::Defer {
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
    /// that were accessed since stay. Returns the number evicted.
    ///
    /// # Cost
    ///
    /// One uncontended lock if there are none. Otherwise the cost of evicting at most [`DEBT_MAX`]
    /// pages; no I/O.
    pub fn settle_deferred(&self, file: &FileEntry) -> u64 {
        let deferred = self.cache.take_deferred(file);
        if deferred.is_empty() {
            return 0;
        }
        let mut isolated = Vec::with_capacity(deferred.len());
        for &Deferred { pfn, key, .. } in &deferred {
            let Some(page) = self.lruvecs.isolate_named(&self.cache, pfn, key) else {
                continue;
            };
            if self.is_idle(pfn) {
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
        let freed = self.settle(isolated, &mut batch);
        self.rmap_stats.settled.add(freed);
        freed
    }

    /// Counts a page that is evicted on behalf of the reclaimer that deferred it, which has counted
    /// the scan.
    fn note_taken_over(&self, evicted: &Evicted, to: EvictedFor) {
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
        let page_type = match evicted.key.file().kind().is_swap_backed() {
            true => PageType::Anon,
            false => PageType::File,
        };
        self.stats
            .count_freed(lruvec.group(), account, page_type, 1);
    }

    /// Returns whether an isolated page is clean and was not accessed; clears its entries then.
    fn is_idle(&self, pfn: Pfn) -> bool {
        let is_wanted = match self.cache.referenced(pfn, RmapAccess::Snapshot, None) {
            Referenced::Seen { young, locked, .. } => young > 0 || locked,
            Referenced::Contended => true,
        };
        // By a copying read, since it was deferred: reclaim had decided to evict it then.
        let is_marked = self.cache.has_credit(pfn) || self.cache.test_and_clear_young(pfn);
        if is_wanted || is_marked || self.cache.is_dirty(pfn) {
            return false;
        }
        self.cache.unmap_page(pfn, RmapAccess::Snapshot);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn policies_take_the_lock_as_they_say() {
        // Goal: each policy takes the lock as its name says, with and without the kernel's quirks.
        // Method: the whole table at both ends of a pass and where throttling changes its
        // behaviour.
        use RmapAccess::{Snapshot, Try, Wait};
        let look_and_unmap = |policy, quirks, priority| {
            let level = PassPriority {
                priority,
                first: 12,
            };
            let config = RmapConfig { policy, quirks };
            (config.tries(level), config.to_unmap(level))
        };
        let mended = RmapQuirks::Mended;
        for (policy, first, last) in [
            (RmapPolicy::Blocking, (Wait, Wait), (Wait, Wait)),
            (RmapPolicy::Skip, (Try, Try), (Try, Try)),
            (RmapPolicy::Throttle, (Try, Try), (Wait, Wait)),
            (
                RmapPolicy::Snapshot,
                (Snapshot, Snapshot),
                (Snapshot, Snapshot),
            ),
            (RmapPolicy::Defer, (Snapshot, Try), (Snapshot, Try)),
        ] {
            assert_eq!(look_and_unmap(policy, mended, 12), first, "{policy:?}");
            assert_eq!(look_and_unmap(policy, mended, 10), first, "{policy:?}");
            assert_eq!(look_and_unmap(policy, mended, 9), last, "{policy:?}");
            assert_eq!(look_and_unmap(policy, mended, 0), last, "{policy:?}");
        }
        let kernel = RmapQuirks::KernelFaithful;
        for policy in [RmapPolicy::Skip, RmapPolicy::Throttle] {
            assert_eq!(look_and_unmap(policy, kernel, 12), (Try, Wait));
        }
        assert_eq!(RmapConfig::default().policy, RmapPolicy::Defer);
    }
}
