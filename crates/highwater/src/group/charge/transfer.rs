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

use crate::group::state::{ActingCpu, Ending, Groups, Meta, Slot};
use crate::units::GroupId;

use super::outcome::{Attempts, Refusal};
use super::reserve::Way;

impl Groups {
    /// Moves `bytes` that are charged to `from`. All or nothing.
    pub(in crate::group) fn transfer(
        &self,
        from: GroupId,
        to: &Meta,
        actor: ActingCpu,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let Some(source) = self.slot(from).meta.read().clone() else {
            panic!("bytes are charged to {from}, which is gone");
        };
        let top = nearest_above_both(&source, to);
        if top != to.key.id {
            // Not from tokens: what the groups above both have would be counted twice until the
            // tokens that this leaves at the other group are there.
            self.charge_below(Way::below(to.key, top), actor, bytes)?;
        }
        // Before the last byte is released the way up is read: `chain` sees to that.
        for (at, slot) in self.chain(from).take_while(|(at, _)| *at != top) {
            self.release(at, slot, bytes);
        }
        Ok(())
    }

    /// Charges `bytes` to the groups on the way alone.
    fn charge_below(&self, way: Way, actor: ActingCpu, bytes: u64) -> Result<(), Refusal> {
        self.persist(way, bytes, Attempts::new(), |attempts| {
            if attempts.is_over() {
                self.charge_alone(way, bytes)
            } else {
                self.climb_beside(way, actor, bytes)
            }
        })
    }

    /// One attempt beside others: as a refill in `escrow.rs`, without a grant.
    fn climb_beside(&self, way: Way, actor: ActingCpu, bytes: u64) -> Result<(), Refusal> {
        let slot = self.slot(way.key.id);
        // Looking before anything is in flight: moves to a full group do not make one another wait.
        let has_none = |slot: &Slot| slot.ledger.balance().room() < bytes;
        let full = self.way(way).find(|(_, slot)| has_none(slot));
        if !slot.lives(way.key.incarnation) {
            return Err(Refusal::Removed);
        }
        if let Some((group, _)) = full {
            return Err(Refusal::NoRoom(group));
        }
        let index = slot.index(actor);
        let cell = slot.words(index).marked();
        slot.touch(index);
        self.begin(way.key, slot, cell)?;
        let _ending = Ending(|| cell.end());
        self.climb(way, bytes)
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
