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
//! here waits for memory: a refused allocation says [`AllocError`], and an allocation that leaves
//! few frames says [`Pressure::BelowLow`]; the manager above decides what to do about it.
//!
//! Source: the page allocator of Linux as described in the frames-and-reclaim specification,
//! sections 2 to 4 (fixed batch and high). Deviation: the watermarks are capped at a share of the
//! pool, because no interrupt handler draws on the reserve here, and a small cache must not be
//! eaten by what is kept back; frames of a list are freed oldest first.

mod backend;
mod config;
mod counters;
mod error;
mod flags;
mod pcp;
mod tunables;
mod watermarks;
mod zoneinfo;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;

use crossbeam_utils::CachePadded;

pub use backend::{BackendKind, ParseBackendError};
pub use config::{DrainMode, PcpPolicy, PoolConfig, PoolError, UnknownName, Zeroing};
pub use counters::PcpCounters;
pub use error::AllocError;
pub use flags::AllocFlags;
pub use pcp::PcpSizes;
pub use tunables::{TunableError, Tunables};
pub use watermarks::Watermarks;
pub use zoneinfo::{ListInfo, Zoneinfo};

use crate::memmap::{Frame, FrameMemory};
use crate::percpu;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Arc, LockClass, LockEvents, LockTimes, Mutex, Rank, StatCell};
use crate::units::{CpuId, Order, Pages, Pfn};
use backend::{Backend, Wait};
use counters::Events;
use pcp::PcpList;

static TUNABLES_LOCK: LockClass = LockClass::new("tunables", Rank::Leaf);

/// Frames of one [`FrameMemory`], handed out one by one.
pub struct FramePool {
    memory: Arc<FrameMemory>,
    backend: Box<dyn Backend>,
    lists: Box<[CachePadded<PcpList>]>,
    watermarks: Watermarks,
    config: PoolConfig,
    tunables: Mutex<Tunables>,
    events: Events,
    /// Written by: whoever reclaims. Read by: lists. Publishes: nothing.
    nr_reclaiming: AtomicU32,
    /// Most frames that were outside the zones at once.
    peak_outside: StatCell,
}

/// Pages are being reclaimed while this lives.
#[derive(Debug)]
#[must_use]
pub struct Reclaiming<'a>(&'a FramePool);

impl<'a> Reclaiming<'a> {
    fn begin(pool: &'a FramePool) -> Self {
        // Relaxed: a list that sees it late keeps a few frames longer.
        pool.nr_reclaiming.fetch_add(1, Ordering::Relaxed);
        Self(pool)
    }
}

