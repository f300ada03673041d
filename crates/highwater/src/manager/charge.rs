//! Charges that complete or fail at once, and forced charges. Charges that wait: `wait.rs`.

use std::fmt;
use std::time::Duration;

use super::Shared;
use super::error::ChargeFailed;
use super::group::Group;
use super::slow::Patience;
use crate::group::{ChargeError, GroupPath, Groups, Held, Keeper, Refilled};
use crate::units::Bytes;

/// Bytes charged to a group and its ancestors, until dropped. For memory that the embedder
/// allocates elsewhere; reads charge file pages. May be sent to other threads.
///
/// Every amount is exact to the byte: growing and shrinking by the same amount, however often and
/// in whatever steps, leaves the charge as it was.
///
/// # Examples
///
/// ```
/// use highwater::{Bytes, Limits, Manager};
///
/// let hw = Manager::builder().capacity(Bytes::mib(16)).build()?;
/// let query = hw.root().child("query", Limits::max(Bytes(1000)))?;
/// let mut batch = query.charge(Bytes(600))?;
/// batch.grow(Bytes(400))?;
/// assert!(batch.grow(Bytes(1)).is_err());
/// let column = batch.split(Bytes(250));
/// batch.shrink(Bytes(250));
/// assert_eq!((batch.bytes(), column.bytes()), (Bytes(500), Bytes(250)));
/// batch.merge(column).expect("both are of one group");
/// assert_eq!(query.usage_precise(), Bytes(750));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a charge gives it back"]
pub struct Charge {
    held: Held<Shared>,
    throttle_delay: Duration,
}

impl Group {
    /// Charges memory to the group and all its ancestors; reclaims if a maximum is reached. That
    /// may sleep: in a task, await [`charge_async`](Self::charge_async) instead.
    ///
    /// # Cost
    ///
    /// In the common case one update of each of two cache lines that only this CPU writes, the
    /// group's tokens and the reference count of the manager. In the restartable regime each update
    /// is a plain store. Dropping the charge costs the same.
    ///
    /// # Errors
    ///
    /// When a group would exceed its maximum and neither reclaim nor victims made room: the error
    /// names the group and its numbers. Nothing is charged then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes(1000)))?;
    /// let work = tenant.charge(Bytes(600))?;
    /// let refused = tenant.charge(Bytes(600)).unwrap_err();
    /// println!("{refused}"); // names the group, and the requested and free amounts
    /// drop(work);
    /// assert!(tenant.charge(Bytes(600)).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // Always inlined: returning the result in memory costs as much as the charge.
    #[inline(always)]
    pub fn charge(&self, bytes: Bytes) -> Result<Charge, ChargeFailed> {
        let (held, delay) = match self.slot().take(bytes) {
            Some(held) => (held, Duration::ZERO),
            None => self.charge_slowly(bytes, Patience::Charge)?,
        };
        Ok(Charge::new(held, delay))
    }

    #[inline(never)]
    pub(super) fn charge_slowly(
        &self,
        bytes: Bytes,
        patience: Patience,
    ) -> Result<(Held<Shared>, Duration), ChargeFailed> {
        let core = &self.shared().core;
        let charge = || self.node().charge_kept(self.slot(), bytes);
        let (held, refilled) = core.charging(self.id(), bytes, patience, charge)?;
        let delay = core.throttle(self.id(), refilled);
        Ok((held, delay))
    }

    /// As [`charge`](Self::charge), but asks nothing of others: it reclaims cached pages, calls no
    /// [spill handler](Self::on_reclaim), selects no victim and does not overtake charges that
    /// wait. For requests that the program can do without, such as a sort that spills instead.
    ///
    /// # Errors
    ///
    /// When a group would exceed its maximum and no page could be reclaimed, or charges wait there.
    /// Nothing is charged then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes(1000)))?;
    /// hw.root().on_exhausted(|victim| unreachable!("{victim:?} may stay"));
    /// let sort = tenant.try_charge(Bytes(600))?;
    /// assert!(tenant.try_charge(Bytes(600)).is_err()); // spill
    /// # drop(sort);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    // Always inlined: as `charge`.
    #[inline(always)]
    pub fn try_charge(&self, bytes: Bytes) -> Result<Charge, ChargeFailed> {
        let (held, delay) = match self.slot().take(bytes) {
            Some(held) => (held, Duration::ZERO),
            None => self.charge_slowly(bytes, Patience::Modest)?,
        };
        Ok(Charge::new(held, delay))
    }

