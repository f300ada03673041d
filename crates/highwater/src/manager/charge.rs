//! Memory that is charged to a group: at once, or by force. In line: `wait.rs`.

use std::time::Duration;

use super::slow::{ChargeFailed, Patience};
use super::{ChargeWait, Group, GrowWait, Shared};
use crate::group::{self, GroupPath, Refilled};
use crate::percpu::PercpuRef;
use crate::units::Bytes;

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
    /// Charges memory to the group and all its ancestors; reclaims if a maximum is reached. It may
    /// sleep then: tasks await [`charge_async`](Self::charge_async).
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
        let core = &self.shared().core;
        let (charge, delay) = core.charge(self.node(), bytes, Patience::Charge)?;
        Ok(Charge::new(self.shared().reference(), charge, delay))
    }

    /// Charges memory to the group and all its ancestors, whatever their limits: for memory that is there
    /// already. What is above a maximum is the group's [debt](group::GroupNode::debt): nothing but force
    /// grows the group until it is paid. Nothing is reclaimed for it, nobody is stopped.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::force_charge`](group::GroupNode::force_charge).
    ///
    /// # Panics
    ///
    /// As [`GroupNode::force_charge`](group::GroupNode::force_charge).
    pub fn force_charge(&self, bytes: Bytes) -> Charge {
        let charge = self.node().force_charge(bytes);
        Charge::new(self.shared().reference(), charge, Duration::ZERO)
    }
}

impl Charge {
    pub(super) fn new(
        shared: PercpuRef<Shared>,
        charge: group::Charge,
        throttle_delay: Duration,
    ) -> Self {
        Self {
            shared,
            charge,
            throttle_delay,
        }
    }

    /// The bytes charged.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.charge.bytes()
    }

    /// The group that they are charged to, by its path.
    #[must_use]
    pub fn group(&self) -> GroupPath {
        self.charge.path()
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

    /// As [`grow`](Self::grow), in line: as [`Group::charge_async`] charges.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use highwater::{Bytes, Limits, Manager};
    ///
    /// let hw = Manager::builder().capacity(Bytes::mib(16)).build()?;
    /// let query = hw.root().child("query", Limits::max(Bytes(1000)))?;
    /// let mut work = query.charge(Bytes(600))?;
    /// work.grow_wait(Bytes(400)).wait()?;
    /// let soon = Instant::now() + Duration::from_millis(1);
    /// assert!(work.grow_wait(Bytes(1)).wait_until(soon).is_err());
    /// assert_eq!(work.bytes(), Bytes(1000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn grow_wait(&mut self, bytes: Bytes) -> GrowWait<'_> {
        GrowWait::new(self, bytes)
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

    /// A charge in line for `bytes` of the same group, unless that is gone.
    pub(super) fn waiting(&self, bytes: Bytes) -> Option<ChargeWait> {
        let node = self.shared.core.groups.find(self.charge.key())?;
        Some(ChargeWait::new(self.shared.clone(), node, bytes))
    }

    /// Merges what was charged to the same group.
    pub(super) fn absorb(&mut self, more: Result<Self, ChargeFailed>) -> Result<(), ChargeFailed> {
        let merged = self.merge(more?);
        merged.expect("it was charged to the same group");
        Ok(())
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
