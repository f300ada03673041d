//! Eviction policies: pure decisions, without the mechanism.
//!
//! The pages of one type that a group pays for are on two lists, and reclaim works at their tails.
//! A policy holds no pages; reclaim calls it for four decisions:
//!
//! | call | when | result |
//! |---|---|---|
//! | [`admit`](EvictionPolicy::admit) | a page comes in, new or a refault | the list |
//! | [`next`](EvictionPolicy::next) | pages must be evicted | the list whose tail is scanned |
//! | [`judge`](EvictionPolicy::judge) | a page is at that tail | it is evicted, or stays on a list |
//! | [`accesses_max`](EvictionPolicy::accesses_max) | once | how many accesses between two scans it distinguishes |
//!
//! Most policies evict pages from either list, and measure time by each list. The two-list LRU
//! [ages](EvictionPolicy::ages) the active list instead.
//!
//! A policy keeps its state in the [`PolicyState`] of the two lists: how many pages have left
//! each, the target length of the first, and whether LRU's victims are evicted. When a page is
//! evicted, its shadow keeps the list that it left and that list's count; when it refaults, the
//! difference is its *distance* ([`Departure`]): that many others have left the list since, and a
//! list longer by that many pages would have kept it.
//!
//! Accesses are not seen when they happen: they set marks, up to three, which reclaim counts and
//! clears when it scans the page. The access that brought a page in is not counted. Decisions
//! based on the order of arrival are exact nevertheless. LRU, which needs the order of accesses,
//! is approximated: by two lists as in the kernel, or by walks (module `recency`).
//!
//! | policy | first list | second list |
//! |---|---|---|
//! | [`TwoList`] | new pages | pages that were accessed twice, or refaulted |
//! | [`Clock`] | all pages | - |
//! | [`Sieve`] | pages that the hand has not passed | pages that it has |
//! | [`S3Fifo`] | new pages, a tenth | pages that were accessed twice, or refaulted |
//! | [`Car`] | pages seen once | pages seen again |
//! | [`Balanced`] | new pages, as many as pay, or most | pages that were accessed twice, or refaulted |
//!
//! Checked against exact models, decision by decision: the lab's
//! `tests/policies.rs::the_library_decides_as_the_models_do`.

mod balanced;
mod car;
mod clock;
mod kind;
mod s3_fifo;
mod sieve;
mod state;
mod two_list;

#[cfg(feature = "lab")]
mod kernel;
#[cfg(all(test, not(loom)))]
mod reference_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use balanced::Balanced;
pub use car::Car;
pub use clock::Clock;
#[cfg(feature = "lab")]
pub use kernel::KernelLists;
#[cfg(feature = "lab")]
pub use kind::ParsePolicyError;
pub use kind::PolicyKind;
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use state::PolicyState;
pub use two_list::TwoList;

use std::fmt;

use super::lists::PageType;
pub use super::lists::Side;
pub use super::recency::EvictedBy;
use crate::cache::Referenced;

/// Maximum number of accesses between two scans that can be distinguished: the bits of an entry.
pub const ACCESSES_MAX: u32 = 3;

/// Lengths of the two lists of a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lens {
    /// Pages on the inactive list.
    pub inactive: u64,
    /// Pages on the active list.
    pub active: u64,
    /// Capacity in pages: the current number of pages, unless more is known. For a refault that an
    /// [ageing](EvictionPolicy::ages) policy admits, the pages that it competes with.
    pub capacity: u64,
}

impl Lens {
    /// Returns the pages on both lists.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.inactive + self.active
    }

    /// Returns the pages on one list.
    #[must_use]
    pub const fn of(self, side: Side) -> u64 {
        match side {
            Side::Inactive => self.inactive,
            Side::Active => self.active,
        }
    }
}

/// The departure record of a refaulting page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The list that it left.
    pub from: Side,
    /// Pages that have left that list since; or by the clock of [`ages`](EvictionPolicy::ages).
    pub distance: u64,
}

/// A page's state at the tail of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// State of its entries, whose marks are cleared now.
    pub entries: Referenced,
    /// Further accesses: by copying reads, or left over from the last scan.
    pub credit: u32,
    /// Its backing.
    pub page_type: PageType,
}

