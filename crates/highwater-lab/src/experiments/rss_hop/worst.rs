//! Worst cases: each counter's promised bounds, and the error that an adversary reaches.

use highwater::counter::Accuracy;
use highwater::topology::Topology;

use crate::baselines::End;
use crate::experiments::lineup::{Entry, Lineup};
use crate::experiments::pages::bytes;
use crate::report::{Check, Row, Source, Unit};

/// One counter at its worst.
#[derive(Debug)]
pub(super) struct Worst {
    pub(super) name: &'static str,
    /// Its promised bounds.
    pub(super) promised: Accuracy,
    /// Its computed worst case.
    computed: Accuracy,
    /// The adversary's error.
    pub(super) reached: Accuracy,
    /// Whether the exact sum was inside the promised interval in both directions.
    is_inside: bool,
}

/// Returns every counter's worst case on one machine.
pub(super) fn worst_cases(topology: &Topology) -> Vec<Worst> {
    let low = fill(topology, End::Under);
    let high = fill(topology, End::Over);
    low.entries
        .iter()
        .zip(&high.entries)
        .map(|(low, high)| Worst::of(low, high))
        .collect()
}

/// Returns all counters, each filled by its own adversary.
fn fill(topology: &Topology, end: End) -> Lineup {
    let mut lineup = Lineup::new(topology);
    for entry in &mut lineup.entries {
        for (cpu, delta) in entry.counter.worst_fill(end) {
            entry.add(cpu, delta);
        }
    }
    lineup
}

impl Worst {
    fn of(low: &Entry, high: &Entry) -> Self {
        let (seen_low, seen_high) = (
            low.counter.approximate_sum(),
            high.counter.approximate_sum(),
        );
        let (true_low, true_high) = (low.counter.precise_sum(), high.counter.precise_sum());
        Self {
            name: low.name,
            promised: Accuracy {
                under: seen_low.high - seen_low.value,
                over: seen_high.value - seen_high.low,
            },
            computed: low.counter.reach(),
            reached: Accuracy {
                under: true_low - seen_low.value,
                over: seen_high.value - true_high,
            },
            is_inside: seen_low.contains(true_low) && seen_high.contains(true_high),
        }
    }

    pub(super) fn row(&self, part: &'static str) -> Row {
        Row::new(part, Source::Run, self.name)
            .with("promised_under_bytes", bytes(self.promised.under))
            .with("promised_over_bytes", bytes(self.promised.over))
            .with("reached_under_bytes", bytes(self.reached.under))
            .with("reached_over_bytes", bytes(self.reached.over))
    }

    /// Checks that the adversary reaches the computed worst case in both directions, within the
    /// promise.
    pub(super) fn checks(&self, machine: &str, checks: &mut Vec<Check>) {
        let shown = |accuracy: Accuracy| {
            let unit = Unit::Pages;
            #[expect(clippy::cast_precision_loss, reason = "pages for people")]
            let [under, over] =
                [accuracy.under, accuracy.over].map(|pages| unit.shown(pages as f64));
            format!("{under} low, {over} high")
        };
        checks.push(
            Check::counted(format!("{}: the adversary reaches, {machine}", self.name))
                .equal(&shown(self.reached), &shown(self.computed)),
        );
        checks.push(
            Check::counted(format!(
                "{}: stays inside at its worst, {machine}",
                self.name
            ))
            .equal(&self.is_inside, &true),
        );
    }
}
