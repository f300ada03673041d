//! Cost of counting a page on this machine: restartable adds on its own CPUs, in counters of as
//! many CPUs as the experiment's machine has.
//!
//! Every figure is the median over interleaved rounds of the threads' CPU time. Ratios and
//! differences are taken within a round, so that whatever slows a whole round down cancels out.

use std::hint::black_box;

use highwater::counter::{CounterSet, CounterTree, Layout};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::{CpuId, PAGE_SIZE};

use crate::baselines::{
    FlatCounter, Grouping, PerNodeCounter, Rounding, SharedCounter, TreeCounter, Untracked,
};
use crate::control::Control;
use crate::experiments::clock::{Took, median, time_threads};
use crate::experiments::lineup::{CONTIGUOUS, FLAT, OURS, PER_NODE, PUBLISHED, SHARED};
use crate::experiments::{ExperimentError, Setup};

/// The body: faults of one page, then unmaps of many. 128 MiB.
pub(super) const FAULTS: u32 = 32_768;
pub(super) const UNMAPS: u32 = 64;
pub(super) const UNMAP_PAGES: i64 = 512;

/// The library's counters of a space: a set of four, as a space has them.
pub(super) const OURS_SET: &str = "Highwater, set of four";

/// The loop alone, which every other variant includes.
const NOTHING: &str = "nothing: the loop alone";

/// Pages touched to measure the cost of a fault: 40 MiB. The C library keeps up to 32 MiB of freed
/// memory, which it would hand out again.
const TOUCHED_PAGES: usize = 10_240;

/// Bodies of a round. On one thread they take a few milliseconds; on several a time slice or less,
/// so that the threads can run at once.
const BODIES: u32 = 40;
const BODIES_AT_ONCE: u32 = 12;

/// Attempts to have the threads of a round run at once.
const ATTEMPTS: u32 = 10;

/// A way to count, which runs whole bodies of the benchmark.
struct Variant {
    name: &'static str,
    /// Takes the number of bodies and the thread's number.
    run: Box<dyn Fn(u32, usize) + Sync>,
}

impl Variant {
    fn new(name: &'static str, add: impl Fn(CpuId, i64) + Sync + 'static) -> Self {
        let run = move |bodies, thread| {
            let cpu = CpuId::from_index(thread);
            for _ in 0..bodies {
                for _ in 0..FAULTS {
                    add(cpu, black_box(1));
                }
                for _ in 0..UNMAPS {
                    add(cpu, black_box(-UNMAP_PAGES));
                }
            }
        };
        Self {
            name,
            run: Box::new(run),
        }
    }
}

/// Variants with atomics take the thread's number for a CPU; the others find the CPU they run on.
fn variants(topology: &Topology) -> Vec<Variant> {
    let regime = Regime::Restartable;
    let flat = FlatCounter::new(topology.nr_cpus(), regime);
    let published = TreeCounter::published(topology, regime);
    let neighbours = TreeCounter::new(topology, regime, Rounding::Down, Grouping::Contiguous);
    let tree = CounterTree::with_regime(topology, regime);
    let set = CounterSet::<4>::new(&Layout::new(topology, regime));
    let per_node = PerNodeCounter::new(topology);
    let shared = SharedCounter::new();
    vec![
        Variant::new(FLAT, move |_, delta| flat.add(delta, &mut Untracked)),
        Variant::new(PUBLISHED, move |_, delta| {
            published.add(delta, &mut Untracked);
        }),
        Variant::new(CONTIGUOUS, move |_, delta| {
            neighbours.add(delta, &mut Untracked);
        }),
        Variant::new(OURS, move |_, delta| {
            tree.add(delta);
        }),
        Variant::new(OURS_SET, move |_, delta| {
            set.add(1, delta);
        }),
        Variant::new(PER_NODE, move |cpu, delta| {
            per_node.add(cpu, delta, &mut Untracked);
        }),
        Variant::new(SHARED, move |cpu, delta| {
            shared.add(cpu, delta, &mut Untracked);
        }),
        Variant::new(NOTHING, |_, _| {}),
    ]
}

