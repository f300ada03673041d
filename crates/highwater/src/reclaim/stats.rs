//! What reclaim did, counted as the kernel's vmstat counts it.

use super::lists::PageType;
use super::shadow::Refault;
use crate::cache::FileKind;
use crate::group::{GroupNode, StatItem};
use crate::sync::StatCell;

/// Event counts since the manager was built. `docs/stats.md` says what moves each.
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

/// On whose account events are counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    /// The background thread's; else whoever needed memory itself.
    pub(super) is_background: bool,
    /// For want in the whole pool. What a group does because of its own limit is in its own
    /// statistics only.
    pub(super) is_pool_wide: bool,
}

/// Counters of one event: by who reclaims, and by type.
struct Split<'a> {
    kswapd: (&'a StatCell, StatItem),
    direct: (&'a StatCell, StatItem),
    of_type: &'a StatCell,
}

impl Split<'_> {
    fn count(&self, group: &GroupNode, account: Account, pages: u64) {
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

/// Priorities that rounds are told apart by: a pool of 2^40 frames begins at 31.
const PRIORITIES: usize = 32;

/// Statistics of groups by type: refaults, those within the working set, those that had been
/// active.
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
    /// Pages examined on inactive lists, by everybody.
    #[must_use]
    pub fn scanned(&self) -> u64 {
        self.pgscan.iter().map(StatCell::get).sum()
    }

    /// Pages freed from inactive lists, by everybody.
    #[must_use]
    pub fn stolen(&self) -> u64 {
        self.pgsteal.iter().map(StatCell::get).sum()
    }

    /// Rounds over the lists, by priority.
    #[must_use]
    pub fn rounds(&self) -> [u64; PRIORITIES] {
        self.rounds.each_ref().map(StatCell::get)
    }

    pub(super) fn count_round(&self, priority: u32) {
        let at = usize::try_from(priority).map_or(PRIORITIES - 1, |at| at.min(PRIORITIES - 1));
        self.rounds[at].add(1);
    }

    /// Counts what has happened to a page that comes in for `group`.
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

    /// Counts pages that were looked at on an inactive list of `group`.
    pub(super) fn count_scanned(
        &self,
        group: &GroupNode,
        account: Account,
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
        account: Account,
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

    /// Counts pages that were looked at on an active list of `group`, and those of them that left
    /// it.
    pub(super) fn count_aged(
        &self,
        group: &GroupNode,
        account: Account,
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

/// The item that counts pages of a kind.
#[must_use]
pub fn pages_item(kind: FileKind) -> StatItem {
    match kind {
        FileKind::File => StatItem::File,
        FileKind::Anon => StatItem::Anon,
        FileKind::Shmem => StatItem::Shmem,
    }
}

/// A number of pages as a difference.
pub(super) fn signed(pages: u64) -> i64 {
    i64::try_from(pages).expect("a pool has less than 2^63 pages")
}
