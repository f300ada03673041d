//! Question: what does reading a resident page cost in Highwater, beside `pread`, beside a plain mapping of
//! the file, and beside the caches that are in use: `quick_cache`, foyer and moka?
//!
//! Command: `cargo run --release -- --bench`, in this folder. Prints nanoseconds of CPU time for each read, as
//! medians over interleaved rounds, on one thread and on two, of pages of 4 KiB that are all resident: drawn by
//! a Zipf law of exponent 0.9 from 64 MiB, and one page again and again. A read looks at eight bytes of
//! the page; `pread` copies all of it, which is how it reads. Every sum of what was read is checked.
//! Fails if in all of three runs one of these is broken:
//!
//! - by the Zipf law, with a guard for each read, reads on one thread have at least 15 times the
//!   throughput of `pread` and 3 times that of the best of the three caches, and take at most 2.5 times as
//!   long as through the mapping; on two threads they have at least 5 times the throughput of the best;
//! - of one page, two threads read at least 1.9 times as much as one.
//!
//! Ratios carry over to other machines, single times do not. Without `--bench` it does a thousandth of the
//! work and promises nothing. How each cache is set up, and why: the module `caches`.
//!
//! What would change our mind: a cache that knows no guards, and costs as little.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod caches;
mod pages;
mod readers;
#[path = "../../../crates/highwater/benches/timing/mod.rs"]
#[expect(dead_code, reason = "every thread reads a sequence of its own")]
mod timing;

use std::process::ExitCode;
use std::sync::Arc;

use pages::{Law, Sequence};
use readers::{Highwater, Mapped, Reader};
use timing::{Medians, ROUNDS, Round, Variant, is_bench, measure, round};

/// Reads of one thread in a round.
const READS: u32 = 200_000;

/// Runs, of which one has to keep what is promised.
const RUNS: usize = 3;

/// In the order of the table's columns.
const PREAD: usize = 0;
const MAPPED: usize = 1;
const OURS: usize = 2;
const CACHES: [usize; 3] = [4, 5, 6];

type Readers = Vec<(&'static str, Arc<dyn Reader>)>;

fn main() -> ExitCode {
    println!("{ROUNDS} interleaved rounds; medians of CPU time, ns for each read");
    let readers = readers();
    for _ in 0..RUNS {
        let is_kept = run(&readers);
        if is_kept || !is_bench() {
            return ExitCode::SUCCESS;
        }
    }
    ExitCode::FAILURE
}

fn readers() -> Readers {
    let file = pages::file().expect("64 MiB of disk");
    let highwater = Highwater::new(&file);
    vec![
        ("pread", Arc::new(readers::pread(&file))),
        ("mapped", Arc::new(Mapped::new(&file).expect("a mapping"))),
        ("Highwater", Arc::new(Highwater::one_a_guard(&highwater))),
        ("8 a guard", Arc::new(Highwater::eight_a_guard(&highwater))),
        ("quick_cache", Arc::new(caches::quick_cache())),
        ("foyer", Arc::new(caches::foyer())),
        ("moka", Arc::new(caches::moka())),
    ]
}

/// Whether Highwater is as fast as promised.
fn run(readers: &Readers) -> bool {
    let mut is_kept = true;
    for law in Law::ALL {
        println!("\n{}", law.name());
        print!("  {:10}", "");
        for (name, _) in readers {
            print!("{name:>12}");
        }
        println!();
        let alone = table_row(readers, law, 1);
        let together = table_row(readers, law, 2);
        for (promise, is_this_kept) in promises(law, &alone, &together) {
            is_kept &= is_this_kept;
            let verdict = if is_this_kept { "ok" } else { "NOT KEPT" };
            println!("  {promise}: {verdict}");
        }
    }
    is_kept
}

fn table_row(readers: &Readers, law: Law, threads: u32) -> Medians {
    let sequences = Arc::new(law.sequences(READS));
    let variant = |(name, reader): &(&'static str, Arc<dyn Reader>)| {
        let (reader, sequences) = (Arc::clone(reader), Arc::clone(&sequences));
        Variant::timed_by(name, READS, move |threads, times| {
            timed(&*reader, &*sequences, threads, times)
        })
    };
    let variants: Vec<Variant> = readers.iter().map(variant).collect();
    let medians = measure(&variants, threads);
    print!("  {threads} threads ");
    for (_, ns) in &medians {
        print!("{ns:12.2}");
    }
    println!();
    medians
}

/// Each thread reads the beginning of its own sequence.
fn timed(reader: &dyn Reader, sequences: &[Sequence], threads: u32, times: u32) -> Round {
    let prepare = |thread: u32| {
        let pages = sequences[thread as usize].first(times);
        let want: u64 = pages.iter().map(|&page| u64::from(page)).sum();
        (pages, want)
    };
    let run = |(pages, want): &mut (&[u32], u64), _| assert_eq!(reader.sum(pages), *want);
    round(threads, times, &prepare, &run)
}

/// What is promised of such reads, and whether it was kept.
fn promises(law: Law, alone: &Medians, together: &Medians) -> Vec<(String, bool)> {
    let faster = |medians: &Medians, than: &[usize]| {
        let best = than.iter().map(|&at| medians[at].1).reduce(f64::min);
        best.expect("one at least") / medians[OURS].1
    };
    let at_least = |what: &str, ratio: f64, least: f64| {
        let text = format!("{what}, {ratio:.2} times the throughput, at least {least}");
        (text, ratio >= least)
    };
    match law {
        Law::Zipf => {
            let slower = 1.0 / faster(alone, &[MAPPED]);
            vec![
                at_least("pread, 1 thread", faster(alone, &[PREAD]), 15.0),
                at_least("best cache, 1 thread", faster(alone, &CACHES), 3.0),
                at_least("best cache, 2 threads", faster(together, &CACHES), 5.0),
                (
                    format!("mapped, 1 thread, {slower:.2} times as long, at most 2.5"),
                    slower <= 2.5,
                ),
            ]
        }
        Law::Hot => {
            let gain = 2.0 * alone[OURS].1 / together[OURS].1;
            vec![at_least("two threads, beside one", gain, 1.9)]
        }
    }
}
