//! Per-CPU words of a group, and the lists of updated groups by which a flush finds them (rstat).
//!
//! ```text
//! updated_children of the parent --> child --updated_next--> child --updated_next--> the parent
//! ```
//!
//! For each CPU, these links form a tree of the groups that were updated there. An empty list
//! points to its own group; a group on no list has no next group. A group on a list has all its
//! ancestors on theirs, so that an updater that finds a group on a list can stop.
//!
//! Links are written under the CPU's lock. An updater first adds, and then checks without the lock
//! whether its group is on a list. A flush first takes the group off the list, and then reads the
//! words. In the single total order of these four accesses, either the updater finds the group off
//! the list and puts it back, or the flush finds the addition.
//!
//! Source: accounting spec 7.2 to 7.4.
//! Deviation: blocks are allocated when a CPU comes for the first time (7.8), in a two-level
//! directory. The root's block is on no list; a next pointer to itself marks it as updated.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::{ITEMS, Item};

/// The next group of a group on no list.
const OFF: u32 = u32::MAX;

/// CPUs in one chunk of the directory.
const CHUNK: usize = 16;

/// Words of one group for one CPU.
#[derive(Debug)]
pub(super) struct Block {
    group: u32,
    /// The same CPU's block of the parent group.
    parent: Option<Arc<Self>>,
    /// The first updated child, or the group itself. Under the CPU's lock.
    updated_children: AtomicU32,
    /// The next group on the parent's list; the parent itself at the end; or [`OFF`]. Written under
    /// the CPU's lock. Read without it by updaters. Publishes nothing; ordered as the module says.
    updated_next: AtomicU32,
    /// Pages of updates not yet counted towards a threshold. Written by: threads that act as the
    /// CPU. Publishes nothing.
    pub(super) updates: AtomicU64,
    words: OnceLock<Box<Words>>,
}

/// Everything that a CPU has counted, and the part of it that was carried on.
#[derive(Debug)]
pub(super) struct Words {
    /// Written by threads that act as the CPU, read by flushes; ordered as the module says.
    local: [AtomicI64; ITEMS],
    /// Written and read under the flush lock.
    prev: [AtomicI64; ITEMS],
}

impl Words {
    fn new() -> Box<Self> {
        let zeros = || std::array::from_fn(|_| AtomicI64::new(0));
        Box::new(Self {
            local: zeros(),
            prev: zeros(),
        })
    }

    /// Returns what was counted of an item since the last call. Under the flush lock.
    pub(super) fn take(&self, item: usize) -> i64 {
        // SeqCst. Pairs with the add in `Block::add`, see the module: acquire and release do not
        // order an add before a later read of the list.
        let local = self.local[item].load(Ordering::SeqCst);
        // Relaxed: under the flush lock.
        let prev = self.prev[item].load(Ordering::Relaxed);
        if local != prev {
            self.prev[item].store(local, Ordering::Relaxed);
        }
        local - prev
    }
}

impl Block {
    pub(super) fn new(group: u32, parent: Option<Arc<Self>>) -> Self {
        Self {
            group,
            parent,
            updated_children: AtomicU32::new(group),
            updated_next: AtomicU32::new(OFF),
            updates: AtomicU64::new(0),
            words: OnceLock::new(),
        }
    }

    pub(super) fn group(&self) -> usize {
        self.group as usize
    }

    pub(super) fn parent(&self) -> Option<&Self> {
        self.parent.as_deref()
    }

    /// Returns the words, if the CPU has counted anything.
    pub(super) fn words(&self) -> Option<&Words> {
        self.words.get().map(|words| &**words)
    }

    pub(super) fn add(&self, item: Item, delta: i64) {
        let words = self.words.get_or_init(Words::new);
        // SeqCst. Pairs with the load in `Words::take`, see the module.
        words.local[item.index()].fetch_add(delta, Ordering::SeqCst);
    }

    /// Returns whether the group is on a list. Without the lock: a flush may be taking it off.
    pub(super) fn is_updated(&self) -> bool {
        // SeqCst. Pairs with the store in `take_off`, see the module.
        self.updated_next.load(Ordering::SeqCst) != OFF
    }

