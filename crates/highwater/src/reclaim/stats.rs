//! What reclaim did, counted as the kernel's vmstat counts it.

use super::scan::Actor;
use super::shadow::Refault;
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

    pub(super) fn count_refault(&self, refault: Option<Refault>) {
        if let Some(refault) = refault {
            self.workingset_refault_file.add(1);
            if refault == Refault::WithinWorkingset {
                self.workingset_activate_file.add(1);
            }
        }
    }
}
