//! The wait queue of charges: they wait in FIFO order, and the head makes room.
//!
//! A charge that finds no room joins the FIFO wait queue of the full group
//! (`group/charge/wait.rs`): as a future of any runtime, or by parking its thread. The head of the
//! queue acts for all charges behind it. On each poll it looks for room, and if there is none it
//! takes the first of these steps that applies:
//!
//! | step | bound of one poll |
//! |---|---|
//! | reclaim from the full group | one pass, of at most [`POLL_GOAL`] pages |
//! | wait for pages in transit: that threads read in, or reclaimers have isolated | |
//! | evict pages that stayed when their files were closed | one attempt for each file |
//! | ask one group to [give memory back](Group::on_reclaim) | one call of a handler |
//! | tell one victim, unless one is [stopping](super::victims) there | one call of the handler |
//! | wait | |
//!
//! A poll never sleeps. After a step that changed something the charge wakes its own task and is
//! polled again, so that other tasks of the worker run in between; a step without effect falls
//! through to the next.
//!
//! # Why no wake-up is lost
//!
//! The waker is in the queue, and every release at the full group calls it, from before the charge
//! looks at anything: first at its own request ([`NodeChargeWait::watching`]), then at the usage of
//! a group that was asked or told. So memory released after the look wakes it, and memory
//! released before is visible to the look. A charge that becomes the head is woken too. An
//! [`Alarm`] covers events without a release: the end of a grace period or of the deadline.
//!
//! # Cancellation
//!
//! Dropping the charge leaves the queue, which wakes the next head, and cancels the alarm. A group
//! that it told to stop stays told; the next head waits for that memory.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::alarm::Alarm;
use super::charge::Charge;
use super::error::ChargeFailed;
use super::events::{EventTimer, MetLimit};
use super::group::Group;
use super::handler::InHandler;
use super::pressure::{Stalled, StalledTask};
use super::slow::{ARRIVAL_MAX, ATTEMPTS_MAX};
use super::spill::{Asking, Passed};
use super::victims::{Telling, Told};
use super::{Core, Shared};
use crate::group::{ChargeError, GroupNode, NodeCharge, NodeChargeWait, Refilled};
use crate::percpu::PercpuRef;
use crate::reclaim::{Actor, Coming, Outcome, ScanControl};
use crate::sync::Parker;
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

impl Group {
    /// Charges memory when there is room, in FIFO order: a future for any runtime, or blocking by
    /// [`wait`](ChargeWait::wait).
    ///
    /// Without room it joins the wait queue. The head of the queue reclaims, then asks groups to
    /// [give memory back](Self::on_reclaim), then selects one victim at a time
    /// ([`on_exhausted`](Self::on_exhausted)): the next one only when the last has given back all
    /// its memory, or nothing for a [grace period](super::Builder::grace). It selects at most four,
    /// and then keeps waiting.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes(1000)))?;
    /// let first = tenant.charge(Bytes(800))?;
    /// let second = tenant.charge_async(Bytes(800)); // in a task: `.await`
    /// drop(first);
    /// assert_eq!(second.wait()?.bytes(), Bytes(800));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge_async(&self, bytes: Bytes) -> ChargeWait {
        ChargeWait::new(self.shared().reference(), self.node().clone(), bytes)
    }
}

impl ChargeWait {
    /// Creates a charge of `bytes` to the group that starts when it is polled.
    pub(super) fn new(shared: PercpuRef<Shared>, node: GroupNode, bytes: Bytes) -> Self {
        Self {
            shared,
            wait: node.charge_wait(bytes).watching(),
            node,
            deadline: None,
            is_refused: false,
            parks: false,
            search: HeadEffort::default(),
            timer: EventTimer::NOT_STARTED,
            refused_at: None,
            stalled: None,
            alarm: None,
        }
    }
}

