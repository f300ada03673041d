//! Wait queues (FIFO) of charges that wait for room, one per group.
//!
//! A waiting charge has a ticket, drawn when it began to wait, and is queued at one group: the one
//! that had no room for it, or that had an older ticket queued. A queue is ordered by ticket, so a
//! waiter that moves from one queue to another keeps its position in time. While a queue is not
//! empty its group's ledger is marked, in the word that every reservation and release changes
//! anyway.
//!
//! Invariant, under the lock of the queues: a group's ledger is marked if and only if a waiter is
//! queued at it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::task::Waker;

use crate::sync::{LockClass, Mutex, MutexGuard, Rank};
use crate::units::GroupId;

use super::slot::Slot;
use super::tree::{Core, GroupKey};

static LINES: LockClass = LockClass::new("group lines", Rank::Leaf);

/// The order of arrival (FIFO). Never repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// A charge that waits (wait queue entry).
#[derive(Debug)]
struct Waiter {
    key: GroupKey,
    bytes: u64,
    /// The group at which it is queued; `None` when its group was removed.
    stands_at: Option<GroupId>,
    /// The waker; `None` while the waiter is being polled or was woken.
    waker: Option<Waker>,
    calls: Calls,
}

/// When the first waiter of a queue is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Calls {
    /// When there is room for it, or can never be.
    WhenDecided,
    /// Also at each release, and when it becomes the first.
    Always,
}

/// The wait queues of all groups.
#[derive(Debug, Default)]
pub(super) struct Lines {
    waiters: BTreeMap<Ticket, Waiter>,
    order: BTreeSet<(GroupId, Ticket)>,
    next: u64,
}

impl Lines {
    pub(super) fn none() -> Mutex<Self> {
        Mutex::new(&LINES, Self::default())
    }

    /// Returns a ticket for a charge that is not queued yet.
    pub(super) fn enter(&mut self, key: GroupKey, bytes: u64, calls: Calls) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let waiter = Waiter {
            key,
            bytes,
            stands_at: None,
            waker: None,
            calls,
        };
        self.waiters.insert(ticket, waiter);
        ticket
    }

    /// Returns the oldest ticket queued at `group`.
    pub(super) fn first_at(&self, group: GroupId) -> Option<Ticket> {
        let first = self.order.range(line_at(group)).next();
        first.map(|(_, ticket)| *ticket)
    }

    /// Returns the bytes wanted by waiters at `group` that are older than `ticket`.
    pub(super) fn bytes_ahead(&self, group: GroupId, ticket: Ticket) -> u64 {
        let ahead = self.order.range((group, Ticket(0))..(group, ticket));
        let waiters = ahead.filter_map(|(_, ticket)| self.waiters.get(ticket));
        waiters.fold(0, |sum, waiter| sum.saturating_add(waiter.bytes))
    }

    /// Returns the number of waiters queued at `group`.
    pub(super) fn len_at(&self, group: GroupId) -> usize {
        self.order.range(line_at(group)).count()
    }

    pub(super) fn stands_at(&self, ticket: Ticket) -> Option<GroupId> {
        self.waiters.get(&ticket)?.stands_at
    }

    /// Replaces the waker. The caller drops the former one when it holds no lock: dropping it may
    /// run any code.
    #[must_use = "a waker is dropped when no lock is held"]
    pub(super) fn set_waker(&mut self, ticket: Ticket, waker: Option<Waker>) -> Option<Waker> {
        match self.waiters.get_mut(&ticket) {
            Some(waiter) => std::mem::replace(&mut waiter.waker, waker),
            None => waker,
        }
    }

    /// Returns the waiters that charge to `key`.
    fn of(&self, key: GroupKey) -> Vec<Ticket> {
        let of_key = self.waiters.iter().filter(|(_, waiter)| waiter.key == key);
        of_key.map(|(ticket, _)| *ticket).collect()
    }
}

/// Returns the range of all waiters queued at `group`.
const fn line_at(group: GroupId) -> RangeInclusive<(GroupId, Ticket)> {
    (group, Ticket(0))..=(group, Ticket(u64::MAX))
}

