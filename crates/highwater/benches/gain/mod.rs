//! How much more two threads do at once than one does.
//!
//! CPUs of one machine are not equally fast: on a virtual one, other load on its host changes the
//! speed of each by itself, by more than half, several times a second. So each thread stays on a
//! CPU of its own, and each round takes a few milliseconds: one thread alone while the other
//! sleeps, the other one alone, then both at once. The work of both is compared with that of each
//! alone, on the same CPUs; the median of the rounds counts. Times are CPU times: time of other
//! processes is not in them.

#![expect(
    unsafe_code,
    reason = "asks the system for a thread's clock and a CPU of its own"
)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// Rounds of each measurement.
const ROUNDS: u32 = 101;

/// Throughput of two threads that run `run` at once, as a ratio to that of one; no number where
/// they cannot have a CPU each. `run` does it so many times as it is told: `times` in a round.
pub(crate) fn of_second_thread(times: u32, run: &(impl Fn(u32) + Sync)) -> f64 {
    let round = Meeting {
        phase: Barrier::new(2),
        settled: AtomicU32::new(0),
        running: AtomicU32::new(0),
        done: AtomicU32::new(0),
    };
    let [one, other] = thread::scope(|scope| {
        let round = &round;
        let workers = [0, 1].map(|thread| scope.spawn(move || round.times(thread, times, run)));
        workers.map(|worker| worker.join().expect("a worker panicked"))
    });
    if one.is_empty() || other.is_empty() {
        return f64::NAN;
    }
    let mut gains: Vec<f64> = one
        .iter()
        .zip(&other)
        .map(|(one, other)| {
            let alone = one.alone.recip() + other.alone.recip();
            2.0 * (one.together.recip() + other.together.recip()) / alone
        })
        .collect();
    gains.sort_by(f64::total_cmp);
    gains[gains.len() / 2]
}

/// Seconds of one round.
struct Times {
    alone: f64,
    together: f64,
}

struct Meeting {
    phase: Barrier,
    /// Threads that stay on a CPU. Written by: both. Read by: both, after they have met. Publishes:
    /// nothing.
    settled: AtomicU32,
    /// Written by: both. Read by: both. Publishes: nothing; tells that they run. Counts on from
    /// round to round, as does `done`.
    running: AtomicU32,
    done: AtomicU32,
}

impl Meeting {
    /// Every round, as one of the threads 0 and 1; none if one of them has no CPU of its own.
    fn times(&self, thread: u32, times: u32, run: &impl Fn(u32)) -> Vec<Times> {
        // Relaxed: the wait orders it.
        let settled = u32::from(stay_on_cpu(thread as usize));
        self.settled.fetch_add(settled, Ordering::Relaxed);
        self.phase.wait();
        if self.settled.load(Ordering::Relaxed) < 2 {
            return Vec::new();
        }
        run(times);
        (1..=ROUNDS)
            .map(|round| {
                let mut alone = 0.0;
                for turn in [0, 1] {
                    self.phase.wait();
                    if turn == thread {
                        alone = timed(|| run(times));
                    }
                }
                self.phase.wait();
                self.meet(&self.running, 2 * round, std::hint::spin_loop);
                let together = timed(|| run(times));
                // The other one is not alone before it is done.
                self.meet(&self.done, 2 * round, || run(times / 64));
                Times { alone, together }
            })
            .collect()
    }

    fn meet(&self, count: &AtomicU32, until: u32, meanwhile: impl Fn()) {
        // Relaxed: a number by itself.
        count.fetch_add(1, Ordering::Relaxed);
        while count.load(Ordering::Relaxed) < until {
            meanwhile();
        }
    }
}

fn timed(run: impl Fn()) -> f64 {
    let before = cpu_time();
    run();
    (cpu_time() - before).as_secs_f64()
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: it writes a time where there is room for one.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "every thread has a clock");
    let secs = u64::try_from(time.tv_sec).expect("clocks begin at 0");
    Duration::new(
        secs,
        u32::try_from(time.tv_nsec).expect("less than a second"),
    )
}

/// Keeps the calling thread on one of the CPUs that it may run on, another one for each number;
/// whether that was done.
#[cfg(target_os = "linux")]
fn stay_on_cpu(number: usize) -> bool {
    // SAFETY: zeroed bytes are a set of no CPU.
    let (mut allowed, mut chosen) =
        unsafe { std::mem::zeroed::<(libc::cpu_set_t, libc::cpu_set_t)>() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: it writes a set where there is room for one.
    if unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) } != 0 {
        return false;
    }
    let nr_cpus = usize::try_from(libc::CPU_SETSIZE).expect("some CPUs");
    let is_allowed = |cpu: &usize| {
        // SAFETY: the number is less than the set has.
        unsafe { libc::CPU_ISSET(*cpu, &allowed) }
    };
    let Some(cpu) = (0..nr_cpus).filter(is_allowed).nth(number) else {
        return false;
    };
    // SAFETY: as above.
    unsafe { libc::CPU_SET(cpu, &mut chosen) };
    // SAFETY: it reads a set.
    unsafe { libc::sched_setaffinity(0, size, &raw const chosen) == 0 }
}

/// The system offers no affinity: it chooses the threads' CPUs.
#[cfg(not(target_os = "linux"))]
fn stay_on_cpu(_: usize) -> bool {
    true
}
