//! The hierarchical per-CPU counter (`percpu_counter_tree`) as published, and with single changes
//! towards the library's tree.
//!
//! ```text
//! level 0: a word for each CPU, never reset      words, modulus 32 (the batch)
//!   carry when it passes a multiple of the modulus
//! level 1: nodes on lines of their own           modulus 32 x fan-in
//!   :
//! root                                           the approximate sum
//! ```
//!
//! As published: every level rounds **down**, so that every residual is positive and the root is
//! too low by half of the bound on average. The node of a CPU is its number **modulo** the number
//! of nodes, a power of two, so that the CPUs of a node are spread over the machine. The promised
//! interval is symmetric except for one, although the root can never be too high.
//!
//! [`Rounding`] and [`Grouping`] switch the first two to the library's choices. All four
//! combinations keep the same words and the same traffic, which shows the effect of each change;
//! both together are an independent implementation of the library's tree, for comparison.
//!
//! Source: the percpu counter tree proposed for Linux, v17: fan-ins, carry, skip and accuracy.
//! Deviation: the per-CPU words are the library's [`Cells`], on lines of their own. No bias.

use std::iter;
use std::sync::atomic::{AtomicI64, Ordering};

use highwater::counter::Accuracy;
use highwater::lab::percpu::{Added, Cells, Regime};
use highwater::topology::Topology;
use highwater::units::{CpuId, Estimate};

use super::{Counter, End, Line, Traffic, TreeShape};

/// Events between two carries of a word; a power of two.
pub const BATCH: i64 = 32;

/// Number of words that share a parent, as a power of two, from the CPUs up, by the logarithm of
/// the number of CPUs, rounded up.
#[rustfmt::skip]
const FAN_INS: [&[u32]; 21] = [
    &[], &[1], &[1, 1], &[1, 1, 1],
    &[2, 1, 1], &[2, 2, 1], &[2, 2, 2],
    &[3, 2, 2], &[3, 3, 2], &[3, 3, 3],
    &[3, 3, 2, 2], &[3, 3, 3, 2], &[3, 3, 3, 3],
    &[3, 3, 3, 2, 2], &[3, 3, 3, 3, 2], &[3, 3, 3, 3, 3],
    &[4, 3, 3, 3, 3], &[4, 4, 3, 3, 3], &[4, 4, 4, 3, 3], &[4, 4, 4, 4, 3], &[4, 4, 4, 4, 4],
];

/// How a word is rounded to a multiple of its modulus for the level above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the next lower one, as published.
    Down,
    /// To the nearest one.
    Nearest,
}

/// Which words share a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Words of CPUs with equal numbers modulo the number of nodes, as published.
    Modulo,
    /// Words of neighbouring CPUs.
    Contiguous,
}

/// A node that several CPUs add to, on a line of its own.
///
/// Written by: any CPU below it. Read by: the same addition; the root by any thread. Publishes:
/// only itself.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Node(AtomicI64);

/// A level between words and root.
#[derive(Debug)]
struct Level {
    modulus: i64,
    /// Modulus of the level below: carries into this level are multiples of it.
    quantum: i64,
    /// Logarithm of the number of words below a node.
    span_shift: u32,
    nodes: Box<[Node]>,
}

/// A counter tree, as published or changed in one way or two.
#[derive(Debug)]
pub struct TreeCounter {
    cells: Cells,
    topology: Topology,
    rounding: Rounding,
    grouping: Grouping,
    order: u32,
    levels: Vec<Level>,
    root: Node,
    /// Interval of a cheap read.
    accuracy: Accuracy,
}

impl TreeCounter {
    /// Creates a counter at zero, as published.
    ///
    /// # Panics
    ///
    /// When the machine has more than 2^20 CPUs.
    #[must_use]
    pub fn published(topology: &Topology, regime: Regime) -> Self {
        Self::new(topology, regime, Rounding::Down, Grouping::Modulo)
    }

