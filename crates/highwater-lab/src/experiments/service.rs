//! Service time of a call: what the call itself costs its caller, on a machine that does other
//! work.
//!
//! On few CPUs a preempted caller waits for a whole time slice, 8 ms and more, whatever it calls,
//! and a virtual CPU may itself be descheduled for as long. Neither is the call's cost. Waiting for
//! a lock is.
//!
//! So the *service time* is the real time, less the time that the caller spent runnable while other
//! threads ran, which the kernel counts for each thread (`/proc/thread-self/schedstat`). A caller
//! that was never taken off its CPU waited for no lock: its service time is the CPU time, if that
//! is less. Without that file the service time is the real time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::clock::thread_ns;
use crate::report::text::to_f64;

/// The kernel's count of a thread's waits for CPUs.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

/// Measures calls of the thread that created it.
#[derive(Debug)]
pub(super) struct ServiceClock {
    schedstat: Option<File>,
}

/// How long a thread has waited for CPUs, and how often it was scheduled.
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

    /// Returns whether waits for CPUs are known.
    pub(super) fn knows_waits(&self) -> bool {
        self.scheduled().is_some()
    }

    fn scheduled(&self) -> Option<Scheduled> {
        let mut text = [0; 64];
        let length = self.schedstat.as_ref()?.read_at(&mut text, 0).ok()?;
        parse(str::from_utf8(&text[..length]).ok()?)
    }

    /// Returns the result of `work` and its service time.
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

/// Parses three numbers: time on CPUs, time runnable, both in nanoseconds, and times scheduled.
fn parse(text: &str) -> Option<Scheduled> {
    let mut words = text.split_ascii_whitespace().skip(1);
    Some(Scheduled {
        waited: Duration::from_nanos(words.next()?.parse().ok()?),
        times: words.next()?.parse().ok()?,
    })
}

/// Histogram of the times of many calls.
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

    /// Returns a quantile in microseconds; `NaN` without calls.
    pub(super) fn quantile_us(&self, quantile: f64) -> f64 {
        match self.ns.len() {
            0 => f64::NAN,
            _ => to_f64(self.ns.value_at_quantile(quantile)) / 1e3,
        }
    }

    pub(super) fn max_us(&self) -> f64 {
        self.quantile_us(1.0)
    }

    /// Returns the percentage of calls that took longer than `time`; `NaN` without calls.
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

    /// Goal: parts and quantiles are those of known times. Method: 1,000 calls of 10 us, except a
    /// few that are longer.
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
        // The kernel counts a wait for a CPU only from the end of the nap.
        assert!(asleep >= nap, "{asleep:?}");
        let scheduled = Scheduled {
            waited: Duration::from_nanos(205),
            times: 7,
        };
        assert_eq!(parse("1234 205 7\n"), Some(scheduled));
        assert_eq!(parse("1234"), None);
    }
}
