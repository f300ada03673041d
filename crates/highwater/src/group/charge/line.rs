//! Releasing reservations, which wakes waiting charges; and the steps of a waiter between queues.
//!
//! Why no waiter sleeps while enough bytes are free: `wait.rs`.

use crate::group::state::{GroupKey, Groups, Lines, Site, Slot, Ticket, Wakes};
use crate::units::GroupId;

impl Groups {
    /// Gives reservations of one group back, and wakes its waiters.
    pub(in crate::group) fn release(&self, at: GroupId, slot: &Slot, bytes: u64) {
        if slot.ledger.release(bytes) {
            self.notify(at);
        }
    }

    /// Gives reservations back on the whole chain, leaf first.
    pub(super) fn give_back(&self, id: GroupId, bytes: u64) {
        for (at, slot) in self.chain(id) {
            self.release(at, slot, bytes);
        }
    }

    /// Gives tokens of a word back, leaf first.
    pub(super) fn give_back_at(&self, site: Site, bytes: u64) {
        for (at, slot) in self.ledgers(site) {
            self.release(at, slot, bytes);
        }
    }

    /// Wakes the waiters queued at `group` that can act.
    fn notify(&self, group: GroupId) {
        let mut wakes = Wakes::default();
        let mut lines = self.lines();
        lines.call_decided(group, self.slot(group).ledger.balance(), &mut wakes);
        drop(lines);
        wakes.wake();
    }

    /// Wakes the waiters queued at `group` that fit below its new maximum, and those that charge
    /// below it, wherever they are queued, that never will.
    pub(in crate::group) fn notify_of_max(&self, group: GroupId) {
        let mut wakes = Wakes::default();
        let mut lines = self.lines();
        let balance = self.slot(group).ledger.balance();
        lines.call_decided(group, balance, &mut wakes);
        // Queued, so its group is there: it is removed after its waiters have left.
        let is_below = |key: GroupKey| self.chain(key.id).any(|(at, _)| at == group);
        lines.call_too_large(is_below, balance.ceiling(), &mut wakes);
        drop(lines);
        wakes.wake();
    }

    /// Queues a waiter at `group`, and marks the group's ledger. The caller holds the tree's lock
    /// for writing and retires the words below `group` next.
    pub(super) fn stand_at(
        &self,
        lines: &mut Lines,
        ticket: Ticket,
        group: GroupId,
        wakes: &mut Wakes,
    ) {
        self.step_out(lines, ticket, wakes);
        lines.step_in(ticket, group);
        self.slot(group).ledger.mark_waiters();
    }

    /// Dequeues a waiter and forgets it.
    pub(in crate::group) fn leave(&self, lines: &mut Lines, ticket: Ticket, wakes: &mut Wakes) {
        self.step_out(lines, ticket, wakes);
        wakes.forget(lines.forget(ticket));
    }

    /// Dequeues a waiter; those behind it that now have room are woken.
    fn step_out(&self, lines: &mut Lines, ticket: Ticket, wakes: &mut Wakes) {
        let Some(group) = lines.step_out(ticket) else {
            return;
        };
        let ledger = &self.slot(group).ledger;
        if lines.first_at(group).is_none() {
            ledger.clear_waiters();
        } else {
            lines.call_decided(group, ledger.balance(), wakes);
        }
    }

    /// Dequeues and wakes all waiters that charge to `key`, which was removed; they see the removal
    /// when they poll. The caller holds the tree's lock for writing.
    pub(in crate::group) fn turn_away(&self, key: GroupKey, wakes: &mut Wakes) {
        let is_awaited = |(_, slot): (GroupId, &Slot)| slot.ledger.balance().has_waiters;
        if !self.chain(key.id).any(is_awaited) {
            return;
        }
        let mut lines = self.lines();
        for ticket in lines.of(key) {
            self.step_out(&mut lines, ticket, wakes);
            if let Some(waker) = lines.set_waker(ticket, None) {
                wakes.call(waker);
            }
        }
    }
}
