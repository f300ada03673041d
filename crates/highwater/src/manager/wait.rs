//! Charges that wait in line for room, and make room while they wait.
//!
//! A charge that finds no room stands in the FIFO line of the group that is full (`group/wait.rs`):
//! as a future of any runtime, or by parking its thread. The first in line acts for all behind it.
//! Each time that it is polled it looks for room, and where there is none it does the first of
//! these that there is to do:
//!
//! | step | bound of one poll |
//! |---|---|
//! | reclaim from the full group | one pass, of at most [`POLL_GOAL`] pages |
//! | ask one group to [give memory back](Group::on_reclaim) | one call of a handler |
//! | tell one victim, unless one is [stopping](super::victims) there | one call of the handler |
//! | wait | |
//!
//! It never sleeps in a poll. After a step that changed something it wakes its own task and is
//! polled again, so that other tasks of the worker run in between; a step that did not leads to the
//! next one.
//!
//! # Why no wake-up is lost
//!
//! The waker lies in the line, and every release at the full group calls it, from before the charge
//! looks at anything: first its own request ([`group::ChargeWait::watching`]), then what a group
//! that was asked or told still uses. So memory that comes back after it looked wakes it, and what
//! came back before is in what it sees. One that becomes the first is called too. What happens
//! without any release, the end of a grace or of the deadline, is rung by an [`Alarm`].
//!
//! # What is left when it is dropped
//!
//! Nothing: it leaves the line, which calls the next in line, and cancels its alarm. A group that
//! it has told to stop stays told; the next in line waits for what that gives back.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::alarm::Alarm;
use super::pressure::{Stalled, StalledTask};
use super::slow::{ARRIVAL_MAX, ATTEMPTS_MAX, ChargeFailed, InHandler};
use super::spill::{Asking, Passed};
use super::victims::{Telling, Told};
use super::{Charge, Core, Group, Shared};
use crate::group::{self, ChargeError, GroupNode, Refilled};
use crate::percpu::PercpuRef;
use crate::reclaim::{Actor, Outcome, PageType, ScanControl};
use crate::sync::Parker;
use crate::units::{Bytes, Pages};

/// How often the first in line looks again for pages to reclaim and for groups to ask: some may
/// have come that were in use. Chosen: a tenth of a second is little beside what it waits for, and
/// a pass of reclaim little beside that.
const LOOK: Duration = Duration::from_millis(100);
/// Pages that are reclaimed in one poll at most. Chosen: a cluster of the background thread, which
/// takes about as long as a task should hold its worker.
const POLL_GOAL: Pages = Pages(128);
/// Polls that find pages in use, on their way in, or in the hands of other reclaimers, before a
/// group is asked or told. Chosen: as for a request that does not wait in line.
const FRUITLESS_MAX: u32 = 16;

impl Group {
    /// Charges memory when there is room, in order of arrival: a future for any runtime, or a
    /// thread that [waits](ChargeWait::wait).
    ///
    /// Where it finds no room it stands in line. The first in line reclaims, then asks groups to
    /// [give memory back](Self::on_reclaim), then has one group stopped at a time
    /// ([`Manager::on_exhausted`](super::Manager::on_exhausted)), the next one only when the first
    /// has given back all that it had, or nothing for a [grace](super::Builder::grace). It tells
    /// four at most, and then waits on.
    pub fn charge_async(&self, bytes: Bytes) -> ChargeWait {
        ChargeWait::new(self.shared().reference(), self.node().clone(), bytes)
    }
}

impl ChargeWait {
    /// Will charge `bytes` to the group, when it is polled.
    pub(super) fn new(shared: PercpuRef<Shared>, node: GroupNode, bytes: Bytes) -> Self {
        Self {
            shared,
            wait: node.charge_wait(bytes).watching(),
            node,
            deadline: None,
            is_refused: false,
            parks: false,
            search: Search::default(),
            stalled: None,
            alarm: None,
        }
    }
}

