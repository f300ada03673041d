//! The slow path: reclaim, drain, victims and errors when memory is short. The first attempt of a
//! charge is made in `charging.rs`, that of a frame in `alloc.rs`.
//!
//! Either frames or room below a maximum can be short. Each is retried until it succeeds or no step
//! helps any more:
//!
//! | short of | first | then | then | then | at last |
//! |---|---|---|---|---|---|
//! | a block of frames, of which enough are free | evict [the pages of one block](super::lumpy) | wait for pages to be released | | | [`OutOfMemory::Exhausted`] |
//! | frames | direct reclaim from the whole pool, asking [logs](crate::WriteGate) | drain every per-CPU list | groups that [spill](super::Group::on_reclaim) | victim | [`OutOfMemory::Exhausted`] |
//! | room below a maximum | direct reclaim from the full group, asking logs | | groups below it that spill | victim below it | [`ChargeFailed`] |
//!
//! If a group is already [being stopped](super::victims), a request waits for it as for a victim of
//! its own: for as long, once, and it counts as one of the request's victims.
//!
//! Bounds: a step that frees memory is followed by another attempt. [`FRUITLESS_MAX`] steps without
//! progress and one more attempt lead to a victim; one request selects at most four victims and
//! makes at most [`ATTEMPTS_MAX`] attempts. Between steps without progress the thread sleeps for up
//! to a millisecond, or until another thread's reclaim makes progress: the pages that resist
//! reclaim are then held by threads that read them. While pages of the target are in transit to the
//! lists, their arrival ends the wait (`reclaim/arrival.rs`), and no step counts as fruitless.
//!
//! No lock is held during waits, reclaim and calls of the embedder's handler, which may call any
//! method. A request that the handler makes selects no victim: it would recurse into the handler
//! without a bound. Victim selection allocates nothing.

use std::time::Duration;

use super::Core;
use super::error::{ChargeFailed, OutOfMemory};
use super::events::{EventTimer, MetLimit};
use super::pressure::Stalled;
use super::spill::{Asking, Passed};
use super::victims::{Telling, Told};
use crate::frame::AllocError;
use crate::group::{ChargeError, GroupNode, GroupPath, MaxError};
use crate::memmap::Frame;
use crate::reclaim::{Actor, Arrival, OnItsWay, Outcome, Reclaim, ScanControl, Want};
use crate::sync::thread;
use crate::units::{Bytes, GroupId, Order, Pages};

/// Steps without progress before a victim is selected. Chosen: as the kernel's reclaim retries.
const FRUITLESS_MAX: u32 = 16;
/// Weight of a fruitless search for a block: an eighth if it wrote pages or other threads had them
/// in hand, and 1 if pages have arrived. Chosen: these have an end, unless others go on for ever.
const BLOCKLESS: u32 = 64;
/// Further attempts of a charge whose bytes another thread carries. Chosen: each takes a quarter of
/// a second.
const CONTENDED_MAX: u32 = 1;
/// Attempts for one request, whatever their progress: other threads may take the freed memory.
pub(super) const ATTEMPTS_MAX: u32 = 4096;
/// Polling interval for memory that a group has promised, or frames in transfer. Chosen: as
/// the longest pause between fruitless steps.
const PROMISE_PAUSE: Duration = Duration::from_millis(1);
/// The longest wait for pages in transit before the next attempt. Chosen: as many attempts take a
/// minute, which outlasts the delays of a scheduler and bounds the wait for storage that never
/// answers.
pub(super) const ARRIVAL_MAX: Duration = Duration::from_millis(16);
/// The same for a thread that other threads may be waiting for. Chosen: as many attempts take a few
/// seconds.
const ARRIVAL_MAX_NESTED: Duration = Duration::from_millis(1);
/// Pages that one pass of direct reclaim frees. Chosen: as the kernel's cluster.
const DIRECT_GOAL: Pages = Pages(32);

