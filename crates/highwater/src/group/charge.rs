//! [`Charge`]: an RAII guard of charged bytes, uncharged when it is dropped.

use std::fmt;

use crate::percpu::PercpuRef;
use crate::units::{Bytes, CpuId, GroupId};

use super::error::ChargeError;
use super::held::{Held, Keeper};
use super::path::GroupPath;
use super::slot::Actor;
use super::throttle::Refilled;
use super::tree::{Core, GroupKey};

/// Bytes charged to a group and to all its ancestors. Dropping it uncharges them.
///
/// A charge may be sent to another thread and may outlive every handle to its group and its tree.
/// It stays usable after its group is removed, except that it cannot grow.
///
/// A charge that is not kept is uncharged at once, so it is `must_use`:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// use highwater::group::GroupTree;
/// use highwater::units::Bytes;
///
/// let root = GroupTree::new(1).root();
/// root.try_charge(Bytes(1)).unwrap(); // error: unused `Charge` that must be used
/// ```
#[must_use = "dropping a charge uncharges its bytes: keep it for as long as the memory is used"]
pub struct Charge {
    held: Held<Core>,
}

impl Charge {
    #[inline]
    pub(super) fn of(held: Held<Core>) -> Self {
        Self { held }
    }

    /// Returns the bytes charged.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.held.bytes()
    }

    /// Returns the id of the group that they are charged to.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.held.key().id
    }

    /// Returns the key of the group, which no later group of the same id has.
    #[must_use]
    pub fn key(&self) -> GroupKey {
        self.held.key()
    }

    /// Returns the path of the group.
    #[must_use]
    pub fn path(&self) -> GroupPath {
        self.held.path()
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

    /// Like [`Charge::try_grow`], acting as `cpu`.
    ///
    /// # Errors
    ///
    /// As [`Charge::try_grow`].
    ///
    /// # Panics
    ///
    /// As [`GroupNode::try_charge_on`](super::GroupNode::try_charge_on).
    pub fn try_grow_on(&mut self, cpu: CpuId, bytes: Bytes) -> Result<(), ChargeError> {
        self.held
            .grow_as(self.core().acting_as(cpu), bytes)
            .map(|_throttles_nobody| ())
    }

    /// Like [`Charge::try_grow`], and returns what it reserved; see
    /// [`GroupNode::try_charge_refilling`](super::GroupNode::try_charge_refilling).
    ///
    /// # Errors
    ///
    /// As [`Charge::try_grow`].
    #[inline]
    pub fn try_grow_refilling(&mut self, bytes: Bytes) -> Result<Refilled, ChargeError> {
        self.held.grow(bytes)
    }

    /// Charges `bytes` more regardless of the limits, as
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
        self.held.force_grow_as(Actor::Here, bytes)
    }

    /// Like [`Charge::force_grow`], acting as `cpu`.
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
        let actor = self.core().acting_as(cpu);
        self.held.force_grow_as(actor, bytes)
    }

    /// Uncharges `bytes` of this charge.
    ///
    /// # Panics
    ///
    /// When it holds fewer.
    #[inline]
    pub fn shrink(&mut self, bytes: Bytes) {
        self.held.shrink(bytes);
    }

    /// Like [`Charge::shrink`], acting as `cpu`.
    ///
    /// # Panics
    ///
    /// When it holds fewer bytes, and as
    /// [`GroupNode::try_charge_on`](super::GroupNode::try_charge_on).
    pub fn shrink_on(&mut self, cpu: CpuId, bytes: Bytes) {
        let actor = self.core().acting_as(cpu);
        self.held.shrink_as(actor, bytes);
    }

    /// Splits `bytes` off into a charge of their own. Charges and uncharges nothing.
    ///
    /// # Panics
    ///
    /// When it holds fewer.
    pub fn split(&mut self, bytes: Bytes) -> Self {
        Self::of(self.held.split(bytes))
    }

    /// Merges another charge of the same group into this one.
    ///
    /// # Errors
    ///
    /// Gives `other` back when it belongs to another group.
    pub fn merge(&mut self, other: Self) -> Result<(), Self> {
        self.held.merge(other.held).map_err(Self::of)
    }

    /// Gives up the guard and keeps the bytes charged: for callers that record them elsewhere, and
    /// uncharge them by [`GroupTree::uncharge`](super::GroupTree::uncharge) or
    /// [`GroupNode::uncharge`](super::GroupNode::uncharge).
    #[must_use = "these bytes stay charged until they are uncharged by hand"]
    #[inline]
    pub fn disown(self) -> Bytes {
        self.held.disown()
    }

    /// Returns the same charge, with the tree kept in memory through `keeper`, which contains the
    /// tree.
    pub(crate) fn kept_by<K: Keeper>(self, keeper: PercpuRef<K>) -> Held<K> {
        self.held.kept_by(keeper)
    }

    #[inline]
    pub(super) fn held(&mut self) -> &mut Held<Core> {
        &mut self.held
    }

    #[inline]
    pub(super) fn core(&self) -> &Core {
        self.held.tree()
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("group", &self.group())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
