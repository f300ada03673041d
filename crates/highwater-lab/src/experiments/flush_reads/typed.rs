//! Typed reads: twelve items of one group, a million times, while another thread updates it.
//!
//! A typed read returns numbers, where the kernel's `memory.stat` returns text that is formatted
//! and parsed again. The thread that updates counts its updates before and after each: a read may
//! be off by the staleness that it states and by the update in flight, and by nothing else.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use highwater::Manager;
use highwater::group::{GroupNode, GroupTree, Limits, StatItem, Stats, Tolerance};
use highwater::units::CpuId;

use crate::control::Control;
use crate::experiments::crew::Crew;
use crate::experiments::flushers::OURS;
use crate::experiments::periodic::End;
use crate::experiments::service::Times;
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;
use crate::report::{Check, Row, Source, Unit};

/// The table.
pub(super) const TYPED: &str = "12 items of one group, 1,000,000 times";

/// Items that are read.
const ITEMS: usize = 12;
/// Reads that are timed together: the clock's own 45 ns are then less than a nanosecond of each.
const TOGETHER: u64 = 100;
/// Updates between naps, and CPUs that update.
const BURST: u64 = 64;
const CPUS: u64 = 2;
const NAP: Duration = Duration::from_millis(1);

/// A way to read.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    tolerance: fn(usize) -> Tolerance,
    /// One read in so many: a read that flushes takes longer.
    part: u64,
}

const WAYS: [Way; 3] = [
    Way {
        name: "64 pages a CPU and 2 s, as the kernel",
        tolerance: Tolerance::as_kernel,
        part: 1,
    },
    Way {
        name: "any staleness",
        tolerance: |_| Tolerance::ANY,
        part: 1,
    },
    Way {
        name: "no staleness: a read flushes the updates that are pending",
        tolerance: |_| Tolerance::EXACT,
        part: 10,
    },
];

/// Results of one way.
#[derive(Debug)]
pub(super) struct Typed {
    name: String,
    /// Of [`TOGETHER`] reads each.
    times: Times,
    /// Whether its time is promised: no read of it flushes.
    is_promised: bool,
    reads: u64,
    updates: u64,
    /// What a read states beside updates that nothing has flushed; `None` where nothing updates.
    pending: Option<Pending>,
    staleness_max: u64,
    violations: u64,
}

/// A read after [`BURST`] updates, before the thread that updates begins.
#[derive(Debug)]
struct Pending {
    /// Whether the tolerance lets the read leave them out.
    is_tolerated: bool,
    staleness: u64,
    is_missing_any: bool,
}

/// Updates of the item that is verified, by the only thread that updates. Written by: that thread
/// (Release). Read by: readers (Acquire). Publishes: that the update is in the statistics, or is
/// about to be.
#[derive(Default)]
struct Truth {
    begun: AtomicU64,
    done: AtomicU64,
}

pub(super) fn run(setup: &Setup, control: &Control) -> Result<Vec<Typed>, ExperimentError> {
    let reads = setup.pick(1_000_000, 10_000);
    let mut all = Vec::new();
    for way in WAYS {
        all.push(of_tree(setup.topology.nr_cpus(), way, reads / way.part)?);
        control.advance(1)?;
    }
    all.push(of_manager(reads)?);
    control.advance(1)?;
    Ok(all)
}

/// Steps that [`run`] reports.
pub(super) const STEPS: u64 = WAYS.len() as u64 + 1;

fn of_tree(nr_cpus: usize, way: Way, reads: u64) -> Result<Typed, ExperimentError> {
    let tree = GroupTree::new(nr_cpus);
    let child = |parent: &GroupNode, name| parent.child(name, Limits::default());
    let slice = child(&tree.root(), "slice").expect("a new name");
    let group = child(&slice, "group").expect("a new name");
    let (end, truth, begun) = (End::default(), Truth::default(), Instant::now());
    let tolerance = (way.tolerance)(nr_cpus);
    let before = burst(&group, &truth, 0);
    let mut typed = Typed {
        is_promised: way.part == 1,
        ..Typed::new(format!("{OURS}: {}", way.name))
    };
    // At a moment of zero: no update is older than the tolerance, however long this thread waited.
    let stats = typed.verify(Some(&truth), &|| {
        group.read_stats(tolerance, Duration::ZERO)
    });
    typed.pending = Some(Pending {
        is_tolerated: way.part == 1,
        staleness: stats.staleness,
        is_missing_any: is_below(&stats, before),
    });
    thread::scope(|scope| {
        let crew = Crew::new(scope);
        let updater = crew.start(|| update(&group, &truth, before, &end))?;
        crew.go();
        let ends = end.ends();
        typed.read(reads, Some(&truth), || {
            group.read_stats(tolerance, begun.elapsed())
        });
        drop(ends);
        typed.updates = updater.join();
        Ok(typed)
    })
}

/// Reads a manager's group, which nothing updates, with its clock.
fn of_manager(reads: u64) -> Result<Typed, ExperimentError> {
    let system = |source| ExperimentError::System {
        what: "build a manager".to_owned(),
        source,
        remedy: "raise the limit of address space",
    };
    let hw = Manager::builder().build();
    let hw = hw.map_err(|error| system(std::io::Error::other(error.to_string())))?;
    let group = hw.root().child("group", Limits::default());
    let group = group.expect("a new name");
    let tolerance = Tolerance::as_kernel(2);
    let mut typed = Typed::new(format!("{OURS}: Group::stats of an idle group"));
    typed.read(reads, None, || group.stats(tolerance));
    Ok(typed)
}

