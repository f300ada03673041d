//! Decides whether there is room: makes room by stealing tokens, proves a refusal, and decides
//! alone.
//!
//! # Why a refusal is right
//!
//! A charge of `k` is refused at a group A only if at some moment within the call no byte of A was
//! in escrow, none below A was in flight, and A had less than `k` room, so that `used + k > max` at
//! that moment. (The own words of groups below A have no bytes of A: `steps.rs`.) `Groups::judge`
//! finds such a moment by two passes (a double collect): a first pass over all words below A sees
//! no tokens of A and nothing in flight; then A's balance has no room; then a second pass sees the
//! same with equal sequences. A sequence grows when tokens appear or an operation begins, so at the
//! moment of the balance every word was as both passes saw it, minus tokens taken: zero. The lock
//! of the tree keeps the set of groups the same meanwhile. If `k` alone exceeds the maximum of a
//! group on the way, that group refuses, whichever is full: no tokens need to be stolen.
//!
//! Parking never makes another charge fail: parked bytes are found and stolen first. Nor does a
//! charge that reserves at A and is then refused higher up: it is in flight until it has undone
//! that, and the other waits for it, without a lock.
//!
//! # What a moment is
//!
//! The moments above are those of the one order in which stores become visible. In the atomic
//! regime that is the order of `SeqCst`. In the restartable regime a thread steps a word of its own
//! CPU by a plain store, which on x86-64 (the one system that has this regime) becomes visible some
//! time after the thread has gone on, but at one moment for all CPUs, and after every earlier store
//! of that thread. Until then all other threads see the word as before, and in the order of moments
//! it *is* as before: an uncharge whose tokens are not visible has not happened yet, unless another
//! thread knows of it, and that knowledge came by a later store. What remains are the operations
//! that store first and load afterwards:
//!
//! - A refill marks itself in flight, by a step with a fence
//!   ([`Cell::begin`](crate::group::state::Cell::begin)), and then reads the incarnation and the
//!   gate. Removal and a charge that decides alone write those by locked instructions before they
//!   read the words. One of the two notices the other.
//! - A charge that judges begins by taking the tree's lock, a locked instruction: all earlier
//!   stores of its own thread are visible before its pass. From then on it stores by locked
//!   instructions only.
//! - Stealing and retiring step a word of another CPU under a raised gate, after a membarrier:
//!   earlier stores of that CPU are visible, and a step in progress there restarts
//!   (`percpu::gated`). So stolen tokens were not taken before, and are not taken after. A word
//!   that shows no tokens is not stolen from, whatever is about to become visible there: that comes
//!   later in the order of moments.
//!
//! # Progress
//!
//! Every attempt that is neither granted nor refused was overtaken: another thread took the room
//! that stealing had made, deposited tokens, or was in flight. A busy subtree at its limit can do
//! that for ever, so after `Attempts::FREE` attempts the charge decides *alone*: with the tree's
//! lock for writing it closes the tree to new reservations, retires the words below the group
//! without room, and checks in one pass whether an operation that began earlier is still in flight.
//! If not, used equals reserved and stays so: the charge is made on the spot, or refused. (An
//! operation that begins later finds the tree closed, because it marks itself in flight before it
//! checks; it ends without having taken anything, and parks on the lock.) If one is in flight, its
//! thread was preempted in the middle: lock and tree are opened, the charge yields and then sleeps.
//! Operations in flight never wait for anything, so this ends when that thread runs; if it does not
//! run for `Attempts::LIMIT` attempts, the charge fails:
//! [`Contended`](crate::group::ChargeError::Contended). A charge that is polled never pauses: it
//! makes `Attempts::FREE` attempts and then queues (`wait.rs`), where no proof is needed.

use crate::group::state::{Balance, Groups, TreeShape};
use crate::units::GroupId;

use super::outcome::Refusal;
use super::reserve::Way;

impl Groups {
    /// Takes tokens back below `group` until it has room for `bytes`, or other threads' work leaves
    /// that open; fails if it proves that there is none. Serves a charge on `way`: while the lock
    /// is held, its groups stay if the first is still there, and `group` is one of them.
    pub(super) fn make_room(&self, way: Way, group: GroupId, bytes: u64) -> Result<(), Refusal> {
        // No charge begins to wait while this is held.
        let shape = self.read_shape();
        if !self.stays(way.key) {
            return Err(Refusal::Removed);
        }
        // First: a line makes no difference to a charge that never fits.
        if let Some((group, balance)) = self.never_fits(way, bytes) {
            let escrowed = self.look(&shape, group).tokens;
            return Err(self.full(&shape, group, balance, escrowed));
        }
        if self.slot(group).ledger.balance().has_waiters {
            return Err(Refusal::Behind(group));
        }
        self.judge(&shape, group, bytes)
    }

    /// Returns the first group on the way whose maximum is below `bytes`, also where a group below
    /// it is full: room there would not help.
    pub(in crate::group) fn never_fits(&self, way: Way, bytes: u64) -> Option<(GroupId, Balance)> {
        let mut balances = self
            .way(way)
            .map(|(group, slot)| (group, slot.ledger.balance()));
        balances.find(|(_, balance)| bytes > balance.ceiling().0)
    }

    /// Returns the proven refusal of a living group: the lock is proof that it stays.
    pub(super) fn full(
        &self,
        _shape: &TreeShape,
        group: GroupId,
        balance: Balance,
        escrowed: u64,
    ) -> Refusal {
        let meta = self.slot(group).meta.read().clone();
        Refusal::Full {
            meta: meta.expect("a living group has a name"),
            balance,
            escrowed,
        }
    }

    /// Implements "Why a refusal is right" above.
    fn judge(&self, shape: &TreeShape, group: GroupId, bytes: u64) -> Result<(), Refusal> {
        /// One to steal, two that agree, one spare.
        const PASSES: usize = 4;
        let ledger = &self.slot(group).ledger;
        let mut balance = ledger.balance();
        let mut before = None;
        for _ in 0..PASSES {
            if balance.room() >= bytes {
                return Ok(());
            }
            let Some(pass) = self.steal(shape, group, bytes) else {
                return Ok(());
            };
            if pass.tokens == 0 && before.is_some_and(|before| pass.is_as_before(before)) {
                return Err(self.full(shape, group, balance, 0));
            }
            before = Some(pass);
            balance = ledger.balance();
        }
        Ok(())
    }

    /// Charges or refuses with the tree closed to new reservations; see "Progress" above.
    pub(in crate::group) fn charge_alone(&self, way: Way, bytes: u64) -> Result<(), Refusal> {
        let shape = self.write_shape();
        if !self.stays(way.key) {
            return Err(Refusal::Removed);
        }
        let _closed = self.gate.close();
        for (group, slot) in self.way(way) {
            let balance = slot.ledger.balance();
            if balance.room() >= bytes {
                continue;
            }
            if balance.has_waiters {
                return Err(Refusal::Behind(group));
            }
            self.retire_subtree(&shape, group);
            if !self.look(&shape, group).is_still() {
                return Err(Refusal::Contended);
            }
            let balance = slot.ledger.balance();
            if balance.room() < bytes {
                return Err(self.full(&shape, group, balance, 0));
            }
        }
        // Only a refill that was in flight before the tree was closed can be faster.
        self.climb(way, bytes).map_err(|_| Refusal::Contended)
    }
}
