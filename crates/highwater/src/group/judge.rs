//! Decides whether there is room: passes over the token words of a subtree that steal tokens, prove
//! a refusal, decide alone, and read usage.
//!
//! # Why a refusal is right
//!
//! A charge of `k` is refused at a group A only if at some moment within the call no byte below A
//! was in escrow or in flight and A had less than `k` room, so that `used + k > max` at that
//! moment. `Core::judge` finds such a moment by two passes (a double collect): a first pass over
//! all words below A sees no tokens and nothing in flight; then A's balance has no room; then a
//! second pass sees the same with equal sequences. A sequence grows when tokens appear or an
//! operation begins, so at the moment of the balance every word was as both passes saw it, minus
//! tokens taken: zero. The lock of the tree keeps the set of groups the same meanwhile. If `k`
//! alone exceeds A's maximum, no tokens need to be stolen.
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
//!   ([`Cell::begin`](super::cell::Cell::begin)), and then reads the incarnation and the gate.
//!   Removal and a charge that decides alone write those by locked instructions before they read
//!   the words. One of the two notices the other.
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
//! that for ever, so after `Patience::FREE` attempts the charge decides *alone*: with the tree's
//! lock for writing it closes the tree to new reservations, retires the words below the group
//! without room, and checks in one pass whether an operation that began earlier is still in flight.
//! If not, used equals reserved and stays so: the charge is made on the spot, or refused. (An
//! operation that begins later finds the tree closed, because it marks itself in flight before it
//! checks; it ends without having taken anything, and parks on the lock.) If one is in flight, its
//! thread was preempted in the middle: lock and tree are opened, the charge yields and then sleeps.
//! Operations in flight never wait for anything, so this ends when that thread runs; if it does not
//! run for `Patience::LIMIT` attempts, the charge fails:
//! [`Contended`](super::ChargeError::Contended).

use std::ops::ControlFlow;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::units::{Bytes, Estimate, GroupId};

use super::cell::{CELL_MAX, InFlight, OpenCell, Word};
use super::escrow::Refusal;
use super::far::Far;
use super::ledger::Balance;
use super::node::Meta;
use super::slot::Slot;
use super::transfer::Climb;
use super::tree::{Core, GroupKey, Shape};

/// A moment at which a group had no room.
pub(super) struct Full {
    /// The group, which may be gone by the time the error is shown.
    pub(super) meta: Arc<Meta>,
    pub(super) balance: Balance,
    pub(super) escrowed: u64,
}

/// A breakdown of the bytes that a group and its descendants have reserved, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Account {
    /// All bytes that count against the maximum: `used + escrowed`.
    pub reserved: Bytes,
    /// Bytes in use.
    pub used: Bytes,
    /// Bytes in per-CPU token words, not used: any charge that needs them takes them.
    pub escrowed: Bytes,
    /// Bytes reserved above the maximum. While not zero, nothing is in escrow.
    pub debt: Bytes,
    /// Whether all of these values held at one moment. Otherwise each is off by at most the bytes
    /// that other threads charged and uncharged meanwhile.
    pub is_exact: bool,
}

/// The result of a pass without proof.
#[derive(Default)]
struct Glance {
    tokens: u64,
    /// Words that may hold tokens.
    live: u64,
}

impl Glance {
    /// Adds the words of one more group; returns how many there were.
    fn at(&mut self, slot: &Slot) -> usize {
        let (mut tokens, mut live) = (0, 0);
        let count = slot.each_touched(|cell| {
            let word = cell.load();
            tokens += word.tokens();
            live += u64::from(word.is_live());
        });
        self.tokens += tokens;
        self.live += live;
        count
    }
}

/// The result of a pass over the words of a subtree.
///
/// Two passes that are [alike](Self::is_as_before) saw the same in every word: a word whose
/// sequence grew is larger than before by more than any change of its lower half can offset, except
/// that of its tokens, which are summed apart; and where no sequence grew, tokens can only have
/// been taken.
#[derive(Clone, Copy, Default)]
struct Pass {
    tokens: u64,
    /// Sum of the words themselves, modulo 2^64.
    words: u64,
    /// Operations in flight in any of them.
    in_flight: InFlight,
}

impl Pass {
    #[inline]
    fn saw(&mut self, word: Word) {
        self.tokens += word.tokens();
        self.words = self.words.wrapping_add(word.raw());
        self.in_flight.saw(word);
    }

    /// Combines two passes over different words.
    fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            words: self.words.wrapping_add(other.words),
            in_flight: self.in_flight.and(other.in_flight),
        }
    }

    /// Whether this pass saw every byte in a reservation, in a word, or used.
    fn is_still(self) -> bool {
        self.in_flight.is_nothing()
    }

    /// Whether both passes were still and saw the same.
    fn is_as_before(self, before: Self) -> bool {
        let is_still = self.is_still() && before.is_still();
        is_still && self.tokens == before.tokens && self.words == before.words
    }
}

