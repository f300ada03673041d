//! Who leaves: the decisions of an eviction policy, apart from how they are carried out.
//!
//! The pages of one type that a group pays for are on two lists, and reclaim works at their ends. A
//! policy is asked four things, and holds no pages itself:
//!
//! | asked | when | answer |
//! |---|---|---|
//! | [`admit`](EvictionPolicy::admit) | a page comes in, new or back | which list |
//! | [`next`](EvictionPolicy::next) | pages must go | which list's end is looked at |
//! | [`judge`](EvictionPolicy::judge) | a page is at that end | it goes, or stays on a list |
//! | [`accesses_max`](EvictionPolicy::accesses_max) | once | up to how many accesses between two looks make a difference |
//!
//! What a policy learns it keeps in the [`PolicyState`] of the two lists: how many pages have left
//! each, how long the first is to be, and how two ways to set that length compare. When a page
//! leaves, its shadow keeps which list it left and that list's count; when it comes back, the
//! difference is its *distance* ([`Departure`]): so many others have left the list since, and a
//! list longer by that many pages would have kept it.
//!
//! Accesses are not seen when they happen: they leave marks, up to three, which are counted and
//! taken away when reclaim looks. The access that brought a page in is not counted. What a policy
//! does with pages in order of their arrival is exact nevertheless; LRU, which needs the order of
//! accesses, is approximated as in the kernel.
//!
//! | policy | what the first list is | what the second is |
//! |---|---|---|
//! | [`Clock`] | all pages | - |
//! | [`Sieve`] | pages that the hand has not passed | pages that it has |
//! | [`S3Fifo`] | new pages, a tenth | pages that were accessed twice, or came back |
//! | [`Car`] | pages seen once | pages seen again |
//! | [`Balanced`] | new pages, as many as pay, or most | pages that were accessed twice, or came back |
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

/// Accesses between two looks that can be told apart at most: what an entry has room for.
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
    /// The other list.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Inactive => Self::Active,
            Self::Active => Self::Inactive,
        }
    }
}

/// How long the two lists are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lens {
    /// Pages on the inactive list.
    pub inactive: u64,
    /// Pages on the active list.
    pub active: u64,
    /// Pages that there is room for: as many as there are, unless more is known.
    pub capacity: u64,
}

impl Lens {
    /// Pages on both lists.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.inactive + self.active
    }

    /// Pages on one list.
    #[must_use]
    pub const fn of(self, side: Side) -> u64 {
        match side {
            Side::Inactive => self.inactive,
            Side::Active => self.active,
        }
    }
}

/// What is known of a page that comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The list that it left.
    pub from: Side,
    /// Pages that have left that list since.
    pub distance: u64,
}

/// What is known of a page at the end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// What its entries say; their marks are gone now.
    pub entries: Referenced,
    /// Accesses that are known otherwise: by copying reads, or left over from the last look.
    pub credit: u32,
    /// What it is backed by.
    pub page_type: PageType,
}

/// What becomes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes.
    Evict,
    /// It goes if it needs not be written; else it stays where it is.
    EvictClean,
    /// It goes to the head of a list, and so many accesses of it are remembered.
    Stay {
        /// The list.
        to: Side,
        /// The accesses.
        credit: u32,
    },
    /// It is locked into memory: reclaim is not to look at it again.
    Cull,
}

/// The decisions of one eviction policy; see the [module](self).
pub trait EvictionPolicy: fmt::Debug + Send + Sync {
    /// Up to how many accesses between two looks make a difference, 1 to [`ACCESSES_MAX`]. More
    /// cost readers a store each.
    fn accesses_max(&self) -> u32;

    /// The list that a page comes in on. `departure` is known of one that left lately enough to be
    /// remembered.
    fn admit(&self, state: &PolicyState, lens: Lens, departure: Option<Departure>) -> Side;

    /// The list that pages go from. If that evicts nothing, the policy is asked again: it must come
    /// to an end.
    fn next(&self, state: &PolicyState, lens: Lens) -> Side;

    /// What becomes of a page at the end of a list that was accessed so many times since the last
    /// look.
    fn decide(&self, state: &PolicyState, from: Side, accesses: u32) -> Fate;

    /// What becomes of a page at the end of a list, whatever is known of it. A page whose mappings
    /// could not be looked at keeps its place, and what is known of it.
    fn judge(&self, state: &PolicyState, from: Side, look: Look) -> Fate {
        match look.entries {
            Referenced::Seen { locked: true, .. } => Fate::Cull,
            Referenced::Contended => Fate::Stay {
                to: from,
                credit: look.credit,
            },
            Referenced::Seen { young, .. } => {
                let accesses = young.saturating_add(look.credit);
                self.decide(state, from, accesses.min(self.accesses_max()))
            }
        }
    }
}
