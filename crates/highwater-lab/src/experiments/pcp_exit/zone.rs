//! Times of zone visits, from the pool's histograms.

use highwater::frame::FramePool;
use highwater::lab::sync::LockTimes;

use crate::experiments::buckets::Buckets;
use crate::report::text::to_f64;

/// Times of visits to the zones.
#[derive(Clone, Debug, Default)]
pub(super) struct ZoneTimes(LockTimes);

impl ZoneTimes {
    /// Returns the times of all visits to a pool's zones so far.
    pub(super) fn of(pool: &FramePool) -> Self {
        Self(pool.zone_times())
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        Self(self.0.clone() - &earlier.0)
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.0 = std::mem::take(&mut self.0) + &other.0;
    }

    /// Returns the waits of the visits that had to wait.
    pub(super) fn waits(&self) -> Buckets {
        Buckets::of(self.0.wait_ns.buckets())
    }

    pub(super) fn holds(&self) -> Buckets {
        Buckets::of(self.0.hold_ns.buckets())
    }

    /// Returns waits and holds together, visit by visit.
    pub(super) fn visits(&self) -> Buckets {
        Buckets::of(self.0.visit_ns.buckets())
    }

    pub(super) fn nr_visits(&self) -> f64 {
        to_f64(self.0.holds())
    }

    pub(super) fn frames(&self) -> f64 {
        to_f64(self.0.work.sum())
    }

    pub(super) fn waited_s(&self) -> f64 {
        to_f64(self.0.wait_ns.sum()) / 1e9
    }

    pub(super) fn held_s(&self) -> f64 {
        to_f64(self.0.hold_ns.sum()) / 1e9
    }

    pub(super) fn frames_a_visit(&self) -> f64 {
        self.frames() / self.nr_visits()
    }

    /// Returns the mean time of a frame, over all frames of all visits.
    pub(super) fn frame_ns(&self) -> f64 {
        self.held_s() * 1e9 / self.frames()
    }

    pub(super) fn hold_ns(&self) -> f64 {
        self.held_s() * 1e9 / self.nr_visits()
    }

    /// Returns the part of the visits that had to wait.
    pub(super) fn contended_part(&self) -> f64 {
        to_f64(self.0.contended()) / self.nr_visits()
    }
}
