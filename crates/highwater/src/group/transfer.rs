//! Transfers: moving charged bytes from one group to another.
//!
//! Bytes that move from `from` to `to` are charged to the groups above `to` and uncharged from
//! those above `from`, up to their nearest common ancestor, which keeps them charged and is not
//! touched. So a move inside a full group is never refused because of that group.
//!
//! # Why no maximum is exceeded, and nothing changes when one refuses
//!
//! The bytes are reserved below the common ancestor on the side of `to` first, as a charge reserves
//! them, and released on the side of `from` only after that has succeeded. At every group and every
//! moment `used + tokens + in flight == reserved` holds as in `escrow.rs`: on the one side as for a
//! charge, on the other as for an uncharge that does not park; the side of `to` is in flight in a
//! word of `to` until it is decided. A refusal is proven as for a charge.
//!
//! Tokens in a word of `to` are reserved on all ancestors. If they suffice they are taken, and the
//! bytes of `from` become tokens there: the same steps as a charge and an uncharge.
//!
//! Source: `memory.move_charge_at_immigrate` of the kernel's first memory controller, since removed
//! because it had to find and lock every byte. Here the owner of a charge chooses the bytes to
//! move.

use crate::units::{Bytes, CpuId, GroupId};

use super::charge::Charge;
use super::error::ChargeError;
use super::escrow::Refusal;
use super::held::{Held, Keeper, Seat};
use super::node::{GroupNode, Meta};
use super::slot::{Actor, Slot};
use super::tree::{Core, GroupKey};

/// A way up from a group.
#[derive(Clone, Copy)]
pub(super) struct Climb {
    pub(super) key: GroupKey,
    /// The first group that is not on it; `None` when the root is.
    top: Option<GroupId>,
}

impl Climb {
    /// From a group to the root.
    pub(super) const fn whole(key: GroupKey) -> Self {
        Self { key, top: None }
    }
}

impl Core {
    /// The slots on a way, leaf first.
    pub(super) fn way(&self, way: Climb) -> impl Iterator<Item = (GroupId, &Slot)> {
        self.chain(way.key.id)
            .take_while(move |(at, _)| Some(*at) != way.top)
    }

    /// Moves `bytes` that are charged to `from`. All or nothing.
    fn transfer(
        &self,
        from: GroupId,
        to: &Meta,
        actor: Actor,
        bytes: u64,
    ) -> Result<(), ChargeError> {
        let Some(source) = self.slot(from).meta.read().clone() else {
            panic!("bytes are charged to {from}, which is gone");
        };
        let top = nearest_above_both(&source, to);
        if top != to.key.id {
            // Not from tokens: what the groups above both have would be counted twice until the
            // tokens that this leaves at the other group are there.
            let way = Climb {
                key: to.key,
                top: Some(top),
            };
            self.charge_below(way, actor, bytes)
                .map_err(|refusal| self.refuse(to.key, refusal, bytes))?;
        }
        // Before the last byte is released the way up is read: `chain` sees to that.
        for (at, slot) in self.chain(from).take_while(|(at, _)| *at != top) {
            self.release(at, slot, bytes);
        }
        Ok(())
    }

    /// Charges `bytes` to the groups on the way alone.
    fn charge_below(&self, way: Climb, actor: Actor, bytes: u64) -> Result<(), Refusal> {
        self.persist(way.key, bytes, |patience| {
            if patience.is_over() {
                self.charge_alone(way, bytes)
            } else {
                self.climb_beside(way, actor, bytes)
            }
        })
    }

    /// One attempt beside others: as a refill in `escrow.rs`, without a grant.
    fn climb_beside(&self, way: Climb, actor: Actor, bytes: u64) -> Result<(), Refusal> {
        let slot = self.slot(way.key.id);
        // Looking before anything is in flight: moves to a full group do not make one another wait.
        let full = self
            .way(way)
            .find(|(_, slot)| slot.ledger.balance().room() < bytes);
        if slot.incarnation() != way.key.incarnation {
            return Err(Refusal::Removed);
        }
        if let Some((group, _)) = full {
            return Err(Refusal::NoRoom(group));
        }
        let index = slot.index(actor);
        let cell = slot.cell(index);
        slot.touch(index);
        self.begin(way.key, slot, cell)?;
        let outcome = self.climb(way, bytes).map_err(Refusal::NoRoom);
        cell.end();
        outcome
    }
}

/// The nearest group that is `one` or above it, and `other` or above it.
fn nearest_above_both(one: &Meta, other: &Meta) -> GroupId {
    let (mut one, mut other) = (one, other);
    // Ends at the root, which is above all.
    while one.key != other.key {
        let deeper = if one.depth >= other.depth {
            &mut one
        } else {
            &mut other
        };
        *deeper = deeper.parent.as_deref().expect("one root is above both");
    }
    one.key.id
}

impl Charge {
    /// Moves `bytes` to another group, where they are a charge of their own. Common ancestors keep
    /// them, and are not charged twice.
    ///
    /// # Cost
    ///
    /// When the CPU's word of `to` holds enough tokens, two swaps on lines that only this CPU
    /// writes. Otherwise as [`GroupNode::try_charge`] and [`Charge::shrink`], on the groups below
    /// the nearest common one.
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
        self.transfer_as(Actor::Here, to, bytes)
    }

    /// Like [`Charge::transfer`], acting as `cpu`.
    ///
    /// # Errors
    ///
    /// As [`Charge::transfer`].
    ///
    /// # Panics
    ///
    /// As [`Charge::transfer`] and [`GroupNode::try_charge_on`].
    pub fn transfer_on(
        &mut self,
        cpu: CpuId,
        to: &GroupNode,
        bytes: Bytes,
    ) -> Result<Self, ChargeError> {
        self.transfer_as(self.core().acting_as(cpu), to, bytes)
    }

    fn transfer_as(
        &mut self,
        actor: Actor,
        to: &GroupNode,
        bytes: Bytes,
    ) -> Result<Self, ChargeError> {
        let held = self.held().transfer(actor, (to, to.seat()), bytes)?;
        Ok(Self::of(held))
    }
}

impl<K: Keeper> Held<K> {
    /// Moves `bytes` of it to another group, which is at that seat.
    pub(crate) fn transfer_to(
        &mut self,
        to: (&GroupNode, &Seat<K>),
        bytes: Bytes,
    ) -> Result<Self, ChargeError> {
        self.transfer(Actor::Here, to, bytes)
    }

    fn transfer(
        &mut self,
        actor: Actor,
        (to, seat): (&GroupNode, &Seat<K>),
        bytes: Bytes,
    ) -> Result<Self, ChargeError> {
        debug_assert_eq!(to.key(), seat.key(), "a group has one key");
        assert!(
            std::ptr::eq(self.tree(), seat.tree()),
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
            let from = self.key().id;
            self.tree().transfer(from, to.meta(), actor, bytes.0)?;
        }
        Ok(self.moved(bytes, seat, actor))
    }
}
