//! Adversary for stated bounds: fills statistics so that a read that need not flush is as wrong as
//! possible.
//!
//! Single-threaded, so that the truth is known and one seed gives one outcome. Each attack adds one
//! amount on every CPU in turn, repeatedly, to one leaf or to all leaves below one group, to one
//! item or to two, in one direction or both. Reads of the leaf, of its parent and of the root
//! follow at every stage.

use std::time::Duration;

use highwater::units::CpuId;

use crate::baselines::flush::{Flushing, Item, Shape};
use crate::control::Control;
use crate::experiments::ExperimentError;
use crate::experiments::truth::Truth;
use crate::report::{Row, Source};

const ATTACKS: &str = "filled to be as stale as possible: every CPU, one thread";

/// Leaves below the attacked group.
const LEAVES: usize = 10;

/// Amounts around a CPU's unflushed limit, and above all thresholds.
const AMOUNTS: [i64; 8] = [1, 7, 31, 32, 63, 64, 65, 1000];

/// Passes over the CPUs in each attack.
const PASSES: i64 = 3;

/// No time passes: only updates make reads flush.
const NOW: Duration = Duration::ZERO;

/// The additions of one pass.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Adds to one leaf.
    OneLeaf,
    /// The same, one less in each pass: probes what a CPU may count and what it may keep after
    /// that.
    OneLess,
    /// Adds to all leaves in turn.
    AllLeaves,
    /// CPUs alternate between adding and subtracting.
    BothWays,
    /// Each CPU adds, then subtracts the same.
    ThereAndBack,
    /// Alternates between two items.
    TwoItems,
}

const ALL: [Attack; 6] = [
    Attack::OneLeaf,
    Attack::OneLess,
    Attack::AllLeaves,
    Attack::BothWays,
    Attack::ThereAndBack,
    Attack::TwoItems,
];

/// Results of attacks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attacked {
    reads: u64,
    /// The largest error of a read, and the largest bound that a read stated.
    worst: u64,
    bound: u64,
    /// Reads whose error exceeded their stated bound.
    pub(super) violations: u64,
}

/// Steps that [`Attacked::run`] reports.
pub(super) const STEPS: u64 = (ALL.len() * AMOUNTS.len()) as u64;

impl Attacked {
    /// Attacks new statistics of a shape, made by `make`.
    pub(super) fn run(
        nr_cpus: usize,
        make: impl Fn(&Shape) -> Box<dyn Flushing>,
        control: &Control,
    ) -> Result<Self, ExperimentError> {
        let mut attacked = Self::default();
        let shape = Shape::of(1, LEAVES);
        for attack in ALL {
            for amount in AMOUNTS {
                let statistics = make(&shape);
                let truth = Truth::new(&shape, 1);
                for nth in 0..PASSES {
                    let less = matches!(attack, Attack::OneLess);
                    let amount = if less { amount - nth } else { amount };
                    for cpu in 0..nr_cpus {
                        pass(attack, amount, cpu, &*statistics, &truth);
                        // Reads at a prime distance, so that they fall on all places of a pattern.
                        if cpu % 37 == 36 || cpu + 1 == nr_cpus {
                            attacked.look(&*statistics, &truth);
                        }
                    }
                }
                control.advance(1)?;
            }
        }
        Ok(attacked)
    }

    /// Reads the attacked leaf, its parent, and the root.
    fn look(&mut self, statistics: &dyn Flushing, truth: &Truth) {
        for group in [2, 1, 0] {
            let before = truth.before(group);
            let read = statistics.read(group, NOW);
            let off = truth.off(group, &before, &read.values);
            self.reads += 1;
            self.worst = self.worst.max(off.own);
            if let Some(bound) = read.staleness {
                self.bound = self.bound.max(bound);
                self.violations += u64::from(off.own > bound);
            }
        }
    }

    pub(super) fn row(&self, variant: &str) -> Row {
        Row::new(ATTACKS, Source::Run, variant)
            .with("reads", self.reads)
            .with("worst_pages", self.worst)
            .with("stated_most_pages", self.bound)
            .with("beyond_stated", self.violations)
    }
}

fn pass(attack: Attack, amount: i64, cpu: usize, statistics: &dyn Flushing, truth: &Truth) {
    let add = |leaf: usize, item: Item, delta: i64| {
        let group = 2 + leaf;
        truth.follow(0, group, item, delta, || {
            statistics.add(group, CpuId::from_index(cpu), item, delta);
        });
    };
    match attack {
        Attack::OneLeaf | Attack::OneLess => add(0, Item::Anon, amount),
        Attack::AllLeaves => (0..LEAVES).for_each(|leaf| add(leaf, Item::Anon, amount)),
        Attack::BothWays => add(
            0,
            Item::Anon,
            if cpu.is_multiple_of(2) {
                amount
            } else {
                -amount
            },
        ),
        Attack::ThereAndBack => {
            add(0, Item::Anon, amount);
            add(0, Item::Anon, -amount);
        }
        Attack::TwoItems => {
            add(0, Item::Anon, -amount);
            add(0, Item::Pgfault, amount);
        }
    }
}
