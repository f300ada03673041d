//! The stock of frames in no per-CPU list: a back end with its watermarks.

use super::backend::{Backend, Wait};
use super::{AllocError, AllocFlags, PoolConfig, Pressure, Tunables, Watermarks};
use crate::memmap::FrameMemory;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{Arc, CachePadded, StatCell};
use crate::units::{CpuId, Order, Pages, Pfn};

/// A back end and its watermarks.
#[derive(Debug)]
pub(super) struct Stock {
    pub(super) memory: Arc<FrameMemory>,
    pub(super) backend: Box<dyn Backend>,
    /// `min`, `low` and `high`. Written by: setters of tunables. Read by: any thread. Publishes:
    /// nothing: each is read once for a decision.
    watermarks: [AtomicU64; 3],
    /// Frames of the memory that are out of the pool. Written by: inflating and deflating the
    /// balloon. Read by: any thread. Publishes: nothing: each read is one number for one decision.
    ballooned: AtomicU64,
    /// Highest number of frames that were outside the back end at once, also in transfer. On a line
    /// apart from the watermarks, which all threads read.
    peak_outside: CachePadded<StatCell>,
    /// Transfers, trims and exchanges under way, whose frames are in no list and not in the back
    /// end. Written by: them. Read by: requests that found no frame. Publishes: the frames that
    /// are free again. A request that reads 0 while one begins or ends looks for a frame again.
    nr_withholding: CachePadded<AtomicU32>,
}

/// A thread withholds free frames from requests while this lives.
#[derive(Debug)]
#[must_use]
pub(super) struct Withholding<'a>(&'a Stock);

impl Drop for Withholding<'_> {
    fn drop(&mut self) {
        // Release. Pairs with: `Stock::is_withholding`: a thread that reads 0 finds the frames.
        self.0.nr_withholding.fetch_sub(1, Ordering::Release);
    }
}

impl Stock {
    pub(super) fn new(memory: Arc<FrameMemory>, config: &PoolConfig) -> Self {
        let nr_frames = u32::try_from(memory.pages().0).expect("frame numbers are 32 bits wide");
        let stock = Self {
            backend: config.backend.build(nr_frames, config.nr_cpus),
            memory,
            watermarks: [0; 3].map(AtomicU64::new),
            ballooned: AtomicU64::new(0),
            peak_outside: CachePadded::new(StatCell::new()),
            nr_withholding: CachePadded::new(AtomicU32::new(0)),
        };
        stock.set_watermarks(&config.tunables);
        stock
    }

    /// Writes up to `out.len()` blocks of `order` to the front of `out`; returns how many. The
    /// reserve is taken from only if nothing else is left, and only for blocks that are
    /// `handed_out`: blocks that stay in a list may go to any request.
    pub(super) fn take(
        &self,
        near: CpuId,
        order: Order,
        flags: AllocFlags,
        handed_out: usize,
        out: &mut [Pfn],
    ) -> usize {
        let (min, wait) = (self.watermarks().min, flags.wait());
        let mut taken = self.backend.alloc_bulk(near, order, min, wait, out);
        if taken == 0 && flags.may_use_reserve() {
            let most = handed_out.min(out.len());
            let floor = Pages::ZERO;
            taken = self
                .backend
                .alloc_bulk(near, order, floor, wait, &mut out[..most]);
        }
        self.peak_outside
            .raise(self.managed().saturating_sub(self.nr_free()).0);
        taken
    }

    /// Marks that the thread is about to take free frames that it does not hand out.
    pub(super) fn withhold(&self) -> Withholding<'_> {
        // Relaxed: the fence orders it.
        self.nr_withholding.fetch_add(1, Ordering::Relaxed);
        // Release. Pairs with: the fence of `is_withholding`: a thread that finds the frames gone
        // sees the mark, also where it reads only how many a list holds.
        fence(Ordering::Release);
        Withholding(self)
    }

    /// Whether free frames are in transfer, and will be in a list or the back end again soon.
    pub(super) fn is_withholding(&self) -> bool {
        // Acquire. Pairs with: the fence of `withhold`.
        fence(Ordering::Acquire);
        // Acquire. Pairs with: the end of a `Withholding`.
        self.nr_withholding.load(Ordering::Acquire) > 0
    }

    /// Whether there are fresh frames.
    pub(super) fn has_fresh(&self) -> bool {
        self.backend.nr_fresh() > Pages::ZERO
    }

    /// Whether a request for that many blocks would take fresh ones, if there are any.
    pub(super) fn is_short_of_used(&self, order: Order, blocks: usize) -> bool {
        !self.backend.has_used(Pages((blocks as u64) << order.get()))
    }

    /// Returns the frames that are or were in use: all but the fresh ones.
    pub(super) fn nr_used(&self) -> Pages {
        self.memory.pages().saturating_sub(self.backend.nr_fresh())
    }

    /// Frees blocks.
    pub(super) fn give(&self, near: CpuId, order: Order, wait: Wait, blocks: &mut [Pfn]) {
        if !blocks.is_empty() {
            self.backend.free_bulk(near, order, wait, blocks);
        }
    }

    /// Returns the frames that are free, and not reserved by an allocation in progress or deferred.
    pub(super) fn nr_free(&self) -> Pages {
        self.backend.nr_free()
    }

    pub(super) fn managed(&self) -> Pages {
        self.memory.pages().saturating_sub(self.ballooned())
    }

    pub(super) fn ballooned(&self) -> Pages {
        // Relaxed: see the field.
        Pages(self.ballooned.load(Ordering::Relaxed))
    }

    /// Counts frames that are about to leave the pool.
    pub(super) fn manage_fewer(&self, pages: Pages) {
        // Relaxed: see the field.
        self.ballooned.fetch_add(pages.0, Ordering::Relaxed);
    }

    /// Counts frames that are back in the pool.
    pub(super) fn manage_more(&self, pages: Pages) {
        // Relaxed: see the field.
        self.ballooned.fetch_sub(pages.0, Ordering::Relaxed);
    }

    pub(super) fn peak(&self) -> Pages {
        Pages(self.peak_outside.get())
    }

    pub(super) fn watermarks(&self) -> Watermarks {
        // Relaxed: each number stands alone.
        let [min, low, high] =
            [0, 1, 2].map(|at| Pages(self.watermarks[at].load(Ordering::Relaxed)));
        Watermarks { min, low, high }
    }

    pub(super) fn set_watermarks(&self, tunables: &Tunables) {
        let Watermarks { min, low, high } = Watermarks::for_managed(self.managed(), tunables);
        for (word, value) in self.watermarks.iter().zip([min, low, high]) {
            // Relaxed: as above.
            word.store(value.0, Ordering::Relaxed);
        }
    }

    pub(super) fn pressure(&self) -> Pressure {
        if self.nr_free() <= self.watermarks().low {
            Pressure::BelowLow
        } else {
            Pressure::None
        }
    }

    /// Returns why nothing was taken.
    pub(super) fn refusal(&self, order: Order, flags: AllocFlags) -> AllocError {
        let (free, managed, min) = (self.nr_free(), self.managed(), self.watermarks().min);
        let floor = match flags.may_use_reserve() {
            false => min,
            true => Pages::ZERO,
        };
        if free < floor + order.pages() {
            AllocError::Exhausted { free, min, managed }
        } else if flags.may_block() {
            AllocError::Fragmented {
                pages: order.pages(),
                free,
            }
        } else {
            AllocError::Contended { free }
        }
    }
}
