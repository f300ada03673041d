//! The pools that are measured, and the sizes of their lists.

use std::sync::Arc;

use highwater::frame::{FramePool, PoolConfig};
use highwater::lab::memmap::FrameMemory;
use highwater::units::Pages;

use crate::experiments::{ExperimentError, Setup};

/// The pool: 1 GiB, untouched except for the frames of the last part.
pub(super) const POOL: Pages = Pages(1 << 18);
pub(super) const POOL_QUICK: Pages = Pages(1 << 16);

/// Sizes of a pool's lists, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) batch: u64,
    pub(super) high_min: u64,
    pub(super) high_max: u64,
}

impl Sizes {
    /// Returns the present sizes of a pool's lists.
    pub(super) fn of(pool: &FramePool) -> Self {
        let lists = pool.zoneinfo().lists;
        let list = lists.first().expect("a pool has a list");
        Self {
            batch: list.batch.into(),
            high_min: list.high_min.into(),
            high_max: list.high_max.into(),
        }
    }

    /// Returns the capacity of a list, for loads.
    pub(super) fn most(&self) -> usize {
        usize::try_from(self.high_max).expect("frames of a pool")
    }
}

/// Returns the configuration of the default policy.
pub(super) fn auto(setup: &Setup) -> PoolConfig {
    PoolConfig::new(setup.topology.nr_cpus())
}

pub(super) fn pool(setup: &Setup, config: PoolConfig) -> Result<FramePool, ExperimentError> {
    let memory = frame_memory(setup.pick(POOL, POOL_QUICK))?;
    Ok(FramePool::with_config(Arc::new(memory), config)?)
}

pub(super) fn frame_memory(pages: Pages) -> Result<FrameMemory, ExperimentError> {
    Ok(FrameMemory::new(pages)?)
}