    /// Charges memory to the group and all its ancestors regardless of their limits: for memory
    /// that is already allocated. Usage above a maximum is the group's
    /// [debt](crate::group::GroupNode::debt): until it is paid, only forced charges succeed.
    /// Reclaims nothing and selects no victim. If the group is removed, the nearest ancestor that
    /// is not removed pays.
    ///
    /// # Cost
    ///
    /// While there is room, as [`charge`](Self::charge). Otherwise a lock, one atomic operation for
    /// each ancestor, and one for each word that holds tokens below a group without room.
    ///
    /// # Panics
    ///
    /// When all groups together would hold 256 TiB.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes(1000)))?;
    /// let buffer = vec![0; 1500]; // another library allocated it
    /// let forced = tenant.force_charge(Bytes(buffer.len() as u64));
    /// assert!(tenant.charge(Bytes(1)).is_err()); // until the debt is paid
    /// drop(forced);
    /// assert!(tenant.charge(Bytes(1)).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn force_charge(&self, bytes: Bytes) -> Charge {
        let held = match self.slot().take(bytes) {
            Some(held) => held,
            None => self.force_slowly(bytes),
        };
        Charge::new(held, Duration::ZERO)
    }

    #[cold]
    #[inline(never)]
    fn force_slowly(&self, bytes: Bytes) -> Held<Shared> {
        let keeper = self.shared().reference();
        self.node().force_charge_kept(keeper, bytes)
    }
}

impl Charge {
    #[inline]
    pub(super) fn new(held: Held<Shared>, throttle_delay: Duration) -> Self {
        Self {
            held,
            throttle_delay,
        }
    }

