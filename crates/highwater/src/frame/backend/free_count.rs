//! The count of free frames, from which requests reserve (promise) theirs.
//!
//! Invariant: the count is at most the number of frames in free blocks, less those promised to
//! requests and not taken yet. A free adds to it after its blocks are free; a request subtracts
//! from it before it searches for blocks. So single frames promised to a request are there. Blocks
//! of a higher order may be split between the check and the promise: such a promise is *in doubt*
//! until it is settled, and a request that is promised too little meanwhile retries.

use super::pages_of;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::{Order, Pages};

/// Frames that may still be promised.
#[derive(Debug)]
pub struct FreeCount {
    /// Written by: requests (`AcqRel`, promise) and frees (Release, add). Read by: probes of any
    /// thread. Publishes: that the blocks counted are free; and that a promise is in doubt.
    frames: AtomicU64,
    /// Promises in doubt. Written by: requests, before a promise, and when it is settled (Release).
    /// Read by: requests that were promised too little (Acquire). Publishes: that unused frames are
    /// counted again.
    doubts: AtomicU64,
}

impl FreeCount {
    /// Returns a count of `frames` free frames.
    #[must_use]
    pub fn new(frames: Pages) -> Self {
        Self {
            frames: AtomicU64::new(frames.0),
            doubts: AtomicU64::new(0),
        }
    }

    /// Promises up to `blocks` blocks of `order`, leaving `floor` frames; returns how many blocks.
    pub fn promise(&self, blocks: usize, order: Order, floor: Pages) -> usize {
        // Acquire. Pairs with the release in the exchange below: a thread that sees the frames of a
        // promise in doubt gone sees the doubt.
        // Pairs with the release in the exchange below.
        let mut frames = self.frames.load(Ordering::Acquire);
        // Progress: an exchange fails only because another one, or a free, succeeded.
        loop {
            let above_floor = frames.saturating_sub(floor.0) >> order.get();
            let blocks = blocks.min(usize::try_from(above_floor).unwrap_or(usize::MAX));
            if blocks == 0 {
                return 0;
            }
            let left = frames - ((blocks as u64) << order.get());
            // Acquire: the promised blocks are seen to be free. Pairs with the release in
            // `add_frames`. Release: a doubt that was noted before. Pairs with the acquire at the
            // top.
            match self.frames.compare_exchange_weak(
                frames,
                left,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return blocks,
                Err(seen) => frames = seen,
            }
        }
    }

    /// Like [`promise`](Self::promise), for blocks that may be gone already. Must be
    /// [settled](Self::settle), whatever was promised.
    pub fn promise_in_doubt(&self, blocks: usize, order: Order, floor: Pages) -> usize {
        // Relaxed: published by the promise.
        self.doubts.fetch_add(1, Ordering::Relaxed);
        self.promise(blocks, order, floor)
    }

    /// Ends a promise in doubt, of which `blocks` were gone.
    pub fn settle(&self, blocks: usize, order: Order) {
        self.add(blocks, order);
        // Release: they were counted before. Pairs with the acquire in `is_in_doubt`.
        self.doubts.fetch_sub(1, Ordering::Release);
    }

    /// Whether more may be free than could be promised a moment ago.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        // Acquire: if not, frames given back are counted. Pairs with the release in `settle`.
        self.doubts.load(Ordering::Acquire) > 0
    }

    /// Counts `blocks` blocks of `order` that are free, or were promised and not needed.
    pub fn add(&self, blocks: usize, order: Order) {
        self.add_frames(pages_of(order, blocks));
    }

    /// Like [`add`](Self::add), for single frames.
    pub fn add_frames(&self, frames: Pages) {
        if frames > Pages::ZERO {
            // Release: the blocks were made free before. Pairs with the acquire in `promise`.
            self.frames.fetch_add(frames.0, Ordering::Release);
        }
    }

    /// Returns the number of frames that are free and not promised.
    #[must_use]
    pub fn get(&self) -> Pages {
        // Relaxed: a probe orders nothing.
        Pages(self.frames.load(Ordering::Relaxed))
    }
}
