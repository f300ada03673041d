//! Groups as the embedder sees them: charging goes through the slow path.

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

/// A group of a manager: a tenant, a query, whatever is accounted and limited together. Cheap to
/// clone. A group stays until it is [removed](Self::remove), whoever drops its handles.
#[derive(Clone)]
pub struct Group {
    /// The node's, for charges that keep the manager.
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

    /// Makes a group below this one.
    ///
    /// # Errors
    ///
    /// A name that is taken or not allowed, or a tree that is too deep.
    pub fn child(&self, name: &str, limits: Limits) -> Result<Self, ChildError> {
        let node = self.node.child(name, limits)?;
        self.shared.core.reclaim.add_group(&node);
        Ok(Self::new(&self.shared, node))
    }

    /// Removes the group, which must have no children. Its pages become its parent's; what else is
    /// charged to it stays charged to its ancestors until it is given back.
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

    /// Reclaims what the group and those above it use beyond their `high`, and returns the delay
    /// that a charge of 64 pages owes for what is left: for a program that throttles itself, at
    /// moments of its own, between the pages that it reads. Zero if that is 10 ms or less; at most
    /// 2 s.
    ///
    /// # Cost
    ///
    /// A few loads for each ancestor; for one that may be over its `high`, a visit to each CPU that
    /// has charged there, and reclaim.
    pub fn throttle(&self) -> Duration {
        self.shared.core.throttle_group(&self.node)
    }

    /// What the group and its descendants use: about, and the interval that holds it.
    ///
    /// # Cost
    ///
    /// A load for each CPU that has charged to them, up to about 1,024 groups and CPUs of groups.
    /// Never waits.
    #[must_use]
    pub fn usage(&self) -> Estimate<Bytes> {
        self.node.usage()
    }

    /// What the group and its descendants use, exactly. Visits the CPUs that have charged to them.
    #[must_use]
    pub fn usage_precise(&self) -> Bytes {
        self.node.usage_precise()
    }

    /// The most that the group has used, as an interval.
    #[must_use]
    pub fn peak(&self) -> Estimate<Bytes> {
        self.node.peak()
    }

    /// The group's limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.node.limits()
    }

    /// Changes the group's maximum. If it uses more, it stops growing at once, and its pages are
    /// reclaimed until it fits.
    ///
    /// # Errors
    ///
    /// When it still uses more after everything reclaimable is gone. The maximum is installed.
    pub fn set_max(&self, max: Bytes) -> Result<(), MaxError> {
        self.shared.core.set_max(&self.node, max)
    }

    /// Sets all limits of the group; the maximum as [`set_max`](Self::set_max) does.
    ///
    /// # Errors
    ///
    /// When the limits contradict each other: nothing is set. Else as [`set_max`](Self::set_max);
    /// all limits are set.
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

    /// Says what I/O for swap costs beside that for files when pages of the group are reclaimed,
    /// and of those below it that have no setting of their own: 0 to 200, as
    /// [`Manager::set_swappiness`](super::Manager::set_swappiness); 0: they are never swapped.
    /// `None` takes the setting back: the parent's holds, or the manager's.
    ///
    /// # Errors
    ///
    /// When it is above 200. Nothing has changed.
    pub fn set_swappiness(&self, swappiness: Option<u64>) -> Result<(), SwappinessError> {
        let reclaim = &self.shared.core.reclaim;
        reclaim.set_group_swappiness(&self.node, swappiness)
    }

    /// The swappiness that holds for the group.
    #[must_use]
    pub fn swappiness(&self) -> u64 {
        self.shared.core.reclaim.swappiness_of(&self.node)
    }

    /// Sets the point above which the group is throttled.
    pub fn set_high(&self, high: Bytes) {
        self.node.set_high(high);
    }

    /// How willingly the group is stopped when memory is out.
    #[must_use]
    pub fn oom_score_adj(&self) -> OomScoreAdj {
        self.node.oom_score_adj()
    }

    /// Sets how willingly the group is stopped when memory is out: thousandths of all memory that
    /// its usage counts more, or less. Groups below it that exist already keep theirs.
    pub fn set_oom_score_adj(&self, adj: OomScoreAdj) {
        self.node.set_oom_score_adj(adj);
    }

    /// Whether the group, or one above it, is being stopped.
    #[must_use]
    pub fn is_oom_victim(&self) -> bool {
        self.node.is_oom_victim()
    }

    /// Says that the group is being stopped and will give back what it uses: requests that find no
    /// memory wait for that, each once and for about 8 ms, before they have another one stopped.
    /// Ends with [`exit_oom_victim`](Self::exit_oom_victim), or when the group is removed.
    pub fn mark_oom_victim(&self) {
        self.node.mark_oom_victim();
    }

    /// Says that the group is not being stopped, or no longer: it can be chosen again.
    pub fn exit_oom_victim(&self) {
        self.node.exit_oom_victim();
        self.shared.core.victims.lock().exit(&self.node);
    }

    /// How often limits were met by the group and its descendants.
    #[must_use]
    pub fn events(&self) -> GroupEvents {
        self.node.events()
    }

    /// How often limits were met by the group itself.
    #[must_use]
    pub fn events_local(&self) -> GroupEvents {
        self.node.events_local()
    }

    /// Pages on the group's own lists.
    ///
    /// # Cost
    ///
    /// The lock of each CPU's batch of pages that have just come in, which are put on their lists
    /// first.
    #[must_use]
    pub fn list_sizes(&self) -> ListSizes {
        self.shared.core.reclaim.drain_batches();
        self.shared.core.reclaim.list_sizes(&self.node)
    }

    /// The group's number; reused some time after the group is removed.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.node.id()
    }

    /// The group, and no later one of the same number, in a word.
    #[must_use]
    pub fn key(&self) -> GroupKey {
        self.node.key()
    }

    /// The names from the root: `/` for the root, else such as `/tenant-a/query-42`.
    #[must_use]
    pub fn path(&self) -> GroupPath {
        self.node.path()
    }

    /// The group above; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let node = self.node.parent()?;
        Some(Self::new(&self.shared, node))
    }

    /// The groups directly below, by name; none when this one is removed.
    ///
    /// # Cost
    ///
    /// The tree's lock for reading; O(children).
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        let nodes = self.node.children().into_iter();
        nodes.map(|node| Self::new(&self.shared, node)).collect()
    }

    /// Whether the group was removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.node.is_removed()
    }

    /// Whether `other` is this group or one above it.
    #[must_use]
    pub fn is_descendant_of(&self, other: &Self) -> bool {
        self.node.is_descendant_of(&other.node)
    }

    /// Keeps `data` with the group, once: for what the program has for each group, such as its
    /// query. Dropped with the last handle and charge of the group.
    ///
    /// # Errors
    ///
    /// Gives `data` back when the group has some.
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

    /// What was [kept](Self::set_data) with the group, if that is a `T`.
    #[must_use]
    pub fn data<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.node.data()
    }

    /// What the group and its descendants use above their maximum: because charges were forced, or
    /// because the maximum was set below the usage. Paid first by whatever is given back.
    #[must_use]
    pub fn debt(&self) -> Bytes {
        self.node.debt()
    }

    /// Charges that wait in line for room in this group.
    #[must_use]
    pub fn nr_waiting(&self) -> usize {
        self.node.nr_waiting()
    }

    /// The group's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// The group as the lower layer knows it. Not public: uncharging by hand what a charge or a
    /// page pays for would make their drop panic.
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
    /// The same group of the same manager.
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
