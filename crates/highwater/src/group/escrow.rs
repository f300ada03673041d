//! Charge and uncharge with escrow (the kernel's memcg stock): tokens on the CPU, reservations on
//! the ancestors. `judge.rs` decides whether there is room.
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
//! where *in flight* are bytes that an operation which has not returned carries. A reservation
//! exists before the tokens and charges it backs, and is released after them. Only
//! [`Ledger::reserve`] makes reservations grow, and it compares with the maximum in the same atomic
//! step; forced charges come on top, and are then in `used` and `reserved` alike.
//!
//! [`Ledger::reserve`]: super::ledger::Ledger::reserve
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

use std::ops::ControlFlow;

use crate::sync::thread;
use crate::units::{Bytes, GroupId};

use super::DEPTH_MAX;
use super::cell::{Cell, GRANT_MAX, OpenCell, Word};
use super::error::ChargeError;
use super::far::Far;
use super::judge::Full;
use super::limits::Event;
use super::path::GroupPath;
use super::slot::{Actor, Slot};
use super::throttle::Refilled;
use super::transfer::Climb;
use super::tree::{Core, GroupKey, Shape};

/// Why a charge, or one attempt at it, did not happen.
pub(super) enum Refusal {
    /// No room at that group, as an attempt looked: not proven, and not why a charge gives up.
    NoRoom(GroupId),
    /// No room at that group, proven.
    Full(Full),
    /// Other charges wait for room at that group.
    Behind(GroupId),
    /// The group to charge is removed.
    Removed,
    /// An attempt was overtaken: another charge decides alone, or 4,095 operations are in flight in
    /// one word. A charge gives up when all of its attempts are.
    Contended,
}

/// How often a charge that is overtaken tries again, and how it waits.
pub(super) struct Patience {
    attempts: u32,
}

impl Patience {
    /// Attempts beside other charges, before the charge decides alone. Chosen: the overtaking
    /// operation has usually ended by the next attempt, and deciding alone stops all other refills.
    #[cfg(not(loom))]
    const FREE: u32 = 8;
    /// All attempts. Chosen: with the waits below about a quarter of a second, many time slices of
    /// a thread that was preempted in flight.
    #[cfg(not(loom))]
    const LIMIT: u32 = 300;
    #[cfg(loom)]
    const FREE: u32 = 1;
    #[cfg(loom)]
    const LIMIT: u32 = 100;

    pub(super) const fn new() -> Self {
        Self { attempts: 0 }
    }

    /// Whether the next attempt is the first.
    fn is_fresh(&self) -> bool {
        self.attempts == 0
    }

    /// Whether the next attempt is made alone.
    pub(super) fn is_over(&self) -> bool {
        self.attempts >= Self::FREE
    }

    /// Waits before the next attempt; `false` when there is none.
    pub(super) fn wait(&mut self) -> bool {
        self.attempts += 1;
        #[cfg(loom)]
        thread::yield_now();
        #[cfg(not(loom))]
        match self.attempts {
            0..9 => {}
            9..40 => thread::yield_now(),
            _ => thread::sleep(std::time::Duration::from_millis(1)),
        }
        self.attempts < Self::LIMIT
    }
}

impl Core {
    /// Charges `bytes` to the group and its ancestors.
    pub(super) fn charge(
        &self,
        key: GroupKey,
        actor: Actor,
        bytes: u64,
    ) -> Result<Refilled, ChargeError> {
        let slot = self.slot(key.id);
        if take(slot, key, slot.index(actor), bytes) {
            return Ok(Refilled::NOTHING);
        }
        self.charge_after(key, actor, bytes)
    }

    /// Like [`Core::charge`], after the word did not suffice.
    #[inline(never)]
    pub(super) fn charge_after(
        &self,
        key: GroupKey,
        actor: Actor,
        bytes: u64,
    ) -> Result<Refilled, ChargeError> {
        self.charge_slow(key, actor, bytes)
            .map_err(|refusal| self.refuse(key, refusal, bytes))
    }

    /// Like [`Core::charge`], without counting a refusal.
    pub(super) fn charge_uncounted(
        &self,
        key: GroupKey,
        actor: Actor,
        bytes: u64,
    ) -> Result<Refilled, Refusal> {
        let slot = self.slot(key.id);
        if take(slot, key, slot.index(actor), bytes) {
            return Ok(Refilled::NOTHING);
        }
        self.charge_slow(key, actor, bytes)
    }

