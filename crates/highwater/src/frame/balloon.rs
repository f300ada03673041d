//! The balloon, which shrinks and grows a pool while it is used; and trimming, which gives the
//! memory of free frames back to the system.
//!
//! To shrink, a pool takes free frames out: it owns them as blocks, as large as there are, and
//! gives their memory back to the system. They are neither free nor allocated, and not managed:
//! watermarks and lists are recomputed for the rest. Growing puts them back into the zones. Frames
//! that are in use stay where they are; the manager must have them freed first.
//!
//! Invariant: `frames of the memory = managed + ballooned`. While frames move, the managed count is
//! the lower one, so that no sum exceeds the frames of the memory.
//!
//! Frames that leave the pool one by one lie anywhere, so that few blocks may be left for larger
//! pages. When such a block is sought, the frames of it that are out of the pool are exchanged for
//! free ones elsewhere ([`FramePool::exchange`]).
//!
//! Trimming changes no count: frames are taken by address, 4 MiB at a time, given back to the
//! system, and freed. A request that finds no frame meanwhile waits for the trim
//! ([`FramePool::is_withholding`]), which may have been preempted while it withholds all of a small
//! pool.
//!
//! Frames given back by either count as fresh: frames that are still resident are allocated before
//! them.
//!
//! Source: `virtio_balloon` of Linux, by which a host takes memory from a guest. Deviation: the
//! pool inflates it for itself, in the largest blocks there are.

use std::collections::BTreeSet;
use std::ops::Range;

use super::backend::Wait;
use super::{FramePool, Watermarks};
use crate::memmap::{Block, FrameMemory, HUGE_FRAMES, HugePages};
use crate::sync::{LockClass, Mutex, Rank};
use crate::units::{CpuId, Order, Pages, Pfn};

static BALLOON_LOCK: LockClass = LockClass::new("balloon", Rank::Leaf);
static TURNS_LOCK: LockClass = LockClass::new("balloon turns", Rank::Balloon);

/// Blocks taken at once. Chosen: of the largest, 256 MiB.
const BATCH: usize = 64;
/// Most areas for which huge pages are turned off one by one. Chosen: each may divide a mapping in
/// three, and the system allows a process 65,530.
const MIXED_MAX: usize = 512;
/// Frames that a trim withholds at once: the largest block.
const TRIMMED_AT_ONCE: u32 = 1 << Order::MAX.get();

/// Blocks that are out of the pool.
#[derive(Debug)]
pub(super) struct Balloon {
    blocks: Mutex<Vec<Block>>,
    /// Held by the thread that moves frames to reach a goal.
    turns: Mutex<MixedAreas>,
}

/// Areas of 2 MiB where huge pages are unwanted, because a part was out of the pool: the system
/// would commit it again without an access (`khugepaged`). Unwanted everywhere if they are more
/// than [`MIXED_MAX`].
#[derive(Debug, Default)]
struct MixedAreas(BTreeSet<u32>);

impl MixedAreas {
    /// Brings the system's advice up to date with the areas that are mixed now.
    fn update(&mut self, mixed: BTreeSet<u32>, memory: &FrameMemory) {
        let (all, before) = (0..u32::MAX, self.0.len());
        if mixed.is_empty() {
            if before > 0 {
                memory.set_huge(all, HugePages::Wanted);
            }
            return self.0.clear();
        }
        let new: Vec<u32> = mixed.difference(&self.0).copied().collect();
        self.0.extend(&new);
        if self.0.len() <= MIXED_MAX {
            for area in new {
                memory.set_huge(area..area + 1, HugePages::Unwanted);
            }
        } else if before <= MIXED_MAX {
            memory.set_huge(all, HugePages::Unwanted);
        }
    }
}

/// The reserve that an inflation leaves free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// The reserve that ordinary requests leave, of the pool after the inflation.
    Reserve,
    /// Nothing.
    Nothing,
}

impl Balloon {
    pub(super) fn new() -> Self {
        Self {
            blocks: Mutex::new(&BALLOON_LOCK, Vec::new()),
            turns: Mutex::new(&TURNS_LOCK, MixedAreas::default()),
        }
    }

    fn push(&self, block: Block) {
        self.blocks.lock().push(block);
    }

    fn pop(&self) -> Option<Block> {
        self.blocks.lock().pop()
    }

