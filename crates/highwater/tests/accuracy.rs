//! Promise: the approximate sum of a counter at rest differs from the precise one by at most
//! `accuracy()`, and the bound is tight: both ends are reached.
//!
//! The shape of the tree is restated here, so that neither the bound nor the adversary is taken
//! from the code under test. In the atomic regime a thread acts as any CPU; in the restartable one
//! the adversary has the existing CPUs, and threads without rseq.

#![expect(
    clippy::unwrap_used,
    reason = "in a test, a failed unwrap is the failure"
)]

#[path = "support/threads.rs"]
mod threads;

use std::collections::BTreeSet;

use highwater::counter::{Accuracy, CounterSet, CounterTree, Layout};
use highwater::lab::percpu::{Regime, has_restartable_sequences};
use highwater::topology::Topology;
use highwater::units::CpuId;
use threads::{allowed_cpus, run_on, run_unregistered};

const CPU_COUNTS: [usize; 11] = [1, 2, 3, 4, 8, 64, 250, 384, 512, 1024, 8192];

/// The most that a word of a CPU, or of threads without rseq, hides.
const ONE_WORD: Accuracy = Accuracy {
    under: 15,
    over: 16,
};

/// One level below the root: the rounding of its words, and the number of CPUs each spans.
struct Level {
    modulus: i64,
    quantum: i64,
    span: usize,
}

impl Level {
    fn width(&self, nr_cpus: usize) -> i64 {
        i64::try_from(nr_cpus.div_ceil(self.span)).unwrap()
    }
}

/// Levels of a tree with a batch of 32, from the CPUs up, by the published table of fan-ins.
fn levels(nr_cpus: usize) -> Vec<Level> {
    let fan_ins: &[usize] = match nr_cpus {
        1 => &[],
        2 => &[2],
        3..=4 => &[2, 2],
        8 => &[2, 2, 2],
        64 => &[4, 4, 4],
        250 => &[8, 8, 4],
        384 | 512 => &[8, 8, 8],
        1024 => &[8, 8, 4, 4],
        8192 => &[8, 8, 8, 4, 4],
        _ => panic!("no shape is stated here for {nr_cpus} CPUs"),
    };
    let (mut levels, mut quantum, mut span) = (Vec::new(), 1, 1);
    for fan_in in fan_ins {
        let modulus = 32 * i64::try_from(span).unwrap();
        levels.push(Level {
            modulus,
            quantum,
            span,
        });
        quantum = modulus;
        span *= fan_in;
    }
    levels
}

/// The bound, by adding up the ranges of all residuals.
fn derived_accuracy(nr_cpus: usize) -> Accuracy {
    let mut accuracy = Accuracy { under: 0, over: 0 };
    for level in levels(nr_cpus) {
        accuracy.under += level.width(nr_cpus) * (level.modulus / 2 - level.quantum);
        accuracy.over += level.width(nr_cpus) * (level.modulus / 2);
    }
    accuracy
}

fn tree(nr_cpus: usize) -> CounterTree {
    CounterTree::with_regime(&Topology::flat(nr_cpus), Regime::Atomic)
}

fn sum(one: Accuracy, other: Accuracy) -> Accuracy {
    Accuracy {
        under: one.under + other.under,
        over: one.over + other.over,
    }
}

/// Origin of an update in the restartable regime.
#[derive(Clone, Copy, Debug)]
enum Source {
    Cpu(CpuId),
    WithoutRseq,
}

impl Source {
    /// Returns all sources for counters of `nr_cpus` CPUs; none if the system has no sequences, or
    /// no thread can run without rseq.
    fn all(nr_cpus: usize) -> Vec<Self> {
        if !has_restartable_sequences() || run_unregistered(|| ()).is_none() {
            return Vec::new();
        }
        let cpus = allowed_cpus().into_iter();
        let known = cpus.filter(|cpu| cpu.index() < nr_cpus);
        known.map(Self::Cpu).chain([Self::WithoutRseq]).collect()
    }

