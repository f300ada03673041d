//! Per-CPU add batches: pages that have just come in, before they are on a list.
//!
//! A page that has come in is put into the batch of the CPU. A full batch goes to the lists at once, so that the
//! lruvec's lock is taken once for all its pages of one group. Where a page belongs is said by its flags
//! when the batch goes, so that what happens to it meanwhile is heeded.
//!
//! Pages in a batch are invisible to reclaim: every pass begins with the batch of its CPU, one that frees nothing
//! with all of them.
//!
//! Invariant: a page in a batch is on no list; who adds the pages to the lists holds the batch's lock all the
//! while, so that whoever has gone through all batches has seen on the lists what was in them.
//!
//! Source: the add batches of Linux (frames-and-reclaim specification, 9.1). Deviation: small pools have smaller
//! batches, so that they hide less than one page of 128.

use crossbeam_utils::CachePadded;

use crate::percpu;
use crate::sync::{LockClass, Mutex, Rank};
use crate::units::{Pages, Pfn};

static BATCH_LOCK: LockClass = LockClass::new("add_batch", Rank::AddBatch);

/// Pages of one batch, as in the kernel.
const BATCH_MAX: u64 = 31;
/// Batches hold at most one page of so many of the pool.
const HIDDEN_FRACTION: u64 = 128;

/// A batch for each CPU.
pub(super) struct AddBatches {
    cpus: Box<[CachePadded<Mutex<Vec<Pfn>>>]>,
    limit: usize,
}

impl AddBatches {
    pub(super) fn new(frames: Pages, nr_cpus: usize) -> Self {
        let batch = || CachePadded::new(Mutex::new(&BATCH_LOCK, Vec::new()));
        let limit = (frames.0 / HIDDEN_FRACTION / nr_cpus as u64).min(BATCH_MAX);
        Self {
            cpus: (0..nr_cpus).map(|_| batch()).collect(),
            limit: usize::try_from(limit).expect("at most 31"),
        }
    }

    /// Takes a page that is on no list; shows `spill` the batch when it is full.
    pub(super) fn add(&self, pfn: Pfn, spill: impl FnOnce(&[Pfn])) {
        // Whoever has it goes through it, or was interrupted on this CPU: neither is waited for.
        match self.here().try_lock() {
            Some(mut batch) => {
                batch.push(pfn);
                if batch.len() >= self.limit {
                    spill(&batch);
                    batch.clear();
                }
            }
            None => spill(&[pfn]),
        }
    }

    /// Shows `spill` the batch of this CPU and empties it.
    pub(super) fn drain(&self, spill: impl FnMut(&[Pfn])) {
        drain(self.here(), spill);
    }

    /// Shows `spill` every batch and empties it; how many pages those were.
    pub(super) fn drain_all(&self, mut spill: impl FnMut(&[Pfn])) -> usize {
        self.cpus.iter().map(|batch| drain(batch, &mut spill)).sum()
    }

    fn here(&self) -> &Mutex<Vec<Pfn>> {
        &self.cpus[percpu::current_cpu().index() % self.cpus.len()]
    }
}

fn drain(batch: &Mutex<Vec<Pfn>>, mut spill: impl FnMut(&[Pfn])) -> usize {
    let mut batch = batch.lock();
    let count = batch.len();
    if count > 0 {
        spill(&batch);
        batch.clear();
    }
    count
}
