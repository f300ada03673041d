//! Flush thresholds: whether enough was updated for a flush to be worth its cost.
//!
//! Updates are counted by size, for all items and both directions, in two steps: each CPU keeps up
//! to a [`BATCH`] to itself, without a locked instruction, and then adds it to a total. A reader
//! compares the total with a batch for each CPU.
//!
//! Source: accounting spec 7.3 and 7.5; one total for all groups as before the patch, one for each
//! group as with it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::BATCH;
use super::block::Block;

/// Updates of all groups together.
#[derive(Debug)]
pub(super) struct OneThreshold {
    /// A flush is worth its cost above this.
    limit: u64,
    /// By CPU. Written by: threads that act as the CPU. Publishes nothing.
    kept: Box<[Kept]>,
    /// Written by: updaters, and the thread that has flushed the root. Publishes nothing.
    total: AtomicU64,
}

/// Adds to what a CPU keeps to itself. When that reaches a batch, returns all of it and resets it.
fn keep(word: &AtomicU64, size: u64) -> Option<u64> {
    // Relaxed: a trigger. If two threads act as one CPU at a time, one update may be lost.
    let kept = word.load(Ordering::Relaxed) + size;
    let is_enough = kept >= BATCH;
    word.store(if is_enough { 0 } else { kept }, Ordering::Relaxed);
    is_enough.then_some(kept)
}

/// A CPU's word, on a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Kept(AtomicU64);

/// Returns the threshold.
pub(super) const fn limit(nr_cpus: usize) -> u64 {
    BATCH * nr_cpus as u64
}

impl OneThreshold {
    pub(super) fn new(nr_cpus: usize) -> Self {
        Self {
            limit: limit(nr_cpus),
            kept: (0..nr_cpus).map(|_| Kept::default()).collect(),
            total: AtomicU64::new(0),
        }
    }

    pub(super) fn count(&self, cpu: usize, size: u64) {
        if let Some(kept) = keep(&self.kept[cpu].0, size)
            && !self.is_reached()
        {
            // Relaxed, here and below: a trigger, which publishes nothing.
            self.total.fetch_add(kept, Ordering::Relaxed);
        }
    }

    pub(super) fn is_reached(&self) -> bool {
        self.total.load(Ordering::Relaxed) > self.limit
    }

    pub(super) fn reset(&self) {
        self.total.store(0, Ordering::Relaxed);
    }
}

/// Updates of one group and its descendants.
#[derive(Debug, Default)]
pub(super) struct GroupThreshold {
    /// Written by updaters and by flushes. Publishes nothing.
    total: AtomicU64,
}

impl GroupThreshold {
    pub(super) fn is_reached(&self, limit: u64) -> bool {
        // Relaxed, here and below: see `OneThreshold`.
        self.total.load(Ordering::Relaxed) > limit
    }

    /// Reads first, so that a flush writes a group's line once, not once for each CPU.
    pub(super) fn reset(&self) {
        if self.total.load(Ordering::Relaxed) != 0 {
            self.total.store(0, Ordering::Relaxed);
        }
    }
}

/// Counts an update of a CPU's block at its group and the ancestors, up to the first that is above
/// its threshold already: then so are all above it.
pub(super) fn count_up<'a>(
    block: &Block,
    size: u64,
    limit: u64,
    of_group: impl Fn(usize) -> &'a GroupThreshold,
) {
    let mut at = Some(block);
    while let Some(block) = at {
        let group = of_group(block.group());
        if group.is_reached(limit) {
            return;
        }
        if let Some(kept) = keep(&block.updates, size) {
            // Relaxed: see `OneThreshold`.
            group.total.fetch_add(kept, Ordering::Relaxed);
        }
        at = block.parent();
    }
}
