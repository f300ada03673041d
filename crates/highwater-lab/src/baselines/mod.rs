//! Baselines: the designs that the library is compared with, each as its authors describe it, with
//! its quirks.
//!
//! There are two traits. A [`Counter`] is one number that the CPUs of a machine add to. A
//! [`Design`] accounts the pages of all spaces of a machine: four members for each space, and tasks
//! that run on CPUs, fault, are switched and exit. Any counter makes a design: [`PerSpace`].
//!
//! Statistics of groups, which are summed when they are read, are in [`flush`].
//!
//! Invariants: nothing is lost (with no update in flight the precise value is the sum of all
//! additions), and the cheap reading keeps the design's promise.
//!
//! # Acting as a CPU
//!
//! CPUs and tasks are explicit arguments, so that 384 of them run on two. Any thread may act as any
//! CPU, and several threads as the same one: per-CPU words are atomic. A task belongs to one thread
//! at a time.
//!
//! # Cost of an operation
//!
//! Two real CPUs cannot show 192 contending for a line. So each operation reports the shared lines
//! that it reads, modifies and writes to a [`Traffic`]: a [`Ledger`] counts them by level and adds
//! up a modelled transfer cost, `&mut Untracked` compiles to nothing. Words that only their own CPU
//! or task writes are not traffic.

pub mod active_cache;
mod back_ends;
mod charge_stock;
mod design;
mod flat;
pub mod flush;
mod library;
mod library_sets;
mod pcp;
mod per_node;
mod shared_atomic;
mod task_cache;
#[cfg(test)]
mod tests;
mod traffic;
mod tree;
mod victim_one_pass;
mod victim_two_pass;

pub use active_cache::ActiveSpaces;
pub use back_ends::{BackendKind, OwnedCounts, OwnedLists, ParseBackendError};
pub use charge_stock::{CHARGE_BATCH, StockSlots, StockedGroups};
pub use design::{
    Count, Counter, Design, End, Footprint, Member, PerSpace, SpaceId, TaskId, Writer,
};
pub use flat::FlatCounter;
pub use library::LibraryCounter;
pub use library_sets::LibrarySets;
pub use pcp::{Drain, Sizing};
pub use per_node::PerNodeCounter;
pub use shared_atomic::SharedCounter;
pub use task_cache::TaskCache;
pub use traffic::{Ledger, Line, Traffic, TransferCosts, Untracked};
pub use tree::{BATCH, Grouping, Rounding, TreeCounter};
pub use victim_one_pass::FlatSpaces;
pub use victim_two_pass::{
    EXACT_SUMS_MAX, Tasks, TreeShape, TreeSpaces, TwoPassChoice, select_two_pass,
};
