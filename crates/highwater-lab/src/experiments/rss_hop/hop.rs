//! The hopping thread: a stream of maps and unmaps, counted by every counter.

use fastrand::Rng;
use highwater::units::CpuId;

use super::spread::Spread;
use crate::control::Control;
use crate::experiments::lineup::{Entry, Lineup};
use crate::experiments::pages::{bytes, bytes_of_mean};
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Row, Source};

const COST: &str = "shared lines written, and memory of a space with four counters";

/// Steps between checks of the stop flag: about a millisecond.
const STRIDE: u64 = 20_000;

/// A thread that hops over CPUs, its mappings, and the counters.
#[derive(Debug)]
pub(super) struct Hop {
    lineup: Lineup,
    /// Errors of each counter.
    pub(super) errors: Vec<Errors>,
    rng: Rng,
    nr_cpus: usize,
    /// Pages of each mapping; 0 for an empty slot.
    slots: Vec<u8>,
    slot_pages: u8,
    resident: i64,
    pub(super) resident_peak: i64,
    /// Pages mapped and pages unmapped.
    moved_pages: u64,
}

/// Errors of one counter.
#[derive(Debug)]
pub(super) struct Errors {
    /// Errors while the array fills.
    pub(super) growth: Spread,
    /// Errors once it is full.
    pub(super) after: Spread,
    /// Steps after which the exact sum was outside the promised interval.
    pub(super) outside: u64,
}

impl Errors {
    const fn new() -> Self {
        Self {
            growth: Spread::new(),
            after: Spread::new(),
            outside: 0,
        }
    }

    pub(super) fn all(&self) -> Spread {
        self.growth.joined(self.after)
    }
}

impl Hop {
    /// Creates an empty array of `slots` slots of 1 to `slot_pages` pages.
    pub(super) fn new(setup: &Setup, slots: usize, slot_pages: u8) -> Self {
        let lineup = Lineup::new(&setup.topology);
        Self {
            errors: lineup.entries.iter().map(|_| Errors::new()).collect(),
            lineup,
            rng: Rng::with_seed(setup.options.seed),
            nr_cpus: setup.topology.nr_cpus(),
            slots: vec![0; slots],
            slot_pages,
            resident: 0,
            resident_peak: 0,
            moved_pages: 0,
        }
    }

    /// Slots of the array.
    pub(super) fn nr_slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the steps until the array is within 2 % of its final fill: each slot is hit twice on
    /// average.
    pub(super) fn growth_steps(&self) -> u64 {
        2 * self.slots.len() as u64
    }

    /// Hops `steps` times.
    pub(super) fn run(&mut self, steps: u64, control: &Control) -> Result<(), ExperimentError> {
        for step in 0..steps {
            let (cpu, delta, times) = self.draw();
            let is_growth = step < self.growth_steps();
            for (entry, errors) in self.lineup.entries.iter_mut().zip(&mut self.errors) {
                for _ in 0..times {
                    entry.add(cpu, delta);
                }
                let estimate = entry.counter.approximate_sum();
                errors.outside += u64::from(!estimate.contains(self.resident));
                // Values below zero are shown as zero.
                let error = self.resident - estimate.value.max(0);
                if is_growth {
                    errors.growth.add(error);
                } else {
                    errors.after.add(error);
                }
            }
            if step % STRIDE == STRIDE - 1 {
                control.advance(STRIDE)?;
            }
        }
        Ok(control.advance(steps % STRIDE)?)
    }

    /// Draws the next step: its CPU, pages, and repetitions. Pages are mapped one by one and
    /// unmapped at once.
    fn draw(&mut self) -> (CpuId, i64, u8) {
        let cpu = CpuId::from_index(self.rng.usize(..self.nr_cpus));
        let slot = self.rng.usize(..self.slots.len());
        let mapped = std::mem::take(&mut self.slots[slot]);
        let (delta, times, pages) = if mapped > 0 {
            (-i64::from(mapped), 1, mapped)
        } else {
            let pages = self.rng.u8(1..=self.slot_pages);
            self.slots[slot] = pages;
            (1, pages, pages)
        };
        self.resident += delta * i64::from(times);
        self.resident_peak = self.resident_peak.max(self.resident);
        self.moved_pages += u64::from(pages);
        (cpu, delta, times)
    }

