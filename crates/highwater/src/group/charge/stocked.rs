//! Which chain words a CPU has live: entering a group into the CPU's stock, and reviewing it.
//!
//! The protocol and its invariant: `state/stock.rs`. The tree's lock for reading is proof that no
//! other thread retires words or frees slots meanwhile.

use crate::group::state::{Cell, Ending, Groups, Site, StockEntry, TokenStock, TreeShape, Word};
use crate::sync::atomic::{Ordering, fence};
use crate::units::GroupId;

/// A group replaces a colder one only if its own word has made more than this many times the steps
/// of the other's chain word. Chosen: an own word makes two steps for each charge and uncharge, a
/// chain word one, and groups used equally often must not replace each other.
#[cfg(not(loom))]
const TIMES_HOTTER: u32 = 4;
/// And this many more. Chosen: a few charges by chance between two reviews are not worth a
/// replacement.
#[cfg(not(loom))]
const STEPS_MORE: u32 = 16;
/// A group above others replaces one that made less than this many times its steps: its chain word
/// spares all of them the levels above it.
const TIMES_COLDER: u32 = 2;

/// Small, so that the model checker reaches every branch.
#[cfg(loom)]
const TIMES_HOTTER: u32 = 1;
/// Small, so that the model checker reaches every branch.
#[cfg(loom)]
const STEPS_MORE: u32 = 0;

impl Groups {
    /// Enters a group into its CPU's stock if there is an entry that no live word uses.
    pub(super) fn stock_if_free(&self, shape: &TreeShape, id: GroupId, index: usize) {
        let stock = self.stock(index);
        let is_free = |held| match held {
            StockEntry::Free => true,
            StockEntry::Of(of) => of == id || self.chain_word(of, index).is_none(),
        };
        let mut free = stock.entries().filter(|(_, held)| is_free(*held));
        if let Some((nth, held)) = free.next() {
            self.replace(shape, stock, (nth, held), id, index);
        }
    }

    /// Returns a group's chain word of that number, if it is live.
    fn chain_word(&self, id: GroupId, index: usize) -> Option<Word> {
        let words = self.slot(id).find_words(index)?;
        Some(words.chain.load()).filter(|word| word.is_live())
    }

    /// Gives the entry to a group, if the entry holds `held` still and no ledger on the group's
    /// chain is closed.
    fn replace(
        &self,
        shape: &TreeShape,
        stock: &TokenStock,
        (nth, held): (usize, StockEntry),
        id: GroupId,
        index: usize,
    ) {
        let mut chain = self.chain(id);
        if chain.any(|(_, slot)| slot.ledger.balance().is_closed()) || !stock.claim(nth, held) {
            return;
        }
        if let StockEntry::Of(former) = held
            && !self.withdraw(Site::chain(former), &self.slot(former).words(index).chain)
        {
            stock.publish(nth, held);
            return;
        }
        let is_live = self.make_chain_live(shape, id, index);
        stock.publish(
            nth,
            if is_live {
                StockEntry::Of(id)
            } else {
                StockEntry::Free
            },
        );
        if is_live {
            // Pairs with: the fence of `make_own_live`.
            fence(Ordering::SeqCst);
            // Its tokens are of no use to charges that find the chain word.
            self.withdraw(Site::own(id), &self.slot(id).words(index).own);
        }
    }

    /// Takes a word out of use and gives its tokens back. Returns whether it is not live: it stays
    /// where too many operations are in flight in it.
    pub(super) fn withdraw(&self, site: Site, cell: &Cell) -> bool {
        match cell.update(Word::withdrawn) {
            Ok(before) => {
                let _ending = Ending(|| cell.end());
                self.retired(site, before);
                true
            }
            Err(word) => !word.is_live(),
        }
    }

    /// Reviews a CPU's stock after a charge to `id` by own words: enters the candidate if it was
    /// used much more than the coldest entry, and names the next candidate among the groups that
    /// the charge met. Never waits.
    #[cold]
    #[inline(never)]
    pub(super) fn review(&self, id: GroupId, index: usize) {
        let Some(shape) = self.try_read_shape() else {
            return;
        };
        let stock = self.stock(index);
        let steps = |(nth, held)| {
            let word = match held {
                StockEntry::Of(of) => self.chain_word(of, index),
                StockEntry::Free => None,
            };
            let steps = word.map_or(0, |word| stock.steps_of(nth, word.sequence()));
            (steps, nth, held)
        };
        let coldest = stock.entries().map(steps).min_by_key(|(steps, ..)| *steps);
        if let Some((candidate, seen)) = stock.candidate()
            && let Some((least, nth, held)) = coldest
            && self.slot(candidate).is_alive()
        {
            let words = self.slot(candidate).words(index);
            let steps = words.own.load().sequence().wrapping_sub(seen);
            let is_above = self.chain(id).skip(1).any(|(at, _)| at == candidate);
            let is_hotter = match is_above {
                true => steps.saturating_mul(TIMES_COLDER) > least,
                false => steps / TIMES_HOTTER > least,
            };
            let is_hotter = is_hotter && steps > STEPS_MORE;
            if is_hotter && !words.chain.load().is_live() {
                self.replace(&shape, stock, (nth, held), candidate, index);
            }
        }
        self.name_candidate(stock, id, index);
    }

    /// Names each of the groups that charge by own words in turn, the group itself first.
    fn name_candidate(&self, stock: &TokenStock, id: GroupId, index: usize) {
        let by_own = || {
            let words = self.chain(id).map(|(at, slot)| (at, slot.words(index)));
            words.take_while(|(_, words)| !words.chain.load().is_live())
        };
        let nth = stock.count_review() as usize % by_own().count().max(1);
        if let Some((at, words)) = by_own().nth(nth) {
            stock.set_candidate(at, words.own.load().sequence());
        }
    }
}
