//! Statistics of groups (rstat): per-CPU counters, flushed on read, never staler than stated.
//!
//! An update adds to a cell that only its CPU writes, in a *block* of that CPU and group. A *flush*
//! of a group absorbs the blocks of its subtree, children before parents, into the sums of each
//! group on the way, and leaves the result at the parent as *pending*. So a group's sums are right
//! for its whole subtree after a flush of it, and the ancestors need not be touched.
//!
//! # Invariants
//!
//! For each group and item, with nothing in flight:
//!
//! ```text
//! truth  = sum + pending + hidden in own blocks + not yet handed up by each child
//! |truth - sum| <= bound
//! bound  = hidden in own blocks, at most + bound handed up with pending + hidden in the children's blocks, at most ..
//! ```
//!
//! A flush conserves: each amount that leaves a block arrives in one sum on each level, once.
//!
//! **The bound.** Every step that lets an amount be hidden raises the bound of the group and of all
//! its ancestors *before* it does so; the flush lowers the bound of one group *after* it has added
//! to the sum, and hands the same amount up with the pending values, for the parent to lower its
//! own. A reader loads the bound before the sum. So the sum that it reads is off by at most that
//! bound, except for updates that run during the read, each of which may be counted or not.
//! Adversary: `tests/flush.rs::no_read_is_staler_than_it_says`.
//!
//! # Parts
//!
//! | file | mechanism |
//! |---|---|
//! | `item` | the statistics, by their names in `memory.stat` |
//! | `block` | cells of one CPU, the part already absorbed, the state of the window |
//! | `children` | children with unflushed updates: bits, not lists |
//! | `update` | adding; opening and widening a window |
//! | `flush` | absorbing; sharing a flush; the end of a group |
//! | `read` | tolerance, staleness, age; reading groups together |
//! | `handle` | the API on a group's handle |
//!
//! # Why no update is lost, and why a flush covers
//!
//! A flush that began after an update had returned must absorb it: `update.rs` proves that each
//! completed update is in a block, or in pending, that the flush finds.
//!
//! # Memory
//!
//! A group in which `k` CPUs have counted has `k` blocks of 384 bytes, sums of 320 bytes, and
//! addresses: 8 bytes for each 16 CPUs of the machine, 128 bytes for each 16 CPUs of which one has
//! counted, and a bit for each CPU. A parent has a bit and 8 bytes for each child that counted.
//! Checked, together with the memory of charges:
//! `tests/group_memory.rs::fifty_thousand_groups_on_384_cpus_stay_below_200_mib`.
//!
//! Source: rstat and per-group flush thresholds of Linux 6.8 (accounting spec 7); the shared flush
//! as sketched by T. Heo (2023).
//! Deviation: instead of a threshold for which each update walks the ancestors, windows that are
//! opened and doubled, so that an update touches its own block only; the resulting bound is
//! returned; bits instead of lists; a flush requested while another runs waits for the one that
//! covers it, and no longer.

mod item;
mod block;
mod children;
mod update;
mod flush;
mod read;
mod handle;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

use std::array;
use std::fmt;

use self::block::Block;
use self::children::Children;
use self::item::NR_ITEMS;
use self::read::Counts;
use crate::percpu::{Blocks, Published, Regime, Sequences};
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::sync::{Arc, LockClass, Mutex, OnceLock, Rank, Sequence};
use crate::units::CpuId;

pub use self::item::StatItem;
pub use self::read::{FlushCounts, StatRead, Stats, Tolerance};

static FLUSH: LockClass = LockClass::new("statistics flush", Rank::Statistics);

/// State shared by the statistics of all groups of a tree.
#[derive(Debug)]
struct Shared {
    nr_cpus: usize,
    sequences: Sequences,
    counts: Counts,
    /// Distinguish groups of one depth.
    numbers: Sequence,
}

