//! The public group handle: its charges go through the slow path.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::{Handle, Shared};
use crate::group::{
    ChildError, GroupEvents, GroupKey, GroupNode, GroupPath, Limits, MaxError, RemoveError, Seat,
};
use crate::reclaim::{ListSizes, SwappinessError};
use crate::sync::Arc;
use crate::units::{Bytes, Estimate, GroupId, OomScoreAdj};

/// A group of a manager, such as a tenant or a query: it accounts and limits memory together
/// (memcg). Cheap to clone. A group exists until it is [removed](Self::remove), independent of its
/// handles.
#[derive(Clone)]
pub struct Group {
    /// The node's seat, for charges that keep the manager alive.
    seat: Seat<Shared>,
    shared: Handle,
    node: GroupNode,
}

impl Group {
    pub(super) fn new(shared: &Handle, node: GroupNode) -> Self {
        Self {
            seat: Seat::new(shared.reference(), node.key()),
            shared: Arc::clone(shared),
            node,
        }
    }

    /// Creates a group below this one.
    ///
    /// # Errors
    ///
    /// For a name that is taken or not allowed, or a tree that is too deep.
    pub fn child(&self, name: &str, limits: Limits) -> Result<Self, ChildError> {
        let node = self.node.child(name, limits)?;
        self.shared.core.reclaim.add_group(&node);
        Ok(Self::new(&self.shared, node))
    }

    /// Removes the group, which must have no children. Its pages are reparented; other charges of
    /// the group remain charged to its ancestors until they are dropped.
    ///
    /// # Errors
    ///
    /// When it has children, is the root, or is removed already.
    pub fn remove(&self) -> Result<(), RemoveError> {
        self.node.tree().remove(&self.node)?;
        self.shared.core.reclaim.reparent_group(&self.node);
        self.shared.core.spillers.forget(&self.node);
        Ok(())
    }

    /// Reclaims the excess of the group and its ancestors over their `high`, and returns the
    /// throttling delay that a charge of 64 pages incurs for the rest: for a program that throttles
    /// itself, at points of its own choice. Zero if the delay is 10 ms or less; at most 2 s.
    ///
    /// # Cost
    ///
    /// A few loads for each ancestor; for one that may be over its `high`, a visit to each CPU that
    /// has charged there, and reclaim.
    pub fn throttle(&self) -> Duration {
        self.shared.core.throttle_group(&self.node)
    }

    /// Returns the usage of the group and its descendants as an interval.
    ///
    /// # Cost
    ///
    /// A load for each CPU that has charged to them, up to about 1,024 groups and CPUs of groups.
    /// Never waits.
    #[must_use]
    pub fn usage(&self) -> Estimate<Bytes> {
        self.node.usage()
    }

    /// Returns the exact usage of the group and its descendants. Visits the CPUs that charged to
    /// them.
    #[must_use]
    pub fn usage_precise(&self) -> Bytes {
        self.node.usage_precise()
    }

    /// Returns the highest usage of the group, as an interval.
    #[must_use]
    pub fn peak(&self) -> Estimate<Bytes> {
        self.node.peak()
    }