    /// Like [`Core::charge_uncounted`], when the word does not suffice.
    fn charge_slow(&self, key: GroupKey, actor: Actor, bytes: u64) -> Result<Refilled, Refusal> {
        let slot = self.slot(key.id);
        self.persist(key, bytes, |patience| {
            if !patience.is_fresh() && take(slot, key, slot.index(actor), bytes) {
                return Ok(Refilled::NOTHING);
            }
            let reserved = if patience.is_over() {
                self.charge_alone(Climb::whole(key), bytes).map(|()| bytes)
            } else {
                self.refill(key, actor, bytes)
            };
            Ok(Refilled(Bytes(reserved?)))
        })
    }

    /// Attempts a charge to `key` until one succeeds, a refusal is proven, or patience ends. Makes
    /// room where an attempt found none.
    pub(super) fn persist<T>(
        &self,
        key: GroupKey,
        bytes: u64,
        attempt: impl Fn(&Patience) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut patience = Patience::new();
        loop {
            match attempt(&patience) {
                Ok(done) => return Ok(done),
                Err(Refusal::Contended) => {}
                Err(Refusal::NoRoom(group)) => self.make_room(key, group, bytes)?,
                Err(proven) => return Err(proven),
            }
            if !patience.wait() {
                return Err(Refusal::Contended);
            }
        }
    }

    /// Begins an operation in a word of the group to charge: in flight until [`Cell::end`], so that
    /// no slot above it is reused.
    pub(super) fn begin(&self, key: GroupKey, slot: &Slot, cell: &Cell) -> Result<(), Refusal> {
        cell.begin().map_err(|_| Refusal::Contended)?;
        if slot.incarnation() != key.incarnation {
            cell.end();
            return Err(Refusal::Removed);
        }
        if self.gate.is_closed() {
            cell.end();
            // Parks until the charge that decides alone is done.
            drop(self.shape.read());
            return Err(Refusal::Contended);
        }
        Ok(())
    }

    /// Counts a refusal and returns the error.
    #[cold]
    pub(super) fn refuse(&self, key: GroupKey, refusal: Refusal, bytes: u64) -> ChargeError {
        let full = match refusal {
            Refusal::Full(full) => full,
            Refusal::Behind(group) => {
                return ChargeError::Behind {
                    group: self.path_now(group),
                    requested: Bytes(bytes),
                    nr_waiting: self.lines().len_at(group),
                };
            }
            Refusal::Removed => {
                return ChargeError::Removed {
                    group: self.path(key),
                };
            }
            Refusal::NoRoom(_) | Refusal::Contended => {
                return ChargeError::Contended {
                    group: self.path(key),
                    requested: Bytes(bytes),
                    attempts: Patience::LIMIT,
                };
            }
        };
        full.meta.record(Event::Max);
        ChargeError::OverMax {
            group: GroupPath::of(&full.meta),
            requested: Bytes(bytes),
            max: full.balance.ceiling(),
            usage: Bytes(full.balance.reserved.saturating_sub(full.escrowed)),
            escrowed: Bytes(full.escrowed),
        }
    }

    /// Counts an event at a group, if it is still known.
    pub(super) fn record(&self, group: GroupId, event: Event) {
        if let Some(meta) = &*self.slot(group).meta.read() {
            meta.record(event);
        }
    }

