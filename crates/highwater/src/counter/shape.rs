//! The shape of a counter tree: its levels and nodes, and the arithmetic of rounding.

use std::iter;

use super::Accuracy;
use crate::percpu::Touched;

/// Number of CPUs that share a parent, as a power of two, for each level from the CPUs up, indexed
/// by the order of the tree: the logarithm of the number of positions, rounded up.
///
/// Three levels up to 512 CPUs, four up to 4,096, five beyond; the larger fan-ins are at the CPU
/// end, where sharers are neighbours.
///
/// Source: the table of the percpu counter tree proposed for Linux (v17,
/// `lib/percpu_counter_tree`).
const ARITIES: [&[u32]; 21] = [
    &[],
    &[1],
    &[1, 1],
    &[1, 1, 1],
    &[2, 1, 1],
    &[2, 2, 1],
    &[2, 2, 2],
    &[3, 2, 2],
    &[3, 3, 2],
    &[3, 3, 3],
    &[3, 3, 2, 2],
    &[3, 3, 3, 2],
    &[3, 3, 3, 3],
    &[3, 3, 3, 2, 2],
    &[3, 3, 3, 3, 2],
    &[3, 3, 3, 3, 3],
    &[4, 3, 3, 3, 3],
    &[4, 4, 3, 3, 3],
    &[4, 4, 4, 3, 3],
    &[4, 4, 4, 4, 3],
    &[4, 4, 4, 4, 4],
];

// Each row reaches exactly as many CPUs as its order.
const _: () = {
    let mut order = 0;
    while order < ARITIES.len() {
        let (mut level, mut reach) = (0, 0);
        while level < ARITIES[order].len() {
            reach += ARITIES[order][level];
            level += 1;
        }
        assert!(reach as usize == order);
        order += 1;
    }
};

/// Maximum positions of a tree.
const POSITIONS_MAX: usize = 1 << (ARITIES.len() - 1);

/// The power of two to whose multiples the words of one level are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modulus {
    shift: u32,
}

impl Modulus {
    pub(super) const fn from_shift(shift: u32) -> Self {
        assert!(0 < shift && shift < 63);
        Self { shift }
    }

    pub(super) const fn shift(self) -> u32 {
        self.shift
    }

    pub(super) const fn get(self) -> i64 {
        1 << self.shift
    }

    /// The constant offset of every word of the level. It is added when a word is rounded instead
    /// of being stored in it, so that words hold true contributions and sums need no correction.
    pub(super) const fn half(self) -> i64 {
        self.get() / 2
    }

    /// Returns which multiple of the modulus is nearest to `value`; halves round up.
    const fn quotient(self, value: i64) -> i64 {
        value.wrapping_add(self.half()) >> self.shift
    }

    /// Returns the nearest multiple of the modulus: the part of `value` that the level above
    /// counts.
    pub(super) const fn rounded(self, value: i64) -> i64 {
        self.quotient(value) << self.shift
    }

    /// Returns the rest of rounding, from `-half()` to `half() - 1`: the part that the level above
    /// misses.
    pub(super) const fn residual(self, value: i64) -> i64 {
        value.wrapping_sub(self.rounded(value))
    }

    /// Returns the amount that an update of a word from `old` to `new` adds to the level above:
    /// `rounded(new) - rounded(old)`, also when the word wraps around.
    #[inline]
    pub(super) const fn carry(self, old: i64, new: i64) -> i64 {
        self.quotient(new).wrapping_sub(self.quotient(old)) << self.shift
    }

    /// Whether adding `amount` leaves every residual unchanged.
    pub(super) const fn divides(self, amount: i64) -> bool {
        amount & (self.get() - 1) == 0
    }
}

/// A level of shared nodes between the per-CPU words and the root.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    pub(super) modulus: Modulus,
    /// Modulus of the level below, of which every carry into this one is a multiple.
    pub(super) quantum: i64,
    /// Index of this level's first node among all nodes.
    pub(super) first: usize,
    /// Logarithm of the number of positions below each node.
    pub(super) span_shift: u32,
}

impl Level {
    /// Returns the index of the node above `position`.
    pub(super) const fn node(&self, position: usize) -> usize {
        self.first + (position >> self.span_shift)
    }
}

