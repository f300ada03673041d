//! The directory of a page table: where its leaves are.
//!
//! A leaf has a place, which is empty until the leaf is made. The places of the first 16,384
//! leaves, as many as a table of 16 TiB has, are there from the beginning, so that the way to one
//! is one load. Those of the others are made in blocks of as many, when a leaf of the block is. So
//! a table of 2^44 pages takes half a megabyte, and as much for each block that is used.

use crate::sync::OnceLock;
use crate::sync::atomic::AtomicU64;

/// Leaves of a table, as a power of two, from where on they are larger; and those of a block.
/// Chosen: half a megabyte of places.
pub(super) const LEAVES_SHIFT: u32 = 14;

/// Entries of some pages in a row.
///
/// Written by: threads that hold the page (install), any thread (clear, marks). Read by: any
/// thread. Publishes: nothing by being present, the frame's own word decides; by being cleared,
/// through the count that is given back afterwards, that no entry names the frame.
pub(super) enum Leaf {
    /// All of them are holes.
    Holes,
    /// They lie beside those of the other leaves.
    SideBySide,
    Own(Box<[AtomicU64]>),
}

/// The places of a table's leaves, in blocks.
pub(super) struct Leaves {
    /// Those of the first block.
    first: Box<[OnceLock<Leaf>]>,
    /// The other blocks, made when a leaf of any of them is.
    others: OnceLock<Box<[OnceLock<Block>]>>,
    len: usize,
}

/// Places of leaves in a row.
enum Block {
    /// All of their pages are holes.
    Holes,
    Own(Box<[OnceLock<Leaf>]>),
}

/// The leaf of a block of holes.
static HOLES: Leaf = Leaf::Holes;

impl Leaves {
    const BLOCK: usize = 1 << LEAVES_SHIFT;

    #[expect(clippy::cast_possible_truncation, reason = "leaves fit memory")]
    pub(super) fn new(count: u64) -> Self {
        let len = count as usize;
        Self {
            first: places(len.min(Self::BLOCK)),
            others: OnceLock::new(),
            len,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// A leaf, if it was made.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Leaf> {
        match self.first.get(index) {
            Some(place) => place.get(),
            None => self.get_of_others(index),
        }
    }

    /// A leaf behind the first block, if it was made.
    #[inline(never)]
    fn get_of_others(&self, index: usize) -> Option<&Leaf> {
        match self.made_block(index)? {
            Block::Holes => Some(&HOLES),
            Block::Own(places) => places.get(index % Self::BLOCK)?.get(),
        }
    }

    /// The place of a leaf; none in a block of holes.
    pub(super) fn place(&self, index: usize) -> Option<&OnceLock<Leaf>> {
        if let Some(place) = self.first.get(index) {
            return Some(place);
        }
        let first = index - index % Self::BLOCK;
        let block = || Block::Own(places((self.len - first).min(Self::BLOCK)));
        match self.other(index).get_or_init(block) {
            Block::Holes => None,
            Block::Own(places) => Some(&places[index - first]),
        }
    }

    /// Makes holes of all leaves of the block that a leaf behind the first block is in; `false` if
    /// one of them was made.
    pub(super) fn punch(&self, index: usize) -> bool {
        let is_other = index >= self.first.len();
        is_other && index.is_multiple_of(Self::BLOCK) && self.other(index).set(Block::Holes).is_ok()
    }

    /// Whether leaves of the block that a leaf is in can have been made.
    pub(super) fn is_block_made(&self, index: usize) -> bool {
        index < self.first.len() || self.made_block(index).is_some()
    }

    /// The first leaf behind the block that a leaf is in.
    pub(super) const fn behind_block(&self, index: usize) -> usize {
        let behind = (index / Self::BLOCK + 1) * Self::BLOCK;
        if behind < self.len { behind } else { self.len }
    }

    /// Places of leaves and of blocks that have memory.
    #[cfg(test)]
    pub(super) fn places_made(&self) -> usize {
        let others = self.others.get().map_or(&[][..], |others| others);
        let made = others.iter().filter_map(OnceLock::get);
        let own = made.map(|block| match block {
            Block::Holes => 0,
            Block::Own(places) => places.len(),
        });
        self.first.len() + others.len() + own.sum::<usize>()
    }

    fn made_block(&self, index: usize) -> Option<&Block> {
        let others = self.others.get()?;
        others.get((index / Self::BLOCK).checked_sub(1)?)?.get()
    }

    /// The block of a leaf behind the first block.
    fn other(&self, index: usize) -> &OnceLock<Block> {
        let count = self.len.div_ceil(Self::BLOCK) - 1;
        &self.others.get_or_init(|| places(count))[index / Self::BLOCK - 1]
    }
}

/// So many places, all empty.
fn places<T>(count: usize) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}