/// How long a charge without anything to reclaim waits for other threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// A page fault: its I/O takes longer than other threads take to release pages.
    Fault,
    /// A charge for other memory: it fails at once, unless pages are known to be in transit or
    /// about to be released.
    Charge,
    /// Readahead, or a charge that the program can do without: selects no victim, and yields to
    /// other requests.
    Modest,
    /// As `Modest`, by a thread that polls futures: it does not wait for storage.
    Polled,
}

impl Patience {
    /// Returns whether the request yields to others and selects no victim.
    const fn is_modest(self) -> bool {
        matches!(self, Self::Modest | Self::Polled)
    }
}

/// State of one request's attempts.
#[derive(Default)]
pub(super) struct Effort<'a> {
    /// The stall since the first refusal, suspended while the handler runs.
    stalled: Option<Stalled<'a>>,
    attempts: u32,
    /// Attempts that waited for a promise, which are not among those that have a bound.
    nr_promised: u32,
    fruitless: u32,
    /// Searches for a block of frames that found none, by weight: [`BLOCKLESS`].
    blockless: u32,
    /// Whether the request was retried after reclaim found no pages.
    has_looked_again: bool,
    /// Whether logs were asked to flush since the request last freed a page.
    has_asked_logs: bool,
    /// Set after a wait for a promise or a victim: the request is due one more attempt.
    owes_attempt: bool,
    reclaimed: u64,
    told: Told,
    /// Groups that were asked for memory.
    passed: Passed,
    last: Outcome,
    /// Pinned or latched pages in the last pass that scanned any.
    nr_held: u64,
    /// The target's evictions when this request last paused.
    evictions_seen: u64,
    /// The target's arrivals before the last attempt.
    arrived_seen: Option<u64>,
    /// This request's own pages in transit.
    way: Option<&'a OnItsWay<'a>>,
    actor: Actor,
}

impl Core {
    /// As [`charging`](Self::charging), after the first refusal.
    #[cold]
    #[inline(never)]
    pub(super) fn charging_again<T>(
        &self,
        charged: GroupId,
        bytes: Bytes,
        patience: Patience,
        mut refusal: ChargeError,
        mut charge: impl FnMut() -> Result<T, ChargeError>,
    ) -> Result<T, ChargeFailed> {
        let mut effort = match patience {
            Patience::Polled => Effort::polled(),
            _ => Effort::default(),
        };
        let met = MetLimit {
            charged,
            requested: bytes,
            is_optional: patience.is_modest(),
            timer: EventTimer::of_limit(self),
        };
        let mut nr_contended = 0;
        loop {
            effort.attempts += 1;
            debug_assert!(effort.nr_bounded() <= ATTEMPTS_MAX, "retries have a bound");
            let goes_on = match &refusal {
                ChargeError::OverMax {
                    group,
                    requested,
                    max,
                    ..
                } if requested <= max => {
                    self.stall_for(charged, &mut effort);
                    self.make_room(group, bytes, patience, &mut effort)
                }
                // Room there lets the waiting charges proceed, and then this one.
                ChargeError::Behind { group, .. } if !patience.is_modest() => {
                    self.stall_for(charged, &mut effort);
                    match self.groups.find(group.key()) {
                        Some(line) if line.is_line_served() => effort.pause(self),
                        _ => self.make_room(group, bytes, patience, &mut effort),
                    }
                }
                ChargeError::Contended { .. } => {
                    nr_contended += 1;
                    nr_contended <= CONTENDED_MAX && effort.may_retry()
                }
                _ => false,
            };
            if !goes_on {
                effort.settle(self);
                let failed = effort.failed(refusal);
                self.report_refusal(met, &failed);
                return Err(failed);
            }
            match charge() {
                Ok(charged) => {
                    effort.settle(self);
                    self.report_room(met, &refusal, (effort.attempts, effort.reclaimed));
                    return Ok(charged);
                }
                Err(again) => refusal = again,
            }
        }
    }

