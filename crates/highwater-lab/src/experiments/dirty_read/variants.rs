//! The variants: eviction policy, and the threads that write dirty pages back.

use std::sync::Arc;

use highwater::lab::reclaim::policy::{
    Balanced, Departure, EvictionPolicy, Fate, Lens, Look, PolicyState, Side, TwoList,
};

/// A variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    pub(super) lists: Lists,
    /// Whether requests write back the dirty pages that they evict, as before Linux 3.2.
    pub(super) in_requests: bool,
    /// Whether there are background threads.
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
/// The same, beside background threads.
pub(super) const BESIDE: &str = "two lists, requester and threads";
/// Two lists by the library's rule for dirty pages.
pub(super) const THREADS: &str = "two lists, background write-back";
/// The library's defaults, with threads and without.
pub(super) const OURS: &str = "Highwater";
pub(super) const ALONE: &str = "without threads: Highwater";

pub(super) const VARIANTS: [Variant; 5] = [
    Variant {
        name: REQUESTER,
        lists: Lists::TwoList,
        in_requests: true,
        has_threads: false,
    },
    Variant {
        name: BESIDE,
        lists: Lists::TwoList,
        in_requests: true,
        has_threads: true,
    },
    Variant {
        name: THREADS,
        lists: Lists::TwoList,
        in_requests: false,
        has_threads: true,
    },
    Variant {
        name: OURS,
        lists: Lists::Balanced,
        in_requests: false,
        has_threads: true,
    },
    Variant {
        name: ALONE,
        lists: Lists::Balanced,
        in_requests: false,
        has_threads: false,
    },
];

impl Variant {
    pub(super) fn policy(&self) -> Arc<dyn EvictionPolicy> {
        match (self.lists, self.in_requests) {
            (Lists::TwoList, false) => Arc::new(TwoList),
            (Lists::TwoList, true) => Arc::new(InRequests(TwoList)),
            (Lists::Balanced, false) => Arc::new(Balanced),
            (Lists::Balanced, true) => Arc::new(InRequests(Balanced)),
        }
    }
}

/// A policy whose requests write back the dirty pages that they evict.
#[derive(Clone, Copy, Debug)]
struct InRequests<P>(P);

impl<P: EvictionPolicy> EvictionPolicy for InRequests<P> {
    fn accesses_max(&self) -> u32 {
        self.0.accesses_max()
    }

    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side {
        self.0.admit(state, lens, departure)
    }

    fn next(&self, state: &PolicyState, lens: Lens) -> Side {
        self.0.next(state, lens)
    }

    fn decide(&self, state: &PolicyState, lens: Lens, from: Side, accesses: u32) -> Fate {
        self.0.decide(state, lens, from, accesses)
    }

    fn judge(&self, state: &PolicyState, lens: Lens, from: Side, look: Look) -> Fate {
        self.0.judge(state, lens, from, look)
    }

    fn ages(&self) -> bool {
        self.0.ages()
    }

    fn candidates(&self, lens: Lens) -> u64 {
        self.0.candidates(lens)
    }

    fn inactive_is_low(&self, lens: Lens) -> bool {
        self.0.inactive_is_low(lens)
    }

    fn counts_first_access(&self) -> bool {
        self.0.counts_first_access()
    }

    fn writes_in_requests(&self) -> bool {
        true
    }
}
