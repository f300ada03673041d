//! The head of a wait queue: the steps by which it makes room for all charges in the queue.
//!
//! On each poll the head looks for room, and if there is none it takes the first of these steps
//! that applies:
//!
//! | step | bound of one poll |
//! |---|---|
//! | reclaim from the full group, and if that frees no page, from files that were closed | one pass, of at most [`POLL_GOAL`] pages |
//! | wait for pages in transit, which threads read in or reclaimers have isolated | none |
//! | ask one group to [give memory back](super::Group::on_reclaim) | one call of a handler |
//! | tell one victim, unless one is [stopping](super::victims) there | one call of the handler |
//! | wait | none |
//!
//! A poll never sleeps. After a step that may have changed something the charge wakes its own task
//! and is polled again, so that other tasks of the worker run in between, and room that others made
//! meanwhile is seen; a step that does not apply falls through to the next.

use std::time::Duration;

use super::Core;
use super::error::ChargeFailed;
use super::slow::{ARRIVAL_MAX, ATTEMPTS_MAX};
use super::spill::{Asking, Passed};
use super::victims::{Telling, Told};
use crate::group::{ChargeError, GroupKey, GroupNode};
use crate::reclaim::{Actor, Coming, Outcome, ScanControl};
use crate::units::{Bytes, Pages};

/// Interval at which the head looks again for pages to reclaim and groups to ask, since pages may
/// have been released. Chosen: short beside the wait, and long beside a pass of reclaim.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum number of pages reclaimed in one poll. Chosen: a cluster of the background thread, which
/// takes about as long as a task should block its worker.
const POLL_GOAL: Pages = Pages(128);
/// Polls that find pages pinned before a group is asked or told. Chosen: as for a request outside
/// the wait queue.
const FRUITLESS_MAX: u32 = 16;
/// Longest wait for pages in transit. Derived: as for such a request.
const TRANSIT_MAX: Duration = ARRIVAL_MAX.saturating_mul(ATTEMPTS_MAX);
/// The same where no wake-up is certain, so that the task is polled without a pause. Chosen: long
/// for storage to answer, and short for a worker that does nothing else.
const TRANSIT_MAX_POLLED: Duration = Duration::from_secs(1);

/// State of the attempts, and the time of the next.
pub(super) struct HeadEffort {
    pub(super) attempts: u32,
    pub(super) fruitless: u32,
    pub(super) reclaimed: u64,
    /// Whether logs were asked to flush since the last page was freed.
    has_asked_logs: bool,
    last: Outcome,
    told: Told,
    passed: Passed,
    /// The full group that the last step was about, which the times and counts below are of.
    target: Option<GroupKey>,
    /// Time of the next look for pages to reclaim.
    look_at: Duration,
    /// Whether a wake-up is certain at `due` when no memory is given back.
    pub(super) is_rung: bool,
    /// Whether the last pass had no effect, and no step was taken since.
    is_passed: bool,
    /// The pages in transit that it waits for: of which group, and since when.
    awaited: Option<(GroupKey, Coming, Duration)>,
    /// Such waits that ended with pages put back, since one was freed.
    nr_awaited: u32,
    /// Time of the next step when no memory is given back.
    pub(super) due: Option<Duration>,
}

impl Default for HeadEffort {
    fn default() -> Self {
        Self {
            attempts: 0,
            fruitless: 0,
            reclaimed: 0,
            has_asked_logs: false,
            last: Outcome::default(),
            told: Told::in_line(),
            passed: Passed::default(),
            target: None,
            look_at: Duration::ZERO,
            is_rung: false,
            is_passed: false,
            awaited: None,
            nr_awaited: 0,
            due: None,
        }
    }
}

/// Result of the head's step in a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadStep {
    /// It may have helped: look again at once.
    Changed,
    /// No step before then, unless memory is given back.
    Until(Duration),
}

impl HeadEffort {
    /// Reclaims from a full group for a charge of `bytes`, if it is time to look; then returns
    /// whether that may have helped.
    pub(super) fn reclaims(
        &mut self,
        core: &Core,
        target: &GroupNode,
        bytes: Bytes,
    ) -> Option<bool> {
        self.turn_to(target);
        if std::mem::take(&mut self.is_passed) || core.now() < self.look_at {
            return None;
        }
        if self.reclaim(core, target, bytes) {
            debug_assert!(self.fruitless <= FRUITLESS_MAX, "passes have a bound");
            return Some(true);
        }
        self.fruitless = 0;
        if core.reap_closing() {
            return Some(true);
        }
        // However long the pass took, and whenever the next poll comes.
        self.is_passed = true;
        self.look_at = core.now() + LOOK;
        self.passed.forget();
        Some(false)
    }

    /// Forgets what it knows of the group that was full before, if another one is now.
    fn turn_to(&mut self, target: &GroupNode) {
        if self.target.replace(target.key()) == Some(target.key()) {
            return;
        }
        self.look_at = Duration::ZERO;
        self.is_passed = false;
        self.fruitless = 0;
        self.has_asked_logs = false;
        self.nr_awaited = 0;
    }

