//! Reserving on the way up from a group: at every group of it, or at none.

use crate::group::state::{Cell, DEPTH_MAX, GroupKey, Groups, Slot};
use crate::sync::order_of_seqcst;
use crate::units::GroupId;

use super::outcome::Refusal;

/// A way up from a group.
#[derive(Clone, Copy)]
pub(in crate::group) struct Way {
    pub(super) key: GroupKey,
    /// The first group that is not on it; `None` when the root is.
    top: Option<GroupId>,
}

impl Way {
    /// From a group to the root.
    pub(in crate::group) const fn whole(key: GroupKey) -> Self {
        Self { key, top: None }
    }

    /// From a group up to `top`, which is above it and not part of it.
    pub(super) const fn below(key: GroupKey, top: GroupId) -> Self {
        Self {
            key,
            top: Some(top),
        }
    }
}

impl Groups {
    /// The slots on a way, leaf first.
    pub(super) fn way(&self, way: Way) -> impl Iterator<Item = (GroupId, &Slot)> {
        self.chain(way.key.id)
            .take_while(move |(at, _)| Some(*at) != way.top)
    }

    /// Begins an operation in a word of the group to charge: in flight until [`Cell::end`], so that
    /// no slot above it is reused.
    pub(super) fn begin(&self, key: GroupKey, slot: &Slot, cell: &Cell) -> Result<(), Refusal> {
        cell.begin().map_err(|_| Refusal::Contended)?;
        order_of_seqcst();
        if !slot.lives(key.incarnation) {
            cell.end();
            return Err(Refusal::Removed);
        }
        if self.gate.is_closed() {
            cell.end();
            // Parks until the charge that decides alone is done.
            drop(self.read_shape());
            return Err(Refusal::Contended);
        }
        Ok(())
    }

    /// Reserves `bytes` on the whole way, or on none of it.
    pub(super) fn climb(&self, way: Way, bytes: u64) -> Result<(), Refusal> {
        let reserve = |_, slot: &Slot| slot.ledger.reserve(bytes);
        self.climb_by(way, reserve, |at, slot| self.release(at, slot, bytes))
    }

    /// Reserves at each group on the way by `reserve`, or at none of them: `undo` gives back what
    /// was reserved below a group that refused.
    pub(super) fn climb_by(
        &self,
        way: Way,
        reserve: impl Fn(GroupId, &Slot) -> Option<u64>,
        undo: impl Fn(GroupId, &Slot),
    ) -> Result<(), Refusal> {
        let mut seen = [0; DEPTH_MAX as usize + 1];
        for (nth, (group, slot)) in self.way(way).enumerate() {
            match reserve(group, slot) {
                Some(reserved) => seen[nth] = reserved,
                None => {
                    for (at, slot) in self.way(way).take(nth) {
                        undo(at, slot);
                    }
                    return Err(Refusal::NoRoom(group));
                }
            }
        }
        for ((_, slot), reserved) in self.way(way).zip(seen) {
            slot.ledger.raise_peak(reserved);
        }
        Ok(())
    }
}
