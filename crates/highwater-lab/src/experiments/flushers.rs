//! The rules for flushing statistics (rstat) that the flush experiments compare, by name.

use std::sync::Arc;

use highwater::topology::Topology;

use crate::baselines::flush::{FlushRule, Flushing, LibraryStatistics, Rstat, Shape};

/// Before the patch.
pub(super) const SKIP: &str = "root, skip if busy (before)";
/// No threshold at all.
pub(super) const ALWAYS: &str = "subtree, always";
/// The patch with the single threshold that existed before.
pub(super) const ONE_THRESHOLD: &str = "subtree, one threshold";
/// The patch.
pub(super) const PATCH: &str = "subtree, per-group thresholds (the patch)";

/// Its first posting, without thresholds.
pub(super) const MUTEX: &str = "subtree, always, under a mutex";

/// The library.
pub(super) const OURS: &str = "Highwater";

/// Statistics and their name.
#[derive(Clone, Debug)]
pub(super) struct Flusher {
    pub(super) name: &'static str,
    pub(super) statistics: Arc<dyn Flushing>,
}

impl Flusher {
    /// Returns the kernel's rstat structure under one rule.
    pub(super) fn rstat(
        name: &'static str,
        rule: FlushRule,
        shape: &Shape,
        topology: &Topology,
    ) -> Self {
        Self {
            name,
            statistics: Arc::new(Rstat::new(shape, topology.nr_cpus(), rule)),
        }
    }

    /// Returns the library's statistics.
    pub(super) fn ours(statistics: LibraryStatistics) -> Self {
        Self {
            name: OURS,
            statistics: Arc::new(statistics),
        }
    }
}
