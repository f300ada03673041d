//! The clock of a run: the system's, or a simulated one that the tenants' work advances.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::turns::{Seat, Turns, Who};
use crate::experiments::buckets::Buckets;

/// Cost of scanning a page: under *skip* the published machine's background thread was always busy,
/// and scanned 52.77 million pages in 25.2 s.
pub(super) const LOOK: Duration = Duration::from_nanos(478);
/// Cost of a page of A, without scans: the published A took 24.64, 25.20 and 23.62 s for 18.87
/// million pages, in which it scanned 8.40, 3.77 and 7.97 million itself.
pub(super) const PAGE_OF_A: Duration = Duration::from_nanos(1130);
/// The same beside C: under *vanilla* 27.24 s, in which A and C scanned 4.92 million pages; half of
/// them are attributed to A.
pub(super) const PAGE_OF_A_BESIDE_C: Duration = Duration::from_nanos(1380);
/// Wait for a page from the disk: chosen, and small, because pages are read ahead. For A it is
/// included in the cost of a page.
pub(super) const PAGE_IN: Duration = Duration::from_nanos(100);
/// Cost of a resident page of C: chosen. About C's speed the discussion says only that it brought
/// in at most a million pages in 1.7 s.
pub(super) const PAGE_OF_C: Duration = Duration::from_nanos(300);

/// Kind of clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockKind {
    /// The system's: work takes the time that it takes on this machine.
    System,
    /// A clock that only work advances, by the time that it took on the published machine.
    Simulated,
}

/// A running clock.
#[derive(Debug)]
pub(super) enum Clock {
    System(Instant),
    Simulated(Arc<Turns>),
}

impl Clock {
    /// Starts a clock at time 0.
    pub(super) fn start(kind: ClockKind, takes_part: impl Fn(Who) -> bool) -> Self {
        match kind {
            ClockKind::System => Self::System(Instant::now()),
            ClockKind::Simulated => Self::Simulated(Arc::new(Turns::new(LOOK, takes_part))),
        }
    }

    pub(super) fn turns(&self) -> Option<&Arc<Turns>> {
        match self {
            Self::System(_) => None,
            Self::Simulated(turns) => Some(turns),
        }
    }

    /// Makes the calling thread go by this clock until the result is dropped.
    pub(super) fn join(&self, who: Who) -> Option<Seat<'_>> {
        self.turns().map(|turns| turns.join(who))
    }

    /// Restarts a simulated clock at 0.
    pub(super) fn begin(&mut self) {
        if let Self::System(begun) = self {
            *begun = Instant::now();
        }
    }

    /// Returns the time since the start.
    pub(super) fn now(&self) -> Duration {
        match self {
            Self::System(begun) => begun.elapsed(),
            Self::Simulated(turns) => turns.now(),
        }
    }

    /// Charges the calling thread with work that takes `time` on the published machine.
    pub(super) fn takes(&self, time: Duration) {
        if let Self::Simulated(turns) = self {
            turns.takes(time);
        }
    }

    /// Waits for `time`: sleeps, unless the time is very short.
    pub(super) fn wait(&self, time: Duration) {
        match self {
            Self::System(_) if time >= Duration::from_micros(200) => thread::sleep(time),
            Self::System(_) => {
                let begun = Instant::now();
                while begun.elapsed() < time {
                    std::hint::spin_loop();
                }
            }
            Self::Simulated(turns) => turns.sleeps(time),
        }
    }

    /// Returns the times for which reclaim waited for a held lock, and their sum, if the clock
    /// knows them.
    pub(super) fn blocked(&self) -> Option<(Buckets, Duration)> {
        let blocked = self.turns()?.blocked();
        let ns = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let buckets = Buckets::of(blocked.iter().map(|time| (ns(time), 1)));
        Some((buckets, blocked.iter().sum()))
    }
}
