//! Events of limits, reclaim, throttling and victims (`tracing`), with the fields that a log query
//! needs. `docs/events.md` lists every event of the library.
//!
//! **Cost.** Fields are formatted, paths allocated and the clock read only when a subscriber wants
//! the event: `tracing` evaluates fields after that check, and [`EventTimer`] makes the same one.
//! Without a subscriber an event costs one load. No event is on a path that finds room.
//!
//! **Levels instead of rates.** Refusals, passes of reclaim and delays repeat as fast as a program
//! charges, so they are at `debug` and `trace`: a storm of refusals is no storm of lines in a log
//! at `info`. The one warning is a victim: its handler was called, for each group at most once in a
//! grace period.
//!
//! Sizes are in bytes or pages and times in nanoseconds, as integers; the name says which.

use std::time::Duration;

use tracing::Level;

use super::Core;
use super::error::ChargeFailed;
use crate::group::{ChargeError, GroupNode, GroupPath};
use crate::reclaim::{Actor, Outcome, ScanControl};
use crate::units::{Bytes, GroupId, Pages};
use crate::victim::ChosenGroup;

/// Measures a time for an event, if a subscriber wants it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventTimer(Option<Duration>);

impl EventTimer {
    /// Measures nothing.
    pub(super) const NOT_STARTED: Self = Self(None);

    /// Starts for a charge that was refused once.
    pub(super) fn of_limit(core: &Core) -> Self {
        let is_wanted = tracing::enabled!(target: "highwater::limit", Level::DEBUG);
        Self(is_wanted.then(|| core.now()))
    }

    /// Starts for a run of background reclaim.
    pub(super) fn of_background_run(core: &Core) -> Self {
        let is_wanted = tracing::enabled!(target: "highwater::reclaim", Level::DEBUG);
        Self(is_wanted.then(|| core.now()))
    }

    fn of_pass(core: &Core) -> Self {
        let is_wanted = tracing::enabled!(target: "highwater::reclaim", Level::TRACE);
        Self(is_wanted.then(|| core.now()))
    }

    /// Starts for reclaim above `high`.
    pub(super) fn of_throttle(core: &Core) -> Self {
        let is_wanted = tracing::enabled!(target: "highwater::throttle", Level::DEBUG);
        Self(is_wanted.then(|| core.now()))
    }

    /// Returns the nanoseconds since the start; `None` if no subscriber wanted the event then.
    fn ns(self, core: &Core) -> Option<u64> {
        self.0.map(|start| nanos(core.now().saturating_sub(start)))
    }
}

/// Returns whole nanoseconds, at most 584 years.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a limit in bytes; `None` if it is not set.
fn if_set(limit: Bytes) -> Option<u64> {
    (limit < Bytes::MAX).then_some(limit.0)
}

/// The numbers of a refusal.
#[derive(Clone, Copy)]
struct RefusalFields<'a> {
    reason: &'static str,
    limit_group: &'a GroupPath,
    usage: Option<Bytes>,
    max: Option<Bytes>,
    nr_waiting: Option<usize>,
}

impl<'a> RefusalFields<'a> {
    fn of(error: &'a ChargeError) -> Self {
        let (reason, limit_group) = match error {
            ChargeError::OverMax { group, .. } => ("over_max", group),
            ChargeError::Behind { group, .. } => ("behind", group),
            ChargeError::DeadlinePassed { group, .. } => ("deadline_passed", group),
            ChargeError::Removed { group } => ("removed", group),
            ChargeError::Contended { group, .. } => ("contended", group),
        };
        let (usage, max) = match error {
            ChargeError::OverMax { usage, max, .. }
            | ChargeError::DeadlinePassed { usage, max, .. } => (Some(*usage), Some(*max)),
            _ => (None, None),
        };
        let nr_waiting = match error {
            ChargeError::Behind { nr_waiting, .. }
            | ChargeError::DeadlinePassed { nr_waiting, .. } => Some(*nr_waiting),
            _ => None,
        };
        Self {
            reason,
            limit_group,
            usage,
            max,
            nr_waiting,
        }
    }
}

