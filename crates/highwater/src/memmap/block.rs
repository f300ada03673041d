//! Ownership of aligned blocks of frames, and of many frames at once.

use std::fmt;

use super::frames::{Frame, FrameMemory};
use super::token::MemoryId;
use crate::sync::atomic::{Ordering, fence};
use crate::units::{Order, Pfn};

/// The exclusive right to the bytes of 2^order neighbouring frames. Must be surrendered or split,
/// never dropped.
#[must_use = "a block that is dropped is lost"]
pub struct Block {
    first: Pfn,
    order: Order,
    memory: MemoryId,
}

impl FrameMemory {
    /// Claims the free frames of a block, owned by one token.
    ///
    /// # Cost
    ///
    /// One atomic instruction for each 64 frames.
    ///
    /// # Panics
    ///
    /// When `first` is not a multiple of the block's size, the block reaches beyond the memory, or
    /// one of its frames is not free: its allocator handed it out twice. No frame is claimed then.
    pub fn claim_block(&self, first: Pfn, order: Order) -> Block {
        let size = size_of_block(order);
        let end = u64::from(first.0) + u64::from(size);
        assert!(
            first.0.is_multiple_of(size) && end <= self.pages().0,
            "no block of order {} begins at {first}",
            order.get()
        );
        self.free.take_block(first, order);
        Block {
            first,
            order,
            memory: self.id,
        }
    }

    /// Frees the frames of a block, for their allocator to hand out again.
    ///
    /// # Panics
    ///
    /// When the block belongs to another memory.
    pub fn surrender_block(&self, block: Block) -> (Pfn, Order) {
        self.check_block(&block);
        let (first, order) = (block.first, block.order);
        std::mem::forget(block);
        self.free.put_block(first, order);
        (first, order)
    }

    /// Returns the bytes of a block.
    ///
    /// # Panics
    ///
    /// When the block belongs to another memory.
    #[must_use]
    pub fn block_bytes<'a>(&'a self, block: &'a Block) -> &'a [u8] {
        self.check_block(block);
        let bytes = self.reservation.frame_ptr(block.first);
        // SAFETY: the block lies in the reservation, which `self` keeps mapped; its only token is
        // borrowed for as long as the bytes are, so no thread can write them.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr(), block.len()) }
    }

    /// Returns the bytes of a block for writing.
    ///
    /// # Panics
    ///
    /// When the block belongs to another memory.
    #[must_use]
    pub fn block_bytes_mut<'a>(&'a self, block: &'a mut Block) -> &'a mut [u8] {
        self.check_block(block);
        let bytes = self.reservation.frame_ptr(block.first);
        // Release. Pairs with: the fence of an optimistic read, as in `bytes_mut`.
        fence(Ordering::Release);
        // SAFETY: the block lies in the reservation, which `self` keeps mapped; its only token is
        // borrowed exclusively for as long as the bytes are.
        unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr(), block.len()) }
    }

    /// Returns whether a frame is free at this moment.
    #[must_use]
    pub fn is_free(&self, pfn: Pfn) -> bool {
        self.free.has(pfn)
    }

    /// As [`claim`](Self::claim) for each of `pfns`; appends the frames to `frames`, in order.
    ///
    /// # Cost
    ///
    /// One atomic instruction for each run of frames that share a multiple of 64.
    ///
    /// # Panics
    ///
    /// As [`claim`](Self::claim).
    pub fn claim_all(&self, pfns: &[Pfn], frames: &mut Vec<Frame>) {
        frames.reserve(pfns.len());
        self.free.take_all(pfns, |taken| {
            // SAFETY: the right to each was in its bit, and has just been taken from there.
            let frame = |&pfn| unsafe { Frame::owned(pfn, self.id) };
            frames.extend(taken.iter().map(frame));
        });
    }

    /// As [`surrender`](Self::surrender) for each of `frames`, which is empty afterwards; appends
    /// the numbers to `pfns`, in order. If it panics, the frames are lost.
    ///
    /// # Cost
    ///
    /// As [`claim_all`](Self::claim_all).
    ///
    /// # Panics
    ///
    /// As [`surrender`](Self::surrender).
    pub fn surrender_all(&self, frames: &mut Vec<Frame>, pfns: &mut Vec<Pfn>) {
        let before = pfns.len();
        pfns.extend(frames.drain(..).map(|frame| {
            assert_eq!(frame.order(), Order::ZERO, "{frame:?} is freed as a block");
            self.redeem(frame)
        }));
        self.free.put_all(&pfns[before..]);
    }

    pub(super) fn check_block(&self, block: &Block) {
        assert_eq!(block.memory, self.id, "{block:?} is of another memory");
    }
}

impl Block {
    /// Returns the number of the block's first frame.
    #[must_use]
    pub const fn pfn(&self) -> Pfn {
        self.first
    }

    /// Returns the block's order.
    #[must_use]
    pub const fn order(&self) -> Order {
        self.order
    }

    /// Creates the token of a block.
    ///
    /// # Safety
    ///
    /// The frames of `memory` are owned, and there is no other token of any.
    pub(super) const unsafe fn owned(first: Pfn, memory: MemoryId, order: Order) -> Self {
        Self {
            first,
            order,
            memory,
        }
    }

    /// Returns the block as one large frame.
    ///
    /// # Panics
    ///
    /// When its order is above 7.
    pub fn into_frame(self) -> Frame {
        // SAFETY: the block is the only right to these frames, and ends here.
        let frame = unsafe { Frame::owned_of_order(self.first, self.memory, self.order) };
        std::mem::forget(self);
        frame
    }

    /// Splits the block into its frames, and appends them to `frames`, lowest first.
    pub fn split(self, frames: &mut Vec<Frame>) {
        let (first, memory, size) = (self.first.0, self.memory, size_of_block(self.order));
        // Everything that can fail comes before the block's end.
        frames.reserve(size as usize);
        std::mem::forget(self);
        // SAFETY: the block was the only right to these frames, and has just ended.
        let frame = |pfn| unsafe { Frame::owned(Pfn(pfn), memory) };
        frames.extend((first..first + size).map(frame));
    }

    /// Splits the block into its lower and its upper half.
    ///
    /// # Panics
    ///
    /// When it is a single frame.
    pub fn halve(self) -> (Self, Self) {
        let order = self.order.get().checked_sub(1).and_then(Order::new);
        let order = order.expect("a single frame has no halves");
        let half = |first| Self {
            first,
            order,
            memory: self.memory,
        };
        let halves = (
            half(self.first),
            half(Pfn(self.first.0 + size_of_block(order))),
        );
        std::mem::forget(self);
        halves
    }

    fn len(&self) -> usize {
        self.order.size()
    }
}

impl Frame {
    /// Returns the frame as a block.
    pub(crate) fn into_block(self) -> Block {
        let (pfn, memory, order) = (self.pfn(), self.memory(), self.order());
        std::mem::forget(self);
        // SAFETY: the frame was the only right to these frames, and has just ended.
        unsafe { Block::owned(pfn, memory, order) }
    }
}

/// Returns the number of frames in a block.
fn size_of_block(order: Order) -> u32 {
    1 << order.get()
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({}, order {})", self.first, self.order.get())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // As for a frame: nothing unsound happens, but its frames are leaked.
        debug_assert!(
            std::thread::panicking(),
            "{self:?} dropped: surrender or split it"
        );
    }
}
