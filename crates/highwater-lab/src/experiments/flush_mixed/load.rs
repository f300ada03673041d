//! The load: threads that act as thousands of workers and readers of groups on many CPUs.
//!
//! A worker charges 1 to 32 pages to its group and counts each as a page and a fault. If the group
//! is at its maximum, the worker reclaims first: it frees up to 32 of the group's pages, uncharges
//! them, counts each, and flushes the group, as the kernel's reclaim does before it reads the
//! statistics. For every [`WORK_PER_READ`] such steps, one reader reads the statistics of its
//! group. Meanwhile a separate thread flushes the root every two seconds.
//!
//! Each thread has CPUs of its own; its workers migrate among them now and then. A variant's rounds
//! continue where the last one ended, by a clock that runs in its rounds only.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hdrhistogram::Histogram;
use highwater::group::{ChargeError, GroupNode, Limits};
use highwater::units::{CpuId, Pages};

use crate::baselines::flush::{Flushing, Item, Shape};
use crate::control::Control;
use crate::experiments::clock::thread_ns;
use crate::experiments::crew::{Crew, Hand};
use crate::experiments::periodic::{End, flush_until};
use crate::experiments::truth::Truth;
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;

/// Threads that work and read.
pub(super) const THREADS: usize = 2;

/// Groups below the root, and groups below each of them, where the workers are.
pub(super) const TOPS: usize = 50;
pub(super) const LEAVES: usize = 10;

/// Workers of a group.
pub(super) const GROUP_WORKERS: usize = 10;

/// Readers; the first reads the root, the others are spread over the other groups.
pub(super) const READERS: usize = 1000;

/// Steps of workers for one read.
pub(super) const WORK_PER_READ: u64 = 200;

/// Largest charge, and pages reclaimed at once, in pages: the kernel's `SWAP_CLUSTER_MAX`.
const PAGES_MAX: u64 = 32;

/// Maximum of a group: 10 MiB, a megabyte for each worker.
const GROUP_MAX: Pages = Pages(2560);

/// A worker migrates to another CPU once in so many steps.
const STEPS_ON_CPU: u32 = 32;

/// Steps between checks of the stop flag.
const STEPS_UNWATCHED: u64 = 4096;

/// Retries of a charge after reclaim.
const ATTEMPTS: u32 = 4;

/// A variant with its groups, its threads' state, and the results so far.
#[derive(Debug)]
pub(super) struct Load<'a> {
    statistics: &'a dyn Flushing,
    shape: Shape,
    groups: &'a [GroupNode],
    truth: Truth,
    threads: Vec<Mutex<Thread>>,
    /// Sum of the rounds' times: the variant's own clock.
    ran: Duration,
    periods: u32,
}

/// State that one thread keeps between rounds.
#[derive(Debug)]
struct Thread {
    number: usize,
    random: Rng,
    /// CPUs of its workers, group after group.
    cpus: Vec<CpuId>,
    cpus_own: Vec<CpuId>,
    /// Pages that its workers have charged, by leaf.
    held: Vec<u64>,
    readers: usize,
    seen: Seen,
}

/// Why recording a value cannot fail.
const ALL_FIT: &str = "a histogram that resizes itself takes every value";

/// Results of reads and charges.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Staleness of reads of groups below the root, beyond the updates in flight.
    pub(super) stale: Histogram<u64>,
    /// The same for reads of the root.
    pub(super) stale_root: Histogram<u64>,
    /// The largest lower bound of an error beyond the stated bound, if any.
    pub(super) beyond: u64,
    /// Reads that stated a bound, and those whose error exceeded it.
    pub(super) bounded: u64,
    pub(super) violations: u64,
    /// The largest bound that a read stated.
    pub(super) bound_max: u64,
    /// Charges that were given up, and bytes above a maximum.
    pub(super) refused: u64,
    pub(super) above_max: u64,
    pub(super) reclaims: u64,
}

impl Default for Seen {
    fn default() -> Self {
        let histogram = || Histogram::new(3).expect("three digits are within 0..=5");
        Self {
            stale: histogram(),
            stale_root: histogram(),
            beyond: 0,
            bounded: 0,
            violations: 0,
            bound_max: 0,
            refused: 0,
            above_max: 0,
            reclaims: 0,
        }
    }
}

impl Seen {
    fn merge(&mut self, other: &Self) {
        self.stale.add(&other.stale).expect(ALL_FIT);
        self.stale_root.add(&other.stale_root).expect(ALL_FIT);
        self.beyond = self.beyond.max(other.beyond);
        self.bounded += other.bounded;
        self.violations += other.violations;
        self.bound_max = self.bound_max.max(other.bound_max);
        self.refused += other.refused;
        self.above_max += other.above_max;
        self.reclaims += other.reclaims;
    }
}

