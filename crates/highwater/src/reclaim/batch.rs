//! Per-CPU batches: pages that have just come in, before they are on a list, and pages that are to
//! be activated.
//!
//! A page that has come in is put into the batch of the CPU. A full batch goes to the lists at
//! once, so that the lruvec's lock is taken once for all its pages of one group. Where a page
//! belongs is said by its flags when the batch goes, so that what happens to it meanwhile is
//! heeded.
//!
//! Pages that have come in are invisible to reclaim: every pass begins with the batch of its CPU,
//! one that frees nothing with all of them.
//!
//! Pages that are to be activated stay where they are meanwhile, so that they may be evicted, or
//! their frame hold another page, by the time the batch goes: they are looked at again then, by
//! name.
//!
//! Invariant: a page that has come in and is in a batch is on no list; who adds the pages to the
//! lists holds the batch's lock all the while, so that whoever has gone through all batches has
//! seen on the lists what was in them.
//!
//! Source: the add batches of Linux (frames-and-reclaim specification, 9.1). Deviation: small pools
//! have smaller batches, so that they hide less than one page of 128.

use crossbeam_utils::CachePadded;

use crate::cache::PageKey;
use crate::percpu;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{LockClass, Mutex, Rank};
use crate::units::{Pages, Pfn};

static BATCH_LOCK: LockClass = LockClass::new("add_batch", Rank::AddBatch);

/// Pages of one batch, as in the kernel.
const BATCH_MAX: u64 = 31;
/// Batches hold at most one page of so many of the pool.
const HIDDEN_FRACTION: u64 = 128;

/// The batches of each CPU.
pub(super) struct Batches {
    cpus: Box<[CachePadded<Mutex<Batch>>]>,
    /// Pages in a batch. Written by: who changes how many frames there are. Read by: who adds to a
    /// batch. Publishes: nothing.
    limit: AtomicUsize,
}

/// What is on its way to the lists.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Pages that have come in, and are on no list.
    pub(super) added: Vec<Pfn>,
    /// Pages that are to be activated, wherever they are by then.
    pub(super) activated: Vec<(Pfn, PageKey)>,
}

impl Batch {
    fn len(&self) -> usize {
        self.added.len().max(self.activated.len())
    }

    fn clear(&mut self) {
        self.added.clear();
        self.activated.clear();
    }
}

impl Batches {
    pub(super) fn new(frames: Pages, nr_cpus: usize) -> Self {
        let batch = || CachePadded::new(Mutex::new(&BATCH_LOCK, Batch::default()));
        let batches = Self {
            cpus: (0..nr_cpus).map(|_| batch()).collect(),
            limit: AtomicUsize::new(0),
        };
        batches.set_frames(frames);
        batches
    }

    /// Has batches hide their part of so many frames from now on: what is in one that is too large
    /// goes with the next page.
    pub(super) fn set_frames(&self, frames: Pages) {
        let limit = (frames.0 / HIDDEN_FRACTION / self.cpus.len() as u64).min(BATCH_MAX);
        let limit = usize::try_from(limit).expect("at most 31");
        // Relaxed: see the field.
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Changes the batch of this CPU; shows it to `spill` when it is full then, and empties it.
    pub(super) fn change(&self, change: impl FnOnce(&mut Batch), spill: impl FnOnce(&Batch)) {
        // Whoever has it goes through it, or was interrupted on this CPU: neither is waited for.
        match self.here().try_lock() {
            Some(mut batch) => {
                change(&mut batch);
                // Relaxed: see the field.
                if batch.len() >= self.limit.load(Ordering::Relaxed) {
                    spill(&batch);
                    batch.clear();
                }
            }
            None => {
                let mut batch = Batch::default();
                change(&mut batch);
                spill(&batch);
            }
        }
    }

    /// Shows `spill` the batch of this CPU and empties it.
    pub(super) fn drain(&self, spill: impl FnMut(&Batch)) {
        drain(self.here(), spill);
    }

    /// Shows `spill` every batch and empties it; how many pages have come to lists by that.
    pub(super) fn drain_all(&self, mut spill: impl FnMut(&Batch)) -> usize {
        self.cpus.iter().map(|batch| drain(batch, &mut spill)).sum()
    }

    fn here(&self) -> &Mutex<Batch> {
        &self.cpus[percpu::current_cpu().index() % self.cpus.len()]
    }
}

fn drain(batch: &Mutex<Batch>, mut spill: impl FnMut(&Batch)) -> usize {
    let mut batch = batch.lock();
    let nr_added = batch.added.len();
    if batch.len() > 0 {
        spill(&batch);
        batch.clear();
    }
    nr_added
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn batches_of_a_pool_that_shrinks_hide_less() {
        // Method: pages come in on one CPU; how many are hidden when the batch goes.
        let batches = Batches::new(Pages(1 << 20), 1);
        for (frames, hidden) in [(1 << 20, 31), (1024, 8), (64, 1), (0, 1), (1 << 20, 31)] {
            batches.set_frames(Pages(frames));
            let mut gone = None;
            for pfn in 1.. {
                let add = |batch: &mut Batch| batch.added.push(Pfn(pfn));
                batches.change(add, |batch| gone = Some(batch.added.len()));
                if gone.is_some() {
                    break;
                }
            }
            assert_eq!(gone, Some(hidden), "{frames} frames");
        }
    }
}
