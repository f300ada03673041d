//! Timing that the benches share: variants of one thing, in rounds that take turns, so that what else
//! the machine does meets all of them alike; CPU time where the system tells it; medians.
//!
//! Several threads meet each other only while they really run at once. On a machine that does other work
//! too they often take turns, and what they share then seems cheap. So of several threads those rounds
//! count in which each was running for nine tenths of the time at least, if there are three of them; a round
//! that was not is repeated, up to [`REPEATS`] times.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Rounds of each measurement.
pub(crate) const ROUNDS: usize = 11;

/// Times that a round is repeated when its threads did not run at once.
const REPEATS: u32 = 10;

/// What one round tells.
pub(crate) struct Round {
    /// Nanoseconds of CPU time each, averaged over the threads.
    pub(crate) ns: f64,
    /// Whether every thread ran nearly all the time.
    pub(crate) is_at_once: bool,
}

/// One thing that is timed: does it the given number of times, and says how long that took.
pub(crate) struct Variant {
    name: &'static str,
    times: u32,
    time: Box<dyn Fn(u32, u32) -> Round>,
}

/// Medians by name, in nanoseconds each.
pub(crate) type Medians = Vec<(&'static str, f64)>;

/// Times `run` on so many threads at once. Each thread first makes a state by `prepare`, from its number, and
/// drops it afterwards: neither is timed.
pub(crate) fn round<S>(
    threads: u32,
    times: u32,
    prepare: &(impl Fn(u32) -> S + Sync),
    run: &(impl Fn(&mut S, u32) + Sync),
) -> Round {
    let start = Barrier::new(threads as usize);
    let timed = |thread| {
        let mut state = prepare(thread);
        start.wait();
        // In this order: booking takes a while, in which the thread does not run.
        let (cpu_since, since) = (cpu_time(), Instant::now());
        run(&mut state, times);
        let wall = since.elapsed();
        let cpu = cpu_time()
            .zip(cpu_since)
            .map_or(wall, |(until, since)| until.saturating_sub(since));
        // Nobody tidies up while another is timed.
        start.wait();
        (cpu.as_secs_f64(), wall.as_secs_f64())
    };
    let timed = &timed;
    let times_of: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || timed(thread)))
            .collect();
        let times = workers.into_iter().map(|worker| worker.join());
        times.map(|time| time.expect("a worker panicked")).collect()
    });
    let seconds: f64 = times_of.iter().map(|(cpu, _)| cpu).sum();
    Round {
        ns: seconds * 1e9 / f64::from(threads) / f64::from(times),
        is_at_once: times_of.iter().all(|(cpu, wall)| *cpu >= 0.9 * wall),
    }
}

impl Variant {
    /// `run` does it so many times as it is told: `times` in a round.
    pub(crate) fn new(name: &'static str, times: u32, run: impl Fn(u32) + Sync + 'static) -> Self {
        Self::timed_by(name, times, move |threads, times| {
            round(threads, times, &|_| (), &|(), times| run(times))
        })
    }

    /// `time` does it on so many threads, so many times on each, and says how long it took.
    pub(crate) fn timed_by(
        name: &'static str,
        times: u32,
        time: impl Fn(u32, u32) -> Round + 'static,
    ) -> Self {
        let time = Box::new(time);
        Self { name, times, time }
    }

    /// One round, again as long as its threads, if there are several, did not run at once.
    fn time_at_once(&self, threads: u32, times: u32) -> Round {
        let mut round = (self.time)(threads, times);
        for _ in 0..REPEATS {
            if threads == 1 || round.is_at_once {
                break;
            }
            round = (self.time)(threads, times);
        }
        round
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
    let mut times: Vec<Vec<Round>> = variants.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for (variant, times) in variants.iter().zip(&mut times) {
            times.push(variant.time_at_once(threads, (variant.times / scale).max(8)));
        }
    }
    let median = |rounds: Vec<Round>| {
        let at_once = rounds.iter().filter(|round| round.is_at_once).count();
        let counts = |round: &Round| threads == 1 || at_once < 3 || round.is_at_once;
        let counted = rounds.iter().filter(|round| counts(round));
        let mut times: Vec<f64> = counted.map(|round| round.ns).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let names = variants.iter().map(|variant| variant.name);
    names.zip(times.into_iter().map(median)).collect()
}
