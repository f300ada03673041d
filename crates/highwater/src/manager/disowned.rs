//! Bytes that the program counts itself: charged and uncharged without a [`Charge`] to keep.

#[cfg(doc)]
use super::charge::Charge;
use super::error::ChargeFailed;
use super::group::Group;
use super::slow::Patience;
use crate::units::Bytes;

impl Group {
    /// As [`try_charge`](Self::try_charge) and [`Charge::disown`] together, at half their cost: for
    /// a program that counts bytes itself and [uncharges](Self::uncharge) them. The delay above
    /// `high` is not returned: ask for it by [`Group::throttle`].
    ///
    /// # Cost
    ///
    /// In the common case one update of a cache line that only this CPU writes.
    ///
    /// # Errors
    ///
    /// As [`try_charge`](Self::try_charge). Nothing is charged then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let query = hw.root().child("query", Limits::max(Bytes(1000)))?;
    /// query.try_charge_disowned(Bytes(600))?;
    /// assert!(query.try_charge_disowned(Bytes(401)).is_err());
    /// query.uncharge(Bytes(600));
    /// assert_eq!(query.usage_precise(), Bytes(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // Always inlined: as `charge`.
    #[inline(always)]
    pub fn try_charge_disowned(&self, bytes: Bytes) -> Result<(), ChargeFailed> {
        if self.slot().take_disowned(bytes) {
            return Ok(());
        }
        let (held, _) = self.charge_slowly(bytes, Patience::Modest)?;
        held.disown();
        Ok(())
    }

    /// Uncharges bytes whose charge was [disowned](Charge::disown). Works on removed groups.
    ///
    /// # Cost
    ///
    /// While the CPU's word has room, one step on a line that only this CPU writes. Waits for a
    /// lock, and calls wakers of other tasks, only while a charge waits at the group or above it.
    ///
    /// # Panics
    ///
    /// When more is uncharged than the group and its descendants hold. Up to 224 KiB too much are
    /// kept for later charges, as others are: then the thread panics that takes them back, which
    /// may be one that charges another group. A program that uncharges what it has not disowned
    /// takes those bytes from other charges of the group, whose drop then panics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let bytes = tenant.charge(Bytes(600))?.disown();
    /// tenant.uncharge(Bytes(100));
    /// assert_eq!(tenant.usage_precise(), bytes - Bytes(100));
    /// tenant.uncharge(Bytes(500));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn uncharge(&self, bytes: Bytes) {
        self.node().uncharge_kept(self.slot(), bytes);
    }
}
