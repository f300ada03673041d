//! Frames on their way between a list and the zones.

use std::cell::Cell;

use crate::memmap::{Block, Frame};
use crate::units::Pfn;

/// Rights on their way, and room for their numbers. The memory stays with the thread, so that a
/// transfer allocates none.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) frames: Vec<Frame>,
    pub(super) blocks: Vec<Block>,
    pub(super) pfns: Vec<Pfn>,
}

/// Numbers that a thread keeps room for. Chosen: the largest transfer, 63 << 6.
const KEPT_MAX: usize = 4096;

thread_local! {
    static KEPT: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

impl Scratch {
    /// What the thread has kept, or new.
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
            // Nothing is kept by a thread that ends.
            let _ = KEPT.try_with(|kept| kept.set(Some(self)));
        }
    }
}