    /// Returns the group's limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.node.limits()
    }

    /// Changes the group's maximum. If usage is above it, charges fail from now on, and the group's
    /// pages are reclaimed until usage fits.
    ///
    /// # Errors
    ///
    /// When usage is still above it after all reclaimable pages are gone. The maximum is set all
    /// the same.
    pub fn set_max(&self, max: Bytes) -> Result<(), MaxError> {
        self.shared.core.set_max(&self.node, max)
    }

    /// Sets all limits of the group; the maximum as [`set_max`](Self::set_max) does.
    ///
    /// # Errors
    ///
    /// When the limits contradict each other; then none is set. Otherwise as
    /// [`set_max`](Self::set_max); all limits are set.
    pub fn set_limits(&self, limits: Limits) -> Result<(), MaxError> {
        limits.check()?;
        self.node.set_min(limits.min);
        self.node.set_low(limits.low);
        self.node.set_high(limits.high);
        self.shared.core.set_max(&self.node, limits.max)
    }

    /// Sets the group's hard protection.
    pub fn set_min(&self, min: Bytes) {
        self.node.set_min(min);
    }

    /// Sets the group's soft protection.
    pub fn set_low(&self, low: Bytes) {
        self.node.set_low(low);
    }

    /// Sets the cost of swap I/O relative to file I/O for pages of this group and of descendants
    /// without a setting of their own: 0 to 200, as
    /// [`Manager::set_swappiness`](super::Manager::set_swappiness); 0 disables swap. `None` removes
    /// the setting: the parent's applies, or the manager's.
    ///
    /// # Errors
    ///
    /// When it is above 200; the setting is unchanged.
    pub fn set_swappiness(&self, swappiness: Option<u64>) -> Result<(), SwappinessError> {
        let reclaim = &self.shared.core.reclaim;
        reclaim.set_group_swappiness(&self.node, swappiness)
    }

    /// Returns the swappiness in force for the group.
    #[must_use]
    pub fn swappiness(&self) -> u64 {
        self.shared.core.reclaim.swappiness_of(&self.node)
    }

    /// Sets the usage above which the group is throttled.
    pub fn set_high(&self, high: Bytes) {
        self.node.set_high(high);
    }

    /// Returns the group's OOM score adjustment.
    #[must_use]
    pub fn oom_score_adj(&self) -> OomScoreAdj {
        self.node.oom_score_adj()
    }

    /// Sets the group's OOM score adjustment: thousandths of all memory that are added to its usage
    /// when a victim is selected. Existing descendants keep theirs.
    pub fn set_oom_score_adj(&self, adj: OomScoreAdj) {
        self.node.set_oom_score_adj(adj);
    }

    /// Returns whether the group or an ancestor is being stopped.
    #[must_use]
    pub fn is_oom_victim(&self) -> bool {
        self.node.is_oom_victim()
    }

    /// Marks the group as being stopped: it will give its memory back. Requests that find no memory
    /// wait for that, once each and for about 8 ms, before they select another victim. Ends with
    /// [`exit_oom_victim`](Self::exit_oom_victim), or when the group is removed.
    pub fn mark_oom_victim(&self) {
        self.node.mark_oom_victim();
    }

    /// Clears the mark of [`mark_oom_victim`](Self::mark_oom_victim): the group can be selected
    /// again.
    pub fn exit_oom_victim(&self) {
        self.node.exit_oom_victim();
        self.shared.core.victims.lock().exit(&self.node);
    }

    /// Returns the limit events of the group and its descendants.
    #[must_use]
    pub fn events(&self) -> GroupEvents {
        self.node.events()
    }

    /// Returns the limit events of the group itself.
    #[must_use]
    pub fn events_local(&self) -> GroupEvents {
        self.node.events_local()
    }

    /// Returns the number of pages on the group's own lists.
    ///
    /// # Cost
    ///
    /// Locks each CPU's add batch, to drain it to the lists first.
    #[must_use]
    pub fn list_sizes(&self) -> ListSizes {
        self.shared.core.reclaim.drain_batches();
        self.shared.core.reclaim.list_sizes(&self.node)
    }

    /// Returns the group's number, which is reused some time after the group is removed.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.node.id()
    }

    /// Returns the group's key: number and generation in one word, never that of a later group.
    #[must_use]
    pub fn key(&self) -> GroupKey {
        self.node.key()
    }

    /// Returns the group's path: `/` for the root, otherwise such as `/tenant-a/query-42`.
    #[must_use]
    pub fn path(&self) -> GroupPath {
        self.node.path()
    }

    /// Returns the parent; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let node = self.node.parent()?;
        Some(Self::new(&self.shared, node))
    }

    /// Returns the children, ordered by name; none if this group is removed.
    ///
    /// # Cost
    ///
    /// The tree's lock for reading; O(children).
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        let nodes = self.node.children().into_iter();
        nodes.map(|node| Self::new(&self.shared, node)).collect()
    }

    /// Returns whether the group was removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.node.is_removed()
    }

    /// Returns whether `other` is this group or an ancestor of it.
    #[must_use]
    pub fn is_descendant_of(&self, other: &Self) -> bool {
        self.node.is_descendant_of(&other.node)
    }

    /// Attaches `data` to the group, once: for an object of the program's, such as the query.
    /// Dropped with the last handle and charge of the group.
    ///
    /// # Errors
    ///
    /// Returns `data` if the group already has some.
    ///
    /// # Examples
    ///
    /// ```
    /// struct Query(&'static str);
    ///
    /// let hw = highwater::Manager::builder().build()?;
    /// let query = hw.root().child("query-42", Default::default())?;
    /// assert!(query.set_data(Query("select 1")).is_ok());
    /// hw.on_exhausted(|victim| {
    ///     let query = victim.group().data::<Query>().expect("each query has one");
    ///     println!("stop {}: {}", victim.group().path(), query.0);
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_data<T: Any + Send + Sync>(&self, data: T) -> Result<(), T> {
        self.node.set_data(data)
    }

    /// Returns the data that [`set_data`](Self::set_data) attached, if it is a `T`.
    #[must_use]
    pub fn data<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.node.data()
    }

    /// Returns the usage of the group and its descendants above its maximum, caused by forced
    /// charges or by a maximum set below usage. Uncharged memory pays it first.
    #[must_use]
    pub fn debt(&self) -> Bytes {
        self.node.debt()
    }

    /// Returns the number of charges in this group's wait queue.
    #[must_use]
    pub fn nr_waiting(&self) -> usize {
        self.node.nr_waiting()
    }

    /// Returns the group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// Returns the group of the lower layer. Not public: uncharging by hand the memory of a charge
    /// or a page would make its drop panic.
    pub(super) fn node(&self) -> &GroupNode {
        &self.node
    }

    #[inline]
    pub(super) fn seat(&self) -> &Seat<Shared> {
        &self.seat
    }

    pub(super) fn shared(&self) -> &Handle {
        &self.shared
    }
}

impl PartialEq for Group {
    /// Handles are equal if they name the same group of the same manager.
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
    }
}

impl Eq for Group {}

impl Hash for Group {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.node.hash(state);
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}