    /// Uncharges `bytes` of the group. Takes no lock that it would have to wait for.
    pub(super) fn uncharge(&self, id: GroupId, actor: Actor, bytes: u64) {
        let slot = self.slot(id);
        let cell = slot.cell(slot.index(actor));
        if cell.update(|word| word.parked_whole(bytes)).is_err() {
            self.uncharge_slow(id, actor, bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn uncharge_slow(&self, id: GroupId, actor: Actor, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let slot = self.slot(id);
        let index = slot.index(actor);
        let cell = slot.cell(index);
        if !cell.load().is_live() {
            self.try_enlist(id, slot, index);
        }
        match cell.update(|word| word.parked(bytes)) {
            Ok(before) => {
                let spilled = before.spilled(bytes);
                if spilled > 0 {
                    self.give_back(id, spilled);
                    cell.end();
                }
            }
            Err(_) => self.give_back(id, bytes),
        }
    }

    /// Reserves `bytes` and a grant of tokens on the whole chain; returns how many in all.
    fn refill(&self, key: GroupKey, actor: Actor, bytes: u64) -> Result<u64, Refusal> {
        let slot = self.slot(key.id);
        let index = slot.index(actor);
        let cell = slot.cell(index);
        // Checks before anything is in flight: charges to a full group do not make one another
        // wait.
        let plan = self.plan(key.id, bytes);
        if slot.incarnation() != key.incarnation {
            return Err(Refusal::Removed);
        }
        let grant = plan.map_err(Refusal::NoRoom)?;
        self.enlist(key, slot, index);
        slot.touch(index);
        self.begin(key, slot, cell)?;
        let grant = cell.load().fit(grant);
        let way = Climb::whole(key);
        let climbed = match self.climb(way, bytes + grant) {
            Ok(()) => Ok(grant),
            Err(_) if grant > 0 => self.climb(way, bytes).map(|()| 0),
            Err(group) => Err(group),
        };
        match climbed {
            Ok(grant) => {
                self.settle(key.id, cell, grant);
                Ok(bytes + grant)
            }
            Err(group) => {
                cell.end();
                Err(Refusal::NoRoom(group))
            }
        }
    }

    /// Checks for room on the whole chain, without a store, and sizes the grant: at most
    /// [`GRANT_MAX`], and at most a fair share of half of the room that would be left at the
    /// tightest group.
    fn plan(&self, id: GroupId, bytes: u64) -> Result<u64, GroupId> {
        let mut grant = GRANT_MAX;
        for (at, slot) in self.chain(id) {
            let left = slot.ledger.balance().room().checked_sub(bytes).ok_or(at)?;
            grant = grant.min(left / (2 * slot.holders().max(1)));
        }
        Ok(grant)
    }

    /// Reserves `bytes` on the whole way, or on none of it and returns the group without room.
    pub(super) fn climb(&self, way: Climb, bytes: u64) -> Result<(), GroupId> {
        let mut seen = [0; DEPTH_MAX as usize + 1];
        for (nth, (at, slot)) in self.way(way).enumerate() {
            match slot.ledger.reserve(bytes) {
                Ok(reserved) => seen[nth] = reserved,
                Err(_) => {
                    for (at, slot) in self.way(way).take(nth) {
                        self.release(at, slot, bytes);
                    }
                    return Err(at);
                }
            }
        }
        for ((_, slot), reserved) in self.way(way).zip(seen) {
            slot.ledger.raise_peak(reserved);
        }
        Ok(())
    }

    /// Ends a refill: leaves its grant in the word, or gives back the part that the word may not
    /// hold.
    fn settle(&self, id: GroupId, cell: &Cell, grant: u64) {
        let granted = cell.update(|word| Some(word.granted(grant)));
        let rest = granted.map_or(grant, |before| grant - before.fit(grant));
        if rest > 0 {
            self.give_back(id, rest);
            cell.end();
        }
    }

    /// Gives reservations back on the whole chain, leaf first.
    pub(super) fn give_back(&self, id: GroupId, bytes: u64) {
        for (at, slot) in self.chain(id) {
            self.release(at, slot, bytes);
        }
    }

    /// Lets word number `index` hold tokens, unless the group is removed, or an ancestor is above
    /// its maximum or has a charge waiting for room. Waits for the tree's lock, once for each CPU
    /// of a group.
    fn enlist(&self, key: GroupKey, slot: &Slot, index: usize) {
        if slot.cell(index).load().is_live() {
            return;
        }
        let shape = self.shape.read();
        if slot.incarnation() == key.incarnation {
            self.make_live(&shape, key.id, slot, index);
        }
    }

    /// Like [`Core::enlist`], for a group to which the caller has bytes charged, if the lock is
    /// free.
    fn try_enlist(&self, id: GroupId, slot: &Slot, index: usize) {
        if let Some(shape) = self.shape.try_read()
            && slot.is_alive()
        {
            self.make_live(&shape, id, slot, index);
        }
    }

    /// Counts the word on the chain, then makes it live. The lock is proof that nothing is retired
    /// and no maximum lowered meanwhile.
    fn make_live(&self, _shape: &Shape, id: GroupId, slot: &Slot, index: usize) {
        let is_over = |(_, slot): (GroupId, &Slot)| {
            let balance = slot.ledger.balance();
            balance.debt() > 0 || balance.has_waiters
        };
        if self.chain(id).any(is_over) {
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
    pub(super) fn retire(&self, id: GroupId) {
        let mut far = Far::none();
        self.retire_or_add(id, self.slot(id), &mut far);
        self.retire_far(&mut far);
    }

    /// Like [`Core::retire`], for a group and everything below it.
    pub(super) fn retire_subtree(&self, shape: &Shape, top: GroupId) {
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

/// Takes tokens from word number `index` if the handle is still good and they suffice.
#[inline]
pub(super) fn take(slot: &Slot, key: GroupKey, index: usize, bytes: u64) -> bool {
    // The incarnation is read between the load of the word and its step; see `slot.rs`.
    slot.cell(index)
        .update(|word| {
            word.taken(bytes)
                .filter(|_| slot.incarnation() == key.incarnation)
        })
        .is_ok()
}
