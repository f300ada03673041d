//! Question: what does counting one event cost, alone and beside another thread?
//!
//! Command: `cargo bench -p highwater --bench percpu_add`. Prints nanoseconds of CPU time per add as
//! the median over interleaved rounds, and ratios to the restartable add. Medians and ratios carry
//! over to other machines, single times do not. Without `--bench` (as under `cargo test --benches`) it runs
//! a thousandth of the adds, to show that it works.
//!
//! Adds to one word in a tight loop wait for each other: a plain one for the last store to reach
//! the next load. Eight words in turn show what an add costs when it does not follow another.
//!
//! What would change our mind: if the restartable add were not at least three times cheaper than
//! an atomic one on a line of its own, the assembly would not be worth its keep; if two threads on
//! one shared atomic cost less than twice what one does, neither would be per-CPU words.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

use std::hint::black_box;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use highwater::counter::CounterTree;
use highwater::percpu::{Cells, Regime, has_restartable_sequences};
use highwater::topology::Topology;

const ROUNDS: usize = 11;
const ADDS: u32 = 3_000_000;

/// One way to count: performs the given number of adds.
struct Variant {
    name: &'static str,
    run: Box<dyn Fn(u32) + Sync>,
}

impl Variant {
    fn new(name: &'static str, add: impl Fn(i64) + Sync + 'static) -> Self {
        let run = move |adds| {
            for _ in 0..adds {
                add(black_box(1));
            }
        };
        Self {
            name,
            run: Box::new(run),
        }
    }

    /// As `new`, but each add is to another of eight words, so that none waits for the one before.
    fn in_turn(name: &'static str, add: impl Fn(usize) + Sync + 'static) -> Self {
        let run = move |adds| {
            for word in (0..8).cycle().take(adds as usize) {
                add(black_box(word));
            }
        };
        Self {
            name,
            run: Box::new(run),
        }
    }

    /// Nanoseconds per add, averaged over the threads of one round.
    fn time(&self, threads: u32, adds: u32) -> f64 {
        let start = Barrier::new(threads as usize);
        let timed = || {
            start.wait();
            let (since, cpu_since) = (Instant::now(), cpu_time());
            (self.run)(adds);
            let wall = since.elapsed();
            cpu_time()
                .zip(cpu_since)
                .map_or(wall, |(until, since)| until.saturating_sub(since))
                .as_secs_f64()
        };
        let seconds: f64 = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(timed)).collect();
            let times = workers.into_iter().map(|worker| worker.join());
            times.map(|time| time.expect("an adder panicked")).sum()
        });
        seconds * 1e9 / f64::from(threads) / f64::from(adds)
    }
}

/// CPU time of the calling thread, where the system tells: what other processes take is not in it.
fn cpu_time() -> Option<Duration> {
    // The scheduler books a thread's time when it stops running.
    thread::sleep(Duration::from_micros(1));
    let booked = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = booked.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

fn variants(machine: &Topology) -> Vec<Variant> {
    let cells = |regime, words| Cells::new(regime, machine.nr_cpus(), words);
    let (restartable, atomic) = (cells(Regime::Restartable, 1), cells(Regime::Atomic, 1));
    let (eight_restartable, eight_atomic) =
        (cells(Regime::Restartable, 8), cells(Regime::Atomic, 8));
    let tree = |regime| CounterTree::new(machine, regime);
    let (tree_restartable, tree_atomic) = (tree(Regime::Restartable), tree(Regime::Atomic));
    let shared = AtomicI64::new(0);
    let mutex = Mutex::new(0_i64);
    vec![
        Variant::new("per-CPU word, restartable add", move |delta| {
            black_box(restartable.add(0, delta).new);
        }),
        Variant::new("per-CPU word, atomic add", move |delta| {
            black_box(atomic.add(0, delta).new);
        }),
        Variant::in_turn("eight words in turn, restartable", move |word| {
            black_box(eight_restartable.add(word, 1).new);
        }),
        Variant::in_turn("eight words in turn, atomic", move |word| {
            black_box(eight_atomic.add(word, 1).new);
        }),
        Variant::new("counter tree, restartable", move |delta| {
            tree_restartable.add(delta);
        }),
        Variant::new("counter tree, atomic", move |delta| {
            tree_atomic.add(delta);
        }),
        Variant::new("one shared atomic", move |delta| {
            shared.fetch_add(delta, Ordering::Relaxed);
        }),
        Variant::new("one mutex", move |delta| {
            *mutex.lock().expect("no adder panics") += delta;
        }),
        Variant::new("nothing: the loop alone", |_| {}),
    ]
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let adds = if std::env::args().any(|argument| argument == "--bench") {
        ADDS
    } else {
        ADDS / 1000
    };
    let machine = Topology::detect();
    println!("{machine}; {ROUNDS} interleaved rounds of {adds} adds for each thread; medians");
    if !has_restartable_sequences() {
        println!("no restartable sequences here: those rows show the extra slot's atomic add");
    }
    let variants = variants(&machine);
    for threads in [1, 2, 8] {
        let mut times = vec![Vec::new(); variants.len()];
        for _ in 0..ROUNDS {
            for (variant, times) in variants.iter().zip(&mut times) {
                times.push(variant.time(threads, adds));
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        println!("\n{threads} threads{:25}ns/add    ratio", "");
        for (variant, ns) in variants.iter().zip(&medians) {
            println!("  {:32}{ns:7.2}  {:7.1}", variant.name, ns / medians[0]);
        }
    }
}