/// Times of one variant, in nanoseconds of CPU time for each page that a thread counts.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) name: &'static str,
    /// By round.
    rounds: Vec<f64>,
    /// Parallelism of the threads, by round.
    at_once: Vec<f64>,
}

impl Timed {
    pub(super) fn page_ns(&self) -> f64 {
        median(self.rounds.clone())
    }

    /// Returns the median parallelism of the threads.
    pub(super) fn at_once(&self) -> f64 {
        median(self.at_once.clone())
    }

    /// Returns the median over rounds of `compare(own time, other's time)`.
    pub(super) fn against(&self, other: &Self, compare: impl Fn(f64, f64) -> f64) -> f64 {
        let pairs = self.rounds.iter().zip(&other.rounds);
        median(pairs.map(|(own, other)| compare(*own, *other)).collect())
    }
}

/// Times all variants with `threads` threads, which share a counter.
pub(super) fn time_adds(
    setup: &Setup,
    threads: u32,
    control: &Control,
) -> Result<Vec<Timed>, ExperimentError> {
    let bodies = if threads == 1 { BODIES } else { BODIES_AT_ONCE };
    let variants = variants(&timed_topology(setup));
    let mut timed: Vec<Timed> = variants
        .iter()
        .map(|variant| Timed {
            name: variant.name,
            rounds: Vec::new(),
            at_once: Vec::new(),
        })
        .collect();
    let pages = f64::from(threads) * f64::from(bodies) * f64::from(FAULTS);
    for _ in 0..rounds(setup) {
        for (variant, timed) in variants.iter().zip(&mut timed) {
            let took = most_at_once(setup, threads, &|thread| (variant.run)(bodies, thread))?;
            timed.rounds.push(took.cpu_ns / pages);
            timed.at_once.push(took.at_once);
            control.advance(1)?;
        }
    }
    Ok(timed)
}

/// Runs a few attempts; returns the first one in which the threads ran at once, or else the one
/// with the most parallelism. On a busy machine, most attempts run one thread after the other.
fn most_at_once(
    setup: &Setup,
    threads: u32,
    work: &(impl Fn(usize) + Sync),
) -> Result<Took, ExperimentError> {
    let enough = 0.85 * f64::from(threads);
    let attempt = || time_threads(threads as usize, work);
    let mut best = attempt()?;
    for _ in 1..setup.pick(ATTEMPTS, 1) {
        if best.at_once >= enough {
            break;
        }
        let next = attempt()?;
        if next.at_once > best.at_once {
            best = next;
        }
    }
    Ok(best)
}

/// Steps that [`time_adds`] reports.
pub(super) fn steps(setup: &Setup) -> u64 {
    /// The variants.
    const VARIANTS: u64 = 8;
    rounds(setup) * VARIANTS
}

fn rounds(setup: &Setup) -> u64 {
    setup.pick(9, 5)
}

/// Returns the experiment's machine, or this one if it has more CPUs: each of its CPUs needs words.
pub(super) fn timed_topology(setup: &Setup) -> Topology {
    let here = Topology::detect();
    if here.nr_cpus() <= setup.topology.nr_cpus() {
        setup.topology.clone()
    } else {
        here
    }
}

/// Returns the cost of the first touch of a page, in nanoseconds of CPU time.
pub(super) fn fault_ns(setup: &Setup, control: &Control) -> Result<f64, ExperimentError> {
    let mut times = Vec::new();
    for _ in 0..rounds(setup) {
        let took = time_threads(1, &|_| {
            // The system returns zeroed memory, and no code writes the zeroes.
            let mut block = vec![0_u8; TOUCHED_PAGES * PAGE_SIZE];
            for page in block.chunks_mut(PAGE_SIZE) {
                page[0] = black_box(1);
            }
            black_box(&block);
        })?;
        #[expect(clippy::cast_precision_loss, reason = "a few thousand pages")]
        times.push(took.cpu_ns / TOUCHED_PAGES as f64);
        control.advance(1)?;
    }
    Ok(median(times))
}

/// Steps that [`fault_ns`] reports.
pub(super) fn fault_steps(setup: &Setup) -> u64 {
    rounds(setup)
}
