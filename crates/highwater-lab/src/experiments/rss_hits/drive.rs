//! Drives several designs with one stream of steps, beside exact sums.

use std::sync::Arc;

use highwater::topology::Topology;
use highwater::units::CpuId;

use crate::baselines::active_cache::ActiveStats;
use crate::baselines::{
    ActiveSpaces, Count, Design, LibrarySets, Line, Member, SpaceId, TaskCache, Traffic,
};
use crate::control::Control;
use crate::experiments::ExperimentError;
use crate::experiments::contenders::{ACTIVE, PER_TASK};
use crate::experiments::lineup::OURS;
use crate::report::text::to_f64;
use crate::report::{Check, Row, Source};
use crate::workloads::Step;

/// Events between checks of the stop flag and of the exact sums: about a millisecond.
const STRIDE: u64 = 10_000;

/// Counts shared writes to any line.
#[derive(Debug, Default)]
struct Writes(u64);

impl Traffic for Writes {
    fn wrote(&mut self, _line: Line, _cpu: CpuId) {
        self.0 += 1;
    }
}

#[derive(Debug)]
struct Entry {
    name: &'static str,
    design: Arc<dyn Design>,
    writes: Writes,
    /// Whether its precise reading is one that a real kernel has.
    has_precise: bool,
    /// Readings that differed from the exact sum.
    wrong: u64,
}

/// The designs, and the exact sums.
#[derive(Debug)]
pub(super) struct Drive {
    entries: Vec<Entry>,
    active: Arc<ActiveSpaces>,
    /// Pages of each member of each space.
    truth: Vec<[i64; Member::ALL.len()]>,
    events: u64,
}

/// Results of a stream of steps.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) events: u64,
    pub(super) active: ActiveStats,
    /// Names of the designs, and their shared writes.
    writes: Vec<(&'static str, u64)>,
    /// Exact readings of any design that were wrong, during the run or at its end.
    wrong: u64,
}

impl Drive {
    pub(super) fn new(topology: &Topology, spaces: usize, tasks: usize) -> Self {
        let active = Arc::new(ActiveSpaces::new(topology, spaces));
        let entry = |name, design, has_precise| Entry {
            name,
            design,
            writes: Writes::default(),
            has_precise,
            wrong: 0,
        };
        let task_cache = TaskCache::new(spaces, tasks);
        Self {
            entries: vec![
                entry(ACTIVE, Arc::<ActiveSpaces>::clone(&active), true),
                entry(PER_TASK, Arc::new(task_cache), false),
                entry(OURS, Arc::new(LibrarySets::new(topology, spaces)), true),
            ],
            active,
            truth: vec![[0; Member::ALL.len()]; spaces],
            events: 0,
        }
    }

