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
//! A forced charge holds the tree's lock for writing. At each group it first tries to reserve as
//! other charges do. Where that is refused it retires the words below, and goes above the maximum
//! only then. A word becomes live under the lock for reading, after a check of every ancestor:
//! either before the retiring, or after the debt exists and is seen. A group where reserving
//! succeeded is not in debt by this charge, whatever others reserve later. A refill that was under
//! way ends in a word that is not live: it gives its grant back. Only a forced charge overtakes
//! waiting charges (`wait.rs`).
//!
//! The proofs in `proof.rs` hold: passes hold the lock for reading, so that a forced charge is made
//! before or after a pass, and never looks like bytes that no operation carries.
//!
//! Source: accounting spec 8.2 (`charge`, which skips the test). Deviation: the kernel leaves stock
//! in other CPUs while it overruns a limit, and shows the sum as usage.

use crate::group::state::{ActingCpu, Event, GroupKey, Groups, TreeShape};
use crate::units::GroupId;

use super::outcome::Refusal;

impl Groups {
    /// Charges `bytes` to the group and its ancestors, above maxima where there is no room. Fails
    /// only if the group is removed.
    pub(in crate::group) fn force(
        &self,
        key: GroupKey,
        actor: ActingCpu,
        bytes: u64,
    ) -> Result<(), Refusal> {
        match self.charge_uncounted(key, actor, bytes) {
            Ok(_throttles_nobody) => Ok(()),
            Err(Refusal::Removed) => Err(Refusal::Removed),
            Err(_) => self.force_above(key, bytes),
        }
    }

    fn force_above(&self, key: GroupKey, bytes: u64) -> Result<(), Refusal> {
        let shape = self.shape.write();
        if self.slot(key.id).incarnation() != key.incarnation {
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
        if let Ok(reserved) = ledger.reserve_in_turn(bytes) {
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
