//! Question: what does reading a group's usage cost, beside the sums of a counter?
//!
//! Command: `cargo bench -p highwater --bench usage_read`. Prints nanoseconds of CPU time as
//! medians over interleaved rounds, for groups and counters that all of 384 CPUs have used
//! (synthetic, in the atomic regime) and for such as the CPUs of this machine have; and fails if an
//! exact usage takes more than twice as long as an exact sum of as many CPUs. An exact usage looks
//! twice at each CPU's word, under the tree's lock, and each word lies where its CPU has allocated
//! it; an exact sum looks once, at lines beside each other. All words are in caches of this CPU:
//! where other CPUs write them, both wait for as many lines. Medians and ratios carry over to other
//! machines, single times do not. Without `--bench` (as under `cargo test --benches`) it does a
//! thousandth of the work and promises nothing.
//!
//! What would change our mind: if looking twice cost more than that, an exact read would have to be
//! one that proves nothing; a cheap read that cost as much as an exact one would be of no use.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod promise;
mod timing;

use std::hint::black_box;
use std::process::ExitCode;
use std::thread;

use highwater::counter::CounterTree;
use highwater::group::{GroupNode, GroupTree, Limits};
use highwater::lab::percpu::Regime;
use highwater::topology::Topology;
use highwater::units::{CpuId, Pages};
use promise::Promise;
use timing::{Medians, ROUNDS, Variant, measure};

const SERVER: &str = "2x12x8x2";
/// Maximum cost of an exact usage, in exact sums of a counter over as many CPUs.
const PROMISED: f64 = 2.0;

const TREE_OF_ALL: &str = "exact sum of a counter, 384 CPUs";
const GROUP_OF_ALL: &str = "exact usage of a group, 384 CPUs";

/// A group below another, in which each CPU of a server has charged.
fn group_of_all(server: &Topology) -> GroupNode {
    let tree = GroupTree::new(server.nr_cpus());
    let group = child(&child(&tree.root(), "tenant"), "query");
    for cpu in (0..server.nr_cpus()).map(CpuId::from_index) {
        let charge = group
            .at(cpu)
            .try_charge(Pages(3).bytes())
            .expect("no maximum");
        drop(charge);
    }
    group
}

fn child(parent: &GroupNode, name: &str) -> GroupNode {
    let child = parent.child(name, Limits::default());
    child.expect("a group more")
}

fn counter_of_all(server: &Topology) -> CounterTree {
    let counter = CounterTree::with_regime(server, Regime::Atomic);
    for cpu in (0..server.nr_cpus()).map(CpuId::from_index) {
        counter.at(cpu).add(1_000);
    }
    counter
}

/// A group and a counter that threads of this machine have used.
fn used_here() -> (GroupNode, CounterTree) {
    let machine = Topology::detect();
    let regime = Regime::preferred(&machine);
    let group = child(
        &GroupTree::with_regime(regime, machine.nr_cpus()).root(),
        "tenant",
    );
    let counter = CounterTree::with_regime(&machine, regime);
    thread::scope(|scope| {
        for _ in 0..8 * machine.nr_cpus() {
            scope.spawn(|| {
                counter.add(1_000);
                drop(group.try_charge(Pages(3).bytes()).expect("no maximum"));
            });
        }
    });
    (group, counter)
}

fn variants() -> Vec<Variant> {
    let server: Topology = SERVER.parse().expect("a topology");
    let (all, counter) = (group_of_all(&server), counter_of_all(&server));
    let parent = all.parent().expect("a tenant above the query");
    let cheap = all.clone();
    let (here, counter_here) = used_here();
    let (cheap_here, approximate) = (here.clone(), counter_of_all(&server));
    vec![
        Variant::new(TREE_OF_ALL, 20_000, move |times| {
            (0..times).for_each(|_| _ = black_box(black_box(&counter).precise_sum()));
        }),
        Variant::new(GROUP_OF_ALL, 20_000, move |times| {
            (0..times).for_each(|_| _ = black_box(black_box(&all).usage_precise()));
        }),
        Variant::new("exact usage of its parent", 20_000, move |times| {
            (0..times).for_each(|_| _ = black_box(black_box(&parent).usage_precise()));
        }),
        Variant::new("interval of a group, 384 CPUs", 20_000, move |times| {
            (0..times).for_each(|_| _ = black_box(black_box(&cheap).usage()));
        }),
        Variant::new("interval of a counter, 384 CPUs", 300_000, move |times| {
            (0..times).for_each(|_| _ = black_box(black_box(&approximate).approximate_sum()));
        }),
        Variant::new(
            "exact sum of a counter, this machine",
            300_000,
            move |times| {
                (0..times).for_each(|_| _ = black_box(black_box(&counter_here).precise_sum()));
            },
        ),
        Variant::new(
            "exact usage of a group, this machine",
            300_000,
            move |times| {
                (0..times).for_each(|_| _ = black_box(black_box(&here).usage_precise()));
            },
        ),
        Variant::new("interval of a group, this machine", 300_000, move |times| {
            (0..times).for_each(|_| _ = black_box(black_box(&cheap_here).usage()));
        }),
    ]
}

fn of(medians: &Medians, name: &str) -> f64 {
    let found = medians.iter().find(|(known, _)| *known == name);
    found.expect("a variant of that name").1
}

fn main() -> ExitCode {
    println!("{ROUNDS} interleaved rounds; medians of CPU time, ns each");
    let medians = measure(&variants(), 1);
    for (name, ns) in &medians {
        println!("  {name:40}{ns:9.1}");
    }
    let ratio = of(&medians, GROUP_OF_ALL) / of(&medians, TREE_OF_ALL);
    let name = "an exact usage of 384 CPUs: of an exact sum";
    promise::report(Ok(&[Promise::new(name, ratio, ..=PROMISED)]))
}
