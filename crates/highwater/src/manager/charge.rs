//! Memory that is charged to a group: at once, by force, or in line.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::pressure::{Stalled, StalledTask};
use super::slow::{ChargeFailed, Patience};
use super::{Group, Handle, Shared};
use crate::group::{self, ChargeError, GroupNode, Refilled};
use crate::percpu::PercpuRef;
use crate::sync::{Arc, block_on};
use crate::units::Bytes;

/// How often a thread that waits in line looks for pages to reclaim: some may have come that were in use.
/// Chosen: a tenth of a second is little beside what it waits for, and a pass of reclaim little beside that.
const LOOK: Duration = Duration::from_millis(100);

/// Bytes charged to a group and its ancestors, until dropped. For memory that the embedder has
/// elsewhere; pages of files are charged by reading them. May be sent to other threads.
///
/// Every amount is exact to the byte: growing and shrinking by the same amount, however often and
/// in whatever steps, leaves the charge as it was.
///
/// # Examples
///
/// ```
/// use highwater::{Bytes, Limits, Manager};
///
/// let hw = Manager::builder().capacity(Bytes::mib(16)).build()?;
/// let query = hw.root().child("query", Limits::max(Bytes(1000)))?;
/// let mut batch = query.charge(Bytes(600))?;
/// batch.grow(Bytes(400))?;
/// assert!(batch.grow(Bytes(1)).is_err());
/// let column = batch.split(Bytes(250));
/// batch.resize(Bytes(500))?;
/// assert_eq!((batch.bytes(), column.bytes()), (Bytes(500), Bytes(250)));
/// batch.merge(column).expect("both are of one group");
/// assert_eq!(query.usage_precise(), Bytes(750));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a charge gives it back"]
pub struct Charge {
    shared: PercpuRef<Shared>,
    charge: group::Charge,
    throttle_delay: Duration,
}

impl Group {
    /// Charges memory to the group and all its ancestors; reclaims if a maximum is reached.
    ///
    /// # Cost
    ///
    /// In the common case a step on each of three lines that only this CPU writes, which is a plain store
    /// in the restartable regime; dropping the charge costs the same.
    ///
    /// # Errors
    ///
    /// When a group would exceed its maximum and reclaim and victims did not make room: which one,
    /// with its numbers. Nothing is charged then.
    pub fn charge(&self, bytes: Bytes) -> Result<Charge, ChargeFailed> {
        charge(self.shared(), self.node(), bytes, Patience::Charge)
    }

    /// Charges memory to the group and all its ancestors, whatever their limits: for memory that is there
    /// already. What is above a maximum is the group's [debt](GroupNode::debt): nothing but force
    /// grows the group until it is paid. Nothing is reclaimed for it, nobody is stopped.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::force_charge`].
    ///
    /// # Panics
    ///
    /// As [`GroupNode::force_charge`].
    pub fn force_charge(&self, bytes: Bytes) -> Charge {
        let charge = self.node().force_charge(bytes);
        Charge {
            shared: self.shared().reference(),
            charge,
            throttle_delay: Duration::ZERO,
        }
    }

    /// Charges memory when there is room, in order of arrival: a future, or [`ChargeWait::wait`]ed for on
    /// this thread. It reclaims when it finds a group full, and has nobody stopped.
    pub fn charge_wait(&self, bytes: Bytes) -> ChargeWait {
        ChargeWait {
            shared: Arc::clone(self.shared()),
            node: self.node().clone(),
            wait: self.node().charge_wait(bytes),
            tried: None,
            stalled: None,
        }
    }
}

fn charge(
    shared: &Handle,
    node: &GroupNode,
    bytes: Bytes,
    patience: Patience,
) -> Result<Charge, ChargeFailed> {
    let (charge, throttle_delay) = shared.core.charge(node, bytes, patience)?;
    Ok(Charge {
        shared: shared.reference(),
        charge,
        throttle_delay,
    })
}

impl Charge {
    /// The bytes charged.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.charge.bytes()
    }

    /// Charges more; reclaims if a maximum is reached.
    ///
    /// # Errors
    ///
    /// As [`Group::charge`]; what was charged before stays.
    pub fn grow(&mut self, bytes: Bytes) -> Result<(), ChargeFailed> {
        let core = &self.shared.core;
        let group = self.charge.group();
        let grow = || self.charge.try_grow_refilling(bytes);
        let refilled = core.charging(group, bytes, Patience::Charge, grow)?;
        self.throttle_delay += core.throttle(group, refilled);
        Ok(())
    }

    /// What this charge owes for taking its group, or one above it, further over its `high` when it was made
    /// and when it grew: who charges should wait that long before it charges again. The
    /// library has waited already, and this is zero, where it was told to: [`Throttling::Sleep`](super::Throttling::Sleep).
    ///
    /// A charge that finds tokens owes nothing; the one that brought them has paid for them.
    #[must_use]
    pub fn throttle_delay(&self) -> Duration {
        self.throttle_delay
    }

    /// Gives part of the charge back.
    ///
    /// # Panics
    ///
    /// When that is more than is charged.
    pub fn shrink(&mut self, bytes: Bytes) {
        self.charge.shrink(bytes);
    }

    /// Makes the charge `bytes`: [grows](Self::grow) or [shrinks](Self::shrink) it.
    ///
    /// # Errors
    ///
    /// As [`grow`](Self::grow).
    pub fn resize(&mut self, bytes: Bytes) -> Result<(), ChargeFailed> {
        let now = self.bytes();
        if bytes > now {
            return self.grow(bytes - now);
        }
        self.shrink(now - bytes);
        Ok(())
    }

    /// Moves part of the charge into one of its own. Charges and uncharges nothing.
    ///
    /// # Panics
    ///
    /// When that is more than is charged.
    pub fn split(&mut self, bytes: Bytes) -> Self {
        Self {
            shared: self.shared.clone(),
            charge: self.charge.split(bytes),
            throttle_delay: Duration::ZERO,
        }
    }

    /// Adds another charge of the same group to this one, with the delay that it owes. Charges and
    /// uncharges nothing.
    ///
    /// # Errors
    ///
    /// Gives `other` back when it is of another group.
    pub fn merge(&mut self, other: Self) -> Result<(), Self> {
        let Self {
            shared,
            charge,
            throttle_delay,
        } = other;
        match self.charge.merge(charge) {
            Ok(()) => {
                self.throttle_delay += throttle_delay;
                Ok(())
            }
            Err(charge) => Err(Self {
                shared,
                charge,
                throttle_delay,
            }),
        }
    }

    /// Moves part of the charge to another group; ancestors of both stay as they are. Reclaims if a maximum
    /// is reached on the way to them.
    ///
    /// # Errors
    ///
    /// As [`Group::charge`]; nothing has moved then.
    ///
    /// # Panics
    ///
    /// When that is more than is charged, or the group is another manager's.
    pub fn transfer(&mut self, to: &Group, bytes: Bytes) -> Result<Self, ChargeFailed> {
        let core = &self.shared.core;
        let transfer = || self.charge.transfer(to.node(), bytes);
        let charge = core.charging(to.id(), bytes, Patience::Charge, transfer)?;
        let throttle_delay = core.throttle(to.id(), Refilled(bytes));
        Ok(Self {
            shared: self.shared.clone(),
            charge,
            throttle_delay,
        })
    }
}