/// Levels, nodes and accuracy of a tree over some number of positions, and of words that have no
/// position: the extra slot's, and those of CPUs that were offline when they were numbered. Such a
/// word carries straight into the root.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    positions: usize,
    /// Modulus of the per-CPU words: the batch.
    pub(super) leaf: Modulus,
    /// Modulus of the level right below the root: the largest step that the root makes at once.
    top: Modulus,
    /// Levels from the CPUs up, without the root.
    pub(super) levels: Box<[Level]>,
    /// All shared nodes, the root included. None for a single word, which is the root.
    pub(super) nr_nodes: usize,
    /// Accuracy once every word was added to.
    pub(super) accuracy_max: Accuracy,
}

impl Shape {
    /// Returns a tree over `positions`, with `apart` words without a position.
    pub(super) fn new(positions: usize, apart: usize, leaf: Modulus) -> Self {
        assert!(
            (1..=POSITIONS_MAX).contains(&positions),
            "a counter tree has 1 to {POSITIONS_MAX} positions, not {positions}"
        );
        let order = positions.next_power_of_two().ilog2();
        let arities = ARITIES[order as usize];
        let mut shape = Self {
            positions,
            leaf,
            top: leaf,
            levels: Box::default(),
            nr_nodes: 0,
            accuracy_max: Accuracy { under: 0, over: 0 },
        };
        if positions + apart == 1 {
            return shape;
        }
        let mut levels = Vec::new();
        let (mut span_shift, mut below) = (0, leaf);
        // The last fan-in is the root's; the root rounds nothing.
        for arity in &arities[..arities.len().saturating_sub(1)] {
            span_shift += arity;
            let level = Level {
                modulus: Modulus::from_shift(leaf.shift + span_shift),
                quantum: below.get(),
                first: shape.nr_nodes,
                span_shift,
            };
            let width = positions.div_ceil(1 << span_shift);
            shape.nr_nodes += width;
            below = level.modulus;
            levels.push(level);
        }
        shape.nr_nodes += 1;
        shape.top = below;
        shape.levels = levels.into_boxed_slice();
        let nodes = |span_shift: u32| positions.div_ceil(1 << span_shift);
        shape.accuracy_max = shape.accuracy(positions + apart, nodes);
        shape
    }

    /// Returns the levels above the word at `position`; none above a word without one.
    pub(super) fn levels_above(&self, position: usize) -> &[Level] {
        match position < self.positions {
            true => &self.levels,
            false => &[],
        }
    }

    /// Returns the error bounds of the root, given the slots that were ever added to, as positions:
    /// the residuals of all other words and nodes are zero.
    pub(super) fn accuracy_of(&self, touched: &Touched) -> Accuracy {
        let words = touched.iter().count();
        self.accuracy(words, |span_shift| touched.runs(span_shift, self.positions))
    }

    /// Returns the error bounds of the root while `words` words, and for each level `nodes(s)` runs
    /// of `1 << s` neighbours, have residuals.
    ///
    /// Residuals are the multiples of a level's quantum from `-half` to `half - quantum`.
    fn accuracy(&self, words: usize, nodes: impl Fn(u32) -> usize) -> Accuracy {
        let words = (self.leaf, 1, words);
        let levels = self.levels.iter();
        let levels = levels.map(|level| (level.modulus, level.quantum, nodes(level.span_shift)));
        let mut accuracy = Accuracy { under: 0, over: 0 };
        for (modulus, quantum, width) in iter::once(words).chain(levels) {
            let width = i64::try_from(width).expect("at most 2^20 positions");
            accuracy.under += width * (modulus.half() - quantum);
            accuracy.over += width * modulus.half();
        }
        accuracy
    }

    /// Returns the maximum that an update of `delta` can have in hand between two levels: the
    /// delta, rounded up to a multiple of the largest modulus.
    pub(super) fn in_hand_max(&self, delta: u64) -> i64 {
        let below = self.top.get().unsigned_abs() - 1;
        let carry = delta.saturating_add(below) & !below;
        i64::try_from(carry).unwrap_or(i64::MAX)
    }
}