/// Wakers to call, and others to drop, once no lock is held: both may run any code.
#[derive(Debug, Default)]
#[must_use = "a waiter that is not woken waits for ever"]
pub(super) struct Wakes {
    called: Vec<Waker>,
    dropped: Vec<Waker>,
}

impl Wakes {
    /// Calls them. The caller holds no lock of the tree.
    pub(super) fn wake(self) {
        self.called.into_iter().for_each(Waker::wake);
        drop(self.dropped);
    }

    pub(super) fn call(&mut self, waker: Waker) {
        self.called.push(waker);
    }

    pub(super) fn forget(&mut self, waker: Option<Waker>) {
        self.dropped.extend(waker);
    }
}

impl Core {
    /// Locks the wait queues.
    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock()
    }

    /// Wakes the waiters queued at `group` that can act: there is room for it and all before it,
    /// there can never be, or it is the first and watches.
    pub(super) fn notify(&self, group: GroupId) {
        let mut wakes = Wakes::default();
        self.call_decided(&mut self.lines(), group, &mut wakes);
        wakes.wake();
    }

    fn call_decided(&self, lines: &mut Lines, group: GroupId, wakes: &mut Wakes) {
        let balance = self.slot(group).ledger.balance();
        let Lines { waiters, order, .. } = lines;
        let mut room = balance.room_in_turn();
        for (nth, (_, ticket)) in order.range(line_at(group)).enumerate() {
            let Some(waiter) = waiters.get_mut(ticket) else {
                return;
            };
            let (has_room, watches) = (waiter.bytes <= room, waiter.calls == Calls::Always);
            if has_room || waiter.bytes > balance.ceiling().0 || watches && nth == 0 {
                wakes.called.extend(waiter.waker.take());
            }
            if !has_room {
                return;
            }
            room -= waiter.bytes;
        }
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
        if let Some(waiter) = lines.waiters.get_mut(&ticket) {
            waiter.stands_at = Some(group);
            lines.order.insert((group, ticket));
            self.slot(group).ledger.mark_waiters();
        }
    }

    /// Dequeues a waiter and forgets it.
    pub(super) fn leave(&self, lines: &mut Lines, ticket: Ticket, wakes: &mut Wakes) {
        self.step_out(lines, ticket, wakes);
        let waiter = lines.waiters.remove(&ticket);
        wakes.forget(waiter.and_then(|waiter| waiter.waker));
    }

    /// Dequeues a waiter; those behind it that now have room are woken.
    fn step_out(&self, lines: &mut Lines, ticket: Ticket, wakes: &mut Wakes) {
        let waiter = lines.waiters.get_mut(&ticket);
        let Some(group) = waiter.and_then(|waiter| waiter.stands_at.take()) else {
            return;
        };
        lines.order.remove(&(group, ticket));
        if lines.first_at(group).is_none() {
            self.slot(group).ledger.clear_waiters();
        } else {
            self.call_decided(lines, group, wakes);
        }
    }

    /// Dequeues and wakes all waiters that charge to `key`, which was removed; they see the removal
    /// when they poll. The caller holds the tree's lock for writing.
    pub(super) fn turn_away(&self, key: GroupKey, wakes: &mut Wakes) {
        let is_awaited = |(_, slot): (GroupId, &Slot)| slot.ledger.balance().has_waiters;
        if !self.chain(key.id).any(is_awaited) {
            return;
        }
        let mut lines = self.lines();
        for ticket in lines.of(key) {
            self.step_out(&mut lines, ticket, wakes);
            let waiter = lines.waiters.get_mut(&ticket);
            wakes
                .called
                .extend(waiter.and_then(|waiter| waiter.waker.take()));
        }
    }

    /// Gives reservations of one group back, and wakes its waiters.
    pub(super) fn release(&self, at: GroupId, slot: &Slot, bytes: u64) {
        if slot.ledger.release(bytes) {
            self.notify(at);
        }
    }

    /// Checks that exactly the groups with waiters are marked.
    pub(super) fn check_line(&self, id: GroupId) {
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
}
