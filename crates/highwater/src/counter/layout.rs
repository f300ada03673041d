//! Layout: topology, regime and batch shared by the counters of one machine.

use std::fmt;

use super::shape::{Modulus, Shape};
use super::{Accuracy, BATCH_DEFAULT, BatchError};
use crate::percpu::Regime;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::topology::Topology;

/// Topology, regime and batch of counters, and the limit on sets with per-CPU words.
pub struct Layout {
    pub(super) topology: Topology,
    pub(super) regime: Regime,
    pub(super) shape: Shape,
    blocks_max: u64,
    /// Sets that currently have per-CPU words.
    ///
    /// Written by: a set that is about to allocate them, or has released them (relaxed). Read by:
    /// the same. Publishes: nothing.
    blocks: AtomicU64,
}

impl Layout {
    /// Returns a layout with a batch of [`BATCH_DEFAULT`], and no limit on per-CPU words but
    /// memory.
    #[must_use]
    pub fn new(topology: &Topology, regime: Regime) -> Arc<Self> {
        let batch = const { Modulus::from_shift(BATCH_DEFAULT.ilog2()) };
        Arc::new(Self::with_modulus(topology, regime, batch, u64::MAX))
    }

    /// Returns a layout with another batch, of which at most `blocks_max` sets have per-CPU words
    /// at once: the others count exactly, with atomic additions.
    ///
    /// A smaller batch is more accurate and carries more often: the bounds are proportional to it,
    /// and the carries per event to its inverse.
    ///
    /// # Errors
    ///
    /// When `batch` is not a power of two above 1.
    pub fn with_batch(
        topology: &Topology,
        regime: Regime,
        batch: u32,
        blocks_max: u64,
    ) -> Result<Arc<Self>, BatchError> {
        if batch < 2 || !batch.is_power_of_two() {
            return Err(BatchError::NotAPowerOfTwo { batch });
        }
        let batch = Modulus::from_shift(batch.ilog2());
        let layout = Self::with_modulus(topology, regime, batch, blocks_max);
        Ok(Arc::new(layout))
    }

    fn with_modulus(topology: &Topology, regime: Regime, batch: Modulus, blocks_max: u64) -> Self {
        let positions = topology.nr_online();
        // As in `Cells`: CPUs in gaps of the numbering have slots, and threads without rseq have
        // one.
        let apart = match regime {
            Regime::Restartable => topology.nr_cpus() - positions + 1,
            Regime::Atomic => topology.nr_cpus() - positions,
        };
        Self {
            topology: topology.clone(),
            regime,
            shape: Shape::new(positions, apart, batch),
            blocks_max,
            blocks: AtomicU64::new(0),
        }
    }

    /// Returns the error bounds of an approximate sum at rest once every CPU has added.
    #[must_use]
    pub fn accuracy_max(&self) -> Accuracy {
        self.shape.accuracy_max
    }

    /// Returns the number of events from one carry of a CPU's word to the next, when all go one
    /// way.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.shape.leaf.get().unsigned_abs()
    }

    /// Returns the number of sets of this layout that have per-CPU words now. A statistic.
    #[must_use]
    pub fn nr_blocks(&self) -> u64 {
        // Relaxed: a statistic.
        self.blocks.load(Ordering::Relaxed)
    }

    /// Reserves a set's per-CPU words; false where no more are allowed.
    pub(super) fn try_reserve_block(&self) -> bool {
        // Relaxed: only the number itself matters.
        let booked = self.blocks.fetch_add(1, Ordering::Relaxed);
        let allowed = booked < self.blocks_max;
        if !allowed {
            self.release_block();
        }
        allowed
    }

    pub(super) fn release_block(&self) {
        // Relaxed: as above.
        self.blocks.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout")
            .field("topology", &self.topology)
            .field("regime", &self.regime)
            .field("batch", &self.batch())
            .field("nr_blocks", &self.nr_blocks())
            .finish_non_exhaustive()
    }
}
