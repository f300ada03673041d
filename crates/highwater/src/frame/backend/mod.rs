//! Where free frames are when no per-CPU list holds them: one interface, several ways to keep them.
//!
//! | kind | holds free frames in | to move many frames costs |
//! |---|---|---|
//! | [`SingleLock`](BackendKind::SingleLock) | one buddy allocator behind one lock | one hold of the lock |
//! | [`Sharded`](BackendKind::Sharded) | several of them, by address | one hold for each zone that is touched |
//! | [`Trees`](BackendKind::Trees) | a bit each | an atomic operation for each word of 64 that is touched |
//!
//! Invariants, the same for every kind: a free frame is in exactly one free block or on a deferred
//! list; no request takes a frame when no more than its floor are free; a frame goes back to the
//! zone it came from, whoever frees it; a free never fails, and one that must not wait never does.
//!
//! Frames that were used lately go out before *fresh* ones, which never were or whose memory was
//! given back to the system: memory is committed as it is first used, so a pool takes what is in
//! use at once and not what it has. Whole blocks are fresh, of 2 MiB in trees and of 4 MiB in
//! zones.
//!
//! What is free is counted in one word, [`FreeCount`], and a request takes its frames off that word
//! before it looks for them. Hence the floor is exact whatever runs beside it, and the search finds
//! what was promised: the blocks are free before they are counted.

mod buddy;
mod deferred;
mod free_count;
mod trees;
mod zone;
mod zones;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod fragmentation;
#[cfg(all(test, not(loom)))]
mod measure;
#[cfg(all(test, not(loom)))]
mod stress;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use thiserror::Error;

use crate::sync::LockTimes;
use crate::units::{CpuId, Order, Pages, Pfn};
use free_count::FreeCount;
use trees::Trees;
pub(super) use zone::ZONE_LOCK;
use zones::Zones;

/// Keeps the free frames of one pool.
pub(super) trait Backend: Send + Sync + fmt::Debug {
    /// Writes up to `out.len()` blocks of `order` to the front of `out`; returns how many. Leaves
    /// `floor` frames free. Waits for a lock only if that is allowed.
    ///
    /// Fewer than asked for are returned when no more are free above the floor. A request that must
    /// not wait may get fewer while locks are held, and any request while another one holds frames
    /// that it cannot use: a block of a high order is promised first and looked for then.
    fn alloc_bulk(
        &self,
        near: CpuId,
        order: Order,
        floor: Pages,
        wait: Wait,
        out: &mut [Pfn],
    ) -> usize;

    /// Takes the frames out that are free within a range, which lies in one of the largest blocks,
    /// and puts them at the end of `out`, lowest first. Leaves `floor` frames free; may wait for a
    /// lock.
    fn alloc_within(&self, frames: Range<u32>, floor: Pages, out: &mut Vec<Pfn>);

    /// Gives blocks of `order` back; reorders the slice. If it must never wait, what a lock is
    /// held for goes to a deferred list, which the next holder that may wait empties.
    ///
    /// # Panics
    ///
    /// When a block is out of range, misaligned, or free already. The last is noticed when the
    /// block reaches the free ones, and as far as the kind can see it.
    fn free_bulk(&self, near: CpuId, order: Order, wait: Wait, blocks: &mut [Pfn]);

    /// As [`free_bulk`](Self::free_bulk), of blocks that lie in one of the largest and whose memory
    /// was given back to the system: what is whole of them, as far as the kind tells them apart, is
    /// fresh.
    fn free_fresh(&self, near: CpuId, order: Order, blocks: &mut [Pfn]);

    /// Free frames that were never out, or whose memory was given back to the system since.
    fn nr_fresh(&self) -> Pages;

    /// Whether so many free frames can be had before a request goes on to fresh ones.
    fn has_used(&self, frames: Pages) -> bool;

    /// Frees what is deferred; waits for locks.
    fn splice(&self);

    /// Free frames that are not deferred, less those that requests have been promised.
    fn nr_free(&self) -> Pages;

    /// Frames on deferred lists.
    fn nr_deferred(&self) -> Pages;

