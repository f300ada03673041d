//! Live words: which words may hold tokens, and taking them out of use.
//!
//! A word is made live under the tree's lock for reading, after a check of every ancestor: none is
//! above its maximum, and at none a charge waits. Words are retired under that lock for writing.

use std::ops::ControlFlow;

use crate::group::state::{Far, GroupKey, Groups, OpenCell, Slot, TreeShape, Word};
use crate::units::GroupId;

impl Groups {
    /// Lets word number `index` hold tokens, unless the group is removed, or an ancestor is above
    /// its maximum or has a charge waiting for room. Waits for the tree's lock, once for each CPU
    /// of a group.
    pub(super) fn enlist(&self, key: GroupKey, slot: &Slot, index: usize) {
        if slot.cell(index).load().is_live() {
            return;
        }
        let shape = self.shape.read();
        if slot.incarnation() == key.incarnation {
            self.make_live(&shape, key.id, slot, index);
        }
    }

    /// Like [`Groups::enlist`], for a group to which the caller has bytes charged, if the lock is
    /// free.
    pub(super) fn try_enlist(&self, id: GroupId, slot: &Slot, index: usize) {
        if let Some(shape) = self.shape.try_read()
            && slot.is_alive()
        {
            self.make_live(&shape, id, slot, index);
        }
    }

    /// Counts the word on the chain, then makes it live. The lock is proof that nothing is retired
    /// and no maximum lowered meanwhile.
    fn make_live(&self, _shape: &TreeShape, id: GroupId, slot: &Slot, index: usize) {
        let is_closed = |(_, slot): (GroupId, &Slot)| slot.ledger.balance().is_closed();
        if self.chain(id).any(is_closed) {
            return;
        }
        slot.touch(index);
        for (_, slot) in self.chain(id) {
            slot.add_holder();
        }
        if slot.cell(index).update(Word::enlisted).is_err() {
            // Another thread acting as the same CPU was first.
            for (_, slot) in self.chain(id) {
                slot.remove_holders(1);
            }
        }
    }

    /// Takes the tokens of one group away and keeps its words retired. The caller holds the tree's
    /// lock for writing.
    pub(in crate::group) fn retire(&self, id: GroupId) {
        let mut far = Far::none();
        self.retire_or_add(id, self.slot(id), &mut far);
        self.retire_far(&mut far);
    }

    /// Like [`Groups::retire`], for a group and everything below it.
    pub(in crate::group) fn retire_subtree(&self, shape: &TreeShape, top: GroupId) {
        if self.slot(top).holders() == 0 {
            return;
        }
        let mut far = Far::none();
        let _: ControlFlow<()> = self.walk(shape, top, &mut |id, slot| {
            self.retire_or_add(id, slot, &mut far);
            ControlFlow::Continue(())
        });
        self.retire_far(&mut far);
    }

    /// Retires the words of a group that are near, and adds the others to a batch.
    fn retire_or_add<'a>(&self, id: GroupId, slot: &'a Slot, far: &mut Far<'a>) {
        for cell in slot.touched_cells() {
            match cell.update_near(Word::retired) {
                Some(Ok(before)) => self.retired(id, before),
                Some(Err(_)) => {}
                None => {
                    let _: ControlFlow<()> =
                        far.add(id, cell, &mut |id, open| self.retire_open(id, open));
                }
            }
        }
    }

    fn retire_far(&self, far: &mut Far<'_>) {
        let _: ControlFlow<()> = far.each(&mut |id, open| self.retire_open(id, open));
    }

    fn retire_open(&self, id: GroupId, open: &OpenCell<'_>) -> ControlFlow<()> {
        if let Ok(before) = open.update(Word::retired) {
            self.retired(id, before);
        }
        ControlFlow::Continue(())
    }

    /// Uncounts a retired word, whose value was `before`, and gives its tokens back.
    fn retired(&self, id: GroupId, before: Word) {
        if before.tokens() > 0 {
            self.give_back(id, before.tokens());
        }
        for (_, slot) in self.chain(id) {
            slot.remove_holders(1);
        }
    }
}