    /// Lets every design count the steps.
    pub(super) fn run(
        &mut self,
        steps: impl IntoIterator<Item = Step>,
        control: &Control,
    ) -> Result<(), ExperimentError> {
        let mut told = self.events;
        for step in steps {
            self.step(step);
            if self.events >= told + STRIDE {
                control.advance(self.events - told)?;
                told = self.events;
                self.look(step);
            }
        }
        Ok(control.advance(self.events - told)?)
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Fault { to, pages, .. } | Step::Add { to, pages, .. } => {
                self.events += 1;
                self.truth[to.space.index()][to.member.index()] += pages;
            }
            Step::Unmap { space, deltas, .. } => {
                for (sum, delta) in self.truth[space.index()].iter_mut().zip(deltas) {
                    self.events += u64::from(delta != 0);
                    *sum += delta;
                }
            }
            Step::Switch { .. } | Step::Leave { .. } => {}
        }
        for Entry { design, writes, .. } in &mut self.entries {
            match step {
                Step::Switch { cpu, to } => design.switch(cpu, to, writes),
                Step::Fault { by, to, pages } => {
                    design.add(by, to, pages, writes);
                    design.fault_handled(by, writes);
                }
                Step::Add { by, to, pages } => design.add(by, to, pages, writes),
                Step::Unmap { by, space, deltas } => design.add_vector(by, space, deltas, writes),
                Step::Leave { by } => design.leave(by, writes),
            }
        }
    }

    /// Compares exact readings of the step's space with the exact sums.
    fn look(&mut self, step: Step) {
        let space = match step {
            Step::Fault { to, .. } | Step::Add { to, .. } => to.space,
            Step::Unmap { space, .. } => space,
            Step::Switch {
                to: Some(space), ..
            } => space,
            Step::Switch { to: None, .. } | Step::Leave { .. } => return,
        };
        let truth: i64 = Member::RESIDENT
            .map(|member| self.truth[space.index()][member.index()])
            .iter()
            .sum();
        for entry in self.entries.iter_mut().filter(|entry| entry.has_precise) {
            entry.wrong += u64::from(entry.design.precise_resident(space) != truth);
        }
    }

    /// Compares every member of every space with the exact sums, and returns the results.
    pub(super) fn finish(mut self) -> Driven {
        // Before the last readings, which count as well.
        let active = self.active.stats();
        // Designs with counts that no real reader can see have no precise reading to compare.
        for entry in self.entries.iter_mut().filter(|entry| entry.has_precise) {
            for (space, truth) in (0..).map(SpaceId).zip(&self.truth) {
                for (member, truth) in Member::ALL.into_iter().zip(truth) {
                    let precise = entry.design.precise(Count { space, member });
                    entry.wrong += u64::from(precise != *truth);
                }
            }
        }
        Driven {
            events: self.events,
            active,
            writes: self
                .entries
                .iter()
                .map(|entry| (entry.name, entry.writes.0))
                .collect(),
            wrong: self.entries.iter().map(|entry| entry.wrong).sum(),
        }
    }
}

impl Driven {
    /// Returns the events for each miss; without misses, the number of events, which is a lower
    /// bound.
    pub(super) fn events_per_miss(&self) -> f64 {
        to_f64(self.events) / to_f64(self.active.misses.max(1))
    }

    /// Returns the number of readings that claim to be exact and were not.
    pub(super) const fn wrong_readings(&self) -> u64 {
        self.wrong
    }

    /// Returns the shared writes of a design for each thousand events.
    pub(super) fn writes_per_1000(&self, name: &str) -> f64 {
        let found = self.writes.iter().find(|(other, _)| *other == name);
        let (_, writes) = found.expect("every design counts");
        1000.0 * to_f64(*writes) / to_f64(self.events)
    }

    /// Returns the row of the cache's hits and misses.
    pub(super) fn cache_row(&self, part: &'static str, name: &str) -> Row {
        let ActiveStats {
            hits,
            misses,
            switches,
            flushes,
            folds,
            ..
        } = self.active;
        Row::new(part, Source::Run, name)
            .with("hits", hits)
            .with("misses", misses)
            .with("events_per_miss", self.events_per_miss())
            .with("switches", switches)
            .with(
                "flushes_per_switch",
                to_f64(flushes) / to_f64(switches.max(1)),
            )
            .with(
                "events_per_switch",
                to_f64(self.events) / to_f64(switches.max(1)),
            )
            .with("folds", folds)
    }

    /// Returns the row of each design's writes.
    pub(super) fn writes_row(&self, part: &'static str, name: &str) -> Row {
        Row::new(part, Source::Run, name)
            .with(
                "active_space_writes_per_1000_events",
                self.writes_per_1000(ACTIVE),
            )
            .with(
                "per_task_writes_per_1000_events",
                self.writes_per_1000(PER_TASK),
            )
            .with(
                "highwater_writes_per_1000_events",
                self.writes_per_1000(OURS),
            )
    }

    /// Checks that exact readings were exact.
    pub(super) fn checks(&self, name: &str, checks: &mut Vec<Check>) {
        let check = format!("{name}: exact readings of {ACTIVE} and {OURS} that were not");
        checks.push(Check::counted(check).equal(&self.wrong_readings(), &0));
        let counted = self.active.hits + self.active.misses;
        let check = format!("{name}: events that were a hit or a miss");
        checks.push(Check::counted(check).equal(&counted, &self.events));
    }
}