    /// Returns the charged bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let mut work = tenant.charge(Bytes(600))?;
    /// work.grow(Bytes(1))?;
    /// assert_eq!(work.bytes(), Bytes(601));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.held.bytes()
    }

    /// Returns the path of the charged group.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn group(&self) -> GroupPath {
        self.held.path()
    }

    /// Charges more; reclaims if a maximum is reached.
    ///
    /// # Errors
    ///
    /// As [`Group::charge`]; the earlier charge stays.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes(1000)))?;
    /// let mut work = tenant.charge(Bytes(600))?;
    /// work.grow(Bytes(400))?;
    /// assert!(work.grow(Bytes(1)).is_err());
    /// assert_eq!(work.bytes(), Bytes(1000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn grow(&mut self, bytes: Bytes) -> Result<(), ChargeFailed> {
        match self.held.grow(bytes) {
            Ok(Refilled::NOTHING) => Ok(()),
            outcome => self.grow_slowly(bytes, outcome),
        }
    }

    /// Slow path: the first attempt was refused or left bytes reserved.
    #[inline(never)]
    fn grow_slowly(
        &mut self,
        bytes: Bytes,
        first: Result<Refilled, ChargeError>,
    ) -> Result<(), ChargeFailed> {
        // The first attempt may have grown it.
        let grown = if first.is_ok() { bytes } else { Bytes::ZERO };
        let before = self.bytes() - grown;
        let keeper = self.held.keeper().clone();
        let (core, group) = (&keeper.core, self.held.key().id());
        let mut first = Some(first);
        let grow = || first.take().unwrap_or_else(|| self.held.grow(bytes));
        let refilled = core.charging(group, bytes, Patience::Charge, grow)?;
        self.throttle_delay += core.throttle(group, refilled);
        debug_assert_eq!(self.bytes(), before + bytes, "growth is all or nothing");
        Ok(())
    }

    /// Returns the throttling delay that this charge incurred by taking its group, or one above it,
    /// further over its `high`, when it was made and when it grew: the caller should sleep that
    /// long before it charges again. With [`Throttling::Sleep`](super::Throttling::Sleep) the
    /// library has slept already, and it is zero, except of an awaited
    /// [`charge_async`](super::Group::charge_async): the task sleeps.
    ///
    /// A charge that is served from tokens incurs no delay; the charge that brought the tokens did.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// tenant.set_limits(Limits { high: Bytes::mib(1), ..Limits::default() })?;
    /// let work = tenant.charge(Bytes::mib(2))?;
    /// std::thread::sleep(work.throttle_delay() / 100); // or yield, or shed load
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn throttle_delay(&self) -> Duration {
        self.throttle_delay
    }

    /// Uncharges part of the charge.
    ///
    /// # Panics
    ///
    /// If `bytes` exceeds the charge.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let mut work = tenant.charge(Bytes(600))?;
    /// work.shrink(Bytes(200));
    /// assert_eq!(tenant.usage_precise(), Bytes(400));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn shrink(&mut self, bytes: Bytes) {
        self.held.shrink(bytes);
    }

    /// [Grows](Self::grow) or [shrinks](Self::shrink) the charge to `bytes`.
    ///
    /// # Errors
    ///
    /// As [`grow`](Self::grow).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn resize(&mut self, bytes: Bytes) -> Result<(), ChargeFailed> {
        let now = self.bytes();
        if bytes > now {
            return self.grow(bytes - now);
        }
        self.shrink(now - bytes);
        debug_assert_eq!(self.bytes(), bytes, "a resized charge has the new size");
        Ok(())
    }

    /// Gives up the guard and returns the bytes, which stay charged until
    /// [`Group::uncharge`] returns them: for a program that counts them itself, such as one whose
    /// memory is grown and shrunk by several threads.
    ///
    /// # Examples
    ///
    /// See [`Group::uncharge`].
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// assert_eq!(tenant.charge(Bytes(600))?.disown(), Bytes(600));
    /// assert_eq!(tenant.usage_precise(), Bytes(600));
    /// # tenant.uncharge(Bytes(600));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use = "the bytes stay charged until they are uncharged"]
    pub fn disown(self) -> Bytes {
        self.held.disown()
    }

    /// Splits `bytes` off into a charge of their own. Charges and uncharges nothing.
    ///
    /// # Panics
    ///
    /// If `bytes` exceeds the charge.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let mut work = tenant.charge(Bytes(600))?;
    /// let result = work.split(Bytes(100));
    /// drop(work);
    /// assert_eq!(tenant.usage_precise(), result.bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(&mut self, bytes: Bytes) -> Self {
        let before = self.bytes();
        let part = self.held.split(bytes);
        debug_assert_eq!(
            self.bytes() + part.bytes(),
            before,
            "a split conserves bytes"
        );
        Self::new(part, Duration::ZERO)
    }

    /// Adds another charge of the same group to this one, including its throttling delay. Charges
    /// and uncharges nothing. Where there is no room yet, a charge grows in its turn by merging one
    /// that [waited](Group::charge_async).
    ///
    /// # Errors
    ///
    /// Returns `other` if it belongs to another group.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let mut work = tenant.charge(Bytes(600))?;
    /// let more = tenant.charge_async(Bytes(100)).wait()?;
    /// work.merge(more).expect("both are of one group");
    /// assert_eq!(work.bytes(), Bytes(700));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge(&mut self, other: Self) -> Result<(), Self> {
        let Self {
            held,
            throttle_delay,
        } = other;
        let (before, added) = (self.bytes(), held.bytes());
        let merged = self.held.merge(held);
        if merged.is_ok() {
            debug_assert_eq!(self.bytes(), before + added, "a merge conserves bytes");
            self.throttle_delay += throttle_delay;
        }
        merged.map_err(|held| Self::new(held, throttle_delay))
    }

    /// Moves part of the charge to another group; common ancestors are not charged again. Reclaims
    /// if a maximum is reached below them.
    ///
    /// # Errors
    ///
    /// As [`Group::charge`]; nothing has moved then.
    ///
    /// # Panics
    ///
    /// If `bytes` exceeds the charge, or the group belongs to another manager.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let query = tenant.child("query-42", Limits::default())?;
    /// let mut work = query.charge(Bytes(600))?;
    /// let result = work.transfer(&tenant, Bytes(100))?;
    /// drop(work);
    /// query.remove()?; // the result outlives the query
    /// assert_eq!(tenant.usage_precise(), result.bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn transfer(&mut self, to: &Group, bytes: Bytes) -> Result<Self, ChargeFailed> {
        let keeper = self.held.keeper().clone();
        let core = &keeper.core;
        let slot = (to.node(), to.slot());
        let transfer = || self.held.transfer_to(slot, bytes);
        let held = core.charging(to.id(), bytes, Patience::Charge, transfer)?;
        debug_assert_eq!(held.bytes(), bytes, "a transfer is all or nothing");
        Ok(Self::new(held, Duration::ZERO))
    }
}

impl Keeper for Shared {
    #[inline]
    fn tree(&self) -> &Groups {
        self.core.groups.groups()
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("group", &self.group())
            .field("bytes", &self.bytes())
            .field("throttle_delay", &self.throttle_delay)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, target_os = "linux", not(loom), not(miri)))]
