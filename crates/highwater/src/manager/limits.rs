//! Limits of a group handle: maximum, protection, throttling, swappiness, and its part in the
//! selection of a victim.

use std::time::Duration;

use super::group::Group;
use crate::group::{Limits, MaxError};
use crate::reclaim::SwappinessError;
use crate::units::{Bytes, OomScoreAdj};

impl Group {
    /// Returns the group's limits.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let limits = Limits { low: Bytes::mib(2), ..Limits::max(Bytes::mib(8)) };
    /// let tenant = hw.root().child("tenant-a", limits)?;
    /// assert_eq!(tenant.limits().low, Bytes::mib(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.node().limits()
    }

    /// Returns the least maximum of the group and its ancestors: what one charge can be at most.
    /// Zero if the group is removed.
    ///
    /// # Cost
    ///
    /// A load for each ancestor.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(8)))?;
    /// let query = tenant.child("query-42", Limits::default())?;
    /// assert_eq!(query.effective_max(), Bytes::mib(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn effective_max(&self) -> Bytes {
        self.node().effective_max()
    }

    /// Changes the group's maximum. If usage is above it, charges fail from now on, and the group's
    /// pages are reclaimed until usage fits.
    ///
    /// # Errors
    ///
    /// When usage is still above it after all reclaimable pages are gone. The maximum is set all
    /// the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// tenant.set_max(Bytes(1000))?;
    /// let work = tenant.charge(Bytes(1000))?;
    /// assert!(tenant.charge(Bytes(1)).is_err());
    /// assert!(tenant.set_max(Bytes(500)).is_err()); // set, but usage cannot be reclaimed
    /// assert_eq!(tenant.limits().max, Bytes(500));
    /// # drop(work);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_max(&self, max: Bytes) -> Result<(), MaxError> {
        self.shared().core.set_max(self.node(), max)
    }

    /// Sets all limits of the group; the maximum as [`set_max`](Self::set_max) does.
    ///
    /// # Errors
    ///
    /// When the limits contradict each other; then none is set. Otherwise as
    /// [`set_max`](Self::set_max); all limits are set.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// tenant.set_limits(Limits { high: Bytes::mib(6), ..Limits::max(Bytes::mib(8)) })?;
    /// assert_eq!(tenant.limits().high, Bytes::mib(6));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_limits(&self, limits: Limits) -> Result<(), MaxError> {
        limits.check()?;
        self.node().set_min(limits.min);
        self.node().set_low(limits.low);
        self.node().set_high(limits.high);
        self.shared().core.set_max(self.node(), limits.max)
    }

    /// Sets the group's hard protection.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn set_min(&self, min: Bytes) {
        self.node().set_min(min);
    }

    /// Sets the group's soft protection.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn set_low(&self, low: Bytes) {
        self.node().set_low(low);
    }

    /// Sets the usage above which the group is throttled.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn set_high(&self, high: Bytes) {
        self.node().set_high(high);
    }

    /// Reclaims the excess of the group and its ancestors over their `high`, and returns the
    /// throttling delay that a charge of 64 pages incurs for the rest: for a program that throttles
    /// itself, at points of its own choice. Zero if the delay is 10 ms or less; at most 2 s.
    ///
    /// # Cost
    ///
    /// A few loads for each ancestor; for one that may be over its `high`, a visit to each CPU that
    /// has charged there, and reclaim.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// tenant.set_limits(Limits { high: Bytes::mib(1), ..Limits::default() })?;
    /// let work = tenant.charge(Bytes::mib(2))?;
    /// assert!(!tenant.throttle().is_zero()); // sleep that long before the next piece of work
    /// # drop(work);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn throttle(&self) -> Duration {
        self.shared().core.throttle_group(self.node())
    }

    /// Sets the cost of swap I/O relative to file I/O for pages of this group and of descendants
    /// without a setting of their own: 0 to 200, as
    /// [`Manager::set_swappiness`](super::Manager::set_swappiness); 0 disables swap. `None` removes
    /// the setting: the parent's applies, or the manager's.
    ///
    /// # Errors
    ///
    /// When it is above 200; the setting is unchanged.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn set_swappiness(&self, swappiness: Option<u64>) -> Result<(), SwappinessError> {
        let reclaim = &self.shared().core.reclaim;
        reclaim.set_group_swappiness(self.node(), swappiness)
    }

    /// Returns the swappiness in force for the group.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn swappiness(&self) -> u64 {
        self.shared().core.reclaim.swappiness_of(self.node())
    }

    /// Returns the group's OOM score adjustment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::units::OomScoreAdj;
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// assert_eq!(tenant.oom_score_adj(), OomScoreAdj::default());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn oom_score_adj(&self) -> OomScoreAdj {
        self.node().oom_score_adj()
    }

    /// Sets the group's OOM score adjustment: thousandths of the full group's maximum, or of the
    /// capacity if that is less, that are added to its usage when a victim is selected. Existing
    /// descendants keep theirs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::units::OomScoreAdj;
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// tenant.set_oom_score_adj(OomScoreAdj::UNKILLABLE);
    /// let query = tenant.child("query-42", Limits::default())?;
    /// assert_eq!(query.oom_score_adj(), OomScoreAdj::UNKILLABLE); // inherited
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_oom_score_adj(&self, adj: OomScoreAdj) {
        self.node().set_oom_score_adj(adj);
    }

    /// Returns whether the group or an ancestor is being stopped.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn is_oom_victim(&self) -> bool {
        self.node().is_oom_victim()
    }

    /// Marks the group as being stopped: it will give its memory back. Requests that find no memory
    /// wait for that, once each and for about 8 ms, before they select another victim. Ends with
    /// [`exit_oom_victim`](Self::exit_oom_victim), or when the group is removed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let work = tenant.charge(Bytes::mib(1))?;
    /// tenant.mark_oom_victim(); // its owner cancels it
    /// drop(work);
    /// tenant.remove()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mark_oom_victim(&self) {
        self.node().mark_oom_victim();
    }

    /// Clears the mark of [`mark_oom_victim`](Self::mark_oom_victim): the group can be selected
    /// again.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// tenant.mark_oom_victim();
    /// tenant.exit_oom_victim(); // it can be selected again
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exit_oom_victim(&self) {
        self.node().exit_oom_victim();
        self.shared().core.exit_oom_victim(self.node());
    }
}
