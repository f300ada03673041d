//! Charge and uncharge with escrow (the kernel's memcg stock): tokens on the CPU, reservations on
//! the ancestors. `proof.rs` decides whether there is room.
//!
//! A charge takes tokens from its CPU's word if they suffice: one step on a line of its own, which
//! in the restartable regime is a plain store (`percpu::gated`). Otherwise it *refills*: reserves
//! the bytes it needs, and a grant of tokens besides, on the group and each ancestor, leaf first.
//! When a group has no room, tokens are *stolen* back from every word in its subtree, and the
//! charge retries. An uncharge *parks* its bytes as tokens, and above the cap gives all but
//! [`GRANT_MAX`] back to the ancestors.
//!
//! # Invariant
//!
//! At every group and every moment, over its subtree:
//!
//! ```text
//! used + tokens + in flight == reserved <= max
//! ```
//!
//! where tokens are those of the group's own words and of the chain words of its subtree
//! (`steps.rs`), and *in flight* are bytes that an operation which has not returned carries. A
//! reservation exists before the tokens and charges it backs, and is released after them. Only
//! `Ledger::reserve` makes reservations grow, and it compares with the maximum in the same atomic
//! step; forced charges come on top, and are then in `used` and `reserved` alike.
//!
//! # Above the maximum
//!
//! When a maximum is set below the reservations, or a charge is forced (`debt.rs`), all words in
//! the subtree are retired first: charges then reserve what they need, which fails, and uncharges
//! go straight to the ancestors, so that usage can only fall. A word becomes live again when no
//! ancestor is above its maximum.
//!
//! Source: accounting spec 8.2, 8.3 (the kernel's counter and stock) and 11.10 (escrow).
//! Deviation: the kernel adds first and subtracts on failure, so a large failing charge makes a
//! small one fail; here a compare-and-swap never overshoots, and a pre-check without stores avoids
//! most reservations that would be undone. Deviation: the grant is divided by the number of live
//! words below the tightest ancestor, not of all CPUs: with many groups below one limit the words
//! outnumber the CPUs, with few active CPUs the grants need not be small.

use crate::group::error::ChargeError;
use crate::group::state::{ActingCpu, Cell, Ending, GRANT_MAX, GroupKey, Groups, Slot, Word};
use crate::units::{Bytes, GroupId};

use super::outcome::{Attempts, Refilled, Refusal};
use super::reserve::Way;

impl Groups {
    /// Charges `bytes` to the group and its ancestors.
    pub(in crate::group) fn charge(
        &self,
        key: GroupKey,
        actor: ActingCpu,
        bytes: u64,
    ) -> Result<Refilled, ChargeError> {
        let slot = self.slot(key.id);
        if take(slot, key, slot.index(actor), bytes) {
            return Ok(Refilled::NOTHING);
        }
        self.charge_after(key, actor, bytes)
    }

    /// Like [`Groups::charge`], after the word did not suffice.
    #[inline(never)]
    pub(in crate::group) fn charge_after(
        &self,
        key: GroupKey,
        actor: ActingCpu,
        bytes: u64,
    ) -> Result<Refilled, ChargeError> {
        if self.take_by_steps(key, self.slot(key.id).index(actor), bytes) {
            return Ok(Refilled::NOTHING);
        }
        self.charge_slow(key, actor, bytes, Attempts::new())
            .map_err(|refusal| self.refuse(key, refusal, bytes))
    }

    /// Like [`Groups::charge`], for a thread that polls: it does not pause for other threads. It
    /// counts no refusal.
    pub(in crate::group) fn charge_polled(
        &self,
        key: GroupKey,
        actor: ActingCpu,
        bytes: u64,
    ) -> Result<Refilled, Refusal> {
        let slot = self.slot(key.id);
        if take(slot, key, slot.index(actor), bytes) {
            return Ok(Refilled::NOTHING);
        }
        self.charge_slow(key, actor, bytes, Attempts::polled())
    }

    /// Charges within so many attempts, when the word does not suffice.
    pub(super) fn charge_slow(
        &self,
        key: GroupKey,
        actor: ActingCpu,
        bytes: u64,
        attempts: Attempts,
    ) -> Result<Refilled, Refusal> {
        let slot = self.slot(key.id);
        let way = Way::whole(key);
        self.persist(way, bytes, attempts, |attempts| {
            let index = slot.index(actor);
            let is_taken = !attempts.is_fresh() && take(slot, key, index, bytes);
            if is_taken || self.take_by_steps(key, index, bytes) {
                return Ok(Refilled::NOTHING);
            }
            let reserved = if attempts.is_over() {
                self.charge_alone(way, bytes).map(|()| bytes)
            } else {
                self.refill(key, actor, bytes)
            };
            Ok(Refilled(Bytes(reserved?)))
        })
    }

