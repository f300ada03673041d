//! Reclaim's event counters, as in the kernel's vmstat.

use super::lists::PageType;
use super::shadow::Refault;
use crate::cache::FileKind;
use crate::group::{GroupNode, StatItem};
use crate::sync::StatCell;

/// Event counts since the manager was built, as `docs/stats.md` defines them.
#[derive(Debug, Default)]
pub struct ReclaimStats {
    pub(crate) allocstall: StatCell,
    pub(crate) pgscan_kswapd: StatCell,
    pub(crate) pgscan_direct: StatCell,
    /// By type, as those below it.
    pub(crate) pgscan: [StatCell; 2],
    pub(crate) pgsteal_kswapd: StatCell,
    pub(crate) pgsteal_direct: StatCell,
    pub(crate) pgsteal: [StatCell; 2],
    pub(crate) pgrefill: StatCell,
    pub(crate) pgactivate: StatCell,
    pub(crate) pgdeactivate: StatCell,
    pub(crate) throttle_isolated: StatCell,
    pub(crate) throttle_noprogress: StatCell,
    pub(crate) nr_vmscan_write: StatCell,
    pub(crate) nr_vmscan_write_failed: StatCell,
    pub(crate) nr_vmscan_immediate: StatCell,
    pub(crate) pgrotated: StatCell,
    pub(crate) workingset_refault: [StatCell; 2],
    pub(crate) workingset_activate: [StatCell; 2],
    pub(crate) workingset_restore: [StatCell; 2],
    /// By priority; those above the last are counted there.
    rounds: [StatCell; PRIORITIES],
}

/// The account that events are counted on.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatAccount {
    /// Background reclaim, otherwise direct reclaim.
    pub(super) is_background: bool,
    /// For a shortage in the whole pool. Reclaim for a group's own limit counts only in the group's
    /// statistics.
    pub(super) is_pool_wide: bool,
}

/// Counters of one event: by reclaimer, and by type.
struct Split<'a> {
    kswapd: (&'a StatCell, StatItem),
    direct: (&'a StatCell, StatItem),
    of_type: &'a StatCell,
}

impl Split<'_> {
    fn count(&self, group: &GroupNode, account: StatAccount, pages: u64) {
        let (actor, item) = match account.is_background {
            true => self.kswapd,
            false => self.direct,
        };
        if account.is_pool_wide {
            actor.add(pages);
        }
        self.of_type.add(pages);
        group.add_stat(item, signed(pages));
    }
}

/// Number of priorities that are counted separately: a pool of 2^40 frames begins at 31.
const PRIORITIES: usize = 32;

/// Group statistics by type: refaults, those within the working set, those of formerly active
/// pages.
const WORKINGSET_ITEMS: [[StatItem; 3]; 2] = [
    [
        StatItem::WorkingsetRefaultAnon,
        StatItem::WorkingsetActivateAnon,
        StatItem::WorkingsetRestoreAnon,
    ],
    [
        StatItem::WorkingsetRefaultFile,
        StatItem::WorkingsetActivateFile,
        StatItem::WorkingsetRestoreFile,
    ],
];

impl ReclaimStats {
    /// Returns the pages that all reclaimers scanned to evict them.
    #[must_use]
    pub fn scanned(&self) -> u64 {
        self.pgscan.iter().map(StatCell::get).sum()
    }

    /// Returns the pages that all reclaimers freed.
    #[must_use]
    pub fn stolen(&self) -> u64 {
        self.pgsteal.iter().map(StatCell::get).sum()
    }

    /// Returns the rounds over the lists, by priority.
    #[must_use]
    pub fn rounds(&self) -> [u64; PRIORITIES] {
        self.rounds.each_ref().map(StatCell::get)
    }

    pub(super) fn count_round(&self, priority: u32) {
        let at = usize::try_from(priority).map_or(PRIORITIES - 1, |at| at.min(PRIORITIES - 1));
        self.rounds[at].add(1);
    }

    /// Counts the refault of a page that comes in for `group`.
    pub(super) fn count_refault(&self, group: &GroupNode, page_type: PageType, refault: Refault) {
        let [refaults, activations, restored] = WORKINGSET_ITEMS[page_type as usize];
        self.workingset_refault[page_type as usize].add(1);
        group.add_stat(refaults, 1);
        if refault != Refault::Beyond {
            self.workingset_activate[page_type as usize].add(1);
            group.add_stat(activations, 1);
        }
        if refault == Refault::Restored {
            self.workingset_restore[page_type as usize].add(1);
            group.add_stat(restored, 1);
        }
    }

    /// Counts pages of `group` that were scanned to be evicted.
    pub(super) fn count_scanned(
        &self,
        group: &GroupNode,
        account: StatAccount,
        page_type: PageType,
        pages: u64,
    ) {
        let split = Split {
            kswapd: (&self.pgscan_kswapd, StatItem::PgscanKswapd),
            direct: (&self.pgscan_direct, StatItem::PgscanDirect),
            of_type: &self.pgscan[page_type as usize],
        };
        split.count(group, account, pages);
    }

    /// Counts pages of `group` that were freed.
    pub(super) fn count_freed(
        &self,
        group: &GroupNode,
        account: StatAccount,
        page_type: PageType,
        pages: u64,
    ) {
        let split = Split {
            kswapd: (&self.pgsteal_kswapd, StatItem::PgstealKswapd),
            direct: (&self.pgsteal_direct, StatItem::PgstealDirect),
            of_type: &self.pgsteal[page_type as usize],
        };
        split.count(group, account, pages);
    }

    /// Counts pages that were activated in `group`.
    pub(super) fn count_activated(&self, group: &GroupNode, pages: u64) {
        self.pgactivate.add(pages);
        group.add_stat(StatItem::Pgactivate, signed(pages));
    }

    /// Counts pages that were scanned on an active list of `group` in order to age it, and pages
    /// that left one.
    pub(super) fn count_aged(
        &self,
        group: &GroupNode,
        account: StatAccount,
        looked_at: u64,
        deactivated: u64,
    ) {
        if account.is_pool_wide {
            self.pgrefill.add(looked_at);
        }
        self.pgdeactivate.add(deactivated);
        group.add_stat(StatItem::Pgrefill, signed(looked_at));
        group.add_stat(StatItem::Pgdeactivate, signed(deactivated));
    }
}

/// Returns the statistic that counts pages of a kind.
#[must_use]
pub fn pages_item(kind: FileKind) -> StatItem {
    match kind {
        FileKind::File => StatItem::File,
        FileKind::Anon => StatItem::Anon,
        FileKind::Shmem => StatItem::Shmem,
    }
}

/// Converts a number of pages to a signed difference.
pub(super) fn signed(pages: u64) -> i64 {
    i64::try_from(pages).expect("a pool has less than 2^63 pages")
}
