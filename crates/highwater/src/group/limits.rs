//! Limits and protection of a group (`memory.min/low/high/max`), and its event counts
//! (`memory.events`).
//!
//! The names are those of `memory.min`, `memory.low`, `memory.high`, `memory.max` and of the fields
//! of `memory.events`. This layer enforces `max` alone: `escrow.rs`. The other three are settings
//! that reclaim and throttling read, and the code that acts on them records their events.
//!
//! An event is counted at its group (`memory.events.local`) and in the subtree of each of its
//! ancestors (`memory.events`), so ancestors keep the events of removed groups.
//!
//! Source: accounting spec 8.5, 8.7.

use crate::sync::StatCell;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::units::Bytes;

use super::error::{LimitsError, MaxError};
use super::node::{GroupNode, Meta};

/// Limits and protection of a group, in bytes and exact to the byte.
///
/// # Examples
///
/// ```
/// use highwater::{Bytes, Limits, Manager};
///
/// let limits = Limits::max(Bytes::mib(64)).with_high(Bytes::mib(60)).with_low(Bytes(1000));
/// assert_eq!(limits.low, Bytes(1000));
/// assert_eq!((limits.min, Limits::default().max), (Bytes::ZERO, Bytes::MAX));
/// let hw = Manager::builder().build()?;
/// let contradiction = Limits::max(Bytes(100)).with_min(Bytes(200));
/// assert!(hw.root().child("tenant-a", contradiction).is_err());
/// # Ok::<(), highwater::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Limits {
    /// Hard protection: reclaim takes nothing from the group while its usage is at most this, as
    /// far as its ancestors are protected themselves.
    pub min: Bytes,
    /// Soft protection: like `min`, until nothing else is left to reclaim.
    pub low: Bytes,
    /// Throttle point: a charge above it reclaims and is throttled; [`Bytes::MAX`] for none.
    pub high: Bytes,
    /// Hard limit of the group and its descendants together; [`Bytes::MAX`] for none.
    pub max: Bytes,
}

impl Limits {
    /// Returns a hard limit without protection or throttle point.
    #[must_use]
    pub const fn max(max: Bytes) -> Self {
        Self {
            min: Bytes::ZERO,
            low: Bytes::ZERO,
            high: Bytes::MAX,
            max,
        }
    }

    /// Returns the same limits with this hard protection.
    #[must_use]
    pub const fn with_min(mut self, min: Bytes) -> Self {
        self.min = min;
        self
    }

    /// Returns the same limits with this soft protection.
    #[must_use]
    pub const fn with_low(mut self, low: Bytes) -> Self {
        self.low = low;
        self
    }

    /// Returns the same limits with this throttle point.
    #[must_use]
    pub const fn with_high(mut self, high: Bytes) -> Self {
        self.high = high;
        self
    }

    /// Returns the same limits with this hard limit.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn with_max(mut self, max: Bytes) -> Self {
        self.max = max;
        self
    }

    /// Checks that the limits do not contradict each other.
    ///
    /// # Errors
    ///
    /// When `min` or `low` is above `max`: memory that the group may never use cannot be protected.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn check(&self) -> Result<(), LimitsError> {
        for (protection, amount) in [("min", self.min), ("low", self.low)] {
            if amount > self.max {
                return Err(LimitsError {
                    protection,
                    amount,
                    max: self.max,
                });
            }
        }
        Ok(())
    }
}

impl Default for Limits {
    /// No limit, no protection.
    fn default() -> Self {
        Self::max(Bytes::MAX)
    }
}

/// Counts of how often a group ran into its limits. They start at zero with the group and never
/// fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GroupEvents {
    /// Times that the group was reclaimed from although its usage was at most its `low`.
    pub low: u64,
    /// Times that a charge found the group above its `high`.
    pub high: u64,
    /// Charges that its `max` refused.
    pub max: u64,
    /// Forced charges that took it above its `max`, or further above it.
    pub debt: u64,
    /// Times that the group was out of memory: no room, and nothing to reclaim.
    pub oom: u64,
    /// Times that it was told to stop to free memory for others.
    pub oom_kill: u64,
}

/// The limits of a group that this layer only stores. `max` is in the group's ledger.
#[derive(Debug)]
pub(super) struct Settings {
    /// Written by: its setter. Read by: reclaim. Publishes: nothing.
    min: AtomicU64,
    /// As `min`.
    low: AtomicU64,
    /// As `min`; also read by throttling.
    high: AtomicU64,
}