impl Core {
    /// Takes tokens back below `group` until it has room for `bytes`, or other threads' work leaves
    /// that open; fails if it proves that there is none. Serves a charge to `key`: while the lock
    /// is held, that group stays if it is still there, and `group` with it.
    pub(super) fn make_room(
        &self,
        key: GroupKey,
        group: GroupId,
        bytes: u64,
    ) -> Result<(), Refusal> {
        // No charge begins to wait while this is held.
        let shape = self.shape.read();
        if self.slot(key.id).incarnation() != key.incarnation {
            return Err(Refusal::Removed);
        }
        let balance = self.slot(group).ledger.balance();
        if balance.has_waiters {
            return Err(Refusal::Behind(group));
        }
        if bytes > balance.ceiling().0 {
            let escrowed = self.look(&shape, group).tokens;
            return Err(Refusal::Full(self.full(&shape, group, balance, escrowed)));
        }
        self.judge(&shape, group, bytes)
    }

    /// Returns the `Full` of a living group: the lock is proof that it stays.
    pub(super) fn full(
        &self,
        _shape: &Shape,
        group: GroupId,
        balance: Balance,
        escrowed: u64,
    ) -> Full {
        let meta = self.slot(group).meta.read().clone();
        Full {
            meta: meta.expect("a living group has a name"),
            balance,
            escrowed,
        }
    }

