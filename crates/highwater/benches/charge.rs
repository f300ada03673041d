//! Question: what does charging a page to a group and its ancestors cost, and uncharging it?
//!
//! Command: `cargo bench -p highwater --bench charge`. Prints nanoseconds of CPU time for a charge and
//! an uncharge of 4 KiB together, at depth 4 (a group, two above it, the root), as medians over
//! interleaved rounds, on one thread and on two; and how many times longer it takes to add to four
//! counters, one for each of these groups, checking each against its maximum and subtracting again:
//! accounting spec 8.2. The two threads use one group: what they share is what they would in a program.
//! Fails if growing and shrinking a charge is less than ten times faster than that from two threads, or
//! eight times on one. (One thread meets nobody. It is as fast as the CPU reads back what it
//! has just stored: on an Intel Xeon 3.8 to 6.3 ns, where two per-CPU additions take 5.6.) Medians and
//! ratios carry over to other machines, single times do not. Without `--bench` (as under `cargo test
//! --benches`) it does a thousandth of the work and promises nothing.
//!
//! What would change our mind: below ten times, tokens for each CPU of each group, and the gates that
//! let others take them, would not be worth their memory and their proofs.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

mod promise;
mod timing;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater::group::{GroupNode, GroupTree, Limits};
use highwater::percpu::{Regime, has_restartable_sequences};
use highwater::topology::Topology;
use highwater::units::Bytes;
use highwater::{Background, Manager};
use promise::Promise;
use timing::{Medians, ROUNDS, Variant, measure};

const TIMES: u32 = 1_000_000;
const MAX: Bytes = Bytes::gib(4096);
const FOUR_ATOMICS: &str = "four atomics, checked";
/// By number of threads, how many times faster than four atomics growing and shrinking is.
const PROMISED: [(u32, f64); 2] = [(1, 8.0), (2, 10.0)];
const GROW_AND_SHRINK: &str = "grow and shrink a charge";

/// A counter with a maximum, on lines of its own.
#[repr(align(128))]
struct Counter {
    usage: AtomicU64,
    max: u64,
}

/// What every design without tokens does: each ancestor, leaf first; undone when one is full.
fn try_charge(chain: &[Counter; 4], pages: u64) -> bool {
    for (nth, counter) in chain.iter().enumerate() {
        let usage = counter.usage.fetch_add(pages, Ordering::Relaxed) + pages;
        if usage > counter.max {
            uncharge(&chain[..=nth], pages);
            return false;
        }
    }
    true
}

fn uncharge(chain: &[Counter], pages: u64) {
    for counter in chain {
        counter.usage.fetch_sub(pages, Ordering::Relaxed);
    }
}

/// A group with three above it, all of them with a maximum.
fn at_depth_4(regime: Regime) -> GroupNode {
    let tree = GroupTree::with_regime(regime, Topology::detect().nr_cpus());
    let mut group = tree.root();
    group.set_max(MAX).expect("nothing is charged yet");
    for name in ["tenant", "session", "query"] {
        let limits = Limits::max(MAX);
        group = group.child(name, limits).expect("a name that is free");
    }
    group
}

/// Each thread grows and shrinks a charge of its own.
fn growing(name: &'static str, group: GroupNode) -> Variant {
    Variant::new(name, TIMES, move |times| {
        let mut charge = group.try_charge(Bytes::PAGE).expect("there is room");
        for _ in 0..times {
            charge
                .try_grow(black_box(Bytes::PAGE))
                .expect("there is room");
            charge.shrink(black_box(Bytes::PAGE));
        }
    })
}

fn charging(name: &'static str, group: GroupNode) -> Variant {
    Variant::new(name, TIMES, move |times| {
        for _ in 0..times {
            let charge = group.try_charge(black_box(Bytes::PAGE));
            black_box(&charge.expect("there is room"));
        }
    })
}

fn variants() -> Vec<Variant> {
    let preferred = Regime::preferred(&Topology::detect());
    let chain = [const {
        Counter {
            usage: AtomicU64::new(0),
            max: MAX.0,
        }
    }; 4];
    let managed = Manager::builder()
        .capacity(Bytes::mib(64))
        .background(Background::Off)
        .build()
        .expect("a small manager");
    let tenant = ["tenant", "session", "query"]
        .into_iter()
        .fold(managed.root(), |group, name| {
            group
                .child(name, Limits::max(Bytes::mib(64)))
                .expect("a name that is free")
        });
    vec![
        Variant::new(FOUR_ATOMICS, TIMES, move |times| {
            for _ in 0..times {
                assert!(try_charge(&chain, black_box(1)), "there is room");
                uncharge(&chain, black_box(1));
            }
        }),
        growing(GROW_AND_SHRINK, at_depth_4(preferred)),
        charging("make and drop a charge", at_depth_4(preferred)),
        growing("grow and shrink, atomic regime", at_depth_4(Regime::Atomic)),
        charging("make and drop, atomic regime", at_depth_4(Regime::Atomic)),
        Variant::new("make and drop, of a manager", TIMES, move |times| {
            for _ in 0..times {
                let charge = tenant.charge(black_box(Bytes::kib(4)));
                black_box(&charge.expect("there is room"));
            }
        }),
    ]
}

fn main() -> ExitCode {
    println!(
        "{}; {ROUNDS} interleaved rounds; medians of CPU time, ns for charge and uncharge",
        Topology::detect()
    );
    let promises: Vec<Promise> = PROMISED.into_iter().map(run).collect();
    let here = has_restartable_sequences().then_some(&promises[..]);
    promise::report(here.ok_or("no restartable sequences"))
}

/// Measures on so many threads, of which so much is promised.
fn run((threads, promised): (u32, f64)) -> Promise {
    let medians: Medians = measure(&variants(), threads);
    let of = |wanted| {
        let found = medians.iter().find(|(name, _)| *name == wanted);
        found.expect("it was measured").1
    };
    println!("\n{threads} threads{:26}ns   faster than four atomics", "");
    for (name, ns) in &medians {
        println!("  {name:32}{ns:7.2}  {:7.1}", of(FOUR_ATOMICS) / ns);
    }
    let together = if threads == 1 {
        "one thread"
    } else {
        "two threads"
    };
    let name = format!("{GROW_AND_SHRINK}, {together}: faster than four atomics");
    Promise::new(name, of(FOUR_ATOMICS) / of(GROW_AND_SHRINK), promised..)
}
