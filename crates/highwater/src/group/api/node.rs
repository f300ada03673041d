//! Handles to groups: the API of the tree's users.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::group::charge::{Attempts, SlotRef};
use crate::group::error::ChildError;
use crate::group::state::{
    GroupKey, GroupPath, Groups, Limits, Meta, Slot, SlotStanding, TreeOwner,
};
use crate::percpu::PercpuRef;
use crate::sync::Arc;
use crate::units::GroupId;

/// A group of a [`GroupTree`](crate::group::GroupTree). Cloning it gives another handle to the same
/// group.
///
/// A handle stays valid when its group is removed: charging, setting limits and creating children
/// then fail; reads describe the bytes still charged, and return zero once none are.
#[derive(Clone)]
pub struct GroupNode {
    slot: SlotRef<Groups>,
    owner: TreeOwner,
    meta: Arc<Meta>,
}

impl GroupNode {
    pub(in crate::group) fn new(owner: &TreeOwner, meta: Arc<Meta>) -> Self {
        Self {
            slot: SlotRef::new(owner.reference(), meta.key),
            owner: owner.clone(),
            meta,
        }
    }

    pub(in crate::group) fn owner(&self) -> &TreeOwner {
        &self.owner
    }

    #[inline]
    pub(in crate::group) fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }

    /// Returns the key of the group, which no later group of the same id has.
    #[must_use]
    pub fn key(&self) -> GroupKey {
        self.slot.key()
    }

    /// Returns the group's identifier in its tree; reused some time after the group is removed.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.key().id
    }

    /// Returns the group's name among its siblings; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.meta.name()
    }

    /// Returns the names from the root: `/` for the root, otherwise such as `/tenant-a/query-42`.
    #[must_use]
    pub fn path(&self) -> GroupPath {
        GroupPath::of(&self.meta)
    }

    /// Returns the number of groups between this one and the root, the root included; 0 for the
    /// root.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.meta.depth
    }

    /// Returns the parent; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let meta = self.meta.parent.as_ref()?;
        Some(Self::new(&self.owner, Arc::clone(meta)))
    }

    /// Returns the id of the parent; `None` for the root.
    pub(crate) fn parent_id(&self) -> Option<GroupId> {
        Some(self.meta.parent.as_ref()?.key.id)
    }

    /// Attaches `data` to the group, once: state that the embedder has for each group, such as its
    /// query. Dropped with the last handle and charge of the group.
    ///
    /// # Errors
    ///
    /// Gives `data` back when the group already has data.
    #[cfg_attr(
        feature = "lab",
        expect(
            clippy::missing_panics_doc,
            reason = "what comes back is what was given"
        )
    )]
    pub fn set_data<T: Any + Send + Sync>(&self, data: T) -> Result<(), T> {
        let refused = self.meta.data.try_publish(Box::new(Box::new(data)));
        if self.is_removed() {
            self.forget_after_removal();
        }
        refused.map_err(|data| *data.downcast::<T>().expect("it is what was given"))
    }

    /// Lets go of data that were attached during the removal of the group, or after: its slot may
    /// have kept the `Meta` for the next group, as that of a group without data.
    fn forget_after_removal(&self) {
        let (slot, key) = (self.slot(), self.key());
        let mut attempts = Attempts::new();
        while slot.stands(key.incarnation, SlotStanding::Claimed) && attempts.wait() {}
        drop(slot.take_parked_meta(key));
    }

    /// Returns the data [attached](Self::set_data) to the group, if it is a `T`.
    #[must_use]
    pub fn data<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.meta.data.get()?.downcast_ref()
    }

    /// Lets go of what is kept for a removed group if nothing is charged to it any more.
    pub(crate) fn reap_if_idle(&self) {
        self.groups().reap_if_idle(self.key());
    }

    /// Notes that a layer above keeps something for the group, to be let go of when it is removed.
    pub(crate) fn track(&self) {
        self.meta.track();
    }

    /// Whether a layer above keeps something for the group.
    pub(crate) fn is_tracked(&self) -> bool {
        self.meta.is_tracked()
    }

    /// Returns the parent if it is to be removed with its last child.
    pub(crate) fn parent_if_removed_when_unused(&self) -> Option<Self> {
        let parent = self.meta.parent.as_ref();
        let parent = parent.filter(|meta| meta.is_removed_when_unused())?;
        Some(Self::new(&self.owner, Arc::clone(parent)))
    }

    /// Sets that the group is to be removed with its last child.
    pub(crate) fn set_removed_when_unused(&self) {
        self.meta.set_removed_when_unused();
    }

    /// Whether the group was removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        !self.slot().lives(self.key().incarnation)
    }

    /// Whether `other` is this group or one of its ancestors.
    #[must_use]
    pub fn is_descendant_of(&self, other: &Self) -> bool {
        if !std::ptr::eq(self.groups(), other.groups()) {
            return false;
        }
        self.meta.up().any(|meta| meta.key == other.meta.key)
    }

    /// Creates a group below this one.
    ///
    /// # Errors
    ///
    /// When the name is taken or invalid, this group is removed or at depth 64, or no identifier is
    /// left.
    ///
    /// # Cost
    ///
    /// After another child was removed on this CPU, and without `min`, `low` and `high`: about ten
    /// atomic operations, and a lock of one of 64 parts of all names. The group then begins with
    /// the tokens of that child, within the bounds of [`usage`](Self::usage). Otherwise the tree's
    /// lock for writing, and a slot, which is allocated when more groups exist than ever before.
    pub fn child(&self, name: &str, limits: Limits) -> Result<Self, ChildError> {
        let meta = self.groups().create(&self.meta, name, limits)?;
        Ok(Self::new(&self.owner, meta))
    }

    /// Returns the groups directly below, by name; none when this one is removed.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for reading; O(n log n) in the children.
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        let metas = self.groups().children_of(self.key());
        metas
            .into_iter()
            .map(|meta| Self::new(&self.owner, meta))
            .collect()
    }

    /// Returns a reference that keeps the tree in memory.
    pub(in crate::group) fn keeper(&self) -> PercpuRef<Groups> {
        self.owner.reference()
    }

    #[inline]
    pub(in crate::group) fn slot_ref(&self) -> &SlotRef<Groups> {
        &self.slot
    }

    /// Returns `read`, just read from the slot, or `gone` when it may describe a later group.
    pub(in crate::group) fn unless_gone<T>(&self, read: T, gone: T) -> T {
        if self.is_here() { read } else { gone }
    }

    /// Whether the slot still belongs to this group: the group lives, or bytes may still be charged
    /// to it.
    pub(in crate::group) fn is_here(&self) -> bool {
        self.slot().is_of(self.key().incarnation)
    }

    #[inline]
    pub(in crate::group) fn slot(&self) -> &Slot {
        self.slot.slot()
    }

    #[inline]
    pub(in crate::group) fn groups(&self) -> &Groups {
        self.slot.tree()
    }
}

impl PartialEq for GroupNode {
    /// Whether both are the same group of the same tree.
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.groups(), other.groups()) && self.key() == other.key()
    }
}

impl Eq for GroupNode {}

impl Hash for GroupNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for GroupNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GroupNode")
            .field("id", &self.id())
            .field("path", &self.path())
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}
