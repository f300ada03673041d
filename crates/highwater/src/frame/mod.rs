//! Page frames for many threads: zones with a buddy allocator, per-CPU lists in front of them,
//! watermarks above them.
//!
//! ```text
//! thread -> its CPU's list (PcpList) -> a zone (buddy, one lock) -> FrameMemory (the right to the bytes)
//! ```
//!
//! Invariant (conservation): `managed = free + cached + allocated`, where *free* frames lie in a
//! zone's buddy, *cached* frames in a per-CPU list, and *allocated* frames are owned or published.
//! [`FramePool::check_invariants`] recounts every part of it.
//!
//! A frame costs one uncontended lock of the CPU's own list, and one zone lock per batch. Nothing
//! here waits for memory: a refused allocation says [`Exhausted`], and an allocation that leaves
//! few frames says [`Pressure::BelowLow`]; the manager above decides what to do about it.
//!
//! Source: the page allocator of Linux as described in the frames-and-reclaim specification,
//! sections 2 to 4 (fixed batch and high). Deviation: the watermarks are capped at a share of the
//! pool, because no interrupt handler draws on the reserve here, and a small cache must not be
//! eaten by what is kept back; frames of a list are freed oldest first.

mod backend;
mod pcp;
mod watermarks;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;

use crossbeam_utils::CachePadded;
use thiserror::Error;

pub use backend::{BackendKind, ParseBackendError};
pub use pcp::PcpSizes;
pub use watermarks::Watermarks;

use crate::memmap::{Frame, FrameMemory};
use crate::sync::{Arc, LockEvents, LockTimes, StatCell};
use crate::units::{CpuId, Order, Pages, Pfn};
use backend::{Backend, Wait};
use pcp::PcpList;

/// Frames of one [`FrameMemory`], handed out one by one.
pub struct FramePool {
    memory: Arc<FrameMemory>,
    backend: Box<dyn Backend>,
    lists: Box<[CachePadded<PcpList>]>,
    watermarks: Watermarks,
    /// Most frames that were outside the zones at once.
    peak_outside: StatCell,
}

/// Whether an allocation may use the frames below [`Watermarks::min`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Ordinary requests leave the reserve alone.
    Keep,
    /// Requests that free memory when they are served (write-back, victims) may use it.
    Use,
}

/// What an allocation noticed about the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// Enough frames are free, or the allocation did not look (it was served by the CPU's list).
    None,
    /// No more frames are free than [`Watermarks::low`]: background reclaim should run.
    BelowLow,
}

/// No frame may be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no free frame: {free} of {managed} are free and {min} are kept in reserve")]
pub struct Exhausted {
    /// Frames in the zones.
    pub free: Pages,
    /// What ordinary requests must leave.
    pub min: Pages,
    /// Frames in all.
    pub managed: Pages,
}

/// Where every frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FrameCounts {
    /// Frames in all.
    pub managed: Pages,
    /// In the zones.
    pub free: Pages,
    /// In per-CPU lists.
    pub cached: Pages,
    /// Handed out.
    pub allocated: Pages,
    /// The most that were outside the zones at once (handed out, or in a per-CPU list).
    pub peak: Pages,
}

impl FramePool {
    /// Puts every frame of `memory`, which must all be free, into `nr_zones` zones of equal size,
    /// with a list for each of `nr_cpus` CPUs.
    ///
    /// # Panics
    ///
    /// When there are no zones, no CPUs, or more zones than frames.
    #[must_use]
    pub fn new(memory: Arc<FrameMemory>, nr_cpus: usize, nr_zones: u32) -> Self {
        let managed = memory.pages();
        let nr_frames = u32::try_from(managed.0).expect("frame numbers are 32 bits wide");
        assert!(
            nr_zones > 0 && nr_zones <= nr_frames,
            "{nr_zones} zones of {nr_frames} frames"
        );
        assert!(nr_cpus > 0, "a pool for no CPUs");
        let watermarks = Watermarks::for_managed(managed);
        let kind = match nr_zones {
            1 => BackendKind::SingleLock,
            shards => BackendKind::Sharded {
                shards: shards.min(BackendKind::SHARDS_MAX),
            },
        };
        let sizes = PcpSizes::for_managed(managed, watermarks.low, nr_cpus);
        Self {
            backend: kind.build(nr_frames),
            lists: (0..nr_cpus)
                .map(|_| CachePadded::new(PcpList::new(sizes)))
                .collect(),
            watermarks,
            peak_outside: StatCell::new(),
            memory,
        }
    }

    /// Takes a frame, from the list of `cpu` if that has one.
    ///
    /// # Cost
    ///
    /// The list's own lock, uncontended unless a thread migrates or a drain runs. One zone lock for
    /// each batch of frames.
    ///
    /// # Errors
    ///
    /// [`Exhausted`] when the zones have none to give; other CPUs' lists may still hold some
    /// ([`drain_all`](Self::drain_all)).
    pub fn try_alloc(&self, cpu: CpuId, reserve: Reserve) -> Result<(Frame, Pressure), Exhausted> {
        // Two failed tries would move the list's cache line twice: one try, then the zone.
        let taken = match self.list(cpu).try_lock() {
            Some(mut list) => match list.pop() {
                Some(pfn) => return Ok((self.memory.claim(pfn), Pressure::None)),
                None => {
                    self.refill(cpu, reserve, list.batch(), |pfn| list.push(pfn));
                    list.pop()
                }
            },
            None => {
                let mut taken = None;
                self.refill(cpu, reserve, 1, |pfn| taken = Some(pfn));
                taken
            }
        };
        let pfn = taken.ok_or_else(|| self.exhausted())?;
        Ok((self.memory.claim(pfn), self.pressure()))
    }

