//! Charging and uncharging by a group's handle.

use super::charge::NodeCharge;
use super::node::GroupNode;
use crate::group::charge::{Held, Keeper, Refilled, SlotRef};
use crate::group::error::ChargeError;
use crate::group::state::{ActingCpu, Groups};
use crate::percpu::PercpuRef;
use crate::units::Bytes;

impl GroupNode {
    /// Charges `bytes` to this group and all its ancestors, never above any maximum.
    ///
    /// # Cost
    ///
    /// When the CPU holds enough tokens (fast path): one step on each of two lines that only this
    /// CPU writes, that of the tokens and that of the references to the tree. A step is a plain
    /// store in the restartable regime and an atomic operation in the other. Dropping the charge
    /// costs the same. A CPU holds such tokens of 7 groups at a time. A charge to another group
    /// takes three plain steps and its drop two if the group above is one of the 7, and one more
    /// each for each level between. Otherwise, at most once per 112 KiB while there is room: one
    /// step on a line of each ancestor, and for the first charge of a CPU in the group the tree's
    /// lock for reading. Without room: passes over the words of all CPUs that have charged in the
    /// subtree of the group without room, under the tree's lock for reading (rank
    /// [`Groups`](crate::sync::Rank::Groups)); in the restartable regime one membarrier(2) for each
    /// 64 words of other CPUs that hold tokens. No allocation, except by a CPU that charges or
    /// uncharges in the group for the first time: its words, 256 bytes at most.
    ///
    /// # Errors
    ///
    /// [`ChargeError::OverMax`] only if at some moment of the call the named group had less than
    /// `bytes` left, counting all escrow as left; [`ChargeError::Contended`] when a thread was
    /// preempted for too long in the middle of a charge that decides; [`ChargeError::Removed`] when
    /// this group is removed. Nothing is charged then. Adversaries:
    /// `tests/limits.rs::tiny_limits_are_exact_on_every_cpu`,
    /// `tests/limits.rs::no_charge_is_refused_while_pages_are_free_or_parked`.
    // Always: a result that is returned in memory costs as much as the charge.
    #[inline(always)]
    pub fn try_charge(&self, bytes: Bytes) -> Result<NodeCharge, ChargeError> {
        let held = match self.slot_ref().take(bytes) {
            Some(held) => held,
            None => self.charge_slowly(bytes)?,
        };
        Ok(NodeCharge::of(held))
    }

    #[inline(never)]
    fn charge_slowly(&self, bytes: Bytes) -> Result<Held<Groups>, ChargeError> {
        self.charge_kept(self.slot_ref(), bytes)
            .map(|(held, _throttles_nobody)| held)
    }

    /// Charges as `actor`; returns also what was reserved.
    pub(in crate::group) fn charge_as(
        &self,
        actor: ActingCpu,
        bytes: Bytes,
    ) -> Result<(NodeCharge, Refilled), ChargeError> {
        let charged = self.charge_kept_as(self.slot_ref(), actor, bytes)?;
        Ok((NodeCharge::of(charged.0), charged.1))
    }

    /// Like [`try_charge_refilling`](Self::try_charge_refilling), for a thread that polls: where
    /// that pauses until other threads have run, it is [`ChargeError::Contended`] at once.
    pub(crate) fn try_charge_polled(
        &self,
        bytes: Bytes,
    ) -> Result<(NodeCharge, Refilled), ChargeError> {
        let (groups, key, actor) = (self.groups(), self.key(), ActingCpu::Here);
        let refilled = groups
            .charge_polled(key, actor, bytes.0)
            .map_err(|refusal| self.named(groups.refuse(key, refusal, bytes.0)))?;
        let held = self.slot_ref().hold(self.slot().index(actor), bytes);
        Ok((NodeCharge::of(held), refilled))
    }

    /// Charges at `slot`, which is this group's; returns also what was reserved.
    pub(crate) fn charge_kept<K: Keeper>(
        &self,
        slot: &SlotRef<K>,
        bytes: Bytes,
    ) -> Result<(Held<K>, Refilled), ChargeError> {
        self.charge_kept_as(slot, ActingCpu::Here, bytes)
    }

    fn charge_kept_as<K: Keeper>(
        &self,
        slot: &SlotRef<K>,
        actor: ActingCpu,
        bytes: Bytes,
    ) -> Result<(Held<K>, Refilled), ChargeError> {
        debug_assert_eq!(self.key(), slot.key(), "a group has one key");
        slot.charge_as(actor, bytes)
            .map_err(|error| self.named(error))
    }

