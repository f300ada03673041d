//! The bystander: a tenant that allocates 63 frames now and then while others exit, and measures
//! the latency of each refill that begins meanwhile.
//!
//! Its per-CPU list is empty before each allocation: it frees its frames and drains its list, as
//! that of an idle CPU is drained. So each time is that of one refill of 63 frames, under every
//! policy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use highwater::frame::{AllocFlags, FramePool};
use highwater::units::CpuId;

use crate::experiments::service::{ServiceClock, Times};

/// Frames allocated at once: the batch of large pools.
pub(super) const TAKEN: usize = 63;

/// Microseconds between a free and the next allocation.
const NAP_US: std::ops::RangeInclusive<u64> = 50..=500;

/// Phase of the tenants, for the bystander.
#[derive(Debug, Default)]
pub(super) struct Phase {
    /// Odd while tenants exit; [`OVER`] at the end. Written by: the thread that starts the tenants'
    /// turns. Read by: the bystander. Publishes: nothing.
    number: AtomicU64,
}

const OVER: u64 = u64::MAX;

impl Phase {
    fn now(&self) -> u64 {
        // Relaxed: a bystander that sees a change late measures one time less, or one more that
        // began a moment later.
        self.number.load(Ordering::Relaxed)
    }

    /// Advances the phase: tenants begin to exit, or have exited.
    pub(super) fn turn(&self) {
        // Relaxed: see `now`.
        self.number.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns a guard that ends the phases when it is dropped, also by a panic.
    pub(super) fn ends(&self) -> Ends<'_> {
        Ends(self)
    }
}

/// Ends its phases when it is dropped.
#[derive(Debug)]
pub(super) struct Ends<'a>(&'a Phase);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        // Relaxed: see `now`.
        self.0.number.store(OVER, Ordering::Relaxed);
    }
}

/// Refill times of a bystander.
#[derive(Clone, Debug, Default)]
pub(super) struct Stood {
    /// Service times: without the time spent runnable.
    pub(super) service: Times,
    /// Real times.
    pub(super) real: Times,
    /// Refills that got fewer frames than requested.
    pub(super) short: u64,
    /// Whether `service` excludes waits for CPUs.
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

/// Allocates and frees until the phases end.
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
            let taken = pool
                .at(cpu)
                .alloc_bulk(TAKEN, AllocFlags::new(), &mut frames);
            real = begun.elapsed();
            taken
        });
        pool.at(cpu).free_bulk(&mut frames);
        pool.drain(cpu);
        // A refill counts also if it outlasts the last exit: leaving it out would leave out the
        // longest ones.
        stood.service.add(service);
        stood.real.add(real);
        stood.short += u64::from(taken < TAKEN);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use highwater::lab::memmap::FrameMemory;
    use highwater::units::Pages;

    use super::*;

    /// Goal: each time is that of one refill, and all refills that begin while tenants exit count,
    /// and no others. Method: compare with the pool's own count of refills, in a phase without
    /// exits and in one with exits, after which the last refill may end.
    #[test]
    fn every_time_is_that_of_a_refill() {
        let memory = Arc::new(FrameMemory::new(Pages(1 << 18)).unwrap());
        let pool = FramePool::new(memory, 2).unwrap();
        let phase = Phase::default();
        let stood = thread::scope(|scope| {
            let bystander = scope.spawn(|| stand_by(&pool, CpuId(1), &phase, 1));
            thread::sleep(Duration::from_millis(5));
            assert_eq!(pool.counters().refills, 0, "no tenant exits");
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
