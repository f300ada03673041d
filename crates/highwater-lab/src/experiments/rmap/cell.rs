//! The rounds of one variant, and their statistics.

use super::clock::ClockKind;
use super::round::Round;
use super::variants::Variant;
use crate::experiments::buckets::{BUCKETS, Buckets};
use crate::experiments::clock::median;
use crate::report::text::to_f64;
use crate::report::{Check, Subject};

/// A variant and its rounds.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) variant: Variant,
    pub(crate) rounds: Vec<Round>,
}

/// The cell of the variant called `name`.
pub(crate) fn cell<'a>(cells: &'a [Cell], name: &str) -> &'a Cell {
    let found = cells.iter().find(|cell| cell.variant.name == name);
    found.expect("every variant runs")
}

fn ratio(own: f64, other: f64) -> f64 {
    if own == other { 1.0 } else { own / other }
}

impl Cell {
    pub(super) fn new(variant: Variant) -> Self {
        Self {
            variant,
            rounds: Vec::new(),
        }
    }

    /// Returns a check of counts: on the simulated clock they are the same in every run.
    pub(super) fn check(&self, name: String) -> Subject {
        match self.variant.clock {
            ClockKind::Simulated => Check::counted(name),
            ClockKind::System => Check::timed(name),
        }
    }

    /// Returns the mean over rounds.
    pub(crate) fn mean_of(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let sum: f64 = self.rounds.iter().map(figure).sum();
        sum / to_f64(self.rounds.len() as u64)
    }

    /// Returns the median over rounds, for comparisons: another program may slow one round down,
    /// and now and then a round takes another course from its start.
    pub(crate) fn median_of(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).collect())
    }

    /// Returns the mean of a counter.
    pub(crate) fn count(&self, name: &str) -> f64 {
        self.mean_of(|round| round.count(name))
    }

    /// Returns the coefficient of variation of a figure over rounds (sample deviation), in percent.
    pub(super) fn variation_percent(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let mean = self.mean_of(&figure);
        let squares: f64 = self
            .rounds
            .iter()
            .map(|round| (figure(round) - mean).powi(2))
            .sum();
        let freedom = to_f64(self.rounds.len() as u64) - 1.0;
        100.0 * (squares / freedom).sqrt() / mean
    }

    /// Returns the median of a figure relative to another variant's. If that is 0, the result is 1
    /// only if this one is 0 too.
    pub(crate) fn against(&self, other: &Self, figure: impl Fn(&Round) -> f64) -> f64 {
        ratio(self.median_of(&figure), other.median_of(&figure))
    }

    /// Returns the mean relative to another variant's median: for promises, which cover every
    /// round.
    pub(crate) fn in_all_against(&self, other: &Self, figure: impl Fn(&Round) -> f64) -> f64 {
        ratio(self.mean_of(&figure), other.median_of(&figure))
    }

    /// Returns A's elapsed seconds.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.median_of(|round| round.elapsed_s)
    }

    /// Returns the median over rounds of pages freed for each page scanned.
    pub(crate) fn efficiency(&self) -> f64 {
        self.median_of(|round| round.freed() / round.scanned())
    }

    /// Returns the same over all rounds together.
    pub(super) fn efficiency_in_all(&self) -> f64 {
        self.mean_of(Round::freed) / self.mean_of(Round::scanned)
    }

    /// Returns the same of one actor, by the names of its counters.
    pub(super) fn efficiency_of(&self, steal: &str, scan: &str) -> f64 {
        self.count(steal) / self.count(scan)
    }

    /// Returns the times for which reclaim was blocked.
    pub(super) fn blocked(&self) -> Buckets {
        let mut all = Buckets::default();
        for round in &self.rounds {
            all.merge(&round.blocked);
        }
        all
    }

    /// Returns the p99.9 of those times; 0 if there were none.
    pub(super) fn blocked_p999_us(&self) -> f64 {
        let blocked = self.blocked();
        match blocked.calls() {
            0 => 0.0,
            _ => blocked.quantile_us(0.999),
        }
    }

    /// Returns the upper bound of the longest of those times, by its bucket.
    pub(super) fn blocked_most_us(&self) -> f64 {
        let blocked = self.blocked();
        let last = (0..BUCKETS).rev().find(|index| blocked.count(*index) > 0);
        last.map_or(0.0, |index| to_f64(Buckets::bounds(index).1) / 1e3)
    }
}