    /// Creates a counter at zero with the given rounding and grouping.
    ///
    /// # Panics
    ///
    /// When the machine has more than 2^20 CPUs.
    #[must_use]
    pub fn new(
        topology: &Topology,
        regime: Regime,
        rounding: Rounding,
        grouping: Grouping,
    ) -> Self {
        let cells = Cells::new(regime, topology.nr_cpus(), 1);
        let order = cells.slots().next_power_of_two().ilog2();
        let fan_ins = FAN_INS[order as usize];
        let (mut levels, mut span_shift, mut quantum) = (Vec::new(), 0, BATCH);
        // The last fan-in is the root's.
        for fan_in in &fan_ins[..fan_ins.len().saturating_sub(1)] {
            span_shift += fan_in;
            let width = match grouping {
                Grouping::Modulo => 1 << (order - span_shift),
                Grouping::Contiguous => cells.slots().div_ceil(1 << span_shift),
            };
            let modulus = BATCH << span_shift;
            levels.push(Level {
                modulus,
                quantum,
                span_shift,
                nodes: (0..width).map(|_| Node::default()).collect(),
            });
            quantum = modulus;
        }
        let mut tree = Self {
            cells,
            topology: topology.clone(),
            rounding,
            grouping,
            order,
            levels,
            root: Node::default(),
            accuracy: Accuracy { under: 0, over: 0 },
        };
        tree.accuracy = match (rounding, grouping) {
            (Rounding::Down, Grouping::Modulo) => tree.published_accuracy(),
            _ => tree.reach(),
        };
        tree
    }

    /// Adds `delta` on the CPU that the calling thread runs on.
    #[inline]
    pub fn add(&self, delta: i64, traffic: &mut impl Traffic) {
        let added = self.cells.add(0, delta);
        self.carry_up(added, delta, traffic);
    }

    #[inline]
    fn carry_up(&self, added: Added, delta: i64, traffic: &mut (impl Traffic + ?Sized)) {
        let old = added.new.wrapping_sub(delta);
        let carry = self.carry(BATCH, old, added.new, delta);
        if carry != 0 && self.order > 0 {
            self.climb(added.slot, carry, traffic);
        }
    }

    #[inline(never)]
    fn climb(&self, slot: usize, mut carry: i64, traffic: &mut (impl Traffic + ?Sized)) {
        let cpu = CpuId::from_index(slot);
        for (index, level) in self.levels.iter().enumerate() {
            // The node's residual cannot change: pass the carry on.
            if carry & (level.modulus - 1) == 0 {
                continue;
            }
            let node = self.node(level, slot);
            traffic.wrote(
                Line {
                    level: index,
                    index: node,
                },
                cpu,
            );
            // Relaxed: the carry out depends only on this addition's own values.
            let old = level.nodes[node].0.fetch_add(carry, Ordering::Relaxed);
            carry = self.carry(level.modulus, old, old.wrapping_add(carry), carry);
            if carry == 0 {
                return;
            }
        }
        traffic.wrote(
            Line {
                level: self.levels.len(),
                index: 0,
            },
            cpu,
        );
        // Relaxed: readers need this word alone.
        self.root.0.fetch_add(carry, Ordering::Relaxed);
    }

    #[inline]
    fn carry(&self, modulus: i64, old: i64, new: i64, delta: i64) -> i64 {
        let offset = self.offset(modulus);
        carry(
            modulus,
            old.wrapping_add(offset),
            new.wrapping_add(offset),
            delta,
        )
    }

    /// Returns the amount that is added to a word before it is rounded down.
    #[inline]
    const fn offset(&self, modulus: i64) -> i64 {
        match self.rounding {
            Rounding::Down => 0,
            Rounding::Nearest => modulus / 2,
        }
    }

    /// Returns the node of `level` above a slot.
    fn node(&self, level: &Level, slot: usize) -> usize {
        match self.grouping {
            Grouping::Modulo => slot & (level.nodes.len() - 1),
            Grouping::Contiguous => self.position(slot) >> level.span_shift,
        }
    }

    /// Returns the position of a slot: that of its CPU; the extra slot is behind all of them.
    fn position(&self, slot: usize) -> usize {
        if slot < self.topology.nr_cpus() {
            self.topology.position(CpuId::from_index(slot))
        } else {
            slot
        }
    }