    fn stall_for<'a>(&'a self, charged: GroupId, effort: &mut Effort<'a>) {
        // A group with a charge is never gone; without one there is no stall to record.
        if let Some(charged) = self.groups.get(charged) {
            effort.stall(self, &charged);
        }
    }

    /// Frees pages of a full group and its descendants; returns false when no step helps.
    fn make_room(
        &self,
        full: &GroupPath,
        bytes: Bytes,
        patience: Patience,
        effort: &mut Effort<'_>,
    ) -> bool {
        // By its key: a later group of the same number is not full.
        let Some(target) = self.groups.find(full.key()) else {
            return effort.may_retry();
        };
        let goal = bytes
            .pages_ceil()
            .max(self.direct_goal(target.limits().max));
        if self.reclaim_directly(&target, goal, effort) || self.ask_logs(effort) {
            return effort.may_retry();
        }
        if patience.is_modest() {
            return false;
        }
        effort.waits(self, &target, Want::Room, patience)
            || effort.looks_again()
            || self.ask_or_tell(&target, bytes, effort)
    }

    /// Installs a maximum and frees pages of the group until it fits or no step helps. Stops if
    /// another thread installs a different maximum: that thread then reclaims.
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

    /// Frees pages of a shrinking group, one round; returns false when no step helps.
    pub(super) fn shrink_by(
        &self,
        over: Pages,
        group: &GroupNode,
        effort: &mut Effort<'_>,
    ) -> bool {
        effort.attempts += 1;
        if self.reclaim_directly(group, over, effort) || self.ask_logs(effort) {
            return true;
        }
        effort.waits(self, group, Want::Room, Patience::Charge) || effort.looks_again()
    }

    /// As [`alloc_frame`](Self::alloc_frame), after the first attempt failed.
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_frame_again(
        &self,
        payer: &GroupNode,
        order: Order,
        way: &OnItsWay<'_>,
        mut exhausted: AllocError,
    ) -> Result<Frame, OutOfMemory> {
        let mut effort = Effort {
            way: Some(way),
            ..Effort::default()
        };
        loop {
            way.lack_frame();
            effort.attempts += 1;
            debug_assert!(effort.nr_bounded() <= ATTEMPTS_MAX, "retries have a bound");
            effort.stall(self, payer);
            self.wakeup.notify();
            let goes_on = match exhausted {
                AllocError::Fragmented { .. } => self.make_block(order, &mut effort),
                _ => self.make_frames(order, &mut effort),
            };
            if !goes_on {
                effort.settle(self);
                return Err(OutOfMemory::Exhausted {
                    source: exhausted,
                    borrowed: effort.nr_held,
                    write_failed: effort.last.nr_unwritten(),
                });
            }
            way.seek_frame();
            match self.take_frame(order) {
                Ok(frame) => {
                    effort.settle(self);
                    return Ok(frame);
                }
                Err(again) => exhausted = again,
            }
        }
    }

    /// Frees a block of frames; returns false when no step helps.
    fn make_block(&self, order: Order, effort: &mut Effort<'_>) -> bool {
        let searched = self.evict_block(order, effort.actor(), u32::MAX);
        effort.nr_held = searched.outcome.nr_borrowed;
        effort.last = searched.outcome;
        if searched.is_found {
            effort.blockless = 0;
            effort.has_asked_logs = false;
            return effort.may_retry();
        }
        if searched.nr_written > 0 {
            // What is dirty in these blocks still may wait for its log now.
            effort.has_asked_logs = false;
        }
        // Pages wait for their logs, are of closed files, or are in transit; others are released by
        // other threads. Evicting in the order of use would free most of the pool for a block.
        if self.ask_logs(effort) {
            return effort.may_retry();
        }
        effort.blockless += match searched.has_transit.then(|| effort.arrives(self)) {
            Some(Arrival::Late) => return effort.may_retry(),
            // Of pages that arrive anywhere, some may be of a block.
            Some(Arrival::Came) => 1,
            Some(Arrival::Settled) => BLOCKLESS / 8,
            _ if searched.nr_written > 0 => BLOCKLESS / 8,
            _ => BLOCKLESS,
        };
        if effort.blockless > FRUITLESS_MAX * BLOCKLESS {
            return false;
        }
        if !self.reap_closing() {
            self.reclaim.wait_for_progress(PROMISE_PAUSE);
        }
        effort.may_retry()
    }

    /// Frees frames from the whole pool; returns false when no step helps.
    fn make_frames(&self, order: Order, effort: &mut Effort<'_>) -> bool {
        debug_assert!(effort.way.is_some(), "a frame is for a page in transit");
        let root = self.groups.root();
        let goal = self.direct_goal(self.pool.managed().bytes());
        let goal = goal.max(order.pages());
        if self.reclaim_directly(&root, goal, effort) || self.ask_logs(effort) {
            return effort.may_retry();
        }
        if self.pool.drain_all() > Pages::ZERO {
            self.stats.drain_all.add(1);
            return effort.may_retry();
        }
        if self.pool.is_withholding() {
            self.reclaim.wait_for_progress(PROMISE_PAUSE);
            effort.has_looked_again = false;
            return effort.may_retry();
        }
        effort.waits(self, &root, Want::Frame, Patience::Fault)
            || effort.looks_again()
            || self.ask_or_tell(&root, goal.bytes(), effort)
    }

    /// Returns the pages to free in one pass: a cluster, or less if that is a large part of
    /// `available`.
    pub(super) fn direct_goal(&self, available: Bytes) -> Pages {
        let available = available.pages_ceil().min(self.pool.managed());
        DIRECT_GOAL.min(Pages((available.0 / 256).max(1)))
    }

    /// Runs one pass of direct reclaim; returns whether it freed anything.
    pub(super) fn reclaim_directly(
        &self,
        target: &GroupNode,
        goal: Pages,
        effort: &mut Effort<'_>,
    ) -> bool {
        let control = ScanControl {
            nr_to_reclaim: goal,
            target,
            actor: effort.actor(),
            first_priority: None,
            ignores_protection: false,
        };
        debug_assert!(goal > Pages::ZERO, "a pass has a goal");
        effort.last = self.shrink(&control);
        let freed = effort.last.nr_reclaimed;
        effort.reclaimed += freed;
        // Pages that are held move between concurrent reclaimers: a pass that scans none found them
        // isolated.
        if freed + effort.last.nr_borrowed > 0 {
            effort.nr_held = effort.last.nr_borrowed;
        }
        if freed > 0 {
            effort.fruitless = 0;
            effort.has_looked_again = false;
            effort.has_asked_logs = false;
        }
        freed > 0
    }

    /// Asks the logs that held pages up in the last pass to flush, at most once between two pages
    /// that are freed; returns whether a log is durable as far now.
    fn ask_logs(&self, effort: &mut Effort<'_>) -> bool {
        effort.last.nr_wal_blocked > 0
            && !std::mem::replace(&mut effort.has_asked_logs, true)
            && OnItsWay::hiding(effort.way, || self.cache.ask_logs())
    }

    /// Asks a group below `target` to give memory back for a charge of `bytes`, or selects a
    /// victim; returns false when neither helps.
    fn ask_or_tell(&self, target: &GroupNode, bytes: Bytes, effort: &mut Effort<'_>) -> bool {
        // Files that are closed and unreachable go first.
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
        match OnItsWay::hiding(*way, || {
            self.ask_one(target, bytes, passed, || *stalled = None)
        }) {
            Asking::Again => return effort.may_retry(),
            Asking::Until(_) => {
                // Promised memory is released by another thread, which may need this CPU.
                self.reclaim.wait_for_progress(PROMISE_PAUSE);
                effort.owes_attempt = true;
                // The promise has an end of its own.
                effort.nr_promised += 1;
                return effort.may_retry();
            }
            Asking::Nothing => {}
        }
        let telling = OnItsWay::hiding(*way, || self.tell_one(target, told, || *stalled = None));
        if telling == Telling::Nothing {
            return effort.tries_last();
        }
        debug_assert!(
            effort.told.len() > 0,
            "a group that is waited for is recorded"
        );
        effort.owes_attempt = true;
        effort.fruitless = 0;
        effort.may_retry()
    }
}

