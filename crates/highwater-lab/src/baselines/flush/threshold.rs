//! When enough was updated for a flush to be worth its cost.
//!
//! Updates are counted by their size, whatever the item and direction, in two steps: each CPU keeps
//! up to a [`BATCH`] to itself, without a locked instruction, and then adds them to a total that a
//! reader compares with a batch for each CPU.
//!
//! Source: accounting spec 7.3 and 7.5; one total for all groups as before the patch, one for each
//! group as with it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::BATCH;
use super::block::Block;

/// Updates of all groups together.
#[derive(Debug)]
pub(super) struct OneThreshold {
    /// Above this, a flush is worth it.
    limit: u64,
    /// By CPU. Written by whoever acts as it. Publishes nothing.
    kept: Box<[Kept]>,
    /// Written by updaters and by whoever has flushed the root. Publishes nothing.
    total: AtomicU64,
}

/// Adds to what a CPU keeps to itself. Returns, and no longer keeps, all of it once that is a
/// batch.
fn keep(word: &AtomicU64, size: u64) -> Option<u64> {
    // Relaxed: as below. Of two threads that act as one CPU at a time, one may be forgotten.
    let kept = word.load(Ordering::Relaxed) + size;
    let is_enough = kept >= BATCH;
    word.store(if is_enough { 0 } else { kept }, Ordering::Relaxed);
    is_enough.then_some(kept)
}

/// A CPU's word, on a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Kept(AtomicU64);

/// What is enough.
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
            // Relaxed, here and below: a trigger, behind which nothing is published.
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

/// Updates of one group and those below it.
#[derive(Debug, Default)]
pub(super) struct GroupThreshold {
    /// Written by updaters and by flushes. Publishes nothing.
    total: AtomicU64,
}

impl GroupThreshold {
    pub(super) fn is_reached(&self, limit: u64) -> bool {
        // Relaxed, here and below: as above.
        self.total.load(Ordering::Relaxed) > limit
    }

    /// Looked at first: a flush resets a group once for each CPU.
    pub(super) fn reset(&self) {
        if self.total.load(Ordering::Relaxed) != 0 {
            self.total.store(0, Ordering::Relaxed);
        }
    }
}

/// Counts an update of a CPU's block at its group and all above it, up to one that is worth a flush
/// already: then so are all above that.
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
            // Relaxed: as above.
            group.total.fetch_add(kept, Ordering::Relaxed);
        }
        at = block.parent();
    }
}
