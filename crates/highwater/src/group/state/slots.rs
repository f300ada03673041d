//! The table of slots: an id leads to its slot without a lock, by two loads.

use crate::percpu::{Gates, Published};
use crate::units::GroupId;

use super::slot::Slot;

/// Chunk `i` holds `64 << i` slots, so 26 chunks hold every id but the one that says "no parent".
#[cfg(not(loom))]
const FIRST_CHUNK: usize = 64;
/// Small, for the model checker explores each place when a tree is dropped.
#[cfg(loom)]
const FIRST_CHUNK: usize = 4;
const NR_CHUNKS: usize = 26;

type SlotChunk = Box<[Published<Slot>]>;

/// All slots, by id: the table grows, and never moves or shrinks.
#[derive(Debug)]
pub(in crate::group) struct Slots {
    chunks: [Published<SlotChunk>; NR_CHUNKS],
}

impl Slots {
    pub(in crate::group) fn new() -> Self {
        Self {
            chunks: std::array::from_fn(|_| Published::empty()),
        }
    }

    #[inline]
    pub(in crate::group) fn get(&self, id: GroupId) -> Option<&Slot> {
        let (chunk, offset) = place(id.index());
        self.chunks.get(chunk)?.get()?.get(offset)?.get()
    }

    /// Returns the slot of `id`, allocated on first use. `None` when the table is full.
    pub(in crate::group) fn make(&self, id: GroupId, gates: Gates) -> Option<&Slot> {
        let (chunk, offset) = place(id.index());
        let chunk_at = self.chunks.get(chunk)?;
        let empty = || (0..FIRST_CHUNK << chunk).map(|_| Published::empty());
        let slots = match chunk_at.get() {
            Some(slots) => slots,
            None => chunk_at.publish(Box::new(empty().collect())),
        };
        let slot = &slots[offset];
        Some(match slot.get() {
            Some(slot) => slot,
            None => slot.publish(Box::new(Slot::new(id, gates))),
        })
    }
}

/// Returns the chunk and offset of slot number `index`.
#[inline]
fn place(index: usize) -> (usize, usize) {
    let chunk = (index / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index - FIRST_CHUNK * ((1 << chunk) - 1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    // Goal: every id has a place of its own. Method: walk the ids in order; places must follow one
    // another, chunk by chunk.
    #[test]
    fn places_follow_one_another() {
        let (mut chunk, mut offset) = (0, 0);
        for index in 0..100_000 {
            assert_eq!(place(index), (chunk, offset));
            offset += 1;
            if offset == FIRST_CHUNK << chunk {
                (chunk, offset) = (chunk + 1, 0);
            }
        }
        assert!(place(u32::MAX as usize - 64).0 <= NR_CHUNKS);
    }
}