    /// Implements "Why a refusal is right" above.
    fn judge(&self, shape: &Shape, group: GroupId, bytes: u64) -> Result<(), Refusal> {
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
                return Err(Refusal::Full(self.full(shape, group, balance, 0)));
            }
            before = Some(pass);
            balance = ledger.balance();
        }
        Ok(())
    }

    /// Charges or refuses with the tree closed to new reservations; see "Progress" above.
    pub(super) fn charge_alone(&self, way: Climb, bytes: u64) -> Result<(), Refusal> {
        let shape = self.shape.write();
        if self.slot(way.key.id).incarnation() != way.key.incarnation {
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
                return Err(Refusal::Full(self.full(&shape, group, balance, 0)));
            }
        }
        // Only a refill that was in flight before the tree was closed can be faster.
        self.climb(way, bytes).map_err(|_| Refusal::Contended)
    }

    /// Takes tokens back in one pass until `group` has room for `bytes`, and returns `None` then.
    /// Otherwise returns the pass, whose tokens are those that it took.
    fn steal(&self, shape: &Shape, group: GroupId, bytes: u64) -> Option<Pass> {
        let ledger = &self.slot(group).ledger;
        let mut pass = Pass::default();
        let (mut far, mut far_pass) = (Far::none(), Pass::default());
        // Stolen tokens are in flight at their word until they are given back.
        let give_back = |id, tokens, end: &dyn Fn()| {
            self.give_back(id, tokens);
            end();
            match ledger.balance().room() >= bytes {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let mut steal_open = |id, open: &OpenCell<'_>| {
            let outcome = open.update(Word::stolen);
            far_pass.saw(outcome.unwrap_or_else(|word| word));
            match outcome {
                Ok(word) => give_back(id, word.tokens(), &|| open.end()),
                Err(_) => ControlFlow::Continue(()),
            }
        };
        let flow = self.walk(shape, group, &mut |id, slot| {
            for cell in slot.touched_cells() {
                match cell.update_near(Word::stolen) {
                    Some(Ok(word)) => {
                        pass.saw(word);
                        give_back(id, word.tokens(), &|| cell.end())?;
                    }
                    Some(Err(word)) => pass.saw(word),
                    None => far.add(id, cell, &mut steal_open)?,
                }
            }
            ControlFlow::Continue(())
        });
        let flow = flow.is_continue() && far.each(&mut steal_open).is_continue();
        flow.then(|| pass.and(far_pass))
    }

    /// Makes one pass that changes nothing.
    fn look(&self, shape: &Shape, group: GroupId) -> Pass {
        let mut pass = Pass::default();
        let _: ControlFlow<()> = self.walk(shape, group, &mut |_, slot| {
            // A local of its own, so that it stays in registers.
            let mut own = Pass::default();
            slot.each_touched(|cell| own.saw(cell.load()));
            pass = pass.and(own);
            ControlFlow::Continue(())
        });
        pass
    }

    /// Returns the bytes in escrow below `group`: exact when nothing is in flight.
    pub(super) fn escrowed(&self, group: GroupId) -> Bytes {
        Bytes(self.look(&self.shape.read(), group).tokens)
    }

    /// See [`GroupNode::usage`](super::GroupNode::usage).
    pub(super) fn usage(&self, group: GroupId) -> Estimate<Bytes> {
        let bounds = self.usage_bounds(group);
        let used = bounds.high.0.saturating_sub(self.tokens_about(group));
        Estimate {
            value: Bytes(used).max(bounds.low),
            ..bounds
        }
    }

    /// Like [`usage`](Self::usage), with the middle of the interval as the value, from four loads.
    pub(super) fn usage_bounds(&self, group: GroupId) -> Estimate<Bytes> {
        let slot = self.slot(group);
        let bounds = below(slot.ledger.balance().reserved, slot.holders());
        let middle = bounds.low.0.midpoint(bounds.high.0);
        Estimate {
            value: Bytes(middle),
            ..bounds
        }
    }

    /// Returns the tokens below `group` as far as a pass without proof sees them: those in its own
    /// words, and in words further down if the tree's lock is free. Each word not seen counts for
    /// half of what it may hold.
    fn tokens_about(&self, group: GroupId) -> u64 {
        /// Groups and words further down. Chosen: the words of two groups on 384 CPUs, a few
        /// microseconds; a read of the root of 50,000 groups must not become a walk.
        const LOOKS_MAX: usize = 1024;
        let slot = self.slot(group);
        let mut glance = Glance::default();
        glance.at(slot);
        let holders = slot.holders();
        if glance.live < holders
            && let Some(shape) = self.shape.try_read()
        {
            let mut looks = 0;
            let _: ControlFlow<()> = self.walk(&shape, group, &mut |id, slot| {
                if id != group {
                    looks += 1 + glance.at(slot);
                }
                match looks < LOOKS_MAX {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
        }
        let unseen = holders.saturating_sub(glance.live);
        glance.tokens + unseen.saturating_mul(CELL_MAX / 2)
    }

    /// See [`GroupNode::peak`](super::GroupNode::peak).
    pub(super) fn peak(&self, group: GroupId) -> Estimate<Bytes> {
        let slot = self.slot(group);
        below(slot.ledger.peak(), slot.holders_peak())
    }

    /// Returns the used part of a peak of `reserved` bytes; see
    /// [`GroupNode::peak`](super::GroupNode::peak).
    pub(super) fn used_at_peak(&self, group: GroupId, reserved: u64) -> Estimate<Bytes> {
        below(reserved, self.slot(group).holders_peak())
    }

    /// See [`GroupNode::account`](super::GroupNode::account).
    pub(super) fn account(&self, group: GroupId) -> Account {
        /// Chosen: each costs one pass; a subtree that changes during this many passes is busy, and
        /// the caller not merely unlucky.
        const PASSES: usize = 16;
        let shape = self.shape.read();
        let mut before = self.look(&shape, group);
        let mut account = Account::default();
        for _ in 0..PASSES {
            let balance = self.slot(group).ledger.balance();
            let pass = self.look(&shape, group);
            account = Account {
                reserved: Bytes(balance.reserved),
                used: Bytes(balance.reserved.saturating_sub(pass.tokens)),
                escrowed: Bytes(pass.tokens),
                debt: Bytes(balance.debt()),
                is_exact: pass.is_as_before(before),
            };
            if account.is_exact {
                break;
            }
            before = pass;
        }
        account
    }
}

/// Whether the tree is open to new reservations.
#[derive(Debug)]
pub(super) struct Gate(
    /// Written by: the charge that decides alone, under the tree's lock for writing. Read by:
    /// refills, after they have marked themselves in flight. Publishes: nothing.
    AtomicBool,
);

impl Gate {
    pub(super) fn open() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(super) fn is_closed(&self) -> bool {
        // Pairs with `close`. SeqCst: a refill marks itself and then reads this, the deciding
        // charge writes this and then reads the marks; acquire and release let both miss.
        self.0.load(Ordering::SeqCst)
    }

    /// Closes the tree until the result is dropped.
    fn close(&self) -> Closed<'_> {
        // Pairs with `is_closed`; SeqCst as there.
        self.0.store(true, Ordering::SeqCst);
        Closed(self)
    }
}

/// The tree is closed while this lives.
struct Closed<'a>(&'a Gate);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // Pairs with `is_closed`; SeqCst for uniformity: nothing depends on seeing it early.
        self.0.0.store(false, Ordering::SeqCst);
    }
}

/// Returns the used part of `reserved` bytes when `holders` words may hold tokens.
fn below(reserved: u64, holders: u64) -> Estimate<Bytes> {
    let tokens_max = holders.saturating_mul(CELL_MAX);
    Estimate {
        value: Bytes(reserved),
        low: Bytes(reserved.saturating_sub(tokens_max)),
        high: Bytes(reserved),
    }
}
