//! Question: what do counters with a known error cost: to add to, to read exactly, to create?
//!
//! Command: `cargo bench -p highwater --bench counter_set`. Prints nanoseconds of CPU time as the
//! median over interleaved rounds, of additions on one thread and on two, which use the same
//! objects; the ratios that are promised; and fails if one is not kept. Medians and ratios carry
//! over to other machines, single times do not. Without `--bench` (as under `cargo test --benches`)
//! it runs a thousandth of the work and promises nothing.
//!
//! An add is measured in two ways. *In a chain*, each add is to the word of the one before and may
//! have to wait for its store. *In turn*, adds go to eight objects one after the other: the cost
//! that an add has among other code. One add in 32 climbs: that is in the figures. A set of one CPU
//! becomes one of all CPUs if the system migrates the thread that adds to it.
//!
//! What would change our mind: an add that costs more than five plain ones is not worth its
//! assembly (a plain one in turn takes a cycle on a Zen 4, a restartable one 4.2); a counter that
//! costs more than two such adds climbs too often; a read that walks CPUs that never added is not
//! worth its bitmap; a set that costs more than three small allocations is not cheap to make. How
//! much faster than an atomic add that is depends on the processor: a plain add is 20 times faster
//! on a Zen 4, 9 times on an Intel Xeon. So these ratios are shown and not promised.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod promise;
mod timing;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use highwater::counter::{CounterSet, CounterTree, Layout};
use highwater::lab::percpu::{Cells, Regime, has_restartable_sequences};
use highwater::topology::Topology;
use highwater::units::CpuId;
use promise::Promise;
use timing::{Medians, ROUNDS, Variant, measure};

/// Eight objects, each on lines of its own.
fn eight<T>(make: impl Fn() -> T) -> [T; 8] {
    std::array::from_fn(|_| make())
}

#[repr(align(64))]
struct OwnLine<T>(T);

/// Adds to the first of eight objects repeatedly, or to all in turn.
macro_rules! adds {
    ($chain:expr, $turn:expr, $objects:expr, |$object:ident| $add:expr) => {{
        let (chained, turned) = (Arc::new($objects), Arc::new($objects));
        [
            Variant::new($chain, 3_000_000, move |times| {
                let $object = &chained[0];
                for _ in 0..times {
                    $add;
                }
            }),
            Variant::new($turn, 3_000_000, move |times| {
                for _ in 0..times / 8 {
                    for $object in turned.iter() {
                        $add;
                    }
                }
            }),
        ]
    }};
}

fn add_variants(machine: &Topology) -> Vec<Variant> {
    let layout = Layout::new(machine, Regime::preferred(machine));
    let spread = || {
        let set = CounterSet::<4>::new(&layout);
        // A thread on each CPU, so that there are words for all of them.
        thread::scope(|scope| {
            for _ in 0..32 {
                scope.spawn(|| {
                    for _ in 0..1_000 {
                        set.add(1, 1);
                        if set.has_cpu_words() {
                            return;
                        }
                        thread::yield_now();
                    }
                });
            }
        });
        set
    };
    let mut variants = Vec::new();
    variants.extend(adds!(
        "plain add, chain",
        "plain add, in turn",
        eight(|| OwnLine(AtomicI64::new(0))),
        |word| {
            let word = &black_box(word).0;
            let old = word.load(Ordering::Relaxed);
            word.store(old + 1, Ordering::Relaxed);
        }
    ));
    let preferred = Regime::preferred(machine);
    variants.extend(adds!(
        "per-CPU word, chain",
        "per-CPU word, in turn",
        eight(|| Cells::new(preferred, machine.nr_cpus(), 1)),
        |cells| _ = black_box(cells).add(0, 1)
    ));
    variants.extend(adds!(
        "set of one CPU, chain",
        "set of one CPU, in turn",
        eight(|| CounterSet::<4>::new(&layout)),
        |set| _ = black_box(set).add(1, 1)
    ));
    variants.extend(adds!(
        "set of all CPUs, chain",
        "set of all CPUs, in turn",
        eight(spread),
        |set| _ = black_box(set).add(1, 1)
    ));
    variants.extend(adds!(
        "counter tree, chain",
        "counter tree, in turn",
        eight(|| CounterTree::with_layout(&layout)),
        |tree| black_box(tree).add(1)
    ));
    variants.extend(adds!(
        "atomic add, chain",
        "atomic add, in turn",
        eight(|| OwnLine(AtomicI64::new(0))),
        |word| _ = black_box(word).0.fetch_add(1, Ordering::Relaxed)
    ));
    variants
}

