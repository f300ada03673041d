//! Handles to trees of groups.

use std::fmt;

use super::node::GroupNode;
use crate::group::error::RemoveError;
use crate::group::state::{
    ActingCpu, GroupKey, GroupPath, Groups, HandleOwner, RESERVED_MAX, TreeOwner, TreeShape,
};
use crate::percpu::{PercpuOwner, Regime};
use crate::sync::Arc;
use crate::units::{Bytes, GroupId};

/// A tree of groups with hierarchical limits. Cloning it gives another handle to the same tree.
///
/// # Cost
///
/// While the handle that made the tree, or a clone of it, is kept, handles of its groups count as
/// the tree's on the CPU that makes or drops them; afterwards in one place.
///
/// For each group: two cache lines for each CPU that has charged to it, and their addresses. The
/// lines of the CPU that charges first, and the addresses of CPUs 0 to 15, are part of the group.
/// Once a further one has charged, the others take half a byte for each CPU of the machine, and 128
/// bytes for each 16 CPUs of which one has charged.
/// Later groups reuse all of it.
#[derive(Clone)]
pub struct GroupTree {
    owner: TreeOwner,
    /// Of the handle that the tree was made with, and its clones.
    _handles: Option<HandleOwner>,
}

impl GroupTree {
    /// The most that a tree can have charged, whatever its limits: 256 TiB less a byte.
    pub const CHARGED_MAX: Bytes = Bytes(RESERVED_MAX);

    /// Returns a tree of one group, the root, which has no limit. CPU ids are below `nr_cpus`. The
    /// regime is the atomic one: any thread may act as any CPU at any time.
    ///
    /// # Panics
    ///
    /// When `nr_cpus` is zero.
    #[must_use]
    pub fn new(nr_cpus: usize) -> Self {
        Self::with_regime(Regime::Atomic, nr_cpus)
    }

    /// Like [`new`](Self::new), with tokens and statistics stepped as `regime` says. In the
    /// restartable regime charges, uncharges and updates are several times cheaper, and threads act
    /// only as the CPU that they run on. On a system without restartable sequences the tree uses
    /// the atomic regime.
    ///
    /// # Panics
    ///
    /// When `nr_cpus` is zero or does not fit in 31 bits.
    #[must_use]
    pub fn with_regime(regime: Regime, nr_cpus: usize) -> Self {
        assert!(nr_cpus > 0, "a tree of groups needs a CPU");
        let groups = Groups::with_root(regime, nr_cpus);
        #[cfg(not(loom))]
        let handles = PercpuOwner::new(groups.gates, PercpuOwner::new(groups.gates, groups));
        #[cfg(loom)]
        let handles = PercpuOwner::unseen(PercpuOwner::unseen(groups));
        Self {
            owner: handles.reference(),
            _handles: Some(Arc::new(handles)),
        }
    }

    /// Returns the tree itself.
    #[inline]
    pub(crate) fn groups(&self) -> &Groups {
        &self.owner
    }

