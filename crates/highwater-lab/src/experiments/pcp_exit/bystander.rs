//! A tenant that stands by: it takes 63 frames now and then while others exit, and measures how
//! long that takes. What counts is when it began to.
//!
//! Its list is empty whenever it asks: what it had it gave back, and its list was drained, as that
//! of an idle CPU is. So each time is that of one refill of 63 frames, under every policy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use highwater::frame::{AllocFlags, FramePool};
use highwater::units::CpuId;

use crate::experiments::service::{ServiceClock, Times};

/// Frames that it takes at once: the batch of large pools.
pub(super) const TAKEN: usize = 63;

/// Microseconds between what it gave back and what it takes next.
const NAP_US: std::ops::RangeInclusive<u64> = 50..=500;

/// What the tenants are doing, for those that stand by.
#[derive(Debug, Default)]
pub(super) struct Phase {
    /// Odd while tenants exit; [`OVER`] when nothing follows. Written by: who lets tenants begin.
    /// Read by: the bystander. Publishes: nothing.
    number: AtomicU64,
}

const OVER: u64 = u64::MAX;

impl Phase {
    fn now(&self) -> u64 {
        // Relaxed: a bystander that sees it late measures one time less, or one more of a moment
        // later.
        self.number.load(Ordering::Relaxed)
    }

    /// Tenants begin to exit, or have.
    pub(super) fn turn(&self) {
        // Relaxed: as above.
        self.number.fetch_add(1, Ordering::Relaxed);
    }

    /// What ends the phases when it is dropped, also by a panic.
    pub(super) fn ends(&self) -> Ends<'_> {
        Ends(self)
    }
}

/// Ends its phases when it is dropped.
#[derive(Debug)]
pub(super) struct Ends<'a>(&'a Phase);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        // Relaxed: as above.
        self.0.number.store(OVER, Ordering::Relaxed);
    }
}

/// Times of a bystander's refills.
#[derive(Clone, Debug, Default)]
pub(super) struct Stood {
    /// Without what it spent ready to run.
    pub(super) service: Times,
    /// With it.
    pub(super) real: Times,
    /// Times that it got fewer frames.
    pub(super) short: u64,
    /// Whether its waits for CPUs are in the real time only.
    pub(super) knows_waits: bool,
}

impl Stood {
    pub(super) fn merge(&mut self, other: &Self) {
        self.service.merge(&other.service);
        self.real.merge(&other.real);
        self.short += other.short;
        self.knows_waits = other.knows_waits;
    }
}

/// Stands by until the phases end.
pub(super) fn stand_by(pool: &FramePool, cpu: CpuId, phase: &Phase, seed: u64) -> Stood {
    let clock = ServiceClock::of_this_thread();
    let mut random = Rng::with_seed(seed);
    let mut stood = Stood {
        knows_waits: clock.knows_waits(),
        ..Stood::default()
    };
    let mut frames = Vec::with_capacity(TAKEN);
    loop {
        thread::sleep(Duration::from_micros(random.u64(NAP_US)));
        let before = phase.now();
        if before == OVER {
            return stood;
        }
        if before.is_multiple_of(2) {
            continue;
        }
        let mut real = Duration::ZERO;
        let (taken, service) = clock.time(|| {
            let begun = Instant::now();
            let taken = pool.alloc_bulk_on(cpu, TAKEN, AllocFlags::new(), &mut frames);
            real = begun.elapsed();
            taken
        });
        pool.free_bulk_on(cpu, &mut frames);
        pool.drain(cpu);
        // Also of a refill that the last tenant's exit did not last as long as: to leave it out
        // would be to leave out the longest.
        stood.service.add(service);
        stood.real.add(real);
        stood.short += u64::from(taken < TAKEN);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use highwater::memmap::FrameMemory;
    use highwater::units::Pages;

    use super::*;

    /// Goal: each time is that of a refill, all that began while tenants exit count, and no others.
    /// Method: the pool's own count of refills beside the times, in a phase in which nobody exits
    /// and one in which they do; the last refill may end after that.
    #[test]
    fn every_time_is_that_of_a_refill() {
        let memory = Arc::new(FrameMemory::new(Pages(1 << 18)).unwrap());
        let pool = FramePool::new(memory, 2).unwrap();
        let phase = Phase::default();
        let stood = thread::scope(|scope| {
            let bystander = scope.spawn(|| stand_by(&pool, CpuId(1), &phase, 1));
            thread::sleep(Duration::from_millis(5));
            assert_eq!(pool.counters().refills, 0, "nobody exits");
            phase.turn();
            while pool.counters().refills < 10 {
                thread::sleep(Duration::from_millis(1));
            }
            drop(phase.ends());
            bystander.join().unwrap()
        });
        let calls = stood.real.calls();
        assert_eq!(calls, pool.counters().refills);
        assert_eq!(stood.service.calls(), stood.real.calls());
        assert_eq!(stood.short, 0);
        assert_eq!(pool.counts().allocated, Pages(0));
    }
}
