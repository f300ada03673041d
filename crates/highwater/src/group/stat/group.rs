//! The statistics of one group: sums, pending values, the bound, and the way to its parent.

use std::array;
use std::fmt;

use super::block::StatBlock;
use super::children::Children;
use super::counts::Counts;
use super::item::NR_ITEMS;
use crate::percpu::{Blocks, Published, Regime, Sequences};
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::sync::{Arc, LockClass, Mutex, OnceLock, Rank};
use crate::units::CpuId;

static FLUSH: LockClass = LockClass::new("statistics flush", Rank::Statistics);

/// State shared by the statistics of all groups of a tree.
#[derive(Debug)]
pub(super) struct StatTree {
    pub(super) nr_cpus: usize,
    sequences: Sequences,
    pub(super) counts: Counts,
}

/// A group's sums, and the pending values that its children have handed up.
pub(super) struct Sums {
    /// Written by: the holder of the flush lock. Read by: readers. Publishes: nothing; the bound
    /// that is lowered afterwards publishes it.
    pub(super) sum: [AtomicI64; NR_ITEMS],
    /// Written by: children that hand up (add), and the holder of the flush lock (takes). Read by:
    /// the latter. Publishes: nothing; `is_pending` does.
    pending: [AtomicI64; NR_ITEMS],
    /// The part of the bound that may be lowered when all of pending has been absorbed. As
    /// `pending`.
    pending_bound: AtomicU64,
    /// Whether values were handed up since they were last taken. Publishes: the three above.
    is_pending: AtomicBool,
}

impl Sums {
    fn zeroed() -> Self {
        Self {
            sum: array::from_fn(|_| AtomicI64::new(0)),
            pending: array::from_fn(|_| AtomicI64::new(0)),
            pending_bound: AtomicU64::new(0),
            is_pending: AtomicBool::new(false),
        }
    }
}

/// The statistics of one group.
pub(in crate::group) struct Stat {
    /// How blocks are written.
    pub(super) sequences: Sequences,
    pub(super) shared: Arc<StatTree>,
    pub(super) parent: Option<Arc<Self>>,
    pub(super) blocks: Blocks<StatBlock, 16>,
    /// CPUs whose block may be open, or about to be. Written by: updates that open one, and the
    /// flush (read-modify-writes). Read by: the flush. Publishes: that the block exists.
    pub(super) dirty: Box<[AtomicU64]>,
    pub(super) sums: Published<Sums>,
    pub(super) children: Published<Children<Self>>,
    /// This group's number among the children that have counted.
    number: OnceLock<u32>,
    /// Upper bound on the error of an item's sum. Written by: updates that open or widen a window,
    /// here or below, and the flush. Read by: readers. Publishes: the sums, when lowered.
    bound: AtomicU64,
    /// Number of the newest flush that has begun. Written by: the holder of the flush lock. Read
    /// by: threads that may share a flush. Publishes: that it looks at the blocks only after that.
    pub(super) started: AtomicU64,
    /// Number of the newest flush that has ended. Written and read by: the holder of the flush
    /// lock. Publishes: nothing.
    pub(super) done: AtomicU64,
    /// Time passed to the newest flush, in nanoseconds. Written by: the flush. Read by: readers.
    /// Publishes: nothing; a statistic.
    pub(super) flushed_at: AtomicU64,
    /// Whether no update can come any more. Written by: the group's end. Read by: threads that have
    /// held the flush lock. Publishes: the last updates.
    pub(super) is_retired: AtomicBool,
    pub(super) flush: Mutex<()>,
}

impl Stat {
    pub(in crate::group) fn root(regime: Regime, nr_cpus: usize) -> Arc<Self> {
        let shared = Arc::new(StatTree {
            nr_cpus,
            sequences: Sequences::of(regime),
            counts: Counts::default(),
        });
        Arc::new(Self::new(shared, None))
    }

    /// Returns the statistics of a group below `self`.
    pub(in crate::group) fn child(self: &Arc<Self>) -> Arc<Self> {
        let (shared, parent) = (Arc::clone(&self.shared), Some(Arc::clone(self)));
        Arc::new(Self::new(shared, parent))
    }

