//! Pages that are paid for: a guard that uncharges when it is dropped.

use std::fmt;

use crate::percpu::PercpuView;
use crate::units::{CpuId, GroupId, Pages};

use super::cell::Cell;
use super::error::ChargeError;
use super::slot::Actor;
use super::throttle::Refilled;
use super::tree::{Core, GroupKey};

/// Pages charged to a group and to all its ancestors. Dropping it uncharges them.
///
/// A charge may be sent to another thread and may outlive every handle to its group and its tree.
/// It works on after its group is removed, except that it cannot grow.
///
/// A charge that is not kept is uncharged at once, hence:
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// use highwater::group::GroupTree;
/// use highwater::units::Pages;
///
/// let root = GroupTree::new(1).root();
/// root.try_charge(Pages(1)).unwrap(); // error: unused `Charge` that must be used
/// ```
///
/// # Examples
///
/// ```
/// #![deny(unused_must_use)]
/// use highwater::group::GroupTree;
/// use highwater::units::Pages;
///
/// let root = GroupTree::new(1).root();
/// let mut charge = root.try_charge(Pages(5))?;
/// let half = charge.split(Pages(2));
/// charge.shrink(Pages(1));
/// assert_eq!((charge.pages(), half.pages()), (Pages(2), Pages(2)));
/// drop(charge);
/// assert_eq!(root.usage_precise(), Pages(2));
/// # drop(half);
/// # Ok::<(), highwater::group::ChargeError>(())
/// ```
#[must_use = "dropping a charge uncharges its pages: keep it for as long as the memory is used"]
pub struct Charge {
    /// The tree, and the word of the CPU that the charge was last used on: where to look first.
    seat: PercpuView<Core, Cell>,
    key: GroupKey,
    pages: Pages,
}

impl Charge {
    /// A guard over pages that are charged already. `seat` is any word of the group.
    #[inline]
    pub(super) fn over(seat: PercpuView<Core, Cell>, key: GroupKey, pages: Pages) -> Self {
        Self { seat, key, pages }
    }