    /// Returns the frames that are out in blocks below an order, ascending.
    fn frames_below(&self, order: Order) -> Vec<Pfn> {
        let blocks = self.blocks.lock();
        let small = blocks.iter().filter(|block| block.order() < order);
        let frames = small.flat_map(|block| {
            let first = block.pfn().0;
            (first..first + (1 << block.order().get())).map(Pfn)
        });
        let mut frames: Vec<Pfn> = frames.collect();
        frames.sort_unstable();
        frames
    }

    /// Takes out the blocks that lie in a range of frames.
    fn pop_within(&self, range: &Range<u32>) -> Vec<Block> {
        let mut blocks = self.blocks.lock();
        let lies_within = |block: &mut Block| {
            range.contains(&block.pfn().0) && block.order().pages().0 <= range.len() as u64
        };
        blocks.extract_if(.., lies_within).collect()
    }

    /// Returns the areas of 2 MiB of which a part is out of the pool.
    fn mixed(&self) -> BTreeSet<u32> {
        let blocks = self.blocks.lock();
        let parts = blocks
            .iter()
            .filter(|block| block.order().pages().0 < u64::from(HUGE_FRAMES));
        parts.map(|block| block.pfn().0 / HUGE_FRAMES).collect()
    }

    fn pages(&self) -> Pages {
        let blocks = self.blocks.lock();
        blocks.iter().map(|block| block.order().pages()).sum()
    }
}

impl FramePool {
    /// Brings the number of managed frames to that of `goal`, as far as free frames allow; returns
    /// how many there are above it still. Threads that do so together take turns, in which each
    /// asks for the goal, so that none moves frames for a number that another has changed.
    ///
    /// # Cost
    ///
    /// As [`inflate`](Self::inflate) and [`deflate`](Self::deflate).
    pub(crate) fn manage(&self, goal: impl FnOnce() -> Pages, leaving: Leaving) -> Pages {
        let mut mixed = self.balloon.turns.lock();
        let (goal, managed) = (goal(), self.managed());
        let back = self.deflate(goal.saturating_sub(managed));
        let over = managed.saturating_sub(goal);
        let taken = self.inflate(over, leaving);
        if back + taken > Pages::ZERO {
            mixed.update(self.balloon.mixed(), &self.stock.memory);
        }
        over - taken
    }

