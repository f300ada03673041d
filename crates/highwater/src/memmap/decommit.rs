//! Decommitting memory (`MADV_DONTNEED`) of owned frames: they lose their contents, and are
//! committed again, as zeros, on the next access.
//!
//! Only the owner of a frame may do that, as it has the only right to the bytes. So neither
//! borrowed nor free frames change.

use std::ops::Range;

use super::block::Block;
use super::frames::{Frame, FrameMemory};
use super::reservation::{HugePages, Reservation};
use crate::units::{Order, Pages, Pfn};

/// Maximum number of frames for one system call.
const AT_ONCE: usize = 1 << Order::MAX.get();

impl FrameMemory {
    /// Returns the memory of owned frames to the system; they read as zeros afterwards. Returns how
    /// many of those that the system took were resident.
    ///
    /// # Cost
    ///
    /// Two system calls for each run of neighbours, of up to 1,024.
    ///
    /// # Panics
    ///
    /// When a frame belongs to another memory. Those before it may have been decommitted.
    pub fn decommit_all(&self, frames: &mut [Frame]) -> Pages {
        let mut given = Pages::ZERO;
        let mut rest = frames;
        while let Some(first) = rest.first() {
            let first = first.pfn();
            let follows = |at: usize, frame: &Frame| frame.pfn().index() == first.index() + at;
            let neighbours = rest.iter().enumerate().take(AT_ONCE);
            let count = neighbours
                .take_while(|&(at, frame)| follows(at, frame))
                .count();
            let (run, others) = rest.split_at_mut(count);
            run.iter().for_each(|frame| self.check(frame));
            // SAFETY: the only tokens of these frames are borrowed exclusively.
            given += unsafe { release_resident(&self.reservation, first, count) };
            rest = others;
        }
        given
    }

    /// Tells the system whether to use huge pages in some areas of
    /// [`HUGE_FRAMES`](super::HUGE_FRAMES), by their numbers. Best effort; changes no contents.
    pub(crate) fn set_huge(&self, areas: Range<u32>, huge: HugePages) {
        self.reservation.set_huge(areas, huge);
    }

    /// As [`decommit_all`](Self::decommit_all), for the frames of a block.
    ///
    /// # Panics
    ///
    /// When the block belongs to another memory.
    pub fn decommit_block(&self, block: &mut Block) -> Pages {
        self.check_block(block);
        let count = 1 << block.order().get();
        // SAFETY: the block's only token is borrowed exclusively.
        unsafe { release_resident(&self.reservation, block.pfn(), count) }
    }
}

/// Decommits `count` neighbouring frames, at most [`AT_ONCE`]; returns how many were resident, or
/// none if they still are.
///
/// # Safety
///
/// The caller has exclusive use of these frames for the length of the call.
unsafe fn release_resident(reservation: &Reservation, first: Pfn, count: usize) -> Pages {
    let count = Pages(count as u64);
    let resident = reservation.nr_resident(first, count);
    // Also if none is resident: pages that the system has swapped out are not resident, and would
    // come back.
    // SAFETY: as the caller says.
    match unsafe { reservation.release(first, count) } {
        true => resident,
        false => Pages::ZERO,
    }
}