impl Settings {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            min: AtomicU64::new(limits.min.0),
            low: AtomicU64::new(limits.low.0),
            high: AtomicU64::new(limits.high.0),
        }
    }

    /// Returns `min` and `low`.
    pub(super) fn protection(&self) -> (Bytes, Bytes) {
        let limits = self.with_max(Bytes::MAX);
        (limits.min, limits.low)
    }

    pub(super) fn high(&self) -> Bytes {
        // Relaxed: see below.
        Bytes(self.high.load(Ordering::Relaxed))
    }

    /// Sets `high` and returns the former value.
    pub(super) fn replace_high(&self, high: Bytes) -> Bytes {
        // Relaxed: see below.
        Bytes(self.high.swap(high.0, Ordering::Relaxed))
    }

    fn with_max(&self, max: Bytes) -> Limits {
        // Relaxed, here and below: each setting stands alone, and a concurrent pass may use the
        // former value.
        Limits {
            min: Bytes(self.min.load(Ordering::Relaxed)),
            low: Bytes(self.low.load(Ordering::Relaxed)),
            high: Bytes(self.high.load(Ordering::Relaxed)),
            max,
        }
    }
}

/// A limit event of a group.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Low,
    High,
    Max,
    Debt,
    Oom,
    OomKill,
}

/// Event counts of one group, or of one subtree.
#[derive(Debug, Default)]
struct Tally([StatCell; 6]);

impl Tally {
    fn cell(&self, event: Event) -> &StatCell {
        &self.0[event as usize]
    }

    fn read(&self) -> GroupEvents {
        let count = |event| self.cell(event).get();
        GroupEvents {
            low: count(Event::Low),
            high: count(Event::High),
            max: count(Event::Max),
            debt: count(Event::Debt),
            oom: count(Event::Oom),
            oom_kill: count(Event::OomKill),
        }
    }
}

/// The events of a group and those of its subtree.
#[derive(Debug, Default)]
pub(super) struct Events {
    local: Tally,
    subtree: Tally,
}

impl Meta {
    /// Counts an event at the group, and in the subtree of each ancestor.
    pub(super) fn record(&self, event: Event) {
        self.events.local.cell(event).add(1);
        for meta in std::iter::successors(Some(self), |meta| meta.parent.as_deref()) {
            meta.events.subtree.cell(event).add(1);
        }
    }
}