/// Updates after so many rounds, until the end; returns the number of rounds.
fn update(group: &GroupNode, truth: &Truth, mut rounds: u64, end: &End) -> u64 {
    loop {
        rounds = burst(group, truth, rounds);
        if end.wait(NAP) {
            return rounds;
        }
    }
}

/// Adds 1 to each item in turn, on its CPUs in turn, [`BURST`] times; returns the number of rounds.
fn burst(group: &GroupNode, truth: &Truth, before: u64) -> u64 {
    let rounds = before + BURST;
    for round in before..rounds {
        let cpu = CpuId::from_index(usize::try_from(round % CPUS).unwrap_or(0));
        // Release: see the type.
        truth.begun.store(round + 1, Ordering::Release);
        for item in &StatItem::ALL[..ITEMS] {
            group.at(cpu).add_stat(*item, 1);
        }
        truth.done.store(round + 1, Ordering::Release);
    }
    rounds
}

/// Returns whether any of the items is below `rounds`.
fn is_below(stats: &Stats, rounds: u64) -> bool {
    let mut values = StatItem::ALL[..ITEMS].iter().map(|item| stats.get(*item));
    values.any(|value| u64::try_from(value).unwrap_or(0) < rounds)
}

impl Typed {
    fn new(name: String) -> Self {
        Self {
            name,
            times: Times::default(),
            is_promised: true,
            reads: 0,
            updates: 0,
            pending: None,
            staleness_max: 0,
            violations: 0,
        }
    }

    /// Reads so often, and verifies the first read of those that are timed together.
    fn read(&mut self, reads: u64, truth: Option<&Truth>, read: impl Fn() -> Stats) {
        for _ in 0..reads / TOGETHER {
            self.verify(truth, &read);
            let begun = Instant::now();
            for _ in 0..TOGETHER {
                let stats = read();
                for item in &StatItem::ALL[..ITEMS] {
                    black_box(stats.get(*item));
                }
            }
            self.times.add(begun.elapsed());
            self.reads += TOGETHER;
        }
    }

    fn verify(&mut self, truth: Option<&Truth>, read: &impl Fn() -> Stats) -> Stats {
        // Acquire: see the type.
        let done = truth.map_or(0, |truth| truth.done.load(Ordering::Acquire));
        let stats = read();
        let begun = truth.map_or(0, |truth| truth.begun.load(Ordering::Acquire));
        self.staleness_max = self.staleness_max.max(stats.staleness);
        let is_off = StatItem::ALL[..ITEMS].iter().any(|item| {
            let value = u64::try_from(stats.get(*item)).unwrap_or(0);
            value + stats.staleness < done || value > begun + stats.staleness
        });
        self.violations += u64::from(is_off);
        stats
    }

    fn read_us(&self, quantile: f64) -> f64 {
        self.times.quantile_us(quantile) / to_f64(TOGETHER)
    }

    pub(super) fn row(&self) -> Row {
        Row::new(TYPED, Source::Run, self.name.clone())
            .with("p50_us", self.read_us(0.5))
            .with("p99_us", self.read_us(0.99))
            .with("stated_most_pages", self.staleness_max)
            .with("beyond_stated", self.violations)
            .with("reads", self.reads)
            .with("updates", self.updates)
    }

    pub(super) fn checks(&self, checks: &mut Vec<Check>) {
        checks.push(
            Check::counted(format!(
                "{}: reads beyond the staleness that they state",
                self.name
            ))
            .equal(&self.violations, &0),
        );
        if let Some(pending) = &self.pending {
            pending.checks(&self.name, checks);
            // The thread that updates does a burst before it looks whether reads have ended.
            checks.push(
                Check::counted(format!("{}: updates beside the reads", self.name)).at_least(
                    to_f64(self.updates.saturating_sub(BURST)),
                    to_f64(BURST),
                    Unit::Plain,
                ),
            );
        }
        if self.is_promised {
            checks.push(
                Check::timed(format!("{}: p50 of a typed read", self.name)).at_most(
                    self.read_us(0.5),
                    0.3,
                    Unit::Us,
                ),
            );
        }
    }
}

impl Pending {
    /// Checks that the staleness is not 0 because nothing was stale.
    fn checks(&self, name: &str, checks: &mut Vec<Check>) {
        let check = |what: &str| Check::counted(format!("{name}: {what}"));
        checks.push(match self.is_tolerated {
            true => check(&format!(
                "staleness stated beside {BURST} pending updates of each item"
            ))
            .at_least(to_f64(self.staleness), 1.0, Unit::Plain),
            false => check(&format!(
                "staleness stated after {BURST} updates were flushed"
            ))
            .equal(&self.staleness, &0),
        });
        let missing = u64::from(self.is_missing_any);
        let expected = u64::from(self.is_tolerated);
        checks.push(check("first reads that lack updates").equal(&missing, &expected));
    }
}
