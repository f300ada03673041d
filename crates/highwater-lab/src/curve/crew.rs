//! Simulations that do not depend on each other, on several threads.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Most threads. Chosen: their caches and buffers fit the mebibyte of a curve, and of three do not.
const THREADS_MAX: usize = 2;

/// Calls `job` with each number below `count`, on as many threads as there are CPUs, two at most.
/// Returns the results in order.
///
/// # Errors
///
/// The one of the lowest number among those that were met; no job begins after it.
pub(super) fn each<T: Send, E: Send>(
    count: usize,
    job: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            // Relaxed: a number belongs to one thread, and joining publishes the results.
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return done;
            }
            let result = job(number);
            if result.is_err() {
                // Relaxed: as above.
                next.store(count, Ordering::Relaxed);
            }
            done.push((number, result));
        }
    };
    let mut results = thread::scope(|scope| {
        let others = cpus.min(THREADS_MAX).min(count).saturating_sub(1);
        let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
        let mut results = work();
        for other in others {
            match other.join() {
                Ok(done) => results.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    });
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: every job is done once, in order of the results; an error ends the rest.
    #[test]
    fn jobs_are_done_once() {
        for count in [0, 1, 2, 3, 1000] {
            let done = each(count, |number| Ok::<_, ()>(number * 2));
            let expected: Vec<usize> = (0..count).map(|number| number * 2).collect();
            assert_eq!(done, Ok(expected));
        }
        let begun = AtomicUsize::new(0);
        let failed = each(100_000, |number| {
            begun.fetch_add(1, Ordering::Relaxed);
            match number {
                5 => Err(number),
                _ => Ok(()),
            }
        });
        assert_eq!(failed, Err(5));
        assert!(begun.into_inner() < 100_000, "jobs began after the error");
    }
}
