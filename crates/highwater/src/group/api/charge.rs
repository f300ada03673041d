//! [`NodeCharge`]: an RAII guard of charged bytes, uncharged when it is dropped.

use std::fmt;

use super::node::GroupNode;
use crate::group::charge::{Held, Keeper, Refilled, SlotRef};
use crate::group::error::ChargeError;
use crate::group::state::{ActingCpu, GroupKey, GroupPath, Groups};
use crate::percpu::PercpuRef;
use crate::units::{Bytes, GroupId};

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
/// root.try_charge(Bytes(1)).unwrap(); // error: unused `NodeCharge` that must be used
/// ```
#[must_use = "dropping a charge uncharges its bytes: keep it for as long as the memory is used"]
pub struct NodeCharge {
    pub(super) held: Held<Groups>,
}

impl NodeCharge {
    #[inline]
    pub(in crate::group) fn of(held: Held<Groups>) -> Self {
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
    /// As [`GroupNode::try_charge`].
    ///
    /// # Errors
    ///
    /// As [`GroupNode::try_charge`]; the charge stays as it is.
    #[inline]
    pub fn try_grow(&mut self, bytes: Bytes) -> Result<(), ChargeError> {
        self.try_grow_refilling(bytes).map(|_throttles_nobody| ())
    }

    /// Like [`NodeCharge::try_grow`], and returns what it reserved; see
    /// [`GroupNode::try_charge_refilling`].
    ///
    /// # Errors
    ///
    /// As [`NodeCharge::try_grow`].
    #[inline]
    pub fn try_grow_refilling(&mut self, bytes: Bytes) -> Result<Refilled, ChargeError> {
        self.held.grow(bytes)
    }

    /// Charges `bytes` more regardless of the limits, as
    /// [`GroupNode::force_charge`].
    ///
    /// # Errors
    ///
    /// [`ChargeError::Removed`] when the group is removed; the charge stays as it is.
    ///
    /// # Panics
    ///
    /// As [`GroupNode::force_charge`].
    pub fn force_grow(&mut self, bytes: Bytes) -> Result<(), ChargeError> {
        self.held.force_grow_as(ActingCpu::Here, bytes)
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

    /// Moves `bytes` to another group, where they are a charge of their own. Common ancestors keep
    /// them, and are not charged twice.
    ///
    /// # Cost
    ///
    /// When the CPU's word of `to` holds enough tokens, two swaps on lines that only this CPU
    /// writes. Otherwise as [`GroupNode::try_charge`] and [`NodeCharge::shrink`], on the groups
    /// below the nearest common one.
    ///
    /// # Errors
    ///
    /// As [`GroupNode::try_charge`] to `to`, except that the common ancestors do not refuse.
    /// Nothing has changed then. A charge of a removed group can move; nothing can move to one.
    ///
    /// # Panics
    ///
    /// When it holds fewer bytes, or `to` belongs to another tree.
    pub fn transfer(&mut self, to: &GroupNode, bytes: Bytes) -> Result<Self, ChargeError> {
        self.transfer_as(ActingCpu::Here, to, bytes)
    }

    pub(super) fn transfer_as(
        &mut self,
        actor: ActingCpu,
        to: &GroupNode,
        bytes: Bytes,
    ) -> Result<Self, ChargeError> {
        let held = self.held.transfer(actor, (to, to.slot_ref()), bytes)?;
        Ok(Self::of(held))
    }

    /// Gives up the guard and keeps the bytes charged: for callers that record them elsewhere, and
    /// uncharge them by [`GroupTree::uncharge`](super::GroupTree::uncharge) or
    /// [`GroupNode::uncharge`].
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

    pub(super) fn groups(&self) -> &Groups {
        self.held.tree()
    }
}

impl<K: Keeper> Held<K> {
    /// Moves `bytes` of it to another group, which is in that slot.
    pub(crate) fn transfer_to(
        &mut self,
        to: (&GroupNode, &SlotRef<K>),
        bytes: Bytes,
    ) -> Result<Self, ChargeError> {
        self.transfer(ActingCpu::Here, to, bytes)
    }

    fn transfer(
        &mut self,
        actor: ActingCpu,
        (to, slot): (&GroupNode, &SlotRef<K>),
        bytes: Bytes,
    ) -> Result<Self, ChargeError> {
        debug_assert_eq!(to.key(), slot.key(), "a group has one key");
        assert!(
            std::ptr::eq(self.tree(), slot.tree()),
            "a charge moves within its tree"
        );
        assert!(
            self.bytes() >= bytes,
            "a charge of {} does not hold {bytes}",
            self.bytes()
        );
        if to.is_removed() {
            return Err(ChargeError::Removed { group: to.path() });
        }
        if bytes > Bytes::ZERO {
            let (from, tree) = (self.key().id, self.tree());
            let moved = tree.transfer(from, to.meta(), actor, bytes.0);
            moved.map_err(|refusal| tree.refuse(to.key(), refusal, bytes.0))?;
        }
        Ok(self.moved(bytes, slot, actor))
    }
}

impl fmt::Debug for NodeCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCharge")
            .field("group", &self.group())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}