    fn run<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        match self {
            Self::Cpu(cpu) => run_on(cpu, work),
            Self::WithoutRseq => run_unregistered(work).unwrap(),
        }
    }
}

/// Returns `precise - approximate`.
fn error(tree: &CounterTree) -> i64 {
    tree.precise_sum() - tree.approximate_sum().value
}

/// Adds to the first CPU below each word of each level the amount that brings that word's residual
/// to `extreme(level)`, without a carry out of the level.
fn fill(tree: &CounterTree, nr_cpus: usize, extreme: impl Fn(&Level) -> i64) {
    for level in levels(nr_cpus) {
        for first in (0..nr_cpus).step_by(level.span) {
            tree.at(CpuId::from_index(first)).add(extreme(&level));
        }
    }
}

// Goal: both ends of the stated bound are reached exactly.
// Method: an adversary drives the residual of every word and node to its upper, then lower end.
#[test]
fn worst_case_carries() {
    for nr_cpus in CPU_COUNTS {
        let bound = derived_accuracy(nr_cpus);
        let too_low = tree(nr_cpus);
        assert_eq!(too_low.accuracy_max(), bound, "{nr_cpus} CPUs");
        fill(&too_low, nr_cpus, |level| level.modulus / 2 - level.quantum);
        assert_eq!(error(&too_low), bound.under, "{nr_cpus} CPUs");
        let too_high = tree(nr_cpus);
        fill(&too_high, nr_cpus, |level| -level.modulus / 2);
        assert_eq!(error(&too_high), -bound.over, "{nr_cpus} CPUs");
        for tree in [too_low, too_high] {
            let estimate = tree.approximate_sum();
            assert!(estimate.contains(tree.precise_sum()));
            tree.check_invariants();
        }
    }
}

// Goal: in the restartable regime the bound is that of the atomic one plus one word, for any number
// of CPUs, and both ends of it are reached. Method: a thread on each CPU and one without rseq drive
// their word and the levels above it to their upper, then lower end. The hidden amounts of CPUs
// that do not exist are in no interval.
#[test]
fn worst_case_carries_beside_threads_without_rseq() {
    for nr_cpus in CPU_COUNTS {
        let machine = Topology::flat(nr_cpus);
        let layout = Layout::new(&machine, Regime::Restartable);
        let of_cpus = match nr_cpus {
            1 => ONE_WORD,
            _ => derived_accuracy(nr_cpus),
        };
        assert_eq!(
            layout.accuracy_max(),
            sum(of_cpus, ONE_WORD),
            "{nr_cpus} CPUs"
        );
        let sources = Source::all(nr_cpus);
        for is_high in [false, true] {
            let tree = CounterTree::with_layout(&layout);
            let (mut bound, mut filled) = (Accuracy { under: 0, over: 0 }, BTreeSet::new());
            for &source in &sources {
                let above = match source {
                    Source::Cpu(_) => levels(nr_cpus),
                    Source::WithoutRseq => Vec::new(),
                };
                // The first level is the word itself, which exists without a tree too.
                let mut delta = if is_high { -16 } else { 15 };
                bound = sum(bound, ONE_WORD);
                for level in above.iter().skip(1) {
                    let Source::Cpu(cpu) = source else { continue };
                    if filled.insert((level.span, cpu.index() / level.span)) {
                        let (over, under) = (level.modulus / 2, level.modulus / 2 - level.quantum);
                        delta += if is_high { -over } else { under };
                        bound = sum(bound, Accuracy { under, over });
                    }
                }
                source.run(|| tree.add(delta));
            }
            assert_eq!(tree.accuracy(), bound, "{nr_cpus} CPUs");
            let expected = if is_high { -bound.over } else { bound.under };
            assert_eq!(error(&tree), expected, "{nr_cpus} CPUs");
            assert!(tree.approximate_sum().contains(tree.precise_sum()));
            tree.check_invariants();
        }
    }
}

