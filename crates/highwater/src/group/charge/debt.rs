//! Forced charges, which are never refused, and the debt that they leave.
//!
//! A charge for memory that is already in use, or that a program cannot do without, is *forced*: it
//! is made within the limits if there is room, counting the tokens that can be taken back from
//! every word, and otherwise above them. The reservations of a group above its maximum are its
//! *debt*.
//!
//! # Invariant
//!
//! `debt == max(0, reserved - max)`, by definition: it is not stored, so nothing can clamp it or
//! let it drift. While a group is in debt no word below it is live. So nothing is in escrow there
//! and debt is the *usage* above the maximum; every byte that is uncharged below goes to the
//! ledgers at once and pays the debt; and only forced charges pass.
//!
//! # Why no word is live below a group in debt
//!
//! A forced charge that makes a debt holds the tree's lock for writing. At each group it first
//! tries to reserve as other charges do. Where that is refused it retires the words below, and goes
//! above the maximum only then. A word becomes live under the lock for reading, after a check of
//! every ancestor: either before the retiring, or after the debt exists and is seen. A group where
//! reserving succeeded is not in debt by this charge, whatever others reserve later. A refill that
//! was under way ends in a word that is not live: it gives its grant back. Only a forced charge
//! overtakes waiting charges (`wait.rs`).
//!
//! # Beside others
//!
//! A group that is in debt or has a wait queue, a *closed* group, has no live words below it. A
//! forced charge to one walks nothing and excludes no other charge: it holds the lock for reading,
//! and at each closed group reserves above the maximum in one step that checks that the group is
//! closed still (`Ledger::force_closed`). If it meets
//! an open group without room, it undoes its steps and makes the charge under the lock for writing.
//!
//! - A group becomes closed under the lock for writing only, together with the retiring. So a group
//!   that is closed at that step was closed, and its words were retired, before the lock was taken
//!   for reading.
//! - A thread that makes a word live holds the lock for reading too. If it finds a group open, that
//!   group stays open until it is done, and the step fails there.
//!
//! The proofs in `proof.rs` hold. A forced charge under the lock for writing is made before or
//! after a pass, which holds the lock for reading, and never looks like bytes that no operation
//! carries; one beside others is in flight in the word of its CPU until it is decided, as a refill.
//!
//! Source: accounting spec 8.2 (`charge`, which skips the test). Deviation: the kernel leaves stock
//! in other CPUs while it overruns a limit, and shows the sum as usage.

use crate::group::state::{ActingCpu, Ending, Event, GroupKey, Groups, Slot, TreeShape};
use crate::sync::Woken;
use crate::units::GroupId;

use super::escrow::take;
use super::outcome::{Attempts, Refusal};
use super::reserve::Way;

impl Groups {
    /// Charges `bytes` to the group and its ancestors, above maxima where there is no room. Fails
    /// only if the group is removed.
    pub(in crate::group) fn force(
        &self,
        key: GroupKey,
        actor: ActingCpu,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let slot = self.slot(key.id);
        if take(slot, key, slot.index(actor), bytes) {
            return Ok(());
        }
        let is_closed = |(_, slot): (GroupId, &Slot)| slot.ledger.balance().is_closed();
        if bytes > 0 && self.chain(key.id).any(is_closed) {
            match self.force_beside(key, actor, bytes) {
                Err(Refusal::NoRoom(_) | Refusal::Contended) => {}
                decided => return decided,
            }
        }
        match self.charge_slow(key, actor, bytes, Attempts::new()) {
            Ok(_throttles_nobody) => Ok(()),
            Err(Refusal::Removed) => Err(Refusal::Removed),
            Err(_) => self.force_above(key, bytes),
        }
    }

    /// Charges beside others, above the maxima of closed groups: see "Beside others" above. Fails
    /// where an open group has no room, or the word counts too many operations.
    fn force_beside(&self, key: GroupKey, actor: ActingCpu, bytes: u64) -> Result<(), Refusal> {
        // Undone, it gives room to those that wait: their wakers run when the lock is released.
        let (forced, mut woken) = Woken::held_by(|| self.force_under_lock(key, actor, bytes));
        woken.wake();
        forced
    }

    fn force_under_lock(&self, key: GroupKey, actor: ActingCpu, bytes: u64) -> Result<(), Refusal> {
        let _shape = self.read_shape();
        let slot = self.slot(key.id);
        let index = slot.index(actor);
        let cell = slot.words(index).marked();
        slot.touch(index);
        self.begin(key, slot, cell)?;
        let reserve = |_, slot: &Slot| {
            let ledger = &slot.ledger;
            let in_turn = || ledger.reserve_in_turn(bytes);
            ledger.force_closed(bytes).or_else(in_turn)
        };
        let _ending = Ending(|| cell.end());
        let climbed = self.climb_by(Way::whole(key), reserve, |at, slot| {
            self.release(at, slot, bytes);
        });
        if climbed.is_ok() {
            let in_debt = |(_, slot): &(GroupId, &Slot)| slot.ledger.balance().debt() > 0;
            let in_debt = self.chain(key.id).filter(in_debt);
            in_debt.for_each(|(at, _)| self.record(at, Event::Debt));
        }
        climbed
    }

    fn force_above(&self, key: GroupKey, bytes: u64) -> Result<(), Refusal> {
        let shape = self.write_shape();
        if !self.stays(key) {
            return Err(Refusal::Removed);
        }
        for (nth, (at, slot)) in self.chain(key.id).enumerate() {
            match self.force_at(&shape, at, bytes) {
                Some(reserved) => slot.ledger.raise_peak(reserved),
                None => {
                    drop(shape);
                    for (at, slot) in self.chain(key.id).take(nth) {
                        self.release(at, slot, bytes);
                    }
                    panic!("{bytes} bytes forced on {at}: an account holds less than 256 TiB");
                }
            }
        }
        Ok(())
    }

    /// Reserves at one group, above its maximum if need be; returns the reservations after.
    fn force_at(&self, shape: &TreeShape, at: GroupId, bytes: u64) -> Option<u64> {
        let ledger = &self.slot(at).ledger;
        if let Some(reserved) = ledger.reserve_in_turn(bytes) {
            return Some(reserved);
        }
        self.retire_subtree(shape, at);
        let balance = ledger.force(bytes)?;
        if balance.debt() > 0 {
            self.record(at, Event::Debt);
        }
        Some(balance.reserved)
    }

    /// Counts an event at a group, if it is still known.
    fn record(&self, group: GroupId, event: Event) {
        if let Some(meta) = &*self.slot(group).meta.read() {
            meta.record(event);
        }
    }
}
