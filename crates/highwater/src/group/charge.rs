//! Bytes that are paid for: a guard that uncharges when it is dropped.

use std::fmt;

use crate::percpu::PercpuView;
use crate::units::{Bytes, CpuId, GroupId};

use super::cell::Cell;
use super::error::ChargeError;
use super::path::GroupPath;
use super::slot::Actor;
use super::throttle::Refilled;
use super::tree::{Core, GroupKey};

/// Bytes charged to a group and to all its ancestors. Dropping it uncharges them.
///
/// A charge may be sent to another thread and may outlive every handle to its group and its tree.
/// It works on after its group is removed, except that it cannot grow.
///
/// A charge that is not kept is uncharged at once, hence:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// use highwater::group::GroupTree;
/// use highwater::units::Bytes;
///
/// let root = GroupTree::new(1).root();
/// root.try_charge(Bytes(1)).unwrap(); // error: unused `Charge` that must be used
/// ```
///
/// # Examples
///
/// ```
/// #![deny(unused_must_use)]
/// use highwater::group::GroupTree;
/// use highwater::units::Bytes;
///
/// let root = GroupTree::new(1).root();
/// let mut charge = root.try_charge(Bytes(5))?;
/// let half = charge.split(Bytes(2));
/// charge.shrink(Bytes(1));
/// assert_eq!((charge.bytes(), half.bytes()), (Bytes(2), Bytes(2)));
/// drop(charge);
/// assert_eq!(root.usage_precise(), Bytes(2));
/// # drop(half);
/// # Ok::<(), highwater::group::ChargeError>(())
/// ```
#[must_use = "dropping a charge uncharges its bytes: keep it for as long as the memory is used"]
pub struct Charge {
    /// The tree, and the word of the CPU that the charge was last used on: where to look first.
    seat: PercpuView<Core, Cell>,
    key: GroupKey,
    bytes: Bytes,
}

impl Charge {
    /// A guard over bytes that are charged already. `seat` is any word of the group.
    #[inline]
    pub(super) fn over(seat: PercpuView<Core, Cell>, key: GroupKey, bytes: Bytes) -> Self {
        Self { seat, key, bytes }
    }

