//! Back ends of the frame allocator (buddy): where free frames are kept behind the per-CPU lists.
//! An interface, and the library's one implementation, [`trees`]; buddy allocators behind locks,
//! for comparison, are in the lab.
//!
//! Invariants of every implementation: a free frame is in exactly one free block or on a deferred
//! list; no request takes a frame when no more than its floor are free; a frame returns to the
//! place it came from, on whichever CPU it is freed; a free never fails, and one that must not wait
//! never does.
//!
//! Recently used frames are allocated before *fresh* ones, which were never used or whose memory
//! was given back to the system: memory is committed at its first use, so a pool commits only its
//! peak use and not its size. Whole blocks are fresh, of 2 MiB in trees.
//!
//! Free frames are counted in one word, [`FreeCount`], and a request takes its frames off that word
//! before it searches for them. So the floor is exact under concurrency, and the search finds the
//! frames it was promised: blocks are free before they are counted.

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

/// A back end: keeps the free frames of one pool.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Writes up to `out.len()` blocks of `order` to the front of `out`; returns how many. Leaves
    /// `floor` frames free. Waits for a lock only if that is allowed.
    ///
    /// Returns fewer than requested when no more are free above the floor. A request that must not
    /// wait may get fewer while locks are held, and any request may while another one holds frames
    /// that it cannot use: a block of a high order is promised first and searched for then.
    fn alloc_bulk(
        &self,
        near: CpuId,
        order: Order,
        floor: Pages,
        wait: Wait,
        out: &mut [Pfn],
    ) -> usize;

    /// Takes all free frames within a range, which lies in one of the largest blocks, and appends
    /// them to `out`, lowest first. Leaves `floor` frames free; may wait for a lock.
    fn alloc_within(&self, frames: Range<u32>, floor: Pages, out: &mut Vec<Pfn>);

    /// Frees blocks of `order`; reorders the slice. If it must never wait, blocks whose lock is
    /// held go to a deferred list, which the next holder that may wait empties.
    ///
    /// # Panics
    ///
    /// When a block is out of range, misaligned, or already free. The last is noticed when the
    /// block reaches the free ones, as far as the implementation can see it.
    fn free_bulk(&self, near: CpuId, order: Order, wait: Wait, blocks: &mut [Pfn]);

    /// Like [`free_bulk`](Self::free_bulk), for blocks that lie in one of the largest and whose
    /// memory was given back to the system: whole parts of them, in the implementation's
    /// granularity, are fresh.
    fn free_fresh(&self, near: CpuId, order: Order, blocks: &mut [Pfn]);

    /// Returns the number of free frames that were never allocated, or whose memory was given back
    /// to the system since.
    fn nr_fresh(&self) -> Pages;

    /// Whether at least that many free frames can be had before a request takes fresh ones.
    fn has_used(&self, frames: Pages) -> bool;

    /// Frees the deferred frames; waits for locks.
    fn splice(&self);

    /// Returns the number of free frames that are not deferred, less those promised to requests.
    fn nr_free(&self) -> Pages;

    /// Returns the number of frames on deferred lists.
    fn nr_deferred(&self) -> Pages;

    /// Returns how many blocks of this order could be handed out now if there were no floor.
    fn nr_free_blocks(&self, order: Order) -> u64;

    /// Returns the largest free blocks in ascending order. For quiescent moments.
    fn free_runs(&self) -> Vec<(Pfn, Order)>;

    /// Returns how long locks were waited for and held, and for how many frames; without locks, how
    /// long visits took.
    fn times(&self) -> LockTimes;

    /// Recounts the back end's frames. For quiescent moments.
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
    /// It may; it also frees blocks that others deferred.
    Allowed,
    /// It may not: waiting could deadlock or is not wanted.
    Never,
}

/// A constructor of back ends. Default: [`MakeBackend::TREES`].
#[derive(Clone, Copy)]
pub struct MakeBackend {
    name: &'static str,
    /// Takes the number of frames, the number of CPUs, and the variant.
    make: fn(u32, usize, u32) -> Box<dyn Backend>,
    variant: u32,
}

impl MakeBackend {
    /// A bit for each frame, found through trees of 4,096, without locks. CPUs prefer trees of
    /// their own, and areas that are already fragmented.
    pub const TREES: Self = Self {
        name: "trees",
        make: |nr_frames, nr_cpus, _| Box::new(Trees::new(nr_frames, nr_cpus)),
        variant: 0,
    };

    /// Returns a constructor that calls `make` with the number of frames, all free, the number of
    /// CPUs, and `variant`.
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

    /// Returns a back end with frames 0 to `nr_frames`, all free, for `nr_cpus` CPUs; with no
    /// frames, always trees.
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

/// The kinds that the test suites run over.
#[cfg(all(test, not(loom)))]
use MakeBackend as Kind;
#[cfg(all(test, not(loom)))]
const KINDS: [Kind; 1] = [Kind::TREES];
