//! Question: what does it cost to account for 4 KiB and give it back: with Highwater, where a group
//! and three above it are each held below a maximum, and with the memory pools of DataFusion, which
//! keep one total?
//!
//! Command: `cargo run --release -- --bench`, in this folder. Prints nanoseconds of CPU time for growing
//! and shrinking by 4 KiB together, as medians over interleaved rounds, on one thread and on two that
//! share a group or a pool, and how many times longer than Highwater's each takes. Fails if from two threads
//! Highwater is less than 20 times faster than `GreedyMemoryPool` in all of three runs. Medians and ratios
//! carry over to other machines, single times do not. Without `--bench` it does a thousandth of the work
//! and promises nothing.
//!
//! What would change our mind: a pool that keeps one total and is nearly as fast as tokens for each CPU.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

#[path = "../../../crates/highwater/benches/timing/mod.rs"]
mod timing;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool,
};
use highwater::group::{GroupTree, Limits};
use highwater::percpu::{Regime, has_restartable_sequences};
use highwater::topology::Topology;
use highwater::units::Bytes;
use timing::{Medians, ROUNDS, Variant, is_bench, measure};

/// Runs, of which one has to keep what is promised.
const RUNS: usize = 3;
const TIMES: u32 = 200_000;
const MAX: Bytes = Bytes::gib(4096);
const RATIO: f64 = 20.0;
const GREEDY: &str = "GreedyMemoryPool";

fn highwater() -> Variant {
    let machine = Topology::detect();
    let tree = GroupTree::with_regime(Regime::preferred(&machine), machine.nr_cpus());
    let mut group = tree.root();
    group.set_max(MAX).expect("nothing is charged yet");
    for name in ["tenant", "session", "query"] {
        let limits = Limits::max(MAX);
        group = group.child(name, limits).expect("a name that is free");
    }
    Variant::new("Highwater, depth 4", TIMES, move |times| {
        let mut charge = group.try_charge(Bytes::PAGE).expect("there is room");
        for _ in 0..times {
            charge.try_grow(black_box(Bytes::PAGE)).expect("there is room");
            charge.shrink(black_box(Bytes::PAGE));
        }
    })
}

/// Each thread grows and shrinks a reservation of its own in one pool.
fn datafusion(name: &'static str, pool: Arc<dyn MemoryPool>) -> Variant {
    Variant::new(name, TIMES, move |times| {
        let consumer = MemoryConsumer::new(name).with_can_spill(true);
        let reservation = consumer.register(&pool);
        reservation.try_grow(4096).expect("there is room");
        for _ in 0..times {
            reservation
                .try_grow(black_box(4096))
                .expect("there is room");
            reservation.shrink(black_box(4096));
        }
    })
}

fn variants() -> Vec<Variant> {
    let bytes = usize::try_from(MAX.0).expect("64 bits");
    vec![
        highwater(),
        datafusion(GREEDY, Arc::new(GreedyMemoryPool::new(bytes))),
        datafusion("FairSpillPool", Arc::new(FairSpillPool::new(bytes))),
    ]
}

fn main() -> ExitCode {
    println!(
        "{}; {ROUNDS} interleaved rounds; medians of CPU time, ns for growing and shrinking",
        Topology::detect()
    );
    for _ in 0..RUNS {
        let is_kept = run();
        if !has_restartable_sequences() {
            println!("no restartable sequences here: nothing is promised");
            return ExitCode::SUCCESS;
        }
        if is_kept || !is_bench() {
            return ExitCode::SUCCESS;
        }
    }
    ExitCode::FAILURE
}

/// Whether Highwater is as much faster as promised.
fn run() -> bool {
    let mut is_kept = true;
    for threads in [1, 2] {
        let medians: Medians = measure(&variants(), threads);
        let ours = medians[0].1;
        println!("\n{threads} threads{:14}ns   of Highwater's", "");
        for (name, ns) in &medians {
            let ratio = ns / ours;
            let is_promised = *name == GREEDY && threads == 2;
            is_kept &= !is_promised || ratio >= RATIO;
            let verdict = match (is_promised, ratio >= RATIO) {
                (false, _) => String::new(),
                (true, true) => format!("  at least {RATIO}: ok"),
                (true, false) => format!("  at least {RATIO}: NOT KEPT"),
            };
            println!("  {name:20}{ns:7.2}  {ratio:7.1}{verdict}");
        }
    }
    is_kept
}
