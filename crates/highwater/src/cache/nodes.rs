//! Pages of the leaves of a page table, and of the nodes above them: numbers, words, and which of
//! them are in use.

use crate::memmap::{SparseWords, WORDS_OF_PAGE, zeroed};
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Places of a node and entries of a leaf, as a power of two.
pub(super) const NODE_SHIFT: u32 = WORDS_OF_PAGE.ilog2();
/// Pages of the first chunk, which is reached by a load less. Chosen: 16 MiB of address space, for
/// systems and limits that charge it, and the entries of 8 GiB.
const FIRST_CHUNK: usize = if cfg!(loom) { 16 } else { 1 << 12 };
/// Unused pages that keep their memory. Chosen: pages that come and go in turn cost no system call.
const SPARE_MAX: usize = if cfg!(loom) { 0 } else { 64 };

/// Number of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeId(pub(super) u32);

/// The pages of one table. Those that are not in use are zero.
pub(super) struct Nodes {
    first: NodeChunk,
    /// Chunks of as many pages as all before them.
    others: Box<[OnceLock<NodeChunk>]>,
}

/// Pages of a range, and a state for each.
struct NodeChunk {
    words: SparseWords,
    /// Of a leaf, its index and its holds; of a node of places, the number of those in use; zero
    /// without either. Written by: threads that take and end holds; under the lock, those that make
    /// and take out pages. Read by: all of them. Publishes: the words of a leaf that was made, to
    /// its holders; what holders wrote, to the thread that takes it out.
    states: Box<[AtomicU64]>,
}

impl NodeChunk {
    fn new(pages: usize) -> Self {
        Self {
            words: SparseWords::new(pages),
            states: zeroed(pages),
        }
    }
}

impl Nodes {
    /// Returns room for so many pages, at most 2^32.
    pub(super) fn new(count: u64) -> Self {
        let count = usize::try_from(count.min(1 << 32)).expect("addresses have 64 bits");
        let doublings = count.div_ceil(FIRST_CHUNK).next_power_of_two().ilog2();
        Self {
            first: NodeChunk::new(count.min(FIRST_CHUNK)),
            others: (0..doublings).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Returns a word of a page, if there is such a page.
    #[inline]
    pub(super) fn word(&self, NodeId(id): NodeId, slot: usize) -> Option<&AtomicU64> {
        let words = self.first.words.words();
        match words.get(id as usize * WORDS_OF_PAGE + slot) {
            Some(word) => Some(word),
            None => self.get(NodeId(id))?.get(slot),
        }
    }

    /// Returns the words of a page, if there is such a page.
    #[inline(never)]
    pub(super) fn get(&self, id: NodeId) -> Option<&[AtomicU64]> {
        let (chunk, at) = self.chunk_of(id)?;
        let words = chunk.words.words().get(at * WORDS_OF_PAGE..)?;
        words.get(..WORDS_OF_PAGE)
    }

    /// Returns the state of a page, if there is such a page.
    pub(super) fn state(&self, id: NodeId) -> Option<&AtomicU64> {
        let (chunk, at) = self.chunk_of(id)?;
        chunk.states.get(at)
    }

    /// As [`get`](Self::get), of a page in use.
    pub(super) fn words(&self, id: NodeId) -> &[AtomicU64] {
        self.get(id).expect("a page in use is there")
    }

    /// As [`state`](Self::state), of a page in use.
    pub(super) fn state_of(&self, id: NodeId) -> &AtomicU64 {
        self.state(id).expect("a page in use is there")
    }

    /// Returns the chunk of a page, if it was made, and the page's number in it.
    fn chunk_of(&self, NodeId(id): NodeId) -> Option<(&NodeChunk, usize)> {
        let id = id as usize;
        if id < FIRST_CHUNK {
            return Some((&self.first, id));
        }
        let nth = (id / FIRST_CHUNK).ilog2();
        let chunk = self.others.get(nth as usize)?.get()?;
        Some((chunk, id - (FIRST_CHUNK << nth)))
    }

    /// Makes the chunk of a page.
    fn make(&self, NodeId(id): NodeId) {
        if id as usize >= FIRST_CHUNK {
            let nth = (id as usize / FIRST_CHUNK).ilog2();
            self.others[nth as usize].get_or_init(|| NodeChunk::new(FIRST_CHUNK << nth));
        }
    }
}

/// Pages in use, changed under a lock.
#[derive(Debug, Default)]
pub(super) struct UsedNodes {
    /// Pages that were used, and gave their memory back.
    unused: Vec<NodeId>,
    /// Unused pages that keep their memory.
    spare: Vec<NodeId>,
    /// The first page that was never used.
    next: u32,
}

impl UsedNodes {
    /// Returns a page that is not in use.
    pub(super) fn take(&mut self, nodes: &Nodes) -> NodeId {
        if let Some(id) = self.spare.pop().or_else(|| self.unused.pop()) {
            return id;
        }
        let id = NodeId(self.next);
        self.next += 1;
        nodes.make(id);
        id
    }

    /// Takes back a page that is linked no more, and zero.
    pub(super) fn give(&mut self, nodes: &Nodes, id: NodeId) {
        let is_zero = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
        debug_assert!(nodes.words(id).iter().all(is_zero), "a page in use");
        if self.spare.len() < SPARE_MAX {
            return self.spare.push(id);
        }
        let (chunk, at) = nodes.chunk_of(id).expect("it was in use");
        chunk.words.decommit(at);
        self.unused.push(id);
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.next as usize - self.spare.len() - self.unused.len()
    }

    /// Checks that pages which are not in use are zero.
    #[cfg(test)]
    pub(super) fn check(&self, nodes: &Nodes) {
        for &id in self.spare.iter().chain(&self.unused) {
            let words = nodes.words(id).iter().chain(nodes.state(id));
            assert!(
                words
                    .map(|word| word.load(Ordering::Relaxed))
                    .all(|word| word == 0)
            );
        }
    }
}
