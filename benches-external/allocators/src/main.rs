//! Question: what does a page frame of a [`FramePool`] cost, and what do 4 KiB, aligned to 4 KiB,
//! cost from common allocators: glibc's, jemalloc, mimalloc, snmalloc and tcmalloc?
//!
//! Command: `cargo run --release -- --bench`, in this folder. It needs a C and a C++ compiler.
//! Prints nanoseconds of CPU time for the allocation and free of a block, as medians over
//! interleaved rounds, on one thread and on two, for the work that
//! `crates/highwater/benches/blocks` describes, without and with a write to each block, and the
//! resident memory of the process after the rounds with a write; beside them the floor, a stack
//! that each thread has for itself and that does nothing else. Fails if one of these is broken:
//!
//! - work whose blocks are written is as fast as with the best of the five;
//! - churn is at least 1.4 times faster than with the best, and two threads do at least 1.8 times
//!   as much of it as one;
//! - a hot pair takes at most 1.5 times as long as with the best;
//! - 64 Ki allocated and freed are at least twice as fast as with the best;
//! - blocks that one thread allocates and another frees take at most twice as long as on one.
//!
//! Ratios carry over to other machines, single times do not. Without `--bench` it does a thousandth
//! of the work and promises nothing.
//!
//! Each allocator is called directly and has a process of its own, which times a round on request:
//! the C library registers a thread's one area for restartable sequences, and tcmalloc must
//! register it itself to have its per-CPU caches (`GLIBC_TUNABLES=glibc.pthread.rseq=0`); Highwater
//! uses the library's.
//!
//! LLFree is not included: no registry has it, and with a dependency on its repository this would
//! not build without access to that.
//!
//! What would change our mind: an allocator without per-CPU lists and frames that costs as little.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

#[path = "../../../crates/highwater/benches/blocks/mod.rs"]
mod blocks;
mod children;
mod sources;
#[path = "../../../crates/highwater/benches/timing/mod.rs"]
#[expect(dead_code, reason = "every round is timed by a child")]
mod timing;

use std::process::ExitCode;
use std::rc::Rc;

use highwater::lab::percpu::has_restartable_sequences;
use highwater::topology::Topology;

use blocks::{Access, Work};
use children::Child;
use timing::{Medians, ROUNDS, Variant, is_bench, measure};

/// In the order of the table's columns.
const OURS: usize = 0;
const ALLOCATORS: [usize; 5] = [1, 2, 3, 4, 5];
const NAMES: [&str; 7] = [
    "Highwater",
    "glibc",
    "jemalloc",
    "mimalloc",
    "snmalloc",
    "tcmalloc",
    "stack",
];

fn main() -> ExitCode {
    if let Some(name) = children::served() {
        return children::serve(&name);
    }
    println!(
        "{}; {ROUNDS} interleaved rounds; medians of CPU time, ns for each block, out and back",
        Topology::detect()
    );
    let children: Vec<Rc<Child>> = NAMES
        .iter()
        .map(|name| Rc::new(Child::start(name)))
        .collect();
    let is_kept = run(&children);
    if !has_restartable_sequences() {
        println!("no restartable sequences here: nothing is promised");
        return ExitCode::SUCCESS;
    }
    match is_kept || !is_bench() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Returns whether Highwater keeps its promises.
fn run(children: &[Rc<Child>]) -> bool {
    let mut is_kept = true;
    let rows = Access::ALL.map(|access| Work::ALL.map(|work| (work, access)));
    for (work, access) in rows.into_iter().flatten() {
        println!("\n{}{}", work.name(), access.suffix());
        // The floor has nothing to write to.
        let children = match access {
            Access::Untouched => children,
            Access::Written => &children[..=ALLOCATORS.len()],
        };
        print!("  {:12}", "");
        for name in &NAMES[..children.len()] {
            print!("{name:>11}");
        }
        println!();
        let alone = table_row(children, work, access, 1);
        let together = table_row(children, work, access, 2);
        if access == Access::Written {
            print!("  resident MiB");
            for child in children {
                print!("{:11.0}", child.resident_mib());
            }
            println!();
        }
        for (promise, is_this_kept) in promises(work, access, &alone, &together) {
            is_kept &= is_this_kept;
            let verdict = if is_this_kept { "ok" } else { "NOT KEPT" };
            println!("  {promise}: {verdict}");
        }
    }
    is_kept
}

fn table_row(children: &[Rc<Child>], work: Work, access: Access, threads: u32) -> Medians {
    let variant = |(child, name): (&Rc<Child>, &'static str)| {
        let child = Rc::clone(child);
        Variant::timed_by(name, work.times(), move |threads, times| {
            child.round(work, access, threads, times)
        })
    };
    let variants: Vec<Variant> = children.iter().zip(NAMES).map(variant).collect();
    let medians = measure(&variants, threads);
    print!("  {threads} threads   ");
    for (_, ns) in &medians {
        print!("{ns:11.2}");
    }
    println!();
    medians
}

/// Returns the promises about some work, and whether they were kept.
fn promises(
    work: Work,
    access: Access,
    alone: &Medians,
    together: &Medians,
) -> Vec<(String, bool)> {
    let best = |medians: &Medians| {
        ALLOCATORS
            .map(|at| medians[at].1)
            .into_iter()
            .reduce(f64::min)
    };
    let faster = |medians: &Medians| best(medians).expect("five of them") / medians[OURS].1;
    let both = [(1, faster(alone)), (2, faster(together))];
    let against = |least: f64| {
        both.map(|(threads, ratio)| {
            let text = format!(
                "{threads} threads: {ratio:.2} times as fast as the best of the five, at least {least:.2}"
            );
            (text, ratio >= least)
        })
    };
    let mut promises = Vec::new();
    if access == Access::Written {
        promises.extend(against(1.0));
        return promises;
    }
    match work {
        Work::HotPair => promises.extend(against(1.0 / 1.5)),
        Work::Churn => {
            promises.extend(against(1.4));
            let gain = 2.0 * alone[OURS].1 / together[OURS].1;
            let text = format!("two threads do {gain:.2} times as much as one, at least 1.8");
            promises.push((text, gain >= 1.8));
        }
        Work::OutAndBack => promises.extend(against(2.0)),
        Work::HandedOver => {
            let ratio = together[OURS].1 / alone[OURS].1;
            let text = format!("handed over, {ratio:.2} times as long as on one thread, at most 2");
            promises.push((text, ratio <= 2.0));
        }
    }
    promises
}
