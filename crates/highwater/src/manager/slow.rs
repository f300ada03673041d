//! The slow path: what happens when memory is short.
//!
//! Two things can be short, and each is tried again until it is had or nothing helps any more:
//!
//! | short of | first | then | then | then | at last |
//! |---|---|---|---|---|---|
//! | frames | direct reclaim from the whole pool | drain every per-CPU list | groups that [spill](super::Group::on_reclaim) | victim | [`AllocError::Exhausted`] |
//! | room below a maximum | direct reclaim from the group that is full | | groups below it that spill | victim below it | [`ChargeFailed`] |
//!
//! Where a group is [being stopped](super::victims) already, a request waits for it as for a
//! victim of its own: for as long, once, and it counts as one.
//!
//! Bounds: a step that frees something is followed by another attempt. [`FRUITLESS_MAX`] steps
//! without progress, and one attempt more, lead to a victim, of which there are at most four for
//! one request, and no request makes more than [`ATTEMPTS_MAX`] attempts. Between fruitless steps
//! the thread sleeps for up to a millisecond, or until another thread's reclaim makes progress:
//! what keeps pages from being freed then is a thread that reads them. While pages of the target
//! are in transit, which will be on the lists, their arrival ends the wait (`reclaim/arrival.rs`),
//! and no step is fruitless.
//!
//! No lock is held while it waits, reclaims or calls the embedder's handler, which may call
//! anything. What that asks for itself tells no victim: it would be called by itself, without a
//! bound. Choosing a victim allocates nothing.

use std::cell::Cell;
use std::time::Duration;

use thiserror::Error;

use super::Core;
use super::pressure::Stalled;
use super::spill::{Asking, Passed};
use super::victims::{Telling, Told};
use crate::frame::{self, AllocFlags, Pressure};
use crate::group::{self, ChargeError, GroupNode, MaxError};
use crate::memmap::Frame;
use crate::reclaim::{Actor, Arrival, OnItsWay, Outcome, Reclaim, ScanControl, Want};
use crate::sync::thread;
use crate::units::{Bytes, GroupId, Pages};

/// Steps without progress before somebody is stopped. Chosen: as the kernel's reclaim retries.
const FRUITLESS_MAX: u32 = 16;
/// Attempts for one request, whatever progress they make: others may take what was freed.
pub(super) const ATTEMPTS_MAX: u32 = 4096;
/// How often a request looks whether a group has given what it has promised, or a trim the frames
/// that it withholds. Chosen: as the longest pause between fruitless steps.
const PROMISE_PAUSE: Duration = Duration::from_millis(1);
/// The longest wait for pages in transit before the next attempt. Chosen: as many attempts take a
/// minute, which outlasts what a scheduler does to a thread, and ends what storage never answers.
pub(super) const ARRIVAL_MAX: Duration = Duration::from_millis(16);
/// The same for a thread that others may be waiting for. Chosen: as many attempts take a few
/// seconds.
const ARRIVAL_MAX_NESTED: Duration = Duration::from_millis(1);
/// Pages that direct reclaim frees at once. Chosen: as the kernel's cluster.
const DIRECT_GOAL: Pages = Pages(32);

/// A group refused a charge, and reclaim and victims did not help.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{refusal} (after {attempts} attempts: {reclaimed} reclaimed, {borrowed} in use, {write_failed} not written back, {victims} victims told to stop, {dying} others waited for)"
)]
pub struct ChargeFailed {
    /// Who refused, with its numbers.
    #[source]
    pub refusal: ChargeError,
    /// Attempts made.
    pub attempts: u32,
    /// What reclaim freed meanwhile.
    pub reclaimed: Pages,
    /// Pages that were borrowed or latched when a pass last looked at any: the last passes may have
    /// found them in the hands of other reclaimers.
    pub borrowed: u64,
    /// Pages that the last pass could not write back.
    pub write_failed: u64,
    /// Victims that were told to stop.
    pub victims: usize,
    /// Groups that were being stopped already, and were waited for.
    pub dying: usize,
}

