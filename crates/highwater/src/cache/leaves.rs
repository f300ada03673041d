//! The directory of a page table: the places of its leaves.
//!
//! A leaf has a place, which is empty until the leaf is allocated. The places of the first 16,384
//! leaves, enough for 16 TiB, exist from the beginning, so that one load reaches a leaf. Later
//! places are allocated in blocks of the same number, with the first leaf of the block. So a table
//! of 2^44 pages takes half a megabyte, plus as much for each block in use.

use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Leaves of a table, as a power of two, above which leaves become larger; also the leaves of a
/// block. Chosen: half a megabyte of places.
pub(super) const LEAVES_SHIFT: u32 = 14;

/// Entries of consecutive pages.
///
/// Written by: threads that hold the page (install), any thread (clear, marks). Read by: any
/// thread. Publishes: nothing when present, as the frame's own word decides; when cleared, through
/// the count that is lowered afterwards, that no entry names the frame.
pub(super) enum Leaf {
    /// All entries are holes.
    Holes,
    /// The entries are in the table's flat array.
    SideBySide,
    Own(OwnLeaf),
}

/// A leaf with memory of its own, of which the system commits what is written.
pub(super) struct OwnLeaf {
    pub(super) entries: Box<[AtomicU64]>,
    /// Whether absent entries are holes. Written by: threads that unmap all pages of the leaf; only
    /// ever set. Read by: any thread that finds an absent entry, or has reserved one. Publishes:
    /// nothing.
    is_punched: AtomicBool,
}

impl OwnLeaf {
    pub(super) fn new(entries: Box<[AtomicU64]>) -> Self {
        let is_punched = AtomicBool::new(false);
        Self {
            entries,
            is_punched,
        }
    }

    /// Makes holes of all pages whose entries are absent; the caller looks at the others
    /// afterwards.
    pub(super) fn punch(&self) {
        // Relaxed: the fence orders it.
        self.is_punched.store(true, Ordering::Relaxed);
        // Pairs with: the fence of `is_punched_now`. Either a thread that has reserved an entry
        // finds the leaf punched, or the caller finds the entry reserved or what became of it.
        fence(Ordering::SeqCst);
    }

    /// Returns whether absent entries are holes.
    pub(super) fn is_punched(&self) -> bool {
        // Relaxed: as an entry that is not a hole yet.
        self.is_punched.load(Ordering::Relaxed)
    }

    /// As [`is_punched`](Self::is_punched), for a thread that has reserved an entry.
    pub(super) fn is_punched_now(&self) -> bool {
        // Pairs with: the fence of `punch`.
        fence(Ordering::SeqCst);
        self.is_punched()
    }
}

/// The places of a table's leaves, in blocks.
pub(super) struct Leaves {
    /// The first block.
    first: Box<[OnceLock<Leaf>]>,
    /// The other blocks, each allocated with its first leaf.
    others: OnceLock<Box<[OnceLock<LeafBlock>]>>,
    len: usize,
}

/// Places of consecutive leaves.
enum LeafBlock {
    /// All pages are holes.
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

    /// Returns a leaf, if it was allocated.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Leaf> {
        match self.first.get(index) {
            Some(place) => place.get(),
            None => self.get_of_others(index),
        }
    }

    /// Returns a leaf behind the first block, if it was allocated.
    #[inline(never)]
    fn get_of_others(&self, index: usize) -> Option<&Leaf> {
        match self.made_block(index)? {
            LeafBlock::Holes => Some(&HOLES),
            LeafBlock::Own(places) => places.get(index % Self::BLOCK)?.get(),
        }
    }

    /// Returns the place of a leaf, or `None` in a block of holes.
    pub(super) fn place(&self, index: usize) -> Option<&OnceLock<Leaf>> {
        if let Some(place) = self.first.get(index) {
            return Some(place);
        }
        let first = index - index % Self::BLOCK;
        let block = || LeafBlock::Own(places((self.len - first).min(Self::BLOCK)));
        match self.other(index).get_or_init(block) {
            LeafBlock::Holes => None,
            LeafBlock::Own(places) => Some(&places[index - first]),
        }
    }

    /// Turns the block of a leaf behind the first block into holes; returns `false` if a leaf of
    /// the block was allocated.
    pub(super) fn punch(&self, index: usize) -> bool {
        let is_other = index >= self.first.len();
        is_other
            && index.is_multiple_of(Self::BLOCK)
            && self.other(index).set(LeafBlock::Holes).is_ok()
    }

    /// Returns whether the block of a leaf was allocated.
    pub(super) fn is_block_made(&self, index: usize) -> bool {
        index < self.first.len() || self.made_block(index).is_some()
    }

    /// Returns the first leaf behind the block of a leaf.
    pub(super) const fn behind_block(&self, index: usize) -> usize {
        let behind = (index / Self::BLOCK + 1) * Self::BLOCK;
        if behind < self.len { behind } else { self.len }
    }

    /// Returns the number of allocated places, of leaves and of blocks.
    #[cfg(test)]
    pub(super) fn places_made(&self) -> usize {
        let others = self.others.get().map_or(&[][..], |others| others);
        let made = others.iter().filter_map(OnceLock::get);
        let own = made.map(|block| match block {
            LeafBlock::Holes => 0,
            LeafBlock::Own(places) => places.len(),
        });
        self.first.len() + others.len() + own.sum::<usize>()
    }

    fn made_block(&self, index: usize) -> Option<&LeafBlock> {
        let others = self.others.get()?;
        others.get((index / Self::BLOCK).checked_sub(1)?)?.get()
    }

    /// Returns the block of a leaf behind the first block.
    fn other(&self, index: usize) -> &OnceLock<LeafBlock> {
        let count = self.len.div_ceil(Self::BLOCK) - 1;
        &self.others.get_or_init(|| places(count))[index / Self::BLOCK - 1]
    }
}

/// Returns `count` empty places.
fn places<T>(count: usize) -> Box<[OnceLock<T>]> {
    (0..count).map(|_| OnceLock::new()).collect()
}
