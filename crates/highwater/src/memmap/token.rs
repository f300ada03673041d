//! Ownership tokens that can be stored as numbers.

use crate::sync::Sequence;
use crate::units::Order;

/// Identifies the memory of a token: a number of 29 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryId(u32);

/// Bits of an [`Origin`] that are the memory's number; the upper ones are the order.
const MEMORY_BITS: u32 = 32 - ORDER_BITS;

/// Bits of the order of a frame's token, and of a large frame's tag.
pub(crate) const ORDER_BITS: u32 = 3;

impl MemoryId {
    /// Of no memory: numbers begin at 0, and never reach this.
    pub(super) const NONE: Self = Self((1 << MEMORY_BITS) - 1);

    /// Returns a number that no other memory of this process has.
    pub(super) fn next() -> Self {
        static IDS: Sequence = Sequence::new();

        let id = u32::try_from(IDS.next()).ok().map(Self);
        let id = id.filter(|&id| id.0 < Self::NONE.0);
        id.expect("fewer than 2^29 memories in one process")
    }
}

/// The memory and the order of a frame's token, in one word: for a single frame, the memory's
/// number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin(u32);

impl Origin {
    pub(super) const fn of_single(memory: MemoryId) -> Self {
        Self(memory.0)
    }

    pub(super) fn new(memory: MemoryId, order: Order) -> Self {
        assert!(u32::from(order.get()) < 1 << ORDER_BITS, "a large frame");
        Self(u32::from(order.get()) << MEMORY_BITS | memory.0)
    }

    pub(super) const fn memory(self) -> MemoryId {
        MemoryId(self.0 & MemoryId::NONE.0)
    }

    #[inline(always)]
    pub(super) fn order(self) -> Order {
        order_of_bits(u64::from(self.0 >> MEMORY_BITS))
    }
}

/// Returns the order that the lowest [`ORDER_BITS`] bits of a word encode.
#[inline(always)]
pub(crate) const fn order_of_bits(bits: u64) -> Order {
    let bits = bits & ((1 << ORDER_BITS) - 1);
    match Order::new(bits as u8) {
        Some(order) => order,
        None => unreachable!(),
    }
}

/// Marks the tags of large frames, whose three bits from [`TAG_ORDER_SHIFT`] on are the order.
pub(crate) const TAG_LARGE: u64 = 1 << 63;
pub(crate) const TAG_ORDER_SHIFT: u32 = 41;

/// Returns the order of a frame that is published, or latched, under `tag`.
#[inline(always)]
pub(super) const fn order_of(tag: u64) -> Order {
    if tag & TAG_LARGE == 0 {
        return Order::ZERO;
    }
    order_of_bits(tag >> TAG_ORDER_SHIFT)
}

/// A token of ownership that a per-CPU stack stores as a number of 32 bits.
///
/// The number distinguishes the tokens of one stack; their common part, such as the memory that
/// frames are cut from, is their *home*, which the stack stores once.
pub(crate) trait Token: Send + Sized {
    /// The common part of the tokens of one stack.
    type Home: Copy + Send + Sync;

    /// Converts the token to its number, which is below `u32::MAX`.
    ///
    /// # Panics
    ///
    /// When it does not belong to `home`.
    fn into_raw(self, home: Self::Home) -> u32;

    /// Converts the number back to the token.
    ///
    /// # Safety
    ///
    /// The number came from [`into_raw`](Self::into_raw) with the same home, and has not been
    /// converted back since that call.
    unsafe fn from_raw(raw: u32, home: Self::Home) -> Self;
}
