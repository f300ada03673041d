//! Per-node atomics: one atomic for each memory node, folded into one for the machine.
//!
//! An update is an atomic addition to the word of its CPU's node, which all CPUs of the node share.
//! A word that reaches the threshold is moved to the total: the total is increased first, then the
//! word is decreased, so that a reader in between counts it twice. The authors state an error of 32
//! pages a node; the threshold, and with it the bound, grows with the CPUs of a node:
//! `nodes * (max(32, 2 * CPUs of a node) - 1)`.
//!
//! Source: per-NUMA-node atomics for resident pages, proposed for Linux by S. Dorminy, 2025.
//! Deviation: a socket is a node.

use std::sync::atomic::{AtomicI64, Ordering};

use highwater::counter::Accuracy;
use highwater::topology::{Sharing, Topology};
use highwater::units::{CpuId, Estimate};

use super::{Counter, End, Line, Traffic};

/// Nodes with words of their own; others share them.
const NODES_MAX: usize = 32;

/// The threshold of nodes with few CPUs.
const THRESHOLD_MIN: i64 = 32;

/// The line that folds write.
const TOTAL: Line = Line { level: 1, index: 0 };

/// An atomic on a line of its own. Publishes only itself.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Word(AtomicI64);

/// A counter with an atomic for each node of the machine.
#[derive(Debug)]
pub struct PerNodeCounter {
    /// The node of each CPU.
    nodes: Box<[usize]>,
    words: Box<[Word]>,
    threshold: i64,
    total: Word,
}

impl PerNodeCounter {
    /// Creates a counter at zero.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let mut first_cpus: Vec<CpuId> = Vec::new();
        let mut sizes: Vec<i64> = Vec::new();
        let mut nodes = Vec::with_capacity(topology.nr_cpus());
        for cpu in (0..topology.nr_cpus()).map(CpuId::from_index) {
            let same = |&first: &CpuId| topology.sharing(first, cpu) <= Sharing::Socket;
            let node = first_cpus.iter().position(same).unwrap_or_else(|| {
                first_cpus.push(cpu);
                sizes.push(0);
                first_cpus.len() - 1
            });
            sizes[node] += 1;
            nodes.push(node % NODES_MAX);
        }
        let largest = sizes.into_iter().max().unwrap_or(0);
        let words = first_cpus.len().min(NODES_MAX);
        Self {
            nodes: nodes.into_boxed_slice(),
            words: (0..words).map(|_| Word::default()).collect(),
            threshold: THRESHOLD_MIN.max(2 * largest),
            total: Word::default(),
        }
    }

    /// Adds `delta` as if running on `cpu`.
    #[inline]
    pub fn add(&self, cpu: CpuId, delta: i64, traffic: &mut (impl Traffic + ?Sized)) {
        let node = self.nodes[cpu.index()];
        let word = &self.words[node].0;
        let line = Line {
            level: 0,
            index: node,
        };
        traffic.wrote(line, cpu);
        // Relaxed, here and below: each word is used on its own.
        let value = word.fetch_add(delta, Ordering::Relaxed).wrapping_add(delta);
        if value.abs() >= self.threshold {
            traffic.wrote(TOTAL, cpu);
            self.total.0.fetch_add(value, Ordering::Relaxed);
            traffic.wrote(line, cpu);
            word.fetch_sub(value, Ordering::Relaxed);
        }
    }
}

impl Counter for PerNodeCounter {
    fn lines(&self) -> Vec<usize> {
        vec![self.words.len(), 1]
    }

    fn add_on(&self, cpu: CpuId, delta: i64, traffic: &mut dyn Traffic) {
        self.add(cpu, delta, traffic);
    }

    fn approximate_sum(&self) -> Estimate<i64> {
        let Accuracy { under, over } = self.reach();
        // Relaxed: see `Word`.
        let value = self.total.0.load(Ordering::Relaxed);
        Estimate {
            value,
            low: value - over,
            high: value + under,
        }
    }

    fn precise_sum(&self) -> i64 {
        // Relaxed: see `Word`.
        let words = self.words.iter().map(|word| word.0.load(Ordering::Relaxed));
        words.sum::<i64>() + self.total.0.load(Ordering::Relaxed)
    }

    fn reach(&self) -> Accuracy {
        let words = i64::try_from(self.words.len()).expect("at most 32 nodes");
        let all = words * (self.threshold - 1);
        Accuracy {
            under: all,
            over: all,
        }
    }

    fn worst_fill(&self, end: End) -> Vec<(CpuId, i64)> {
        let residual = match end {
            End::Under => self.threshold - 1,
            End::Over => 1 - self.threshold,
        };
        let of_node = |node: usize| {
            let cpu = self.nodes.iter().position(|&other| other == node);
            cpu.map(|cpu| (CpuId::from_index(cpu), residual))
        };
        (0..self.words.len()).filter_map(of_node).collect()
    }

    fn bytes(&self) -> u64 {
        ((self.words.len() + 1) * size_of::<Word>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baselines::{Ledger, TransferCosts, Untracked, tests as shared};

    /// Goal: CPUs of one node share a word, and a word is moved when it reaches the threshold.
    /// Method: two sockets of eight CPUs, threshold 32.
    #[test]
    fn a_word_is_moved_at_the_threshold() {
        let machine: Topology = "2x2x2x2".parse().unwrap();
        let counter = PerNodeCounter::new(&machine);
        let mut ledger = Ledger::new(&machine, TransferCosts::default(), &counter.lines());
        assert_eq!(counter.lines(), [2, 1]);
        counter.add_on(CpuId(0), 15, &mut ledger);
        counter.add_on(CpuId(7), 16, &mut ledger);
        counter.add_on(CpuId(8), 31, &mut ledger);
        assert_eq!(counter.approximate_sum().value, 0);
        counter.add_on(CpuId(3), 1, &mut ledger);
        assert_eq!(counter.approximate_sum().value, 32);
        assert_eq!(counter.precise_sum(), 63);
        assert_eq!(ledger.writes_by_level(), [5, 1]);
    }

    /// Goal: nothing is lost, and the bound holds and is reached.
    #[test]
    fn keeps_what_counters_promise() {
        for shape in ["1x1x1x1", "1x1x2x1", "2x12x8x2", "64x1x2x1"] {
            let machine: Topology = shape.parse().unwrap();
            shared::keeps_its_promises(machine.nr_cpus(), || {
                Box::new(PerNodeCounter::new(&machine))
            });
        }
        let server: Topology = "2x12x8x2".parse().unwrap();
        assert_eq!(PerNodeCounter::new(&server).reach().under, 2 * 383);
    }

    /// Goal: threads lose nothing.
    #[test]
    fn concurrent_adds_are_exact() {
        let counter = PerNodeCounter::new(&Topology::flat(2));
        shared::adds_from_threads_are_exact(|delta| counter.add(CpuId(1), delta, &mut Untracked));
        assert_eq!(counter.precise_sum(), shared::THREADS_SUM);
    }
}
