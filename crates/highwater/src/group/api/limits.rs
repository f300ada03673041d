//! Limits and events of a group's handle.

use super::node::GroupNode;
use crate::group::error::MaxError;
use crate::group::state::{Event, EventCounts, GroupEvents, Limits};
use crate::units::Bytes;

impl GroupNode {
    /// Returns the current limits. Each is read by itself, so a concurrent change of several is not
    /// seen all at once. The limits of a removed group protect nothing, and its maximum is zero
    /// once it is gone.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.meta().settings.with_max(self.max())
    }

    /// Returns the current maximum; zero when the group is gone.
    fn max(&self) -> Bytes {
        self.unless_gone(self.slot().ledger.balance().max, Bytes::ZERO)
    }

    /// Returns the least maximum of this group and its ancestors; zero when the group is removed.
    ///
    /// # Cost
    ///
    /// A load for each ancestor.
    #[must_use]
    pub fn effective_max(&self) -> Bytes {
        if self.is_removed() {
            return Bytes::ZERO;
        }
        let maxima = self.groups().chain(self.id());
        let least = maxima.map(|(_, slot)| slot.ledger.balance().max).min();
        least.unwrap_or(Bytes::MAX)
    }

    /// Sets the maximum. From the moment it is installed no charge brings the subtree above it.
    ///
    /// # Errors
    ///
    /// [`MaxError::BelowUsage`] when the subtree uses more: the maximum **is** installed, and
    /// nothing in the subtree can be charged until enough is uncharged. [`MaxError::Removed`] when
    /// the group is removed; nothing is installed.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for writing; if below the reservations, also a swap for each CPU that
    /// has charged to a group of the subtree. Loads as [`GroupNode::usage_precise`].
    pub fn set_max(&self, max: Bytes) -> Result<(), MaxError> {
        self.groups().set_max(self.meta(), max)
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
        let set = || self.meta().settings.set_min(min);
        self.groups().set_protection(self.meta(), set);
    }

    /// Sets the soft protection; has no effect on a removed group, which protects nothing.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for writing.
    pub fn set_low(&self, low: Bytes) {
        let set = || self.meta().settings.set_low(low);
        self.groups().set_protection(self.meta(), set);
    }

    /// Sets the throttle point; has no effect on a removed group, which takes no more charges.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for writing.
    pub fn set_high(&self, high: Bytes) {
        self.groups().set_limit_high(self.meta(), high);
    }

    /// Returns the events of the group and its descendants, including those removed since, as
    /// `memory.events` shows them.
    #[must_use]
    pub fn events(&self) -> GroupEvents {
        let events = self.meta().events();
        events.map_or_else(GroupEvents::default, EventCounts::subtree)
    }

    /// Returns the events of the group itself, as `memory.events.local` shows them.
    #[must_use]
    pub fn events_local(&self) -> GroupEvents {
        let events = self.meta().events();
        events.map_or_else(GroupEvents::default, EventCounts::local)
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
    use crate::group::{GroupTree, LimitsError};

    // Goal: limits are read as they were set, together or one by one, and a later group in the same
    // slot starts with its own.
    #[test]
    fn limits_are_read_as_they_were_set() {
        let tree = GroupTree::new(2);
        let limits = Limits {
            min: Bytes::kib(40),
            low: Bytes(83_000),
            high: Bytes::kib(320),
            ..Limits::max(Bytes::kib(400))
        };
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
        assert_eq!(
            group.set_limits(Limits {
                max: Bytes::mib(4),
                ..limits
            }),
            Ok(())
        );
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
        let contradiction = Limits {
            low: Bytes::kib(8),
            ..Limits::max(Bytes::kib(4))
        };
        let refused = tree.root().child("a", contradiction).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "limit `low` is 8 KiB, above `max`, which is 4 KiB: lower it or raise `max`"
        );
        let group = tree.root().child("a", Limits::default()).unwrap();
        let contradiction = Limits {
            min: Bytes::kib(5),
            ..contradiction
        };
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
