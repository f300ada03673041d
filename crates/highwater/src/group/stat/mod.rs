//! Statistics of groups: counted by one CPU each, absorbed by whoever reads, and never staler than
//! said.
//!
//! An update adds to a cell that only its CPU writes, in a *block* of that CPU and group. A *flush*
//! of a group absorbs what the blocks of its subtree hold, children before parents, into the sums
//! of each group on the way, and leaves at the parent, as *pending*, what it found. So a group's
//! sums are right for its whole subtree after a flush of it, and the groups above need not be
//! touched.
//!
//! # Invariants
//!
//! For each group and item, with nothing in flight:
//!
//! ```text
//! truth  = sum + pending + hidden in own blocks + what each child has not handed up yet
//! |truth - sum| <= bound
//! bound  = what own blocks may hide + bound handed up with pending + what the children's blocks may hide ..
//! ```
//!
//! A flush conserves: what leaves a block arrives in one sum on each level, once.
//!
//! **The bound.** Whatever makes it possible that something is hidden raises the bound of the group
//! and of all groups above *before* it does so; the flush lowers the bound of one group *after* it
//! has added to the sum, and hands the same amount up beside what is pending, for the parent to
//! lower its own. A reader loads the bound before the sum. So the sum that it reads is off by at
//! most that bound, updates that run during the read excepted, of which each may be counted or not.
//! Adversary: `tests/flush.rs::no_read_is_staler_than_it_says`.
//!
//! # Parts
//!
//! | file | mechanism |
//! |---|---|
//! | `item` | what is counted |
//! | `block` | cells, what has been taken from them, the state of the window |
//! | `children` | which children have something: bits, not lists |
//! | `update` | adding; opening and widening a window |
//! | `flush` | absorbing; sharing a flush; the end of a group |
//! | `read` | tolerance, staleness, age; reading groups together |
//! | `handle` | what a group's handle offers |
//!
//! # Why no update is lost, and why a flush covers
//!
//! A flush that began after an update had returned must absorb it: `update.rs` proves that each
//! completed update is in a block, or in pending, that the flush finds.
//!
//! # Memory
//!
//! A group that `k` CPUs have counted in has `k` blocks of 384 bytes, sums of 320 bytes, and
//! addresses: 8 bytes for each 16 CPUs of the machine, 128 bytes for each 16 of which one has
//! counted, and a bit for each CPU. A parent has a bit and 8 bytes for each child that counted.
//! Checked, with what charges cost:
//! `tests/group_memory.rs::fifty_thousand_groups_on_384_cpus_stay_below_200_mib`.
//!
//! Source: rstat and per-group flush thresholds of Linux 6.8 (accounting spec 7); the shared flush
//! as sketched by T. Heo (2023).
//! Deviation: no threshold that each update walks the ancestors for, but windows that are opened
//! and doubled, so that an update touches its own block only; the bound that this gives is
//! returned; bits instead of lists; a flush that is asked for while another runs waits for the one
//! that covers it, and no longer.

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

/// What every group's statistics share.
#[derive(Debug)]
struct Shared {
    nr_cpus: usize,
    sequences: Sequences,
    counts: Counts,
    /// Tell groups of one depth apart.
    numbers: Sequence,
}

/// A group's sums, and what its children have handed up.
struct Sums {
    /// Written by: the holder of the flush lock. Read by: readers. Publishes: nothing; the bound
    /// that is lowered afterwards publishes it.
    sum: [AtomicI64; NR_ITEMS],
    /// Written by: whoever hands up (adds), and the holder of the flush lock (takes). Read by: the
    /// latter. Publishes: nothing; `is_pending` does.
    pending: [AtomicI64; NR_ITEMS],
    /// Of the bound, what may be lowered when all of pending has been absorbed. As `pending`.
    pending_bound: AtomicU64,
    /// Whether something was handed up since it was last taken. Publishes: the three above.
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
    /// CPUs whose block may be open, or about to be. Written by: who opens one, and the flush
    /// (read-modify-writes). Read by: the flush. Publishes: that the block is there.
    dirty: Box<[AtomicU64]>,
    sums: Published<Sums>,
    children: Published<Children>,
    /// This group's number among the children that have counted.
    number: OnceLock<u32>,
    /// How far the sum of an item can be from the truth. Written by: who opens or widens a window,
    /// here or below, and the flush. Read by: readers. Publishes: the sums, when lowered.
    bound: AtomicU64,
    /// Number of the newest flush that has begun. Written by: the holder of the flush lock. Read
    /// by: who may want to share a flush. Publishes: that it looks at the blocks only after that.
    started: AtomicU64,
    /// Number of the newest flush that has ended. Written and read by: the holder of the flush
    /// lock. Publishes: nothing.
    done: AtomicU64,
    /// Time that the newest flush was told, in nanoseconds. Written by: the flush. Read by:
    /// readers. Publishes: nothing; it only describes.
    flushed_at: AtomicU64,
    /// Whether nobody can count here any more. Written by: the group's end. Read by: who has held
    /// the flush lock. Publishes: the last updates.
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

    /// Of a group below `self`.
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

    /// This group and those above it.
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

    /// How far a sum can be from the truth.
    fn bound(&self) -> u64 {
        // Pairs with `lower`: who sees it lowered sees what was added to the sums.
        self.bound.load(Ordering::SeqCst)
    }

    /// More may be hidden here soon, or below.
    fn raise(&self, amount: u64) {
        // Pairs with `bound`. SeqCst: what is hidden after this is so in the order of all words.
        self.bound.fetch_add(amount, Ordering::SeqCst);
    }

    fn raise_chain(&self, amount: u64) {
        self.chain().for_each(|stat| stat.raise(amount));
    }

    /// What was hidden has been added to the sums.
    fn lower(&self, amount: u64) {
        // Pairs with `bound`; SeqCst as in `raise`.
        let before = self.bound.fetch_sub(amount, Ordering::SeqCst);
        assert!(before >= amount, "a bound of {before} lowered by {amount}");
    }

    fn lower_chain(&self, amount: u64) {
        self.chain().for_each(|stat| stat.lower(amount));
    }

    /// Hands over what was found below this group, or could not be counted in a block.
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
        // Pairs with the swap in `take_pending`. SeqCst: who marks this group found does so later.
        sums.is_pending.store(true, Ordering::SeqCst);
    }

    /// Takes what was handed over: adds it to `deltas`, and returns what it was bounded by.
    fn take_pending(&self, deltas: &mut [i64; NR_ITEMS]) -> u64 {
        let Some(sums) = self.sums.get() else {
            return 0;
        };
        // Pairs with the store in `receive`. A read-modify-write: what it clears, it has seen.
        if !sums.is_pending.swap(false, Ordering::SeqCst) {
            return 0;
        }
        // Pairs with the addition in `receive`: the deltas of what is taken here are there.
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

    /// Makes every flush of a group above find this one. See `update.rs`.
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
