//! How many frames are free, and the promise of some of them.
//!
//! Invariant: the count is at most the number of frames in free blocks, less those that requests
//! were promised and have not taken yet. A free adds to it after its blocks are free; a request
//! takes from it before it looks for blocks. What a request was promised is therefore there.

use super::pages_of;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Order, Pages};

/// Frames that may still be promised.
#[derive(Debug)]
pub(super) struct FreeCount {
    /// Written by: requests (Acquire, promise) and frees (Release, add). Read by: probes of any
    /// thread. Publishes: that the blocks counted are free.
    frames: AtomicU64,
}

impl FreeCount {
    pub(super) fn new(frames: Pages) -> Self {
        Self {
            frames: AtomicU64::new(frames.0),
        }
    }

    /// Promises up to `blocks` blocks of `order` and leaves `floor` frames: how many blocks.
    pub(super) fn promise(&self, blocks: usize, order: Order, floor: Pages) -> usize {
        // Relaxed: the exchange below orders what it takes.
        let mut frames = self.frames.load(Ordering::Relaxed);
        // Progress: an exchange fails only because another one, or a free, succeeded.
        loop {
            let above_floor = frames.saturating_sub(floor.0) >> order.get();
            let blocks = blocks.min(usize::try_from(above_floor).unwrap_or(usize::MAX));
            if blocks == 0 {
                return 0;
            }
            let left = frames - ((blocks as u64) << order.get());
            // Acquire: the promised blocks are seen to be free. Pairs with the release in `add`.
            match self.frames.compare_exchange_weak(
                frames,
                left,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return blocks,
                Err(seen) => frames = seen,
            }
        }
    }

    /// Counts `blocks` blocks of `order` that are free, or were promised and are not needed.
    pub(super) fn add(&self, blocks: usize, order: Order) {
        self.add_frames(pages_of(order, blocks));
    }

    pub(super) fn add_frames(&self, frames: Pages) {
        if frames > Pages::ZERO {
            // Release: the blocks were made free before. Pairs with the acquire in `promise`.
            self.frames.fetch_add(frames.0, Ordering::Release);
        }
    }

    pub(super) fn get(&self) -> Pages {
        // Relaxed: a probe orders nothing.
        Pages(self.frames.load(Ordering::Relaxed))
    }
}
