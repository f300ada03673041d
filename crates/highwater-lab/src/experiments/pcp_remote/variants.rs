//! The lists that are compared, behind one interface.

use std::sync::Arc;

use highwater::frame::{AllocFlags, FramePool, PoolConfig};
use highwater::lab::memmap::{Frame, FrameMemory};
use highwater::units::{CpuId, Pages, Pfn};

use crate::baselines::{BackendKind, Drain, OwnedLists, Sizing};
use crate::experiments::ExperimentError;

/// Lists as in Linux since October 2025.
pub(super) const TODAY: &str = "Linux 7: one lock, drains in pieces";
/// The proposal.
pub(super) const OWNED: &str = "a CPU owns page blocks (RFC, April 2026)";
/// The library's back end, with drains as in Linux.
pub(super) const PIECES: &str = "trees, drains in pieces";
/// The library's defaults.
pub(super) const OURS: &str = "Highwater";

pub(super) const NAMES: [&str; 4] = [TODAY, OWNED, PIECES, OURS];

/// Counts of events since the lists were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events {
    /// Visits to the back end that took frames, and that gave frames back.
    pub(super) alloc_visits: u64,
    pub(super) free_visits: u64,
    /// Waits for a lock of the back end or of a list, and lists that were found held.
    pub(super) waits: u64,
    pub(super) waited_ns: u64,
}

impl Events {
    pub(super) const fn since(&self, earlier: &Self) -> Self {
        Self {
            alloc_visits: self.alloc_visits - earlier.alloc_visits,
            free_visits: self.free_visits - earlier.free_visits,
            waits: self.waits - earlier.waits,
            waited_ns: self.waited_ns - earlier.waited_ns,
        }
    }
}

/// Per-CPU lists of one design.
#[derive(Debug)]
pub(super) enum Lists {
    /// The library's code.
    Pool(Box<FramePool>),
    /// The proposal.
    Owned {
        lists: Box<OwnedLists>,
        frames: Pages,
    },
}

/// A frame of either design.
#[derive(Debug)]
pub(super) enum Page {
    Frame(Frame),
    Number(Pfn),
}

impl Lists {
    /// Creates the lists of a variant over `frames` frames.
    pub(super) fn new(
        variant: &str,
        frames: Pages,
        nr_cpus: usize,
    ) -> Result<Self, ExperimentError> {
        let default = PoolConfig::new(nr_cpus);
        let config = match variant {
            TODAY => PoolConfig {
                policy: Sizing::Auto.with(Drain::Pieces),
                backend: BackendKind::SingleLock.make(),
                ..default
            },
            PIECES => PoolConfig {
                policy: Sizing::Auto.with(Drain::Pieces),
                ..default
            },
            _ => default,
        };
        let memory = FrameMemory::new(frames)?;
        let pool = FramePool::with_config(Arc::new(memory), config)?;
        if variant != OWNED {
            return Ok(Self::Pool(Box::new(pool)));
        }
        let list = pool.zoneinfo().lists[0];
        let sizes = highwater::frame::PcpSizes {
            batch: list.batch,
            high_min: list.high_min,
            high_max: list.high_max,
        };
        let nr_frames = u32::try_from(frames.0).expect("a pool of the experiment");
        let lists = Box::new(OwnedLists::new(nr_frames, nr_cpus, sizes));
        Ok(Self::Owned { lists, frames })
    }

    pub(super) fn alloc(&self, cpu: CpuId) -> Option<Page> {
        match self {
            Self::Pool(pool) => pool
                .at(cpu)
                .alloc_with(AllocFlags::new())
                .ok()
                .map(Page::Frame),
            Self::Owned { lists, .. } => lists.alloc(cpu).map(Page::Number),
        }
    }

    /// Frees a page of these lists.
    pub(super) fn free(&self, cpu: CpuId, page: Page) {
        match (self, page) {
            (Self::Pool(pool), Page::Frame(frame)) => pool.at(cpu).free(frame),
            (Self::Owned { lists, .. }, Page::Number(pfn)) => lists.free(cpu, pfn),
            (_, page) => unreachable!("{page:?} is of another design"),
        }
    }

    /// Moves the frames of all lists to the back end.
    pub(super) fn drain_all(&self) {
        match self {
            Self::Pool(pool) => {
                pool.drain_all();
            }
            Self::Owned { lists, .. } => lists.drain_all(),
        }
    }

    /// One second's decay.
    pub(super) fn tick(&self) {
        match self {
            Self::Pool(pool) => {
                pool.decay_tick();
            }
            Self::Owned { lists, .. } => lists.decay_tick(),
        }
    }

    /// Returns the frames in the lists of `cpus`.
    pub(super) fn cached_on(&self, cpus: impl Iterator<Item = CpuId>) -> u64 {
        match self {
            Self::Pool(pool) => {
                let lists = pool.zoneinfo().lists;
                cpus.map(|cpu| u64::from(lists[cpu.index()].count)).sum()
            }
            Self::Owned { lists, .. } => cpus.map(|cpu| lists.cached_on(cpu)).sum(),
        }
    }

    pub(super) fn events(&self) -> Events {
        match self {
            Self::Pool(pool) => {
                let (counters, times) = (pool.counters(), pool.zone_times());
                Events {
                    alloc_visits: counters.refills,
                    free_visits: times.holds().saturating_sub(counters.refills),
                    waits: times.contended() + counters.fallbacks,
                    waited_ns: times.wait_ns.sum(),
                }
            }
            Self::Owned { lists, .. } => {
                let counts = lists.counts();
                Events {
                    alloc_visits: counts.refills,
                    free_visits: counts.drains,
                    waits: counts.waits,
                    waited_ns: counts.waited_ns,
                }
            }
        }
    }

    /// Drains all lists, and returns the number of frames that are not in the back end then.
    pub(super) fn lost(&self) -> u64 {
        self.drain_all();
        match self {
            Self::Pool(pool) => {
                pool.check_invariants();
                pool.managed().0 - pool.nr_free().0
            }
            Self::Owned { lists, frames } => frames.0 - lists.nr_free().0,
        }
    }
}