/// Times of a round, for each step of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    /// From the start of the first thread to the end of the last one.
    pub(super) real_us: f64,
    /// CPU time of all threads, the periodic flusher's included.
    pub(super) cpu_us: f64,
}

/// Limits of the groups that workers charge; those between them and the root have none.
pub(super) fn limits(parent: usize) -> Limits {
    match parent {
        0 => Limits::default(),
        _ => Limits::max(GROUP_MAX.bytes()),
    }
}

impl<'a> Load<'a> {
    pub(super) fn new(
        setup: &Setup,
        statistics: &'a dyn Flushing,
        groups: &'a [GroupNode],
    ) -> Self {
        let shape = Shape::of(TOPS, LEAVES);
        let threads = (0..THREADS).map(|number| Mutex::new(Thread::new(setup, number)));
        Self {
            statistics,
            truth: Truth::new(&shape, THREADS),
            groups,
            shape,
            threads: threads.collect(),
            ran: Duration::ZERO,
            periods: 1,
        }
    }

    /// Runs `steps` steps on each thread. Ends early when told to stop.
    ///
    /// # Errors
    ///
    /// When the system refuses a thread.
    pub(super) fn round(&mut self, steps: u64, control: &Control) -> Result<Took, ExperimentError> {
        let end = End::default();
        let flusher_ns = AtomicU64::new(0);
        let begun = Instant::now();
        let before = self.ran;
        let now = move || before + begun.elapsed();
        let (cpu_ns, periods) = thread::scope(|scope| {
            let (load, end, flusher_ns) = (&*self, &end, &flusher_ns);
            let crew = Crew::new(scope);
            let flusher = crew.start(move || {
                let periods = flush_until(end, load.statistics, load.periods, now);
                // Relaxed: read after the scope has joined this thread.
                flusher_ns.store(thread_ns(), Ordering::Relaxed);
                periods
            })?;
            let workers: Result<Vec<_>, _> = load
                .threads
                .iter()
                .map(|thread| {
                    crew.start(move || {
                        let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
                        thread.work(load, steps, now, control);
                        thread_ns()
                    })
                })
                .collect();
            let workers = workers?;
            crew.go();
            let ends = end.ends();
            let cpu_ns: u64 = workers.into_iter().map(Hand::join).sum();
            drop(ends);
            Ok::<_, ExperimentError>((cpu_ns, flusher.join()))
        })?;
        let real = begun.elapsed();
        self.ran += real;
        self.periods = periods;
        let cpu_ns = cpu_ns + flusher_ns.load(Ordering::Relaxed);
        Ok(Took {
            real_us: real.as_secs_f64() * 1e6 / to_f64(steps),
            cpu_us: to_f64(cpu_ns) / 1e3 / to_f64(steps * THREADS as u64),
        })
    }

    /// Uncharges everything and flushes the root; returns the number of values that differ from the
    /// exact count, and of bytes that are still charged.
    pub(super) fn finish(&self) -> (u64, u64) {
        for (number, thread) in self.threads.iter().enumerate() {
            let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
            for leaf in 0..TOPS * LEAVES {
                let pages = std::mem::take(&mut thread.held[leaf]);
                self.give_back(number, leaf, CpuId(0), pages);
            }
        }
        self.statistics.flush_periodic(self.ran);
        let wrong = (0..self.shape.nr_groups()).filter(|&group| {
            let before = self.truth.before(group);
            let read = self.statistics.read(group, self.ran);
            self.truth.off(group, &before, &read.values).own > 0
        });
        (wrong.count() as u64, self.groups[0].usage_precise().0)
    }

    /// Returns the results of all threads, merged.
    pub(super) fn seen(&self) -> Seen {
        let mut seen = Seen::default();
        for thread in &self.threads {
            let thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
            seen.merge(&thread.seen);
        }
        seen
    }

    fn leaf(leaf: usize) -> usize {
        1 + TOPS + leaf
    }

    /// Counts pages in one update.
    fn count(&self, thread: usize, leaf: usize, cpu: CpuId, item: Item, pages: i64) {
        let group = Self::leaf(leaf);
        self.truth.follow(thread, group, item, pages, || {
            self.statistics.add(group, cpu, item, pages);
        });
    }

    /// Counts pages one by one.
    fn count_each(&self, thread: usize, leaf: usize, cpu: CpuId, item: Item, pages: i64) {
        let group = Self::leaf(leaf);
        self.truth.follow(thread, group, item, pages, || {
            for _ in 0..pages.unsigned_abs() {
                self.statistics.add(group, cpu, item, pages.signum());
            }
        });
    }

