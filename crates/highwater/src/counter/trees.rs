//! The memory of a few counters in one block: per-CPU words side by side in a slot, nodes side by
//! side in a line.
//!
//! ```text
//! slot of a CPU    [ member 0 | member 1 | .. | begun | ended ]     one line, written by that CPU
//! node             [ member 0 | member 1 | .. ]                     one line, shared by neighbours
//! root             [ member 0 | member 1 | .. ]                     one line, read by all
//! bounds           [ over of each | under of each ]                 the next one, hardly ever written
//! ```
//!
//! A cheap read visits only root and bounds: two adjacent lines, which processors fetch together,
//! at the address that the counter knows.
//!
//! # Accuracy of a read
//!
//! *At rest*, the error of the root is the sum of the residuals, and residuals exist only in words
//! that were added to. `bounds` holds the sum of their ranges over the words and nodes that were
//! touched: it is raised before the first addition on a CPU can be seen, never lowered, and read
//! after the root.
//!
//! *With updates in flight*, each may hold a carry in hand between two levels. An update that
//! leaves its word's neighbourhood adds the most that it can have in hand to `begun` of its CPU
//! before it starts, and to `ended` when it is done; an update that stays inside has nothing in
//! hand. A reader sums `ended`, reads the root, then sums `begun`: the difference bounds the amount
//! in hand when the root was read. An update seen to have ended is in the root that is read
//! afterwards; one whose carries had any influence on that root, through however many other
//! updates, is seen to have begun.
//!
//! | edge | by | why |
//! |---|---|---|
//! | `begun` before the word | `AcqRel` of the word | an update that carries on from a word sees the `begun` of those that moved it |
//! | word before nodes, nodes before the root | `AcqRel` of each node | the same for nodes |
//! | root before `begun` is summed | Acquire of the root | updates with influence have begun |
//! | root before `ended` | `AcqRel` of `ended` | updates that have ended are in the root |
//! | `ended` is summed before the root | Acquire of `ended` | the other half |
//!
//! In the restartable regime the processor gives the edges of words, `begun` and `ended`: its
//! stores are seen in program order.

use std::collections::TryReserveError;
use std::iter;

use super::shape::Level;
use super::{Accuracy, Climb, Layout};
use crate::percpu::{Cells, Touched};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::units::CpuId;

/// Maximum counters in one block: with `begun` and `ended` their words fill at most a line.
pub(super) const MEMBERS_MAX: usize = 4;

/// A node that several CPUs add to, on a cache line of its own.
///
/// Written by: any CPU below it (`AcqRel` add). Read by: the same addition, and for the root any
/// reader (Acquire). Publishes: which updates have begun.
#[repr(align(64))]
struct Node([AtomicI64; MEMBERS_MAX]);

#[cfg(not(loom))]
const _: () = assert!(size_of::<Node>() == 64);

impl Node {
    fn zeroed() -> Self {
        Self(std::array::from_fn(|_| AtomicI64::new(0)))
    }
}

/// The error that the touched words and nodes of each member can hide.
///
/// Written by: the first update on a CPU (relaxed maximum). Read by: readers of the root.
/// Publishes: nothing; the mark of the CPU's slot does.
#[repr(align(64))]
struct MemberBounds {
    over: [AtomicI64; MEMBERS_MAX],
    under: [AtomicI64; MEMBERS_MAX],
}

/// The lines that cheap reads visit.
#[repr(C, align(128))]
struct Front {
    /// As a [`Node`].
    root: [AtomicI64; MEMBERS_MAX],
    /// Whether there is a single slot: its words are the roots.
    has_one_slot: bool,
    bounds: MemberBounds,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Front>() == 128);

/// A few counters over the CPUs of a layout's topology.
#[repr(C)]
pub(super) struct CounterTrees {
    front: Front,
    pub(super) layout: Arc<Layout>,
    members: usize,
    /// Level 0: a word for each member, then `begun` and `ended`.
    pub(super) cells: Cells,
    /// Nodes of the levels between the words and the root, level 1 first.
    nodes: Box<[Node]>,
    /// For each member, the positions that were ever added to.
    positions: Box<[Touched]>,
}

