//! The leaves of a large page table, which come with use and go when they are empty.
//!
//! ```text
//! root: a place for each subtree --> nodes of places, in tables above 512 GiB --> leaf: entries
//! ```
//!
//! A *place* is one word: nothing, a node, or a subtree of holes. Nodes and leaves are pages of the
//! table's own range of words (`SparseWords`), which stays mapped as long as the table, and all
//! of whose unused pages are zero. So **a walk needs no lock, no mark and no grace period**: one
//! that races with changes may come to a page that was given back, and reads zeros there, an absent
//! entry; or to one that is in use elsewhere in the table, and reads the entry of another page. The
//! frame's tag or latch refuses that one, like any entry that has just gone stale. Only a hole must
//! not read as absent: pages of holes that go change a *version* ([`Leaves::look`]). A thread that
//! changes entries takes a *hold*.
//!
//! **Holds.** Each leaf has a state word: which leaf it is, and the number of its holds. Each entry
//! that is not absent is one, and so is each thread that changes entries. A hold is taken only of a
//! leaf that is the one looked for, by one exchange, so the leaf cannot become another one, or
//! nothing, before the hold ends. The thread that ends the last hold takes the leaf out, under the
//! lock, unless there is a new hold by then.
//!
//! **Places** change under the lock: a leaf comes with the first page that is installed there, goes
//! with its last entry, or becomes holes as a whole. A node of places goes when all of them are
//! empty, and when all are holes.
//!
//! Invariants: a linked leaf has a state; a page of the range that is not in use has none, and only
//! zero words; the holds of a leaf at rest are its entries that are not absent.

use std::ops::Range;

use super::nodes::{NODE_SHIFT, NodeId, Nodes, UsedNodes};
use crate::memmap::zeroed;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{LockClass, Mutex, Rank};

static LEAVES_LOCK: LockClass = LockClass::new("leaves", Rank::Leaf);

/// Most places of the root, as a power of two: enough for leaves of 512 GiB. Chosen: 2 MiB of
/// places, of which the system commits what is used.
const ROOT_SHIFT: u32 = if cfg!(loom) { 2 } else { 18 };

/// What a place holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeafPlace {
    Nothing,
    Holes,
    Node(NodeId),
}

impl LeafPlace {
    const HOLES: u64 = 1 << 33;

    /// Decodes a word, which may be the entry of a page if the walk raced with changes.
    #[inline]
    fn of(word: u64) -> Self {
        match u32::try_from(word) {
            Ok(0) => Self::Nothing,
            Ok(number) => Self::Node(NodeId(number - 1)),
            Err(_) if word == Self::HOLES => Self::Holes,
            Err(_) => Self::Nothing,
        }
    }

    fn word(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Holes => Self::HOLES,
            Self::Node(NodeId(id)) => u64::from(id) + 1,
        }
    }
}

/// The state word of a leaf: its index plus one, whether it has become holes, and its holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LeafState(u64);

impl LeafState {
    /// Of a page that is no leaf.
    const NONE: Self = Self(0);
    const HOLD: u64 = 1;
    const HOLDS: u64 = (1 << 23) - 1;
    const IS_HOLES: u64 = 1 << 23;
    const INDEX_SHIFT: u32 = 24;

    /// Returns the state of a leaf with one hold.
    const fn held(index: u64) -> Self {
        Self((index + 1) << Self::INDEX_SHIFT | Self::HOLD)
    }

    const fn is_of(self, index: u64) -> bool {
        self.0 >> Self::INDEX_SHIFT == index + 1 && self.0 & Self::IS_HOLES == 0
    }

    const fn index(self) -> u64 {
        (self.0 >> Self::INDEX_SHIFT) - 1
    }

    const fn holds(self) -> u64 {
        self.0 & Self::HOLDS
    }

    const fn is_holes(self) -> bool {
        self.0 & Self::IS_HOLES != 0
    }
}

