//! Question: what does an update of a group's statistics cost, at any depth, beside a per-CPU add?
//!
//! Command: `cargo bench -p highwater --bench stat_update`. Prints nanoseconds of CPU time per
//! update, as medians over interleaved rounds, of a group at depth 1 and at depth 8, for a count
//! that only grows and for one that goes up and down, on one thread and on two that use one group;
//! beside it `Cells::add` in the same regime, and as many shared atomics as the group has levels,
//! which is what counting on every ancestor at once costs. Fails if an update takes more than twice
//! as long as the add. Medians and ratios carry over to other machines, single times do not.
//! Without `--bench` (as under `cargo test --benches`) it does a thousandth of the work and
//! promises nothing.
//!
//! What would change our mind: if windows did not keep updates off the ancestors, depth 8 would
//! show it.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod promise;
mod timing;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, Ordering};

use highwater::group::{GroupNode, GroupTree, Limits, StatItem};
use highwater::lab::percpu::{Cells, Regime, has_restartable_sequences};
use highwater::topology::Topology;
use promise::Promise;
use timing::{Medians, ROUNDS, Variant, measure};

const TIMES: u32 = 3_000_000;
/// Maximum time of an update, in adds.
const MOST: f64 = 2.0;

/// Adds 1 that many times.
fn growing(name: &'static str, add: impl Fn(i64) + Sync + 'static) -> Variant {
    Variant::new(name, TIMES, move |times| {
        for _ in 0..times {
            add(black_box(1));
        }
    })
}

/// Adds 1 and subtracts it in turn.
fn up_and_down(name: &'static str, add: impl Fn(i64) + Sync + 'static) -> Variant {
    Variant::new(name, TIMES, move |times| {
        for _ in 0..times / 2 {
            add(black_box(1));
            add(black_box(-1));
        }
    })
}

fn group_at(depth: usize, regime: Regime) -> GroupNode {
    let tree = GroupTree::with_regime(regime, Topology::detect().nr_cpus());
    let mut group = tree.root();
    for _ in 0..depth {
        group = group
            .child("g", Limits::default())
            .expect("a name that is free");
    }
    group
}

fn variants(regime: Regime) -> Vec<Variant> {
    let cells = || Cells::new(regime, Topology::detect().nr_cpus(), 1);
    let (up, both) = (cells(), cells());
    let [up_1, up_8, both_1, both_8] = [1, 8, 1, 8].map(|depth| group_at(depth, regime));
    let shared: [AtomicI64; 9] = std::array::from_fn(|_| AtomicI64::new(0));
    vec![
        growing("per-CPU add, growing", move |delta| {
            black_box(up.add(0, delta).new);
        }),
        growing("update at depth 1, growing", move |delta| {
            up_1.add_stat(StatItem::Pgfault, delta);
        }),
        growing("update at depth 8, growing", move |delta| {
            up_8.add_stat(StatItem::Pgfault, delta);
        }),
        up_and_down("per-CPU add, up and down", move |delta| {
            black_box(both.add(0, delta).new);
        }),
        up_and_down("update at depth 1, up and down", move |delta| {
            both_1.add_stat(StatItem::File, delta);
        }),
        up_and_down("update at depth 8, up and down", move |delta| {
            both_8.add_stat(StatItem::File, delta);
        }),
        growing("nine shared atomics", move |delta| {
            for level in &shared {
                level.fetch_add(delta, Ordering::Relaxed);
            }
        }),
    ]
}

/// Prints the table, and returns the promises: of each update, beside the add of its kind.
fn report(threads: u32, medians: &Medians) -> Vec<Promise> {
    let mut promises = Vec::new();
    for (nth, (name, ns)) in medians.iter().enumerate() {
        let add = medians[if nth < 3 { 0 } else { 3 }].1;
        let ratio = ns / add;
        println!("  {name:32}{ns:7.2}  {ratio:5.2}");
        if name.starts_with("update") {
            let together = if threads == 1 {
                "one thread"
            } else {
                "two threads"
            };
            let name = format!("{name}, {together}: of a per-CPU add");
            promises.push(Promise::new(name, ratio, ..=MOST));
        }
    }
    promises
}

fn main() -> ExitCode {
    let regime = Regime::preferred(&Topology::detect());
    println!(
        "{}; {regime:?}; medians of {ROUNDS} interleaved rounds",
        Topology::detect()
    );
    if !has_restartable_sequences() {
        println!("no restartable sequences here: updates and adds are atomic");
    }
    let mut promises = Vec::new();
    for threads in [1, 2] {
        println!("\n{threads} threads{:25}ns  of an add", "");
        promises.extend(report(threads, &measure(&variants(regime), threads)));
    }
    promise::report(Ok(&promises))
}