/// A charge that waits for room: a future that needs no runtime, or blocking by
/// [`wait`](Self::wait). Dropping it leaves the wait queue without further effect.
///
/// Once it is woken it must be polled or dropped: it blocks the charges behind it. The program's
/// handlers ([`Group::on_reclaim`], [`Group::on_exhausted`]) run on the thread that polls it. See
/// [`Builder::timer`](super::Builder::timer) for wake-ups when no memory is given back.
///
/// # Cost
///
/// With room, as [`Group::charge`]. Otherwise, for each poll, the tree's lock for writing and one
/// of: a pass of reclaim that frees at most 128 pages and writes dirty ones back; every 100 ms, if
/// no page can be freed, it scans at most all pages of the group; a victim selection; a handler of
/// the program. Above a group's `high`, the poll that is granted also reclaims as much as was
/// charged.
///
/// # Errors
///
/// When it can never succeed: it exceeds a maximum on its path, or the group was removed; and
/// [`ChargeError::DeadlinePassed`]. Inside a handler of the program it does not wait and returns
/// the refusal.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use highwater::{Bytes, Limits, Manager};
///
/// let hw = Manager::builder().capacity(Bytes::mib(16)).build()?;
/// let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(4)))?;
/// let first = tenant.charge(Bytes::mib(3))?;
/// let second = std::thread::spawn({
///     let tenant = tenant.clone();
///     move || tenant.charge_async(Bytes::mib(2)).wait()
/// });
/// drop(first);
/// let second = second.join().unwrap()?;
/// let soon = Instant::now() + Duration::from_millis(1);
/// assert!(tenant.charge_async(Bytes::mib(3)).with_deadline(soon).wait().is_err());
/// # drop(second);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a charge that is not awaited charges nothing"]
pub struct ChargeWait {
    shared: PercpuRef<Shared>,
    node: GroupNode,
    wait: NodeChargeWait,
    deadline: Option<Instant>,
    /// Whether it was refused and is in the wait queue.
    is_refused: bool,
    /// Whether a thread blocks on it, which may sleep.
    parks: bool,
    search: HeadEffort,
    /// Started when it was first refused.
    timer: EventTimer,
    /// When it was refused first, until it ends; later by the time of handlers of the program.
    refused_at: Option<Duration>,
    /// The task's stall, while it is queued and no thread blocks on it.
    stalled: Option<StalledTask>,
    alarm: Option<Alarm>,
}

/// State of the attempts, and the time of the next.
struct HeadEffort {
    attempts: u32,
    fruitless: u32,
    reclaimed: u64,
    /// Whether logs were asked to flush since the last page was freed.
    has_asked_logs: bool,
    last: Outcome,
    told: Told,
    passed: Passed,
    /// Time of the next look for pages to reclaim.
    look_at: Duration,
    /// Whether a wake-up is certain at `due` when no memory is given back.
    is_rung: bool,
    /// The pages in transit that it waits for, and since when.
    awaited: Option<(Coming, Duration)>,
    /// Such waits that have ended since a page was freed.
    nr_awaited: u32,
    /// Time of the next step when no memory is given back.
    due: Option<Duration>,
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
            look_at: Duration::ZERO,
            is_rung: false,
            awaited: None,
            nr_awaited: 0,
            due: None,
        }
    }
}

/// Result of the head's step in a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadStep {
    /// It may have helped: look again at once.
    Changed,
    /// No step before then, unless memory is given back.
    Until(Duration),
}

impl HeadEffort {
    /// Reclaims from a full group for a charge of `bytes`, if it is time to look; then returns
    /// whether that may have helped.
    fn reclaims(&mut self, core: &Core, target: &GroupNode, bytes: Bytes) -> Option<bool> {
        let now = core.now();
        if now < self.look_at {
            return None;
        }
        let helps = self.reclaim(core, target, bytes);
        if !helps {
            self.look_at = now + LOOK;
            self.fruitless = 0;
            self.passed.forget();
        }
        debug_assert!(self.fruitless <= FRUITLESS_MAX, "passes have a bound");
        Some(helps)
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
        let (now, transit) = (core.now(), core.reclaim.transit_of(target));
        let is_any = transit.lasts(transit) && self.nr_awaited < FRUITLESS_MAX;
        let begun = self.awaited.or_else(|| is_any.then_some((transit, now)));
        self.awaited = begun;
        let (first, since) = begun?;
        if !first.lasts(transit) {
            // Pages that came, or were put back, may be evicted now.
            self.awaited = None;
            self.nr_awaited += 1;
            self.look_at = now;
            return Some(HeadStep::Changed);
        }
        self.look_at = self.look_at.min(now + ARRIVAL_MAX);
        let (at_most, step) = match self.is_rung {
            true => (TRANSIT_MAX, HeadStep::Until(self.look_at)),
            // No wake-up would come: an arrival gives no memory back.
            false => (TRANSIT_MAX_POLLED, HeadStep::Changed),
        };
        (now.saturating_sub(since) < at_most).then_some(step)
    }