    /// Gives a frame back, to the list of `cpu`.
    ///
    /// # Cost
    ///
    /// As [`try_alloc`](Self::try_alloc).
    pub fn free(&self, cpu: CpuId, frame: Frame) {
        let pfn = self.memory.surrender(frame);
        match self.list(cpu).try_lock() {
            Some(mut list) => {
                list.push(pfn);
                // Both locks, list outside: the batch leaves the list as it enters the zone.
                list.drain_above_high(|pfn| self.free_one(pfn));
            }
            None => self.free_one(pfn),
        }
    }

    /// Moves every frame of every per-CPU list into its zone, batch by batch.
    pub fn drain_all(&self) -> Pages {
        let drained = self
            .lists
            .iter()
            .map(|list| list.drain(|pfn| self.free_one(pfn)));
        drained.sum()
    }

    /// Moves every frame of one CPU's list into its zone.
    pub fn drain(&self, cpu: CpuId) -> Pages {
        self.list(cpu).drain(|pfn| self.free_one(pfn))
    }

    /// Frames in the zones at this moment.
    #[must_use]
    pub fn nr_free(&self) -> Pages {
        self.backend.nr_free()
    }

    /// How many blocks of `order` the zones could hand out now: frames in per-CPU lists keep theirs
    /// from being whole.
    ///
    /// # Cost
    ///
    /// Every zone's lock, one after the other.
    #[must_use]
    pub fn nr_free_blocks(&self, order: Order) -> u64 {
        self.backend.nr_free_blocks(order)
    }

    /// The pool's watermarks.
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        self.watermarks
    }

    /// Frames in all.
    #[must_use]
    pub fn managed(&self) -> Pages {
        self.memory.pages()
    }

    /// The memory that the frames are cut from.
    #[must_use]
    pub fn memory(&self) -> &Arc<FrameMemory> {
        &self.memory
    }

    /// Where every frame is. Exact when nothing runs; otherwise each part is of its own moment.
    #[must_use]
    pub fn counts(&self) -> FrameCounts {
        let (managed, free) = (self.managed(), self.nr_free());
        let cached = self.lists.iter().map(|list| list.nr_cached()).sum();
        FrameCounts {
            managed,
            free,
            cached,
            allocated: managed.saturating_sub(free).saturating_sub(cached),
            peak: Pages(self.peak_outside.get()),
        }
    }

    /// Contention of the pool's lock classes so far.
    #[must_use]
    pub fn lock_events() -> [LockEvents; 2] {
        [pcp::PCP_LOCK.events(), backend::ZONE_LOCK.events()]
    }

    /// How long this pool's zone locks were waited for and held so far, and for how many frames.
    #[must_use]
    pub fn zone_times(&self) -> LockTimes {
        self.backend.times()
    }

    /// Recounts everything that conservation is made of. For quiescent moments: it locks one part
    /// after the other.
    ///
    /// # Panics
    ///
    /// When a frame is lost, is in two places, or a zone holds two buddies that it should have
    /// merged.
    pub fn check_invariants(&self) {
        self.backend.check_invariants();
        let runs = self.backend.free_runs().into_iter();
        let in_runs: Pages = runs.map(|(_, order)| order.pages()).sum();
        assert_eq!(in_runs, self.nr_free(), "free blocks and the free total");
        let counts = self.counts();
        let free = self.memory.count_free();
        assert_eq!(
            counts.free + counts.cached,
            free,
            "frames in zones and lists are the free ones"
        );
        assert_eq!(
            counts.managed,
            counts.free + counts.cached + counts.allocated
        );
    }

    /// Moves up to `count` frames from the back end to `take`.
    fn refill(&self, cpu: CpuId, reserve: Reserve, count: usize, mut take: impl FnMut(Pfn)) {
        let floor = match reserve {
            Reserve::Keep => self.watermarks.min,
            Reserve::Use => Pages::ZERO,
        };
        // No batch is longer (`PcpSizes`).
        let mut frames = [Pfn(0); 64];
        let wanted = &mut frames[..count.clamp(1, 64)];
        let taken = self
            .backend
            .alloc_bulk(cpu, Order::ZERO, floor, Wait::Allowed, wanted);
        frames[..taken].iter().for_each(|&pfn| take(pfn));
        self.peak_outside
            .raise(self.managed().saturating_sub(self.nr_free()).0);
    }

    fn list(&self, cpu: CpuId) -> &PcpList {
        // A CPU that was not there when the pool was made shares a list; only locality suffers.
        &self.lists[cpu.index() % self.lists.len()]
    }

    fn free_one(&self, pfn: Pfn) {
        self.backend
            .free_bulk(CpuId(0), Order::ZERO, Wait::Allowed, &mut [pfn]);
    }

    fn pressure(&self) -> Pressure {
        if self.nr_free() <= self.watermarks.low {
            Pressure::BelowLow
        } else {
            Pressure::None
        }
    }

    fn exhausted(&self) -> Exhausted {
        Exhausted {
            free: self.nr_free(),
            min: self.watermarks.min,
            managed: self.managed(),
        }
    }
}

impl fmt::Debug for FramePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FramePool")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}
