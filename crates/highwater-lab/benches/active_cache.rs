//! Question: what do additions, switches and reads of the active-space cache cost, on each of their
//! paths?
//!
//! Command: `cargo bench -p highwater-lab --bench active_cache`. Prints nanoseconds as the median
//! over interleaved rounds, in both regimes if the machine has both; one thread. Medians and ratios
//! carry over to other machines, single times do not. Without `--bench` (as under
//! `cargo test --benches`) it runs a thousandth of the operations, to show that it works.
//!
//! What would change our mind: if a hit were not at least three times cheaper than a miss, the
//! cache would not be worth its switches; if a switch that flushes cost more than ten misses,
//! switching for additions ([`Foreign::Switch`]) would not pay on any mix that was measured.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its purpose")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use highwater::lab::percpu::{Regime, current_cpu};
use highwater::topology::Topology;
use highwater::units::CpuId;
use highwater_lab::baselines::active_cache::{ActiveCache, ActiveConfig, ActiveSpace, Foreign};

const ROUNDS: usize = 11;
const OPERATIONS: u32 = 1_000_000;
const ANON: usize = 1;

/// One operation, which is repeated the less often the slower it is.
struct Variant {
    name: String,
    fewer: u32,
    run: Box<dyn FnMut(u32)>,
}

impl Variant {
    fn new(name: impl Into<String>, fewer: u32, mut once: impl FnMut() + 'static) -> Self {
        let run = move |operations| (0..operations).for_each(|_| once());
        Self {
            name: name.into(),
            fewer,
            run: Box::new(run),
        }
    }

    fn time_ns(&mut self, operations: u32) -> f64 {
        let operations = (operations / self.fewer).max(1);
        let since = Instant::now();
        (self.run)(operations);
        since.elapsed().as_secs_f64() * 1e9 / f64::from(operations)
    }
}

fn cache(machine: &Topology, regime: Regime, foreign: Foreign) -> Arc<ActiveCache> {
    let config = ActiveConfig {
        foreign,
        ..ActiveConfig::default()
    };
    ActiveCache::with_config(machine, regime, config)
}

/// Adds additions and switches on the CPU that the thread runs on.
fn of_this_cpu(variants: &mut Vec<Variant>, regime: Regime) {
    let machine = Topology::detect();
    let name = |what: &str| format!("{what}, {regime:?}");
    let kernel = cache(&machine, regime, Foreign::Miss);
    let switching = cache(&machine, regime, Foreign::Switch);
    if kernel.regime() != regime {
        println!("no {regime:?} words on this machine");
        return;
    }
    let (here, there) = (kernel.space(), kernel.space());
    let mut up = 1;
    variants.push(Variant::new(name("addition: hit"), 1, {
        let kernel = Arc::clone(&kernel);
        move || {
            up = -up;
            if !here.add(ANON, black_box(up)).is_hit() {
                kernel.switch(Some(&here));
            }
        }
    }));
    variants.push(Variant::new(name("addition: miss"), 1, move || {
        black_box(there.add(ANON, black_box(0)));
    }));
    let folding = switching.space();
    variants.push(Variant::new(name("addition: fold"), 4, move || {
        black_box(folding.add(ANON, black_box(1024)));
    }));
    let pair = [switching.space(), switching.space()];
    variants.push(Variant::new(name("addition: switch and flush"), 8, {
        let mut turn = 0;
        move || {
            turn = 1 - turn;
            black_box(pair[turn].add(ANON, black_box(1)));
        }
    }));
    let pair = [kernel.space(), kernel.space()];
    let other = Arc::clone(&kernel);
    variants.push(Variant::new(name("switch: nothing parked"), 4, {
        let mut turn = 0;
        move || {
            turn = 1 - turn;
            black_box(other.switch(Some(&pair[turn])));
        }
    }));
    let same = kernel.space();
    variants.push(Variant::new(name("switch: to the same"), 1, move || {
        black_box(kernel.switch(Some(&same)));
    }));
    let offline = switching.space();
    variants.push(Variant::new(
        name("add, and offline from afar"),
        100,
        move || {
            offline.add(ANON, 1);
            black_box(switching.offline(current_cpu()));
        },
    ));
}

/// Adds reads of spaces that are active on several CPUs, and the life of a space.
fn of_readers(variants: &mut Vec<Variant>) {
    for nr_marked in [1_u32, 16, 384, 8192] {
        let machine = Topology::flat(nr_marked.max(384) as usize);
        let switching = cache(&machine, Regime::Atomic, Foreign::Switch);
        let filled = |space: &ActiveSpace| {
            for cpu in 0..nr_marked {
                space.add_on(CpuId(cpu), ANON, 1);
            }
        };
        let space = switching.space();
        filled(&space);
        let fewer = 4 + nr_marked;
        variants.push(Variant::new(
            format!("precise sum, {nr_marked} CPUs"),
            fewer,
            move || {
                black_box(space.precise_sum(black_box(ANON)));
            },
        ));
    }
    for nr_cpus in [384, 8192] {
        let machine = Topology::flat(nr_cpus);
        let switching = cache(&machine, Regime::Atomic, Foreign::Switch);
        let space = switching.space();
        space.add_on(CpuId(0), ANON, 1);
        variants.push(Variant::new(
            format!("approximate sum, of {nr_cpus} CPUs"),
            4,
            move || {
                black_box(space.approximate_sum(black_box(ANON)));
            },
        ));
        variants.push(Variant::new(
            format!("space, begin and end, of {nr_cpus} CPUs"),
            16,
            move || {
                black_box(switching.space().end());
            },
        ));
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let operations = if is_bench {
        OPERATIONS
    } else {
        OPERATIONS / 1000
    };
    println!(
        "{}; {ROUNDS} interleaved rounds of up to {operations} operations; medians",
        Topology::detect()
    );
    let mut variants = Vec::new();
    of_this_cpu(&mut variants, Regime::Restartable);
    of_this_cpu(&mut variants, Regime::Atomic);
    of_readers(&mut variants);
    let mut times = vec![Vec::new(); variants.len()];
    for _ in 0..ROUNDS {
        for (variant, times) in variants.iter_mut().zip(&mut times) {
            times.push(variant.time_ns(operations));
        }
    }
    for (variant, times) in variants.iter().zip(times) {
        println!("{:>10.2} ns  {}", median(times), variant.name);
    }
}