    /// Takes one step to make room for a charge of `bytes` in a full group. Calls `before` before a
    /// handler of the program.
    fn step(
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
        if core.reap_closing() {
            return HeadStep::Changed;
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
    fn settle(&self, core: &Core) {
        core.settle_kept(&self.passed);
        if self.told.len() > 0 {
            core.look_at_stopping();
        }
    }

    fn failed(&self, refusal: ChargeError) -> ChargeFailed {
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

impl ChargeWait {
    /// Sets a deadline: without room by then, the charge fails at its next poll, which the
    /// [timer](super::Builder::timer) or the background thread triggers. It tries at least once.
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Blocks the thread until the memory is charged or cannot be.
    ///
    /// # Errors
    ///
    /// As for [`ChargeWait`].
    pub fn wait(mut self) -> Result<Charge, ChargeFailed> {
        self.parks = true;
        let shared = self.shared.clone();
        let core = &shared.core;
        let parker = Parker::new();
        loop {
            if let Poll::Ready(outcome) = self.advance(&mut parker.context()) {
                return outcome;
            }
            let _stalled = Stalled::begin_part(core, &self.node);
            if self.search.fruitless > 0 {
                // It waits for pages that other threads hold, and would look again at once.
                let at_most = Duration::from_micros(1 << self.search.fruitless.min(10));
                core.reclaim.wait_for_progress(at_most);
            }
            parker.park(self.acts_at().map(|at| core.begun + at));
        }
    }

    /// As [`wait`](Self::wait), [with a deadline](Self::with_deadline).
    ///
    /// # Errors
    ///
    /// As [`ChargeWait`] says.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn wait_until(self, deadline: Instant) -> Result<Charge, ChargeFailed> {
        self.with_deadline(deadline).wait()
    }

    /// Looks for room once, and takes one step to make some.
    fn advance(&mut self, context: &mut Context<'_>) -> Poll<Result<Charge, ChargeFailed>> {
        self.search.attempts = self.search.attempts.saturating_add(1);
        let is_first_look = !self.is_refused;
        if is_first_look && let Some(outcome) = self.try_at_once() {
            return Poll::Ready(outcome);
        }
        debug_assert!(self.is_refused, "a charge is refused before it queues");
        if let Poll::Ready(outcome) = Pin::new(&mut self.wait).poll(context) {
            return Poll::Ready(self.end(outcome));
        }
        if self
            .deadline
            .is_some_and(|deadline| deadline <= Instant::now())
        {
            let refusal = self.wait.give_up();
            return Poll::Ready(self.end(Err(refusal)));
        }
        let core = &self.shared.core;
        // Also rings other charges' alarms, which may have no timer or thread.
        core.alarms.ring(core.now());
        self.search.due = None;
        self.search.is_rung = self.parks || core.alarms.are_rung();
        if !self.wait.is_first() {
            return Poll::Pending;
        }
        if is_first_look && self.search.reclaimed > 0 {
            // This poll has already made its pass.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // A group with a charge is never gone; the queue of a removed group was woken.
        if let Some(target) = self.wait.stands_at().and_then(|full| core.groups.get(full)) {
            let mut stalled = (Stalled::begin_part(core, &self.node), self.stalled.take());
            // The handler's time is a stall neither of the thread nor of the task.
            let mut called_at = None;
            let before = || {
                stalled = (None, None);
                called_at = called_at.or_else(|| Some(core.now()));
            };
            match self.search.step(core, &target, self.wait.bytes(), before) {
                HeadStep::Changed => context.waker().wake_by_ref(),
                HeadStep::Until(until) => self.search.due = Some(until),
            }
            if let (Some(refused_at), Some(called_at)) = (&mut self.refused_at, called_at) {
                *refused_at += core.now().saturating_sub(called_at);
            }
        }
        Poll::Pending
    }

    /// Charges without queueing, after at most one pass of reclaim; returns `None` if it has to
    /// queue.
    fn try_at_once(&mut self) -> Option<Result<Charge, ChargeFailed>> {
        debug_assert!(!self.is_refused, "a refused charge waits its turn");
        let (core, bytes) = (&self.shared.core, self.wait.bytes());
        let mut outcome = self.node.try_charge_refilling(bytes);
        if let Err(ChargeError::OverMax {
            group,
            requested,
            max,
            ..
        }) = &outcome
            && requested <= max
            && let Some(target) = core.groups.get(group.id())
        {
            self.refused_at.get_or_insert(core.now());
            let _stalled = Stalled::begin_part(core, &self.node);
            if self.search.reclaims(core, &target, bytes) == Some(true) {
                outcome = self.node.try_charge_refilling(bytes);
            }
        }
        match outcome {
            Ok((charge, refilled)) => Some(Ok(self.granted(charge, refilled))),
            Err(refusal) if may_pass(&refusal) && !InHandler::is_running() => {
                self.is_refused = true;
                self.refused_at.get_or_insert(core.now());
                self.timer = EventTimer::of_limit(core);
                None
            }
            Err(refusal) => Some(Err(self.failed(refusal))),
        }
    }

    fn end(&mut self, outcome: Result<NodeCharge, ChargeError>) -> Result<Charge, ChargeFailed> {
        self.stalled = None;
        self.alarm = None;
        match outcome {
            Ok(charge) => {
                let refilled = Refilled(charge.bytes());
                Ok(self.granted(charge, refilled))
            }
            Err(refusal) => Err(self.failed(refusal)),
        }
    }

    fn failed(&self, refusal: ChargeError) -> ChargeFailed {
        let failed = self.search.failed(refusal);
        let met = MetLimit {
            charged: self.node.id(),
            requested: self.wait.bytes(),
            is_optional: false,
            timer: self.timer,
        };
        self.shared.core.report_refusal(met, &failed);
        failed
    }

    fn granted(&mut self, charge: NodeCharge, refilled: Refilled) -> Charge {
        // Throttling is a stall of its own.
        self.note_end();
        debug_assert_eq!(
            charge.bytes(),
            self.wait.bytes(),
            "all or nothing is charged"
        );
        let core = &self.shared.core;
        let delay = match self.parks {
            true => core.throttle(self.node.id(), refilled),
            false => core.throttle_polled(&self.node, refilled, Actor::Polled),
        };
        Charge::new(charge.kept_by(self.shared.clone()), delay)
    }

    /// Records how long the request has stalled and what it has asked for, once.
    fn note_end(&mut self) {
        let core = &self.shared.core;
        if let Some(refused_at) = self.refused_at.take() {
            let lasted = core.now().saturating_sub(refused_at);
            core.stats.stall_lasted(lasted);
            self.search.settle(core);
        }
    }

    /// Returns the time of the next step when no memory is given back, on the manager's clock.
    fn acts_at(&self) -> Option<Duration> {
        let core = &self.shared.core;
        let deadline = self
            .deadline
            .map(|it| it.saturating_duration_since(core.begun));
        [self.search.due, deadline].into_iter().flatten().min()
    }

    /// Sets the alarm for [`acts_at`](Self::acts_at).
    fn set_alarm(&mut self, context: &mut Context<'_>) {
        let core = &self.shared.core;
        let acts_at = self.acts_at();
        if self.alarm.as_ref().map(Alarm::at) != acts_at {
            self.alarm = acts_at.map(|at| Alarm::new(&core.alarms, core.begun, at));
        }
        if let Some(alarm) = &mut self.alarm
            && alarm.poll(core.now(), context).is_ready()
        {
            // It became due meanwhile. A timer that was ready must not be polled again.
            self.alarm = None;
            context.waker().wake_by_ref();
        }
    }
}

/// Returns whether waiting may help.
fn may_pass(refusal: &ChargeError) -> bool {
    match refusal {
        ChargeError::OverMax { requested, max, .. } => requested <= max,
        ChargeError::Behind { .. } | ChargeError::Contended { .. } => true,
        _ => false,
    }
}

impl Future for ChargeWait {
    type Output = Result<Charge, ChargeFailed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let outcome = this.advance(context);
        if outcome.is_ready() {
            this.note_end();
        } else {
            let begin = || StalledTask::begin(&this.shared, &this.node);
            this.stalled.get_or_insert_with(begin);
            this.set_alarm(context);
        }
        debug_assert!(
            outcome.is_pending() || this.stalled.is_none() && this.alarm.is_none(),
            "a charge that has ended waits for nothing"
        );
        outcome
    }
}

impl Drop for ChargeWait {
    fn drop(&mut self) {
        self.note_end();
    }
}

impl fmt::Debug for ChargeWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wait.fmt(f)
    }
}