/// The leaves of a table with more pages than a flat array has.
pub(super) struct Leaves {
    /// Written by: holders of the lock. Read by: any thread. Publishes: nothing; see the module.
    root: Box<[AtomicU64]>,
    nodes: Nodes,
    /// Bits of a leaf's index below those that select a place of the root.
    below_root: u32,
    /// Number of leaves.
    len: u64,
    /// Odd while pages of holes become zero. Written by: holders of the lock. Read by: threads that
    /// have read zeros. Publishes: nothing; see [`look`](Self::look).
    version: AtomicU64,
    usage: Mutex<UsedNodes>,
}

/// Result of a walk: the place that ends it, and the bits of a leaf's index below it.
#[derive(Clone, Copy, Debug)]
struct Walked {
    place: LeafPlace,
    below: u32,
}

/// State of a leaf when a hold of it was asked for.
pub(super) enum HeldLeaf<'t> {
    Leaf(LeafHold<'t>),
    Nothing,
    Holes,
}

/// A hold of a leaf, ended when dropped.
pub(super) struct LeafHold<'t> {
    leaves: &'t Leaves,
    id: NodeId,
    pub(super) words: &'t [AtomicU64],
    state: &'t AtomicU64,
    /// Holds that end with this.
    ending: u64,
}

impl LeafHold<'_> {
    /// Leaves a hold to an entry that this thread has filled.
    pub(super) fn keep_for_entry(mut self) {
        self.ending = 0;
    }

    /// Ends the holds of `count` entries as well, which this thread has emptied.
    pub(super) fn end_for_entries(&mut self, count: u64) {
        self.ending += count;
    }

    /// Takes holds for `count` entries that this thread has filled.
    pub(super) fn take_for_entries(&self, count: u64) {
        // Relaxed: this thread has a hold.
        self.state.fetch_add(count, Ordering::Relaxed);
    }
}

impl Drop for LeafHold<'_> {
    fn drop(&mut self) {
        if self.ending == 0 {
            return;
        }
        // Release. Pairs with: the acquire of `take_out_empty`.
        let before = LeafState(self.state.fetch_sub(self.ending, Ordering::Release));
        debug_assert!(before.holds() >= self.ending, "a hold was ended twice");
        if before.holds() == self.ending {
            self.leaves.take_out_empty(self.id, self.state);
        }
    }
}

impl Leaves {
    /// Returns the leaves of a table of `len` pages, all absent.
    pub(super) fn new(len: u64) -> Self {
        let leaves = len.div_ceil(1 << NODE_SHIFT);
        let mut below_root = 0;
        let mut nodes = leaves;
        while leaves.div_ceil(1 << below_root) > 1 << ROOT_SHIFT {
            below_root += NODE_SHIFT;
            nodes += leaves.div_ceil(1 << below_root);
        }
        let root = usize::try_from(leaves.div_ceil(1 << below_root)).expect("the root is small");
        Self {
            root: zeroed(root),
            nodes: Nodes::new(nodes),
            below_root,
            len: leaves,
            version: AtomicU64::new(0),
            usage: Mutex::new(&LEAVES_LOCK, UsedNodes::default()),
        }
    }

    /// Returns the word that a walk for an entry comes to, without a lock: a hint, as the module
    /// says. `None` for holes, and for nothing.
    #[inline]
    pub(super) fn word(&self, index: u64, slot: usize) -> Option<&AtomicU64> {
        match self.walk(index).place {
            LeafPlace::Node(id) => self.nodes.word(id, slot),
            LeafPlace::Nothing | LeafPlace::Holes => None,
        }
    }

    /// Returns where a walk for a leaf ends: at the leaf, or where there is none. Exact under the
    /// lock; without it a hint, also for a leaf behind the end.
    #[inline]
    fn walk(&self, index: u64) -> Walked {
        // Relaxed: under the lock, or see the module. A thread that is told of an entry finds the
        // way to it.
        let read = |word: &AtomicU64| LeafPlace::of(word.load(Ordering::Relaxed));
        let mut below = self.below_root;
        let word = self.root.get(root_slot(index >> below));
        let mut place = word.map_or(LeafPlace::Nothing, read);
        // Terminates: `below` falls.
        while below > 0
            && let LeafPlace::Node(id) = place
        {
            below -= NODE_SHIFT;
            let word = self.nodes.word(id, slot_of(index >> below));
            place = word.map_or(LeafPlace::Nothing, read);
        }
        Walked { place, below }
    }

