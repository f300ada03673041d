//! Usage of a group handle: current, highest, above the maximum; events and list sizes.

use super::group::Group;
use crate::group::GroupEvents;
use crate::reclaim::ListSizes;
use crate::units::{Bytes, Estimate};

impl Group {
    /// Returns the usage of the group and its descendants as an interval.
    ///
    /// # Cost
    ///
    /// A load for each CPU that has charged to them, up to about 1,024 groups and CPUs of groups.
    /// Never waits.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let work = tenant.charge(Bytes(1000))?;
    /// let usage = tenant.usage();
    /// assert!(usage.low <= Bytes(1000) && Bytes(1000) <= usage.high);
    /// # drop(work);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn usage(&self) -> Estimate<Bytes> {
        self.node().usage()
    }

    /// Returns the usage of the group and its descendants as an interval of at most `tolerance`.
    ///
    /// # Cost
    ///
    /// Four loads where they suffice; otherwise as [`usage_precise`](Self::usage_precise), with an
    /// interval of zero.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let work = tenant.charge(Bytes::mib(3))?;
    /// let usage = tenant.usage_within(Bytes::mib(1));
    /// assert!(usage.high - usage.low <= Bytes::mib(1));
    /// assert!(usage.contains(Bytes::mib(3)));
    /// # drop(work);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn usage_within(&self, tolerance: Bytes) -> Estimate<Bytes> {
        self.node().usage_within(tolerance)
    }

    /// Returns the exact usage of the group and its descendants. Visits the CPUs that charged to
    /// them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let work = tenant.charge(Bytes(1000))?;
    /// assert_eq!(tenant.usage_precise(), Bytes(1000));
    /// # drop(work);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn usage_precise(&self) -> Bytes {
        self.node().usage_precise()
    }

    /// Returns the highest usage of the group, as an interval.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// drop(tenant.charge(Bytes::mib(1))?);
    /// assert_eq!(tenant.usage_precise(), Bytes::ZERO);
    /// assert!(tenant.peak().contains(Bytes::mib(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn peak(&self) -> Estimate<Bytes> {
        self.node().peak()
    }

    /// Returns the usage of the group and its descendants above its maximum, caused by forced
    /// charges or by a maximum set below usage. Uncharged memory pays it first.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes(1000)))?;
    /// let forced = tenant.force_charge(Bytes(1500));
    /// assert_eq!(tenant.debt(), Bytes(500));
    /// # drop(forced);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn debt(&self) -> Bytes {
        self.node().debt()
    }

    /// Returns the limit events of the group and its descendants.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let query = tenant.child("query-42", Limits::max(Bytes(1000)))?;
    /// assert!(query.charge(Bytes(1001)).is_err());
    /// assert_eq!((query.events().max, tenant.events().max), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn events(&self) -> GroupEvents {
        self.node().events()
    }

    /// Returns the limit events of the group itself.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn events_local(&self) -> GroupEvents {
        self.node().events_local()
    }

    /// Returns the number of charges in this group's wait queue.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn nr_waiting(&self) -> usize {
        self.node().nr_waiting()
    }

    /// Returns the number of pages on the group's own lists.
    ///
    /// # Cost
    ///
    /// Locks each CPU's add batch, to drain it to the lists first.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn list_sizes(&self) -> ListSizes {
        self.shared().core.reclaim.drain_batches();
        self.shared().core.reclaim.list_sizes(self.node())
    }
}
