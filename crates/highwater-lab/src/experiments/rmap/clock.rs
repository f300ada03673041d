//! The clock that a run goes by: the system's, or one that the tenants' work moves.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::turns::{Seat, Turns, Who};
use crate::experiments::buckets::Buckets;

/// What a look at a page takes: under *skip* the thread's background thread had always something to
/// do, and looked at 52.77 million pages in 25.2 s.
pub(super) const LOOK: Duration = Duration::from_nanos(478);
/// What a page of A takes, but for looks: the thread's A took 24.64, 25.20 and 23.62 s for 18.87
/// million, in which it looked at 8.40, 3.77 and 7.97 million itself.
pub(super) const PAGE_OF_A: Duration = Duration::from_nanos(1130);
/// The same beside C: under *vanilla* 27.24 s, in which A and C looked at 4.92 million pages, of
/// which half are taken for A's.
pub(super) const PAGE_OF_A_BESIDE_C: Duration = Duration::from_nanos(1380);
/// What is waited for a page from the disk: chosen, and little, because it is read ahead. For A's
/// pages it is a part of what they take.
pub(super) const PAGE_IN: Duration = Duration::from_nanos(100);
/// What a page of C takes that is in memory: chosen. The thread says of C's speed only that it
/// brought in no more than a million pages in 1.7 s.
pub(super) const PAGE_OF_C: Duration = Duration::from_nanos(300);

/// A clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClockKind {
    /// The system's: everything takes what it takes here.
    System,
    /// One that stands still but for work, which takes what it took on the thread's machine.
    Simulated,
}

/// A clock that runs.
#[derive(Debug)]
pub(super) enum Clock {
    System(Instant),
    Simulated(Arc<Turns>),
}

impl Clock {
    /// Time 0 is now.
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

    /// Makes the calling thread go by this clock while what this returns lives.
    pub(super) fn join(&self, who: Who) -> Option<Seat<'_>> {
        self.turns().map(|turns| turns.join(who))
    }

    /// Begins again at 0, if the clock is one that does not stand still by itself.
    pub(super) fn begin(&mut self) {
        if let Self::System(begun) = self {
            *begun = Instant::now();
        }
    }

    /// Time since it began.
    pub(super) fn now(&self) -> Duration {
        match self {
            Self::System(begun) => begun.elapsed(),
            Self::Simulated(turns) => turns.now(),
        }
    }

    /// The calling thread has done what takes so long on the thread's machine.
    pub(super) fn takes(&self, time: Duration) {
        if let Self::Simulated(turns) = self {
            turns.takes(time);
        }
    }

    /// Waits, without the CPU unless it is for a moment only.
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

    /// How long reclaim waited for a held lock each time that it did, and in all, if the clock
    /// knows.
    pub(super) fn blocked(&self) -> Option<(Buckets, Duration)> {
        let blocked = self.turns()?.blocked();
        let ns = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let buckets = Buckets::of(blocked.iter().map(|time| (ns(time), 1)));
        Some((buckets, blocked.iter().sum()))
    }
}
