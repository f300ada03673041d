//! Clocks and medians that carry over between machines: per-thread CPU time, interleaved variants.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use super::ExperimentError;
use super::crew::{Crew, Hand};
use crate::report::text::to_f64;

/// Returns the CPU time of the calling thread, in nanoseconds; preemption is not part of it.
pub(super) fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither part of a thread's own time is negative.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Time that a set of threads took which began together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    /// CPU time of all threads, in nanoseconds.
    pub(super) cpu_ns: f64,
    /// Parallelism: CPU time for each unit of real time, from the start of the first thread to the
    /// end of the last one.
    pub(super) at_once: f64,
}

/// Times `threads` threads that begin `work` together; `work` gets the thread's number.
///
/// # Errors
///
/// When the system refuses a thread.
pub(super) fn time_threads(
    threads: usize,
    work: &(impl Fn(usize) + Sync + ?Sized),
) -> Result<Took, ExperimentError> {
    let start = Barrier::new(threads);
    let timed = |thread| {
        start.wait();
        let (begin, cpu_begin) = (Instant::now(), thread_ns());
        work(thread);
        let cpu_ns = thread_ns().saturating_sub(cpu_begin);
        (cpu_ns, begin, Instant::now())
    };
    let timed = &timed;
    thread::scope(|scope| {
        let crew = Crew::new(scope);
        let workers: Result<Vec<_>, _> = (0..threads)
            .map(|thread| crew.start(move || timed(thread)))
            .collect();
        let workers = workers?;
        crew.go();
        let times: Vec<_> = workers.into_iter().map(Hand::join).collect();
        let cpu_ns = to_f64(times.iter().map(|time| time.0).sum());
        let begin = times.iter().map(|time| time.1).min();
        let end = times.iter().map(|time| time.2).max();
        let real = begin.zip(end).map_or(0.0, |(begin, end)| {
            end.saturating_duration_since(begin).as_secs_f64()
        });
        Ok(Took {
            cpu_ns,
            at_once: cpu_ns / 1e9 / real.max(f64::MIN_POSITIVE),
        })
    })
}

/// Returns the median: the middle value, or the mean of the two in the middle; `NaN` of no values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert!(median(Vec::new()).is_nan());
    }

    /// Goal: the work is timed, and threads add up. Method: ten times the work takes more.
    #[test]
    fn more_work_takes_more_cpu_time() {
        let spin = |turns: u32| {
            let took = time_threads(2, &|_| {
                for turn in 0..turns {
                    std::hint::black_box(turn);
                }
            })
            .unwrap();
            // The two clocks are not read at one instant.
            assert!(0.0 < took.at_once && took.at_once < 2.1, "{took:?}");
            took.cpu_ns
        };
        assert!(spin(10_000_000) > spin(1_000_000));
    }
}