    /// How many blocks of this order could be handed out now, were there no floor.
    fn nr_free_blocks(&self, order: Order) -> u64;

    /// The largest free blocks in ascending order. For quiescent moments.
    fn free_runs(&self) -> Vec<(Pfn, Order)>;

    /// How long locks were waited for and held, and for how many frames; of a kind without locks,
    /// how long its visits took.
    fn times(&self) -> LockTimes;

    /// Recounts what the back end keeps. For quiescent moments.
    ///
    /// # Panics
    ///
    /// When an invariant does not hold.
    fn check_invariants(&self);
}

fn pages_of(order: Order, blocks: usize) -> Pages {
    Pages((blocks as u64) << order.get())
}

/// Whether a request may wait for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It may: it frees what others deferred, too.
    Allowed,
    /// It is called where waiting could deadlock or is not wanted.
    Never,
}

/// How a pool keeps its free frames.
///
/// # Examples
///
/// ```
/// use highwater::frame::BackendKind;
/// let kind: BackendKind = "sharded:4".parse()?;
/// assert_eq!(kind, BackendKind::Sharded { shards: 4 });
/// assert_eq!(kind.to_string(), "sharded:4");
/// # Ok::<(), highwater::frame::ParseBackendError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// One buddy allocator behind one lock: the baseline.
    SingleLock,
    /// Buddy allocators by address, each behind its own lock. A CPU allocates from the zone of its
    /// number first; a frame goes back to the zone that it came from.
    Sharded {
        /// How many: 1 to [`BackendKind::SHARDS_MAX`]. A pool of fewer blocks of 4 MiB has as many
        /// as those.
        shards: u32,
    },
    /// The default: a bit for each frame, found through trees of 4,096, without locks. CPUs prefer
    /// trees of their own, and areas that are broken already.
    #[default]
    Trees,
}

/// A text that names no back end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{text}` is not a back end: single-lock, trees, or sharded:N with N from 1 to {}",
    BackendKind::SHARDS_MAX
)]
pub struct ParseBackendError {
    /// What was given.
    pub text: String,
}

impl BackendKind {
    /// The most zones that a pool is cut into.
    pub const SHARDS_MAX: u32 = 1024;

    /// A back end of this kind with frames 0 to `nr_frames`, all free, for `nr_cpus` CPUs; of no
    /// frames, always [`Trees`](Self::Trees).
    ///
    /// # Panics
    ///
    /// When the number of shards is not in its range.
    pub(super) fn build(self, nr_frames: u32, nr_cpus: usize) -> Box<dyn Backend> {
        match self {
            _ if nr_frames == 0 => Box::new(Trees::new(0, nr_cpus)),
            Self::SingleLock => Box::new(Zones::new(nr_frames, 1)),
            Self::Sharded { shards } => {
                assert!(
                    (1..=Self::SHARDS_MAX).contains(&shards),
                    "{shards} shards, 1 to {} are possible",
                    Self::SHARDS_MAX
                );
                Box::new(Zones::new(nr_frames, shards))
            }
            Self::Trees => Box::new(Trees::new(nr_frames, nr_cpus)),
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SingleLock => f.pad("single-lock"),
            Self::Sharded { shards } => f.pad(&format!("sharded:{shards}")),
            Self::Trees => f.pad("trees"),
        }
    }
}

impl FromStr for BackendKind {
    type Err = ParseBackendError;

    /// Reads what [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    ///
    /// Names the text when it is no back end.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || ParseBackendError {
            text: text.to_owned(),
        };
        match text.split_once(':') {
            None if text == "single-lock" => Ok(Self::SingleLock),
            None if text == "trees" => Ok(Self::Trees),
            Some(("sharded", shards)) => {
                let shards = shards.parse().map_err(|_| refuse())?;
                let is_possible = (1..=Self::SHARDS_MAX).contains(&shards);
                is_possible
                    .then_some(Self::Sharded { shards })
                    .ok_or_else(refuse)
            }
            _ => Err(refuse()),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for BackendKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
