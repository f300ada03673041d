//! What reclaim asks of the reverse map, and what it does where a tenant holds the rmap lock.
//!
//! Mapping and unmapping hold a file's rmap lock for writing. The kernel's reclaim takes it for
//! reading, to look at the young marks of a page and again to unmap it. A tenant that maps and
//! unmaps without end then either stalls whoever needs memory, or, where reclaim passes over what
//! it cannot look at, shelters its own pages at the cost of the others'. [`RmapPolicy`] holds the
//! kernel's three answers for comparison, and two that do neither, by the tree's snapshot (the
//! module `rmap` of `cache`, which argues that it misses nothing).
//!
//! **Deferral**, the default. Marks are looked at by the snapshot, always. A page that is to be
//! unmapped while the lock is held goes back to its list with what it had, and on the file's list
//! of *deferred* pages; whoever holds the lock evicts those once it has let go
//! ([`Reclaim::settle_deferred`]): the work lands on the thread that is in the way. The length of
//! that list is the file's contention *debt*; its bound is [`DEBT_MAX`]. With a debt that high,
//! reclaim no longer waits for the holder to pay, but unmaps by the snapshot.
//!
//! **Progress.** A scan passes over at most [`DEBT_MAX`] pages of each file for a held lock until a
//! holder has settled them; every page after that is looked at and unmapped as if nobody held it.
//! So a scan that meets more pages than that makes the progress that it would make without
//! contention. It never waits for the lock: the time that a reclaimer is blocked by it is 0. A list
//! that nobody settles, because the last holder left before the page was put on it, loses nothing:
//! its pages are on the lists as all others are.
//!
//! **The kernel's quirks** (section 10.3 of the specification), mended here unless
//! [`RmapQuirks::KernelFaithful`] is asked for: (a) an active page whose check is contended is
//! deactivated instead of rotated; (b) the check takes a page's own mark away even if it then is
//! contended; (c) unmapping waits for the lock whatever the policy.
//!
//! No lock of the lists is held here: the rmap lock ranks above them.
//!
//! Source: "don't be stuck to rmap lock on reclaim path" (2022, merged), the throttling patch that
//! followed (2022, not merged), kshrinkd (2024, not merged), all as the specification describes
//! them. Deviation: kshrinkd gives contended pages to a thread of its own that waits; here their
//! holder evicts them.

use super::Reclaim;
use super::lists::PageType;
use super::scan::ScanControl;
use super::stats::Account;
use crate::cache::{
    Deferred, EvictBatch, Evicted, EvictedFor, FileEntry, Referenced, RmapAccess, Unmapped,
};
use crate::group::GroupNode;
use crate::sync::StatCell;
use crate::units::Pfn;

/// Pages of a file that are passed over, in all, for its holders to evict. Chosen: two clusters; a
/// holder evicts them in the time of some tens of its own unmappings.
pub const DEBT_MAX: usize = 64;

/// What reclaim does about a file whose rmap lock is held by somebody who maps or unmaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RmapPolicy {
    /// Waits, as Linux until 5.18.
    Blocking,
    /// Keeps the page, as Linux since 5.19.
    Skip,
    /// Keeps the page at the first priority and the two after it, then waits: a patch for Linux
    /// that was not merged.
    Throttle,
    /// Looks and unmaps by the last snapshot of the file's mappings.
    Snapshot,
    /// Looks by the snapshot; leaves a bounded number of pages for the holder to evict, and unmaps
    /// by the snapshot what is more.
    #[default]
    Defer,
}

/// What is done where the kernel's own answer is a mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RmapQuirks {
    /// A page that cannot be looked at keeps its place and its marks.
    #[default]
    Mended,
    /// As the kernel does it.
    KernelFaithful,
}

/// How reclaim deals with held rmap locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RmapConfig {
    /// What it does.
    pub policy: RmapPolicy,
    /// In which details it follows the kernel.
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

/// How far a pass has come: its priority, and the one it began with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    pub(super) priority: u32,
    pub(super) first: u32,
}

impl RmapConfig {
    /// How marks are come by.
    fn tries(self, level: Level) -> RmapAccess {
        match self.policy {
            RmapPolicy::Blocking => RmapAccess::Wait,
            RmapPolicy::Skip => RmapAccess::Try,
            RmapPolicy::Throttle if level.priority + 2 >= level.first => RmapAccess::Try,
            RmapPolicy::Throttle => RmapAccess::Wait,
            RmapPolicy::Snapshot | RmapPolicy::Defer => RmapAccess::Snapshot,
        }
    }

    /// How entries are cleared.
    fn to_unmap(self, level: Level) -> RmapAccess {
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
    /// Makes reclaim deal with held rmap locks as said.
    #[must_use]
    pub fn with_rmap(mut self, config: RmapConfig) -> Self {
        self.rmap = config;
        self
    }

    /// What happened at the reverse map so far.
    #[must_use]
    pub fn rmap_stats(&self) -> &RmapStats {
        &self.rmap_stats
    }

    /// Whether the kernel is followed where its answer is a mistake.
    pub(super) fn is_kernel_faithful(&self) -> bool {
        self.rmap.quirks == RmapQuirks::KernelFaithful
    }

    /// What was done with a page that this thread has isolated since reclaim last looked; clears
    /// the marks, unless they cannot be looked at. Where a group is short for itself (`within`),
    /// only what it and those below it did through their mappings counts.
    pub(super) fn look(&self, pfn: Pfn, level: Level, within: Option<&GroupNode>) -> Referenced {
        let access = self.rmap.tries(level);
        // A page that is not mapped is looked at without the lock.
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
                // Of accesses without an entry.
                let is_marked = self.cache.test_and_clear_young(pfn);
                Referenced::Seen {
                    young: young.max(u32::from(is_marked)),
                    executable,
                    locked,
                }
            }
        }
    }

    /// Clears the entries of a page that this thread has isolated; false if it has to stay.
    pub(super) fn unmap(&self, pfn: Pfn, level: Level, control: &ScanControl<'_>) -> bool {
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

    /// Evicts the pages that reclaim passed over because this thread held a file's rmap lock. Those
    /// that were accessed since stay. Returns how many went.
    ///
    /// # Cost
    ///
    /// One uncontended lock when there are none. Else that of evicting at most [`DEBT_MAX`] pages;
    /// no I/O.
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

    /// Counts a page that goes for whoever has deferred it: they have counted that they looked at
    /// it.
    fn note_taken_over(&self, evicted: &Evicted, to: EvictedFor) {
        let Some(lruvec) = self.lruvecs.get(evicted.group) else {
            return;
        };
        // One that is gone has nobody who is short.
        let short = self.lruvecs.get(to.short);
        let short = short.as_ref().unwrap_or(&lruvec);
        self.leave_shadows(&lruvec, short, std::slice::from_ref(evicted));
        let account = Account {
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

    /// Whether an isolated page is clean and was not accessed; its entries are clear then.
    fn is_idle(&self, pfn: Pfn) -> bool {
        let is_wanted = match self.cache.referenced(pfn, RmapAccess::Snapshot, None) {
            Referenced::Seen { young, locked, .. } => young > 0 || locked,
            Referenced::Contended => true,
        };
        // By a copying read, since it was put on the list: what reclaim knew then said that it
        // goes.
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
        // Goal: each policy is what its name says, with and without the kernel's quirks. Method:
        // the whole table at both ends of a pass and where throttling changes its mind.
        use RmapAccess::{Snapshot, Try, Wait};
        let look_and_unmap = |policy, quirks, priority| {
            let level = Level {
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