impl CounterTrees {
    /// Returns counters at zero.
    pub(super) fn new(layout: &Arc<Layout>, members: usize) -> Result<Self, TryReserveError> {
        assert!(
            (1..=MEMBERS_MAX).contains(&members),
            "a block holds 1 to {MEMBERS_MAX} counters, not {members}"
        );
        let nr_cpus = layout.topology.nr_cpus();
        let band = Some(layout.shape.leaf.shift());
        let cells = Cells::try_new(layout.regime, nr_cpus, members + 2, band)?;
        // The root is in `front`, and is not added to when there is a single slot.
        let nr_nodes = layout.shape.nr_nodes.saturating_sub(1);
        let mut nodes = Vec::new();
        nodes.try_reserve_exact(nr_nodes)?;
        nodes.extend(iter::repeat_with(Node::zeroed).take(nr_nodes));
        let zeroes = || std::array::from_fn(|_| AtomicI64::new(0));
        let slots = cells.slots();
        let front = Front {
            root: zeroes(),
            has_one_slot: layout.shape.nr_nodes == 0,
            bounds: MemberBounds {
                over: zeroes(),
                under: zeroes(),
            },
        };
        Ok(Self {
            front,
            layout: Arc::clone(layout),
            members,
            cells,
            nodes: nodes.into_boxed_slice(),
            positions: iter::repeat_with(|| Touched::none_of(slots))
                .take(members)
                .collect(),
        })
    }

    /// Adds like [`add`](Self::add) if that takes only a plain store. Returns whether it was added.
    #[inline(always)]
    pub(super) fn try_add_here(&self, member: usize, delta: i64) -> bool {
        self.cells.try_add_here(member, delta)
    }

    /// Adds on the CPU that the calling thread runs on.
    #[inline]
    pub(super) fn add(&self, member: usize, delta: i64) -> Climb {
        // Every block has all words of its line, and callers check members.
        if self.cells.try_add_known(member, delta) {
            return Climb::default();
        }
        self.add_and_climb(None, member, delta)
    }

    /// Adds as if running on `cpu`.
    #[inline]
    pub(super) fn add_on(&self, cpu: CpuId, member: usize, delta: i64) -> Climb {
        if self.cells.try_add_on(cpu, member, delta) {
            return Climb::default();
        }
        self.add_and_climb(Some(cpu), member, delta)
    }

    /// Adds a delta that may leave its word's neighbourhood, or is the first on its CPU.
    #[inline(never)]
    fn add_and_climb(&self, cpu: Option<CpuId>, member: usize, delta: i64) -> Climb {
        debug_assert!(member < self.members);
        let cover = |slot| self.cover(member, slot);
        let add = |word, delta, cover: &dyn Fn(usize)| match cpu {
            None => self.cells.add_covered::<0>(word, delta, cover),
            Some(cpu) => self.cells.add_covered_on(cpu, word, delta, cover),
        };
        // A delta beyond half the range of words is out of every estimate's range anyway.
        let in_hand = self.layout.shape.in_hand_max(delta.unsigned_abs());
        let in_hand = in_hand.min(1 << 60);
        add(self.begun(), in_hand, &|_| ());
        let added = add(member, delta, &cover);
        let leaf = self.layout.shape.leaf;
        let carry = leaf.carry(added.new.wrapping_sub(delta), added.new);
        let climb = match carry {
            0 => Climb::default(),
            _ => self.climb(added.slot, member, carry),
        };
        add(self.ended(), in_hand, &|_| ());
        climb
    }

    /// Adds a word's carry to the nodes above it, until nothing more is carried.
    fn climb(&self, slot: usize, member: usize, mut carry: i64) -> Climb {
        let mut climb = Climb::default();
        if self.front.has_one_slot {
            return climb;
        }
        let position = self.position(slot);
        for level in self.layout.shape.levels_above(position) {
            debug_assert!(
                carry % level.quantum == 0,
                "carries are multiples of the modulus below"
            );
            if level.modulus.divides(carry) {
                climb.skipped += 1;
                continue;
            }
            // AcqRel. Pairs with itself and the Acquire in `root`: see the module header. The carry
            // out depends on this addition's own before and after values only.
            let node = &self.nodes[level.node(position)].0[member];
            let old = node.fetch_add(carry, Ordering::AcqRel);
            climb.written += 1;
            carry = level.modulus.carry(old, old.wrapping_add(carry));
            if carry == 0 {
                return climb;
            }
        }
        // Release. Pairs with the Acquire in `root`.
        self.front.root[member].fetch_add(carry, Ordering::Release);
        climb.written += 1;
        climb
    }

    /// Widens the bounds by the error that the slot's word, and the nodes above it, can hide.
    /// Idempotent, and complete when it returns, whichever other threads cover the same slot.
    fn cover(&self, member: usize, slot: usize) {
        if self.front.has_one_slot {
            return;
        }
        let positions = &self.positions[member];
        positions.mark_visibly(self.position(slot));
        let accuracy = self.layout.shape.accuracy_of(positions);
        // Relaxed: see `MemberBounds`. Of two threads that cover, one has both marks in its sum.
        self.front.bounds.over[member].fetch_max(accuracy.over, Ordering::Relaxed);
        self.front.bounds.under[member].fetch_max(accuracy.under, Ordering::Relaxed);
    }