    /// Bytes charged.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// The group that they are charged to.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.key.id
    }

    /// The same, and no later group of its number.
    #[must_use]
    pub fn key(&self) -> GroupKey {
        self.key
    }

    /// The path of the group.
    #[must_use]
    pub fn path(&self) -> GroupPath {
        self.core().path(self.key)
    }

    /// Charges `bytes` more.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::try_charge`](super::GroupNode::try_charge).
    ///
    /// # Errors
    ///
    /// As [`GroupNode::try_charge`](super::GroupNode::try_charge); the charge stays as it is.
    #[inline]
    pub fn try_grow(&mut self, bytes: Bytes) -> Result<(), ChargeError> {
        self.try_grow_refilling(bytes).map(|_throttles_nobody| ())
    }

    /// As [`Charge::try_grow`], acting as `cpu`.
    ///
    /// # Errors
    ///
    /// As [`Charge::try_grow`].
    ///
    /// # Panics
    ///
    /// As [`GroupNode::try_charge_on`](super::GroupNode::try_charge_on).
    pub fn try_grow_on(&mut self, cpu: CpuId, bytes: Bytes) -> Result<(), ChargeError> {
        self.grow_as(self.core().acting_as(cpu), bytes)
            .map(|_throttles_nobody| ())
    }

    #[inline(never)]
    fn grow_as(&mut self, actor: Actor, bytes: Bytes) -> Result<Refilled, ChargeError> {
        let refilled = self.core().charge(self.key, actor, bytes.0)?;
        self.bytes += bytes;
        Ok(refilled)
    }

    /// As [`Charge::try_grow`], and says what it reserved; see
    /// [`GroupNode::try_charge_refilling`](super::GroupNode::try_charge_refilling).
    ///
    /// # Errors
    ///
    /// As [`Charge::try_grow`].
    #[inline]
    pub fn try_grow_refilling(&mut self, bytes: Bytes) -> Result<Refilled, ChargeError> {
        if self.bytes > Bytes::ZERO && self.seat.take_here(bytes.0) {
            // Not checked: both are reserved in one ledger, which holds less than 2^48.
            self.bytes.0 += bytes.0;
            return Ok(Refilled::NOTHING);
        }
        self.turn_here();
        self.grow_as(Actor::Here, bytes)
    }

    /// Charges `bytes` more, whatever the limits: as
    /// [`GroupNode::force_charge`](super::GroupNode::force_charge).
    ///
    /// # Errors
    ///
    /// [`ChargeError::Removed`] when the group is removed; the charge stays as it is.
    ///
    /// # Panics
    ///
    /// As [`GroupNode::force_charge`](super::GroupNode::force_charge).
    pub fn force_grow(&mut self, bytes: Bytes) -> Result<(), ChargeError> {
        self.force_grow_as(Actor::Here, bytes)
    }

    /// As [`Charge::force_grow`], acting as `cpu`.
    ///
    /// # Errors
    ///
    /// As [`Charge::force_grow`].
    ///
    /// # Panics
    ///
    /// As [`Charge::force_grow`] and
    /// [`GroupNode::try_charge_on`](super::GroupNode::try_charge_on).
    pub fn force_grow_on(&mut self, cpu: CpuId, bytes: Bytes) -> Result<(), ChargeError> {
        self.force_grow_as(self.core().acting_as(cpu), bytes)
    }

    fn force_grow_as(&mut self, actor: Actor, bytes: Bytes) -> Result<(), ChargeError> {
        self.core().force(self.key, actor, bytes.0)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Uncharges `bytes` of it.
    ///
    /// # Panics
    ///
    /// When it holds fewer.
    #[inline]
    pub fn shrink(&mut self, bytes: Bytes) {
        self.bytes = self.less(bytes);
        self.give_back(bytes);
    }

    /// As [`Charge::shrink`], acting as `cpu`.
    ///
    /// # Panics
    ///
    /// When it holds fewer bytes, and as
    /// [`GroupNode::try_charge_on`](super::GroupNode::try_charge_on).
    pub fn shrink_on(&mut self, cpu: CpuId, bytes: Bytes) {
        let actor = self.core().acting_as(cpu);
        self.bytes = self.less(bytes);
        self.core().uncharge(self.key.id, actor, bytes.0);
    }

    /// Moves `bytes` of it into a charge of their own. Charges and uncharges nothing.
    ///
    /// # Panics
    ///
    /// When it holds fewer.
    pub fn split(&mut self, bytes: Bytes) -> Self {
        self.bytes = self.less(bytes);
        Self::over(self.seat.clone(), self.key, bytes)
    }

    /// Adds another charge of the same group to this one.
    ///
    /// # Errors
    ///
    /// Gives `other` back when it is of another group.
    pub fn merge(&mut self, other: Self) -> Result<(), Self> {
        if self.key != other.key || !std::ptr::eq(self.core(), other.core()) {
            return Err(other);
        }
        self.bytes += other.disown();
        Ok(())
    }

    /// Takes `bytes` of it that have moved to another group into a guard of their own.
    pub(super) fn moved(
        &mut self,
        bytes: Bytes,
        to: GroupKey,
        seat: PercpuView<Core, Cell>,
    ) -> Self {
        self.bytes = self.less(bytes);
        Self::over(seat, to, bytes)
    }

    /// Gives up the guard and keeps the bytes charged: for whoever remembers them elsewhere, and
    /// uncharges them by [`GroupTree::uncharge`](super::GroupTree::uncharge) or
    /// [`GroupNode::uncharge`](super::GroupNode::uncharge).
    #[must_use = "these bytes stay charged until they are uncharged by hand"]
    pub fn disown(mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }

    /// Uncharges bytes that the guard no longer counts.
    #[inline]
    fn give_back(&mut self, bytes: Bytes) {
        if !self.seat.park_here(bytes.0) {
            self.give_back_slowly(bytes);
        }
    }

    #[inline(never)]
    fn give_back_slowly(&mut self, bytes: Bytes) {
        self.turn_here();
        self.core().uncharge(self.key.id, Actor::Here, bytes.0);
    }

    /// Looks first at the word of this CPU from now on.
    #[inline(never)]
    fn turn_here(&mut self) {
        if self.core().is_restartable() {
            let id = self.key.id;
            self.seat.turn(|core| {
                let slot = core.slot(id);
                slot.cell(slot.index(Actor::Here))
            });
        }
    }

    #[inline]
    fn less(&self, bytes: Bytes) -> Bytes {
        match self.bytes.checked_sub(bytes) {
            Some(rest) => rest,
            None => self.refuse(bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, bytes: Bytes) -> ! {
        panic!("a charge of {} does not hold {bytes}", self.bytes)
    }

    #[inline]
    pub(super) fn core(&self) -> &Core {
        self.seat.whole()
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        if self.bytes > Bytes::ZERO {
            self.give_back(self.bytes);
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("group", &self.key.id)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
