//! Live words: which words may hold tokens, and taking them out of use.
//!
//! A word is made live under the tree's lock for reading, after a check of every group on whose
//! ledger its tokens would be reserved: none is above its maximum, and at none a charge waits. For
//! a chain word these are the group and its ancestors, and it needs an entry of its CPU's stock
//! besides (`state/stock.rs`, `stocked.rs`); for an own word it is the group alone. Words are
//! retired under that lock for writing; under the lock for reading a CPU withdraws words of its
//! own, in flight until their tokens are given back.

use std::ops::ControlFlow;

use crate::group::state::{
    Cell, Far, GroupKey, Groups, OpenCell, Site, Slot, TreeShape, Word, Words,
};
use crate::sync::atomic::{Ordering, fence};
use crate::units::GroupId;

impl Groups {
    /// Lets the words of number `index` hold tokens: the chain word of the group if the CPU's stock
    /// has a free entry, otherwise its own word; and if it has that, the own words of the groups up
    /// to the first that has a live chain word. Not if the group is removed, nor in words whose
    /// ledgers are closed. Waits for the tree's lock, once for each CPU of a group.
    pub(super) fn enlist(&self, key: GroupKey, slot: &Slot, index: usize) {
        if !self.lacks_words(key.id, index) {
            return;
        }
        let shape = self.read_shape();
        if slot.incarnation() == key.incarnation {
            self.make_live(&shape, key.id, index);
        }
    }

    /// Like [`Groups::enlist`], for a group to which the caller has bytes charged, if the lock is
    /// free.
    pub(super) fn try_enlist(&self, id: GroupId, slot: &Slot, index: usize) {
        if let Some(shape) = self.try_read_shape()
            && slot.is_alive()
        {
            self.make_live(&shape, id, index);
        }
    }

    /// Whether a charge to `id` meets a group that could have a live word, and has none.
    fn lacks_words(&self, id: GroupId, index: usize) -> bool {
        for (_, slot) in self.chain(id) {
            let words = slot.find_words(index);
            let is_live =
                |of: fn(&Words) -> &Cell| words.is_some_and(|words| of(words).load().is_live());
            if is_live(|words| &words.chain) {
                return false;
            }
            if !is_live(|words| &words.own) && !slot.ledger.balance().is_closed() {
                return true;
            }
        }
        false
    }

    fn make_live(&self, shape: &TreeShape, id: GroupId, index: usize) {
        let is_first = !self.slot(id).words(index).own.load().is_live();
        if is_first {
            self.stock_if_free(shape, id, index);
        }
        // The groups above get words when the CPU comes back: many groups are used once on a CPU.
        let levels = if is_first { 1 } else { usize::MAX };
        for (at, slot) in self.chain(id).take(levels) {
            if slot.words(index).chain.load().is_live() {
                return;
            }
            self.make_own_live(shape, at, slot, index);
        }
    }

    /// Counts the chain word on the chain, then makes it live. The lock is proof that nothing is
    /// retired and no maximum lowered meanwhile. The caller has claimed an entry of the stock.
    pub(super) fn make_chain_live(&self, _shape: &TreeShape, id: GroupId, index: usize) -> bool {
        let words = self.slot(id).ready(index);
        for (_, slot) in self.chain(id) {
            slot.add_holder();
        }
        // Fails where another thread acting as the same CPU was first.
        let is_first = words.chain.update(Word::enlisted).is_ok();
        if !is_first {
            self.uncount(Site::chain(id));
        }
        is_first
    }

    /// Like [`Groups::make_chain_live`], for the group's own word, unless its ledger is closed.
    fn make_own_live(&self, _shape: &TreeShape, at: GroupId, slot: &Slot, index: usize) {
        let words = slot.words(index);
        let word = &words.own;
        if word.load().is_live() || slot.ledger.balance().is_closed() {
            return;
        }
        slot.touch_own(index);
        slot.ready(index);
        slot.add_holder();
        if word.update(Word::enlisted).is_err() {
            return self.uncount(Site::own(at));
        }
        // Pairs with: the fence of `replace`. Where another thread acting as the same CPU makes the
        // chain word live meanwhile, one of the two sees both.
        fence(Ordering::SeqCst);
        if words.chain.load().is_live() {
            self.withdraw(Site::own(at), word);
        }
    }

    /// Takes the tokens of one group away and keeps its words retired. The caller holds the tree's
    /// lock for writing.
    pub(in crate::group) fn retire(&self, id: GroupId) {
        let mut far = Far::none();
        self.retire_or_add(id, id, self.slot(id), &mut far);
        self.retire_far(&mut far);
    }

    /// Like [`Groups::retire`], for all words whose tokens are reserved on a group: its own, and
    /// the chain words below it.
    pub(in crate::group) fn retire_subtree(&self, shape: &TreeShape, top: GroupId) {
        if self.slot(top).holders() == 0 {
            return;
        }
        let mut far = Far::none();
        let _: ControlFlow<()> = self.walk(shape, top, &mut |id, slot| {
            self.retire_or_add(top, id, slot, &mut far);
            ControlFlow::Continue(())
        });
        self.retire_far(&mut far);
    }

    /// Retires the words of a group that are near, and adds the others to a batch.
    fn retire_or_add<'a>(&self, top: GroupId, id: GroupId, slot: &'a Slot, far: &mut Far<'a>) {
        // A word that is not live stays so under the lock: most groups have none on most CPUs, and
        // a far word would cost a membarrier.
        let live = slot
            .words_of(top, id)
            .filter(|(_, cell)| cell.load().is_live());
        for (site, cell) in live {
            match cell.update_near(Word::retired) {
                Some(Ok(before)) => self.retired(site, before),
                Some(Err(_)) => {}
                None => {
                    let _: ControlFlow<()> =
                        far.add(site, cell, &mut |site, open| self.retire_open(site, open));
                }
            }
        }
    }

    fn retire_far(&self, far: &mut Far<'_>) {
        let _: ControlFlow<()> = far.each(&mut |site, open| self.retire_open(site, open));
    }

    fn retire_open(&self, site: Site, open: &OpenCell<'_>) -> ControlFlow<()> {
        if let Ok(before) = open.update(Word::retired) {
            self.retired(site, before);
        }
        ControlFlow::Continue(())
    }

    /// Gives the tokens of a retired word back, whose value was `before`, and uncounts it.
    pub(super) fn retired(&self, site: Site, before: Word) {
        if before.tokens() > 0 {
            self.give_back_at(site, before.tokens());
        }
        self.uncount(site);
    }

    /// Uncounts a word that is not live.
    fn uncount(&self, site: Site) {
        for (_, slot) in self.ledgers(site) {
            slot.remove_holders(1);
        }
    }
}
