//! The library's search over growing numbers of spaces, beside a plain scan of as much memory.

use highwater::counter::CounterSet;
use highwater::victim::{Policy, Selector};

use super::latency::{ColdCaches, Lane, choose};
use super::names::OURS;
use super::population::{OurSpaces, Spread, only_ours};
use crate::control::Control;
use crate::experiments::clock::median;
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::{grouped, to_f64};
use crate::report::{Check, Row, Source, Unit};

const SCALE: &str = "time of one selection of Highwater: growing numbers of spaces, 49 of 50 on one CPU, others on 8";

/// Times by number of spaces.
#[derive(Debug)]
pub(super) struct Scale {
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    spaces: OurSpaces,
    hog: usize,
    /// As much memory as the counter sets take.
    plain: Vec<u64>,
    lane: Lane,
    scan_us: Vec<f64>,
}

impl Step {
    fn new(setup: &Setup, nr_spaces: usize, control: &Control) -> Result<Self, ExperimentError> {
        let (spaces, hog) = only_ours(setup, nr_spaces, Spread::MostlyOne, control)?;
        let words = size_of_val(spaces.sets()) / size_of::<u64>();
        Ok(Self {
            spaces,
            hog,
            plain: vec![1; words],
            lane: Lane::new(OURS, None),
            scan_us: Vec::new(),
        })
    }

    fn nr_spaces(&self) -> u64 {
        self.spaces.sets().len() as u64
    }

    fn row(&self) -> Row {
        let us = self.lane.median_us();
        let sets = self.spaces.sets().iter();
        let name = format!("{} spaces", grouped(self.nr_spaces()));
        Row::new(SCALE, Source::Run, name)
            .with("median_us", us)
            .with(
                "plain_scan_of_as_much_memory_us",
                median(self.scan_us.clone()),
            )
            .with("each_space_ns", us * 1e3 / to_f64(self.nr_spaces()))
            .with(
                "with_words_for_all_cpus",
                sets.filter(|set| CounterSet::has_cpu_words(set)).count(),
            )
            .with("exact_sums", self.lane.exact_sums)
    }
}

impl Scale {
    /// Runs all sizes in turn, so that noise of the machine affects all of them.
    pub(super) fn run(
        setup: &Setup,
        sizes: &[usize],
        rounds: u64,
        caches: &mut ColdCaches,
        control: &Control,
    ) -> Result<Self, ExperimentError> {
        let mut selector = Selector::with_capacity(Policy::READS_MAX + 1);
        let mut steps = Vec::new();
        for &nr_spaces in sizes {
            steps.push(Step::new(setup, nr_spaces, control)?);
        }
        for _ in 0..rounds {
            for step in &mut steps {
                let is_hog = |id| id == Some(step.hog);
                let turn = choose(&step.spaces, &mut selector, caches, is_hog);
                step.lane.add(turn);
                let (_, us) = caches.time(|| step.plain.iter().sum::<u64>());
                step.scan_us.push(us);
                control.advance(1)?;
            }
        }
        Ok(Self { steps })
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        self.steps.iter().map(Step::row)
    }

    pub(super) fn right_checks(&self, checks: &mut Vec<Check>) {
        let lanes = || self.steps.iter().map(|step| &step.lane);
        let right: u64 = lanes().map(|lane| lane.times_right).sum();
        let all = lanes().map(Lane::selections).sum();
        let name = "growing numbers of spaces: times that the hog is chosen";
        checks.push(Check::counted(name).equal(&right, &all));
    }

    /// Checks the largest number of spaces against each smaller one: at most twice the proportional
    /// time.
    pub(super) fn time_checks(&self, checks: &mut Vec<Check>) {
        let Some((most, fewer)) = self.steps.split_last() else {
            return;
        };
        for step in fewer {
            let name = format!(
                "Highwater: time of {} spaces against that of {}",
                grouped(most.nr_spaces()),
                grouped(step.nr_spaces())
            );
            let ratio = most.lane.median_us() / step.lane.median_us();
            let limit = 2.0 * to_f64(most.nr_spaces()) / to_f64(step.nr_spaces());
            checks.push(Check::timed(name).at_most(ratio, limit, Unit::Ratio));
        }
    }
}