/// A charge that met a limit: its group, size and duration.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetLimit {
    pub(super) charged: GroupId,
    pub(super) requested: Bytes,
    /// Whether the program can do without, as without readahead.
    pub(super) is_optional: bool,
    pub(super) timer: EventTimer,
}

impl Core {
    fn path_of(&self, group: GroupId) -> Option<GroupPath> {
        self.groups.get(group).map(|group| group.path())
    }

    /// Reports a charge that failed for good.
    pub(super) fn report_refusal(&self, met: MetLimit, failed: &ChargeFailed) {
        let refusal = RefusalFields::of(&failed.refusal);
        tracing::debug!(
            target: "highwater::limit",
            group = self.path_of(met.charged).map(display),
            limit_group = %refusal.limit_group,
            reason = refusal.reason,
            requested_bytes = met.requested.0,
            usage_bytes = refusal.usage.map(|usage| usage.0),
            max_bytes = refusal.max.and_then(if_set),
            waiting_charges = refusal.nr_waiting,
            is_optional = met.is_optional,
            attempts = failed.attempts,
            reclaimed_pages = failed.reclaimed.0,
            borrowed_pages = failed.borrowed,
            unwritten_pages = failed.write_failed,
            victims = failed.victims,
            dying = failed.dying,
            duration_ns = met.timer.ns(self),
            "a charge was refused"
        );
    }

    /// Reports a charge that succeeded after attempts that freed `reclaimed` pages; the last
    /// refusal was `last`.
    pub(super) fn report_room(
        &self,
        met: MetLimit,
        last: &ChargeError,
        (attempts, reclaimed): (u32, u64),
    ) {
        let refusal = RefusalFields::of(last);
        tracing::trace!(
            target: "highwater::limit",
            group = self.path_of(met.charged).map(display),
            limit_group = %refusal.limit_group,
            reason = refusal.reason,
            requested_bytes = met.requested.0,
            usage_bytes = refusal.usage.map(|usage| usage.0),
            max_bytes = refusal.max.and_then(if_set),
            attempts,
            reclaimed_pages = reclaimed,
            duration_ns = met.timer.ns(self),
            "room was made for a charge"
        );
    }

    /// Runs a pass of direct reclaim, and reports it.
    pub(super) fn shrink(&self, control: &ScanControl<'_>) -> Outcome {
        let timer = EventTimer::of_pass(self);
        let outcome = self.reclaim.shrink(control);
        tracing::trace!(
            target: "highwater::reclaim",
            group = %control.target.path(),
            usage_bytes = control.target.usage().value.0,
            max_bytes = if_set(control.target.limits().max),
            actor = actor(control.actor),
            goal_pages = control.nr_to_reclaim.0,
            priority = outcome.priority,
            scanned_pages = outcome.nr_scanned,
            reclaimed_pages = outcome.nr_reclaimed,
            borrowed_pages = outcome.nr_borrowed,
            unwritten_pages = outcome.nr_unwritten(),
            duration_ns = timer.ns(self),
            "a pass of direct reclaim"
        );
        outcome
    }

    /// Reports a run of background reclaim, unless it made no pass.
    pub(super) fn report_background_run(&self, run: &BackgroundRun, timer: EventTimer) {
        if run.passes == 0 {
            return;
        }
        tracing::debug!(
            target: "highwater::reclaim",
            passes = run.passes,
            fruitless_passes = run.fruitless,
            priority = run.priority,
            scanned_pages = run.scanned,
            reclaimed_pages = run.reclaimed,
            borrowed_pages = run.borrowed,
            unwritten_pages = run.unwritten,
            free_pages = self.pool.nr_free().0,
            watermark_high_pages = self.pool.watermarks().high.0,
            duration_ns = timer.ns(self),
            "a run of background reclaim"
        );
    }

