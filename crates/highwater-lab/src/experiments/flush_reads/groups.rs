//! A variant's statistics of many groups, read by a storm of readers while a thread updates them.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hdrhistogram::Histogram;
use highwater::units::CpuId;

use super::storm::{Served, Target, storm};
use crate::baselines::flush::{Flushing, Item, Shape, StatsRead};
use crate::control::Control;
use crate::experiments::ExperimentError;
use crate::experiments::clock::thread_ns;
use crate::experiments::crew::Crew;
use crate::experiments::flushers::Flusher;
use crate::experiments::periodic::{End, flush_until};
use crate::experiments::truth::{Before, Truth};

/// CPUs that update one group: the threads of a tenant run on few CPUs.
pub(super) const GROUP_CPUS: usize = 2;

/// Percentage of one CPU that updates take.
pub(super) const UPDATES_PERCENT: u32 = 10;

/// Updates between reads of the clock.
const BURST: u32 = 32;

/// How long the updater sleeps when it is ahead.
const NAP: Duration = Duration::from_millis(1);

/// Largest update, in pages.
const PAGES_MAX: i64 = 32;

/// Groups with statistics, and the results of reading them.
#[derive(Debug)]
pub(super) struct Groups<'a> {
    pub(super) flusher: &'a Flusher,
    nr_cpus: usize,
    leaves: Range<usize>,
    shape: Shape,
    truth: Truth,
    /// Time by the variant's own clock, which runs in its rounds only.
    ran: Duration,
    period: u32,
    random: Rng,
    pub(super) updates: u64,
    pub(super) served: Served,
    pub(super) stale: Mutex<Stale>,
}

/// Staleness of reads.
#[derive(Debug)]
pub(super) struct Stale {
    pub(super) pages: Histogram<u64>,
    pub(super) bounded: u64,
    pub(super) bound_max: u64,
    pub(super) violations: u64,
}

impl Stale {
    fn see(&mut self, off: u64, stated: Option<u64>) {
        let recorded = self.pages.record(off);
        recorded.expect("a histogram that resizes itself takes every value");
        if let Some(bound) = stated {
            self.bounded += 1;
            self.bound_max = self.bound_max.max(bound);
            self.violations += u64::from(off > bound);
        }
    }
}

impl<'a> Groups<'a> {
    /// Creates the statistics, updates each leaf from its CPUs, and flushes the root.
    pub(super) fn new(flusher: &'a Flusher, shape: &Shape, nr_cpus: usize, seed: u64) -> Self {
        let first = shape.below(1).start;
        let groups = Self {
            flusher,
            nr_cpus,
            leaves: first..shape.nr_groups(),
            shape: shape.clone(),
            truth: Truth::new(shape, 1),
            ran: Duration::ZERO,
            period: 1,
            random: Rng::with_seed(seed),
            updates: 0,
            served: Served::default(),
            stale: Mutex::new(Stale {
                pages: Histogram::new(3).expect("three digits are within 0..=5"),
                bounded: 0,
                bound_max: 0,
                violations: 0,
            }),
        };
        for leaf in 0..groups.leaves.len() {
            for nth in 0..GROUP_CPUS {
                groups.update(leaf, nth, 1);
            }
        }
        groups.flusher.statistics.flush_periodic(groups.ran);
        groups
    }

    fn statistics(&self) -> &'a dyn Flushing {
        &*self.flusher.statistics
    }

    fn update(&self, leaf: usize, nth: usize, pages: i64) {
        let group = self.leaves.start + leaf;
        // Spreads the CPUs of neighbouring groups: 97 is coprime to all machine sizes except its
        // multiples.
        let cpu = CpuId::from_index((leaf * GROUP_CPUS + nth) * 97 % self.nr_cpus);
        for item in [Item::Anon, Item::Pgfault] {
            self.truth.follow(0, group, item, pages, || {
                self.statistics().add(group, cpu, item, pages);
            });
        }
    }

    /// Runs a storm for `time` beside updates and periodic flushes.
    pub(super) fn round(
        &mut self,
        time: Duration,
        seed: u64,
        control: &Control,
    ) -> Result<(), ExperimentError> {
        let (end, updates_end) = (End::default(), End::default());
        let begun = Instant::now();
        let before = self.ran;
        let now = move || before + begun.elapsed();
        let mut random = self.random.fork();
        let (served, period, updates) = thread::scope(|scope| {
            let (groups, end, updates_end) = (&*self, &end, &updates_end);
            let crew = Crew::new(scope);
            let flusher =
                crew.start(move || flush_until(end, groups.statistics(), groups.period, now))?;
            let updater = crew.start(move || groups.update_until(updates_end, &mut random))?;
            crew.go();
            let reads = Reads { groups, now: &now };
            let ends = (end.ends(), updates_end.ends());
            let served = storm(&reads, groups.leaves.len(), time, seed, control);
            drop(ends);
            Ok::<_, ExperimentError>((served, flusher.join(), updater.join()))
        })?;
        self.ran += begun.elapsed();
        self.period = period;
        self.updates += updates;
        self.served.merge(&served?);
        Ok(())
    }

    /// Updates random groups for its share of a CPU. Returns the number of updates.
    fn update_until(&self, end: &End, random: &mut Rng) -> u64 {
        let begun = Instant::now();
        let mut updates = 0;
        loop {
            let allowed = begun.elapsed() * UPDATES_PERCENT / 100;
            if Duration::from_nanos(thread_ns()) >= allowed {
                if end.wait(NAP) {
                    return updates;
                }
                continue;
            }
            for _ in 0..BURST {
                let leaf = random.usize(..self.leaves.len());
                let nth = random.usize(..GROUP_CPUS);
                let pages = random.i64(1..=PAGES_MAX);
                self.update(leaf, nth, if random.bool() { pages } else { -pages });
            }
            updates += u64::from(BURST);
        }
    }

    /// Flushes the root, and returns the number of groups whose values differ from the exact
    /// counts.
    pub(super) fn wrong(&self) -> u64 {
        self.statistics().flush_periodic(self.ran);
        let groups = 0..self.shape.nr_groups();
        let wrong = groups.filter(|&group| {
            let before = self.truth.before(group);
            let read = self.statistics().read(group, self.ran);
            self.truth.off(group, &before, &read.values).own > 0
        });
        wrong.count() as u64
    }
}

/// Reads of the groups as a storm's target, by the clock of their rounds.
struct Reads<'a, Now> {
    groups: &'a Groups<'a>,
    now: &'a Now,
}

/// State of one read.
struct Visit {
    group: usize,
    now: Duration,
    before: Before,
    read: Option<StatsRead>,
}

impl<Now: Fn() -> Duration + Sync> Target for Reads<'_, Now> {
    type Visit = Visit;

    fn prepare(&self, leaf: usize) -> Result<Visit, ExperimentError> {
        let group = self.groups.leaves.start + leaf;
        Ok(Visit {
            group,
            now: (self.now)(),
            before: self.groups.truth.before(group),
            read: None,
        })
    }

    fn serve(&self, visit: &mut Visit) -> Result<(), ExperimentError> {
        visit.read = Some(self.groups.statistics().read(visit.group, visit.now));
        Ok(())
    }

    fn settle(&self, visit: Visit) {
        let Some(read) = visit.read else { return };
        let truth = &self.groups.truth;
        let off = truth.off(visit.group, &visit.before, &read.values);
        let stale = self.groups.stale.lock();
        let mut stale = stale.unwrap_or_else(PoisonError::into_inner);
        stale.see(off.own, read.staleness);
    }
}
