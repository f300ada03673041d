//! [`Held`]: charged bytes, with a reference (`percpu_ref`) that keeps their group's token words in
//! memory.
//!
//! A charge outlives every handle, so it counts as a reference to the word that it steps when it
//! ends. The reference is to the *keeper*: to the tree itself, or to something larger that contains
//! the tree, such as the manager. There is one for each charge: a charge of a manager refers to the
//! manager and thereby to its tree. Making a charge and dropping it are four steps of words of the
//! CPU: tokens taken, a reference more; tokens parked, a reference less (`percpu::refs`). The
//! reference is dropped last, after the bytes were parked, and nothing is touched after that.
//!
//! The fast path that finds tokens is inlined into its caller: a result of a call is passed in
//! memory, and reading that back costs as much as all of these steps. The path of two words is not:
//! where a program charges in several places, the compiler then inlines neither.

use crate::group::error::ChargeError;
use crate::group::state::{
    ActingCpu, Cell, FirstNote, GroupKey, GroupPath, Groups, Made, Slot, TokenStock, Words,
};
use crate::percpu::{PercpuRef, PercpuView};
use crate::units::Bytes;

use super::escrow::take;
use super::outcome::Refilled;

/// A tree of groups, or a value that contains one.
pub(crate) trait Keeper: Send + Sync + 'static {
    /// Returns the tree.
    fn tree(&self) -> &Groups;
}

impl Keeper for Groups {
    #[inline]
    fn tree(&self) -> &Groups {
        self
    }
}

/// A group's slot, kept in memory, and the key of the group.
pub(crate) struct SlotRef<K: Keeper> {
    /// Beside it: the slot of the group above, where charges without a chain word go on; for the
    /// root, its own.
    slot: PercpuView<K, Slot, Slot>,
    key: GroupKey,
    /// For a charge of the CPU that has the slot's first words.
    first: FirstNote,
}

/// Bytes charged to a group and to all its ancestors. Dropping it uncharges them.
#[must_use = "dropping it uncharges its bytes"]
pub(crate) struct Held<K: Keeper> {
    /// The keeper, and the words of the CPU that the charge was last used on: the first to try.
    /// Beside them: as in [`SlotRef`].
    words: PercpuView<K, Words, Slot>,
    key: GroupKey,
    bytes: Bytes,
}

impl<K: Keeper> SlotRef<K> {
    /// Returns the reference to a group of the keeper's tree.
    pub(crate) fn new(keeper: PercpuRef<K>, key: GroupKey) -> Self {
        let slot = keeper.view(|keeper| slots(keeper.tree(), key));
        Self {
            slot,
            key,
            first: FirstNote::nothing(),
        }
    }

    #[inline]
    pub(in crate::group) fn key(&self) -> GroupKey {
        self.key
    }

    #[inline]
    pub(in crate::group) fn slot(&self) -> &Slot {
        &self.slot
    }

    #[inline]
    pub(in crate::group) fn tree(&self) -> &Groups {
        self.slot.whole().tree()
    }

    /// Charges `bytes` if that takes only tokens of this CPU and plain stores.
    // Always: see the module.
    #[inline(always)]
    pub(crate) fn take(&self, bytes: Bytes) -> Option<Held<K>> {
        let key = self.key;
        let words = self.slot.narrow_here(|slot, own| {
            let words = slot.find_noted(&self.first, own)?;
            self.take_of(words, bytes).then_some(words)
        })?;
        Some(Held { words, key, bytes })
    }

    /// Like [`take`](Self::take), without a reference to the tree: for bytes that are uncharged by
    /// a handle. Returns whether it did.
    // Always: see the module.
    #[inline(always)]
    pub(crate) fn take_disowned(&self, bytes: Bytes) -> bool {
        let words = self.words_near();
        words.is_some_and(|words| self.take_of(words, bytes))
    }

    /// Uncharges `bytes` if that takes only plain stores. Returns whether it did.
    #[inline(always)]
    pub(in crate::group) fn park(&self, bytes: Bytes) -> bool {
        let words = self.words_near();
        words
            .is_some_and(|words| words.chain.park_here(bytes.0) || self.park_by_steps(words, bytes))
    }

    /// Parks in the group's own word and in the chain word above.
    // Never: see the module.
    #[inline(never)]
    fn park_by_steps(&self, words: &Words, bytes: Bytes) -> bool {
        if bytes == Bytes::ZERO {
            // Nothing keeps the slot.
            return true;
        }
        let above = self.slot.beside();
        let made = park_both(words, above, bytes);
        if made == Made::First {
            self.tree().uncharge_rest(above, words, bytes.0);
        }
        made != Made::None
    }

    /// Returns the words that this thread steps by plain stores.
    #[inline(always)]
    fn words_near(&self) -> Option<&Words> {
        self.slot
            .find_here(|slot, own| slot.find_noted(&self.first, own))
    }