/// No memory for a page.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// A group would have exceeded its maximum.
    #[error(transparent)]
    Charge(#[from] ChargeFailed),
    /// No frame could be freed.
    #[error("{source}; {borrowed} pages were in use and {write_failed} could not be written back")]
    Exhausted {
        /// The state of the pool.
        source: frame::AllocError,
        /// Pages that were borrowed or latched when a pass last looked at any.
        borrowed: u64,
        /// Pages that the last pass could not write back.
        write_failed: u64,
    },
}

/// How long a charge that finds nothing to reclaim waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// A page that is being read in: the I/O to come takes longer than the wait for other threads
    /// to let go of pages.
    Fault,
    /// A charge for memory elsewhere: a refusal is an answer, and is given at once unless pages are
    /// known to come, or to come back.
    Charge,
    /// Pages that nobody has asked for: nobody is stopped for them, and others go first.
    Ahead,
}

impl Patience {
    /// Whether others go first, and nobody is stopped.
    const fn is_modest(self) -> bool {
        matches!(self, Self::Ahead)
    }
}

thread_local! {
    /// Whether a handler runs on this thread.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// A handler of the embedder runs on this thread while this lives.
pub(super) struct InHandler;

impl InHandler {
    /// `None` when one runs on this thread already.
    pub(super) fn enter() -> Option<Self> {
        (!IN_HANDLER.replace(true)).then_some(Self)
    }

    /// Whether one runs on this thread.
    pub(super) fn is_running() -> bool {
        IN_HANDLER.get()
    }
}

impl Drop for InHandler {
    fn drop(&mut self) {
        IN_HANDLER.set(false);
    }
}

/// What one request has tried so far.
#[derive(Default)]
pub(super) struct Effort<'a> {
    /// The thread stalls from the first refusal on, but while the handler runs.
    stalled: Option<Stalled<'a>>,
    attempts: u32,
    fruitless: u32,
    /// Whether the request was tried again after nothing was found to reclaim.
    has_looked_again: bool,
    /// Whether it has waited for a promise or a victim: the attempt after the last such wait is
    /// owed.
    owes_attempt: bool,
    reclaimed: u64,
    told: Told,
    /// Groups that were asked for memory and had none to give.
    passed: Passed,
    last: Outcome,
    /// Pages that the last pass which freed or found any found held.
    nr_held: u64,
    /// Evictions from the target when this request last paused.
    evictions_seen: u64,
    /// Pages that had arrived there before the last attempt.
    arrived_seen: Option<u64>,
    /// What this request itself has in transit.
    way: Option<&'a OnItsWay<'a>>,
}

impl Core {
    /// Charges a group, making room if its maximum or an ancestor's is reached. Returns the delay
    /// that the charge owes too.
    pub(super) fn charge(
        &self,
        group: &GroupNode,
        bytes: Bytes,
        patience: Patience,
    ) -> Result<(group::Charge, Duration), ChargeFailed> {
        let charge = || group.try_charge_refilling(bytes);
        let (charge, refilled) = self.charging(group.id(), bytes, patience, charge)?;
        let delay = self.throttle(charge.group(), refilled);
        Ok((charge, delay))
    }

    /// As [`charge`](Self::charge) for the page of a fault, which is in transit from before it is
    /// charged. What it owes is for the program to ask for: `Group::throttle`.
    pub(super) fn charge_on_its_way(
        &self,
        group: &GroupNode,
    ) -> Result<(group::Charge, OnItsWay<'_>), ChargeFailed> {
        let charge = || {
            let way = self.reclaim.page_on_its_way(group);
            let charged = group.try_charge_refilling(Bytes::PAGE)?;
            way.note_paid();
            Ok((charged, way))
        };
        let ((charge, refilled), way) =
            self.charging(group.id(), Bytes::PAGE, Patience::Fault, charge)?;
        self.throttle(charge.group(), refilled);
        Ok((charge, way))
    }

    /// Repeats a charge of `bytes` to `charged` until it succeeds or nothing helps.
    #[inline]
    pub(super) fn charging<T>(
        &self,
        charged: GroupId,
        bytes: Bytes,
        patience: Patience,
        mut charge: impl FnMut() -> Result<T, ChargeError>,
    ) -> Result<T, ChargeFailed> {
        match charge() {
            Ok(charged) => Ok(charged),
            Err(refusal) => self.charging_again(charged, bytes, patience, refusal, charge),
        }
    }

