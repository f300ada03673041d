//! Timing shared by the benches: variants of one thing, in rounds that take turns, so that other
//! load on the machine affects all of them alike; CPU time where the system provides it; medians.
//!
//! Several threads contend only while they really run at once. On a machine with other load they
//! often take turns, and shared state then seems cheap. So a round of several threads counts only
//! if each was running for nine tenths of the time at least, and that time was the same for all, if
//! there are three of them; otherwise it is repeated, up to [`REPEATS`] times.

use std::hint::spin_loop;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

/// Rounds of each measurement.
pub(crate) const ROUNDS: usize = 11;

/// Rounds of each that are enough to see that it works.
const ROUNDS_QUICK: usize = 3;

/// Times that a round is repeated when its threads did not run at once.
const REPEATS: u32 = 10;

/// The result of one round.
pub(crate) struct Round {
    /// Nanoseconds of CPU time each, averaged over the threads.
    pub(crate) ns: f64,
    /// Whether every thread ran nearly all the time.
    pub(crate) is_at_once: bool,
}

/// A function to time: runs that many times, and returns how long that took.
pub(crate) struct Variant {
    name: &'static str,
    times: u32,
    time: Box<dyn Fn(u32, u32) -> Round>,
}

/// Medians by name, in nanoseconds each.
pub(crate) type Medians = Vec<(&'static str, f64)>;

/// Times `run` on that many threads at once. Each thread first makes a state by `prepare`, from its
/// number, and drops it afterwards: neither is timed.
pub(crate) fn round<S>(
    threads: u32,
    times: u32,
    prepare: &(impl Fn(u32) -> S + Sync),
    run: &(impl Fn(&mut S, u32) + Sync),
) -> Round {
    let (prepared, done) = (
        Barrier::new(threads as usize),
        Barrier::new(threads as usize),
    );
    let running = AtomicU32::new(0);
    let timed = |thread| {
        let mut state = prepare(thread);
        prepared.wait();
        // In this order: settling takes a while, in which the thread does not run; and a thread
        // that is interrupted between two readings must not seem to have run less.
        let settled = booked_settled();
        let meeting_since = Instant::now();
        meet(&running, threads);
        let meeting = meeting_since.elapsed();
        let met = booked();
        let since = Instant::now();
        run(&mut state, times);
        let wall = since.elapsed();
        let cpu = booked_settled().zip(settled).zip(met);
        let cpu = cpu.map_or(wall, |((until, settled), met)| {
            // The meeting is not counted: a thread that has met ran unless it waited for a CPU.
            let met_for = meeting.saturating_sub(met.queued - settled.queued);
            (until.ran - settled.ran).saturating_sub(met_for).min(wall)
        });
        // No thread drops its state while another is timed.
        done.wait();
        Ran { since, wall, cpu }
    };
    let timed = &timed;
    let times_of: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || timed(thread)))
            .collect();
        let times = workers.into_iter().map(|worker| worker.join());
        times.map(|time| time.expect("a worker panicked")).collect()
    });
    let seconds: f64 = times_of.iter().map(|ran| ran.cpu.as_secs_f64()).sum();
    Round {
        ns: seconds * 1e9 / f64::from(threads) / f64::from(times),
        is_at_once: Ran::were_at_once(&times_of),
    }
}

/// When a thread was timed, and how long it ran then.
struct Ran {
    since: Instant,
    wall: Duration,
    cpu: Duration,
}

impl Ran {
    /// Whether each ran nearly all the time, and all at the same time: one that ends within its
    /// time slice ran all the time though the others may have waited for it.
    fn were_at_once(all: &[Self]) -> bool {
        let since = all.iter().map(|ran| ran.since).max();
        let until = all.iter().map(|ran| ran.since + ran.wall).min();
        let together = until
            .zip(since)
            .and_then(|(until, since)| until.checked_duration_since(since));
        let together = together.unwrap_or_default().as_secs_f64();
        let is_nearly = |part: f64, wall: Duration| part >= 0.9 * wall.as_secs_f64();
        all.iter()
            .all(|ran| is_nearly(ran.cpu.as_secs_f64(), ran.wall) && is_nearly(together, ran.wall))
    }
}

/// Waits, without sleeping, until that many threads do.
fn meet(running: &AtomicU32, threads: u32) {
    // Relaxed: it only tells that the others run.
    running.fetch_add(1, Ordering::Relaxed);
    for turns in 1_u32.. {
        if running.load(Ordering::Relaxed) >= threads {
            return;
        }
        spin_loop();
        if turns.is_multiple_of(1 << 14) {
            thread::yield_now();
        }
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
            if threads == 1 || round.is_at_once || !is_bench() {
                break;
            }
            round = (self.time)(threads, times);
        }
        round
    }
}

/// The system's accounting of the calling thread.
struct Booked {
    /// How long it ran: what other processes take is not in it. Booked when it stops running.
    ran: Duration,
    /// How long it waited for a CPU. Booked when it starts running again.
    queued: Duration,
}

fn booked() -> Option<Booked> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut times = text.split_whitespace().map(str::parse);
    let mut next = || times.next()?.ok().map(Duration::from_nanos);
    Some(Booked {
        ran: next()?,
        queued: next()?,
    })
}

/// Like [`booked`], with all the time that the thread ran so far.
fn booked_settled() -> Option<Booked> {
    thread::sleep(Duration::from_micros(1));
    booked()
}

/// Whether the program was started to measure, rather than, as with `--quick`, to show that it
/// works.
pub(crate) fn is_bench() -> bool {
    let is_given = |wanted: &str| std::env::args().any(|argument| argument == wanted);
    is_given("--bench") && !is_given("--quick")
}

/// Times every variant on that many threads, in interleaved rounds; without `--bench`, or with
/// `--quick`, a thousandth of it in a few rounds. With `--json` it prints each figure.
pub(crate) fn measure(variants: &[Variant], threads: u32) -> Medians {
    let (rounds, scale) = match is_bench() {
        true => (ROUNDS, 1),
        false => (ROUNDS_QUICK, 1_000),
    };
    let mut times: Vec<Vec<Round>> = variants.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
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
    let medians: Medians = names.zip(times.into_iter().map(median)).collect();
    for (name, ns) in &medians {
        print_figure(name, threads, *ns);
    }
    medians
}

/// With `--json`, prints a figure on a line of its own, for `.ci/bench --against`.
pub(crate) fn print_figure(name: &str, threads: u32, ns: f64) {
    if std::env::args().any(|argument| argument == "--json") {
        println!(
            "{}",
            json!({ "figure": name, "threads": threads, "ns": ns })
        );
    }
}