    /// Returns the authors' promise: every level, including the words, has room for as many CPUs as
    /// the next power of two, and each residual may be positive or negative.
    #[must_use]
    pub fn published_accuracy(&self) -> Accuracy {
        let levels = FAN_INS[self.order as usize].iter();
        let units: i64 = levels.map(|_| 1 << self.order).sum();
        Accuracy {
            under: BATCH * units,
            over: (BATCH - 1) * units,
        }
    }

    /// Returns the interval of a cheap read: the authors' promise for their tree, and the true
    /// bounds for the other variants.
    #[must_use]
    pub const fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// Returns the levels and the promise, for code that lays out many counters in another way.
    #[must_use]
    pub fn shape(&self) -> TreeShape {
        let levels = self.levels.iter();
        TreeShape {
            widths: levels.clone().map(|level| level.nodes.len()).collect(),
            moduli: iter::once(BATCH)
                .chain(levels.map(|level| level.modulus))
                .collect(),
            accuracy: self.accuracy(),
        }
    }

    /// CPUs that have a word.
    #[must_use]
    pub fn nr_cpus(&self) -> usize {
        self.topology.nr_cpus()
    }

    /// Returns the nodes of all levels, including the root; the authors call them items.
    #[must_use]
    pub fn items(&self) -> usize {
        let nodes = self.levels.iter().map(|level| level.nodes.len());
        nodes.sum::<usize>() + usize::from(self.order > 0)
    }

    /// Returns the largest (`Under`) or smallest residual of a word of `modulus` whose additions
    /// are multiples of `quantum`.
    const fn extreme(&self, end: End, modulus: i64, quantum: i64) -> i64 {
        match end {
            End::Under => modulus - quantum - self.offset(modulus),
            End::Over => -self.offset(modulus),
        }
    }

    /// Returns words and levels as pairs of modulus and quantum, each with its number of words.
    fn residuals(&self) -> impl Iterator<Item = (i64, i64, usize)> {
        let words = (self.order > 0).then_some((BATCH, 1, self.cells.slots()));
        let levels = self.levels.iter();
        words
            .into_iter()
            .chain(levels.map(|level| (level.modulus, level.quantum, level.nodes.len())))
    }

    fn extreme_error(&self, end: End) -> i64 {
        let each = self.residuals().map(|(modulus, quantum, words)| {
            self.extreme(end, modulus, quantum) * i64::try_from(words).expect("at most 2^20")
        });
        each.sum()
    }
}

/// `floor(new / modulus) * modulus - floor(old / modulus) * modulus`, for `new = old + delta` and a
/// power of two: `delta` rounded toward zero, and one `modulus` more if the bit that `modulus` has
/// set did not change as that amount alone would have changed it.
#[inline]
const fn carry(modulus: i64, old: i64, new: i64, delta: i64) -> i64 {
    let below = modulus - 1;
    let toward_zero = delta.wrapping_add((delta >> 63) & below) & !below;
    let has_passed = (toward_zero ^ old ^ new) & modulus;
    if delta < 0 {
        toward_zero.wrapping_sub(has_passed)
    } else {
        toward_zero.wrapping_add(has_passed)
    }
}

impl Counter for TreeCounter {
    fn lines(&self) -> Vec<usize> {
        let levels = self.levels.iter().map(|level| level.nodes.len());
        levels.chain((self.order > 0).then_some(1)).collect()
    }

    fn add_on(&self, cpu: CpuId, delta: i64, traffic: &mut dyn Traffic) {
        let added = self.cells.add_on(cpu, 0, delta);
        self.carry_up(added, delta, traffic);
    }

    fn approximate_sum(&self) -> Estimate<i64> {
        if self.order == 0 {
            return Estimate::exact(self.precise_sum());
        }
        // Relaxed: see `Node`.
        let value = self.root.0.load(Ordering::Relaxed);
        let Accuracy { under, over } = self.accuracy;
        Estimate {
            value,
            low: value.saturating_sub(over),
            high: value.saturating_add(under),
        }
    }

