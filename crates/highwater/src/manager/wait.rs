//! The wait queue of charges: they wait in FIFO order, and the head makes room.
//!
//! A charge that finds no room joins the FIFO wait queue of the full group
//! (`group/charge/wait.rs`): as a future of any runtime, or by parking its thread. The head of the
//! queue acts for all charges behind it (`head.rs`).
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

use super::Shared;
use super::alarm::Alarm;
use super::charge::Charge;
use super::error::ChargeFailed;
use super::events::{EventTimer, MetLimit};
use super::group::Group;
use super::handler::InHandler;
use super::head::{HeadEffort, HeadStep};
use super::pressure::{Stalled, StalledTask};
use crate::group::{ChargeError, GroupNode, NodeCharge, NodeChargeWait, Refilled};
use crate::percpu::PercpuRef;
use crate::reclaim::Actor;
use crate::sync::Parker;
use crate::units::Bytes;

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
/// of: a pass of reclaim that frees at most 128 pages and writes dirty ones back, and where no page
/// can be freed scans at most all pages of the group; a victim selection; a handler of the program.
/// After 17 passes that free nothing, the next comes after 100 ms; after 16 ms while pages are on
/// their way. Above a group's `high`, the poll that is granted also reclaims as much as was
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
            self.search.wait_for_turn();
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
        let charge = match self.parks {
            true => GroupNode::try_charge_refilling,
            false => GroupNode::try_charge_polled,
        };
        let mut outcome = charge(&self.node, bytes);
        if let Err(ChargeError::OverMax {
            group,
            requested,
            max,
            ..
        }) = &outcome
            && requested <= max
            && let Some(target) = core.groups.find(group.key())
        {
            self.refused_at.get_or_insert(core.now());
            let _stalled = Stalled::begin_part(core, &self.node);
            if self.search.reclaims(core, &target, bytes) == Some(true) {
                outcome = charge(&self.node, bytes);
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
