//! Wait queue of charges: a charge without room waits for it, served in FIFO order.
//!
//! A charge that finds no room may wait: as a future, which needs no runtime and starts no thread,
//! or by parking its thread. The waiter is queued at the group that has no room for it (`line.rs`).
//!
//! # Fairness
//!
//! Waiting charges are served in FIFO order, by ticket. While a charge waits at a group, all other
//! charges that need room there are refused, however small ([`ChargeError::Behind`]); and a waiter
//! that is polled before its turn leaves room for all before it, which may have been woken and not
//! polled yet. (Forced charges overtake: they cannot wait.) A waiter that has found room at one
//! group and then none at another moves to the other's queue and leaves the first, so that the
//! first does not stand idle for it. It keeps its ticket, which is older than those of later
//! waiters wherever it moves; and a charge that would take the room it left below must pass the
//! queue above, where the older ticket comes first.
//!
//! # Why no waiter sleeps while enough bytes are free
//!
//! While a charge waits at a group, no word below it is live: the words are retired when the first
//! waiter comes, under the tree's lock for writing, and a word becomes live only after a check of
//! the marks of all its ancestors, under that lock for reading. So a byte that is uncharged below
//! cannot be parked. It goes to the group's ledger, by a step of the one word that also holds the
//! mark: the test costs an uncharge nothing, as it has just read the value.
//!
//! A waiter goes to sleep at a group only after, in this order, it was queued with the ledger
//! marked, the words below were retired, and it found no room in the ledger. Every later release is
//! a later step of that word, sees the mark, and wakes the waiters that have room and leave room
//! for all before them. A woken waiter dequeues itself, or sleeps again after a later check; a
//! waiter that leaves a queue for whatever reason wakes the next. This rests on the order of the
//! steps of one word, and on nothing else.
//!
//! A future that was woken and is neither polled nor dropped withholds its bytes from the waiters
//! behind it.
//!
//! # Progress
//!
//! Each attempt runs under the tree's lock for writing. It ends granted, refused, or asleep at the
//! group at which it failed last; each failure elsewhere moves it. Other charges can keep it moving
//! by taking room elsewhere at that moment: after `MOVES_MAX` moves it stops, and asks to be polled
//! again.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::sync::block_on;
use crate::units::{Bytes, CpuId, GroupId};

use super::DEPTH_MAX;
use super::charge::Charge;
use super::error::ChargeError;
use super::escrow::Refusal;
use super::ledger::Balance;
use super::line::{Calls, Lines, Ticket, Wakes};
use super::node::GroupNode;
use super::slot::Actor;
use super::tree::{Core, GroupKey, Shape};

/// Chosen: each group of the deepest chain once; a further move means that another charge
/// overtakes.
const MOVES_MAX: u32 = DEPTH_MAX + 1;

/// The request of a waiting charge.
#[derive(Clone, Copy)]
struct Wish {
    key: GroupKey,
    bytes: u64,
    ticket: Ticket,
}

/// Why a charge keeps waiting: the group, and its balance.
struct Blocked {
    group: GroupId,
    balance: Balance,
}

impl Core {
    /// Makes one attempt for a waiting charge: granted, refused, or asleep with `waker` left in its
    /// queue. Draws a ticket the first time.
    fn look_for_room(
        &self,
        (key, bytes, calls): (GroupKey, u64, Calls),
        ticket: &mut Option<Ticket>,
        waker: Waker,
    ) -> Poll<Result<(), Refusal>> {
        let mut wakes = Wakes::default();
        let shape = self.shape.write();
        let wish = Wish {
            key,
            bytes,
            ticket: *ticket.get_or_insert_with(|| self.lines().enter(key, bytes, calls)),
        };
        let outcome = if self.slot(key.id).incarnation() == key.incarnation {
            self.seek(&shape, wish, waker, &mut wakes)
        } else {
            Poll::Ready(Err(Refusal::Removed))
        };
        if outcome.is_ready() {
            *ticket = None;
            self.leave(&mut self.lines(), wish.ticket, &mut wakes);
        }
        drop(shape);
        wakes.wake();
        outcome
    }