impl Drop for Reclaiming<'_> {
    fn drop(&mut self) {
        // Relaxed: as in `begin`.
        self.0.nr_reclaiming.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What an allocation noticed about the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// Enough frames are free, or the allocation did not look (it was served by the CPU's list).
    None,
    /// No more frames are free than [`Watermarks::low`]: background reclaim should run.
    BelowLow,
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
    /// A pool with [the defaults](PoolConfig::new).
    ///
    /// # Errors
    ///
    /// As [`with_config`](Self::with_config).
    pub fn new(memory: Arc<FrameMemory>, nr_cpus: usize) -> Result<Self, PoolError> {
        Self::with_config(memory, PoolConfig::new(nr_cpus))
    }

    /// Puts every frame of `memory`, which must all be free, into a pool.
    ///
    /// # Errors
    ///
    /// No CPUs; no shards, or too many.
    ///
    /// # Panics
    ///
    /// When the memory has 2^32 frames or more, which a [`FrameMemory`] never has.
    pub fn with_config(memory: Arc<FrameMemory>, config: PoolConfig) -> Result<Self, PoolError> {
        let managed = memory.pages();
        let nr_frames = u32::try_from(managed.0).expect("frame numbers are 32 bits wide");
        if config.nr_cpus == 0 {
            return Err(PoolError::NoCpus);
        }
        if let BackendKind::Sharded { shards } = config.backend
            && !(1..=BackendKind::SHARDS_MAX).contains(&shards)
        {
            let most = BackendKind::SHARDS_MAX;
            return Err(PoolError::Shards { shards, most });
        }
        let watermarks = Watermarks::for_managed(managed);
        let sizes = PcpSizes::for_managed(managed, watermarks.low, config.nr_cpus);
        Ok(Self {
            backend: config.backend.build(nr_frames, config.nr_cpus),
            lists: (0..config.nr_cpus)
                .map(|_| CachePadded::new(PcpList::new(sizes)))
                .collect(),
            watermarks,
            tunables: Mutex::new(&TUNABLES_LOCK, config.tunables),
            events: Events::default(),
            nr_reclaiming: AtomicU32::new(0),
            peak_outside: StatCell::new(),
            config,
            memory,
        })
    }

    /// Takes a frame, from the list of the calling thread's CPU if that has one.
    ///
    /// # Cost
    ///
    /// The list's own lock, uncontended unless a thread migrates or a drain runs. One zone lock for
    /// each batch of frames.
    ///
    /// # Errors
    ///
    /// [`AllocError::Exhausted`] when the zones have none to give; other CPUs' lists may still hold some
    /// ([`drain_all`](Self::drain_all)).
    pub fn alloc(&self, flags: AllocFlags) -> Result<Frame, AllocError> {
        self.alloc_on(self.here(), flags)
    }

    /// As [`alloc`](Self::alloc), from the list of `cpu`.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_on(&self, cpu: CpuId, flags: AllocFlags) -> Result<Frame, AllocError> {
        self.alloc_noting_on(cpu, flags).map(|(frame, _)| frame)
    }

    /// As [`alloc`](Self::alloc), and says what it noticed about the pool.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_noting(&self, flags: AllocFlags) -> Result<(Frame, Pressure), AllocError> {
        self.alloc_noting_on(self.here(), flags)
    }

    /// As [`alloc_noting`](Self::alloc_noting), from the list of `cpu`.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    pub fn alloc_noting_on(
        &self,
        cpu: CpuId,
        flags: AllocFlags,
    ) -> Result<(Frame, Pressure), AllocError> {
        let (pfn, pressure) = self.take(cpu, flags)?;
        let mut frame = self.memory.claim(pfn);
        if flags.zeroed() || self.config.zeroing == Zeroing::OnAlloc {
            self.memory.bytes_mut(&mut frame).fill(0);
        }
        Ok((frame, pressure))
    }

    /// Takes up to `count` frames and appends them to `out`; how many. Less than `count` were to be had if
    /// it is less.
    pub fn alloc_bulk(&self, count: usize, flags: AllocFlags, out: &mut Vec<Frame>) -> usize {
        self.alloc_bulk_on(self.here(), count, flags, out)
    }

    /// As [`alloc_bulk`](Self::alloc_bulk), from the list of `cpu`.
    pub fn alloc_bulk_on(
        &self,
        cpu: CpuId,
        count: usize,
        flags: AllocFlags,
        out: &mut Vec<Frame>,
    ) -> usize {
        let frames = (0..count).map_while(|_| self.alloc_on(cpu, flags).ok());
        let before = out.len();
        out.extend(frames);
        out.len() - before
    }

    fn take(&self, cpu: CpuId, flags: AllocFlags) -> Result<(Pfn, Pressure), AllocError> {
        // Two failed tries would move the list's cache line twice: one try, then the zone.
        let taken = match self.list(cpu).try_lock() {
            Some(mut list) => match list.pop() {
                Some(pfn) => return Ok((pfn, Pressure::None)),
                None => {
                    self.refill(cpu, flags, list.batch(), |pfn| list.push(pfn));
                    self.events.refilled(list.len());
                    list.pop()
                }
            },
            None => {
                let mut taken = None;
                self.refill(cpu, flags, 1, |pfn| taken = Some(pfn));
                self.events.fell_back();
                taken
            }
        };
        let pfn = taken.ok_or_else(|| self.exhausted())?;
        Ok((pfn, self.pressure()))
    }

    /// Gives a frame back, to the list of the calling thread's CPU.
    ///
    /// # Cost
    ///
    /// As [`alloc`](Self::alloc).
    ///
    /// # Panics
    ///
    /// When the frame is of another memory.
    pub fn free(&self, frame: Frame) {
        self.free_on(self.here(), frame);
    }

    /// As [`free`](Self::free), to the list of `cpu`.
    ///
    /// # Panics
    ///
    /// When the frame is of another memory.
    pub fn free_on(&self, cpu: CpuId, mut frame: Frame) {
        if self.config.zeroing == Zeroing::OnFree {
            self.memory.bytes_mut(&mut frame).fill(0);
        }
        let pfn = self.memory.surrender(frame);
        match self.list(cpu).try_lock() {
            Some(mut list) => {
                list.push(pfn);
                // Both locks, list outside: the batch leaves the list as it enters the zone.
                let drained = list.drain_above_high(|pfn| self.free_one(pfn));
                self.events.drained(drained);
            }
            None => {
                self.free_one(pfn);
                self.events.fell_back();
            }
        }
    }

    /// Gives many frames back; `frames` is empty afterwards.
    ///
    /// # Panics
    ///
    /// When a frame is of another memory.
    pub fn free_bulk(&self, frames: &mut Vec<Frame>) {
        self.free_bulk_on(self.here(), frames);
    }

    /// As [`free_bulk`](Self::free_bulk), to the list of `cpu`.
    ///
    /// # Panics
    ///
    /// When a frame is of another memory.
    pub fn free_bulk_on(&self, cpu: CpuId, frames: &mut Vec<Frame>) {
        frames.drain(..).for_each(|frame| self.free_on(cpu, frame));
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

    /// How the pool was made; the knobs as they are now.
    #[must_use]
    pub fn config(&self) -> PoolConfig {
        PoolConfig {
            tunables: self.tunables(),
            ..self.config
        }
    }

    /// The knobs as they are now.
    #[must_use]
    pub fn tunables(&self) -> Tunables {
        *self.tunables.lock()
    }

    /// Turns the knobs.
    pub fn set_tunables(&self, tunables: Tunables) {
        *self.tunables.lock() = tunables;
    }

    /// Lets lists that are larger than they need to be shrink a step; frames that went to the zones.
    pub fn decay_tick(&self) -> Pages {
        // Lists of one size have nothing to shrink.
        Pages::ZERO
    }

    /// Says that pages are being reclaimed for as long as the result lives: lists keep little meanwhile.
    pub fn reclaiming(&self) -> Reclaiming<'_> {
        Reclaiming::begin(self)
    }

    /// What lists did so far.
    #[must_use]
    pub fn counters(&self) -> PcpCounters {
        self.events.read()
    }

    /// Watermarks, lists and knobs.
    #[must_use]
    pub fn zoneinfo(&self) -> Zoneinfo {
        let list = |(cpu, list): (usize, &CachePadded<PcpList>)| list.info(CpuId::from_index(cpu));
        Zoneinfo {
            free: self.nr_free(),
            managed: self.managed(),
            watermarks: self.watermarks,
            // Relaxed: a flag for show.
            reclaim_active: self.nr_reclaiming.load(Ordering::Relaxed) > 0,
            below_high: self.nr_free() < self.watermarks.high,
            tunables: self.tunables(),
            counters: self.counters(),
            lists: self.lists.iter().enumerate().map(list).collect(),
        }
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
    fn refill(&self, cpu: CpuId, flags: AllocFlags, count: usize, mut take: impl FnMut(Pfn)) {
        let floor = match flags.may_use_reserve() {
            false => self.watermarks.min,
            true => Pages::ZERO,
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

    fn here(&self) -> CpuId {
        CpuId::from_index(percpu::current_cpu().index() % self.lists.len())
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

    fn exhausted(&self) -> AllocError {
        AllocError::Exhausted {
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
