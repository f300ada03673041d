//! Hierarchical group statistics (rstat) that are summed when they are read, with five rules for
//! when to flush.
//!
//! Groups count items (pages of a kind, events) with per-CPU adds; a *flush* of a group carries
//! what its subtree's CPUs have counted since the last flush into its totals. There is one
//! structure, [`Rstat`]. A [`FlushRule`] holds what the discussion differs about: which group is
//! flushed, and when a reader skips the flush.
//!
//! [`Flushing`] is the interface that experiments use, so that the library's statistics can take
//! part.
//!
//! Invariants (accounting spec 12), with no update in flight: after a flush of the root, each
//! group's totals are its own plus its children's; each delta is absorbed once at each level; a
//! group on an update list has its ancestors on theirs.

mod block;
mod flushing;
mod library;
mod rstat;
#[cfg(test)]
mod tests;
mod threshold;

pub use flushing::{
    BATCH, FlushRule, FlushTally, Flushing, ITEMS, Item, PERIOD, Shape, Stats, StatsRead,
    staleness_max,
};
pub use library::{LibraryStatistics, groups_of};
pub use rstat::Rstat;
