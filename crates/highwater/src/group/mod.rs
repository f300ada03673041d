//! A tree of groups (memcg) with hierarchical hard limits that are never exceeded. Usage is known
//! as an interval at once, and exactly on demand.
//!
//! A [`GroupNode`] is charged before memory is used and uncharged after; its ancestors are charged
//! with it (`page_counter`), and each has a maximum. If every charge were counted on every
//! ancestor, all CPUs would write the same few cache lines. So each CPU of a group holds a per-CPU
//! stock of up to 256 KiB, its *escrow*: tokens that are reserved on the group and all its
//! ancestors and not used yet. Most charges take tokens there, by one plain store to a line of
//! their own. Unlike a plain per-CPU stock, the tokens shrink to nothing near a limit, and a charge
//! that finds no room takes them back from any CPU at once. So a group with a maximum of 20 bytes
//! takes exactly 20 bytes, also on 384 CPUs.
//!
//! # Invariant
//!
//! At every group and every moment, over its subtree:
//! `used + tokens + in flight == reserved <= max`. Reservations above a maximum, which was set
//! below the usage or passed by a forced charge, are the group's debt: while a group has debt, no
//! word below it holds tokens, only force makes its reservations grow, and every uncharged byte
//! pays the debt first. Proofs are in `escrow.rs`, `judge.rs` and `debt.rs`.
//!
//! # Parts
//!
//! | file | mechanism |
//! |---|---|
//! | `cell` | the token word of one CPU of one group: tokens, operations in flight, sequence |
//! | `far` | token words of other CPUs, stepped many at a time |
//! | `ledger` | reservations and maximum of one group, changed in one atomic step |
//! | `limits` | settings (`memory.min/low/high`) and events (`memory.events`) |
//! | `peak` | the highest usage since a reset, for each reader (`memory.peak`) |
//! | `slot` | storage of groups, reused by later ones, found by id without a lock |
//! | `escrow` | charge, uncharge, refill |
//! | `debt` | charges that may go above a maximum |
//! | `transfer` | charges that move to another group |
//! | `line`, `wait` | wait queues: charges that wait for room, FIFO |
//! | `judge` | stealing tokens; proof of a refusal; reads of usage |
//! | `tree` | creating, removing, walking; the invariants as a check |
//! | `oom` | inputs of OOM victim selection, and the walk over groups without children |
//! | `protection` | effective `min` and `low` (emin, elow) |
//! | `throttle` | the delay owed above `high` |
//! | `pressure` | pressure stall information (PSI): time lost for lack of memory |
//! | `stat` | statistics of groups, flushed as rstat does |
//! | `path` | the path of a group, for errors and records |
//! | `node`, `charge` | handles: a group, and bytes charged to it |
//! | `held` | charged bytes, and the reference that keeps their token words in memory |
//!
//! # Orderings
//!
//! Every access that decides something is `SeqCst`, in `ledger`, `slot` and, in the atomic regime,
//! `cell`: a refusal is a statement about many words at one moment, which needs one order of them
//! all. On x86-64 and arm64 the swaps cost the same as with acquire and release. In the restartable
//! regime a CPU steps its own token words by plain stores, which have such an order too:
//! `judge.rs`, "What a moment is".
//!
//! Source: accounting spec 8 and 11.10; deviations are listed in `escrow.rs`.

mod cell;
mod far;
mod ledger;
mod slot;
mod path;
mod error;
mod limits;
mod judge;
mod escrow;
mod debt;
mod transfer;
mod line;
mod wait;
mod tree;
mod held;
mod charge;
mod peak;
mod node;
mod oom;
mod protection;
mod throttle;
mod pressure;
mod stat;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, loom))]
mod loom_wait;
#[cfg(all(test, not(loom)))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use charge::Charge;
pub use error::{ChargeError, ChildError, LimitsError, MaxError, RemoveError};
pub(crate) use held::{Held, Keeper, Seat};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use judge::Account;
pub use limits::{GroupEvents, Limits};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use node::GroupNode;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use oom::LeafGroup;
pub use path::GroupPath;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use peak::PeakWatch;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use pressure::{Change, StallMeter};
pub use pressure::{Percent, StallTime, Stalls};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use protection::{Depth, Exposure, Protection};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use stat::{FlushCounts, StatRead};
pub use stat::{StatItem, Stats, Tolerance};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use throttle::{OverHigh, Refilled};
pub(crate) use tree::Core;
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use tree::{GroupKey, GroupTree};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use wait::ChargeWait;

/// Deepest level of a group; the root's is 0. Chosen: above any nesting of tenants, sessions,
/// queries and operators in use, and small enough for a charge to keep one number per level on its
/// stack.
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) const DEPTH_MAX: u32 = 64;
