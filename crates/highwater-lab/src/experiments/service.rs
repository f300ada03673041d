//! How long a call takes its caller, whatever else the machine does.
//!
//! On few CPUs a caller that is preempted waits a whole time slice, 8 ms and more, whatever it
//! calls; and a virtual CPU may itself be off for as long. Neither is the call's. Waiting for a
//! lock is.
//!
//! So the *service time* is the real time, less what the caller spent ready to run while others
//! ran, which the kernel counts for each thread (`/proc/thread-self/schedstat`). A caller that was
//! never taken off its CPU has waited for nobody: then it is the CPU time, if that is less. Without
//! that file it is the real time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::clock::thread_ns;
use crate::report::text::to_f64;

/// Where a thread finds what it has waited for CPUs.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

/// Measures calls of the thread that made it.
#[derive(Debug)]
pub(super) struct ServiceClock {
    schedstat: Option<File>,
}

/// What a thread had waited for CPUs, and how often it had come onto one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scheduled {
    waited: Duration,
    times: u64,
}

impl ServiceClock {
    pub(super) fn of_this_thread() -> Self {
        Self {
            schedstat: File::open(SCHEDSTAT).ok(),
        }
    }

    /// Whether waits for CPUs are known.
    pub(super) fn knows_waits(&self) -> bool {
        self.scheduled().is_some()
    }

    fn scheduled(&self) -> Option<Scheduled> {
        let mut text = [0; 64];
        let length = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        parse(str::from_utf8(&text[..length]).ok()?)
    }

    /// What `work` returns, and its service time.
    pub(super) fn time<T>(&self, work: impl FnOnce() -> T) -> (T, Duration) {
        let before = self.scheduled();
        let cpu_begun = thread_ns();
        let begun = Instant::now();
        let result = work();
        let real = begun.elapsed();
        let cpu = Duration::from_nanos(thread_ns().saturating_sub(cpu_begun));
        let service = match before.zip(self.scheduled()) {
            None => real,
            Some((before, after)) if before.times == after.times => real.min(cpu),
            Some((before, after)) => real.saturating_sub(after.waited - before.waited),
        };
        (result, service)
    }
}

/// Time on CPUs, time ready to run, both in nanoseconds, and the number of times on a CPU.
fn parse(text: &str) -> Option<Scheduled> {
    let mut words = text.split_ascii_whitespace().skip(1);
    Some(Scheduled {
        waited: Duration::from_nanos(words.next()?.parse().ok()?),
        times: words.next()?.parse().ok()?,
    })
}

/// Times of many calls.
#[derive(Clone, Debug)]
pub(super) struct Times {
    ns: Histogram<u64>,
}

/// Why no value is refused.
const ALL_FIT: &str = "a histogram that resizes itself takes every value";

impl Default for Times {
    fn default() -> Self {
        Self {
            ns: Histogram::new(3).expect("three digits are within 0..=5"),
        }
    }
}

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.ns.record(ns).expect(ALL_FIT);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.ns.add(&other.ns).expect(ALL_FIT);
    }

    pub(super) fn calls(&self) -> u64 {
        self.ns.len()
    }

    /// In microseconds; no number if nothing was called.
    pub(super) fn quantile_us(&self, quantile: f64) -> f64 {
        match self.ns.len() {
            0 => f64::NAN,
            _ => to_f64(self.ns.value_at_quantile(quantile)) / 1e3,
        }
    }

    pub(super) fn max_us(&self) -> f64 {
        self.quantile_us(1.0)
    }

    /// Calls that took longer, in parts of a hundred; no number if nothing was called.
    pub(super) fn above_percent(&self, time: Duration) -> f64 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let above = match ns.checked_add(1) {
            Some(next) if next <= self.ns.high() => self.ns.count_between(next, self.ns.high()),
            _ => 0,
        };
        100.0 * to_f64(above) / to_f64(self.ns.len())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Goal: parts and quantiles are those of known times. Method: 1,000 of 10 us, but for a few
    /// that are longer.
    #[test]
    fn parts_and_quantiles_are_those_of_the_times() {
        let limits = [50, 1000, 100_000].map(Duration::from_micros);
        let mut times = Times::default();
        assert!(times.above_percent(limits[0]).is_nan() && times.max_us().is_nan());
        for _ in 0..996 {
            times.add(Duration::from_micros(10));
        }
        for us in [51, 1001, 5000, 100_100] {
            times.add(Duration::from_micros(us));
        }
        let above = limits.map(|limit| times.above_percent(limit));
        for (above, wanted) in above.into_iter().zip([0.4, 0.3, 0.1]) {
            assert!((above - wanted).abs() < 1e-9, "{above} for {wanted}");
        }
        assert!((times.quantile_us(0.99) - 10.0).abs() < 0.1);
        assert!((times.max_us() - 100_100.0).abs() < 100.1);
    }

    /// Goal: sleeping, as a wait for a lock does, is service; the kernel's three numbers are
    /// understood. Method: a nap, an empty call, and text.
    #[test]
    fn waits_for_others_are_service() {
        let clock = ServiceClock::of_this_thread();
        let nap = Duration::from_millis(3);
        let ((), asleep) = clock.time(|| thread::sleep(nap));
        // What the kernel counts as waiting for a CPU begins when the nap is over.
        assert!(asleep >= nap, "{asleep:?}");
        let scheduled = Scheduled {
            waited: Duration::from_nanos(205),
            times: 7,
        };
        assert_eq!(parse("1234 205 7\n"), Some(scheduled));
        assert_eq!(parse("1234"), None);
    }
}