/// The decision for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Evict it.
    Evict,
    /// Evict it if it need not be written; otherwise it stays where it is.
    EvictClean,
    /// Put it at the head of a list, with this many accesses remembered.
    Stay {
        /// The list.
        to: Side,
        /// The accesses.
        credit: u32,
    },
    /// Unevictable (mlocked): reclaim must not scan it again.
    Cull,
}

impl Fate {
    /// Puts it at the head of a list, and forgets its accesses.
    #[must_use]
    pub const fn to(to: Side) -> Self {
        Self::Stay { to, credit: 0 }
    }
}

/// The decisions of one eviction policy; see the [module](self).
pub trait EvictionPolicy: fmt::Debug + Send + Sync {
    /// Returns the number of accesses between two scans that it distinguishes, 1 to
    /// [`ACCESSES_MAX`]. More cost readers a store each.
    fn accesses_max(&self) -> u32;

    /// Returns the list for a page that comes in. `departure` is the record of a page that left
    /// recently enough to be remembered.
    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side;

    /// Returns whether a refaulting page is activated because it left so recently: it belongs to
    /// the working set. Other pages may be [admitted](Self::admit) to the active list to fill it.
    fn is_near(&self, _: &PolicyState, _: Lens, _: Departure) -> bool {
        false
    }

    /// Returns the list to evict from. If that evicts nothing, it is called again: it must
    /// terminate.
    fn next(&self, state: &PolicyState, lens: Lens) -> Side;

    /// Returns the decision for a page at the tail of a list with `accesses` accesses since the
    /// last scan.
    fn decide(&self, state: &PolicyState, lens: Lens, from: Side, accesses: u32) -> Fate;

    /// Returns the decision for a page at the tail of a list, in any state. A page whose mappings
    /// could not be checked keeps its place and its state.
    fn judge(&self, state: &PolicyState, lens: Lens, from: Side, look: Look) -> Fate {
        by_accesses(self, state, lens, from, look)
    }

    /// Returns whether the active list is only aged, as in Linux. Then
    ///
    /// - pages are evicted from the inactive list, whose length shows how many can be spared; each
    ///   scan ages a part of the active list besides, if the inactive one is
    ///   [low](Self::inactive_is_low) or a new working set comes in;
    /// - the second of two copying reads activates a page at once;
    /// - a [`Departure`] names the active list if the page had ever been on it, and its distance is
    ///   the evictions and activations since in the group for whose shortage the page was evicted.
    fn ages(&self) -> bool {
        false
    }

    /// Returns whether rounds are those of Linux: each group gives its share at each visit, however
    /// small, and a request to reclaim from the whole pool completes its first round, instead of
    /// stopping once it has enough.
    fn completes_rounds(&self) -> bool {
        false
    }

    /// Returns whether its misses are bounded by those of LRU: reclaim keeps an account of both,
    /// and evicts LRU's victims where the policy's would owe too much (module `recency`).
    fn is_bounded(&self) -> bool {
        false
    }

    /// Returns the pages that may be evicted without being aged first.
    fn candidates(&self, lens: Lens) -> u64 {
        match self.ages() {
            true => lens.inactive,
            false => lens.total(),
        }
    }

    /// Returns whether the active list is to be aged at these lengths.
    fn inactive_is_low(&self, _: Lens) -> bool {
        false
    }

    /// Returns whether the access that brings a page in through a mapping counts as one.
    fn counts_first_access(&self) -> bool {
        false
    }
}

/// Returns the decision for a page by the number of its accesses.
fn by_accesses<P: EvictionPolicy + ?Sized>(
    policy: &P,
    state: &PolicyState,
    lens: Lens,
    from: Side,
    look: Look,
) -> Fate {
    match look.entries {
        Referenced::Seen { locked: true, .. } => Fate::Cull,
        Referenced::Contended => Fate::Stay {
            to: from,
            credit: look.credit,
        },
        Referenced::Seen { young, .. } => {
            let accesses = young.saturating_add(look.credit);
            policy.decide(state, lens, from, accesses.min(policy.accesses_max()))
        }
    }
}