// Goal: no traffic exceeds the interval in the restartable regime, of trees and of sets. Method: as
// below, from each existing CPU and from threads without rseq, one after the other.
#[test]
fn random_traffic_beside_threads_without_rseq_stays_inside() {
    let seed = std::env::var("SEED").map_or(23, |text| text.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(seed);
    for nr_cpus in CPU_COUNTS {
        let sources = Source::all(nr_cpus);
        let layout = Layout::new(&Topology::flat(nr_cpus), Regime::Restartable);
        let (tree, set) = (
            CounterTree::with_layout(&layout),
            CounterSet::<2>::new(&layout),
        );
        let (mut sum, mut worst) = (0, 0);
        for _ in 0..if sources.is_empty() { 0 } else { 60 } {
            let source = sources[random.usize(..sources.len())];
            let size = [1, 16, 512, 1 << random.u32(0..24)][random.usize(..4)];
            let drift = random.i64(-2..=2);
            source.run(|| {
                for _ in 0..500 {
                    let delta = if drift < random.i64(-3..=3) {
                        -size
                    } else {
                        size
                    };
                    tree.add(delta);
                    set.add(1, delta);
                    sum += delta;
                    let estimates = [tree.approximate_sum(), set.approximate_sum(1)];
                    let [seen, in_set] = estimates;
                    worst = worst.max((sum - seen.value).abs());
                    assert!(
                        seen.contains(sum) && in_set.contains(sum),
                        "SEED={seed}, {nr_cpus} CPUs: {sum} is not in {seen} or {in_set}"
                    );
                }
            });
        }
        assert_eq!((tree.precise_sum(), set.precise_sum(1)), (sum, sum));
        // The traffic is a test only if it makes errors of the bound's order.
        let over = tree.accuracy().over;
        assert!(worst * 16 >= over, "SEED={seed}: {worst} of {over}");
        tree.check_invariants();
        set.check_invariants();
    }
}

// Goal: no traffic exceeds the bound. Method: random updates by pages, fault-around windows, huge
// pages and other amounts, growing and shrinking, on every CPU and on few; the exact sum is kept
// beside the tree and compared each time.
#[test]
fn random_traffic_stays_inside() {
    let seed = std::env::var("SEED").map_or(21, |text| text.parse().unwrap());
    for nr_cpus in CPU_COUNTS {
        let mut random = fastrand::Rng::with_seed(seed);
        let (tree, mut sum, mut worst) = (tree(nr_cpus), 0, 0);
        for _ in 0..40 {
            let used = random.usize(1..=nr_cpus);
            let sizes = [1, 16, 512, 1 << random.u32(0..24)];
            let drift = random.i64(-2..=2);
            for _ in 0..2_000 {
                let size = sizes[random.usize(..sizes.len())];
                let delta = if drift < random.i64(-3..=3) {
                    -size
                } else {
                    size
                };
                tree.at(CpuId::from_index(random.usize(..used))).add(delta);
                sum += delta;
                let estimate = tree.approximate_sum();
                worst = worst.max((sum - estimate.value).abs());
                assert!(
                    estimate.contains(sum),
                    "SEED={seed}, {nr_cpus} CPUs: {sum} is not in {estimate}"
                );
            }
        }
        assert_eq!(tree.precise_sum(), sum, "SEED={seed}, {nr_cpus} CPUs");
        // The traffic is a test only if it makes errors of the bound's order.
        let over = tree.accuracy_max().over;
        assert!(worst * 16 >= over, "SEED={seed}: {worst} of {over}");
        tree.check_invariants();
    }
}

// Goal: a set is exact until a second CPU uses it, and inside its own interval from then on, member
// by member; its interval is never wider than the touched CPUs make it. Method: random traffic on
// one CPU, then on few, then on all; exact sums are kept beside it.
#[test]
fn sets_stay_inside_their_interval() {
    let seed = std::env::var("SEED").map_or(22, |text| text.parse().unwrap());
    for nr_cpus in CPU_COUNTS {
        let mut random = fastrand::Rng::with_seed(seed);
        let layout = Layout::new(&Topology::flat(nr_cpus), Regime::Atomic);
        let (set, mut sums) = (CounterSet::<4>::new(&layout), [0; 4]);
        let few = nr_cpus.min(2);
        for used in [1, few, few.max(nr_cpus / 8), nr_cpus] {
            for _ in 0..5_000 {
                // The last member stays untouched.
                let (cpu, member) = (random.usize(..used), random.usize(..3));
                let delta = random.i64(-600..=700);
                set.at(CpuId::from_index(cpu)).add(member, delta);
                sums[member] += delta;
                let estimate = set.approximate_sum(member);
                assert!(estimate.contains(sums[member]), "SEED={seed} {set:?}");
                assert!(used > 1 || estimate.low == estimate.high);
            }
            assert_eq!(set.has_cpu_words(), used > 1);
            let together = set.approximate_sum_of(&[0, 1, 2]);
            assert!(together.contains(sums.iter().sum()), "SEED={seed}");
        }
        assert_eq!([0, 1, 2, 3].map(|member| set.precise_sum(member)), sums);
        assert_eq!(set.accuracy(3), Accuracy { under: 0, over: 0 });
        assert_eq!(set.approximate_sum(3).value, 0);
        set.check_invariants();
    }
}

// Goal: the headline figure: on 2 sockets of 12 caches of 8 cores of 2 threads, 192 MiB of
// published uncertainty either way become less than 58.6 MiB below and 72.1 MiB above.
#[test]
fn a_server_of_384_cpus_is_within_72_mib() {
    let machine: Topology = "2x12x8x2".parse().unwrap();
    let of = |regime| CounterTree::with_regime(&machine, regime).accuracy_max();
    let Accuracy { under, over } = of(Regime::Atomic);
    assert_eq!((over, under), (18_432, 14_976));
    assert_eq!(
        (over * 4096, under * 4096),
        (72 << 20, (58 << 20) + (1 << 19))
    );
    let Accuracy { under, over } = of(Regime::Restartable);
    assert_eq!((over, under), (18_432 + 16, 14_976 + 15));
    // The figures of the README, in tenths of a MiB, which hold in both regimes.
    assert!(10 * over <= 721 * 256 && 10 * under <= 586 * 256);
}

// Goal: a space that runs on one CPU is off by one path at most, whatever the machine.
// Method: every residual on the path of one CPU at either end, on 384 CPUs.
#[test]
fn a_counter_of_one_cpu_is_off_by_one_path() {
    let path = || levels(384).into_iter();
    for (delta, expected) in [
        (
            path().map(|level| level.modulus / 2 - level.quantum).sum(),
            15 + 96 + 768,
        ),
        (
            path().map(|level| -level.modulus / 2).sum(),
            -(16 + 128 + 1024),
        ),
    ] {
        let tree = tree(384);
        tree.at(CpuId(77)).add(delta);
        assert_eq!(error(&tree), expected);
    }
}

// Goal: the table in `docs/accuracy.md` matches the code. Method: recompute every row.
#[test]
fn the_documented_table_is_computed() {
    let document = include_str!("../docs/accuracy.md");
    for nr_cpus in [2, 4, 8, 64, 250, 384, 512, 1024, 8192] {
        let Accuracy { under, over } = tree(nr_cpus).accuracy_max();
        let restartable = CounterTree::with_regime(&Topology::flat(nr_cpus), Regime::Restartable);
        let default = restartable.accuracy_max();
        let mib = |pages: i64| {
            let hundredths = (pages * 100 + 128) / 256;
            format!("{}.{:02}", hundredths / 100, hundredths % 100)
        };
        let widths: Vec<String> = levels(nr_cpus)
            .iter()
            .map(|level| level.width(nr_cpus).to_string())
            .collect();
        let row = format!(
            "| {nr_cpus} | {} | {over} | {under} | {} | {} | {} | {} |",
            widths.join(" + "),
            mib(over),
            mib(under),
            default.over,
            default.under
        );
        assert!(document.contains(&row), "docs/accuracy.md lacks: {row}");
    }
}
