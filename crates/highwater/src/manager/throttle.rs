//! Throttling above a group's `high`: reclaim of the excess, and a delay for the rest.
//!
//! A charge that reserves pages on the ancestors checks whether one of them is above its `high`. If
//! so, it reclaims from each of them as many pages as it has reserved, at least a cluster, and
//! repeats while the remaining delay is worth a sleep and reclaim makes progress: at most
//! [`ROUNDS_MAX`] times. The remaining delay is returned to the caller; only a manager built with
//! [`Throttling::Sleep`] sleeps.
//!
//! Source: accounting spec 8.4. Deviation: a round without progress is the last, since each round
//! scans every page twice; the kernel makes sixteen more.

use std::time::{Duration, Instant};

use super::Core;
use super::events::{EventTimer, Throttled};
use super::pressure::Stalled;
use super::slow::Effort;
use crate::group::{GroupNode, OverHigh};
use crate::reclaim::{Actor, OnItsWay};
use crate::sync::thread;
use crate::units::{Bytes, GroupId, Pages};

/// Rounds of reclaim for one charge. Chosen: 2,048 pages by the cluster; a group that needs more is
/// throttled.
const ROUNDS_MAX: u32 = 64;
/// Charge size for which a delay is computed when no charge is made. Chosen: the kernel's batch.
const BATCH: Bytes = Pages(64).bytes();
/// Polling interval of a throttled thread. Chosen: the shortest delay.
const LOOK: Duration = Duration::from_millis(10);

/// How the throttling delay of a charge above a group's `high` is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttling {
    /// The delay is returned: [`Charge::throttle_delay`](super::Charge::throttle_delay),
    /// [`Group::throttle`](super::Group::throttle). The program decides when and whether to sleep.
    #[default]
    Report,
    /// The charging thread sleeps, in faults too, until the group is back below its `high` or the
    /// delay is over, at most 2 s; a fault that reads ahead at most twice, for its page and for the
    /// others. A poll never sleeps: an awaited charge returns its delay, and an asynchronous read
    /// none.
    Sleep,
}

impl Core {
    /// Reclaims the excess of a group and its ancestors over their `high`, after a charge reserved
    /// `reserved`; returns the delay for the rest. A page on its way is hidden while the thread
    /// sleeps.
    #[cold]
    pub(super) fn throttle_slow(
        &self,
        group: GroupId,
        reserved: Bytes,
        way: Option<&OnItsWay<'_>>,
    ) -> Duration {
        // A group with a charge is never gone.
        let Some(group) = self.groups.get(group) else {
            return Duration::ZERO;
        };
        let how = (ROUNDS_MAX, self.throttling, Actor::Direct);
        let delay = self.reclaim_for_charge(&group, reserved, how);
        if self.throttling == Throttling::Report || delay.is_zero() {
            return delay;
        }
        let stalled = Stalled::begin(self, &group);
        // The page comes for no request before that is over.
        OnItsWay::hiding(way, || sleep_above_high(&group, reserved, delay));
        drop(stalled);
        Duration::ZERO
    }

    /// Reclaims above `high` after a charge that reserved `reserved`, in that many rounds and as
    /// that actor; returns its throttling delay, which the caller sleeps or reports.
    pub(super) fn reclaim_for_charge(
        &self,
        group: &GroupNode,
        reserved: Bytes,
        how: (u32, Throttling, Actor),
    ) -> Duration {
        let over = group.over_high();
        over.iter().for_each(|over| over.group.record_high());
        self.reclaim_high(group, reserved, &over, how)
    }

    /// As for a charge of 64 pages to the group, without sleeping and without counting an event.
    pub(super) fn throttle_group(&self, group: &GroupNode) -> Duration {
        let how = (ROUNDS_MAX, Throttling::Report, Actor::Direct);
        self.reclaim_high(group, BATCH, &group.over_high(), how)
    }

    /// Reclaims from each group in `over`, which were above their `high`, for at most `rounds_max`
    /// rounds with progress; returns the remaining delay.
    fn reclaim_high(
        &self,
        group: &GroupNode,
        reserved: Bytes,
        over: &[OverHigh],
        (rounds_max, throttling, actor): (u32, Throttling, Actor),
    ) -> Duration {
        let mut delay = Duration::ZERO;
        if over.is_empty() {
            return delay;
        }
        let timer = EventTimer::of_throttle(self);
        let mut effort = Effort::of(actor);
        effort.stall(self, group);
        let mut rounds = 0;
        while rounds < rounds_max {
            rounds += 1;
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
        if !delay.is_zero() {
            let throttled = Throttled {
                reserved,
                rounds,
                reclaimed: effort.reclaimed(),
                delay,
                sleeps: throttling == Throttling::Sleep,
                timer,
            };
            self.report_throttle(group, &throttled);
        }
        delay
    }
}

/// Sleeps for `delay`, or until the charge would incur none.
fn sleep_above_high(group: &GroupNode, reserved: Bytes, delay: Duration) {
    let begun = Instant::now();
    while let Some(left) = delay.checked_sub(begun.elapsed()) {
        if group.throttle_delay(reserved).is_zero() {
            return;
        }
        thread::sleep(left.min(LOOK));
    }
}