impl GroupNode {
    /// Returns the current limits. Each is read by itself, so a concurrent change of several is not
    /// seen all at once. The limits of a removed group protect nothing, and its maximum is zero
    /// once it is gone.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.meta().settings.with_max(self.max())
    }

    /// Sets all limits.
    ///
    /// # Errors
    ///
    /// [`MaxError::Limits`] when they contradict each other: nothing is set. Otherwise as
    /// [`GroupNode::set_max`]; the other limits are set even then, unless the group is removed.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::set_max`].
    pub fn set_limits(&self, limits: Limits) -> Result<(), MaxError> {
        limits.check()?;
        self.set_min(limits.min);
        self.set_low(limits.low);
        self.set_high(limits.high);
        self.set_max(limits.max)
    }

    /// Sets the hard protection; has no effect on a removed group, which protects nothing. A
    /// protection above the maximum covers all that the group can use.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for writing.
    pub fn set_min(&self, min: Bytes) {
        let setting = &self.meta().settings.min;
        // Relaxed: see `Settings`.
        let set = || setting.store(min.0, Ordering::Relaxed);
        self.shared().core.set_protection(self.meta(), set);
    }

    /// Sets the soft protection; has no effect on a removed group, which protects nothing.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for writing.
    pub fn set_low(&self, low: Bytes) {
        let setting = &self.meta().settings.low;
        // Relaxed: see `Settings`.
        let set = || setting.store(low.0, Ordering::Relaxed);
        self.shared().core.set_protection(self.meta(), set);
    }

    /// Sets the throttle point; has no effect on a removed group, which takes no more charges.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for writing.
    pub fn set_high(&self, high: Bytes) {
        self.shared().core.set_limit_high(self.meta(), high);
    }

    /// Returns the events of the group and its descendants, including those removed since, as
    /// `memory.events` shows them.
    #[must_use]
    pub fn events(&self) -> GroupEvents {
        self.meta().events.subtree.read()
    }

    /// Returns the events of the group itself, as `memory.events.local` shows them.
    #[must_use]
    pub fn events_local(&self) -> GroupEvents {
        self.meta().events.local.read()
    }

    /// Counts that the group was reclaimed from although its usage was at most its `low`.
    ///
    /// # Cost
    ///
    /// Here and in the other `record_*` methods: two additions to shared counts, and one more for
    /// each ancestor.
    pub fn record_low(&self) {
        self.meta().record(Event::Low);
    }

    /// Counts that a charge found the group above its `high`.
    pub fn record_high(&self) {
        self.meta().record(Event::High);
    }

    /// Counts that the group was out of memory.
    pub fn record_oom(&self) {
        self.meta().record(Event::Oom);
    }

    /// Counts that this group was told to stop.
    pub fn record_oom_kill(&self) {
        self.meta().record(Event::OomKill);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::group::GroupTree;

    // Goal: limits are read as they were set, together or one by one, and a later group in the same
    // slot starts with its own.
    #[test]
    fn limits_are_read_as_they_were_set() {
        let tree = GroupTree::new(2);
        let limits = Limits::max(Bytes::kib(400))
            .with_min(Bytes::kib(40))
            .with_low(Bytes(83_000))
            .with_high(Bytes::kib(320));
        let group = tree.root().child("a", limits).unwrap();
        assert_eq!(group.limits(), limits);
        assert_eq!(limits.low, Bytes(83_000), "exact to the byte");
        group.set_min(Bytes(1));
        group.set_low(Bytes(2));
        group.set_high(Bytes(3));
        assert_eq!(group.set_max(Bytes(4)), Ok(()));
        let read = group.limits();
        assert_eq!(
            [read.min, read.low, read.high, read.max].map(|p| p.0),
            [1, 2, 3, 4]
        );
        assert_eq!(group.set_limits(limits.with_max(Bytes::mib(4))), Ok(()));
        assert_eq!(
            (group.limits().max, group.limits().min),
            (Bytes::mib(4), Bytes::kib(40))
        );
        tree.remove(&group).unwrap();
        let removed = MaxError::Removed {
            group: group.path(),
        };
        assert_eq!(group.set_limits(limits), Err(removed));
        let next = tree.root().child("b", Limits::default()).unwrap();
        assert_eq!((next.id(), next.limits()), (group.id(), Limits::default()));
    }

    // Goal: a protection above the maximum is an error that names both, and changes nothing.
    #[test]
    fn limits_that_contradict_themselves_are_refused() {
        let tree = GroupTree::new(1);
        let contradiction = Limits::max(Bytes::kib(4)).with_low(Bytes::kib(8));
        let refused = tree.root().child("a", contradiction).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "limit `low` is 8 KiB, above `max`, which is 4 KiB: lower it or raise `max`"
        );
        let group = tree.root().child("a", Limits::default()).unwrap();
        let contradiction = contradiction.with_min(Bytes::kib(5));
        assert!(matches!(
            group.set_limits(contradiction),
            Err(MaxError::Limits(LimitsError {
                protection: "min",
                ..
            }))
        ));
        assert_eq!(group.limits(), Limits::default());
    }

    // Goal: an event counts once at its group and once in each subtree above it, and stays in those
    // when the group is removed.
    #[test]
    fn events_are_kept_by_the_ancestors_of_a_removed_group() {
        let tree = GroupTree::new(1);
        let parent = tree.root().child("parent", Limits::default()).unwrap();
        let child = parent.child("child", Limits::max(Bytes(3))).unwrap();
        assert!(child.try_charge(Bytes(4)).is_err());
        child.record_low();
        child.record_high();
        child.record_oom();
        child.record_oom_kill();
        parent.record_oom();
        let events = GroupEvents {
            low: 1,
            high: 1,
            max: 1,
            debt: 0,
            oom: 1,
            oom_kill: 1,
        };
        assert_eq!((child.events(), child.events_local()), (events, events));
        let local = GroupEvents {
            oom: 1,
            ..GroupEvents::default()
        };
        tree.remove(&child).unwrap();
        for group in [&parent, &tree.root()] {
            assert_eq!(group.events(), GroupEvents { oom: 2, ..events });
        }
        assert_eq!(parent.events_local(), local);
        assert_eq!(tree.root().events_local(), GroupEvents::default());
    }
}
