//! Question: what does a page frame of a [`FramePool`] cost, and what do 4 KiB, aligned to 4 KiB,
//! cost from common allocators: glibc's, jemalloc, mimalloc, snmalloc and tcmalloc?
//!
//! Command: `cargo run --release -- --bench`, in this folder. It needs a C and a C++ compiler.
//! Prints nanoseconds of CPU time for the allocation and free of a block, as medians over
//! interleaved rounds, on one thread and on two, for the work that
//! `crates/highwater/benches/blocks` describes, without and with a write to each block, and the
//! resident memory of the process after the rounds with a write; beside them the floor, a stack
//! that each thread has for itself and that does nothing else. Then percentiles of the same for a
//! bystander beside a thread that allocates and frees many. Fails if one of these is broken:
//!
//! - work whose blocks are written is as fast as with the best of the others, and so are the 99th
//!   and the 99.9th percentile of the bystander;
//! - churn is at least 1.1 times faster than with the best, and two threads do at least 1.8 times
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
//! LLFree is in no registry, and with a dependency on its repository this would not build where
//! that cannot be reached. It has a program of its own, `benches-external/llfree`, that serves it
//! as the other children serve theirs; with `--llfree PROGRAM` it joins, in the same rounds:
//!
//! ```text
//! (cd ../llfree && cargo build --release --locked)
//! cargo run --release -- --bench --llfree ../llfree/target/release/highwater-bench-llfree
//! ```
//!
//! What would change our mind: an allocator without per-CPU lists and frames that costs as little.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

#[path = "../../../crates/highwater/benches/blocks/mod.rs"]
#[expect(dead_code, reason = "that blocks are numbers matters to other benches")]
mod blocks;
mod children;
mod serving;
mod sources;
#[path = "../../../crates/highwater/benches/timing/mod.rs"]
#[expect(dead_code, reason = "every round is timed by a child")]
mod timing;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use highwater::lab::percpu::has_restartable_sequences;
use highwater::topology::Topology;

use blocks::bystander::Percentile;
use blocks::{Access, Latency, Work};
use children::Child;
use timing::{Medians, ROUNDS, Variant, is_bench, measure};

/// The sources of this program, in the order of the table's columns.
const NAMES: [&str; 7] = [
    OURS, "glibc", "jemalloc", "mimalloc", "snmalloc", "tcmalloc", FLOOR,
];
const OURS: &str = "Highwater";
const LLFREE: &str = "LLFree";
const FLOOR: &str = "stack";