    /// Takes up to `pages` free frames out of the pool and gives their memory back to the system;
    /// returns how many. If fewer, no more were free.
    ///
    /// # Cost
    ///
    /// A visit to the zones for each 64 blocks and two system calls for each block; 12 bytes for
    /// each block while it is out of the pool. The lock of each CPU's list, which is drained first.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn inflate(&self, pages: Pages, leaving: Leaving) -> Pages {
        let wanted = pages.min(self.managed());
        if wanted == Pages::ZERO {
            return Pages::ZERO;
        }
        self.drain_all();
        let left = self.managed() - wanted;
        let floor = match leaving {
            Leaving::Reserve => Watermarks::for_managed(left, &self.tunables()).min,
            Leaving::Nothing => Pages::ZERO,
        };
        self.stock.manage_fewer(wanted);
        let taken = self.take_out(wanted, floor);
        self.stock.manage_more(wanted - taken);
        // Recomputes watermarks and lists.
        self.turn(|_| ());
        taken
    }

    /// Takes frames into the balloon; returns how many.
    fn take_out(&self, wanted: Pages, floor: Pages) -> Pages {
        let (memory, backend) = (&self.stock.memory, &self.stock.backend);
        let mut heads = [Pfn(0); BATCH];
        let mut left = wanted.0;
        for order in Order::all().rev() {
            // Ends: each round takes a batch, or is the last of its order.
            loop {
                let blocks = usize::try_from(left >> order.get()).map_or(BATCH, |n| n.min(BATCH));
                let out = &mut heads[..blocks];
                let taken = backend.alloc_bulk(NEAR, order, floor, Wait::Allowed, out);
                for &first in &out[..taken] {
                    let mut block = memory.claim_block(first, order);
                    memory.decommit_block(&mut block);
                    self.balloon.push(block);
                }
                left -= (taken as u64) << order.get();
                if taken < blocks || taken == 0 {
                    break;
                }
            }
        }
        wanted - Pages(left)
    }

    /// Puts up to `pages` frames back into the pool; returns how many. If fewer, no more were out
    /// of it.
    ///
    /// # Cost
    ///
    /// A visit to the zones for each block, and the lock of each CPU's list.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn deflate(&self, pages: Pages) -> Pages {
        if pages == Pages::ZERO {
            return Pages::ZERO;
        }
        let mut left = pages.0;
        while left > 0
            && let Some(mut block) = self.balloon.pop()
        {
            while block.order().pages().0 > left {
                let (low, high) = block.halve();
                self.balloon.push(low);
                block = high;
            }
            left -= block.order().pages().0;
            let (first, order) = self.stock.memory.surrender_block(block);
            self.stock.backend.free_fresh(NEAR, order, &mut [first]);
        }
        let back = pages - Pages(left);
        self.stock.manage_more(back);
        self.turn(|_| ());
        back
    }

    /// Returns the frames that are out of the pool in blocks below an order, ascending.
    ///
    /// # Cost
    ///
    /// A look at each block that is out of the pool.
    pub(crate) fn ballooned_below(&self, order: Order) -> Vec<Pfn> {
        self.balloon.frames_below(order)
    }

    /// Exchanges the frames of an aligned block that are out of the pool, in smaller blocks, for as
    /// many free ones elsewhere; returns false if there are not so many. The pool never has more
    /// frames than before.
    ///
    /// # Cost
    ///
    /// As [`inflate`](Self::inflate), and a look at each block that is out of the pool.
    pub(crate) fn exchange(&self, block: Range<u32>) -> bool {
        let (memory, backend) = (&self.stock.memory, &self.stock.backend);
        let mut mixed = self.balloon.turns.lock();
        let _withholding = self.stock.withhold();
        // Its free frames are withheld meanwhile, so that others go.
        let mut withheld = Vec::new();
        self.drain_all();
        backend.alloc_within(block.clone(), Pages::ZERO, &mut withheld);
        let blocks = self.balloon.pop_within(&block);
        let wanted: Pages = blocks.iter().map(|block| block.order().pages()).sum();
        let taken = self.inflate(wanted, Leaving::Nothing);
        let is_done = taken == wanted;
        if is_done {
            for block in blocks {
                let (first, order) = memory.surrender_block(block);
                backend.free_fresh(NEAR, order, &mut [first]);
            }
            self.stock.manage_more(wanted);
            self.turn(|_| ());
            mixed.update(self.balloon.mixed(), memory);
        } else {
            self.deflate(taken);
            blocks
                .into_iter()
                .for_each(|block| self.balloon.push(block));
        }
        backend.free_bulk(NEAR, Order::ZERO, Wait::Allowed, &mut withheld);
        is_done
    }

    /// Returns the number of frames that are out of the pool.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn ballooned(&self) -> Pages {
        self.stock.ballooned()
    }

    /// Gives the memory of free frames back to the system; they stay free, and are committed again
    /// at their next use. Returns how many were resident.
    ///
    /// # Cost
    ///
    /// Withholds 4 MiB of frames at a time, above the reserve, and makes up to two system calls for
    /// each run of free ones. Per-CPU lists are drained first; frames freed to them meanwhile are
    /// not trimmed.
    ///
    /// # Panics
    ///
    /// Never: frame numbers are 32 bits wide.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn trim(&self) -> Pages {
        let _withholding = self.stock.withhold();
        self.drain_all();
        let (memory, backend) = (&self.stock.memory, &self.stock.backend);
        let nr_frames = u32::try_from(memory.pages().0).expect("frame numbers are 32 bits wide");
        let (mut pfns, mut frames) = (Vec::new(), Vec::new());
        let mut given = Pages::ZERO;
        for first in (0..nr_frames).step_by(TRIMMED_AT_ONCE as usize) {
            let range = first..nr_frames.min(first.saturating_add(TRIMMED_AT_ONCE));
            backend.alloc_within(range, self.watermarks().min, &mut pfns);
            memory.claim_all(&pfns, &mut frames);
            given += memory.decommit_all(&mut frames);
            pfns.clear();
            memory.surrender_all(&mut frames, &mut pfns);
            backend.free_fresh(NEAR, Order::ZERO, &mut pfns);
            pfns.clear();
        }
        given
    }

    /// Frees the frames of the balloon when the pool is dropped.
    pub(super) fn empty_balloon(&self) {
        while let Some(block) = self.balloon.pop() {
            self.stock.memory.surrender_block(block);
        }
    }

    pub(super) fn check_balloon(&self) {
        assert_eq!(
            self.balloon.pages(),
            self.ballooned(),
            "frames out of the pool"
        );
        assert_eq!(self.managed() + self.ballooned(), self.stock.memory.pages());
    }
}

/// Frames are taken from any zone.
const NEAR: CpuId = CpuId(0);