    /// As [`charging`](Self::charging), after it was refused once.
    #[cold]
    #[inline(never)]
    fn charging_again<T>(
        &self,
        charged: GroupId,
        bytes: Bytes,
        patience: Patience,
        mut refusal: ChargeError,
        mut charge: impl FnMut() -> Result<T, ChargeError>,
    ) -> Result<T, ChargeFailed> {
        let mut effort = Effort::default();
        loop {
            effort.attempts += 1;
            let goes_on = match &refusal {
                ChargeError::OverMax {
                    group,
                    requested,
                    max,
                    ..
                } if requested <= max => {
                    self.stall_for(charged, &mut effort);
                    self.make_room(group.id(), bytes, patience, &mut effort)
                }
                // What is freed there lets those that wait go on, and then this one.
                ChargeError::Behind { group, .. } if !patience.is_modest() => {
                    self.stall_for(charged, &mut effort);
                    self.make_room(group.id(), bytes, patience, &mut effort)
                }
                ChargeError::Contended { .. } => effort.may_retry(),
                _ => false,
            };
            if !goes_on {
                return Err(ChargeFailed {
                    refusal,
                    attempts: effort.attempts,
                    reclaimed: Pages(effort.reclaimed),
                    borrowed: effort.nr_held,
                    write_failed: effort.last.nr_write_failed,
                    victims: effort.told.victims,
                    dying: effort.told.dying,
                });
            }
            match charge() {
                Ok(charged) => return Ok(charged),
                Err(again) => refusal = again,
            }
        }
    }