    /// Attempts a charge on a way until one succeeds, a refusal is proven, or attempts end. Makes
    /// room where an attempt found none.
    pub(super) fn persist<T>(
        &self,
        way: Way,
        bytes: u64,
        mut attempts: Attempts,
        attempt: impl Fn(&Attempts) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        loop {
            match attempt(&attempts) {
                Ok(done) => return Ok(done),
                Err(Refusal::Contended) => {}
                Err(Refusal::NoRoom(group)) => self.make_room(way, group, bytes)?,
                Err(proven) => return Err(proven),
            }
            if !attempts.wait() {
                let attempts = attempts.made();
                return Err(Refusal::Overtaken { attempts });
            }
        }
    }

    /// Uncharges `bytes` of the group. Waits for no lock, unless a charge waits at the group or
    /// above it: then for that of the wait queues.
    pub(in crate::group) fn uncharge(&self, id: GroupId, actor: ActingCpu, bytes: u64) {
        let slot = self.slot(id);
        let cell = &slot.words(slot.index(actor)).chain;
        if cell.update(|word| word.parked_whole(bytes)).is_err() {
            self.uncharge_slow(id, actor, bytes);
        }
    }

    #[inline(never)]
    fn uncharge_slow(&self, id: GroupId, actor: ActingCpu, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let slot = self.slot(id);
        let index = slot.index(actor);
        let is_live = |cell: &Cell| cell.load().is_live();
        if !slot.words(index).both().into_iter().any(is_live) {
            self.try_enlist(id, slot, index);
        }
        self.uncharge_by_steps(id, index, bytes);
    }

    /// Reserves `bytes` and a grant of tokens on the whole chain, or level by level if the group
    /// has no chain word on its CPU; returns how many in all.
    fn refill(&self, key: GroupKey, actor: ActingCpu, bytes: u64) -> Result<u64, Refusal> {
        let slot = self.slot(key.id);
        let index = slot.index(actor);
        let words = slot.words(index);
        let cell = &words.chain;
        if !cell.load().is_live() {
            // Before anything is in flight, as below.
            let check = self.check_steps(key.id, index, bytes);
            if !slot.lives(key.incarnation) {
                return Err(Refusal::Removed);
            }
            check?;
            self.enlist(key, slot, index);
            if !cell.load().is_live() {
                return self.refill_by_steps(key, actor, bytes);
            }
        }
        // Checks before anything is in flight: charges to a full group do not make one another
        // wait.
        let plan = self.plan(key.id, bytes);
        if !slot.lives(key.incarnation) {
            return Err(Refusal::Removed);
        }
        let grant = plan?;
        slot.touch(index);
        self.begin(key, slot, cell)?;
        // They may have become live just before the group began, and not know it.
        words.tell(key.incarnation);
        let grant = cell.load().fit(grant);
        let way = Way::whole(key);
        let ending = Ending(|| cell.end());
        let climbed = match self.climb(way, bytes + grant) {
            Ok(()) => Ok(grant),
            Err(_) if grant > 0 => self.climb(way, bytes).map(|()| 0),
            Err(refusal) => Err(refusal),
        };
        let grant = climbed?;
        std::mem::forget(ending);
        self.settle(key.id, cell, grant);
        Ok(bytes + grant)
    }

    /// Checks for room on the whole chain, without a store, and sizes the grant: at most
    /// [`GRANT_MAX`], and at most a fair share of half of the room that would be left at the
    /// tightest group.
    fn plan(&self, id: GroupId, bytes: u64) -> Result<u64, Refusal> {
        let mut grant = GRANT_MAX;
        for (group, slot) in self.chain(id) {
            let left = slot.ledger.balance().room().checked_sub(bytes);
            let left = left.ok_or(Refusal::NoRoom(group))?;
            grant = grant.min(left / (2 * slot.holders().max(1)));
        }
        Ok(grant)
    }

    /// Ends a refill: leaves its grant in the word, or gives back the part that the word may not
    /// hold.
    fn settle(&self, id: GroupId, cell: &Cell, grant: u64) {
        let granted = cell.update(|word| Some(word.granted(grant)));
        let rest = granted.map_or(grant, |before| grant - before.fit(grant));
        if rest > 0 {
            let _ending = Ending(|| cell.end());
            self.give_back(id, rest);
        }
    }
}

/// Takes tokens from word number `index` if the handle is still good and they suffice.
#[inline]
pub(super) fn take(slot: &Slot, key: GroupKey, index: usize, bytes: u64) -> bool {
    let words = slot.words(index);
    let taken = |word: Word| {
        // Between the load of the word and its step; see `state/slot.rs`.
        word.taken(bytes).filter(|_| words.is_for(key.incarnation))
    };
    words.chain.update(taken).is_ok()
}