    /// Reports the delay that a charge of `reserved` bytes owes after reclaim above `high`.
    pub(super) fn report_throttle(&self, group: &GroupNode, throttled: &Throttled) {
        if !tracing::enabled!(target: "highwater::throttle", Level::DEBUG) {
            return;
        }
        // Other threads may have brought it below its `high` meanwhile.
        let over = group.furthest_over_high();
        let over = over.as_ref();
        tracing::debug!(
            target: "highwater::throttle",
            group = %group.path(),
            limit_group = over.map(|over| display(over.group.path())),
            usage_bytes = over.map(|over| over.usage.0),
            high_bytes = over.map(|over| over.limit_high.0),
            over_bytes = over.map(|over| over.over().0),
            reserved_bytes = throttled.reserved.0,
            rounds = throttled.rounds,
            reclaimed_pages = throttled.reclaimed.0,
            delay_ns = nanos(throttled.delay),
            sleeps = throttled.sleeps,
            duration_ns = throttled.timer.ns(self),
            "a charge above high owes a delay"
        );
    }

    /// Reports a victim, the `nth` of a request for room in `target`, before its handler runs.
    pub(super) fn report_victim(
        &self,
        target: &GroupNode,
        victim: &ChosenGroup,
        (nth, selection): (usize, Duration),
    ) {
        let choice = &victim.record;
        let next = choice.runner_up.as_ref();
        tracing::warn!(
            target: "highwater::victim",
            group = %victim.group.path(),
            group_id = victim.group.id().0,
            limit_group = %target.path(),
            limit_bytes = if_set(target.limits().max),
            usage_bytes = choice.estimate.value.0,
            usage_low_bytes = choice.estimate.low.0,
            usage_high_bytes = choice.estimate.high.0,
            exact_bytes = choice.exact.map(|exact| exact.0),
            badness_bytes = choice.badness,
            oom_score_adj = i64::from(choice.oom_score_adj.get()),
            runner_up = next.map(|next| display(&next.id)),
            runner_up_badness_bytes = next.map(|next| next.badness),
            gap_bytes = choice.gap.0,
            candidates = choice.census.scanned,
            exact_reads = choice.census.reads,
            nth_of_request = nth,
            duration_ns = nanos(selection),
            decision = %choice,
            "memory is exhausted"
        );
    }

    /// Reports a request for room in `target` that waits for a group that is being stopped.
    pub(super) fn report_dying(&self, target: &GroupNode, dying: &GroupNode, grace: Duration) {
        tracing::debug!(
            target: "highwater::victim",
            group = %dying.path(),
            group_id = dying.id().0,
            limit_group = %target.path(),
            usage_bytes = dying.usage().value.0,
            grace_ns = nanos(grace),
            "memory is exhausted, and a group is being stopped"
        );
    }
}

/// Reclaim above `high` for one charge, and the delay that it still owes.
#[derive(Debug)]
pub(super) struct Throttled {
    pub(super) reserved: Bytes,
    pub(super) rounds: u32,
    pub(super) reclaimed: Pages,
    pub(super) delay: Duration,
    /// Whether the charging thread sleeps.
    pub(super) sleeps: bool,
    pub(super) timer: EventTimer,
}

/// The passes of one run of background reclaim.
#[derive(Debug, Default)]
pub(super) struct BackgroundRun {
    passes: u64,
    fruitless: u64,
    /// The lowest scan priority.
    priority: u32,
    scanned: u64,
    reclaimed: u64,
    borrowed: u64,
    unwritten: u64,
}

impl BackgroundRun {
    /// Adds a pass.
    pub(super) fn add(&mut self, pass: &Outcome) {
        self.priority = match self.passes {
            0 => pass.priority,
            _ => self.priority.min(pass.priority),
        };
        self.passes += 1;
        self.fruitless += u64::from(pass.nr_reclaimed == 0);
        self.scanned += pass.nr_scanned;
        self.reclaimed += pass.nr_reclaimed;
        self.borrowed += pass.nr_borrowed;
        self.unwritten += pass.nr_unwritten();
        debug_assert!(
            self.fruitless <= self.passes,
            "more fruitless passes than passes"
        );
    }
}

fn actor(actor: Actor) -> &'static str {
    match actor {
        Actor::Background => "background",
        Actor::Direct => "direct",
        Actor::Polled => "polled",
        Actor::Clean => "clean",
        Actor::Requested => "requested",
    }
}
