//! [`NodeChargeWait`]: a charge that waits for room, as a future or by parking its thread.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::charge::NodeCharge;
use super::node::GroupNode;
use super::tree::GroupTree;
use crate::group::charge::{Refusal, Way};
use crate::group::error::ChargeError;
use crate::group::state::{ActingCpu, Calls, QueueView, Ticket, Wakes};
use crate::sync::block_on;
use crate::units::{Bytes, GroupId};

/// A charge that waits for room: a future, or [`wait`](Self::wait)ed for on this thread. Dropping
/// it gives up its place in the queue.
///
/// It does nothing before it is polled; its place in the queue is that of its first poll that found
/// no room. When it is woken it must be polled or dropped: until then it withholds its room from
/// those behind it. Its waker is called in the middle of the operation that made room: it schedules
/// the task, and must not itself charge, wait or panic.
#[must_use = "a charge that is not awaited charges nothing"]
pub struct NodeChargeWait {
    node: GroupNode,
    actor: ActingCpu,
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
    /// set while it waits; [`ChargeError::Removed`] when the group is removed.
    /// Adversary: `tests/waiting.rs::nobody_sleeps_beside_free_pages`.
    pub fn charge_wait(&self, bytes: Bytes) -> NodeChargeWait {
        self.charge_wait_as(ActingCpu::Here, bytes)
    }

    pub(super) fn charge_wait_as(&self, actor: ActingCpu, bytes: Bytes) -> NodeChargeWait {
        NodeChargeWait {
            node: self.clone(),
            actor,
            bytes,
            ticket: None,
            calls: Calls::WhenDecided,
        }
    }

    /// Returns the number of charges that wait for room at this group.
    ///
    /// # Cost
    ///
    /// A lock that only waiting charges take; O(charges that wait).
    #[must_use]
    pub fn nr_waiting(&self) -> usize {
        self.unless_gone(self.groups().lines().len_at(self.id()), 0)
    }

    /// Returns whether the first charge that waits here has the room that it waits for, and is
    /// about to take it.
    pub(crate) fn is_line_served(&self) -> bool {
        let room = self.slot().ledger.balance().room_in_turn();
        let first = self.groups().lines().bytes_of_first(self.id());
        first.is_some_and(|first| first <= room)
    }
}

impl GroupTree {
    /// Adds a view of each wait queue to `views`, by group; or does nothing and returns false if
    /// more than `charges_max` charges wait.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::nr_waiting`].
    pub(crate) fn wait_queues(&self, charges_max: usize, views: &mut Vec<QueueView>) -> bool {
        self.groups().lines().views(charges_max, views)
    }
}

impl NodeChargeWait {
    /// Parks the thread until the bytes are charged, or cannot be.
    ///
    /// # Errors
    ///
    /// As [`GroupNode::charge_wait`].
    ///
    /// # Panics
    ///
    /// Never: it ends when the charge does.
    pub fn wait(mut self) -> Result<NodeCharge, ChargeError> {
        block_on(&mut self, None).expect("without a deadline it waits to the end")
    }

    /// Like [`NodeChargeWait::wait`], until the deadline. Tries at least once.
    ///
    /// # Errors
    ///
    /// As [`GroupNode::charge_wait`], and [`ChargeError::DeadlinePassed`].
    pub fn wait_until(mut self, deadline: Instant) -> Result<NodeCharge, ChargeError> {
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
        self.node.groups().lines().stands_at(self.ticket?)
    }

    /// Returns the bytes that it is to charge.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Whether it is the next to be served in its queue.
    #[must_use]
    pub fn is_first(&self) -> bool {
        let lines = self.node.groups().lines();
        let stand = self.ticket.and_then(|ticket| lines.stands_at(ticket));
        stand.is_some_and(|group| lines.first_at(group) == self.ticket)
    }

    /// Returns the error that describes what it waited for.
    fn refusal(&self) -> ChargeError {
        let groups = self.node.groups();
        let Some(group) = self.stands_at() else {
            return ChargeError::Removed {
                group: self.node.path(),
            };
        };
        let (path, balance) = (groups.path_now(group), groups.slot(group).ledger.balance());
        let lines = groups.lines();
        ChargeError::DeadlinePassed {
            group: path,
            requested: self.bytes,
            usage: Bytes(balance.reserved),
            max: balance.max,
            nr_waiting: lines.len_at(group),
        }
    }

    fn look(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let (groups, key) = (self.node.groups(), self.node.key());
        if let Some(ticket) = self.ticket {
            // Cloned before the queues are locked, and the former one dropped after: both may run
            // any code.
            let mine = waker.clone();
            let mut lines = groups.lines();
            let stand = lines.stands_at(ticket);
            if let Some(group) = stand
                && let ahead = lines.bytes_ahead(group, ticket)
                && ahead > 0
                && let balance = groups.slot(group).ledger.balance()
                && self.bytes.0 > balance.room_behind(ahead)
                && groups.never_fits(Way::whole(key), self.bytes.0).is_none()
            {
                let former = lines.set_waker(ticket, Some(mine));
                drop(lines);
                drop(former);
                return Poll::Pending;
            }
        } else {
            match groups.charge_polled(key, self.actor, self.bytes.0) {
                Err(Refusal::Full { balance, .. }) if self.bytes <= balance.ceiling() => {}
                Err(Refusal::Behind(_) | Refusal::Overtaken { .. }) => {}
                outcome => return Poll::Ready(outcome.map(|_throttles_nobody| ())),
            }
        }
        let wanted = (key, self.bytes.0, self.calls);
        groups.look_for_room(wanted, &mut self.ticket, waker.clone())
    }

    fn leave_line(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let (groups, mut wakes) = (self.node.groups(), Wakes::default());
            groups.leave(&mut groups.lines(), ticket, &mut wakes);
            wakes.wake();
        }
    }
}

impl Future for NodeChargeWait {
    type Output = Result<NodeCharge, ChargeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        this.look(context.waker()).map(|outcome| {
            let node = &this.node;
            match outcome {
                Ok(()) => {
                    let index = node.slot().index(this.actor);
                    Ok(NodeCharge::of(node.slot_ref().hold(index, this.bytes)))
                }
                Err(refusal) => Err(node.groups().refuse(node.key(), refusal, this.bytes.0)),
            }
        })
    }
}

impl Drop for NodeChargeWait {
    fn drop(&mut self) {
        self.leave_line();
    }
}

impl fmt::Debug for NodeChargeWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeChargeWait")
            .field("group", &self.node.id())
            .field("bytes", &self.bytes)
            .field("stands_at", &self.stands_at())
            .finish_non_exhaustive()
    }
}