    fn stall_for<'a>(&'a self, charged: GroupId, effort: &mut Effort<'a>) {
        // Gone is only what nothing is charged to.
        if let Some(charged) = self.groups.get(charged) {
            effort.stall(self, &charged);
        }
    }

    /// Frees pages of a full group and its descendants; false when nothing helps.
    fn make_room(
        &self,
        full: GroupId,
        bytes: Bytes,
        patience: Patience,
        effort: &mut Effort<'_>,
    ) -> bool {
        let Some(target) = self.groups.get(full) else {
            return false;
        };
        let goal = bytes
            .pages_ceil()
            .max(self.direct_goal(target.limits().max));
        if self.reclaim_directly(&target, goal, effort) {
            return effort.may_retry();
        }
        if patience.is_modest() {
            return false;
        }
        effort.waits(self, &target, Want::Room, patience)
            || effort.looks_again()
            || self.ask_or_tell(&target, bytes, effort)
    }

    /// Installs a maximum, and frees pages of the group until it fits, nothing helps, or somebody
    /// has installed another one, which is theirs to see to.
    pub(super) fn set_max(&self, group: &GroupNode, max: Bytes) -> Result<(), MaxError> {
        let mut effort = Effort::default();
        let mut result = group.set_max(max);
        while let Err(MaxError::BelowUsage { over, .. }) = result {
            // Progress: every round frees pages of a group that cannot grow.
            if !self.shrink_by(over.pages_ceil(), group, &mut effort) {
                break;
            }
            result = still_below_usage(group, max);
        }
        result
    }

    /// One round of freeing pages of a group that is to shrink; false when nothing helps.
    pub(super) fn shrink_by(
        &self,
        over: Pages,
        group: &GroupNode,
        effort: &mut Effort<'_>,
    ) -> bool {
        effort.attempts += 1;
        if self.reclaim_directly(group, over, effort) {
            return true;
        }
        effort.waits(self, group, Want::Room, Patience::Charge) || effort.looks_again()
    }

    /// Takes a frame for a page in transit that `payer` pays for, freeing some if there are none.
    pub(super) fn alloc_frame(
        &self,
        payer: &GroupNode,
        way: &OnItsWay<'_>,
    ) -> Result<Frame, AllocError> {
        let mut effort = Effort {
            way: Some(way),
            ..Effort::default()
        };
        loop {
            let exhausted = match self.pool.alloc_noting(AllocFlags::new()) {
                Ok((frame, pressure)) => {
                    if pressure == Pressure::BelowLow {
                        self.wakeup.notify();
                    }
                    return Ok(frame);
                }
                Err(exhausted) => exhausted,
            };
            way.lack_frame();
            effort.attempts += 1;
            effort.stall(self, payer);
            self.wakeup.notify();
            if !self.make_frames(&mut effort) {
                return Err(AllocError::Exhausted {
                    source: exhausted,
                    borrowed: effort.nr_held,
                    write_failed: effort.last.nr_write_failed,
                });
            }
            way.seek_frame();
        }
    }

    /// Takes frames for pages that nobody has asked for, and appends them to `frames`; how many.
    /// One pass of reclaim is made if there are too few, and no more.
    pub(super) fn alloc_frames_ahead(
        &self,
        payer: &GroupNode,
        count: usize,
        frames: &mut Vec<Frame>,
    ) -> usize {
        let mut effort = Effort::default();
        frames.reserve(count);
        let mut got = 0;
        while got < count {
            match self.pool.alloc_noting(AllocFlags::new()) {
                Ok((frame, pressure)) => {
                    if pressure == Pressure::BelowLow {
                        self.wakeup.notify();
                    }
                    frames.push(frame);
                    got += 1;
                }
                Err(_) if effort.attempts == 0 => {
                    effort.attempts = 1;
                    effort.stall(self, payer);
                    self.wakeup.notify();
                    let goal = self.direct_goal(self.pool.managed().bytes());
                    let goal = goal.max(Pages((count - got) as u64));
                    self.reclaim_directly(&self.groups.root(), goal, &mut effort);
                }
                Err(_) => break,
            }
        }
        got
    }

    /// Frees frames from the whole pool; false when nothing helps.
    fn make_frames(&self, effort: &mut Effort<'_>) -> bool {
        let root = self.groups.root();
        let goal = self.direct_goal(self.pool.managed().bytes());
        if self.reclaim_directly(&root, goal, effort) {
            return effort.may_retry();
        }
        if self.pool.drain_all() > Pages::ZERO {
            self.stats.drain_all.add(1);
            return effort.may_retry();
        }
        if self.pool.is_trimming() {
            self.reclaim.wait_for_progress(PROMISE_PAUSE);
            effort.has_looked_again = false;
            return effort.may_retry();
        }
        effort.waits(self, &root, Want::Frame, Patience::Fault)
            || effort.looks_again()
            || self.ask_or_tell(&root, goal.bytes(), effort)
    }

    /// Pages to free at once: a cluster, or less where that would be a large part of what there is.
    pub(super) fn direct_goal(&self, available: Bytes) -> Pages {
        let available = available.pages_ceil().min(self.pool.managed());
        DIRECT_GOAL.min(Pages((available.0 / 256).max(1)))
    }

    /// One pass of direct reclaim; whether it freed anything.
    pub(super) fn reclaim_directly(
        &self,
        target: &GroupNode,
        goal: Pages,
        effort: &mut Effort<'_>,
    ) -> bool {
        let control = ScanControl {
            nr_to_reclaim: goal,
            target,
            actor: Actor::Direct,
            first_priority: None,
            ignores_protection: false,
        };
        effort.last = self.reclaim.shrink(&control);
        let freed = effort.last.nr_reclaimed;
        effort.reclaimed += freed;
        // Pages that are held go from reclaimer to reclaimer: a pass that finds none has found them
        // isolated.
        if freed + effort.last.nr_borrowed > 0 {
            effort.nr_held = effort.last.nr_borrowed;
        }
        if freed > 0 {
            effort.fruitless = 0;
            effort.has_looked_again = false;
        }
        freed > 0
    }

    /// Asks a group below `target` to give memory back for a charge of `bytes`, or has one stopped;
    /// false when neither helps.
    fn ask_or_tell(&self, target: &GroupNode, bytes: Bytes, effort: &mut Effort<'_>) -> bool {
        // What nobody can reach any more goes first.
        if self.reap_closing() {
            return effort.may_retry();
        }
        let Effort {
            stalled,
            told,
            passed,
            way,
            ..
        } = &mut *effort;
        match hiding(*way, || {
            self.ask_one(target, bytes, passed, || *stalled = None)
        }) {
            Asking::Again => return effort.may_retry(),
            Asking::Until(_) => {
                // What was promised comes from another thread, which may need this CPU.
                self.reclaim.wait_for_progress(PROMISE_PAUSE);
                effort.owes_attempt = true;
                return effort.may_retry();
            }
            Asking::Nothing => {}
        }
        let telling = hiding(*way, || self.tell_one(target, told, || *stalled = None));
        if telling == Telling::Nothing {
            return effort.tries_last();
        }
        effort.owes_attempt = true;
        effort.fruitless = 0;
        effort.may_retry()
    }
}

