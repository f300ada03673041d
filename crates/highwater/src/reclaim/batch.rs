//! Per-CPU LRU batches (pagevecs): pages to add to a list, and pages to activate.
//!
//! A page that has come in goes to the batch of the CPU. A full batch is drained to the lists at
//! once, so that the lruvec lock is taken once for all its pages of one group. A page's flags at
//! that time choose its list, so they include changes made while it was in the batch.
//!
//! Pages in add batches are invisible to reclaim: every pass first drains the batch of its CPU, and
//! a pass that frees nothing drains all of them.
//!
//! Pages to activate stay on their lists meanwhile. They may be evicted, or their frames may hold
//! other pages, by the time the batch is drained: their keys are checked then.
//!
//! Invariant: a page in an add batch is on no list; the thread that drains a batch holds its lock
//! until the pages are on the lists, so a thread that has gone through all batches sees their
//! former pages on the lists.
//!
//! Handles of groups are dropped under that lock, but not the embedder's data of those: their
//! destructor may close a file, for which all batches are drained.
//!
//! Source: the add batches of Linux (frames-and-reclaim specification, 9.1). Deviation: small pools
//! have smaller batches, so that they hide less than one page in 128.

use crate::cache::PageKey;
use crate::group::KeptData;
use crate::percpu;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{CachePadded, LockClass, Mutex, Rank};
use crate::units::{Pages, Pfn};

static BATCH_LOCK: LockClass = LockClass::new("add_batch", Rank::AddBatch);

/// Pages of one batch, as in the kernel.
const BATCH_MAX: u64 = 31;
/// Batches hide at most one in this many pages of the pool.
const HIDDEN_FRACTION: u64 = 128;

/// The batches of all CPUs.
pub(super) struct Batches {
    cpus: Box<[CachePadded<Mutex<Batch>>]>,
    /// Capacity of a batch. Written by: threads that resize the pool. Read by: threads that add to
    /// a batch. Publishes: nothing.
    limit: AtomicUsize,
}

/// Pages waiting to be moved to the lists.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Pages to add, which are on no list.
    pub(super) added: Vec<Pfn>,
    /// Pages to activate, on whichever list they are by then.
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

    /// Sets the capacity for a pool of `frames` frames; a batch that is now too large is drained
    /// with the next page.
    pub(super) fn set_frames(&self, frames: Pages) {
        let limit = (frames.0 / HIDDEN_FRACTION / self.cpus.len() as u64).min(BATCH_MAX);
        let limit = usize::try_from(limit).expect("at most 31");
        // Relaxed: see the field.
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Changes the batch of this CPU; if it is full then, calls `spill` with it and empties it.
    pub(super) fn change(&self, change: impl FnOnce(&mut Batch), spill: impl FnOnce(&Batch)) {
        let _kept;
        // Its holder is draining it, or was preempted on this CPU: wait for neither.
        match self.here().try_lock() {
            Some(mut batch) => {
                change(&mut batch);
                debug_assert!(batch.len() as u64 <= BATCH_MAX, "a full batch is emptied");
                // Relaxed: see the field.
                if batch.len() >= self.limit.load(Ordering::Relaxed) {
                    // Dropped when the lock is released: see `drain`.
                    _kept = KeptData::new();
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

    /// Calls `spill` with the batch of this CPU and empties it.
    pub(super) fn drain(&self, spill: impl FnMut(&Batch)) {
        drain(self.here(), spill);
    }

    /// Calls `spill` with every batch and empties it; returns the number of pages added to lists.
    pub(super) fn drain_all(&self, mut spill: impl FnMut(&Batch)) -> usize {
        self.cpus.iter().map(|batch| drain(batch, &mut spill)).sum()
    }

    fn here(&self) -> &Mutex<Batch> {
        &self.cpus[percpu::current_cpu().index() % self.cpus.len()]
    }
}

fn drain(batch: &Mutex<Batch>, mut spill: impl FnMut(&Batch)) -> usize {
    // A page's lists, if its group was just removed, may hold the last handle of it.
    let _kept = KeptData::new();
    let mut batch = batch.lock();
    let nr_added = batch.added.len();
    debug_assert!(batch.len() as u64 <= BATCH_MAX, "a full batch is emptied");
    if batch.len() > 0 {
        spill(&batch);
        batch.clear();
    }
    nr_added
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::group::{GroupTree, Limits};
    use crate::sync::{Arc, StatCell};

    /// Data whose destructor needs all batches, as one does that closes a file.
    struct Draining(Arc<(Batches, StatCell)>);

    impl Drop for Draining {
        fn drop(&mut self) {
            let (batches, nr_dropped) = &*self.0;
            batches.drain_all(|_| ());
            nr_dropped.add(1);
        }
    }

    #[test]
    fn data_of_a_group_may_close_a_file_when_they_are_dropped() {
        // Symptom: a thread waited for itself, and the next ones for it. Method: the last handle of
        // a removed group is dropped where a batch is drained, in each of the ways.
        let of_all = Arc::new((Batches::new(Pages(1 << 20), 1), StatCell::new()));
        let (batches, nr_dropped) = &*of_all;
        let groups = GroupTree::new(1);
        let last_handle = || {
            let group = groups.root().child("one", Limits::default());
            let group = group.expect("a new name");
            let data = Draining(Arc::clone(&of_all));
            assert!(group.set_data(data).is_ok(), "its first");
            groups
                .remove(&group)
                .expect("it has no charge and no child");
            group
        };
        for way in 0..3 {
            let mut group = Some(last_handle());
            let add = |batch: &mut Batch| batch.added.push(Pfn(0));
            match way {
                0 => {
                    while group.is_some() {
                        batches.change(add, |_| group = None);
                    }
                }
                1 => {
                    batches.change(add, |_| ());
                    batches.drain(|_| group = None);
                }
                _ => {
                    batches.change(add, |_| ());
                    batches.drain_all(|_| group = None);
                }
            }
            assert!(group.is_none(), "a page was in the batch");
            assert_eq!(nr_dropped.get(), way + 1);
        }
    }

    #[test]
    fn batches_of_a_pool_that_shrinks_hide_less() {
        // Method: add pages on one CPU and count how many are hidden when the batch is drained.
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