fn main() -> ExitCode {
    if let Some(name) = serving::served() {
        return match sources::named(&name) {
            Some(timed) => serving::serve(&timed),
            None => ExitCode::FAILURE,
        };
    }
    println!(
        "{}; {ROUNDS} interleaved rounds; medians of CPU time, ns for each block, out and back",
        Topology::detect()
    );
    let llfree = argument("--llfree").map(PathBuf::from);
    let llfree = llfree.map(|program| Child::start_program(LLFREE, &program));
    let children: Vec<Rc<Child>> = NAMES
        .iter()
        .map(|name| Child::start(name))
        .chain(llfree)
        .map(Rc::new)
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

/// The argument that follows `name`.
fn argument(name: &str) -> Option<String> {
    let mut arguments = env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

/// Returns whether Highwater keeps its promises.
fn run(children: &[Rc<Child>]) -> bool {
    let mut is_kept = true;
    let mut judge = |promises: Vec<(String, bool)>| {
        for (promise, is_this_kept) in promises {
            is_kept &= is_this_kept;
            let verdict = if is_this_kept { "ok" } else { "NOT KEPT" };
            println!("  {promise}: {verdict}");
        }
    };
    for access in Access::ALL {
        // The floor has nothing to write to.
        let fits = |child: &&Rc<Child>| access == Access::Untouched || child.name() != FLOOR;
        let children: Vec<Rc<Child>> = children.iter().filter(fits).map(Rc::clone).collect();
        for work in Work::ALL {
            heading(&format!("{}{}", work.name(), access.suffix()), &children);
            let alone = table_row(&children, work, access, 1);
            let together = table_row(&children, work, access, 2);
            if access == Access::Written {
                resident_row(&children);
            }
            judge(match access {
                Access::Untouched => promises(work, &alone, &together),
                Access::Written => promises_of_writes(&alone, &together),
            });
        }
        let title = format!("bystander beside one that churns{}", access.suffix());
        heading(&title, &children);
        let latencies = bystander_rows(&children, access);
        if access == Access::Written {
            resident_row(&children);
            judge(promises_of_bystander(&children, &latencies));
        }
    }
    is_kept
}

fn heading(title: &str, children: &[Rc<Child>]) {
    print!("\n{title}\n  {:12}", "");
    children
        .iter()
        .for_each(|child| print!("{:>11}", child.name()));
    println!();
}

fn table_row(children: &[Rc<Child>], work: Work, access: Access, threads: u32) -> Medians {
    let variant = |child: &Rc<Child>| {
        let child = Rc::clone(child);
        Variant::timed_by(child.name(), work.times(), move |threads, times| {
            child.round(work, access, threads, times)
        })
    };
    let variants: Vec<Variant> = children.iter().map(variant).collect();
    let medians = measure(&variants, threads);
    print!("  {threads} threads   ");
    medians.iter().for_each(|(_, ns)| print!("{ns:11.2}"));
    println!();
    medians
}

/// The medians of interleaved rounds, a row for each percentile.
fn bystander_rows(children: &[Rc<Child>], access: Access) -> Vec<Latency> {
    let (nr_rounds, part) = if is_bench() { (ROUNDS, 1) } else { (1, 100) };
    let mut rounds: Vec<Vec<Latency>> = children.iter().map(|_| Vec::new()).collect();
    for _ in 0..nr_rounds {
        for (child, rounds) in children.iter().zip(&mut rounds) {
            rounds.push(child.bystander(access, 1, part));
        }
    }
    let medians: Vec<Latency> = rounds
        .iter()
        .map(|rounds| Latency::medians(rounds))
        .collect();
    for (name, of) in Latency::PERCENTILES {
        print!("  {name:12}");
        medians
            .iter()
            .for_each(|latency| print!("{:11.0}", of(latency)));
        println!();
    }
    medians
}

fn resident_row(children: &[Rc<Child>]) {
    print!("  resident MiB");
    children
        .iter()
        .for_each(|child| print!("{:11.0}", child.resident_mib()));
    println!();
}

/// How much faster Highwater is than the best of the others.
fn faster(medians: &Medians, is_peer: impl Fn(&str) -> bool) -> f64 {
    let others = medians.iter().filter(|(name, _)| is_peer(name));
    let best = others.map(|&(_, ns)| ns).reduce(f64::min);
    best.expect("there are others") / of(medians, OURS)
}

fn of(medians: &Medians, wanted: &str) -> f64 {
    let found = medians.iter().find(|(name, _)| *name == wanted);
    found.expect("it was measured").1
}

/// Returns the promises about work whose blocks are written, and whether they were kept.
fn promises_of_writes(alone: &Medians, together: &Medians) -> Vec<(String, bool)> {
    let both = [(1, alone), (2, together)];
    let promise = |(threads, medians): (u32, &Medians)| {
        let ratio = faster(medians, |name| name != OURS);
        let text =
            format!("{threads} threads: {ratio:.2} times as fast as the best peer, at least 1.00");
        (text, ratio >= 1.0)
    };
    both.map(promise).into()
}

/// Returns the promises about a bystander that writes, and whether they were kept.
fn promises_of_bystander(children: &[Rc<Child>], latencies: &[Latency]) -> Vec<(String, bool)> {
    // The median of a short turn is within what the clock can tell.
    let tail = &Latency::PERCENTILES[1..];
    let promise = |&(name, of): &Percentile| {
        let each = children.iter().zip(latencies);
        let (ours, others): (Vec<_>, Vec<_>) = each.partition(|(child, _)| child.name() == OURS);
        let best = others
            .iter()
            .map(|(_, latency)| of(latency))
            .reduce(f64::min);
        let ratio = Latency::faster(of(ours[0].1), best.expect("there are others"));
        let text = format!("{name}: {ratio:.2} times as fast as the best peer, at least 1.00");
        (text, ratio >= 1.0)
    };
    tail.iter().map(promise).collect()
}

/// Returns the promises about work whose blocks are not touched, and whether they were kept.
fn promises(work: Work, alone: &Medians, together: &Medians) -> Vec<(String, bool)> {
    let is_allocator = |name: &str| ![OURS, LLFREE, FLOOR].contains(&name);
    let both = [(1, alone), (2, together)]
        .map(|(threads, medians)| (threads, faster(medians, is_allocator)));
    let against = |least: f64| {
        both.map(|(threads, ratio)| {
            let text = format!(
                "{threads} threads: {ratio:.2} times as fast as the best allocator, at least {least:.2}"
            );
            (text, ratio >= least)
        })
    };
    let [ours, ours_together] = [alone, together].map(|medians| of(medians, OURS));
    let mut promises = Vec::new();
    match work {
        Work::HotPair => promises.extend(against(1.0 / 1.5)),
        Work::Churn => {
            promises.extend(against(1.1));
            let gain = 2.0 * ours / ours_together;
            let text = format!("two threads do {gain:.2} times as much as one, at least 1.8");
            promises.push((text, gain >= 1.8));
        }
        Work::OutAndBack => promises.extend(against(2.0)),
        Work::HandedOver => {
            let ratio = ours_together / ours;
            let text = format!("handed over, {ratio:.2} times as long as on one thread, at most 2");
            promises.push((text, ratio <= 2.0));
        }
    }
    promises
}