    /// Pages charged.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// The group that they are charged to.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.key.id
    }

    /// Charges `pages` more.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::try_charge`](super::GroupNode::try_charge).
    ///
    /// # Errors
    ///
    /// As [`GroupNode::try_charge`](super::GroupNode::try_charge); the charge stays as it is.
    #[inline]
    pub fn try_grow(&mut self, pages: Pages) -> Result<(), ChargeError> {
        self.try_grow_refilling(pages).map(|_throttles_nobody| ())
    }

    /// As [`Charge::try_grow`], acting as `cpu`.
    ///
    /// # Errors
    ///
    /// As [`Charge::try_grow`].
    ///
    /// # Panics
    ///
    /// As [`GroupNode::try_charge_on`](super::GroupNode::try_charge_on).
    pub fn try_grow_on(&mut self, cpu: CpuId, pages: Pages) -> Result<(), ChargeError> {
        self.grow_as(self.core().acting_as(cpu), pages)
            .map(|_throttles_nobody| ())
    }

    #[inline(never)]
    fn grow_as(&mut self, actor: Actor, pages: Pages) -> Result<Refilled, ChargeError> {
        let refilled = self.core().charge(self.key, actor, pages.0)?;
        self.pages += pages;
        Ok(refilled)
    }

    /// As [`Charge::try_grow`], and says what it reserved; see
    /// [`GroupNode::try_charge_refilling`](super::GroupNode::try_charge_refilling).
    ///
    /// # Errors
    ///
    /// As [`Charge::try_grow`].
    #[inline]
    pub fn try_grow_refilling(&mut self, pages: Pages) -> Result<Refilled, ChargeError> {
        if self.pages > Pages::ZERO && self.seat.take_here(pages.0) {
            self.pages += pages;
            return Ok(Refilled::NOTHING);
        }
        self.turn_here();
        self.grow_as(Actor::Here, pages)
    }

    /// Charges `pages` more, whatever the limits: as
    /// [`GroupNode::force_charge`](super::GroupNode::force_charge).
    ///
    /// # Errors
    ///
    /// [`ChargeError::Removed`] when the group is removed; the charge stays as it is.
    ///
    /// # Panics
    ///
    /// As [`GroupNode::force_charge`](super::GroupNode::force_charge).
    pub fn force_grow(&mut self, pages: Pages) -> Result<(), ChargeError> {
        self.force_grow_as(Actor::Here, pages)
    }

    /// As [`Charge::force_grow`], acting as `cpu`.
    ///
    /// # Errors
    ///
    /// As [`Charge::force_grow`].
    ///
    /// # Panics
    ///
    /// As [`Charge::force_grow`] and
    /// [`GroupNode::try_charge_on`](super::GroupNode::try_charge_on).
    pub fn force_grow_on(&mut self, cpu: CpuId, pages: Pages) -> Result<(), ChargeError> {
        self.force_grow_as(self.core().acting_as(cpu), pages)
    }

    fn force_grow_as(&mut self, actor: Actor, pages: Pages) -> Result<(), ChargeError> {
        self.core().force(self.key, actor, pages.0)?;
        self.pages += pages;
        Ok(())
    }

    /// Uncharges `pages` of it.
    ///
    /// # Panics
    ///
    /// When it holds fewer.
    #[inline]
    pub fn shrink(&mut self, pages: Pages) {
        self.pages = self.less(pages);
        self.give_back(pages);
    }

    /// As [`Charge::shrink`], acting as `cpu`.
    ///
    /// # Panics
    ///
    /// When it holds fewer pages, and as
    /// [`GroupNode::try_charge_on`](super::GroupNode::try_charge_on).
    pub fn shrink_on(&mut self, cpu: CpuId, pages: Pages) {
        let actor = self.core().acting_as(cpu);
        self.pages = self.less(pages);
        self.core().uncharge(self.key.id, actor, pages.0);
    }

    /// Moves `pages` of it into a charge of their own. Charges and uncharges nothing.
    ///
    /// # Panics
    ///
    /// When it holds fewer.
    pub fn split(&mut self, pages: Pages) -> Self {
        self.pages = self.less(pages);
        Self::over(self.seat.clone(), self.key, pages)
    }

    /// Adds another charge of the same group to this one.
    ///
    /// # Errors
    ///
    /// Gives `other` back when it is of another group.
    pub fn merge(&mut self, other: Self) -> Result<(), Self> {
        if self.key != other.key || !std::ptr::eq(self.core(), other.core()) {
            return Err(other);
        }
        self.pages += other.disown();
        Ok(())
    }

    /// Takes `pages` of it that have moved to another group into a guard of their own.
    pub(super) fn moved(
        &mut self,
        pages: Pages,
        to: GroupKey,
        seat: PercpuView<Core, Cell>,
    ) -> Self {
        self.pages = self.less(pages);
        Self::over(seat, to, pages)
    }

    /// Gives up the guard and keeps the pages charged: for whoever remembers them elsewhere, and
    /// uncharges them by [`GroupTree::uncharge`](super::GroupTree::uncharge) or
    /// [`GroupNode::uncharge`](super::GroupNode::uncharge).
    #[must_use = "these pages stay charged until they are uncharged by hand"]
    pub fn disown(mut self) -> Pages {
        std::mem::take(&mut self.pages)
    }

    /// Uncharges pages that the guard no longer counts.
    #[inline]
    fn give_back(&mut self, pages: Pages) {
        if !self.seat.park_here(pages.0) {
            self.give_back_slowly(pages);
        }
    }

    #[inline(never)]
    fn give_back_slowly(&mut self, pages: Pages) {
        self.turn_here();
        self.core().uncharge(self.key.id, Actor::Here, pages.0);
    }

    /// Looks first at the word of this CPU from now on.
    #[inline(never)]
    fn turn_here(&mut self) {
        if self.core().is_restartable() {
            let id = self.key.id;
            self.seat.turn(|core| {
                let slot = core.slot(id);
                slot.cell(slot.index(Actor::Here))
            });
        }
    }

    #[inline]
    fn less(&self, pages: Pages) -> Pages {
        match self.pages.checked_sub(pages) {
            Some(rest) => rest,
            None => self.refuse(pages),
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, pages: Pages) -> ! {
        panic!("a charge of {} does not hold {pages}", self.pages)
    }

    #[inline]
    pub(super) fn core(&self) -> &Core {
        self.seat.whole()
    }
}

impl Drop for Charge {
    #[inline]
    fn drop(&mut self) {
        if self.pages > Pages::ZERO {
            self.give_back(self.pages);
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("group", &self.key.id)
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}