/// A charge that waits for room: a future that needs no runtime, or [`wait`](Self::wait)ed for. Dropping it
/// gives its place in line up.
///
/// A poll that finds the group full reclaims on the thread that polls, once, as [`Group::charge`] does; a thread
/// that waits looks again every 100 ms. Once it is woken it must be polled or dropped: those behind it wait too.
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
///     move || tenant.charge_wait(Bytes::mib(2)).wait()
/// });
/// drop(first);
/// let second = second.join().unwrap()?;
/// let soon = Instant::now() + Duration::from_millis(1);
/// assert!(tenant.charge_wait(Bytes::mib(3)).wait_until(soon).is_err());
/// # drop(second);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a charge that is not awaited charges nothing"]
pub struct ChargeWait {
    shared: Handle,
    node: GroupNode,
    wait: group::ChargeWait,
    /// What came of the attempt before it stood in line.
    tried: Option<ChargeFailed>,
    /// While it stands in line and no thread waits for it.
    stalled: Option<StalledTask>,
}

impl ChargeWait {
    /// Parks the thread until the memory is charged, or cannot be.
    ///
    /// # Errors
    ///
    /// When it can never be: more than a maximum on the way, or the group was removed.
    pub fn wait(self) -> Result<Charge, ChargeFailed> {
        self.wait_for(None)
    }

    /// As [`wait`](Self::wait), until the deadline. Tries at least once.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait), and [`ChargeError::DeadlinePassed`].
    pub fn wait_until(self, deadline: Instant) -> Result<Charge, ChargeFailed> {
        self.wait_for(Some(deadline))
    }

    fn wait_for(mut self, deadline: Option<Instant>) -> Result<Charge, ChargeFailed> {
        if let Some(outcome) = self.try_at_once() {
            return outcome;
        }
        let shared = Arc::clone(&self.shared);
        let _stalled = Stalled::begin(&shared.core, &self.node);
        loop {
            let look = Instant::now() + LOOK;
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            if let Some(outcome) = block_on(&mut self.wait, Some(until)) {
                return self.end(outcome);
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                let Self {
                    wait,
                    tried,
                    shared,
                    node,
                    stalled,
                } = self;
                let last = wait.wait_until(until);
                let rest = node.charge_wait(Bytes::ZERO);
                return Self {
                    shared,
                    node,
                    wait: rest,
                    tried,
                    stalled,
                }
                .end(last);
            }
            if let Some(group) = self.wait.stands_at().filter(|_| self.wait.is_first()) {
                self.shared.core.reclaim_for(group, self.wait.bytes());
            }
        }
    }

    /// As a charge that does not wait, and has nobody stopped; `None` if it is to stand in line.
    fn try_at_once(&mut self) -> Option<Result<Charge, ChargeFailed>> {
        if self.tried.is_some() {
            return None;
        }
        let bytes = self.wait.bytes();
        let outcome = charge(&self.shared, &self.node, bytes, Patience::Line);
        match outcome {
            Err(failed) if may_pass(&failed.refusal) => {
                self.tried = Some(failed);
                None
            }
            outcome => Some(outcome),
        }
    }

    fn end(&mut self, outcome: Result<group::Charge, ChargeError>) -> Result<Charge, ChargeFailed> {
        self.stalled = None;
        match outcome {
            Ok(charge) => {
                let refilled = Refilled(charge.bytes());
                let throttle_delay = self.shared.core.throttle(charge.group(), refilled);
                Ok(Charge {
                    shared: self.shared.reference(),
                    charge,
                    throttle_delay,
                })
            }
            Err(refusal) => {
                let tried = self.tried.expect("who stands in line was refused before");
                Err(ChargeFailed { refusal, ..tried })
            }
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
        if let Some(outcome) = this.try_at_once() {
            return Poll::Ready(outcome);
        }
        match Pin::new(&mut this.wait).poll(context) {
            Poll::Ready(outcome) => Poll::Ready(this.end(outcome)),
            Poll::Pending => {
                let begin = || StalledTask::begin(&this.shared, &this.node);
                this.stalled.get_or_insert_with(begin);
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for ChargeWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wait.fmt(f)
    }
}
