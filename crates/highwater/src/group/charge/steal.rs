//! Passes over the token words of a subtree: those that take tokens back, and those that change
//! nothing.
//!
//! The tokens of a group are those of its own words, and of the chain words of it and of all groups
//! below. The own words of groups below have no tokens of it, but may carry the mark of an
//! operation on its way up (`steps.rs`): a pass looks at them, and takes nothing there.
//!
//! The caller holds the tree's lock, which keeps the set of slots the same meanwhile; groups may
//! begin and end in parked ones.

use std::ops::ControlFlow;

use crate::group::state::{Collect, Ending, Far, Groups, OpenCell, Site, TreeShape, Word};
use crate::units::GroupId;

impl Groups {
    /// Takes tokens back in one pass until `group` has room for `bytes`, and returns `None` then.
    /// Otherwise returns the pass, whose tokens are those that it took.
    pub(super) fn steal(&self, shape: &TreeShape, group: GroupId, bytes: u64) -> Option<Collect> {
        let ledger = &self.slot(group).ledger;
        let mut pass = Collect::default();
        let (mut far, mut far_pass) = (Far::none(), Collect::default());
        // Stolen tokens are in flight at their word until they are given back.
        let give_back = |site, tokens, end: &dyn Fn()| {
            let ending = Ending(end);
            self.give_back_at(site, tokens);
            drop(ending);
            match ledger.balance().room() >= bytes {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let mut steal_open = |site: Site, open: &OpenCell<'_>| {
            let outcome = open.update(Word::stolen);
            far_pass.saw(outcome.unwrap_or_else(|word| word));
            match outcome {
                Ok(word) => give_back(site, word.tokens(), &|| open.end()),
                Err(_) => ControlFlow::Continue(()),
            }
        };
        let flow = self.walk(shape, group, &mut |id, slot| {
            for (site, cell) in slot.words_of(group, id) {
                match cell.update_near(Word::stolen) {
                    Some(Ok(word)) => {
                        pass.saw(word);
                        give_back(site, word.tokens(), &|| cell.end())?;
                    }
                    Some(Err(word)) => pass.saw(word),
                    None => far.add(site, cell, &mut steal_open)?,
                }
            }
            pass.saw_others(group, id, slot);
            ControlFlow::Continue(())
        });
        let flow = flow.is_continue() && far.each(&mut steal_open).is_continue();
        flow.then(|| pass.and(far_pass))
    }

    /// Makes one pass that changes nothing.
    pub(super) fn look(&self, shape: &TreeShape, group: GroupId) -> Collect {
        let mut pass = Collect::default();
        let _: ControlFlow<()> = self.walk(shape, group, &mut |_, slot| {
            pass = pass.and(slot.collect(group));
            ControlFlow::Continue(())
        });
        pass
    }
}
