//! The variants: eviction policy, and the threads that write dirty pages back.

use std::sync::Arc;

use highwater::lab::reclaim::policy::{Balanced, EvictionPolicy, TwoList};

/// A variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) lists: Lists,
    /// Whether there are background threads. Without them, requests write back the dirty pages that
    /// they evict, as before Linux 3.2.
    pub(super) has_threads: bool,
}

/// An eviction policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lists {
    TwoList,
    Balanced,
}

/// Two lists, and each request writes what it evicts.
pub(super) const REQUESTER: &str = "two lists, write-back in the requester";
/// Two lists by the library's rule for dirty pages.
pub(super) const BACKGROUND: &str = "two lists, background write-back";
/// The library's defaults, with threads and without.
pub(super) const OURS: &str = "Highwater";
pub(super) const ALONE: &str = "without threads: Highwater";

pub(super) const VARIANTS: [Variant; 4] = [
    Variant {
        name: REQUESTER,
        lists: Lists::TwoList,
        has_threads: false,
    },
    Variant {
        name: BACKGROUND,
        lists: Lists::TwoList,
        has_threads: true,
    },
    Variant {
        name: OURS,
        lists: Lists::Balanced,
        has_threads: true,
    },
    Variant {
        name: ALONE,
        lists: Lists::Balanced,
        has_threads: false,
    },
];

impl Variant {
    pub(super) fn policy(&self) -> Arc<dyn EvictionPolicy> {
        match self.lists {
            Lists::TwoList => Arc::new(TwoList),
            Lists::Balanced => Arc::new(Balanced),
        }
    }
}
