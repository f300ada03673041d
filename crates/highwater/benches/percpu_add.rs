//! Question: what does counting one event cost, alone and beside another thread?
//!
//! Command: `cargo bench -p highwater --bench percpu_add`. Prints nanoseconds of CPU time per add
//! as the median over interleaved rounds, and ratios to the restartable add. Medians and ratios
//! carry over to other machines, single times do not. Without `--bench` (as under
//! `cargo test --benches`) it runs a thousandth of the adds, to show that it works.
//!
//! Adds to one word in a tight loop wait for each other: a plain one for the last store to reach
//! the next load. Eight words in turn show what an add costs when it does not follow another.
//!
//! What would change our mind: if the restartable add were not at least three times cheaper than
//! an atomic one on a line of its own, the assembly would not be worth its keep; if two threads on
//! one shared atomic cost less than twice what one does, neither would be per-CPU words.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod timing;

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use highwater::counter::CounterTree;
use highwater::lab::percpu::{Cells, Regime, has_restartable_sequences};
use highwater::topology::Topology;
use timing::{Medians, ROUNDS, Variant, is_bench, measure};

const ADDS: u32 = 3_000_000;

/// One way to count.
fn adding(name: &'static str, add: impl Fn(i64) + Sync + 'static) -> Variant {
    Variant::new(name, ADDS, move |adds| {
        for _ in 0..adds {
            add(black_box(1));
        }
    })
}

/// Like `adding`, but each add is to another of eight words, so that none waits for the one before.
fn in_turn(name: &'static str, add: impl Fn(usize) + Sync + 'static) -> Variant {
    Variant::new(name, ADDS, move |adds| {
        for word in (0..8).cycle().take(adds as usize) {
            add(black_box(word));
        }
    })
}

fn variants(machine: &Topology) -> Vec<Variant> {
    let cells = |regime, words| Cells::new(regime, machine.nr_cpus(), words);
    let (restartable, atomic) = (cells(Regime::Restartable, 1), cells(Regime::Atomic, 1));
    let (eight_restartable, eight_atomic) =
        (cells(Regime::Restartable, 8), cells(Regime::Atomic, 8));
    let tree = |regime| CounterTree::with_regime(machine, regime);
    let (tree_restartable, tree_atomic) = (tree(Regime::Restartable), tree(Regime::Atomic));
    let shared = AtomicI64::new(0);
    let mutex = Mutex::new(0_i64);
    vec![
        adding("per-CPU word, restartable add", move |delta| {
            black_box(restartable.add(0, delta).new);
        }),
        adding("per-CPU word, atomic add", move |delta| {
            black_box(atomic.add(0, delta).new);
        }),
        in_turn("eight words in turn, restartable", move |word| {
            black_box(eight_restartable.add(word, 1).new);
        }),
        in_turn("eight words in turn, atomic", move |word| {
            black_box(eight_atomic.add(word, 1).new);
        }),
        adding("counter tree, restartable", move |delta| {
            tree_restartable.add(delta);
        }),
        adding("counter tree, atomic", move |delta| {
            tree_atomic.add(delta);
        }),
        adding("one shared atomic", move |delta| {
            shared.fetch_add(delta, Ordering::Relaxed);
        }),
        adding("one mutex", move |delta| {
            *mutex.lock().expect("no adder panics") += delta;
        }),
        adding("nothing: the loop alone", |_| {}),
    ]
}

fn main() {
    let machine = Topology::detect();
    println!("{machine}; {ROUNDS} interleaved rounds of {ADDS} adds for each thread; medians");
    if !is_bench() {
        println!("a thousandth of the adds, to show that it works");
    }
    if !has_restartable_sequences() {
        println!("no restartable sequences here: those rows show the extra slot's atomic add");
    }
    let variants = variants(&machine);
    for threads in [1, 2, 8] {
        let medians: Medians = measure(&variants, threads);
        println!("\n{threads} threads{:25}ns/add    ratio", "");
        for (name, ns) in &medians {
            println!("  {name:32}{ns:7.2}  {:7.1}", ns / medians[0].1);
        }
    }
}
