//! Statistics of groups (rstat): per-CPU counters, flushed on read, never staler than stated.
//!
//! An update adds to a cell that only its CPU writes, in a *block* of that CPU and group. A *flush*
//! of a group absorbs the blocks of its subtree, children before parents, into the sums of each
//! group on the way, and leaves the result at the parent as *pending*. So a group's sums are right
//! for its whole subtree after a flush of it, and the ancestors need not be touched.
//!
//! # Invariants
//!
//! For each group and item, with nothing in flight:
//!
//! ```text
//! truth  = sum + pending + hidden in own blocks + not yet handed up by each child
//! |truth - sum| <= bound
//! bound  = hidden in own blocks, at most + bound handed up with pending + hidden in the children's blocks, at most ..
//! ```
//!
//! A flush conserves: each amount that leaves a block arrives in one sum on each level, once.
//!
//! **The bound.** Every step that lets an amount be hidden raises the bound of the group and of all
//! its ancestors *before* it does so; the flush lowers the bound of one group *after* it has added
//! to the sum, and hands the same amount up with the pending values, for the parent to lower its
//! own. A reader loads the bound before the sum. So the sum that it reads is off by at most that
//! bound, except for updates that run during the read, each of which may be counted or not.
//! Adversary: `tests/flush.rs::no_read_is_staler_than_it_says`.
//!
//! # Parts
//!
//! | file | mechanism |
//! |---|---|
//! | `item` | the statistics, by their names in `memory.stat` |
//! | `block` | cells of one CPU, the part already absorbed, the state of the window |
//! | `children` | children with unflushed updates: bits, not lists |
//! | `counts` | counts of flushes by cause |
//! | `group` | the statistics of one group |
//! | `update` | adding; opening and widening a window |
//! | `flush` | absorbing; sharing a flush; the end of a group |
//! | `read` | tolerance, staleness, age; reading groups together |
//!
//! # Why no update is lost, and why a flush covers
//!
//! A flush that began after an update had returned must absorb it: `update.rs` proves that each
//! completed update is in a block, or in pending, that the flush finds.
//!
//! # Memory
//!
//! A group in which `k` CPUs have counted has `k` blocks of 384 bytes, sums of 320 bytes, and
//! addresses: 8 bytes for each 16 CPUs of the machine, 128 bytes for each 16 CPUs of which one has
//! counted, and a bit for each CPU. A parent has a bit and 8 bytes for each child that counted.
//! Checked, together with the memory of charges:
//! `tests/group_memory.rs::fifty_thousand_groups_on_384_cpus_stay_below_200_mib`.
//!
//! Source: rstat and per-group flush thresholds of Linux 6.8 (accounting spec 7); the shared flush
//! as sketched by T. Heo (2023).
//! Deviation: instead of a threshold for which each update walks the ancestors, windows that are
//! opened and doubled, so that an update touches its own block only; the resulting bound is
//! returned; bits instead of lists; a flush requested while another runs waits for the one that
//! covers it, and no longer.

mod item;
mod block;
mod children;
mod counts;
mod group;
mod update;
mod flush;
mod read;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use self::counts::Cause;
pub use self::counts::FlushCounts;
pub(super) use self::group::Stat;
pub use self::item::StatItem;
pub use self::read::{StatRead, Stats, Tolerance};
