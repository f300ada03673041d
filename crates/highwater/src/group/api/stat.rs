//! Statistics on a group's handle: the public API.

use std::time::Duration;

use super::node::GroupNode;
use super::tree::GroupTree;
use crate::group::stat::{Cause, FlushCounts, Stat, StatItem, StatRead, Stats, Tolerance};
use crate::sync::Arc;
use crate::units::GroupId;

impl GroupNode {
    /// Adds `delta` to `item` of this group, and so of all its ancestors.
    ///
    /// Works on removed groups too: the counts belong to the ancestors.
    ///
    /// # Cost
    ///
    /// In the common case an addition to a line that only this CPU writes, at any depth. A CPU's
    /// first update after a flush, and one for each doubling of its count since then, also writes a
    /// line of each ancestor. The first ever allocates, and may take a lock that is never held
    /// while waiting.
    ///
    /// # Panics
    ///
    /// When `delta` is above 2^42.
    #[inline]
    pub fn add_stat(&self, item: StatItem, delta: i64) {
        self.stat().add(item, delta);
    }

    /// Returns the sum of `item` over this group and everything below it. `now` is the time since
    /// any start, the same for all calls on a tree.
    ///
    /// # Accuracy
    ///
    /// Off by at most the `staleness` that is returned, which is within the tolerance: 0 after a
    /// flush, which counts every update that returned before this call. Updates that run during the
    /// call are counted or not.
    /// Adversary: `tests/flush.rs::no_read_is_staler_than_it_says`.
    ///
    /// # Cost
    ///
    /// Within the tolerance a few loads, and one for each level. Otherwise a flush: O(groups of the
    /// subtree, and CPUs in them, that have counted since the last one); waits only for other
    /// flushes of this group.
    #[must_use]
    pub fn read_stat(&self, item: StatItem, tolerance: Tolerance, now: Duration) -> StatRead {
        self.stat().read_one(item, tolerance, now)
    }

    /// Like [`read_stat`](Self::read_stat), for all items.
    #[must_use]
    pub fn read_stats(&self, tolerance: Tolerance, now: Duration) -> Stats {
        self.stat().read_all(tolerance, now)
    }

    /// Makes every later read count all updates in the subtree that returned before this call.
    ///
    /// # Cost
    ///
    /// As a read that flushes.
    pub fn flush_subtree(&self, now: Duration) {
        self.stat().flush_for(Cause::Requested, now);
    }

    /// Makes every later read of this group and its ancestors, with any tolerance, count all
    /// updates in the subtree that returned before this call: for a caller that has changed much
    /// there.
    ///
    /// # Cost
    ///
    /// As a read that flushes, and a lock and a line of each ancestor.
    pub fn flush_to_root(&self, now: Duration) {
        self.stat().flush_for(Cause::Reclaim, now);
        self.stat().hand_up();
    }

    #[inline]
    pub(super) fn stat(&self) -> &Arc<Stat> {
        self.meta().stat()
    }
}

impl GroupTree {
    /// Adds `delta` to `item` of the group with that id, also of a removed one to which pages are
    /// charged: for callers that keep ids, such as the owner of a page frame. False if there is no
    /// such group.
    ///
    /// # Cost
    ///
    /// As [`GroupTree::get`] and [`GroupNode::add_stat`].
    pub fn add_stat(&self, id: GroupId, item: StatItem, delta: i64) -> bool {
        let group = self.get(id);
        if let Some(group) = &group {
            group.add_stat(item, delta);
        }
        group.is_some()
    }

    /// Returns the counts of flushes of this tree's statistics so far.
    #[must_use]
    pub fn flush_counts(&self) -> FlushCounts {
        self.root().stat().counts()
    }

    /// Flushes the whole tree, as the periodic flush, which bounds the age of reads by its period.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::flush_subtree`] of the root.
    pub fn flush_periodically(&self, now: Duration) {
        self.root().stat().flush_for(Cause::Periodic, now);
    }
}
