//! Wait queue of charges: a charge without room waits for it, served in FIFO order.
//!
//! A charge that finds no room may wait: as a future, which needs no runtime and starts no thread,
//! or by parking its thread (`api/wait.rs`). The waiter is queued at the group that has no room for
//! it (`state/waiters.rs`).
//!
//! # Fairness
//!
//! Waiting charges are served in FIFO order, by ticket. While a charge waits at a group, all other
//! charges that need room there are refused, however small ([`Refusal::Behind`]); and a waiter
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

use std::task::{Poll, Waker};

use crate::group::state::{
    Calls, DEPTH_MAX, GroupKey, Groups, Lines, Slot, Ticket, TreeShape, Wakes,
};

use super::outcome::Refusal;
use super::reserve::Way;

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

impl Groups {
    /// Makes one attempt for a waiting charge: granted, refused, or asleep with `waker` left in its
    /// queue. Draws a ticket the first time.
    pub(in crate::group) fn look_for_room(
        &self,
        (key, bytes, calls): (GroupKey, u64, Calls),
        ticket: &mut Option<Ticket>,
        waker: Waker,
    ) -> Poll<Result<(), Refusal>> {
        let mut wakes = Wakes::default();
        let shape = self.write_shape();
        let wish = Wish {
            key,
            bytes,
            ticket: *ticket.get_or_insert_with(|| self.lines().enter(key, bytes, calls)),
        };
        let outcome = if self.stays(key) {
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
        shape: &TreeShape,
        wish: Wish,
        waker: Waker,
        wakes: &mut Wakes,
    ) -> Poll<Result<(), Refusal>> {
        let mut lines = self.lines();
        // Not woken from here on: it is already looking.
        wakes.forget(lines.set_waker(wish.ticket, None));
        for _ in 0..MOVES_MAX {
            let group = match self.climb_in_turn(&lines, wish) {
                Err(Refusal::NoRoom(group)) => group,
                decided => {
                    wakes.forget(Some(waker));
                    return Poll::Ready(decided);
                }
            };
            let way = Way::whole(wish.key);
            if let Some((group, balance)) = self.never_fits(way, wish.bytes) {
                wakes.forget(Some(waker));
                drop(lines);
                return Poll::Ready(Err(self.full(shape, group, balance, 0)));
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
    fn climb_in_turn(&self, lines: &Lines, wish: Wish) -> Result<(), Refusal> {
        let reserve = |group, slot: &Slot| {
            let ahead = lines.bytes_ahead(group, wish.ticket);
            slot.ledger.reserve_behind(wish.bytes, ahead)
        };
        // The waiters there have not looked since these bytes were taken.
        let undo = |_, slot: &Slot| _ = slot.ledger.release(wish.bytes);
        self.climb_by(Way::whole(wish.key), reserve, undo)
    }
}
