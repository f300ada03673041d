//! The children of a group that have updates to flush: one bit for each (the rstat updated tree).
//!
//! The kernel keeps a list for each CPU and has lost nodes of it: the insertion was decided by an
//! instruction that is not atomic against stores of other CPUs, which left a node that was neither
//! on the list nor free to go there, and every later update of that group on that CPU was
//! invisible. Here there is no insertion to win. Any number of threads set a bit, each in one
//! atomic step that leaves nothing half done; the flusher takes 64 bits in another. A flush finds a
//! group if its bit is set, and there is no other state.
//!
//! A child has a number among its siblings from its first update until no thread can count for it
//! any more. A bit whose child is gone, or has been replaced by another one, costs only a visit.

use std::fmt;
use std::iter;

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, LockClass, Mutex, OnceLock, Rank, Weak};

static TABLE: LockClass = LockClass::new("statistics children", Rank::Leaf);

/// Chunk `i` holds `1 << i` words of 64 bits.
const NR_CHUNKS: usize = 27;

/// The children that may have values for their parent.
pub(super) struct Children<T> {
    /// Written by: threads that mark a child, and the flusher (read-modify-writes). Read by: the
    /// same. Publishes: that the child's block, or its own children's bits, can be found.
    words: [OnceLock<Box<[AtomicU64]>>; NR_CHUNKS],
    table: Mutex<ChildTable<T>>,
}

struct ChildTable<T> {
    children: Vec<Weak<T>>,
    /// Numbers whose child is gone.
    free: Vec<u32>,
    /// Length at which it is worth sweeping for more of those.
    sweep_at: usize,
}

impl<T> Children<T> {
    pub(super) fn none() -> Self {
        let none = ChildTable {
            children: Vec::new(),
            free: Vec::new(),
            sweep_at: 0,
        };
        Self {
            words: array_of_none(),
            table: Mutex::new(&TABLE, none),
        }
    }

    /// Returns a number for `child`.
    pub(super) fn enroll(&self, child: &Arc<T>) -> u32 {
        let mut table = self.table.lock();
        if table.free.is_empty() && table.children.len() >= table.sweep_at {
            table.sweep();
        }
        let child = Arc::downgrade(child);
        if let Some(number) = table.free.pop() {
            table.children[number as usize] = child;
            return number;
        }
        let number = u32::try_from(table.children.len()).expect("groups have 32-bit numbers");
        let (chunk, _) = place(number as usize / 64);
        self.words[chunk].get_or_init(|| words(1 << chunk));
        table.children.push(child);
        number
    }

    /// Makes flushes find the child.
    pub(super) fn mark(&self, number: u32) {
        let (chunk, offset) = place(number as usize / 64);
        let words = self.words[chunk].get().expect("a number has its word");
        let (word, bit) = (&words[offset], 1 << (number % 64));
        // Pairs with `take`. SeqCst: a thread that finds the bit set relies on it, see `update.rs`.
        if word.load(Ordering::SeqCst) & bit == 0 {
            // Pairs with `take`; SeqCst as above.
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Takes the marks, and passes each marked child to `visit`.
    pub(super) fn take(&self, mut visit: impl FnMut(Arc<T>)) {
        let chunks = self.words.iter().map_while(OnceLock::get);
        for (nth, word) in chunks.flat_map(|words| words.iter()).enumerate() {
            // Pairs with `mark`. SeqCst: a mark that must be found comes before this.
            if word.load(Ordering::SeqCst) == 0 {
                continue;
            }
            // Pairs with `mark`; SeqCst as above.
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                let number = nth * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let child = self.table.lock().children[number].upgrade();
                if let Some(child) = child {
                    visit(child);
                }
            }
        }
    }
}

impl<T> ChildTable<T> {
    /// Finds the numbers of children that are gone.
    fn sweep(&mut self) {
        let children = self.children.iter().zip(0..);
        let gone = children.filter(|(child, _)| child.strong_count() == 0);
        self.free.extend(gone.map(|(_, number)| number));
        self.sweep_at = (self.children.len() - self.free.len()).max(32) * 2;
    }
}

fn array_of_none<T>() -> [OnceLock<T>; NR_CHUNKS] {
    std::array::from_fn(|_| OnceLock::new())
}

fn words(count: usize) -> Box<[AtomicU64]> {
    iter::repeat_with(|| AtomicU64::new(0))
        .take(count)
        .collect()
}

/// Returns the chunk and offset of word number `nth`.
fn place(nth: usize) -> (usize, usize) {
    let chunk = (nth + 1).ilog2() as usize;
    (chunk, nth + 1 - (1 << chunk))
}

impl<T> fmt::Debug for Children<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Children")
            .field("count", &self.table.lock().children.len())
            .finish_non_exhaustive()
    }
}