    #[inline(always)]
    fn take_of(&self, words: &Words, bytes: Bytes) -> bool {
        let is_alive = || words.is_for(self.key.incarnation);
        words.chain.take_here_if(bytes.0, is_alive) || self.take_by_steps(words, bytes.0)
    }

    /// Takes tokens of the group's own word and of the chain word above.
    // Never: see the module.
    #[inline(never)]
    fn take_by_steps(&self, words: &Words, bytes: u64) -> bool {
        let near = near_above(self.slot.beside(), words);
        let made = near.map_or(Made::None, |near| {
            let is_alive = || words.is_for(self.key.incarnation);
            Cell::take_both_here_if(&words.own, &near.chain, bytes, is_alive)
        });
        if made != Made::Both {
            return self.take_far_above(words, bytes, made);
        }
        if TokenStock::is_review_due(words.own.load()) {
            self.tree().review(self.key.id, words.index());
        }
        true
    }

    /// Continues a charge that has taken tokens of the own word, or of none.
    #[inline(never)]
    fn take_far_above(&self, words: &Words, bytes: u64, made: Made) -> bool {
        let tree = self.tree();
        tree.take_far_above((&self.slot, words), self.key, bytes, made)
    }

    /// Charges `bytes` as `actor`; returns also what was reserved.
    pub(in crate::group) fn charge_as(
        &self,
        actor: ActingCpu,
        bytes: Bytes,
    ) -> Result<(Held<K>, Refilled), ChargeError> {
        let index = self.slot.index(actor);
        let refilled = if take(&self.slot, self.key, index, bytes.0) {
            Refilled::NOTHING
        } else {
            self.tree().charge_after(self.key, actor, bytes.0)?
        };
        Ok((self.hold(index, bytes), refilled))
    }

    /// Takes over bytes that are already charged to the group, at word number `index`.
    pub(in crate::group) fn hold(&self, index: usize, bytes: Bytes) -> Held<K> {
        Held {
            words: self.slot.narrow(|slot| slot.words(index)),
            key: self.key,
            bytes,
        }
    }
}

impl<K: Keeper> Clone for SlotRef<K> {
    fn clone(&self) -> Self {
        Self {
            slot: self.slot.clone(),
            key: self.key,
            first: FirstNote::nothing(),
        }
    }
}

impl<K: Keeper> Held<K> {
    /// Takes over bytes that are charged to a group of the keeper's tree.
    pub(in crate::group) fn over(
        keeper: PercpuRef<K>,
        key: GroupKey,
        actor: ActingCpu,
        bytes: Bytes,
    ) -> Self {
        let words = keeper.view(|keeper| {
            let (slot, above) = slots(keeper.tree(), key);
            (slot.words(slot.index(actor)), above)
        });
        Self { words, key, bytes }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes
    }

    #[inline]
    pub(crate) fn key(&self) -> GroupKey {
        self.key
    }

    /// Returns the path of the group.
    pub(crate) fn path(&self) -> GroupPath {
        self.tree().path(self.key)
    }

    #[inline]
    pub(crate) fn keeper(&self) -> &PercpuRef<K> {
        self.words.whole()
    }

    #[inline]
    pub(in crate::group) fn tree(&self) -> &Groups {
        self.keeper().tree()
    }

    /// Charges `bytes` more; returns what was reserved. On an error the charge stays as it is.
    #[inline]
    pub(crate) fn grow(&mut self, bytes: Bytes) -> Result<Refilled, ChargeError> {
        if self.bytes > Bytes::ZERO && self.words.chain.take_here(bytes.0) {
            // Not checked: both are reserved in one ledger, which holds less than 2^48.
            self.bytes.0 += bytes.0;
            return Ok(Refilled::NOTHING);
        }
        self.turn_here();
        self.grow_as(ActingCpu::Here, bytes)
    }

    #[inline(never)]
    pub(in crate::group) fn grow_as(
        &mut self,
        actor: ActingCpu,
        bytes: Bytes,
    ) -> Result<Refilled, ChargeError> {
        let refilled = self.tree().charge(self.key, actor, bytes.0)?;
        self.bytes += bytes;
        Ok(refilled)
    }

