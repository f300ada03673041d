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
//! A policy keeps its state in the [`PolicyState`] of the two lists: how many pages have left each,
//! the target length of the first, and how two ways to set that length compare. When a page is
//! evicted, its shadow keeps the list that it left and that list's count; when it refaults, the
//! difference is its *distance* ([`Departure`]): that many others have left the list since, and a
//! list longer by that many pages would have kept it.
//!
//! Accesses are not seen when they happen: they set marks, up to three, which reclaim counts and
//! clears when it scans the page. The access that brought a page in is not counted. Decisions based
//! on the order of arrival are exact nevertheless; LRU, which needs the order of accesses, is
//! approximated as in the kernel.
//!
//! | policy | first list | second list |
//! |---|---|---|
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
mod duel;
mod kind;
mod s3_fifo;
mod sieve;
mod state;

pub use balanced::Balanced;
pub use car::Car;
pub use clock::Clock;
pub use kind::{ParsePolicyError, PolicyKind};
pub use s3_fifo::S3Fifo;
pub use sieve::Sieve;
pub use state::PolicyState;

use std::fmt;

use super::lists::PageType;
use crate::cache::Referenced;

/// Maximum number of accesses between two scans that can be distinguished: the bits of an entry.
pub const ACCESSES_MAX: u32 = 3;

/// One of the two lists of pages of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The inactive list.
    Inactive,
    /// The active list.
    Active,
}

impl Side {
    /// Returns the other list.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Inactive => Self::Active,
            Self::Active => Self::Inactive,
        }
    }
}

/// Lengths of the two lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lens {
    /// Pages on the inactive list.
    pub inactive: u64,
    /// Pages on the active list.
    pub active: u64,
    /// Capacity in pages: the current number of pages, unless more is known.
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
    /// Pages that have left that list since.
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

/// The decisions of one eviction policy; see the [module](self).
pub trait EvictionPolicy: fmt::Debug + Send + Sync {
    /// Returns the number of accesses between two scans that it distinguishes, 1 to
    /// [`ACCESSES_MAX`]. More cost readers a store each.
    fn accesses_max(&self) -> u32;

    /// Returns the list for a page that comes in. `departure` is the record of a page that left
    /// recently enough to be remembered.
    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side;

    /// Returns the list to evict from. If that evicts nothing, it is called again: it must
    /// terminate.
    fn next(&self, state: &PolicyState, lens: Lens) -> Side;

    /// Returns the decision for a page at the tail of a list with `accesses` accesses since the
    /// last scan.
    fn decide(&self, state: &PolicyState, lens: Lens, from: Side, accesses: u32) -> Fate;

    /// Returns the decision for a page at the tail of a list, in any state. A page whose mappings
    /// could not be checked keeps its place and its state.
    fn judge(&self, state: &PolicyState, lens: Lens, from: Side, look: Look) -> Fate {
        match look.entries {
            Referenced::Seen { locked: true, .. } => Fate::Cull,
            Referenced::Contended => Fate::Stay {
                to: from,
                credit: look.credit,
            },
            Referenced::Seen { young, .. } => {
                let accesses = young.saturating_add(look.credit);
                self.decide(state, lens, from, accesses.min(self.accesses_max()))
            }
        }
    }
}
