//! Counts of flushes, by cause.

use crate::sync::StatCell;

/// Counts of flushes of a tree's statistics, by cause, and of their work. Statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct FlushCounts {
    /// Flushes by reads.
    pub read: u64,
    /// Flushes on request.
    pub requested: u64,
    /// Flushes after a group was reclaimed from.
    pub reclaim: u64,
    /// Periodic flushes.
    pub periodic: u64,
    /// Flushes that were needed and that another thread's flush covered.
    pub shared: u64,
    /// Reads within their tolerance, which did not flush.
    pub skipped: u64,
    /// Groups whose blocks were visited.
    pub groups_visited: u64,
    /// Blocks that were absorbed.
    pub cpus_visited: u64,
    /// Times that a flush waited for another one of the same group.
    pub lock_waits: u64,
}

/// The cause of a flush.
#[derive(Clone, Copy, Debug)]
pub(in crate::group) enum Cause {
    Read,
    Requested,
    Reclaim,
    Periodic,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    read: StatCell,
    requested: StatCell,
    reclaim: StatCell,
    periodic: StatCell,
    pub(super) shared: StatCell,
    pub(super) skipped: StatCell,
    groups_visited: StatCell,
    cpus_visited: StatCell,
    pub(super) lock_waits: StatCell,
}

impl Counts {
    pub(super) fn visited(&self, groups: u64, cpus: u64) {
        self.groups_visited.add(groups);
        self.cpus_visited.add(cpus);
    }

    /// Counts a flush by its cause.
    pub(super) fn flushed(&self, cause: Cause) {
        let count = match cause {
            Cause::Read => &self.read,
            Cause::Requested => &self.requested,
            Cause::Reclaim => &self.reclaim,
            Cause::Periodic => &self.periodic,
        };
        count.add(1);
    }

    pub(super) fn get(&self) -> FlushCounts {
        FlushCounts {
            read: self.read.get(),
            requested: self.requested.get(),
            reclaim: self.reclaim.get(),
            periodic: self.periodic.get(),
            shared: self.shared.get(),
            skipped: self.skipped.get(),
            groups_visited: self.groups_visited.get(),
            cpus_visited: self.cpus_visited.get(),
            lock_waits: self.lock_waits.get(),
        }
    }
}
