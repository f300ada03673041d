//! Latency of a bystander: a thread that repeatedly allocates one block, writes it and frees it,
//! while other threads churn: they take 64 Ki blocks out and free them at random, with or without a
//! write, as the bystander does.
//!
//! A mean hides the cost of a few requests: visits to shared state, and page faults. So each turn
//! is timed by itself, and percentiles are shown. The cost of reading the clock is subtracted. A
//! turn in which the bystander was preempted is a few in a million where the machine is idle, and
//! shows in no percentile up to 99.9.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Access, OUT, Source, Worker, Writing};

/// Turns of the bystander in a round: a hundred beyond the highest percentile.
const TURNS: u32 = 100_000;
/// Turns before those that count: the churning threads have begun, and the list is as it will be.
const WARM_UP: u32 = 1_000;

/// Percentiles of a bystander's turns, in nanoseconds; at least the clock's resolution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
}

/// A percentile: its name, and its value.
pub(crate) type Percentile = (&'static str, fn(&Latency) -> f64);

impl Latency {
    pub(crate) const PERCENTILES: [Percentile; 3] = [
        ("p50", |latency| latency.p50),
        ("p99", |latency| latency.p99),
        ("p99.9", |latency| latency.p99_9),
    ];

    /// Returns how much faster `ours` is than `theirs`, both of one percentile: differences below
    /// the clock's resolution count as none.
    pub(crate) fn faster(ours: f64, theirs: f64) -> f64 {
        let tick = clock_tick().as_nanos() as f64;
        if (ours - theirs).abs() <= tick {
            1.0
        } else {
            theirs / ours
        }
    }

    /// The medians of several rounds, one percentile at a time.
    pub(crate) fn medians(rounds: &[Self]) -> Self {
        let median = |of: fn(&Self) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        Self {
            p50: median(|round| round.p50),
            p99: median(|round| round.p99),
            p99_9: median(|round| round.p99_9),
        }
    }
}

/// Times the turns of a bystander while `others` threads churn; a `part`th of the usual turns.
pub(crate) fn bystander<S: Source>(access: Access, source: &S, others: u32, part: u32) -> Latency {
    let turns = (TURNS / part).max(WARM_UP);
    match access {
        Access::Untouched => beside(source, others, turns),
        Access::Written => beside(&Writing(source), others, turns),
    }
}

fn beside<S: Source>(source: &S, others: u32, turns: u32) -> Latency {
    let is_over = AtomicBool::new(false);
    let churn = || {
        let mut worker = Worker::new(source);
        // Relaxed: it only says when to stop.
        while !is_over.load(Ordering::Relaxed) {
            worker.out_and_back(OUT);
        }
    };
    let mut times = thread::scope(|scope| {
        for _ in 0..others {
            scope.spawn(churn);
        }
        let times = timed_turns(source, turns);
        is_over.store(true, Ordering::Relaxed);
        times
    });
    times.sort_unstable();
    let clock = clock_cost();
    let at = |share: f64| {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a length"
        )]
        let place = (times.len() as f64 * share) as usize;
        (times[place].saturating_sub(clock).as_nanos() as f64).max(1.0)
    };
    Latency {
        p50: at(0.5),
        p99: at(0.99),
        p99_9: at(0.999),
    }
}

/// Returns the time of each turn.
fn timed_turns<S: Source>(source: &S, turns: u32) -> Vec<Duration> {
    let mut local = source.local();
    let mut turn = || {
        let since = Instant::now();
        let block = black_box(source.alloc(&mut local));
        source.free(&mut local, block);
        since.elapsed()
    };
    (0..WARM_UP).for_each(|_| _ = turn());
    (0..turns).map(|_| turn()).collect()
}

/// Returns the time between two readings of the clock, at the median.
fn clock_cost() -> Duration {
    let mut costs: Vec<Duration> = (0..WARM_UP).map(|_| Instant::now().elapsed()).collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

/// Returns the least difference between two readings of the clock.
fn clock_tick() -> Duration {
    let costs = (0..WARM_UP).map(|_| Instant::now().elapsed());
    let readings: BTreeSet<Duration> = costs.collect();
    let differences = readings.iter().zip(readings.iter().skip(1));
    let least = differences.map(|(one, next)| *next - *one).min();
    least.unwrap_or(Duration::from_nanos(1))
}