    /// Frees pages of a leaf, as reclaim does, without the flush.
    fn give_back(&self, thread: usize, leaf: usize, cpu: CpuId, pages: u64) {
        self.groups[Self::leaf(leaf)]
            .at(cpu)
            .uncharge(Pages(pages).bytes());
        let pages = pages.cast_signed();
        self.count_each(thread, leaf, cpu, Item::Anon, -pages);
        self.count(thread, leaf, cpu, Item::Pgscan, pages);
        self.count(thread, leaf, cpu, Item::Pgsteal, pages);
    }
}

impl Thread {
    fn new(setup: &Setup, number: usize) -> Self {
        let mut random =
            Rng::with_seed(setup.options.seed.wrapping_mul(THREADS as u64) + number as u64);
        let cpus = setup.topology.nr_cpus();
        let own = (number..cpus).step_by(THREADS).map(CpuId::from_index);
        let own: Vec<CpuId> = own.collect();
        let workers = TOPS * LEAVES * GROUP_WORKERS / THREADS;
        Self {
            number,
            cpus: (0..workers)
                .map(|_| own[random.usize(..own.len())])
                .collect(),
            random,
            cpus_own: own,
            held: vec![0; TOPS * LEAVES],
            readers: number,
            seen: Seen::default(),
        }
    }

    fn work(&mut self, load: &Load<'_>, steps: u64, now: impl Fn() -> Duration, control: &Control) {
        for step in 1..=steps {
            self.step(load, &now);
            if step.is_multiple_of(WORK_PER_READ) {
                self.read(load, &now);
            }
            if step.is_multiple_of(STEPS_UNWATCHED) && control.is_stopped() {
                return;
            }
        }
    }

    /// One worker charges.
    fn step(&mut self, load: &Load<'_>, now: impl Fn() -> Duration) {
        let worker = self.random.usize(..self.cpus.len());
        let leaf = worker / (GROUP_WORKERS / THREADS);
        if self.random.u32(..STEPS_ON_CPU) == 0 {
            self.cpus[worker] = self.cpus_own[self.random.usize(..self.cpus_own.len())];
        }
        let cpu = self.cpus[worker];
        let pages = self.random.u64(1..=PAGES_MAX);
        let group = &load.groups[Load::leaf(leaf)];
        for _ in 0..ATTEMPTS {
            match group.at(cpu).try_charge(Pages(pages).bytes()) {
                Ok(charge) => {
                    self.held[leaf] += charge.disown().pages_ceil().0;
                    load.count_each(self.number, leaf, cpu, Item::Anon, pages.cast_signed());
                    load.count_each(self.number, leaf, cpu, Item::Pgfault, pages.cast_signed());
                    return;
                }
                Err(ChargeError::OverMax { .. } | ChargeError::Contended { .. }) => {
                    self.reclaim(load, leaf, cpu, &now);
                }
                Err(error) => panic!("a group that is there refuses a charge: {error}"),
            }
        }
        self.seen.refused += 1;
    }

    fn reclaim(&mut self, load: &Load<'_>, leaf: usize, cpu: CpuId, now: impl Fn() -> Duration) {
        let pages = self.held[leaf].min(PAGES_MAX);
        self.held[leaf] -= pages;
        self.seen.reclaims += 1;
        load.give_back(self.number, leaf, cpu, pages);
        load.statistics.flush_for_reclaim(Load::leaf(leaf), now());
    }

    /// One reader reads.
    fn read(&mut self, load: &Load<'_>, now: impl Fn() -> Duration) {
        let reader = self.readers % READERS;
        self.readers += THREADS;
        let group = match reader {
            0 => 0,
            _ => 1 + reader % (load.groups.len() - 1),
        };
        let before = load.truth.before(group);
        let read = load.statistics.read(group, now());
        let off = load.truth.off(group, &before, &read.values);
        let stale = match group {
            0 => &mut self.seen.stale_root,
            _ => &mut self.seen.stale,
        };
        stale.record(off.own).expect(ALL_FIT);
        if let Some(bound) = read.staleness {
            self.seen.bounded += 1;
            self.seen.bound_max = self.seen.bound_max.max(bound);
            self.seen.violations += u64::from(off.own > bound);
            self.seen.beyond = self.seen.beyond.max(off.own.saturating_sub(bound));
        }
        let usage = load.groups[group].usage().high;
        let max = load.groups[group].limits().max;
        self.seen.above_max = self.seen.above_max.max(usage.0.saturating_sub(max.0));
    }
}
