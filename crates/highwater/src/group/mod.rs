//! A tree of groups (memcg) with hierarchical hard limits that are never exceeded. Usage is known
//! as an interval at once, and exactly on demand.
//!
//! A [`GroupNode`] is charged before memory is used and uncharged after; its ancestors are charged
//! with it (`page_counter`), and each has a maximum. If every charge were counted on every
//! ancestor, all CPUs would write the same few cache lines. So each CPU holds a per-CPU stock of up
//! to 224 KiB for each of 7 groups, their *escrow*: tokens that are reserved on the group and all
//! its ancestors and not used yet. Most charges take tokens there, by one plain store to a line of
//! their own; charges to further groups take tokens level by level (`charge/steps.rs`). Unlike a
//! plain per-CPU stock, the tokens shrink to nothing near a limit, and a charge that finds no room
//! takes them back from any CPU at once. So a group with a maximum of 20 bytes takes exactly 20
//! bytes, also on 384 CPUs.
//!
//! # Invariant
//!
//! At every group and every moment, over its subtree:
//! `used + tokens + in flight == reserved <= max`. Reservations above a maximum, which was set
//! below the usage or passed by a forced charge, are the group's debt: while a group has debt, no
//! word below it holds tokens, only force makes its reservations grow, and every uncharged byte
//! pays the debt first. Proofs are in `charge/escrow.rs`, `proof.rs` and `debt.rs`.
//!
//! # Parts
//!
//! A part uses only parts above it in this table; `tests/tidy.rs` checks that.
//!
//! | part | file | mechanism |
//! |---|---|---|
//! | `policy` | `protection` | effective `min` and `low` (emin, elow) |
//! | | `throttle` | the delay owed above `high` |
//! | | `pressure` | pressure stall information (PSI): time lost for lack of memory |
//! | `stat` | | statistics of groups, flushed as rstat does |
//! | `state` | `cell`, `far` | the token words of one CPU of one group; words of other CPUs, stepped many at a time |
//! | | `ledger` | reservations and maximum of one group, changed in one atomic step |
//! | | `limits` | settings (`memory.min/low/high`) and events (`memory.events`) |
//! | | `data` | data of the embedder, whose destructor runs under no lock |
//! | | `meta`, `name`, `path` | place, name and counts of a group; its path, for errors |
//! | | `names` | which group has a name |
//! | | `slot`, `standing` | storage of groups, reused by later ones, found by id without a lock |
//! | | `parked`, `collect` | slots that wait for the next group of their parent; what a pass over words sees |
//! | | `stock` | the groups whose words on one CPU may hold tokens of all their ancestors |
//! | | `waiters`, `gate` | the wait queues; whether the tree is open |
//! | | `tree` | the tree: its shape, and walks over it |
//! | `charge` | `outcome` | what a charge reserved, or why it was refused |
//! | | `line`, `stocked`, `live` | releasing, and waking waiters; which words may hold tokens |
//! | | `reserve`, `steal`, `proof` | reserving on the way up; taking tokens back; proof of a refusal |
//! | | `usage` | reads of usage |
//! | | `steps` | charging and uncharging level by level; the bound on what a CPU parks |
//! | | `escrow` | charge, uncharge, refill |
//! | | `debt`, `transfer`, `wait` | charges above a maximum, to another group, and in a wait queue |
//! | | `held` | charged bytes, and the reference that keeps their token words in memory |
//! | `tree` | `lifecycle`, `limits`, `check` | creating and removing groups; setting limits; the invariants as a check |
//! | `api` | | handles: a tree, a group, and bytes charged to it |
//!
//! # Orderings
//!
//! Every access that decides something is `SeqCst`, in `ledger`, `slot` and, in the atomic regime,
//! `cell`: a refusal is a statement about many words at one moment, which needs one order of them
//! all. On x86-64 and arm64 the swaps cost the same as with acquire and release. In the restartable
//! regime a CPU steps its own token words by plain stores, which have such an order too:
//! `charge/proof.rs`, "What a moment is".
//!
//! Source: accounting spec 8 and 11.10; deviations are listed in `charge/escrow.rs`.

mod policy;
mod stat;
mod state;
mod error;
mod charge;
mod tree;
mod api;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, loom))]
mod loom_parked_tests;
#[cfg(all(test, loom))]
mod loom_stock_tests;
#[cfg(all(test, loom))]
mod loom_wait_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
#[cfg(all(test, not(loom)))]
mod refusal_tests;
#[cfg(all(test, not(loom)))]
mod tests;

#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use api::{GroupNode, GroupTree, LeafGroup, NodeCharge, NodeChargeWait, OverHigh};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use charge::{Account, Refilled};
pub(crate) use charge::{Held, Keeper, SlotRef};
pub use error::{ChargeError, ChildError, MaxError, RemoveError};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use policy::pressure::{Change, StallMeter};
pub use policy::pressure::{StallTime, Stalls};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use policy::protection::{Depth, Exposure, Protection};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use stat::{FlushCounts, StatRead};
pub use stat::{StatItem, Stats, Tolerance};
#[cfg_attr(feature = "lab", visibility::make(pub))]
pub(crate) use state::{DEPTH_MAX, GroupKey};
pub use state::{GroupEvents, GroupPath, Limits, LimitsError};
pub(crate) use state::{Groups, KeptData, QueueView};