    /// Returns the number of updates and reads in which the library's two implementations differed.
    pub(super) fn disagreements(&self) -> u64 {
        self.lineup.disagreements()
    }

    fn index(&self, name: &str) -> usize {
        let named = |entry: &Entry| entry.name == name;
        let found = self.lineup.entries.iter().position(named);
        found.expect("every counter of the line-up has one of its names")
    }

    pub(super) fn errors_of(&self, name: &str) -> &Errors {
        &self.errors[self.index(name)]
    }

    pub(super) fn entry(&self, name: &str) -> &Entry {
        &self.lineup.entries[self.index(name)]
    }

    /// Returns the shared lines written for each page mapped or unmapped.
    pub(super) fn writes_per_page(&self, name: &str) -> f64 {
        self.per_page(self.entry(name).ledger.writes())
    }

    /// Returns the modelled cost of their transfers, for each page mapped or unmapped.
    pub(super) fn transfer_ns_per_page(&self, name: &str) -> f64 {
        self.per_page(self.entry(name).ledger.transfer_ns())
    }

    fn per_page(&self, events: u64) -> f64 {
        to_f64(events) / to_f64(self.moved_pages)
    }

    /// Returns a row of each counter's errors.
    pub(super) fn error_rows(&self, part: &'static str) -> Vec<Row> {
        let row = |(entry, errors): (&Entry, &Errors)| {
            let all = errors.all();
            Row::new(part, Source::Run, entry.name)
                .with("error_peak_bytes", bytes(all.peak()))
                .with("error_mean_bytes", bytes_of_mean(all.mean()))
                .with("error_rms_bytes", bytes_of_mean(all.rms()))
                .with("error_min_bytes", bytes(all.min()))
                .with("error_max_bytes", bytes(all.max()))
                .with("resident_peak_bytes", bytes(self.resident_peak))
        };
        self.lineup
            .entries
            .iter()
            .zip(&self.errors)
            .map(row)
            .collect()
    }

    /// Returns a row of each counter's errors before and after the array was full, and its bounds.
    pub(super) fn phase_rows(&self, part: &'static str) -> Vec<Row> {
        let row = |(entry, errors): (&Entry, &Errors)| {
            let Errors {
                growth,
                after,
                outside,
            } = errors;
            let estimate = entry.counter.approximate_sum();
            Row::new(part, Source::Run, entry.name)
                .with("growth_peak_bytes", bytes(growth.peak()))
                .with("growth_mean_bytes", bytes_of_mean(growth.mean()))
                .with("growth_rms_bytes", bytes_of_mean(growth.rms()))
                .with("full_peak_bytes", bytes(after.peak()))
                .with("full_mean_bytes", bytes_of_mean(after.mean()))
                .with("full_rms_bytes", bytes_of_mean(after.rms()))
                .with(
                    "promised_under_bytes",
                    bytes(estimate.high - estimate.value),
                )
                .with("promised_over_bytes", bytes(estimate.value - estimate.low))
                .with("steps_outside", *outside)
        };
        self.lineup
            .entries
            .iter()
            .zip(&self.errors)
            .map(row)
            .collect()
    }

    pub(super) fn cost_rows(&self) -> Vec<Row> {
        let row = |entry: &Entry| {
            let ledger = &entry.ledger;
            let by_level = ledger.writes_by_level().into_iter();
            let by_level: Vec<f64> = by_level.map(|writes| self.per_page(writes)).collect();
            Row::new(COST, Source::Run, entry.name)
                .with("writes_per_page", self.per_page(ledger.writes()))
                .with("writes_per_page_by_level", by_level)
                .with("transfers_per_page", self.per_page(ledger.transfers()))
                .with(
                    "modelled_transfer_per_page_ns",
                    self.per_page(ledger.transfer_ns()),
                )
                .with("space_bytes", 4 * entry.counter.bytes())
        };
        self.lineup.entries.iter().map(row).collect()
    }
}
