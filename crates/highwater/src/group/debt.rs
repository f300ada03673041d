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
//! The proofs in `judge.rs` hold: passes hold the lock for reading, so that a forced charge is made
//! before or after a pass, and never looks like bytes that no operation carries.
//!
//! Source: accounting spec 8.2 (`charge`, which skips the test). Deviation: the kernel leaves stock
//! in other CPUs while it overruns a limit, and shows the sum as usage.

use crate::percpu::PercpuRef;
use crate::units::{Bytes, CpuId, GroupId};

use super::charge::Charge;
use super::error::ChargeError;
use super::escrow::Refusal;
use super::held::{Held, Keeper};
use super::limits::Event;
use super::node::GroupNode;
use super::slot::Actor;
use super::tree::{Core, GroupKey, Shape};

impl Core {
    /// Charges `bytes` to the group and its ancestors, above maxima where there is no room. Fails
    /// only if the group is removed.
    pub(super) fn force(&self, key: GroupKey, actor: Actor, bytes: u64) -> Result<(), ChargeError> {
        match self.charge_uncounted(key, actor, bytes) {
            Ok(_throttles_nobody) => Ok(()),
            Err(Refusal::Removed) => Err(ChargeError::Removed {
                group: self.path(key),
            }),
            Err(_) => self.force_above(key, bytes),
        }
    }

    fn force_above(&self, key: GroupKey, bytes: u64) -> Result<(), ChargeError> {
        let shape = self.shape.write();
        if self.slot(key.id).incarnation() != key.incarnation {
            return Err(ChargeError::Removed {
                group: self.path(key),
            });
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
    fn force_at(&self, shape: &Shape, at: GroupId, bytes: u64) -> Option<u64> {
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
}

impl GroupNode {
    /// Charges `bytes` to this group and all its ancestors regardless of their limits: for memory
    /// that already exists. The part that does not fit takes a group into [debt](Self::debt). When
    /// this group is removed, the nearest ancestor that is not removed is charged;
    /// [`Charge::group`] returns which.
    ///
    /// # Cost
    ///
    /// While there is room, as [`GroupNode::try_charge`]. Otherwise the tree's lock for writing,
    /// one atomic operation for each ancestor, and one for each word that holds tokens below a
    /// group without room.
    ///
    /// # Panics
    ///
    /// When the tree would hold 256 TiB.
    pub fn force_charge(&self, bytes: Bytes) -> Charge {
        self.force_charge_as(Actor::Here, bytes)
    }

    /// Like [`GroupNode::force_charge`], acting as `cpu`.
    ///
    /// # Panics
    ///
    /// As [`GroupNode::force_charge`] and [`GroupNode::try_charge_on`].
    pub fn force_charge_on(&self, cpu: CpuId, bytes: Bytes) -> Charge {
        self.force_charge_as(self.core().acting_as(cpu), bytes)
    }

    fn force_charge_as(&self, actor: Actor, bytes: Bytes) -> Charge {
        Charge::of(self.force_kept(self.keeper(), actor, bytes))
    }

    /// Like [`force_charge`](Self::force_charge), with the charge kept by `keeper` of this tree.
    pub(crate) fn force_charge_kept<K: Keeper>(
        &self,
        keeper: PercpuRef<K>,
        bytes: Bytes,
    ) -> Held<K> {
        self.force_kept(keeper, Actor::Here, bytes)
    }

    fn force_kept<K: Keeper>(&self, keeper: PercpuRef<K>, actor: Actor, bytes: Bytes) -> Held<K> {
        let mut meta = self.meta();
        // Ends at the root, which is never removed.
        while self.core().force(meta.key, actor, bytes.0).is_err() {
            meta = meta.parent.as_deref().expect("the root is never removed");
        }
        Held::over(keeper, meta.key, actor, bytes)
    }

    /// Returns the bytes by which this group and its descendants exceed the maximum, after forced
    /// charges or a maximum set below the usage. Uncharged bytes pay it first.
    ///
    /// # Accuracy
    ///
    /// Exact when nothing is in flight; operations in flight may raise it by the bytes that they
    /// are about to give back. Adversary: `tests/debt.rs::debt_is_what_is_used_above_the_maximum`.
    ///
    /// # Cost
    ///
    /// Four loads. O(1).
    #[must_use]
    pub fn debt(&self) -> Bytes {
        Bytes(self.unless_gone(self.slot().ledger.balance().debt(), 0))
    }
}