    fn precise_sum(&self) -> i64 {
        self.cells.precise_sum(0)
    }

    fn reach(&self) -> Accuracy {
        Accuracy {
            under: self.extreme_error(End::Under),
            over: -self.extreme_error(End::Over),
        }
    }

    fn worst_fill(&self, end: End) -> Vec<(CpuId, i64)> {
        let nr_cpus = self.topology.nr_cpus();
        let mut fill = Vec::new();
        if self.order > 0 {
            let extreme = self.extreme(end, BATCH, 1);
            fill.extend((0..nr_cpus).map(|cpu| (CpuId::from_index(cpu), extreme)));
        }
        for level in &self.levels {
            let extreme = self.extreme(end, level.modulus, level.quantum);
            // One CPU below each node.
            let mut is_filled = vec![false; level.nodes.len()];
            for cpu in 0..nr_cpus {
                let node = self.node(level, cpu);
                if !std::mem::replace(&mut is_filled[node], true) {
                    fill.push((CpuId::from_index(cpu), extreme));
                }
            }
        }
        fill
    }

    fn bytes(&self) -> u64 {
        /// A word is as wide as a pointer.
        const WORD: u64 = 8;
        let words = WORD * self.cells.nr_cpus() as u64;
        (self.items() * size_of::<Node>()) as u64 + words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::{Ledger, TransferCosts, Untracked, tests as shared};

    const WAYS: [(Rounding, Grouping); 4] = [
        (Rounding::Down, Grouping::Modulo),
        (Rounding::Down, Grouping::Contiguous),
        (Rounding::Nearest, Grouping::Modulo),
        (Rounding::Nearest, Grouping::Contiguous),
    ];

    fn published(cpus: usize) -> TreeCounter {
        TreeCounter::published(&Topology::flat(cpus), Regime::Atomic)
    }

    /// Goal: the parity form equals the difference of floors. Method: every old value and delta
    /// within four times a modulus in both directions, and around the ends of the word.
    #[test]
    fn parity_carries_are_differences_of_floors() {
        for modulus in [2_i64, 4, 32, 256] {
            let floor = |value: i64| value.div_euclid(modulus).wrapping_mul(modulus);
            for delta in -4 * modulus..=4 * modulus {
                let middle = -4 * modulus..=4 * modulus;
                let ends = (0..4 * modulus).flat_map(|back| [i64::MAX - back, i64::MIN + back]);
                for old in middle.chain(ends) {
                    let new = old.wrapping_add(delta);
                    let wanted = floor(new).wrapping_sub(floor(old));
                    assert_eq!(
                        carry(modulus, old, new, delta),
                        wanted,
                        "{old} + {delta} modulo {modulus}"
                    );
                }
            }
            for delta in [i64::MIN, i64::MAX] {
                for old in [0, 1, -1, modulus, i64::MIN, i64::MAX] {
                    let new = old.wrapping_add(delta);
                    let wanted = floor(new).wrapping_sub(floor(old));
                    assert_eq!(carry(modulus, old, new, delta), wanted, "{old} + {delta}");
                }
            }
        }
    }

    /// Goal: the number of nodes is the published one. Method: the authors' table by order.
    #[test]
    fn items_are_those_of_the_table() {
        const ITEMS: [usize; 16] = [
            0, 1, 3, 7, 7, 11, 21, 21, 37, 73, 149, 293, 585, 1173, 2341, 4681,
        ];
        for (order, items) in ITEMS.into_iter().enumerate() {
            assert_eq!(published(1 << order).items(), items, "order {order}");
        }
        assert_eq!(published(384).items(), 73);
        assert_eq!(published(384).bytes() * 4, 18_688 + 12_288);
        assert_eq!(published(256).bytes() * 4, 9_472 + 8_192);
    }

    /// Goal: promise and reach are those of the specification's table, in pages.
    #[test]
    fn bounds_are_those_of_the_table() {
        let both = |cpus| {
            let tree = published(cpus);
            (tree.published_accuracy(), tree.reach())
        };
        let accuracy = |under, over| Accuracy { under, over };
        assert_eq!(both(1).1, accuracy(0, 0));
        assert_eq!(both(8).0, accuracy(3 * 256, 93 * 8));
        assert_eq!(
            both(384),
            (accuracy(49_152, 47_616), accuracy(40_576, 0)),
            "192 and 186 MiB promised, 158.5 MiB reached"
        );
        assert_eq!(both(8192).0, accuracy(5120 * 256, 4960 * 256));
        assert_eq!(both(8192).1, accuracy(4448 * 256, 0));
        let contiguous = |rounding| {
            let topology = Topology::flat(384);
            TreeCounter::new(&topology, Regime::Atomic, rounding, Grouping::Contiguous).reach()
        };
        assert_eq!(contiguous(Rounding::Down), accuracy(33_408, 0));
        assert_eq!(contiguous(Rounding::Nearest), accuracy(14_976, 18_432));
    }

    /// Goal: a carry that cannot change a level skips it. Method: a huge page on 384 CPUs.
    #[test]
    fn huge_pages_skip_the_first_level() {
        let tree = published(384);
        let topology = Topology::flat(384);
        let mut ledger = Ledger::new(&topology, TransferCosts::default(), &tree.lines());
        tree.add_on(CpuId(3), 512, &mut ledger);
        assert_eq!(ledger.writes_by_level(), [0, 1, 0]);
        tree.add_on(CpuId(3), 2048, &mut ledger);
        assert_eq!(
            ledger.writes_by_level(),
            [0, 1, 1],
            "all levels are skipped"
        );
        tree.add_on(CpuId(3), 33, &mut ledger);
        assert_eq!(ledger.writes_by_level(), [1, 1, 1]);
    }

    /// Goal: around empty, rounding down writes every level at each step, and rounding to nearest
    /// none. Method: one page back and forth on 384 CPUs.
    #[test]
    fn pages_back_and_forth_around_empty() {
        let topology = Topology::flat(384);
        for (rounding, per_step) in [(Rounding::Down, 3), (Rounding::Nearest, 0)] {
            let tree = TreeCounter::new(&topology, Regime::Atomic, rounding, Grouping::Modulo);
            let mut ledger = Ledger::new(&topology, TransferCosts::default(), &tree.lines());
            for _ in 0..1000 {
                tree.add_on(CpuId(7), -1, &mut ledger);
                tree.add_on(CpuId(7), 1, &mut ledger);
            }
            assert_eq!(ledger.writes(), 2000 * per_step, "{rounding:?}");
        }
    }

    /// Goal: nothing is lost, the bound holds and is reached, with any rounding and grouping.
    #[test]
    fn keeps_what_counters_promise() {
        for (rounding, grouping) in WAYS {
            for cpus in [1, 2, 3, 64, 250, 384] {
                shared::keeps_its_promises(cpus, || {
                    let topology = Topology::flat(cpus);
                    let tree = TreeCounter::new(&topology, Regime::Atomic, rounding, grouping);
                    Box::new(tree)
                });
            }
        }
    }

    /// Goal: threads lose nothing, and the root is short of exactly the residuals.
    #[test]
    fn concurrent_adds_are_exact() {
        for (rounding, grouping) in WAYS {
            let machine = Topology::detect();
            let here = TreeCounter::new(&machine, Regime::Restartable, rounding, grouping);
            shared::adds_from_threads_are_exact(|delta| here.add(delta, &mut Untracked));
            assert_eq!(here.precise_sum(), shared::THREADS_SUM);
            assert!(here.approximate_sum().contains(shared::THREADS_SUM));
            let acting = TreeCounter::new(&Topology::flat(64), Regime::Atomic, rounding, grouping);
            shared::adds_from_threads_are_exact(|delta| {
                acting.add_on(CpuId(1), delta, &mut Untracked);
            });
            assert_eq!(acting.precise_sum(), shared::THREADS_SUM);
            assert!(acting.approximate_sum().contains(shared::THREADS_SUM));
        }
    }
}