/// Calls what may call a handler of the program.
fn hiding<R>(way: Option<&OnItsWay<'_>>, call: impl FnOnce() -> R) -> R {
    match way {
        Some(way) => way.hide_while(call),
        None => call(),
    }
}

/// As [`GroupNode::set_max`] for a maximum that is installed already; nothing is below another one.
fn still_below_usage(group: &GroupNode, max: Bytes) -> Result<(), MaxError> {
    let usage = group.usage_precise();
    if usage <= max || group.limits().max != max {
        return Ok(());
    }
    Err(MaxError::BelowUsage {
        group: group.path(),
        max,
        usage,
        over: usage - max,
    })
}

impl<'a> Effort<'a> {
    /// Says that the thread stalls from here on for a group that was refused memory.
    pub(super) fn stall(&mut self, core: &'a Core, group: &GroupNode) {
        if self.stalled.is_none() {
            self.stalled = Stalled::begin(core, group);
        }
    }

    fn may_retry(&self) -> bool {
        self.attempts < ATTEMPTS_MAX
    }

    /// Whether to try once more before giving up: while this request looked and found nothing,
    /// others may have freed what they had isolated.
    fn looks_again(&mut self) -> bool {
        !std::mem::replace(&mut self.has_looked_again, true) && self.may_retry()
    }

    /// Whether to try once more when nothing is left to wait for: what was waited for may have come
    /// since the last attempt, and be settled by another request.
    fn tries_last(&mut self) -> bool {
        std::mem::take(&mut self.owes_attempt) && self.may_retry()
    }

    /// Waits for pages of `target` that are in transit to arrive; where there are none, a little
    /// for other threads to let go of pages or to find some, if the last pass found such, a victim
    /// may stop or a fault asks. False when that was done often enough while nothing arrived and
    /// nothing was evicted: where pages come and go, others were quicker.
    fn waits(&mut self, core: &Core, target: &GroupNode, want: Want, patience: Patience) -> bool {
        let (arrival, arrived) =
            core.reclaim
                .wait_for_arrival(target, want, self.arrived_seen, self.arrival_max());
        self.arrived_seen = Some(arrived);
        let evictions = core.reclaim.evictions_of(target);
        if evictions != self.evictions_seen || arrival == Arrival::Came {
            self.evictions_seen = evictions;
            self.fruitless = 0;
        }
        let is_patient = patience == Patience::Fault;
        let is_patient = is_patient || self.last.nr_borrowed > 0 || self.told.len() > 0;
        match arrival {
            Arrival::Late => return self.may_retry(),
            Arrival::Nothing if !is_patient => return false,
            _ => {}
        }
        self.fruitless += 1;
        if self.fruitless > FRUITLESS_MAX {
            return false;
        }
        if self.fruitless <= 2 {
            thread::yield_now();
        } else {
            let at_most = Duration::from_micros(1 << self.fruitless.min(10));
            core.reclaim.wait_for_progress(at_most);
        }
        self.may_retry()
    }

    /// How long to wait for one arrival before the next attempt. A request that has pages in
    /// transit itself, elsewhere, may be waited for by the thread that it waits for.
    fn arrival_max(&self) -> Duration {
        let own = u32::from(self.way.is_some());
        match Reclaim::nr_own_on_their_way() > own {
            true => ARRIVAL_MAX_NESTED,
            false => ARRIVAL_MAX,
        }
    }
}
