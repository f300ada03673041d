//! Question: what does reading a resident page cost in Highwater, compared with `pread`, a plain
//! mapping of the file, and common caches: `quick_cache`, foyer and moka?
//!
//! Command: `cargo run --release -- --bench`, in this folder. Prints nanoseconds of CPU time for
//! each read, as medians over interleaved rounds, on one thread and on two, of pages of 4 KiB that
//! are all resident: drawn by a Zipf law of exponent 0.9 from 64 MiB, and one page repeatedly. A
//! read loads eight bytes of a line of the page that is drawn too, each line as often; `pread`
//! copies all of it, which is how it reads. Every sum of the words is checked. Before each round
//! its pages are read once in the same way, uncounted. Fails if one of these is broken in the
//! median of the rounds' ratios (modules `turns` and `gain`):
//!
//! - by the Zipf law, with a guard for each read, reads on one thread have at least 15 times the
//!   throughput of `pread` and 3 times that of the best of the three caches, and take at most 2.5
//!   times as long as through the mapping; on two threads they have at least 5 times the throughput
//!   of the best;
//! - of one page, two threads read at least 1.9 times as much as one.
//!
//! Ratios carry over to other machines, single times do not. Without `--bench` it does a thousandth
//! of the work and promises nothing. Configurations of the caches, with reasons: the module
//! `caches`.
//!
//! What would change our mind: a cache without guards that costs as little.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod caches;
#[path = "../../../crates/highwater/benches/gain/mod.rs"]
mod gain;
mod pages;
#[path = "../../../crates/highwater/benches/places/mod.rs"]
mod places;
mod readers;
#[path = "../../../crates/highwater/benches/timing/mod.rs"]
#[expect(dead_code, reason = "rounds take turns in another way here")]
mod timing;
mod turns;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use pages::Law;
use readers::{Highwater, Mapped, Reader};
use timing::is_bench;
use turns::{Table, Times, fastest};

/// Reads of one thread in a round.
const READS: u32 = 100_000;

/// In the order of the table's columns.
const PREAD: usize = 0;
const MAPPED: usize = 1;
const OURS: usize = 2;
const CACHES: [usize; 3] = [4, 5, 6];

type Readers = Vec<(&'static str, Arc<dyn Reader>)>;

fn main() -> ExitCode {
    println!("medians of CPU time, ns for each read");
    match run(&readers()) || !is_bench() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn readers() -> Readers {
    let file = places::file().expect("64 MiB of disk");
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

/// Returns whether Highwater keeps its promises.
fn run(readers: &Readers) -> bool {
    let mut is_kept = true;
    for law in Law::ALL {
        println!("\n{}", law.name());
        print!("  {:10}", "");
        for (name, _) in readers {
            print!("{name:>12}");
        }
        println!();
        let times = if is_bench() { READS } else { READS / 1000 };
        let table = Table::measured(readers, &law.sequences(times), times);
        for (threads, all) in [(1, &table.alone), (2, &table.together)] {
            print!("  {threads} threads ");
            for times in all {
                print!("{:12.2}", times.median());
            }
            println!();
        }
        let promises = match law {
            Law::Zipf => promises(&table),
            Law::Hot => vec![promised_gain(readers, times)],
        };
        for (promise, is_this_kept) in promises {
            is_kept &= is_this_kept;
            let verdict = if is_this_kept { "ok" } else { "NOT KEPT" };
            println!("  {promise}: {verdict}");
        }
    }
    is_kept
}

/// Returns the promises about reads by the Zipf law, and whether they were kept.
fn promises(Table { alone, together }: &Table) -> Vec<(String, bool)> {
    let best_cache = |of: &[Times]| fastest(&CACHES.map(|at| &of[at])).ratio_to(&of[OURS]);
    let slower = alone[OURS].ratio_to(&alone[MAPPED]);
    vec![
        at_least("pread, 1 thread", alone[PREAD].ratio_to(&alone[OURS]), 15.0),
        at_least("best cache, 1 thread", best_cache(alone), 3.0),
        at_least("best cache, 2 threads", best_cache(together), 5.0),
        (
            format!("mapped, 1 thread, {slower:.2} times as long, at most 2.5"),
            slower <= 2.5,
        ),
    ]
}

/// Returns the promise about two threads that read one page, and whether it was kept.
fn promised_gain(readers: &Readers, times: u32) -> (String, bool) {
    let [pages, _] = Law::Hot.sequences(times);
    let gain = |at: usize| {
        let reader = &readers[at].1;
        gain::of_second_thread(times, &|times| {
            _ = black_box(reader.sum(pages.first(times)))
        })
    };
    println!(
        "  mapped, two threads have {:.2} times the throughput of one",
        gain(MAPPED)
    );
    at_least("two threads, beside one", gain(OURS), 1.9)
}

fn at_least(what: &str, ratio: f64, least: f64) -> (String, bool) {
    let text = format!("{what}, {ratio:.2} times the throughput, at least {least}");
    (text, ratio >= least)
}