    fn new(shared: Arc<StatTree>, parent: Option<Arc<Self>>) -> Self {
        let nr_cpus = shared.nr_cpus;
        let words = 0..nr_cpus.div_ceil(64);
        Self {
            sequences: shared.sequences,
            shared,
            parent,
            blocks: Blocks::none(nr_cpus),
            dirty: words.map(|_| AtomicU64::new(0)).collect(),
            sums: Published::empty(),
            children: Published::empty(),
            number: OnceLock::new(),
            bound: AtomicU64::new(0),
            started: AtomicU64::new(0),
            done: AtomicU64::new(0),
            flushed_at: AtomicU64::new(0),
            is_retired: AtomicBool::new(false),
            flush: Mutex::new(&FLUSH, ()),
        }
    }

    /// Returns this group and its ancestors.
    pub(super) fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |stat| stat.parent.as_deref())
    }

    pub(super) fn block(&self, cpu: CpuId) -> &StatBlock {
        match self.blocks.get(cpu.index()) {
            Some(block) => block,
            None => {
                let make = || StatBlock::new(self.sequences, cpu);
                self.blocks.get_or_make(cpu.index(), make)
            }
        }
    }

    pub(super) fn sums(&self) -> &Sums {
        match self.sums.get() {
            Some(sums) => sums,
            None => self.sums.publish(Box::new(Sums::zeroed())),
        }
    }

    /// Returns the upper bound on the error of a sum.
    pub(super) fn bound(&self) -> u64 {
        // Pairs with `lower`: a thread that sees it lowered sees the additions to the sums.
        self.bound.load(Ordering::SeqCst)
    }

    /// Raises the bound before more can be hidden here or below.
    fn raise(&self, amount: u64) {
        // Pairs with `bound`. SeqCst: amounts hidden after this are later in the order of all
        // words.
        self.bound.fetch_add(amount, Ordering::SeqCst);
    }

    pub(super) fn raise_chain(&self, amount: u64) {
        self.chain().for_each(|stat| stat.raise(amount));
    }

    /// Lowers the bound after hidden amounts have been added to the sums.
    pub(super) fn lower(&self, amount: u64) {
        // Pairs with `bound`; SeqCst as in `raise`.
        let before = self.bound.fetch_sub(amount, Ordering::SeqCst);
        assert!(before >= amount, "a bound of {before} lowered by {amount}");
    }

    pub(super) fn lower_chain(&self, amount: u64) {
        self.chain().for_each(|stat| stat.lower(amount));
    }

    /// Adds values found below this group, or that could not be counted in a block, to pending.
    pub(super) fn receive(&self, deltas: &[i64; NR_ITEMS], bound: u64) {
        let sums = self.sums();
        for (pending, &delta) in sums.pending.iter().zip(deltas) {
            if delta != 0 {
                // Relaxed: published by `is_pending`.
                pending.fetch_add(delta, Ordering::Relaxed);
            }
        }
        // Pairs with the swap in `take_pending`, which comes before it takes the deltas.
        sums.pending_bound.fetch_add(bound, Ordering::SeqCst);
        // Pairs with the swap in `take_pending`. SeqCst: the thread marks this group for flushes
        // only after this.
        sums.is_pending.store(true, Ordering::SeqCst);
    }

    /// Takes the pending values: adds them to `deltas`, and returns their bound.
    pub(super) fn take_pending(&self, deltas: &mut [i64; NR_ITEMS]) -> u64 {
        let Some(sums) = self.sums.get() else {
            return 0;
        };
        // Pairs with the store in `receive`. A read-modify-write: it has seen every store that it
        // clears.
        if !sums.is_pending.swap(false, Ordering::SeqCst) {
            return 0;
        }
        // Pairs with the addition in `receive`: the deltas behind the bound taken here are visible.
        let bound = sums.pending_bound.swap(0, Ordering::SeqCst);
        for (delta, pending) in deltas.iter_mut().zip(&sums.pending) {
            // Relaxed: published by `pending_bound` and `is_pending`.
            if pending.load(Ordering::Relaxed) != 0 {
                // Relaxed: as above.
                *delta = delta.wrapping_add(pending.swap(0, Ordering::Relaxed));
            }
        }
        bound
    }

    /// Makes every flush of an ancestor find this group. See `update.rs`.
    pub(super) fn mark_chain(self: &Arc<Self>) {
        let mut stat = self;
        while let Some(parent) = &stat.parent {
            let children = match parent.children.get() {
                Some(children) => children,
                None => parent.children.publish(Box::new(Children::none())),
            };
            let number = *stat.number.get_or_init(|| children.enroll(stat));
            children.mark(number);
            stat = parent;
        }
    }
}

impl fmt::Debug for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stat")
            .field("bound", &self.bound())
            .field("blocks", &self.blocks)
            .finish_non_exhaustive()
    }
}
