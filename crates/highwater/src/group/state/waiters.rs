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

use crate::sync::{LockClass, Mutex, Rank, Woken};
use crate::units::{Bytes, GroupId};

use super::ledger::Balance;
use super::meta::GroupKey;

static LINES: LockClass = LockClass::new("group lines", Rank::Leaf);

/// The order of arrival (FIFO). Never repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

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

/// The charges that wait at one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueView {
    /// The group.
    pub(crate) group: GroupId,
    /// Their number.
    pub(crate) charges: u64,
    /// Bytes that they ask for.
    pub(crate) bytes: Bytes,
    /// The oldest ticket.
    pub(crate) first: Ticket,
}

/// When the first waiter of a queue is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::group) enum Calls {
    /// When there is room for it, or can never be.
    WhenDecided,
    /// Also at each release, and when it becomes the first.
    Always,
}

/// The wait queues of all groups.
#[derive(Debug, Default)]
pub(in crate::group) struct Lines {
    waiters: BTreeMap<Ticket, Waiter>,
    order: BTreeSet<(GroupId, Ticket)>,
    next: u64,
}

impl Lines {
    pub(in crate::group) fn none() -> Mutex<Self> {
        Mutex::new(&LINES, Self::default())
    }

    /// Returns a ticket for a charge that is not queued yet.
    pub(in crate::group) fn enter(&mut self, key: GroupKey, bytes: u64, calls: Calls) -> Ticket {
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
    pub(in crate::group) fn first_at(&self, group: GroupId) -> Option<Ticket> {
        let first = self.order.range(line_at(group)).next();
        first.map(|(_, ticket)| *ticket)
    }

    /// Returns what the first at a group waits for.
    pub(in crate::group) fn bytes_of_first(&self, group: GroupId) -> Option<u64> {
        let first = self.first_at(group)?;
        self.waiters.get(&first).map(|waiter| waiter.bytes)
    }

    /// Returns the bytes wanted by waiters at `group` that are older than `ticket`.
    pub(in crate::group) fn bytes_ahead(&self, group: GroupId, ticket: Ticket) -> u64 {
        let ahead = self.order.range((group, Ticket(0))..(group, ticket));
        let waiters = ahead.filter_map(|(_, ticket)| self.waiters.get(ticket));
        waiters.fold(0, |sum, waiter| sum.saturating_add(waiter.bytes))
    }

    /// Returns the number of waiters queued at `group`.
    pub(in crate::group) fn len_at(&self, group: GroupId) -> usize {
        self.order.range(line_at(group)).count()
    }

    /// Adds a view of each queue to `views`, by group; or does nothing and returns false if more
    /// than `charges_max` charges wait.
    pub(in crate::group) fn views(&self, charges_max: usize, views: &mut Vec<QueueView>) -> bool {
        if self.order.len() > charges_max {
            return false;
        }
        for (group, ticket) in &self.order {
            let bytes = self.waiters.get(ticket).map_or(0, |waiter| waiter.bytes);
            match views.last_mut().filter(|view| view.group == *group) {
                Some(view) => {
                    view.charges += 1;
                    view.bytes = view.bytes.saturating_add(Bytes(bytes));
                }
                None => views.push(QueueView {
                    group: *group,
                    charges: 1,
                    bytes: Bytes(bytes),
                    first: *ticket,
                }),
            }
        }
        true
    }

    pub(in crate::group) fn stands_at(&self, ticket: Ticket) -> Option<GroupId> {
        self.waiters.get(&ticket)?.stands_at
    }

    /// Replaces the waker. The caller drops the former one when it holds no lock: dropping it may
    /// run any code.
    #[must_use = "a waker is dropped when no lock is held"]
    pub(in crate::group) fn set_waker(
        &mut self,
        ticket: Ticket,
        waker: Option<Waker>,
    ) -> Option<Waker> {
        match self.waiters.get_mut(&ticket) {
            Some(waiter) => std::mem::replace(&mut waiter.waker, waker),
            None => waker,
        }
    }

    /// Queues a waiter, which is in no queue, at `group`.
    pub(in crate::group) fn step_in(&mut self, ticket: Ticket, group: GroupId) {
        if let Some(waiter) = self.waiters.get_mut(&ticket) {
            waiter.stands_at = Some(group);
            self.order.insert((group, ticket));
        }
    }

    /// Dequeues a waiter; returns where it was queued.
    pub(in crate::group) fn step_out(&mut self, ticket: Ticket) -> Option<GroupId> {
        let group = self.waiters.get_mut(&ticket)?.stands_at.take()?;
        self.order.remove(&(group, ticket));
        Some(group)
    }

    /// Forgets a waiter, which is in no queue; returns its waker, to be dropped as by
    /// [`set_waker`](Self::set_waker).
    pub(in crate::group) fn forget(&mut self, ticket: Ticket) -> Option<Waker> {
        self.waiters.remove(&ticket)?.waker
    }

    /// Wakes the waiters queued at `group`, whose ledger shows `balance`, that can act: there is
    /// room for it and all before it, there can never be, or it is the first and watches.
    pub(in crate::group) fn call_decided(
        &mut self,
        group: GroupId,
        balance: Balance,
        wakes: &mut Wakes,
    ) {
        let Self { waiters, order, .. } = self;
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

    /// Wakes the queued waiters that ask for more than `ceiling`, of groups for which `is_below`
    /// holds.
    pub(in crate::group) fn call_too_large(
        &mut self,
        is_below: impl Fn(GroupKey) -> bool,
        ceiling: Bytes,
        wakes: &mut Wakes,
    ) {
        let too_large = |waiter: &&mut Waiter| {
            waiter.bytes > ceiling.0 && waiter.stands_at.is_some() && is_below(waiter.key)
        };
        let too_large = self.waiters.values_mut().filter(too_large);
        let wakers = too_large.filter_map(|waiter| waiter.waker.take());
        wakes.called.extend(wakers);
    }

    /// Returns the waiters that charge to `key`.
    pub(in crate::group) fn of(&self, key: GroupKey) -> Vec<Ticket> {
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
pub(in crate::group) struct Wakes {
    called: Woken,
    dropped: Vec<Waker>,
}

impl Wakes {
    /// Calls them. The caller holds no lock of the tree.
    pub(in crate::group) fn wake(self) {
        drop(self.called);
        drop(self.dropped);
    }

    pub(in crate::group) fn call(&mut self, waker: Waker) {
        self.called.push(waker);
    }

    pub(in crate::group) fn forget(&mut self, waker: Option<Waker>) {
        self.dropped.extend(waker);
    }
}