/// As [`GroupNode::set_max`] for a maximum that is already installed; succeeds if a different one
/// is.
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
    /// Begins a stall for a group that was refused memory, unless this request is in one.
    pub(super) fn stall(&mut self, core: &'a Core, group: &GroupNode) {
        if self.stalled.is_none() {
            self.stalled = Stalled::begin(core, group);
        }
    }

    /// Returns the effort of a thread that polls futures.
    pub(super) fn polled() -> Self {
        Self::of(Actor::Clean)
    }

    pub(super) fn of(actor: Actor) -> Self {
        Self {
            actor,
            ..Self::default()
        }
    }

    fn failed(&self, refusal: ChargeError) -> ChargeFailed {
        ChargeFailed {
            refusal,
            attempts: self.attempts,
            reclaimed: Pages(self.reclaimed),
            borrowed: self.nr_held,
            write_failed: self.last.nr_unwritten(),
            victims: self.told.victims,
            dying: self.told.dying,
        }
    }

    /// Returns the kind of reclaimer.
    pub(super) fn actor(&self) -> Actor {
        self.actor
    }

    /// Returns the pages that all passes have freed.
    pub(super) fn reclaimed(&self) -> Pages {
        Pages(self.reclaimed)
    }

    fn may_retry(&self) -> bool {
        self.nr_bounded() < ATTEMPTS_MAX
    }

    /// Returns the attempts that have a bound.
    fn nr_bounded(&self) -> u32 {
        debug_assert!(
            self.nr_promised <= self.attempts,
            "an attempt waits for one promise at most"
        );
        self.attempts - self.nr_promised
    }

    /// Notes, for a request that ends, which groups have kept their promises or have stopped.
    fn settle(&self, core: &Core) {
        core.settle_kept(&self.passed);
        if self.told.len() > 0 {
            core.look_at_stopping();
        }
    }

    /// Returns whether to retry once more before giving up: while this request scanned and found no
    /// pages, other threads may have freed pages that they had isolated.
    fn looks_again(&mut self) -> bool {
        !std::mem::replace(&mut self.has_looked_again, true) && self.may_retry()
    }

    /// Returns whether to retry once more when nothing is left to wait for: the awaited memory may
    /// have come since the last attempt, with its promise settled by another request.
    fn tries_last(&mut self) -> bool {
        std::mem::take(&mut self.owes_attempt) && self.may_retry()
    }

    /// Waits until pages of `target` in transit arrive. If there are none, waits briefly for other
    /// threads to release or find pages, provided that the last pass found held pages, a victim may
    /// stop, or the request is a fault. Returns false after too many such waits without an arrival
    /// or eviction: with arrivals or evictions, other requests were merely faster.
    fn waits(&mut self, core: &Core, target: &GroupNode, want: Want, patience: Patience) -> bool {
        // Pages in transit may be afloat.
        let _waiting = core.wait_for_others();
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
        self.pause(core)
    }

    /// Waits until pages in transit arrive anywhere.
    fn arrives(&mut self, core: &Core) -> Arrival {
        // They may be afloat.
        let _waiting = core.wait_for_others();
        let (root, want) = (core.groups.root(), Want::Frame);
        let (arrival, arrived) =
            core.reclaim
                .wait_for_arrival(&root, want, self.arrived_seen, self.arrival_max());
        self.arrived_seen = Some(arrived);
        arrival
    }

    /// Waits briefly for other threads; returns false after too many such waits without progress.
    fn pause(&mut self, core: &Core) -> bool {
        self.fruitless += 1;
        debug_assert!(
            self.fruitless <= self.attempts,
            "{} waits in {} attempts",
            self.fruitless,
            self.attempts
        );
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

    /// Returns the longest wait for one arrival before the next attempt. A request that has other
    /// pages in transit may itself be waited for by the thread that it waits for.
    fn arrival_max(&self) -> Duration {
        let own = u32::from(self.way.is_some());
        match Reclaim::nr_own_on_their_way() > own {
            true => ARRIVAL_MAX_NESTED,
            false => ARRIVAL_MAX,
        }
    }
}
