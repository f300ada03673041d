//! A tree of groups with hierarchical hard limits that are never exceeded, and usage that is known
//! as an interval at once and exactly on demand.
//!
//! A [`GroupNode`] is charged before memory is used and uncharged after; its ancestors are charged
//! with it, and each has a maximum. Counting every byte on every ancestor would have all CPUs write
//! the same few cache lines. So each CPU of a group holds up to 256 KiB in *escrow*: tokens that
//! are reserved on the group and all its ancestors and used by nobody. Most charges take from
//! there, by one plain store to a line of their own. What sets this apart from a plain per-CPU
//! stock: near a limit the tokens shrink to nothing, a charge that finds no room takes them back
//! from any CPU at once, and so a group with a maximum of 20 bytes takes exactly 20 bytes, on 384
//! CPUs too.
//!
//! # Invariant
//!
//! At every group and every moment, over its subtree:
//! `used + tokens + in flight == reserved <= max`. What is reserved above a maximum, because that
//! was set below the usage or because a charge was forced, is the group's debt: while there is any,
//! no word below holds tokens, nothing but force makes reserved grow, and every byte that is
//! uncharged pays it first. Proofs are in `escrow.rs`, `judge.rs` and `debt.rs`.
//!
//! # Parts
//!
//! | file | mechanism |
//! |---|---|
//! | `cell` | the token word of one CPU of one group: tokens, operations in flight, sequence |
//! | `far` | token words of other CPUs, stepped many at a time |
//! | `ledger` | reservations and maximum of one group, changed in one atomic step |
//! | `limits` | what is set and what happened: limits and events |
//! | `peak` | the highest usage since a moment of the reader's choice |
//! | `slot` | memory of groups, reused by later ones, found by id without a lock |
//! | `escrow` | charge, uncharge, refill |
//! | `debt` | charges that may go above a maximum |
//! | `transfer` | charges that move to another group |
//! | `line`, `wait` | charges that wait for room, in order of arrival |
//! | `judge` | steal; when a refusal is proven; reads of usage |
//! | `tree` | creating, removing, walking; the invariants as a check |
//! | `oom` | what the choice of a victim looks at, and the walk over the groups without children |
//! | `protection` | what `min` and `low` are worth when others are short |
//! | `throttle` | the delay owed above `high` |
//! | `pressure` | time lost for want of memory |
//! | `stat` | statistics of groups, and their flushing |
//! | `path` | the path of a group, for errors and records |
//! | `node`, `charge` | handles: a group, and bytes charged to it |
//! | `held` | charged bytes, and what keeps the words in memory that they go back to |
//!
//! # Orderings
//!
//! Every access that decides something is `SeqCst`, in `ledger`, `slot` and in the atomic regime
//! `cell`: a refusal is a statement about many words at one moment, which needs one order of them
//! all. On x86-64 and arm64 the swaps cost the same as with acquire and release. In the restartable
//! regime a CPU steps its own token words by plain stores, which have such an order too:
//! `judge.rs`, "What a moment is".
//!
//! Source: accounting spec 8 and 11.10; see `escrow.rs` for what deviates.

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

pub use charge::Charge;
pub use error::{ChargeError, ChildError, LimitsError, MaxError, RemoveError};
pub(crate) use held::{Held, Keeper, Seat};
pub use judge::Account;
pub use limits::{GroupEvents, Limits};
pub use node::GroupNode;
pub use oom::LeafGroup;
pub use path::GroupPath;
pub use peak::PeakWatch;
pub use pressure::{Change, Percent, StallMeter, StallTime, Stalls};
pub use protection::{Depth, Exposure, Protection};
pub use stat::{FlushCounts, StatItem, StatRead, Stats, Tolerance};
pub use throttle::{OverHigh, Refilled};
pub(crate) use tree::Core;
pub use tree::{GroupKey, GroupTree};
pub use wait::ChargeWait;

/// Deepest level of a group; the root's is 0. Chosen: above any tenant, session, query and operator
/// nesting in use, and small enough for a charge to keep one number for each level on its stack.
pub const DEPTH_MAX: u32 = 64;
