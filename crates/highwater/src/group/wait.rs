//! Charges that wait for room, in order of arrival.
//!
//! Where a charge finds no room it may wait: as a future, which needs no runtime and starts no
//! thread, or by parking its thread. Whoever waits stands in the line of the group that has no room
//! for it (`line.rs`).
//!
//! # Fairness
//!
//! Nobody is overtaken: while somebody waits at a group, everybody else's charges that need room
//! there are refused, however small ([`ChargeError::Behind`]), and those that wait are served in
//! the order of their tickets: one that comes before its turn leaves room for all before it, which
//! may be called and not have looked yet. (Charges that are forced overtake: they cannot wait.) A
//! charge that has found room at one group and then none at another moves to the other's line and
//! leaves the first, so that the first does not stand idle for its sake. Its ticket is older than
//! those that come later, wherever it moves; and who would use the room that it left behind below
//! must pass the line above, where it stands before them.
//!
//! # Why nobody sleeps beside free bytes
//!
//! While somebody waits at a group, no word below it is live: they are retired when the first one
//! comes, under the tree's lock for writing, and a word becomes live only after a look at the marks
//! of all its ancestors, under that lock for reading. So a byte that is uncharged below cannot be
//! parked. It goes to the group's ledger, by a step of the one word that also holds the mark: the
//! test costs an uncharge nothing, as it has the value in its hands.
//!
//! A waiter goes to sleep at a group only after, in this order, it stood in the line with the
//! ledger marked, the words below were retired, and it found no room in the ledger. Every later
//! release is a later step of that word, sees the mark, and calls those in line that have room, and
//! leave room for all before them. Who is called takes itself out of the line, or sleeps again
//! after a look that came later still; who leaves a line for whatever reason calls the next. This
//! rests on the order of the steps of one word, and on nothing else.
//!
//! A future that was called and is neither polled nor dropped keeps what it wants from those
//! behind it.
//!
//! # Progress
//!
//! A look is made under the tree's lock for writing. It ends granted, refused, or asleep at the
//! group at which it failed last; each failure elsewhere moves it. Others can make it move about by
//! taking room elsewhere just then: after `MOVES_MAX` it lets them, and asks to be polled again.

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

/// Chosen: each group of the deepest chain once, and then somebody is overtaking.
const MOVES_MAX: u32 = DEPTH_MAX + 1;

/// What a charge that waits wants.
#[derive(Clone, Copy)]
struct Wish {
    key: GroupKey,
    bytes: u64,
    ticket: Ticket,
}

/// Why a charge goes on waiting: where, and what was there.
struct Blocked {
    group: GroupId,
    balance: Balance,
}

impl Core {
    /// A look by a charge that waits: granted, refused, or asleep with `waker` left in its line.
    /// Draws a ticket the first time.
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
        // Called by nobody from here on: it is looking already.
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