    pub(in crate::group) fn force_grow_as(
        &mut self,
        actor: ActingCpu,
        bytes: Bytes,
    ) -> Result<(), ChargeError> {
        let forced = self.tree().force(self.key, actor, bytes.0);
        forced.map_err(|refusal| self.tree().refuse(self.key, refusal, bytes.0))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Uncharges `bytes` of this charge.
    ///
    /// # Panics
    ///
    /// When it holds fewer.
    #[inline]
    pub(crate) fn shrink(&mut self, bytes: Bytes) {
        self.bytes = self.less(bytes);
        self.give_back(bytes);
    }

    /// Like [`shrink`](Self::shrink), as `actor`.
    pub(in crate::group) fn shrink_as(&mut self, actor: ActingCpu, bytes: Bytes) {
        self.bytes = self.less(bytes);
        self.tree().uncharge(self.key.id, actor, bytes.0);
        self.tree().reap_if_idle(self.key);
    }

    /// Splits `bytes` off into a charge of their own.
    ///
    /// # Panics
    ///
    /// When it holds fewer.
    pub(crate) fn split(&mut self, bytes: Bytes) -> Self {
        self.bytes = self.less(bytes);
        let (words, key) = (self.words.clone(), self.key);
        Self { words, key, bytes }
    }

    /// Merges another charge of the same group into this one; gives it back when it belongs to
    /// another.
    pub(crate) fn merge(&mut self, other: Self) -> Result<(), Self> {
        if self.key != other.key || !std::ptr::eq(self.tree(), other.tree()) {
            return Err(other);
        }
        self.bytes += other.disown();
        Ok(())
    }

    /// Moves `bytes` to the group of `to`, which belongs to the same tree.
    pub(in crate::group) fn moved(
        &mut self,
        bytes: Bytes,
        to: &SlotRef<K>,
        actor: ActingCpu,
    ) -> Self {
        self.bytes = self.less(bytes);
        to.hold(to.slot.index(actor), bytes)
    }

    /// Returns the same charge, kept by another keeper of its tree.
    ///
    /// # Panics
    ///
    /// When the keeper belongs to another tree.
    pub(crate) fn kept_by<L: Keeper>(self, keeper: PercpuRef<L>) -> Held<L> {
        assert!(
            std::ptr::eq(self.tree(), keeper.tree()),
            "a charge stays in its tree"
        );
        let key = self.key;
        Held::over(keeper, key, ActingCpu::Here, self.disown())
    }

    /// Gives up the guard and keeps the bytes charged.
    #[inline]
    pub(crate) fn disown(mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }

    /// Uncharges bytes that the guard no longer counts.
    #[inline(always)]
    fn give_back(&mut self, bytes: Bytes) {
        if !self.words.chain.park_here(bytes.0) {
            self.give_back_by_steps(bytes);
        }
    }

    // Never: see the module.
    #[inline(never)]
    fn give_back_by_steps(&mut self, bytes: Bytes) {
        let (words, above) = (&*self.words, self.words.beside());
        let made = park_both(words, above, bytes);
        if made != Made::Both {
            self.give_back_slowly(bytes, made);
        }
    }

    /// Continues an uncharge that has parked in the own word, or nowhere.
    #[inline(never)]
    fn give_back_slowly(&mut self, bytes: Bytes, made: Made) {
        let (words, above) = (&*self.words, self.words.beside());
        let has_near = near_above(above, words).is_some();
        if made == Made::First || has_near && words.own.park_here(bytes.0) {
            return self.tree().uncharge_rest(above, words, bytes.0);
        }
        self.turn_here();
        let (tree, key) = (self.tree(), self.key);
        tree.uncharge(key.id, ActingCpu::Here, bytes.0);
        tree.reap_if_idle(key);
    }

    /// Makes the words of this CPU the first to try.
    #[inline(never)]
    fn turn_here(&mut self) {
        if self.tree().is_restartable() {
            let key = self.key;
            self.words.turn(|keeper| words_here(keeper.tree(), key));
        }
    }

    #[inline]
    fn less(&self, bytes: Bytes) -> Bytes {
        match self.bytes.checked_sub(bytes) {
            Some(rest) => rest,
            None => self.refuse(bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, bytes: Bytes) -> ! {
        panic!("a charge of {} does not hold {bytes}", self.bytes)
    }
}

impl<K: Keeper> Drop for Held<K> {
    #[inline]
    fn drop(&mut self) {
        if self.bytes > Bytes::ZERO {
            self.give_back(self.bytes);
        }
    }
}

/// Parks `bytes` in a group's own word and in the chain word above, by plain stores.
#[inline(always)]
fn park_both(words: &Words, above: &Slot, bytes: Bytes) -> Made {
    near_above(above, words).map_or(Made::None, |near| {
        Cell::park_both_here(&words.own, &near.chain, bytes.0)
    })
}

/// Returns the words of the same number in the slot above that of `own`: the root's is its own, and
/// has nothing above.
#[inline(always)]
fn near_above<'a>(above: &'a Slot, own: &Words) -> Option<&'a Words> {
    let near = above.find_words(own.index());
    near.filter(|near| !std::ptr::eq(*near, own))
}

/// Returns the words of a group that the thread steps.
fn words_here(tree: &Groups, key: GroupKey) -> &Words {
    let slot = tree.slot(key.id);
    slot.words(slot.index(ActingCpu::Here))
}

/// Returns the slot of a group, and that of the group above, or its own for the root.
fn slots(tree: &Groups, key: GroupKey) -> (&Slot, &Slot) {
    let slot = tree.slot(key.id);
    let above = slot.parent().map_or(slot, |parent| tree.slot(parent));
    (slot, above)
}
