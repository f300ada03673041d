//! Checks of a tree's invariants.

use crate::group::state::{CELL_MAX, Groups, STOCK_MAX, StockEntry, TreeShape};
use crate::sync::atomic::Ordering;
use crate::units::{Bytes, GroupId};

impl Groups {
    /// See [`GroupTree::check_invariants`](crate::group::GroupTree::check_invariants).
    pub(in crate::group) fn check(&self) {
        let shape = self.read_shape();
        self.check_subtree(&shape, GroupId(0));
        self.check_stocks(&shape);
        self.check_protection(&shape);
    }

    /// Checks the subtree of `id`; returns its reservations on its parent, and the number of its
    /// live chain words.
    fn check_subtree(&self, shape: &TreeShape, id: GroupId) -> (u64, u64) {
        let slot = self.slot(id);
        let (mut below, mut holders) = (0, 0);
        let family = shape.family(id);
        for zombie in &family.zombies {
            let is_looked_at = shape.zombies.contains(zombie);
            assert!(is_looked_at, "{zombie} is never freed");
            assert!(!self.slot(*zombie).is_alive(), "{zombie} is alive");
        }
        for child in family.members.iter().chain(&family.zombies) {
            assert_eq!(self.slot(*child).parent(), Some(id), "{child} is elsewhere");
            let (reserved, live) = self.check_subtree(shape, *child);
            below += reserved;
            holders += live;
        }
        let (mut own, mut own_holders) = (0, 0);
        for (index, words) in slot.all_words() {
            assert!(
                words.lets_none_but(slot.incarnation())
                    || !words.both().iter().any(|it| it.load().is_live()),
                "the words {index} of {id} may hold tokens and know another incarnation"
            );
            for cell in words.both() {
                let word = cell.load();
                assert!(word.tokens() <= CELL_MAX, "{id} holds too many tokens");
                assert!(word.is_live() || word.tokens() == 0, "{id} hides tokens");
                assert_eq!(word.in_flight(), 0, "an operation is in flight in {id}");
            }
            let (chain, alone) = (words.chain.load(), words.own.load());
            below += chain.tokens();
            holders += u64::from(chain.is_live());
            own += alone.tokens();
            own_holders += u64::from(alone.is_live());
        }
        assert!(
            own_holders == 0 || slot.has_own(),
            "passes leave out the own words of {id}"
        );
        let balance = slot.ledger.balance();
        assert!(
            below + own <= balance.reserved,
            "{id} reserves {} bytes for {below} below it and {own} of its own",
            balance.reserved
        );
        let counted = holders + own_holders;
        assert_eq!(slot.holders(), counted, "{id} miscounts its live words");
        self.check_line(id);
        assert!(
            balance.debt() == 0 || counted == 0,
            "{id} reserves {} bytes of {} and may hold tokens",
            balance.reserved,
            balance.max
        );
        (balance.reserved - own, holders)
    }

    /// Checks that no CPU has more live chain words than its stock has entries, and that it has one
    /// for each.
    fn check_stocks(&self, shape: &TreeShape) {
        let mut live = vec![0; self.gates.nr_words()];
        let ids = (0..shape.nr_ids()).map(GroupId::from_index);
        for (id, slot) in ids.filter_map(|id| Some((id, self.slots.get(id)?))) {
            for (index, words) in slot.all_words() {
                if words.chain.load().is_live() {
                    let of = StockEntry::Of(id);
                    let is_entered = self.stock(index).entries().any(|(_, entry)| entry == of);
                    assert!(is_entered, "{id} is not in the stock of word {index}");
                    live[index] += 1;
                }
            }
        }
        for (index, stock) in self.stocks() {
            assert_eq!(
                stock.entries().count(),
                STOCK_MAX,
                "an entry of {index} is claimed"
            );
        }
        assert!(live.iter().all(|count| *count <= STOCK_MAX), "{live:?}");
    }

    /// Checks that exactly the groups with waiters are marked.
    fn check_line(&self, id: GroupId) {
        let slot = self.slot(id);
        assert_eq!(
            slot.ledger.balance().has_waiters,
            self.lines().first_at(id).is_some(),
            "{id}: its mark and its wait queue disagree"
        );
        assert!(
            !slot.ledger.balance().has_waiters || slot.holders() == 0,
            "{id} may hold tokens while a charge waits for room"
        );
    }

    /// Checks the index of protected children against the settings.
    fn check_protection(&self, shape: &TreeShape) {
        let mut count = 0;
        for at in (0..shape.nr_ids()).map(GroupId::from_index) {
            let family = shape.family(at);
            for child in &family.protected {
                let slot = self.slot(*child);
                assert!(slot.is_alive(), "{child} is removed and protected");
                assert_eq!(slot.parent(), Some(at));
                let meta = slot.meta.read();
                let settings = meta.as_deref().map(|meta| meta.settings.protection());
                assert_ne!(settings, Some((Bytes::ZERO, Bytes::ZERO)), "{child}");
            }
            count += family.protected.len() as u64;
        }
        // Relaxed: under the lock that guards it.
        assert_eq!(self.nr_protected.load(Ordering::Relaxed), count);
    }
}
