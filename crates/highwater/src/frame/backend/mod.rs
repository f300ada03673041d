//! Where free frames are when no per-CPU list holds them: an interface, and the one implementation
//! that the library has, [`trees`]. Buddy allocators behind locks, to compare it with, are in the
//! lab.
//!
//! Invariants of every implementation: a free frame is in exactly one free block or on a deferred
//! list; no request takes a frame when no more than its floor are free; a frame goes back to where
//! it came from, on whichever CPU it is freed; a free never fails, and one that must not wait never
//! does.
//!
//! Frames that were used lately go out before *fresh* ones, which never were or whose memory was
//! given back to the system: memory is committed as it is first used, so a pool takes what is in
//! use at once and not what it has. Whole blocks are fresh, of 2 MiB in trees.
//!
//! What is free is counted in one word, [`FreeCount`], and a request takes its frames off that word
//! before it looks for them. Hence the floor is exact whatever runs beside it, and the search finds
//! what was promised: the blocks are free before they are counted.

mod free_count;
mod trees;

#[cfg(all(test, not(loom)))]
mod stress;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;
use std::ops::Range;

use crate::sync::LockTimes;
use crate::units::{CpuId, Order, Pages, Pfn};
#[cfg(all(test, not(loom)))]
use crate::{seed, sync};
use trees::Trees;

pub use free_count::FreeCount;

/// Keeps the free frames of one pool.
pub trait Backend: Send + Sync + fmt::Debug {
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
pub enum Wait {
    /// It may: it frees what others deferred, too.
    Allowed,
    /// It is called where waiting could deadlock or is not wanted.
    Never,
}

/// Makes the back end of a pool. Default: [`MakeBackend::TREES`].
#[derive(Clone, Copy)]
pub struct MakeBackend {
    name: &'static str,
    /// Of how many frames, for how many CPUs, and the variant.
    make: fn(u32, usize, u32) -> Box<dyn Backend>,
    variant: u32,
}

impl MakeBackend {
    /// A bit for each frame, found through trees of 4,096, without locks. CPUs prefer trees of
    /// their own, and areas that are broken already.
    pub const TREES: Self = Self {
        name: "trees",
        make: |nr_frames, nr_cpus, _| Box::new(Trees::new(nr_frames, nr_cpus)),
        variant: 0,
    };

    /// One that `make` makes: of so many frames, all free, for so many CPUs, in this `variant`.
    #[cfg(feature = "lab")]
    #[must_use]
    pub const fn new(
        name: &'static str,
        make: fn(u32, usize, u32) -> Box<dyn Backend>,
        variant: u32,
    ) -> Self {
        Self {
            name,
            make,
            variant,
        }
    }

    /// A back end with frames 0 to `nr_frames`, all free, for `nr_cpus` CPUs; of no frames, always
    /// trees.
    #[must_use]
    pub fn build(self, nr_frames: u32, nr_cpus: usize) -> Box<dyn Backend> {
        let kind = if nr_frames == 0 { Self::TREES } else { self };
        (kind.make)(nr_frames, nr_cpus, kind.variant)
    }
}

impl Default for MakeBackend {
    fn default() -> Self {
        Self::TREES
    }
}

impl fmt::Display for MakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl fmt::Debug for MakeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MakeBackend")
            .field(&self.name)
            .field(&self.variant)
            .finish()
    }
}

/// What the suites of tests run over.
#[cfg(all(test, not(loom)))]
use MakeBackend as Kind;
#[cfg(all(test, not(loom)))]
const KINDS: [Kind; 1] = [Kind::TREES];