    /// Returns the same error, naming this group if it is removed: the tree may have dropped its
    /// name.
    fn named(&self, error: ChargeError) -> ChargeError {
        match error {
            ChargeError::Removed { .. } => ChargeError::Removed { group: self.path() },
            other => other,
        }
    }

    /// Charges `bytes` to this group and all its ancestors regardless of their limits: for memory
    /// that already exists. The part that does not fit takes a group into [debt](Self::debt). When
    /// this group is removed, the nearest ancestor that is not removed is charged;
    /// [`NodeCharge::group`] returns which.
    ///
    /// # Cost
    ///
    /// While there is room, as [`GroupNode::try_charge`]. If a group on the way up is in debt, or a
    /// charge waits there, and the others have room: the tree's lock for reading, and one atomic
    /// operation for each ancestor. Otherwise that lock for writing, one atomic operation for each
    /// ancestor, and one for each word that holds tokens below a group without room.
    ///
    /// # Panics
    ///
    /// When the tree would hold 256 TiB.
    pub fn force_charge(&self, bytes: Bytes) -> NodeCharge {
        self.force_charge_as(ActingCpu::Here, bytes)
    }

    pub(super) fn force_charge_as(&self, actor: ActingCpu, bytes: Bytes) -> NodeCharge {
        NodeCharge::of(self.force_kept(self.keeper(), actor, bytes))
    }

    /// Like [`force_charge`](Self::force_charge), with the charge kept by `keeper` of this tree.
    pub(crate) fn force_charge_kept<K: Keeper>(
        &self,
        keeper: PercpuRef<K>,
        bytes: Bytes,
    ) -> Held<K> {
        self.force_kept(keeper, ActingCpu::Here, bytes)
    }

    fn force_kept<K: Keeper>(
        &self,
        keeper: PercpuRef<K>,
        actor: ActingCpu,
        bytes: Bytes,
    ) -> Held<K> {
        let mut meta = self.meta();
        // Ends at the root, which is never removed.
        while self.groups().force(meta.key, actor, bytes.0).is_err() {
            meta = meta.parent.as_ref().expect("the root is never removed");
        }
        Held::over(keeper, meta.key, actor, bytes)
    }

    /// Uncharges bytes whose guard was [disowned](NodeCharge::disown). Works on removed groups.
    ///
    /// # Cost
    ///
    /// While the CPU's word has room: one step on a line that only this CPU writes, as for charges.
    /// Otherwise, at most once per 112 KiB, one on a line of each ancestor. Waits for a lock, and
    /// calls wakers, only while a charge waits at the group or above it.
    ///
    /// # Panics
    ///
    /// When more bytes are returned to the ancestors than they hold: the caller uncharged bytes
    /// that were never charged. Where they were parked first, the thread that takes them back
    /// panics, which may charge another group. Debug builds also notice a handle whose bytes are
    /// all uncharged already.
    #[inline]
    pub fn uncharge(&self, bytes: Bytes) {
        self.uncharge_as(ActingCpu::Here, bytes);
    }

    #[inline]
    pub(super) fn uncharge_as(&self, actor: ActingCpu, bytes: Bytes) {
        debug_assert!(
            bytes == Bytes::ZERO || self.is_here(),
            "nothing is charged to a group that is gone"
        );
        self.groups().uncharge(self.id(), actor, bytes.0);
    }

    /// Like [`uncharge`](Self::uncharge), with `slot` for this group's.
    #[inline]
    pub(crate) fn uncharge_kept<K: Keeper>(&self, slot: &SlotRef<K>, bytes: Bytes) {
        debug_assert_eq!(self.key(), slot.key(), "a group has one key");
        debug_assert!(
            bytes == Bytes::ZERO || self.is_here(),
            "nothing is charged to a group that is gone"
        );
        if !slot.park(bytes) {
            self.uncharge(bytes);
            self.reap_if_idle();
        }
    }

    /// Moves `bytes` that are charged to this group, and whose guard was disowned, to its parent:
    /// for emptying a group before it is removed. The ancestors' reservations do not change.
    ///
    /// # Cost
    ///
    /// One atomic operation on a line of this group.
    ///
    /// # Panics
    ///
    /// When this is the root, or fewer bytes are charged to this group.
    pub fn uncharge_to_parent(&self, bytes: Bytes) {
        debug_assert!(
            bytes == Bytes::ZERO || self.is_here(),
            "nothing is charged to a group that is gone"
        );
        assert!(self.meta().parent.is_some(), "the root has no parent");
        self.groups().release(self.id(), self.slot(), bytes.0);
    }
}