    /// Returns the value of the root.
    #[inline]
    pub(super) fn root(&self, member: usize) -> i64 {
        if self.front.has_one_slot {
            return self.cells.precise_sum(member);
        }
        // Acquire. Pairs with the Release in `climb`: updates with influence on the root have begun
        // and are within the bounds. Words hold 63 bits, so the top bit means nothing.
        self.front.root[member].load(Ordering::Acquire) << 1 >> 1
    }

    /// Returns the error bounds of the root at rest, given which CPUs have added. To be read after
    /// the root.
    #[inline]
    pub(super) fn accuracy(&self, member: usize) -> Accuracy {
        // Relaxed: see `MemberBounds`.
        Accuracy {
            under: self.front.bounds.under[member].load(Ordering::Relaxed),
            over: self.front.bounds.over[member].load(Ordering::Relaxed),
        }
    }

    /// Calls `read`; returns also how much updates may have had in hand when it read the root.
    pub(super) fn in_hand_around<T>(&self, read: impl FnOnce() -> T) -> (T, i64) {
        let ended = self.cells.precise_sum(self.ended());
        let result = read();
        let begun = self.cells.precise_sum(self.begun());
        let in_hand = begun.wrapping_sub(ended) << 1 >> 1;
        debug_assert!(in_hand >= 0, "what has ended has begun");
        (result, in_hand)
    }

    pub(super) fn precise_sum(&self, member: usize) -> i64 {
        self.cells.precise_sum(member)
    }

    pub(super) fn precise_sum_of(&self, members: &[usize]) -> i64 {
        self.cells.precise_sum_of(members)
    }

    /// Returns the number of cache lines that a read of the roots of `members` reads, and of those
    /// that a precise sum reads: one for each CPU that added, and the marks of each member.
    #[cfg(feature = "lab")]
    pub(super) fn lines_read(&self, members: &[usize]) -> [usize; 2] {
        let slots = self.cells.slots();
        let mut is_touched = vec![false; slots];
        for &member in members {
            self.cells
                .touched(member)
                .for_each(|slot| is_touched[slot] = true);
        }
        let touched = is_touched.into_iter().filter(|is_touched| *is_touched);
        let marks = members.len() * slots.div_ceil(8 * size_of::<Node>());
        let front = size_of::<Front>() / size_of::<Node>();
        [front, 1 + touched.count() + marks]
    }

    /// Checks conservation for a member at rest: root and residuals agree with the precise sum.
    pub(super) fn check_invariants(&self, member: usize) {
        let precise = self.precise_sum(member);
        let shape = &self.layout.shape;
        if self.front.has_one_slot {
            return;
        }
        let mut accounted = self.root(member);
        for slot in self.cells.touched(member) {
            let residual = shape.leaf.residual(self.cells.load(slot, member));
            accounted = accounted.wrapping_add(residual);
        }
        for (level, nodes) in self.nodes_by_level() {
            for node in nodes {
                // Relaxed: the counter is at rest, by contract.
                let value = node.0[member].load(Ordering::Relaxed);
                assert!(
                    value % level.quantum == 0,
                    "a node of {level:?} holds {value}, which is no sum of carries"
                );
                accounted = accounted.wrapping_add(level.modulus.residual(value));
            }
        }
        assert!(
            accounted << 1 == precise << 1,
            "root and residuals make {accounted}, but the words of all CPUs make {precise}"
        );
        let ((), in_hand) = self.in_hand_around(|| ());
        assert!(in_hand == 0, "{in_hand} are in hand, of a counter at rest");
    }

    /// Returns the levels between words and root, each with its nodes.
    fn nodes_by_level(&self) -> impl Iterator<Item = (&Level, &[Node])> {
        let levels = &self.layout.shape.levels;
        let ends = levels
            .iter()
            .skip(1)
            .map(|next| next.first)
            .chain([self.nodes.len()]);
        levels
            .iter()
            .zip(ends)
            .map(|(level, end)| (level, &self.nodes[level.first..end]))
    }

    /// Returns the position of a slot: that of its CPU, and behind all of them for the extra slot.
    /// Positions outside the shape carry straight into the root.
    fn position(&self, slot: usize) -> usize {
        if slot < self.layout.topology.nr_cpus() {
            self.layout.topology.position(CpuId::from_index(slot))
        } else {
            slot
        }
    }

    fn begun(&self) -> usize {
        self.members
    }

    fn ended(&self) -> usize {
        self.members + 1
    }

    /// Returns the word of node `index`.
    #[cfg(all(test, not(loom)))]
    pub(super) fn node(&self, index: usize, member: usize) -> &AtomicI64 {
        let inner = self.nodes.get(index);
        inner.map_or(&self.front.root[member], |node| &node.0[member])
    }
}
