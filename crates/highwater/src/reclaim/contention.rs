//! The kernel's treatments of a contended rmap lock, and pacers: for experiments (feature `lab`).
//!
//! Linux takes a file's rmap lock for reading, to check the young marks of a page and again to
//! unmap it; [`RmapPolicy`] holds its three answers to a held lock, and unmapping by the snapshot
//! alone, beside the library's ([`rmap`](super::rmap)). Of the kernel's own mistakes (section 10.3
//! of the specification), [`RmapQuirks::KernelFaithful`] reproduces the third: unmapping waits for
//! the lock under every policy. The other two are decisions about a page
//! ([`KernelLists`](super::policy::KernelLists)).
//!
//! A pacer limits reclaim (a share of a CPU, pages per second), or replaces time itself: in a
//! simulation, work takes as long as on the simulated machine. The reclaiming thread calls it: the
//! background thread, a thread that needs memory, or one that calls
//! [`Manager::balance`](crate::Manager::balance). It blocks that thread for as long as it takes.
//!
//! Source: "don't be stuck to rmap lock on reclaim path" (2022, merged) and the throttling patch
//! that followed (2022, not merged), as the frames-and-reclaim specification describes them.

use std::fmt;

use super::Reclaim;
use super::control::{Actor, PassPriority};
use crate::cache::{Referenced, RmapAccess, Unmapped};
use crate::group::GroupNode;
use crate::sync::Arc;
use crate::units::Pfn;

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
    /// Fixed: unmapping follows the policy.
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

/// Receives reclaim's work.
pub trait Pacer: fmt::Debug + Send + Sync {
    /// Called when the calling thread has scanned `pages` pages and freed the evicted ones. It
    /// holds no lock and no page: other threads make progress while the call blocks.
    fn looked(&self, actor: Actor, pages: u64);

    /// Called when the calling thread found a file's rmap lock contended, before it tries again. It
    /// holds no lock, and at most 128 isolated pages. Only policies that wait for the lock
    /// ([`RmapPolicy`]) call this, instead of waiting.
    fn contended(&self);
}

impl Reclaim {
    /// Sets the treatment of contended rmap locks.
    #[must_use]
    pub fn with_rmap(mut self, config: RmapConfig) -> Self {
        self.rmap = config;
        self
    }

    /// Sets the pacer.
    #[must_use]
    pub fn with_pacer(mut self, pacer: Option<Arc<dyn Pacer>>) -> Self {
        self.pacer = pacer;
        self
    }

    pub(super) fn note_looked(&self, actor: Actor, pages: u64) {
        if let Some(pacer) = &self.pacer {
            pacer.looked(actor, pages);
        }
    }

    /// Calls `look` with `access`. If that would wait for the lock and there is a pacer, tries the
    /// lock and calls the pacer until it succeeds.
    fn look_paced<T: PartialEq>(
        &self,
        access: RmapAccess,
        contended: &T,
        look: impl Fn(RmapAccess) -> T,
    ) -> T {
        let Some(pacer) = self.pacer.as_ref().filter(|_| access == RmapAccess::Wait) else {
            return look(access);
        };
        // Terminates: when the holder releases the lock, as waiting does.
        loop {
            let looked = look(RmapAccess::Try);
            if looked != *contended {
                return looked;
            }
            pacer.contended();
        }
    }

    pub(super) fn check_entries(
        &self,
        pfn: Pfn,
        level: PassPriority,
        within: Option<&GroupNode>,
    ) -> Referenced {
        let look = |access| self.cache.referenced(pfn, access, within);
        self.look_paced(self.rmap.tries(level), &Referenced::Contended, look)
    }

    pub(super) fn clear_entries(&self, pfn: Pfn, level: PassPriority) -> Unmapped {
        let unmap = |access| self.cache.unmap_page(pfn, access);
        self.look_paced(self.rmap.to_unmap(level), &Unmapped::Contended, unmap)
    }

    pub(super) fn defers(&self) -> bool {
        self.rmap.policy == RmapPolicy::Defer
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