/// A group's sums, and the pending values that its children have handed up.
struct Sums {
    /// Written by: the holder of the flush lock. Read by: readers. Publishes: nothing; the bound
    /// that is lowered afterwards publishes it.
    sum: [AtomicI64; NR_ITEMS],
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
pub(super) struct Stat {
    /// How blocks are written.
    sequences: Sequences,
    shared: Arc<Shared>,
    parent: Option<Arc<Self>>,
    /// Distance from the root, and a number of the group in its tree: the order of flush locks.
    rank: (u32, u64),
    blocks: Blocks<Block>,
    /// CPUs whose block may be open, or about to be. Written by: updates that open one, and the
    /// flush (read-modify-writes). Read by: the flush. Publishes: that the block exists.
    dirty: Box<[AtomicU64]>,
    sums: Published<Sums>,
    children: Published<Children>,
    /// This group's number among the children that have counted.
    number: OnceLock<u32>,
    /// Upper bound on the error of an item's sum. Written by: updates that open or widen a window,
    /// here or below, and the flush. Read by: readers. Publishes: the sums, when lowered.
    bound: AtomicU64,
    /// Number of the newest flush that has begun. Written by: the holder of the flush lock. Read
    /// by: threads that may share a flush. Publishes: that it looks at the blocks only after that.
    started: AtomicU64,
    /// Number of the newest flush that has ended. Written and read by: the holder of the flush
    /// lock. Publishes: nothing.
    done: AtomicU64,
    /// Time passed to the newest flush, in nanoseconds. Written by: the flush. Read by: readers.
    /// Publishes: nothing; a statistic.
    flushed_at: AtomicU64,
    /// Whether no update can come any more. Written by: the group's end. Read by: threads that have
    /// held the flush lock. Publishes: the last updates.
    is_retired: AtomicBool,
    flush: Mutex<()>,
}

impl Stat {
    pub(super) fn root(regime: Regime, nr_cpus: usize) -> Arc<Self> {
        let shared = Arc::new(Shared {
            nr_cpus,
            sequences: Sequences::of(regime),
            counts: Counts::default(),
            numbers: Sequence::new(),
        });
        Arc::new(Self::new(shared, None, (0, 0)))
    }

    /// Returns the statistics of a group below `self`.
    pub(super) fn child(self: &Arc<Self>) -> Arc<Self> {
        let rank = (self.rank.0 + 1, self.shared.numbers.next());
        let (shared, parent) = (Arc::clone(&self.shared), Some(Arc::clone(self)));
        Arc::new(Self::new(shared, parent, rank))
    }

    fn new(shared: Arc<Shared>, parent: Option<Arc<Self>>, rank: (u32, u64)) -> Self {
        let nr_cpus = shared.nr_cpus;
        let words = 0..nr_cpus.div_ceil(64);
        Self {
            sequences: shared.sequences,
            shared,
            parent,
            rank,
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
    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |stat| stat.parent.as_deref())
    }

    fn block(&self, cpu: CpuId) -> &Block {
        match self.blocks.get(cpu.index()) {
            Some(block) => block,
            None => {
                let make = || Block::new(self.sequences, cpu);
                self.blocks.get_or_make(cpu.index(), make)
            }
        }
    }

    fn sums(&self) -> &Sums {
        match self.sums.get() {
            Some(sums) => sums,
            None => self.sums.publish(Box::new(Sums::zeroed())),
        }
    }

    /// Returns the upper bound on the error of a sum.
    fn bound(&self) -> u64 {
        // Pairs with `lower`: a thread that sees it lowered sees the additions to the sums.
        self.bound.load(Ordering::SeqCst)
    }

    /// Raises the bound before more can be hidden here or below.
    fn raise(&self, amount: u64) {
        // Pairs with `bound`. SeqCst: amounts hidden after this are later in the order of all
        // words.
        self.bound.fetch_add(amount, Ordering::SeqCst);
    }

    fn raise_chain(&self, amount: u64) {
        self.chain().for_each(|stat| stat.raise(amount));
    }

    /// Lowers the bound after hidden amounts have been added to the sums.
    fn lower(&self, amount: u64) {
        // Pairs with `bound`; SeqCst as in `raise`.
        let before = self.bound.fetch_sub(amount, Ordering::SeqCst);
        assert!(before >= amount, "a bound of {before} lowered by {amount}");
    }

    fn lower_chain(&self, amount: u64) {
        self.chain().for_each(|stat| stat.lower(amount));
    }

    /// Adds values found below this group, or that could not be counted in a block, to pending.
    fn receive(&self, deltas: &[i64; NR_ITEMS], bound: u64) {
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
    fn take_pending(&self, deltas: &mut [i64; NR_ITEMS]) -> u64 {
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
    fn mark_chain(self: &Arc<Self>) {
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
