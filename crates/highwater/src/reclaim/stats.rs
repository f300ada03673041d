//! What reclaim did, counted as the kernel's vmstat counts it.

use super::scan::Actor;
use super::shadow::Refault;
use crate::cache::FileKind;
use crate::group::{GroupNode, StatItem};
use crate::sync::StatCell;

/// Event counts since the manager was built. `docs/stats.md` says what moves each.
#[derive(Debug, Default)]
pub struct ReclaimStats {
    pub(crate) pgscan: [StatCell; Actor::COUNT],
    pub(crate) pgsteal: [StatCell; Actor::COUNT],
    pub(crate) pgrefill: StatCell,
    pub(crate) pgactivate: StatCell,
    pub(crate) pgdeactivate: StatCell,
    pub(crate) pgrotated: StatCell,
    pub(crate) nr_vmscan_write: StatCell,
    pub(crate) nr_vmscan_write_failed: StatCell,
    pub(crate) workingset_refault_file: StatCell,
    pub(crate) workingset_activate_file: StatCell,
}

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

    /// Counts what has happened to a page that comes in for `group`.
    pub(super) fn count_refault(&self, group: &GroupNode, refault: Option<Refault>) {
        if let Some(refault) = refault {
            self.workingset_refault_file.add(1);
            group.add_stat(StatItem::WorkingsetRefaultFile, 1);
            if refault == Refault::WithinWorkingset {
                self.workingset_activate_file.add(1);
                group.add_stat(StatItem::WorkingsetActivateFile, 1);
            }
        }
    }

    /// Counts pages that were looked at on the inactive list of `group`.
    pub(super) fn count_scanned(&self, group: &GroupNode, actor: Actor, pages: u64) {
        let item = match actor {
            Actor::Background => StatItem::PgscanKswapd,
            Actor::Direct => StatItem::PgscanDirect,
        };
        self.pgscan[actor as usize].add(pages);
        group.add_stat(item, signed(pages));
    }

    /// Counts pages of `group` that were freed: its files have so many less in memory.
    pub(super) fn count_freed(&self, group: &GroupNode, actor: Actor, pages: u64) {
        let item = match actor {
            Actor::Background => StatItem::PgstealKswapd,
            Actor::Direct => StatItem::PgstealDirect,
        };
        self.pgsteal[actor as usize].add(pages);
        group.add_stat(item, signed(pages));
    }

    /// Counts pages that were activated in `group`.
    pub(super) fn count_activated(&self, group: &GroupNode, pages: u64) {
        self.pgactivate.add(pages);
        group.add_stat(StatItem::Pgactivate, signed(pages));
    }

    /// Counts pages that were looked at on the active list of `group`, and those of them that left it.
    pub(super) fn count_aged(&self, group: &GroupNode, looked_at: u64, deactivated: u64) {
        self.pgrefill.add(looked_at);
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
