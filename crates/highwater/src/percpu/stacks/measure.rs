//! Nanoseconds of the operations on stacks.
//!
//! Question: what does a token cost, in and out, one at a time and many in a row, with one thread
//! and with two; and what does the lock cost, near and from afar? Command:
//! `cargo test --release -p highwater --lib stacks::measure -- --ignored --nocapture`. The least of
//! many short repeats is shown: other work on the machine only ever adds.

use std::hint::black_box;
use std::time::Instant;

use super::tests::{Coin, stacks_of};
use super::*;
use crate::percpu::harness::{allowed_cpus, run_on};

const REPEATS: u32 = 2_000;
/// Tokens of one row. Well below a stack's.
const ROW: u32 = 500;

type Tested = Stacks<Coin, u32>;

/// The least time that `work` took, divided by `count`.
fn least(count: u32, mut work: impl FnMut()) -> f64 {
    let once = |_| {
        let since = Instant::now();
        work();
        since.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    };
    (0..REPEATS).map(once).fold(f64::INFINITY, f64::min)
}

fn pop(stacks: &Tested) -> Coin {
    loop {
        if let Some(coin) = stacks.pop() {
            return coin;
        }
    }
}

fn push(stacks: &Tested, mut coin: Coin) {
    while let Err(refused) = stacks.push(coin) {
        coin = refused;
    }
}

/// A pop and a push of one token; and of many, all out and then all in.
fn pairs(stacks: &Tested) -> [f64; 2] {
    (0..ROW).for_each(|coin| push(stacks, Coin(coin)));
    let one = least(ROW, || {
        for _ in 0..ROW {
            push(stacks, black_box(pop(stacks)));
        }
    });
    let mut row = Vec::with_capacity(ROW as usize);
    let many = least(ROW, || {
        row.extend((0..ROW).map(|_| pop(stacks)));
        row.drain(..).for_each(|coin| push(stacks, coin));
    });
    [one, many]
}

#[expect(clippy::print_stdout, reason = "what a measurement is for")]
fn show(what: &str, regime: Regime, ns: &[f64]) {
    let ns: Vec<String> = ns.iter().map(|ns| format!("{ns:7.2}")).collect();
    println!("{what:<28} {regime:?}: {} ns", ns.join(" "));
}

#[test]
#[ignore = "a measurement; run with --release --ignored --nocapture"]
fn tokens_and_locks() {
    let cpus = allowed_cpus();
    for regime in [Regime::Restartable, Regime::Atomic] {
        let nr_cpus = crate::topology::Topology::detect().nr_cpus();
        let stacks = stacks_of(regime, nr_cpus, 1024);
        let regime = stacks.regime();
        let [one, many] = run_on(cpus[0], || pairs(&stacks));
        show("one, 500 in a row", regime, &[one, many]);
        let both: Vec<[f64; 2]> = thread::scope(|scope| {
            let threads = cpus.iter().take(2);
            let stacks = &stacks;
            let threads = threads.map(|&cpu| scope.spawn(move || run_on(cpu, || pairs(stacks))));
            let threads: Vec<_> = threads.collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|pairs| pairs.expect("it measures")).collect()
        });
        show("the same on two CPUs", regime, both.as_flattened());
        let near = || least(100, || (0..100).for_each(|_| drop(stacks.try_lock())));
        let lock = |cpu| {
            let locks = || (0..10).for_each(|_| drop(stacks.lock_on(cpu)));
            run_on(cpus[0], || least(10, locks))
        };
        let locks = [
            run_on(cpus[0], near),
            lock(cpus[0]),
            lock(cpus[cpus.len() - 1]),
        ];
        show("lock near, here, last CPU", regime, &locks);
    }
}