fn other_variants() -> Vec<Variant> {
    let server: Topology = "2x12x8x2".parse().expect("a topology");
    let layout = Layout::new(&server, Regime::Atomic);
    let (one, all) = (CounterSet::<4>::new(&layout), CounterSet::<4>::new(&layout));
    let tree = CounterTree::with_layout(&layout);
    one.at(CpuId(200)).add(1, 70);
    tree.at(CpuId(200)).add(70);
    for cpu in (0..384).map(CpuId) {
        all.at(cpu).add(1, 70);
    }
    let fresh = Arc::clone(&layout);
    vec![
        Variant::new(
            "exact read of a set, 1 of 384 CPUs",
            300_000,
            move |times| {
                for _ in 0..times {
                    black_box(black_box(&one).precise_sum(1));
                }
            },
        ),
        Variant::new("exact read of a set, all 384 CPUs", 10_000, move |times| {
            for _ in 0..times {
                black_box(black_box(&all).precise_sum(1));
            }
        }),
        Variant::new(
            "exact read of a tree, 1 of 384 CPUs",
            300_000,
            move |times| {
                for _ in 0..times {
                    black_box(black_box(&tree).precise_sum());
                }
            },
        ),
        Variant::new("make and drop a set of four", 300_000, move |times| {
            for _ in 0..times {
                let set = CounterSet::<4>::new(&fresh);
                drop(black_box(set));
            }
        }),
        Variant::new("make and drop a box of 128 bytes", 300_000, |times| {
            for _ in 0..times {
                drop(black_box(Box::new(black_box([0_u64; 16]))));
            }
        }),
    ]
}

fn of(medians: &[(&'static str, f64)], name: &str) -> f64 {
    let found = medians.iter().find(|(known, _)| *known == name);
    found.expect("a variant of that name").1
}

fn main() -> ExitCode {
    let machine = Topology::detect();
    println!("{machine}; {ROUNDS} interleaved rounds; medians of CPU time, ns each");
    let (medians, of_two) = run(&machine);
    show_beside_atomics(&medians);
    let mut promises = promises_of_adds(&medians, &of_two);
    promises.extend(other_promises(&medians));
    let here = has_restartable_sequences().then_some(&promises[..]);
    promise::report(here.ok_or("no restartable sequences"))
}

/// Shows the medians of every variant; returns them, and those of additions on two threads.
fn run(machine: &Topology) -> (Medians, Medians) {
    let adds = add_variants(machine);
    let alone = measure(&adds, 1);
    let of_two = measure(&adds, 2);
    let shared = [Variant::new("one shared atomic, 2 threads", 1_000_000, {
        let shared = AtomicI64::new(0);
        move |times| {
            for _ in 0..times {
                shared.fetch_add(1, Ordering::Relaxed);
            }
        }
    })];
    let together = measure(&shared, 2);
    let others = measure(&other_variants(), 1);
    let medians = [alone, together, others].concat();
    for (name, ns) in &medians {
        let of_two = of_two.iter().find(|(known, _)| known == name);
        let of_two = of_two.map_or(String::new(), |(_, ns)| format!("{ns:9.2}"));
        println!("  {name:36}{ns:9.2}{of_two}");
    }
    (medians, of_two)
}

fn show_beside_atomics(medians: &[(&'static str, f64)]) {
    let word = of(medians, "per-CPU word, in turn");
    let plain = of(medians, "plain add, in turn");
    let atomic = of(medians, "atomic add, in turn");
    let shared = of(medians, "one shared atomic, 2 threads");
    for (what, ratio) in [
        (
            "an add to a per-CPU word in a chain, of a plain one",
            of(medians, "per-CPU word, chain") / of(medians, "plain add, chain"),
        ),
        ("an atomic add, of a plain one in turn", atomic / plain),
        ("an atomic add, of a per-CPU word's in turn", atomic / word),
        (
            "a shared atomic from 2 threads, of a per-CPU word's",
            shared / word,
        ),
    ] {
        println!("  {what:52}{ratio:7.2}");
    }
}

/// Additions, and upper bounds of their cost in turn on one thread and on two, in that of an add to
/// a per-CPU word. Two threads add to the same objects, so that each climb, of one add in 32, waits
/// for a line that the other CPU has written.
const PROMISED_ADDS: [(&str, [f64; 2]); 3] = [
    ("counter tree, in turn", [2.0, 3.0]),
    ("set of one CPU, in turn", [2.9, 3.0]),
    ("set of all CPUs, in turn", [2.9, 4.0]),
];

fn promises_of_adds(alone: &Medians, of_two: &Medians) -> Vec<Promise> {
    let promise = |name: &str, threads: &str, medians: &Medians, at_most: f64| {
        let ratio = of(medians, name) / of(medians, "per-CPU word, in turn");
        let what = format!("an add, {name}, of a per-CPU word's, {threads}");
        Promise::new(what, ratio, ..=at_most)
    };
    let of_each = PROMISED_ADDS.into_iter().flat_map(|(name, [one, two])| {
        [
            promise(name, "one thread", alone, one),
            promise(name, "two threads", of_two, two),
        ]
    });
    of_each.collect()
}

fn other_promises(medians: &[(&'static str, f64)]) -> [Promise; 3] {
    let ratio = |of_this: &str, to_that: &str| of(medians, of_this) / of(medians, to_that);
    [
        Promise::new(
            "an add to a per-CPU word in turn, of a plain one",
            ratio("per-CPU word, in turn", "plain add, in turn"),
            ..=5.0,
        ),
        Promise::new(
            "an exact read of all CPUs, of one of one CPU",
            ratio(
                "exact read of a set, all 384 CPUs",
                "exact read of a set, 1 of 384 CPUs",
            ),
            50.0..,
        ),
        Promise::new(
            "making a set of four, of a box of 128 bytes",
            ratio(
                "make and drop a set of four",
                "make and drop a box of 128 bytes",
            ),
            ..=3.0,
        ),
    ]
}