    /// Puts the group and its ancestors on their lists. Under the CPU's lock.
    pub(super) fn put_on(&self) {
        let mut at = self;
        while !at.is_updated() {
            let Some(parent) = at.parent() else {
                // The root is on no list, but is marked. Relaxed, here and below: under the CPU's
                // lock.
                at.updated_next.store(at.group, Ordering::Relaxed);
                return;
            };
            let first = parent.updated_children.load(Ordering::Relaxed);
            at.updated_next.store(first, Ordering::Relaxed);
            parent.updated_children.store(at.group, Ordering::Relaxed);
            at = parent;
        }
    }

    fn take_off(&self) -> u32 {
        // SeqCst. Pairs with the load in `is_updated`, see the module.
        self.updated_next.swap(OFF, Ordering::SeqCst)
    }

    /// Takes the group and all updated groups below it off their lists, and appends them to
    /// `found`, children before their parents. Under the CPU's lock. `block_of` returns the CPU's
    /// block of a group on a list.
    pub(super) fn detach<'a>(
        &'a self,
        found: &mut Vec<u32>,
        block_of: impl Fn(u32) -> &'a Self + Copy,
    ) {
        if !self.is_updated() {
            return;
        }
        let next = self.take_off();
        if let Some(parent) = self.parent() {
            parent.unlink(self.group, next, block_of);
        }
        let begin = found.len();
        found.push(self.group);
        let mut at = begin;
        // Level by level; each group is on one list, so this terminates.
        while at < found.len() {
            let parent = block_of(found[at]);
            // Relaxed: under the CPU's lock.
            let first = parent
                .updated_children
                .swap(parent.group, Ordering::Relaxed);
            let mut child = first;
            while child != parent.group {
                found.push(child);
                child = block_of(child).take_off();
            }
            at += 1;
        }
        found[begin..].reverse();
    }

    /// Returns the groups on this group's list. Under the CPU's lock.
    #[cfg(test)]
    pub(super) fn children<'a>(&'a self, block_of: impl Fn(u32) -> &'a Self) -> Vec<u32> {
        let mut children = Vec::new();
        let mut child = self.updated_children.load(Ordering::Relaxed);
        while child != self.group {
            children.push(child);
            child = block_of(child).updated_next.load(Ordering::Relaxed);
        }
        children
    }

    /// Unlinks `child`, which `next` follows, from this group's list by a search along it.
    fn unlink<'a>(&'a self, child: u32, next: u32, block_of: impl Fn(u32) -> &'a Self) {
        // Relaxed, here and below: under the CPU's lock.
        let mut at = self.updated_children.load(Ordering::Relaxed);
        if at == child {
            self.updated_children.store(next, Ordering::Relaxed);
            return;
        }
        loop {
            assert!(at != self.group, "{child} was on the list of its parent");
            let link = &block_of(at).updated_next;
            at = link.load(Ordering::Relaxed);
            if at == child {
                link.store(next, Ordering::Relaxed);
                return;
            }
        }
    }
}

/// A chunk of the directory.
type Chunk = Box<[OnceLock<Arc<Block>>; CHUNK]>;

/// Blocks of one group, by CPU.
#[derive(Debug)]
pub(super) struct Blocks {
    chunks: Box<[OnceLock<Chunk>]>,
}

impl Blocks {
    pub(super) fn none(nr_cpus: usize) -> Self {
        let chunks = std::iter::repeat_with(OnceLock::new);
        Self {
            chunks: chunks.take(nr_cpus.div_ceil(CHUNK)).collect(),
        }
    }

    pub(super) fn get(&self, cpu: usize) -> Option<&Arc<Block>> {
        self.chunks[cpu / CHUNK].get()?[cpu % CHUNK].get()
    }

    pub(super) fn get_or_make(&self, cpu: usize, make: impl FnOnce() -> Block) -> &Arc<Block> {
        let empty = || Box::new(std::array::from_fn(|_| OnceLock::new()));
        let chunk = self.chunks[cpu / CHUNK].get_or_init(empty);
        chunk[cpu % CHUNK].get_or_init(|| Arc::new(make()))
    }
}