    fn seek(
        &self,
        shape: &Shape,
        wish: Wish,
        waker: Waker,
        wakes: &mut Wakes,
    ) -> Poll<Result<(), Refusal>> {
        let mut lines = self.lines();
        // Not woken from here on: it is already looking.
        wakes.forget(lines.set_waker(wish.ticket, None));
        for _ in 0..MOVES_MAX {
            let Err(Blocked { group, balance }) = self.climb_in_turn(&lines, wish) else {
                return Poll::Ready(Ok(()));
            };
            if wish.bytes > balance.ceiling().0 {
                drop(lines);
                let full = self.full(shape, group, balance, 0);
                return Poll::Ready(Err(Refusal::Full(full)));
            }
            if lines.stands_at(wish.ticket) == Some(group) {
                wakes.forget(lines.set_waker(wish.ticket, Some(waker)));
                return Poll::Pending;
            }
            self.stand_at(&mut lines, wish.ticket, group, wakes);
            drop(lines);
            self.retire_subtree(shape, group);
            lines = self.lines();
        }
        drop(lines);
        wakes.call(waker);
        Poll::Pending
    }

    /// Reserves on the whole chain, leaving in each queue the bytes that older tickets want; or
    /// reserves nothing. The tree's lock for writing excludes passes over words, so nothing needs
    /// to be marked in flight.
    fn climb_in_turn(&self, lines: &Lines, wish: Wish) -> Result<(), Blocked> {
        let mut seen = [0; DEPTH_MAX as usize + 1];
        for (nth, (group, slot)) in self.chain(wish.key.id).enumerate() {
            let ahead = lines.bytes_ahead(group, wish.ticket);
            match slot.ledger.reserve_behind(wish.bytes, ahead) {
                Ok(reserved) => seen[nth] = reserved,
                Err(balance) => {
                    for (_, slot) in self.chain(wish.key.id).take(nth) {
                        // The waiters there have not looked since these bytes were taken.
                        let _ = slot.ledger.release(wish.bytes);
                    }
                    return Err(Blocked { group, balance });
                }
            }
        }
        for ((_, slot), reserved) in self.chain(wish.key.id).zip(seen) {
            slot.ledger.raise_peak(reserved);
        }
        Ok(())
    }
}

/// A charge that waits for room: a future, or [`wait`](Self::wait)ed for on this thread. Dropping
/// it gives up its place in the queue.
///
/// It does nothing before it is polled; its place in the queue is that of its first poll that found
/// no room. When it is woken it must be polled or dropped: until then it withholds its room from
/// those behind it. Its waker is called in the middle of the operation that made room: it schedules
/// the task, and must not itself charge, wait or panic.
#[must_use = "a charge that is not awaited charges nothing"]
pub struct ChargeWait {
    node: GroupNode,
    actor: Actor,
    bytes: Bytes,
    ticket: Option<Ticket>,
    calls: Calls,
}

impl GroupNode {
    /// Charges `bytes` to this group and all its ancestors when there is room, in order of arrival.
    ///
    /// # Cost
    ///
    /// With room, as [`GroupNode::try_charge`]. Without, each attempt takes the tree's lock for
    /// writing, one atomic operation for each ancestor, and, for the first in a queue, one for each
    /// word that holds tokens below. While a charge waits at a group, charges and uncharges below
    /// it write one line of each ancestor, and uncharges also take a lock of the tree for a moment.
    ///
    /// # Errors
    ///
    /// [`ChargeError::OverMax`] when `bytes` alone exceeds a maximum on the way, also one that is
    /// set while it waits: noticed at once at the group where it waits, and elsewhere at its next
    /// attempt; [`ChargeError::Removed`] when the group is removed.
    /// Adversary: `tests/waiting.rs::nobody_sleeps_beside_free_pages`.
    pub fn charge_wait(&self, bytes: Bytes) -> ChargeWait {
        ChargeWait {
            node: self.clone(),
            actor: Actor::Here,
            bytes,
            ticket: None,
            calls: Calls::WhenDecided,
        }
    }

    /// Like [`GroupNode::charge_wait`], acting as `cpu`.
    ///
    /// # Panics
    ///
    /// When the tree has no such CPU.
    pub fn charge_wait_on(&self, cpu: CpuId, bytes: Bytes) -> ChargeWait {
        let mut wait = self.charge_wait(bytes);
        wait.actor = self.core().acting_as(cpu);
        wait
    }

    /// Returns the number of charges that wait for room at this group.
    ///
    /// # Cost
    ///
    /// A lock that only waiting charges take; O(charges that wait).
    #[must_use]
    pub fn nr_waiting(&self) -> usize {
        self.unless_gone(self.core().lines().len_at(self.id()), 0)
    }
}

impl ChargeWait {
    /// Parks the thread until the bytes are charged, or cannot be.
    ///
    /// # Errors
    ///
    /// As [`GroupNode::charge_wait`].
    ///
    /// # Panics
    ///
    /// Never: it ends when the charge does.
    pub fn wait(mut self) -> Result<Charge, ChargeError> {
        block_on(&mut self, None).expect("without a deadline it waits to the end")
    }

