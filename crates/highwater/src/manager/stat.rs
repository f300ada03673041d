//! Group statistics (`memory.stat`) on the manager's clock, and requested reclaim
//! (`memory.reclaim`), whose effects every later read sees.

use std::time::Duration;

use super::Core;
use super::group::Group;
use crate::group::{StatItem, StatRead, Stats, Tolerance};
use crate::reclaim::{Actor, ScanControl};
use crate::units::{Bytes, Pages};

/// Interval of the background thread's flushes of all statistics. Chosen: as the kernel's.
pub(super) const FLUSH_PERIOD: Duration = Duration::from_secs(2);

/// Passes without progress before requested reclaim ends. Chosen: as the kernel's.
const FRUITLESS_MAX: u32 = 16;

impl Group {
    /// Returns a statistic of the group and its descendants, with the bound of its error and its
    /// age. `docs/stats.md` explains each.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::read_stat`](crate::group::GroupNode::read_stat).
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn stat(&self, item: StatItem, tolerance: Tolerance) -> StatRead {
        let now = self.shared().core.now();
        self.node().read_stat(item, tolerance, now)
    }

    /// Returns all statistics (`memory.stat`), as [`stat`](Self::stat) does one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::group::Tolerance;
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let stats = tenant.stats(Tolerance::EXACT);
    /// println!("{stats:?}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self, tolerance: Tolerance) -> Stats {
        let now = self.shared().core.now();
        self.node().read_stats(tolerance, now)
    }

    /// Evicts about `bytes` of the group and its descendants, or all that is evictable if that is
    /// less, as a write to `memory.reclaim` does. Returns the evicted pages, in frames of 4 KiB.
    /// Honours protection below the group. Every read of statistics that begins after the return
    /// includes its effects, whatever the read's tolerance.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let file = hw.open(source.path())?;
    /// file.will_need(&tenant, 0..file.pages());
    /// assert_eq!(tenant.reclaim(Bytes::mib(1)).bytes(), Bytes(3 * 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reclaim(&self, bytes: Bytes) -> Pages {
        self.shared()
            .core
            .reclaim_on_request(self, bytes.pages_ceil())
    }
}

impl Core {
    fn reclaim_on_request(&self, group: &Group, pages: Pages) -> Pages {
        // Others may read pages in as fast as they are evicted.
        let pages = pages.min(group.usage_precise().pages_ceil());
        let (mut freed, mut fruitless) = (Pages::ZERO, 0);
        while freed < pages && fruitless < FRUITLESS_MAX {
            let control = ScanControl {
                nr_to_reclaim: pages - freed,
                target: group.node(),
                actor: Actor::Requested,
                first_priority: None,
                ignores_protection: false,
            };
            let now = Pages(self.shrink(&control).nr_reclaimed);
            fruitless += u32::from(now == Pages::ZERO);
            freed += now;
        }
        group.node().flush_to_root(self.now());
        freed
    }
}
