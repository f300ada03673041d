//! The counters that the experiments on hierarchical counters compare, by name.

use std::sync::Arc;

use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::CpuId;

use crate::baselines::{
    Counter, FlatCounter, Grouping, Ledger, LibraryCounter, PerNodeCounter, Rounding,
    SharedCounter, TransferCosts, TreeCounter,
};

/// The kernel's per-CPU counter since 6.2; the discussion calls it upstream.
pub(super) const FLAT: &str = "flat per-CPU (upstream)";
/// The per-CPU counter tree proposed in the discussion.
pub(super) const PUBLISHED: &str = "published tree";
/// The proposal, with neighbouring CPUs under one node.
pub(super) const CONTIGUOUS: &str = "published tree, neighbours";
/// The proposal, with carries rounded to nearest.
pub(super) const NEAREST: &str = "published tree, nearest";
/// The library.
pub(super) const OURS: &str = "Highwater";
/// One atomic for each socket.
pub(super) const PER_NODE: &str = "per-node atomics";
/// One atomic.
pub(super) const SHARED: &str = "one shared atomic";

/// A counter, its name, and the bytes that it wrote.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) counter: Arc<dyn Counter>,
    pub(super) ledger: Ledger,
}

impl Entry {
    fn new(name: &'static str, topology: &Topology, counter: Arc<dyn Counter>) -> Self {
        let ledger = Ledger::new(topology, TransferCosts::default(), &counter.lines());
        Self {
            name,
            counter,
            ledger,
        }
    }

    pub(super) fn add(&mut self, cpu: CpuId, delta: i64) {
        self.counter.add_on(cpu, delta, &mut self.ledger);
    }
}

/// Every counter on one machine, all at zero.
#[derive(Debug)]
pub(super) struct Lineup {
    pub(super) entries: Vec<Entry>,
    /// The library's counter again: it knows whether its second implementation agrees.
    ours: Arc<LibraryCounter>,
}

impl Lineup {
    pub(super) fn new(topology: &Topology) -> Self {
        let cpus = topology.nr_cpus();
        let tree =
            |rounding, grouping| TreeCounter::new(topology, Regime::Atomic, rounding, grouping);
        let ours = Arc::new(LibraryCounter::new(topology));
        let counters: [(&str, Arc<dyn Counter>); 7] = [
            (FLAT, Arc::new(FlatCounter::new(cpus, Regime::Atomic))),
            (PUBLISHED, Arc::new(tree(Rounding::Down, Grouping::Modulo))),
            (
                CONTIGUOUS,
                Arc::new(tree(Rounding::Down, Grouping::Contiguous)),
            ),
            (NEAREST, Arc::new(tree(Rounding::Nearest, Grouping::Modulo))),
            (OURS, Arc::<LibraryCounter>::clone(&ours)),
            (PER_NODE, Arc::new(PerNodeCounter::new(topology))),
            (SHARED, Arc::new(SharedCounter::new())),
        ];
        let entries = counters.map(|(name, counter)| Entry::new(name, topology, counter));
        Self {
            entries: entries.into(),
            ours,
        }
    }

    /// Returns the number of updates and reads in which the library's two implementations differed.
    pub(super) fn disagreements(&self) -> u64 {
        self.ours.disagreements()
    }
}