    /// Returns the number of references that handles and charges hold to the tree; exact if none is
    /// made or dropped meanwhile.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn nr_references(&self) -> i64 {
        self.owner.nr_references()
    }

    /// Returns the number of CPUs that the tree keeps tokens for.
    #[must_use]
    pub fn nr_cpus(&self) -> usize {
        self.owner.nr_cpus
    }

    /// Returns how token words are stepped.
    #[must_use]
    pub fn regime(&self) -> Regime {
        self.owner.gates.regime()
    }

    /// Returns how often the tree's lock was taken, or tried.
    #[must_use]
    pub fn nr_shape_locks(&self) -> u64 {
        self.groups().nr_shape_locks()
    }

    /// Returns the root group.
    ///
    /// # Panics
    ///
    /// Never: the root is never removed.
    #[must_use]
    pub fn root(&self) -> GroupNode {
        self.get(GroupId(0)).expect("the root is never removed")
    }

    /// Returns the group with this id, also a removed one while bytes are charged to it.
    ///
    /// # Cost
    ///
    /// Four loads, an uncontended lock of that group alone, two reference counts. Never waits for
    /// the tree's lock. [`GroupTree::uncharge`] needs none of these.
    #[must_use]
    pub fn get(&self, id: GroupId) -> Option<GroupNode> {
        let meta = self.owner.slots.get(id)?.meta.read().clone()?;
        let node = GroupNode::new(&self.owner, meta);
        node.is_here().then_some(node)
    }

    /// Returns the group with that key; `None` once it is gone.
    ///
    /// # Cost
    ///
    /// As [`GroupTree::get`].
    #[must_use]
    pub fn find(&self, key: GroupKey) -> Option<GroupNode> {
        // Compared before it is cloned: dropping a handle of a later group could be the end of it.
        let meta = self.owner.slots.get(key.id())?.meta.read();
        let meta = meta.as_ref().filter(|meta| meta.key == key).cloned()?;
        let node = GroupNode::new(&self.owner, meta);
        node.is_here().then_some(node)
    }

    /// Returns the exact usage of the group with that key; `None` once it is removed. For callers
    /// that hold a lock: it makes no handle, which could be the group's last one and drop data of
    /// the program.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::usage_precise`].
    #[must_use]
    pub fn usage_precise_of(&self, key: GroupKey) -> Option<Bytes> {
        let slot = self.owner.slots.get(key.id())?;
        let used = self.groups().account(key.id()).used;
        // Afterwards: the slot may have passed to a later group.
        slot.lives(key.incarnation).then_some(used)
    }

    /// Returns the path of the group with that key; if it is gone, a path that shows its id.
    #[must_use]
    pub fn path_of(&self, key: GroupKey) -> GroupPath {
        self.owner.path(key)
    }

    /// Removes a group that has no children.
    ///
    /// New charges to it fail from now on; its tokens go back to its ancestors, or stay for a later
    /// group. Bytes still charged to it stay charged to its ancestors until they are uncharged;
    /// until then its id is not reused and [`GroupTree::get`] finds it.
    ///
    /// # Errors
    ///
    /// When it has children, is the root, is already removed, or belongs to another tree.
    ///
    /// # Cost
    ///
    /// If it had no children, protection, `high` or waiting charge, nothing is charged to it, and
    /// all of its tokens are this CPU's: about ten atomic operations, and a lock of one of 64 parts
    /// of all names. A later group below its parent that this CPU creates has its number and its
    /// tokens. Otherwise the tree's lock for writing; one swap for each CPU that has charged to it.
    pub fn remove(&self, group: &GroupNode) -> Result<(), RemoveError> {
        if !std::ptr::eq(self.groups(), group.groups()) {
            return Err(RemoveError::OtherTree {
                group: group.path(),
            });
        }
        self.owner.remove(group.meta())
    }

    /// Uncharges bytes whose guard was [disowned](super::NodeCharge::disown), by the id of their
    /// group: for callers that keep ids, such as the owner of a page frame.
    ///
    /// # Cost
    ///
    /// As [`GroupNode::uncharge`]; no reference count.
    ///
    /// # Panics
    ///
    /// When the group does not exist, or when more bytes are returned to the ancestors than they
    /// hold.
    pub fn uncharge(&self, id: GroupId, bytes: Bytes) {
        self.owner.uncharge(id, ActingCpu::Here, bytes.0);
    }

    /// Returns `top` and its descendants, parents before children and children by name; nothing
    /// when `top` is removed.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for reading; O(n log n) in the groups of the subtree.
    #[must_use]
    pub fn subtree(&self, top: &GroupNode) -> Vec<GroupNode> {
        let shape = self.groups().read_shape();
        let mut found = Vec::new();
        if !top.is_removed() {
            self.add_subtree(&shape, top.clone(), &mut found);
        }
        found
    }

    /// No deeper than [`DEPTH_MAX`](crate::group::DEPTH_MAX).
    fn add_subtree(&self, shape: &TreeShape, top: GroupNode, found: &mut Vec<GroupNode>) {
        let children = self.groups().children_by_name(shape, top.id());
        found.push(top);
        for meta in children {
            self.add_subtree(shape, GroupNode::new(&self.owner, meta), found);
        }
    }

    /// Whether any group has a `min` or a `low`.
    ///
    /// # Cost
    ///
    /// One load.
    #[must_use]
    pub fn has_protection(&self) -> bool {
        self.groups().has_protection()
    }

    /// Whether any group has a `high`.
    ///
    /// # Cost
    ///
    /// One load.
    #[must_use]
    pub fn has_high(&self) -> bool {
        self.groups().has_high()
    }

    /// Checks the invariants at a moment when no operation is in flight: at every group
    /// `tokens + sum of the children's reservations <= reserved <= max + debt`; no word holds
    /// tokens below a group in debt; only live words hold tokens, never more than their cap, and
    /// none where a charge waits for room; live words are counted on every ancestor; nothing is in
    /// flight.
    ///
    /// # Panics
    ///
    /// When an invariant does not hold.
    pub fn check_invariants(&self) {
        self.groups().check();
    }

    /// Returns the living group at that path, such as `/tenant-a/query-42`; `/` is the root.
    ///
    /// # Cost
    ///
    /// For each name, a lock of a part of all names and one of the group; O(depth). Names of more
    /// than 23 bytes are copied. Never waits for the tree's lock.
    #[must_use]
    pub fn lookup(&self, path: &str) -> Option<GroupNode> {
        let names = path.strip_prefix('/')?;
        let groups = self.groups();
        let mut at = groups.slot(GroupId(0)).meta.read().clone()?;
        for name in names.split('/').filter(|_| !names.is_empty()) {
            at = groups.child_named(&at, name)?;
        }
        Some(GroupNode::new(&self.owner, at))
    }
}

impl fmt::Debug for GroupTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GroupTree").field(self.groups()).finish()
    }
}

impl GroupNode {
    /// Returns the tree that the group belongs to.
    #[must_use]
    pub fn tree(&self) -> GroupTree {
        GroupTree {
            owner: self.owner().clone(),
            _handles: None,
        }
    }
}