/// A charge that waits for room: a future that needs no runtime, or [`wait`](Self::wait)ed for.
/// Dropping it gives its place in line up, and leaves nothing behind.
///
/// Once it is woken it must be polled or dropped: it keeps its room from those behind it. The
/// handlers of the program ([`Group::on_reclaim`],
/// [`Manager::on_exhausted`](super::Manager::on_exhausted)) are called by the thread that polls it.
/// What wakes it when nothing is given back says [`Builder::timer`](super::Builder::timer).
///
/// # Cost
///
/// Where there is room, as [`Group::charge`]. Else for each poll the tree's lock for writing, and
/// one of: a pass of reclaim that frees at most 128 pages, writing dirty ones to their file, and
/// looks at every page of the group at most, every 100 ms, where none can be freed; the choice of a
/// victim; a handler of the program.
///
/// # Errors
///
/// When it can never be: more than a maximum on the way, or the group was removed; and
/// [`ChargeError::DeadlinePassed`]. In a handler of the program it does not wait: the refusal.
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
/// assert!(tenant.charge_async(Bytes::mib(3)).wait_until(soon).is_err());
/// # drop(second);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a charge that is not awaited charges nothing"]
pub struct ChargeWait {
    shared: PercpuRef<Shared>,
    node: GroupNode,
    wait: group::ChargeWait,
    deadline: Option<Instant>,
    /// Whether it was refused, and stands in line.
    is_refused: bool,
    /// Whether a thread waits for it, which may sleep.
    parks: bool,
    search: Search,
    /// While it stands in line and no thread waits for it.
    stalled: Option<StalledTask>,
    alarm: Option<Alarm>,
}

/// What a charge has tried so far, and when it tries again.
struct Search {
    attempts: u32,
    fruitless: u32,
    reclaimed: u64,
    last: Outcome,
    told: Told,
    passed: Passed,
    /// When it looks again for pages to reclaim.
    look_at: Duration,
    /// Whether something wakes it when it is to act though nothing is given back.
    is_rung: bool,
    /// Looks that it has put off for pages in transit.
    awaited: u32,
    /// When it acts again though nothing is given back.
    due: Option<Duration>,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            attempts: 0,
            fruitless: 0,
            reclaimed: 0,
            last: Outcome::default(),
            told: Told::in_line(),
            passed: Passed::new(),
            look_at: Duration::ZERO,
            is_rung: false,
            awaited: 0,
            due: None,
        }
    }
}

/// What the first in line has done in a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Something that may have helped: it looks again at once.
    Changed,
    /// Nothing more before then, unless memory is given back.
    Until(Duration),
}

impl Search {
    /// Frees pages of a full group for a charge of `bytes`, if it is time to look; whether that may
    /// have helped.
    fn reclaims(&mut self, core: &Core, target: &GroupNode, bytes: Bytes) -> bool {
        let now = core.now();
        if now < self.look_at {
            return false;
        }
        let helps = self.reclaim(core, target, bytes);
        if !helps {
            self.look_at = now + LOOK;
            self.fruitless = 0;
            self.passed.clear();
        }
        helps
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
        self.last = core.reclaim.shrink(&control);
        let Outcome {
            nr_reclaimed,
            nr_borrowed,
            ..
        } = self.last;
        self.reclaimed += nr_reclaimed;
        if nr_reclaimed > 0 {
            self.fruitless = 0;
            return true;
        }
        self.fruitless += 1;
        let isolated = PageType::ALL.map(|it| core.reclaim.nr_isolated_of(target, it));
        let pages_may_come = nr_borrowed > 0 || isolated.into_iter().sum::<Pages>() > Pages::ZERO;
        pages_may_come && self.fruitless <= FRUITLESS_MAX
    }

    /// When to look again, where pages of a full group are in transit: it has no group asked or
    /// told for them, but for storage that never answers.
    fn awaits_arrival(&mut self, core: &Core, target: &GroupNode) -> Option<Duration> {
        let waits = self.awaited < ATTEMPTS_MAX && core.reclaim.nr_coming_to(target) > 0;
        waits.then(|| {
            self.awaited += 1;
            self.look_at = self.look_at.min(core.now() + ARRIVAL_MAX);
            self.look_at
        })
    }

    /// One step to make room for a charge of `bytes` in a full group. `before` is called before a
    /// handler of the program.
    fn step(
        &mut self,
        core: &Core,
        target: &GroupNode,
        bytes: Bytes,
        mut before: impl FnMut(),
    ) -> Step {
        if self.reclaims(core, target, bytes) {
            return Step::Changed;
        }
        match self.awaits_arrival(core, target) {
            Some(until) if self.is_rung => return Step::Until(until),
            // Nothing would wake it: an arrival gives nothing back.
            Some(_) => return Step::Changed,
            None => {}
        }
        match core.ask_one(target, bytes, &mut self.passed, &mut before) {
            Asking::Again => return Step::Changed,
            Asking::Until(until) => return Step::Until(until.min(self.look_at)),
            Asking::Nothing => {}
        }
        match core.tell_one(target, &mut self.told, &mut before) {
            Telling::Until(until) => Step::Until(until.min(self.look_at)),
            Telling::Nothing => Step::Until(self.look_at),
        }
    }

    fn failed(&self, refusal: ChargeError) -> ChargeFailed {
        ChargeFailed {
            refusal,
            attempts: self.attempts,
            reclaimed: Pages(self.reclaimed),
            borrowed: self.last.nr_borrowed,
            write_failed: self.last.nr_write_failed,
            victims: self.told.victims,
            dying: self.told.dying,
        }
    }
}

