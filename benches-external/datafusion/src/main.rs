//! Question: what does it cost to account for 4 KiB and return it: with Highwater, where a group
//! and its three ancestors are each held below a maximum, and with the memory pools of DataFusion,
//! which keep one total?
//!
//! Command: `cargo run --release -- --bench`, in this folder. Prints nanoseconds of CPU time for
//! both steps together, as medians over interleaved rounds, on one thread and on two that share a
//! group or a pool, and the ratio of each to Highwater's, in two shapes:
//!
//! - made and dropped: a charge of 4 KiB, and a reservation of a consumer that is registered;
//! - held: a charge and a reservation that grow by 4 KiB and shrink again.
//!
//! Fails if from two threads Highwater is less than 20 times faster than `GreedyMemoryPool` where
//! they are held, or slower where they are made and dropped. Medians and ratios carry over to other
//! machines, single times do not. Without `--bench` it does a thousandth of the work and promises
//! nothing.
//!
//! What would change our mind: a pool that keeps one total and is nearly as fast as per-CPU tokens.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

#[path = "../../../crates/highwater/benches/timing/mod.rs"]
mod timing;

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;

use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, TrackConsumersPool,
};
use highwater::lab::percpu::has_restartable_sequences;
use highwater::topology::Topology;
use highwater::{Bytes, Limits, Manager};
use timing::{Medians, ROUNDS, Variant, is_bench, measure};

const TIMES: u32 = 200_000;
const MAX: Bytes = Bytes::gib(4096);
const GREEDY: &str = "GreedyMemoryPool";

/// The repeated operation.
#[derive(Clone, Copy)]
enum Shape {
    MadeAndDropped,
    Held,
}

impl Shape {
    fn name(self) -> &'static str {
        match self {
            Self::MadeAndDropped => "made and dropped",
            Self::Held => "held, grown and shrunk",
        }
    }

    /// Returns the least ratio of a step of [`GREEDY`] to Highwater's, from two threads.
    fn promised(self) -> f64 {
        match self {
            Self::MadeAndDropped => 1.0,
            Self::Held => 20.0,
        }
    }
}

/// A group of a manager with three ancestors.
fn highwater(shape: Shape) -> Variant {
    let hw = Manager::builder().capacity(MAX).frames(Bytes::ZERO).build();
    let mut group = hw.expect("no frames").root();
    for name in ["tenant", "session", "query"] {
        let child = group.child(name, Limits::max(MAX));
        group = child.expect("a name that is free");
    }
    Variant::new("Highwater, depth 4", TIMES, move |times| match shape {
        Shape::MadeAndDropped => (0..times).for_each(|_| {
            drop(group.charge(black_box(Bytes::PAGE)).expect("there is room"));
        }),
        Shape::Held => {
            let mut charge = group.charge(Bytes::PAGE).expect("there is room");
            for _ in 0..times {
                charge.grow(black_box(Bytes::PAGE)).expect("there is room");
                charge.shrink(black_box(Bytes::PAGE));
            }
        }
    })
}

/// Reservations of a consumer that each thread registers in one pool.
fn datafusion(name: &'static str, pool: Arc<dyn MemoryPool>, shape: Shape) -> Variant {
    let bytes = usize::try_from(Bytes::PAGE.0).expect("4,096");
    Variant::new(name, TIMES, move |times| {
        let consumer = MemoryConsumer::new(name).with_can_spill(true);
        let held = consumer.register(&pool);
        held.try_grow(bytes).expect("there is room");
        for _ in 0..times {
            match shape {
                Shape::MadeAndDropped => {
                    let made = held.new_empty();
                    made.try_grow(black_box(bytes)).expect("there is room");
                }
                Shape::Held => {
                    held.try_grow(black_box(bytes)).expect("there is room");
                    held.shrink(black_box(bytes));
                }
            }
        }
    })
}

fn variants(shape: Shape) -> Vec<Variant> {
    let bytes = usize::try_from(MAX.0).expect("64 bits");
    let greedy = || GreedyMemoryPool::new(bytes);
    // As many consumers as an engine names in its errors.
    let top = NonZeroUsize::new(5).expect("not zero");
    let tracked = TrackConsumersPool::new(greedy(), top);
    vec![
        highwater(shape),
        datafusion(GREEDY, Arc::new(greedy()), shape),
        datafusion("TrackConsumersPool", Arc::new(tracked), shape),
        datafusion("FairSpillPool", Arc::new(FairSpillPool::new(bytes)), shape),
    ]
}

fn main() -> ExitCode {
    println!(
        "{}; {ROUNDS} interleaved rounds; medians of CPU time, ns for both steps",
        Topology::detect()
    );
    let are_kept = [Shape::MadeAndDropped, Shape::Held].map(is_kept);
    if !has_restartable_sequences() {
        println!("no restartable sequences here: nothing is promised");
        return ExitCode::SUCCESS;
    }
    match are_kept == [true; 2] || !is_bench() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Returns whether Highwater is as much faster as promised.
fn is_kept(shape: Shape) -> bool {
    let mut is_kept = true;
    for threads in [1, 2] {
        let medians: Medians = measure(&variants(shape), threads);
        let ours = medians[0].1;
        println!(
            "\n{:24}{threads} threads, ns   of Highwater's",
            shape.name()
        );
        for (name, ns) in &medians {
            let (ratio, promised) = (ns / ours, shape.promised());
            let is_promised = *name == GREEDY && threads == 2;
            is_kept &= !is_promised || ratio >= promised;
            let verdict = match (is_promised, ratio >= promised) {
                (false, _) => String::new(),
                (true, true) => format!("  at least {promised}: ok"),
                (true, false) => format!("  at least {promised}: NOT KEPT"),
            };
            println!("  {name:20}{ns:15.2}  {ratio:14.1}{verdict}");
        }
    }
    is_kept
}