    /// Notes that another charge is the head: pages may have come when this one is.
    pub(super) fn wait_for_turn(&mut self) {
        self.is_passed = false;
    }

    fn reclaim(&mut self, core: &Core, target: &GroupNode, bytes: Bytes) -> bool {
        let goal = core.direct_goal(target.limits().max);
        let goal = goal.max(bytes.pages_ceil());
        let control = ScanControl {
            nr_to_reclaim: goal.min(POLL_GOAL),
            target,
            actor: Actor::Polled,
            first_priority: None,
            ignores_protection: false,
        };
        debug_assert!(control.nr_to_reclaim > Pages::ZERO, "a pass has a goal");
        self.last = core.shrink(&control);
        let Outcome {
            nr_reclaimed,
            nr_borrowed,
            nr_wal_blocked,
            ..
        } = self.last;
        self.reclaimed += nr_reclaimed;
        if nr_reclaimed > 0 {
            self.fruitless = 0;
            self.awaited = None;
            self.nr_awaited = 0;
            self.has_asked_logs = false;
            return true;
        }
        if nr_wal_blocked > 0
            && !std::mem::replace(&mut self.has_asked_logs, true)
            && core.cache.ask_logs()
        {
            return true;
        }
        self.fruitless += 1;
        nr_borrowed > 0 && self.fruitless <= FRUITLESS_MAX
    }

    /// Waits while pages of a full group are in transit: then no group is asked or told, unless
    /// storage takes very long to answer, or reclaimers go on without effect.
    fn awaits_transit(&mut self, core: &Core, target: &GroupNode) -> Option<HeadStep> {
        debug_assert_eq!(
            self.target,
            Some(target.key()),
            "what it knows is of another group"
        );
        let (now, transit) = (core.now(), core.reclaim.transit_of(target));
        let begun = self.awaited.filter(|(of, ..)| *of == target.key());
        let Some((_, first, since)) = begun else {
            let begins = transit.lasts(transit) && self.nr_awaited < FRUITLESS_MAX;
            self.awaited = begins.then(|| (target.key(), transit, now));
            return begins.then(|| self.until_arrival(core, now));
        };
        if transit.has_more_arrivals(first) || !first.lasts(transit) {
            // Pages that came, or were put back, may be evicted now.
            self.nr_awaited += u32::from(!transit.has_more_arrivals(first));
            self.awaited = None;
            self.look_at = now;
            return Some(HeadStep::Changed);
        }
        let at_most = match self.is_rung {
            true => TRANSIT_MAX,
            false => TRANSIT_MAX_POLLED,
        };
        let waits = now.saturating_sub(since) < at_most;
        waits.then(|| self.until_arrival(core, now))
    }

    fn until_arrival(&mut self, core: &Core, now: Duration) -> HeadStep {
        // At each look: a driver that queued a read since the last one may be blocked by what this
        // thread holds, and then hands it to no system.
        core.see_to_it();
        self.look_at = self.look_at.min(now + ARRIVAL_MAX);
        match self.is_rung {
            true => HeadStep::Until(self.look_at),
            // No wake-up would come: an arrival gives no memory back.
            false => HeadStep::Changed,
        }
    }

    /// Takes one step to make room for a charge of `bytes` in a full group. Calls `before` before a
    /// handler of the program.
    pub(super) fn step(
        &mut self,
        core: &Core,
        target: &GroupNode,
        bytes: Bytes,
        mut before: impl FnMut(),
    ) -> HeadStep {
        if self.reclaims(core, target, bytes).is_some() {
            // Also without effect: others may have made room during the pass.
            return HeadStep::Changed;
        }
        if let Some(step) = self.awaits_transit(core, target) {
            return step;
        }
        match core.ask_one(target, bytes, &mut self.passed, &mut before) {
            Asking::Again => return HeadStep::Changed,
            Asking::Until(until) => return HeadStep::Until(until.min(self.look_at)),
            Asking::Nothing => {}
        }
        match core.tell_one(target, &mut self.told, &mut before) {
            Telling::Until(until) => HeadStep::Until(until.min(self.look_at)),
            Telling::Nothing => HeadStep::Until(self.look_at),
        }
    }

    /// Notes, for a request that ends, which groups have kept their promises or have stopped.
    pub(super) fn settle(&self, core: &Core) {
        core.settle_kept(&self.passed);
        if self.told.len() > 0 {
            core.look_at_stopping();
        }
    }

    pub(super) fn failed(&self, refusal: ChargeError) -> ChargeFailed {
        ChargeFailed {
            refusal,
            attempts: self.attempts,
            reclaimed: Pages(self.reclaimed),
            borrowed: self.last.nr_borrowed,
            write_failed: self.last.nr_unwritten(),
            victims: self.told.victims,
            dying: self.told.dying,
        }
    }
}