impl ChargeWait {
    /// Lets it fail when it has no room by then: when it is polled next, which the
    /// [timer](super::Builder::timer) or the background thread sees to. Tries at least once.
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Parks the thread until the memory is charged, or cannot be.
    ///
    /// # Errors
    ///
    /// As [`ChargeWait`] says.
    pub fn wait(mut self) -> Result<Charge, ChargeFailed> {
        self.parks = true;
        let shared = self.shared.clone();
        let core = &shared.core;
        let parker = Parker::new();
        loop {
            if let Poll::Ready(outcome) = self.advance(&mut parker.context()) {
                return outcome;
            }
            let _stalled = Stalled::begin(core, &self.node);
            if self.search.fruitless > 0 {
                // It waits for pages in the hands of others, and would look again at once.
                let at_most = Duration::from_micros(1 << self.search.fruitless.min(10));
                core.reclaim.wait_for_progress(at_most);
            }
            parker.park(self.acts_at().map(|at| core.begun + at));
        }
    }

    /// As [`wait`](Self::wait), [until the deadline](Self::with_deadline).
    ///
    /// # Errors
    ///
    /// As [`ChargeWait`] says.
    pub fn wait_until(self, deadline: Instant) -> Result<Charge, ChargeFailed> {
        self.with_deadline(deadline).wait()
    }

    /// One look for room, and one step to make some.
    fn advance(&mut self, context: &mut Context<'_>) -> Poll<Result<Charge, ChargeFailed>> {
        self.search.attempts = self.search.attempts.saturating_add(1);
        let is_first_look = !self.is_refused;
        if is_first_look && let Some(outcome) = self.try_at_once() {
            return Poll::Ready(outcome);
        }
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
        // Those of others too, where the program has nothing else that rings them.
        core.alarms.ring(core.now());
        self.search.due = None;
        self.search.is_rung = self.parks || core.alarms.are_rung();
        if !self.wait.is_first() {
            return Poll::Pending;
        }
        if is_first_look && self.search.reclaimed > 0 {
            // This poll has made its pass.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Gone is only what nothing is charged to; its line is told.
        if let Some(target) = self.wait.stands_at().and_then(|full| core.groups.get(full)) {
            let mut stalled = (Stalled::begin(core, &self.node), self.stalled.take());
            // While a handler runs, neither the thread nor the task stalls.
            let before = || stalled = (None, None);
            match self.search.step(core, &target, self.wait.bytes(), before) {
                Step::Changed => context.waker().wake_by_ref(),
                Step::Until(until) => self.search.due = Some(until),
            }
        }
        Poll::Pending
    }

    /// Charges without a place in line, after one pass of reclaim at most; `None` if it is to stand
    /// in line.
    fn try_at_once(&mut self) -> Option<Result<Charge, ChargeFailed>> {
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
            let _stalled = Stalled::begin(core, &self.node);
            if self.search.reclaims(core, &target, bytes) {
                outcome = self.node.try_charge_refilling(bytes);
            }
        }
        match outcome {
            Ok((charge, refilled)) => Some(Ok(self.granted(charge, refilled))),
            Err(refusal) if may_pass(&refusal) && !InHandler::is_running() => {
                self.is_refused = true;
                None
            }
            Err(refusal) => Some(Err(self.search.failed(refusal))),
        }
    }

    fn end(&mut self, outcome: Result<group::Charge, ChargeError>) -> Result<Charge, ChargeFailed> {
        self.stalled = None;
        self.alarm = None;
        match outcome {
            Ok(charge) => {
                let refilled = Refilled(charge.bytes());
                Ok(self.granted(charge, refilled))
            }
            Err(refusal) => Err(self.search.failed(refusal)),
        }
    }

    fn granted(&self, charge: group::Charge, refilled: Refilled) -> Charge {
        let core = &self.shared.core;
        let delay = match self.parks {
            true => core.throttle(self.node.id(), refilled),
            false => core.throttle_polled(&self.node, refilled),
        };
        Charge::new(charge.kept_by(self.shared.clone()), delay)
    }

    /// When it acts again though nothing is given back, by the manager's clock.
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
            // It has come meanwhile. A timer that was ready must not be polled again.
            self.alarm = None;
            context.waker().wake_by_ref();
        }
    }
}

/// Whether waiting may help.
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
        if outcome.is_pending() {
            let begin = || StalledTask::begin(&this.shared, &this.node);
            this.stalled.get_or_insert_with(begin);
            this.set_alarm(context);
        }
        outcome
    }
}

impl fmt::Debug for ChargeWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wait.fmt(f)
    }
}