    /// Returns the word of the place with `below` bits of a leaf's index below it, and the node
    /// that it is in. The lock is held, and the nodes above are there.
    fn place(&self, index: u64, below: u32) -> (&AtomicU64, Option<NodeId>) {
        let mut at = self.below_root;
        let mut word = &self.root[root_slot(index >> at)];
        let mut node = None;
        while at > below {
            let LeafPlace::Node(id) = LeafPlace::of(word.load(Ordering::Relaxed)) else {
                unreachable!("the nodes above a place are there");
            };
            at -= NODE_SHIFT;
            word = &self.nodes.words(id)[slot_of(index >> at)];
            node = Some(id);
        }
        (word, node)
    }

    /// Takes a hold of a leaf, if it is there.
    pub(super) fn hold(&self, index: u64) -> HeldLeaf<'_> {
        match self.walk(index).place {
            LeafPlace::Nothing => HeldLeaf::Nothing,
            LeafPlace::Holes | LeafPlace::Node(_) => self.hold_or_lock(index),
        }
    }

    /// As [`hold`](Self::hold), but `Nothing` is no hint.
    pub(super) fn hold_or_lock(&self, index: u64) -> HeldLeaf<'_> {
        if let Some(hold) = self.hold_at_once(index) {
            return HeldLeaf::Leaf(hold);
        }
        let _usage = self.usage.lock();
        self.hold_locked(index)
    }

    /// Returns the word of an entry as of some moment of this call, zero if there is no leaf;
    /// `None` if that is not certain without the lock, as for holes.
    ///
    /// A walk that reads zero may have come to a page of holes after that became zero. Then the
    /// version has changed since the walk began.
    pub(super) fn look(&self, index: u64, slot: usize) -> Option<u64> {
        // Acquire. Pairs with: the release at the end of `clear_holes`: the walk begins after it.
        let version = self.version.load(Ordering::Acquire);
        let word = match self.walk(index).place {
            LeafPlace::Holes => return None,
            LeafPlace::Nothing => 0,
            // Relaxed: the fence orders it.
            LeafPlace::Node(id) => self.nodes.word(id, slot)?.load(Ordering::Relaxed),
        };
        // Pairs with: the fence of `clear_holes`.
        fence(Ordering::Acquire);
        // Relaxed: after the fence.
        let is_stable =
            version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        is_stable.then_some(word)
    }

    /// Takes a hold of a leaf, which is made if it is not there. Not of holes.
    pub(super) fn hold_or_make(&self, index: u64) -> Option<LeafHold<'_>> {
        if let Some(hold) = self.hold_at_once(index) {
            return Some(hold);
        }
        let mut usage = self.usage.lock();
        match self.hold_locked(index) {
            HeldLeaf::Leaf(hold) => Some(hold),
            HeldLeaf::Holes => None,
            HeldLeaf::Nothing => Some(self.make(&mut usage, index)),
        }
    }

    /// As [`hold`](Self::hold), under the lock: a linked leaf is not taken out meanwhile.
    fn hold_locked(&self, index: u64) -> HeldLeaf<'_> {
        match self.walk(index).place {
            LeafPlace::Nothing => HeldLeaf::Nothing,
            LeafPlace::Holes => HeldLeaf::Holes,
            LeafPlace::Node(id) => {
                let hold = self.hold_of(id, index);
                HeldLeaf::Leaf(hold.expect("a linked leaf stays under the lock"))
            }
        }
    }

    /// Takes a hold of a leaf, if a walk comes to it.
    fn hold_at_once(&self, index: u64) -> Option<LeafHold<'_>> {
        match self.walk(index).place {
            LeafPlace::Node(id) => self.hold_of(id, index),
            LeafPlace::Nothing | LeafPlace::Holes => None,
        }
    }

    /// Takes a hold of a page that seems to be a leaf, if it is.
    fn hold_of(&self, id: NodeId, index: u64) -> Option<LeafHold<'_>> {
        let state = self.nodes.state(id)?;
        // Relaxed: the exchange decides.
        let mut seen = LeafState(state.load(Ordering::Relaxed));
        // Terminates: it fails only when another thread has taken or ended a hold.
        while seen.is_of(index) {
            let held = seen.0 + LeafState::HOLD;
            // Acquire. Pairs with: the release of `make`.
            match state.compare_exchange(seen.0, held, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(self.held(id)),
                Err(now) => seen = LeafState(now),
            }
        }
        None
    }

    /// Returns a hold that this thread has taken.
    fn held(&self, id: NodeId) -> LeafHold<'_> {
        LeafHold {
            leaves: self,
            id,
            words: self.nodes.words(id),
            state: self.nodes.state_of(id),
            ending: LeafState::HOLD,
        }
    }

    /// Makes a leaf, and the nodes above it.
    fn make(&self, usage: &mut UsedNodes, index: u64) -> LeafHold<'_> {
        loop {
            let Walked { place, below } = self.walk(index);
            debug_assert_eq!(place, LeafPlace::Nothing, "a leaf is made where none is");
            let id = usage.take(&self.nodes);
            if below == 0 {
                let state = self.nodes.state_of(id);
                // Release. Pairs with: the acquire of `hold_of`: its words were zeroed before.
                state.store(LeafState::held(index).0, Ordering::Release);
            }
            self.set(usage, index, below, LeafPlace::Node(id));
            if below == 0 {
                return self.held(id);
            }
        }
    }

    /// Changes an empty place, or one that becomes empty.
    fn set(&self, usage: &mut UsedNodes, index: u64, below: u32, place: LeafPlace) {
        let (word, node) = self.place(index, below);
        let before = LeafPlace::of(word.load(Ordering::Relaxed));
        // Release. Pairs with: the fence of `look`: the page may have been one of holes before. A
        // thread that came to it then, and reads this zero, finds the version changed.
        word.store(place.word(), Ordering::Release);
        let Some(node) = node else {
            return;
        };
        let filled = self.nodes.state_of(node);
        // Relaxed, all: under the lock.
        match (before, place) {
            (LeafPlace::Nothing, _) => _ = filled.fetch_add(1, Ordering::Relaxed),
            (_, LeafPlace::Nothing) => _ = filled.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        if filled.load(Ordering::Relaxed) == 0 {
            self.set(usage, index, below + NODE_SHIFT, LeafPlace::Nothing);
            usage.give(&self.nodes, node);
        }
    }

    /// Takes out a leaf without holds, unless it has some again, or another thread has done so.
    #[cold]
    fn take_out_empty(&self, id: NodeId, state: &AtomicU64) {
        let mut usage = self.usage.lock();
        // Relaxed: the exchange decides.
        let seen = LeafState(state.load(Ordering::Relaxed));
        if seen == LeafState::NONE || seen.holds() > 0 {
            return;
        }
        let none = LeafState::NONE.0;
        // Acquire. Pairs with: the releases at the end of holds: what holders wrote comes before
        // the words are used again. A hold taken meanwhile keeps the leaf.
        let taken = state.compare_exchange(seen.0, none, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            return;
        }
        if seen.is_holes() {
            self.clear_holes(id);
        } else {
            self.set(&mut usage, seen.index(), 0, LeafPlace::Nothing);
        }
        usage.give(&self.nodes, id);
    }

    /// Makes a leaf holes; all its `len` entries are holes already.
    pub(super) fn turn_into_holes(&self, mut hold: LeafHold<'_>, index: u64, len: u64) {
        let mut usage = self.usage.lock();
        // Relaxed: this thread has a hold. From here on, no other thread gets one.
        hold.state.fetch_or(LeafState::IS_HOLES, Ordering::Relaxed);
        self.set_holes(&mut usage, index, 0);
        drop(usage);
        hold.end_for_entries(len);
    }

    /// Makes holes of a subtree, and of those above it that are full of them.
    fn set_holes(&self, usage: &mut UsedNodes, index: u64, below: u32) {
        self.set(usage, index, below, LeafPlace::Holes);
        self.merge_holes(usage, index, below);
    }

    /// Makes holes of the subtrees above a place of holes that are full of them. Only the last
    /// place of a node has the others looked at: places become holes in order.
    fn merge_holes(&self, usage: &mut UsedNodes, index: u64, below: u32) {
        let above = below + NODE_SHIFT;
        let (_, Some(node)) = self.place(index, below) else {
            return;
        };
        let end = ((index >> above) + 1) << NODE_SHIFT;
        let is_last = (index >> below) + 1 == end.min(self.len.div_ceil(1 << below));
        let is_hole = |word: &AtomicU64| word.load(Ordering::Relaxed) == LeafPlace::HOLES;
        let words = &self.nodes.words(node)[..=slot_of(index >> below)];
        if is_last && words.iter().all(is_hole) {
            self.set_holes(usage, index, above);
            // Relaxed: under the lock.
            self.nodes
                .state_of(node)
                .store(LeafState::NONE.0, Ordering::Relaxed);
            self.clear_holes(node);
            usage.give(&self.nodes, node);
        }
    }

    /// Zeroes a page of holes that is linked no more. The lock is held.
    fn clear_holes(&self, id: NodeId) {
        // Relaxed, all, but as said.
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // Pairs with: the fence of `look`: a thread that reads a zero of these finds the version
        // changed.
        fence(Ordering::Release);
        let words = self.nodes.words(id).iter();
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        // Release. Pairs with: the acquire of `look`: a walk after this does not come here.
        self.version.store(version + 2, Ordering::Release);
    }

    /// Makes holes of the subtree that a leaf would be in, if there is none, and all of it is among
    /// `leaves`; or finds that it is holes. Returns the first leaf behind it.
    pub(super) fn punch_unused(&self, index: u64, leaves: &Range<u64>) -> Option<u64> {
        let mut usage = self.usage.lock();
        let mut walked = self.walk(index);
        loop {
            let Walked { place, below } = walked;
            let first = index >> below << below;
            let end = (first + (1 << below)).min(self.len);
            match place {
                LeafPlace::Holes => {
                    self.merge_holes(&mut usage, index, below);
                    return Some(end);
                }
                LeafPlace::Node(_) => return None,
                LeafPlace::Nothing if leaves.start <= first && end <= leaves.end => {
                    self.set_holes(&mut usage, index, below);
                    return Some(end);
                }
                LeafPlace::Nothing if below == 0 => return None,
                LeafPlace::Nothing => {
                    // Only a part of it.
                    let id = usage.take(&self.nodes);
                    self.set(&mut usage, index, below, LeafPlace::Node(id));
                    walked = self.walk(index);
                }
            }
        }
    }

    /// Returns the first leaf from `index` on that may be there, and its entries; a hint, as
    /// [`word`](Self::word).
    pub(super) fn next_made(&self, mut index: u64) -> Option<(u64, &[AtomicU64])> {
        // Terminates: it rises.
        while index < self.len {
            let Walked { place, below } = self.walk(index);
            if let LeafPlace::Node(id) = place
                && let Some(words) = self.nodes.get(id)
            {
                return Some((index, words));
            }
            index = ((index >> below) + 1) << below;
        }
        None
    }
}

#[cfg(test)]
impl Leaves {
    /// Returns the number of pages in use, of leaves and of nodes, after a check that the others
    /// are zero.
    pub(super) fn nr_used(&self) -> usize {
        let usage = self.usage.lock();
        usage.check(&self.nodes);
        usage.count()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the root is small")]
fn root_slot(bits: u64) -> usize {
    bits as usize
}

/// Returns the place in a node that the lowest bits select.
fn slot_of(bits: u64) -> usize {
    (bits & ((1 << NODE_SHIFT) - 1)) as usize
}
