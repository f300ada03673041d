//! The rounds of one variant, and what they say together.

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

    /// A check of what the variant did: threads that take turns on the simulated clock do the same
    /// in every run.
    pub(super) fn check(&self, name: String) -> Subject {
        match self.variant.clock {
            ClockKind::Simulated => Check::counted(name),
            ClockKind::System => Check::timed(name),
        }
    }

    /// The mean over rounds.
    pub(crate) fn mean_of(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let sum: f64 = self.rounds.iter().map(figure).sum();
        sum / to_f64(self.rounds.len() as u64)
    }

    /// The median over rounds: for what is compared. One round's times may be another program's,
    /// and now and then a round goes another way from its start.
    pub(crate) fn median_of(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).collect())
    }

    /// The mean of a counter.
    pub(crate) fn count(&self, name: &str) -> f64 {
        self.mean_of(|round| round.count(name))
    }

    /// What a figure differs from round to round, in hundredths of its mean: the deviation of a
    /// sample.
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

    /// The median of a figure against another variant's. Where that is 0, this must be 0 as well to
    /// be 1.
    pub(crate) fn against(&self, other: &Self, figure: impl Fn(&Round) -> f64) -> f64 {
        ratio(self.median_of(&figure), other.median_of(&figure))
    }

    /// The mean against another variant's median: for promises, which every round has a part in.
    pub(crate) fn in_all_against(&self, other: &Self, figure: impl Fn(&Round) -> f64) -> f64 {
        ratio(self.mean_of(&figure), other.median_of(&figure))
    }

    /// Seconds that A took.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.median_of(|round| round.elapsed_s)
    }

    /// Pages freed of those looked at: the median.
    pub(crate) fn efficiency(&self) -> f64 {
        self.median_of(|round| round.freed() / round.scanned())
    }

    /// The same over all rounds.
    pub(super) fn efficiency_in_all(&self) -> f64 {
        self.mean_of(Round::freed) / self.mean_of(Round::scanned)
    }

    /// The same of one actor, by its counters' names.
    pub(super) fn efficiency_of(&self, steal: &str, scan: &str) -> f64 {
        self.count(steal) / self.count(scan)
    }

    /// How long reclaim was blocked each time that it was.
    pub(super) fn blocked(&self) -> Buckets {
        let mut all = Buckets::default();
        for round in &self.rounds {
            all.merge(&round.blocked);
        }
        all
    }

    /// What 999 of 1,000 of those times did not exceed; 0 if there were none.
    pub(super) fn blocked_p999_us(&self) -> f64 {
        let blocked = self.blocked();
        match blocked.calls() {
            0 => 0.0,
            _ => blocked.quantile_us(0.999),
        }
    }

    /// What none of those times exceeded, by its bucket.
    pub(super) fn blocked_most_us(&self) -> f64 {
        let blocked = self.blocked();
        let last = (0..BUCKETS).rev().find(|index| blocked.count(*index) > 0);
        last.map_or(0.0, |index| to_f64(Buckets::bounds(index).1) / 1e3)
    }
}
