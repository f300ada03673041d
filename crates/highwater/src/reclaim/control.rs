//! Parameters and result of a pass (`scan_control`).

use super::stats::StatAccount;
use crate::cache::WriteBackError;
use crate::group::GroupNode;
use crate::units::Pages;

/// Kind of reclaimer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Actor {
    /// The background thread (kswapd).
    Background,
    /// Direct reclaim: the thread that needs the memory.
    #[default]
    Direct,
    /// Direct reclaim by a thread that polls futures: it never sleeps. Counted as direct reclaim.
    Polled,
    /// As `Polled`, for clean pages alone: it never waits for storage. Counted as direct reclaim.
    Clean,
    /// A request to evict pages without a shortage. Counted as direct reclaim, as in the kernel.
    Requested,
}

/// Parameters of a pass.
#[derive(Clone, Debug)]
pub struct ScanControl<'a> {
    /// Pages to free. For the background thread a maximum; its pass ends when the pool has its high
    /// watermark.
    pub nr_to_reclaim: Pages,
    /// The group that is short: pages of it and its descendants are evicted.
    pub target: &'a GroupNode,
    /// The kind of reclaimer.
    pub actor: Actor,
    /// Scan priority to start with: the shift applied to list lengths. `None` scales it to the
    /// pool; 0 scans everything and ignores young marks.
    pub first_priority: Option<u32>,
    /// Whether pages protected by `min` or `low` are evicted too.
    pub ignores_protection: bool,
}

impl Actor {
    /// Returns whether the pass may sleep until other reclaimers have settled their pages.
    pub(super) const fn may_sleep(self) -> bool {
        !matches!(self, Self::Polled | Self::Clean)
    }
}

impl ScanControl<'_> {
    /// Returns whether the whole pool is short.
    pub(super) fn is_pool_wide(&self) -> bool {
        self.target.parent().is_none()
    }

    /// Returns the group whose accesses alone count, if it is short by itself.
    pub(super) fn within(&self) -> Option<&GroupNode> {
        (!self.is_pool_wide()).then_some(self.target)
    }

    /// Returns the account that events are counted on.
    pub(super) fn account(&self) -> StatAccount {
        StatAccount {
            is_background: self.actor == Actor::Background,
            is_pool_wide: self.is_pool_wide(),
        }
    }
}

/// Result of a pass.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The last scan priority; 0 scans everything.
    pub priority: u32,
    /// Pages scanned on inactive lists.
    pub nr_scanned: u64,
    /// Pages evicted.
    pub nr_evicted: u64,
    /// Frames freed: as many as pages, or more if some are larger than 4 KiB.
    pub nr_reclaimed: u64,
    /// Visits to groups. Small groups give pages in some of them only.
    pub nr_visits: u64,
    /// Clusters of groups that were scanned for that.
    pub nr_steps: u64,
    /// Pages that stayed because they were pinned or latched.
    pub nr_borrowed: u64,
    /// Pages whose write-back failed.
    pub nr_write_failed: u64,
    /// Pages that stayed because their logs are not durable as far as their last changes.
    pub nr_wal_blocked: u64,
    /// The last write-back error.
    pub write_error: Option<WriteBackError>,
}

impl Outcome {
    /// Returns the pages that stayed because they could not be written back.
    #[must_use]
    pub fn nr_unwritten(&self) -> u64 {
        self.nr_write_failed + self.nr_wal_blocked
    }
}

/// Progress of a pass: its priority, and the one it began with.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassPriority {
    pub(super) priority: u32,
    pub(super) first: u32,
}
