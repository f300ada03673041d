//! Open-loop storm of readers: they arrive by a schedule, whether or not earlier reads are done.
//!
//! Each of [`THREADS`] threads serves the arrivals of its share of the readers, at the published
//! rate for a CPU, one after the other. A read that arrives while the thread serves another one, or
//! is not on a CPU, is served late and its lateness counts, so that coordinated omission hides
//! nothing.

use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::control::Control;
use crate::experiments::crew::Crew;
use crate::experiments::service::{ServiceClock, Times};
use crate::experiments::{ExperimentError, Setup};
use crate::report::text::to_f64;

/// Threads that read.
pub(super) const THREADS: usize = 2;

/// Readers of each group, each of which reads every 100 ms on the published machine.
const GROUP_READERS: usize = 5;

/// Reads in a second of one thread: 250,000 readers every 100 ms, on 384 CPUs.
pub(super) const THREAD_READS_PER_S: f64 = 250_000.0 * 10.0 / 384.0;

/// Gaps that are too short to sleep through.
const SHORT: Duration = Duration::from_micros(20);

/// Something to read.
pub(super) trait Target: Sync {
    /// State of one read.
    type Visit;

    /// Prepares the read of a leaf; untimed.
    fn prepare(&self, leaf: usize) -> Result<Self::Visit, ExperimentError>;

    /// Reads; timed.
    fn serve(&self, visit: &mut Self::Visit) -> Result<(), ExperimentError>;

    /// Finishes a read; untimed.
    fn settle(&self, visit: Self::Visit);
}

/// Times of all reads of a target.
#[derive(Clone, Debug, Default)]
pub(super) struct Served {
    /// Service times (see [`service`](super::super::service)).
    pub(super) service: Times,
    /// Times from the scheduled arrival to the end.
    pub(super) since_arrival: Times,
    /// Threads that could not tell their waits for CPUs.
    pub(super) unknown_waits: usize,
}

impl Served {
    pub(super) fn merge(&mut self, other: &Self) {
        self.service.merge(&other.service);
        self.since_arrival.merge(&other.since_arrival);
        self.unknown_waits += other.unknown_waits;
    }
}

/// Reads leaves of `target` for `time`.
pub(super) fn storm(
    target: &impl Target,
    leaves: usize,
    time: Duration,
    seed: u64,
    control: &Control,
) -> Result<Served, ExperimentError> {
    thread::scope(|scope| {
        let crew = Crew::new(scope);
        let threads: Result<Vec<_>, _> = (0..THREADS as u64)
            .map(|number| {
                let seed = seed.wrapping_mul(THREADS as u64).wrapping_add(number);
                crew.start(move || serve(target, leaves, time, seed, control))
            })
            .collect();
        let threads = threads?;
        crew.go();
        let mut all = Served::default();
        for thread in threads {
            all.merge(&thread.join()?);
        }
        Ok(all)
    })
}

fn serve(
    target: &impl Target,
    leaves: usize,
    time: Duration,
    seed: u64,
    control: &Control,
) -> Result<Served, ExperimentError> {
    let clock = ServiceClock::of_this_thread();
    let mut random = Rng::with_seed(seed);
    let mut served = Served {
        unknown_waits: usize::from(!clock.knows_waits()),
        ..Served::default()
    };
    let begun = Instant::now();
    let mut arrival = Duration::ZERO;
    loop {
        arrival += gap(&mut random);
        if arrival >= time {
            return Ok(served);
        }
        if control.is_stopped() {
            return Err(ExperimentError::Interrupted);
        }
        while let Some(early) = arrival.checked_sub(begun.elapsed()) {
            if early > SHORT {
                thread::sleep(early);
            } else {
                std::hint::spin_loop();
            }
        }
        let reader = random.usize(..leaves * GROUP_READERS);
        let mut visit = target.prepare(reader / GROUP_READERS)?;
        let (result, service) = clock.time(|| target.serve(&mut visit));
        let ended = begun.elapsed();
        result?;
        target.settle(visit);
        served.service.add(service);
        served.since_arrival.add(ended.saturating_sub(arrival));
    }
}

/// Draws the time until the next arrival of many independent readers (exponential).
fn gap(random: &mut Rng) -> Duration {
    // In (0, 1], so that the logarithm is finite.
    let part = 1.0 - random.f64();
    Duration::from_secs_f64(-part.ln() / THREAD_READS_PER_S)
}

/// Returns the reads per second of all threads.
pub(super) fn reads_per_s() -> f64 {
    THREAD_READS_PER_S * to_f64(THREADS as u64)
}

/// Returns the seed of a round: every variant is read by the same schedules.
pub(super) fn round_seed(setup: &Setup, round: u32) -> u64 {
    let seed = setup.options.seed.wrapping_mul(1000);
    seed.wrapping_add(round.into())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Delays every hundredth read.
    #[derive(Default)]
    struct Slow {
        reads: AtomicU64,
        settled: AtomicU64,
    }

    const NAP: Duration = Duration::from_millis(4);

    impl Target for Slow {
        type Visit = usize;

        fn prepare(&self, leaf: usize) -> Result<usize, ExperimentError> {
            Ok(leaf)
        }

        fn serve(&self, leaf: &mut usize) -> Result<(), ExperimentError> {
            assert!(*leaf < 10);
            let nth = self.reads.fetch_add(1, Ordering::Relaxed);
            if nth.is_multiple_of(100) {
                thread::sleep(NAP);
            }
            Ok(())
        }

        fn settle(&self, _leaf: usize) {
            self.settled.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Goal: every scheduled arrival is served, and those behind a slow read are late, though their
    /// own service is short. Method: every hundredth read of the target takes 4 ms, in which dozens
    /// arrive.
    #[test]
    fn a_slow_read_makes_those_behind_it_late() {
        let (slow, control) = (Slow::default(), Control::default());
        let served = storm(&slow, 10, Duration::from_millis(300), 1, &control).unwrap();
        let reads = slow.reads.load(Ordering::Relaxed);
        assert_eq!(served.service.calls(), reads);
        assert_eq!(slow.settled.load(Ordering::Relaxed), reads);
        let expected = reads_per_s() * 0.3;
        assert!((to_f64(reads) / expected - 1.0).abs() < 0.2, "{reads}");
        let slow_reads = served.service.above_percent(NAP / 2);
        let late_reads = served.since_arrival.above_percent(NAP / 2);
        assert!(late_reads > 3.0 * slow_reads, "{late_reads}, {slow_reads}");
    }

    #[test]
    fn a_stopped_storm_is_interrupted() {
        let control = Control::default();
        control.stop();
        let ended = storm(&Slow::default(), 10, Duration::from_secs(60), 1, &control);
        assert!(matches!(ended, Err(ExperimentError::Interrupted)));
    }
}
