//! What happens above a group's `high`: what is beyond it is reclaimed, and what that does not mend
//! is a delay.
//!
//! A charge that reserves pages on the ancestors looks whether one of them is above its `high`. If
//! so it reclaims from each that is as many pages as it has reserved, a cluster at least, and goes
//! on while the delay is worth a sleep and reclaim makes progress: at most [`ROUNDS_MAX`] times.
//! The delay that is left is told to whoever charged; only a manager that is built with
//! [`Throttling::Sleep`] sleeps.
//!
//! Source: accounting spec 8.4. Deviation: a round that frees nothing ends the rounds, since each
//! round looks at every page twice; the kernel makes sixteen more.

use std::time::{Duration, Instant};

use super::Core;
use super::pressure::Stalled;
use super::slow::Effort;
use crate::group::{GroupNode, OverHigh, Refilled};
use crate::sync::thread;
use crate::units::{Bytes, GroupId, Pages};

/// Rounds of reclaim for one charge. Chosen: 2,048 pages by the cluster; who needs more is held
/// back by the delay.
const ROUNDS_MAX: u32 = 64;
/// Pages that a delay is told for where no charge is made. Chosen: the kernel's batch.
const BATCH: Bytes = Pages(64).bytes();
/// How often a sleeping thread looks whether it may go on. Chosen: the shortest delay.
const LOOK: Duration = Duration::from_millis(10);

/// What becomes of the delay that a charge above a group's `high` owes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttling {
    /// It is told: [`Charge::throttle_delay`](super::Charge::throttle_delay),
    /// [`Group::throttle`](super::Group::throttle). When and whether to wait is up to the program.
    #[default]
    Report,
    /// The thread that charges sleeps, in faults too, until the group is back below its `high` or
    /// the delay is over, which is 2 s at most.
    Sleep,
}

impl Core {
    /// Reclaims what a group and those above it use beyond their `high`; returns the delay that the
    /// charge still owes.
    #[inline]
    pub(super) fn throttle(&self, group: GroupId, refilled: Refilled) -> Duration {
        if refilled == Refilled::NOTHING || !self.groups.has_high() {
            return Duration::ZERO;
        }
        self.throttle_slow(group, refilled.0)
    }

    #[cold]
    fn throttle_slow(&self, group: GroupId, reserved: Bytes) -> Duration {
        // Gone is only what nothing is charged to.
        let Some(group) = self.groups.get(group) else {
            return Duration::ZERO;
        };
        let delay = self.reclaim_for_charge(&group, reserved, ROUNDS_MAX);
        if self.throttling == Throttling::Report || delay.is_zero() {
            return delay;
        }
        let stalled = Stalled::begin(self, &group);
        sleep_above_high(&group, reserved, delay);
        drop(stalled);
        Duration::ZERO
    }

    /// As [`throttle`](Self::throttle), but makes one round of reclaim and never sleeps: for a
    /// thread that polls futures.
    pub(super) fn throttle_polled(&self, group: &GroupNode, refilled: Refilled) -> Duration {
        if refilled == Refilled::NOTHING || !self.groups.has_high() {
            return Duration::ZERO;
        }
        self.reclaim_for_charge(group, refilled.0, 1)
    }

    /// Reclaims above `high` after a charge that has reserved so much; returns the delay that it
    /// owes.
    fn reclaim_for_charge(&self, group: &GroupNode, reserved: Bytes, rounds: u32) -> Duration {
        let over = group.over_high();
        over.iter().for_each(|over| over.group.record_high());
        self.reclaim_high(group, reserved, &over, rounds)
    }

    /// As for a charge of 64 pages to the group, but nobody sleeps and no event is counted.
    pub(super) fn throttle_group(&self, group: &GroupNode) -> Duration {
        self.reclaim_high(group, BATCH, &group.over_high(), ROUNDS_MAX)
    }

    /// Reclaims from each group that is above its `high`, as was seen in `over`, for `rounds` and
    /// while that helps; returns the delay.
    fn reclaim_high(
        &self,
        group: &GroupNode,
        reserved: Bytes,
        over: &[OverHigh],
        rounds: u32,
    ) -> Duration {
        let mut delay = Duration::ZERO;
        if over.is_empty() {
            return delay;
        }
        let mut effort = Effort::default();
        effort.stall(self, group);
        for _ in 0..rounds {
            let mut has_freed = false;
            for over in group.over_high() {
                let goal = reserved.pages_ceil();
                let goal = goal.max(self.direct_goal(over.limit_high));
                let goal = goal.min(over.over().pages_ceil());
                has_freed |= self.reclaim_directly(&over.group, goal, &mut effort);
            }
            delay = group.throttle_delay(reserved);
            if delay.is_zero() || !has_freed {
                break;
            }
        }
        delay
    }
}

/// Sleeps for `delay`, or until the charge would owe nothing.
fn sleep_above_high(group: &GroupNode, reserved: Bytes, delay: Duration) {
    let begun = Instant::now();
    while let Some(left) = delay.checked_sub(begun.elapsed()) {
        if group.throttle_delay(reserved).is_zero() {
            return;
        }
        thread::sleep(left.min(LOOK));
    }
}
