//! The public group handle: its place in the tree. Charges: `charge.rs`, `wait.rs`; limits:
//! `limits.rs`; usage: `usage.rs`.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};

use super::{Core, Handle, Shared};
use crate::group::{ChildError, GroupKey, GroupNode, GroupPath, Limits, RemoveError, SlotRef};
use crate::units::GroupId;

/// A group of a manager, such as a tenant or a query: it accounts and limits memory together
/// (memcg). Cheap to clone. A group exists until it is [removed](Self::remove), independent of its
/// handles.
#[derive(Clone)]
// A charge reads `slot`, which then lies in one line.
#[repr(C, align(64))]
pub struct Group {
    /// The node's slot, for charges that keep the manager alive.
    slot: SlotRef<Shared>,
    shared: Handle,
    node: GroupNode,
}

// Two lines: the alignment costs no more than half a line.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Group>() == 128);

impl Group {
    pub(super) fn new(shared: &Handle, node: GroupNode) -> Self {
        Self {
            slot: SlotRef::new(shared.reference(), node.key()),
            shared: shared.clone(),
            node,
        }
    }

    /// Creates a group below this one.
    ///
    /// # Errors
    ///
    /// For a name that is taken or not allowed, or a tree that is too deep.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::max(Bytes::mib(8)))?;
    /// let query = tenant.child("query-42", Limits::default())?;
    /// assert_eq!(query.path().to_string(), "/tenant-a/query-42");
    /// assert!(tenant.child("query-42", Limits::default()).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn child(&self, name: &str, limits: Limits) -> Result<Self, ChildError> {
        let node = self.node.child(name, limits)?;
        Ok(Self::new(&self.shared, node))
    }

    /// Removes the group, which must have no children. Its pages are reparented; other charges of
    /// the group remain charged to its ancestors until they are dropped.
    ///
    /// # Errors
    ///
    /// When it has children, is the root, or is removed already.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Bytes, Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let work = tenant.charge(Bytes(100))?;
    /// tenant.remove()?;
    /// assert!(tenant.charge(Bytes(1)).is_err());
    /// assert_eq!(hw.root().usage_precise(), Bytes(100)); // until the charge is dropped
    /// # drop(work);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self) -> Result<(), RemoveError> {
        self.shared.core.remove_group(&self.node)?;
        let mut unused = self.node.parent_if_removed_when_unused();
        while let Some(above) = unused {
            if self.shared.core.remove_group(&above).is_err() {
                break;
            }
            unused = above.parent_if_removed_when_unused();
        }
        Ok(())
    }

    /// Removes the group as soon as it has no children: now, or with its last child. Until then it
    /// is as before, and may get more children. Does nothing for the root, or a group that is
    /// removed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let query = tenant.child("query-42", Limits::default())?;
    /// tenant.remove_when_unused(); // the tenant has left, its last query runs
    /// assert_eq!(hw.root().children(), [tenant]);
    /// query.remove_when_unused();
    /// assert!(hw.root().children().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_when_unused(&self) {
        // Before the attempt: a child that is removed after the attempt failed sees it.
        self.node.set_removed_when_unused();
        // Fails for the root, and while it has children.
        drop(self.remove());
    }

    /// Returns the group's number, which is reused some time after the group is removed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// assert_ne!(tenant.id(), hw.root().id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.node.id()
    }

    /// Returns the group's key: number and generation in one word, never that of a later group.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn key(&self) -> GroupKey {
        self.node.key()
    }

    /// Returns the group's path: `/` for the root, otherwise such as `/tenant-a/query-42`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// assert_eq!(tenant.path().to_string(), "/tenant-a");
    /// assert_eq!(hw.root().path().to_string(), "/");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> GroupPath {
        self.node.path()
    }

    /// Returns the parent; `None` for the root.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// assert_eq!(tenant.parent(), Some(hw.root()));
    /// assert_eq!(hw.root().parent(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let node = self.node.parent()?;
        Some(Self::new(&self.shared, node))
    }

    /// Returns the children, ordered by name; none if this group is removed.
    ///
    /// # Cost
    ///
    /// The tree's lock for reading; O(n log n) in the children.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// assert_eq!(hw.root().children(), [tenant]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        let nodes = self.node.children().into_iter();
        nodes.map(|node| Self::new(&self.shared, node)).collect()
    }

    /// Returns whether the group was removed.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn is_removed(&self) -> bool {
        self.node.is_removed()
    }

    /// Returns whether `other` is this group or an ancestor of it.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn is_descendant_of(&self, other: &Self) -> bool {
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
    /// hw.root().on_exhausted(|victim| {
    ///     let query = victim.group().data::<Query>().expect("each query has one");
    ///     println!("stop {}: {}", victim.group().path(), query.0);
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_data<T: Any + Send + Sync>(&self, data: T) -> Result<(), T> {
        self.node.set_data(data)
    }

    /// Returns the data that [`set_data`](Self::set_data) attached, if it is a `T`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// assert!(tenant.set_data("session 7").is_ok());
    /// assert_eq!(tenant.data(), Some(&"session 7"));
    /// assert_eq!(tenant.data::<u64>(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn data<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.node.data()
    }

    /// Returns the group's name.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn name(&self) -> &str {
        self.node.name()
    }

    /// Returns the group of the lower layer. Not public: uncharging by hand the memory of a charge
    /// or a page would make its drop panic.
    pub(super) fn node(&self) -> &GroupNode {
        &self.node
    }

    #[inline]
    pub(super) fn slot(&self) -> &SlotRef<Shared> {
        &self.slot
    }

    pub(super) fn shared(&self) -> &Handle {
        &self.shared
    }
}

impl Core {
    fn remove_group(&self, group: &GroupNode) -> Result<(), RemoveError> {
        self.groups.remove(group)?;
        debug_assert!(group.is_removed(), "a removed group takes no more charges");
        if group.is_tracked() {
            self.reclaim.reparent_group(group);
            self.forget_handlers(group);
            // Its pages are the parent's by now.
            group.reap_if_idle();
        }
        Ok(())
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