    /// Reserves on the whole chain, leaving in each line what those with older tickets want; or on
    /// none of it. The tree's lock for writing excludes passes over words: nothing needs to be in
    /// flight.
    fn climb_in_turn(&self, lines: &Lines, wish: Wish) -> Result<(), Blocked> {
        let mut seen = [0; DEPTH_MAX as usize + 1];
        for (nth, (group, slot)) in self.chain(wish.key.id).enumerate() {
            let ahead = lines.bytes_ahead(group, wish.ticket);
            match slot.ledger.reserve_behind(wish.bytes, ahead) {
                Ok(reserved) => seen[nth] = reserved,
                Err(balance) => {
                    for (_, slot) in self.chain(wish.key.id).take(nth) {
                        // Whoever waits there has not looked since these were taken.
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
/// it gives the place in line up.
///
/// It does nothing before it is polled; its place in line is that of its first poll that found no
/// room. When it is called it must be polled or dropped: it keeps its room from those behind it.
/// Its waker is called in the middle of whatever has made room: it schedules the task, and neither
/// charges, waits nor panics itself.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use highwater::group::{ChargeError, GroupTree, Limits};
/// use highwater::units::Bytes;
///
/// let group = GroupTree::new(2).root().child("a", Limits::max(Bytes(10)))?;
/// let first = group.try_charge(Bytes(8))?;
/// let waiting = std::thread::spawn({
///     let group = group.clone();
///     move || group.charge_wait(Bytes(5)).wait()
/// });
/// drop(first);
/// assert_eq!(waiting.join().unwrap()?.bytes(), Bytes(5));
/// let late = group.charge_wait(Bytes(11)).wait_until(Instant::now() + Duration::from_secs(9));
/// assert!(matches!(late, Err(ChargeError::OverMax { .. })), "it could never fit");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// With room, as [`GroupNode::try_charge`]. Without, for each look the tree's lock for writing,
    /// one atomic operation for each ancestor, and for the first in a line one for each word that
    /// holds tokens below. While somebody waits at a group, charges and uncharges below it write
    /// one line of each ancestor, and uncharges also take a lock of the tree for a moment.
    ///
    /// # Errors
    ///
    /// [`ChargeError::OverMax`] when `bytes` alone exceeds a maximum on the way, also one that is
    /// set while it waits, as far as it notices: at the group where it waits at once, elsewhere
    /// when it looks next; [`ChargeError::Removed`] when the group is removed.
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

    /// As [`GroupNode::charge_wait`], acting as `cpu`.
    ///
    /// # Panics
    ///
    /// When the tree has no such CPU.
    pub fn charge_wait_on(&self, cpu: CpuId, bytes: Bytes) -> ChargeWait {
        let mut wait = self.charge_wait(bytes);
        wait.actor = self.core().acting_as(cpu);
        wait
    }

    /// Charges that wait for room at this group.
    ///
    /// # Cost
    ///
    /// A lock that only those who wait take; O(charges that wait).
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

    /// As [`ChargeWait::wait`], until the deadline. Tries at least once.
    ///
    /// # Errors
    ///
    /// As [`GroupNode::charge_wait`], and [`ChargeError::DeadlinePassed`].
    pub fn wait_until(mut self, deadline: Instant) -> Result<Charge, ChargeError> {
        let mut last_look = Context::from_waker(Waker::noop());
        match block_on(&mut self, Some(deadline)) {
            Some(outcome) => outcome,
            // A release that made room may not have called yet.
            None => match Pin::new(&mut self).poll(&mut last_look) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => Err(self.give_up()),
            },
        }
    }

    /// Makes the first in line wake whenever memory comes back to its group, also where that is not
    /// enough for it, and when it becomes the first: for a caller that makes room while it waits,
    /// and has to see what came of that. By default a waiter wakes when there is room for it, or
    /// never can be.
    ///
    /// # Cost
    ///
    /// A wake-up for each release at the group, until the waiter has been polled. While a line is
    /// not empty no other charge passes it, so there are no more of these than charges below the
    /// group.
    pub fn watching(mut self) -> Self {
        self.calls = Calls::Always;
        self
    }

    /// Leaves the line, and returns where it stood and what was there:
    /// [`ChargeError::DeadlinePassed`]. [`ChargeError::Removed`] if it stood in none.
    pub fn give_up(&mut self) -> ChargeError {
        let refusal = self.refusal();
        self.leave_line();
        refusal
    }

    /// Where it waits, when it does.
    #[must_use]
    pub fn stands_at(&self) -> Option<GroupId> {
        self.node.core().lines().stands_at(self.ticket?)
    }

    /// What it is to charge.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Whether it is the next one to be served where it waits.
    #[must_use]
    pub fn is_first(&self) -> bool {
        let lines = self.node.core().lines();
        let stand = self.ticket.and_then(|ticket| lines.stands_at(ticket));
        stand.is_some_and(|group| lines.first_at(group) == self.ticket)
    }

    /// Says what it waited for.
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
            // Cloned before the lines are locked, and the former one dropped after: both may run
            // anything.
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