mod tests {
    use super::*;
    use crate::group::Limits;
    use crate::manager::Manager;
    use crate::percpu::Regime;
    use crate::percpu::harness::{run_unregistered, while_moved_around};
    use crate::sync::{LockClass, Mutex, Rank};

    static STOCK: LockClass = LockClass::new("charges of a test", Rank::Leaf);

    fn managed(regime: Regime) -> (Manager, Group) {
        let built = Manager::builder().regime(regime).frames(Bytes::ZERO);
        let hw = built.build().expect("a manager without frames");
        let limits = Limits::max(Bytes::mib(8));
        let group = hw.root().child("query", limits);
        (hw, group.expect("a name that is free"))
    }

    /// Returns the reference counts of the manager and of its tree.
    fn references(hw: &Manager) -> (i64, i64) {
        (hw.shared.nr_references(), hw.core().groups.nr_references())
    }

    // Goal: a charge counts one reference, not one to the manager and another to its tree, on each
    // way to make one. Method: both counts before, while charges live, and after.
    #[test]
    fn a_charge_counts_one_reference() {
        for regime in [Regime::Restartable, Regime::Atomic] {
            let (hw, group) = managed(regime);
            let other = hw.root().child("other", Limits::default());
            let other = other.expect("a name that is free");
            let (of_manager, of_tree) = references(&hw);
            let is_kept_by = |charges| assert_eq!(references(&hw), (of_manager + charges, of_tree));
            let refilling = group.charge(Bytes(1)).expect("there is room");
            is_kept_by(1);
            let mut held = group.charge(Bytes(8)).expect("there is room");
            is_kept_by(2);
            let split = held.split(Bytes(4));
            let moved = held.transfer(&other, Bytes(2)).expect("there is room");
            is_kept_by(4);
            held.merge(split).expect("both are of one group");
            held.grow(Bytes::mib(1)).expect("there is room");
            is_kept_by(3);
            let waited = group.charge_async(Bytes(1)).wait();
            let forced = group.force_charge(Bytes(1));
            is_kept_by(5);
            drop((refilling, held, moved, waited, forced));
            is_kept_by(0);
            assert_eq!(hw.root().usage_precise(), Bytes::ZERO);
            hw.check_invariants();
        }
    }

    // Goal: charges that are made on one CPU and dropped on another, or by threads without rseq,
    // leave no byte and no reference behind, and keep the manager alive until the last one is
    // dropped. Method: six threads that migrate between CPUs, and one without rseq, make and drop
    // charges of a common stock; halfway the last handle of the manager is dropped.
    #[test]
    fn charges_on_all_cpus_leave_nothing_behind() {
        for regime in [Regime::Restartable, Regime::Atomic] {
            let (hw, group) = managed(regime);
            let ended = crate::sync::Arc::downgrade(&hw.core().memory);
            let first = group.charge(Bytes(1)).expect("there is room");
            let stock = Mutex::new(&STOCK, vec![first]);
            let handles = Mutex::new(&STOCK, Some((hw, group)));
            let round = |random: &mut fastrand::Rng| {
                let group = handles.lock().as_ref().map(|(_, group)| group.clone());
                let made = group.and_then(|group| group.charge(Bytes(random.u64(1..9000))).ok());
                let mut stock = stock.lock();
                let at = random.usize(..stock.len());
                let mut taken = match (made, random.bool()) {
                    (Some(made), true) => std::mem::replace(&mut stock[at], made),
                    (Some(made), false) => made,
                    (None, _) => stock[at].split(Bytes::ZERO),
                };
                drop(stock);
                let more = Bytes(random.u64(..5000));
                if taken.grow(more).is_ok() {
                    taken.shrink(more);
                }
            };
            while_moved_around(6, |thread| {
                let mut random = crate::seed::rng(thread);
                for nth in 0..3_000 {
                    if thread == 0 && nth % 500 == 0 {
                        run_unregistered(|| (0..50).for_each(|_| round(&mut random)));
                    }
                    round(&mut random);
                    if thread == 0 && nth == 1_500 {
                        let last = handles.lock().take();
                        drop(last);
                    }
                }
            });
            assert!(ended.upgrade().is_some(), "a charge keeps the manager");
            let last = stock.lock().pop();
            let last = last.expect("charges were replaced, not removed");
            let node = last.held.keeper().core.groups.root();
            assert_eq!(node.usage_precise(), last.bytes(), "{regime:?}");
            last.held.keeper().core.groups.check_invariants();
            drop(node);
            drop(last);
            assert!(ended.upgrade().is_none(), "nothing keeps the manager");
        }
    }
}
