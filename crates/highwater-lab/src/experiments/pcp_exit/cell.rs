//! The rounds of one variant, and their statistics.

use super::bystander::Stood;
use super::round::{FreeBlocks, Round};
use super::variants::Variant;
use crate::experiments::buckets::Buckets;
use crate::experiments::clock::median;
use crate::report::text::to_f64;

/// A variant and its rounds.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) variant: Variant,
    pub(super) rounds: Vec<Round>,
}

/// The cell of the variant called `name`.
pub(super) fn cell<'a>(cells: &'a [Cell], name: &str) -> &'a Cell {
    let found = cells.iter().find(|cell| cell.variant.name == name);
    found.expect("every variant runs")
}

impl Round {
    pub(super) fn freed_per_s(&self) -> f64 {
        to_f64(self.freed) / self.exit_s
    }

    pub(super) fn exits_per_s(&self) -> f64 {
        to_f64(self.exits) / self.exit_s
    }

    /// Returns the mean hold time of tenants that exit in turn, in nanoseconds, less the share of
    /// preemption: only other programs preempt such a tenant, in a hold as often as elsewhere.
    pub(super) fn quiet_hold_ns(&self) -> f64 {
        self.exiting.hold_ns() * self.cpu_s / self.exits_s
    }
}

impl Cell {
    pub(super) fn median_of(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).collect())
    }

    /// Returns the median over rounds of a figure relative to another variant's in the same round.
    pub(super) fn against(&self, other: &Self, figure: impl Fn(&Round) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(&other.rounds);
        median(
            pairs
                .map(|(own, other)| figure(own) / figure(other))
                .collect(),
        )
    }

    /// Returns the seconds of zone waits and holds per second of exiting, over all rounds.
    pub(super) fn contention(&self) -> f64 {
        let sum = |part: fn(&Round) -> f64| self.rounds.iter().map(part).sum::<f64>();
        sum(|round| round.exiting.waited_s() + round.exiting.held_s()) / sum(|round| round.exit_s)
    }

    fn merged(&self, part: impl Fn(&Round) -> Buckets) -> Buckets {
        let mut all = Buckets::default();
        for round in &self.rounds {
            all.merge(&part(round));
        }
        all
    }

    /// Returns the times of zone visits (waits and holds) while tenants exited: almost all drain a
    /// list.
    pub(super) fn drains(&self) -> Buckets {
        self.merged(|round| round.exiting.visits())
    }

    /// Returns the same while tenants filled: almost all refill a list.
    pub(super) fn refills(&self) -> Buckets {
        self.merged(|round| round.filling.visits())
    }

    pub(super) fn waits(&self) -> Buckets {
        self.merged(|round| round.exiting.waits())
    }

    pub(super) fn holds(&self) -> Buckets {
        self.merged(|round| round.exiting.holds())
    }

    pub(super) fn stood(&self) -> Stood {
        let mut all = Stood::default();
        for round in &self.rounds {
            all.merge(&round.stood);
        }
        all
    }

    /// Returns the sum over the rounds in which blocks were counted: the same rounds of every
    /// variant, from the same seeds.
    pub(super) fn blocks(&self) -> Option<FreeBlocks> {
        let counted = self.rounds.iter().filter_map(|round| round.blocks);
        counted.reduce(|all, blocks| FreeBlocks {
            whole: all.whole + blocks.whole,
            possible: all.possible + blocks.possible,
        })
    }
}
