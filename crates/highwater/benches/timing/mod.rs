//! Timing that the benches share: variants of one thing, in rounds that take turns, so that what else
//! the machine does meets all of them alike; CPU time where the system tells it; medians.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Rounds of each measurement.
pub(crate) const ROUNDS: usize = 11;

/// One thing that is timed: does it the given number of times.
pub(crate) struct Variant {
    name: &'static str,
    times: u32,
    run: Box<dyn Fn(u32) + Sync>,
}

/// Medians by name, in nanoseconds each.
pub(crate) type Medians = Vec<(&'static str, f64)>;

impl Variant {
    /// `run` does it so many times as it is told: `times` in a round.
    pub(crate) fn new(name: &'static str, times: u32, run: impl Fn(u32) + Sync + 'static) -> Self {
        Self {
            name,
            times,
            run: Box::new(run),
        }
    }

    /// Nanoseconds of CPU time each, averaged over the threads of one round.
    fn time(&self, threads: u32, times: u32) -> f64 {
        let start = Barrier::new(threads as usize);
        let timed = || {
            start.wait();
            let (since, cpu_since) = (Instant::now(), cpu_time());
            (self.run)(times);
            let wall = since.elapsed();
            cpu_time()
                .zip(cpu_since)
                .map_or(wall, |(until, since)| until.saturating_sub(since))
                .as_secs_f64()
        };
        let seconds: f64 = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(timed)).collect();
            let times = workers.into_iter().map(|worker| worker.join());
            times.map(|time| time.expect("a worker panicked")).sum()
        });
        seconds * 1e9 / f64::from(threads) / f64::from(times)
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

/// Whether the program was started to measure, and not to show that it works.
pub(crate) fn is_bench() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Times every variant on so many threads, in interleaved rounds; without `--bench`, a thousandth of it.
pub(crate) fn measure(variants: &[Variant], threads: u32) -> Medians {
    let scale = if is_bench() { 1 } else { 1_000 };
    let mut times = vec![Vec::new(); variants.len()];
    for _ in 0..ROUNDS {
        for (variant, times) in variants.iter().zip(&mut times) {
            times.push(variant.time(threads, (variant.times / scale).max(8)));
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let names = variants.iter().map(|variant| variant.name);
    names.zip(times.into_iter().map(median)).collect()
}