    /// Like [`ChargeWait::wait`], until the deadline. Tries at least once.
    ///
    /// # Errors
    ///
    /// As [`GroupNode::charge_wait`], and [`ChargeError::DeadlinePassed`].
    pub fn wait_until(mut self, deadline: Instant) -> Result<Charge, ChargeError> {
        let mut last_look = Context::from_waker(Waker::noop());
        match block_on(&mut self, Some(deadline)) {
            Some(outcome) => outcome,
            // A release that made room may not have called the waker yet.
            None => match Pin::new(&mut self).poll(&mut last_look) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => Err(self.give_up()),
            },
        }
    }

    /// Makes the first in the queue wake at every release at its group, also where that is not
    /// enough for it, and when it becomes the first: for a caller that reclaims while it waits, and
    /// must see the result. By default a waiter wakes when there is room for it, or never can be.
    ///
    /// # Cost
    ///
    /// One wake-up for each release at the group, until the waiter has been polled. While a queue
    /// is not empty no other charge passes it, so there are no more of these than charges below the
    /// group.
    pub fn watching(mut self) -> Self {
        self.calls = Calls::Always;
        self
    }

    /// Leaves the queue, and returns where it was queued and the balance there:
    /// [`ChargeError::DeadlinePassed`]. [`ChargeError::Removed`] if it was not queued.
    pub fn give_up(&mut self) -> ChargeError {
        let refusal = self.refusal();
        self.leave_line();
        refusal
    }

    /// Returns the group at which it waits, if it does.
    #[must_use]
    pub fn stands_at(&self) -> Option<GroupId> {
        self.node.core().lines().stands_at(self.ticket?)
    }

    /// Returns the bytes that it is to charge.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Whether it is the next to be served in its queue.
    #[must_use]
    pub fn is_first(&self) -> bool {
        let lines = self.node.core().lines();
        let stand = self.ticket.and_then(|ticket| lines.stands_at(ticket));
        stand.is_some_and(|group| lines.first_at(group) == self.ticket)
    }

    /// Returns the error that describes what it waited for.
    fn refusal(&self) -> ChargeError {
        let core = self.node.core();
        let Some(group) = self.stands_at() else {
            return ChargeError::Removed {
                group: self.node.path(),
            };
        };
        let (path, balance) = (core.path_now(group), core.slot(group).ledger.balance());
        let lines = core.lines();
        ChargeError::DeadlinePassed {
            group: path,
            requested: self.bytes,
            usage: Bytes(balance.reserved),
            max: balance.max,
            nr_waiting: lines.len_at(group),
        }
    }

    fn look(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let (core, key) = (self.node.core(), self.node.key());
        if let Some(ticket) = self.ticket {
            // Cloned before the queues are locked, and the former one dropped after: both may run
            // any code.
            let mine = waker.clone();
            let mut lines = core.lines();
            let stand = lines.stands_at(ticket);
            if let Some(group) = stand
                && let ahead = lines.bytes_ahead(group, ticket)
                && ahead > 0
                && self.bytes.0 > core.slot(group).ledger.balance().room_behind(ahead)
            {
                let former = lines.set_waker(ticket, Some(mine));
                drop(lines);
                drop(former);
                return Poll::Pending;
            }
        } else {
            match core.charge_uncounted(key, self.actor, self.bytes.0) {
                Err(Refusal::Full(full)) if self.bytes <= full.balance.ceiling() => {}
                Err(Refusal::Behind(_) | Refusal::Contended) => {}
                outcome => return Poll::Ready(outcome.map(|_throttles_nobody| ())),
            }
        }
        let wanted = (key, self.bytes.0, self.calls);
        core.look_for_room(wanted, &mut self.ticket, waker.clone())
    }

    fn leave_line(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let (core, mut wakes) = (self.node.core(), Wakes::default());
            core.leave(&mut core.lines(), ticket, &mut wakes);
            wakes.wake();
        }
    }
}

impl Future for ChargeWait {
    type Output = Result<Charge, ChargeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.look(context.waker()).map(|outcome| {
            let node = &this.node;
            match outcome {
                Ok(()) => {
                    let index = node.slot().index(this.actor);
                    Ok(Charge::of(node.seat().hold(index, this.bytes)))
                }
                Err(refusal) => Err(node.core().refuse(node.key(), refusal, this.bytes.0)),
            }
        })
    }
}

impl Drop for ChargeWait {
    fn drop(&mut self) {
        self.leave_line();
    }
}

impl fmt::Debug for ChargeWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeWait")
            .field("group", &self.node.id())
            .field("bytes", &self.bytes)
            .field("stands_at", &self.stands_at())
            .finish_non_exhaustive()
    }
}
