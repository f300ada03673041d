//! Scratch buffers for frames in transfer between a list (pcp) and the zones.

use std::cell::Cell;

use crate::memmap::{Block, Frame};
use crate::units::Pfn;

/// Tokens in transfer, and room for their numbers. The thread keeps the memory, so that a transfer
/// allocates none.
#[derive(Default)]
pub(super) struct TransferScratch {
    pub(super) frames: Vec<Frame>,
    pub(super) blocks: Vec<Block>,
    pub(super) pfns: Vec<Pfn>,
}

/// Capacity that a thread keeps. Chosen: the largest transfer, 63 << 6.
const KEPT_MAX: usize = 4096;

thread_local! {
    static KEPT: Cell<Option<Box<TransferScratch>>> = const { Cell::new(None) };
}

impl TransferScratch {
    /// Returns the buffers that the thread has kept, or new ones.
    pub(super) fn take() -> Box<Self> {
        // A thread that ends has none any more.
        KEPT.try_with(Cell::take).ok().flatten().unwrap_or_default()
    }

    /// Keeps the memory for the next transfer.
    pub(super) fn keep(mut self: Box<Self>) {
        debug_assert!(
            self.frames.is_empty() && self.blocks.is_empty(),
            "rights are lost"
        );
        self.pfns.clear();
        if self.pfns.capacity() <= KEPT_MAX && self.frames.capacity() <= KEPT_MAX {
            // A thread that ends keeps nothing.
            let _ = KEPT.try_with(|kept| kept.set(Some(self)));
        }
    }
}
