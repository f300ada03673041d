//! Inputs of OOM victim selection: groups without children, their `oom_score_adj`, and whether they
//! are being stopped already.
//!
//! The names are the kernel's: `oom_score_adj` of a process, `mark_oom_victim` and
//! `exit_oom_victim` around the death of one. Both settings end with their group; a later group of
//! the same id starts afresh.
//!
//! Source: accounting spec 6.1. Deviation: groups instead of processes; the embedder, which stops
//! the group, reports its end.

use super::node::GroupNode;
use super::tree::GroupTree;
use crate::group::state::{GroupKey, Groups, Meta, TreeShape};
use crate::sync::Arc;
use crate::units::{Bytes, Estimate, GroupId, OomScoreAdj};

/// A group without children, at one moment of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafGroup {
    /// The group's key.
    pub key: GroupKey,
    /// Its usage: [`GroupNode::usage`]; exact for a group that is being stopped, unless it
    /// changes throughout the read.
    pub usage: Estimate<Bytes>,
    /// Its preference as a victim.
    pub oom_score_adj: OomScoreAdj,
    /// Whether it, or one of its ancestors, is being stopped.
    pub is_oom_victim: bool,
}

impl GroupNode {
    /// Returns the group's preference as an OOM victim.
    #[must_use]
    pub fn oom_score_adj(&self) -> OomScoreAdj {
        self.meta().oom_score_adj()
    }

    /// Sets the group's preference as an OOM victim. A group inherits its parent's value when it is
    /// created, as a process does; groups that exist already keep theirs.
    pub fn set_oom_score_adj(&self, adj: OomScoreAdj) {
        self.meta().set_oom_score_adj(adj);
    }

    /// Whether the group, or one of its ancestors, is being stopped.
    #[must_use]
    pub fn is_oom_victim(&self) -> bool {
        self.meta().oom_victim().is_some()
    }

    /// Marks that the group and all below it are being stopped and will release their memory: a
    /// request that needs memory waits for that instead of stopping another group. Ends with
    /// [`exit_oom_victim`](Self::exit_oom_victim), or when the group is removed.
    pub fn mark_oom_victim(&self) {
        self.meta().mark_oom_victim();
    }

    /// Marks that the group is not, or no longer, being stopped: it can be chosen again.
    pub fn exit_oom_victim(&self) {
        self.meta().exit_oom_victim();
    }
}

impl GroupTree {
    /// Calls `visit` with each living group below `top` that has no children, and with `top` itself
    /// if it has none, by number below each parent. A group whose children are replaced again and
    /// again during the call may be left out with them. `visit` must not call into the tree, whose
    /// lock is held.
    ///
    /// # Cost
    ///
    /// Takes the tree's lock for reading, and for each group an uncontended lock of its own and ten
    /// loads; for each parked slot four; for each group that is being stopped as
    /// [`GroupNode::usage_precise`]. O(groups in the subtree); up to 8 times that below a group
    /// whose children change meanwhile. No allocation.
    pub fn for_each_leaf(&self, top: &GroupNode, visit: &mut dyn FnMut(&LeafGroup)) {
        let groups = self.groups();
        let shape = groups.read_shape();
        let dying = top.meta().oom_victim();
        // Below `top`, a slot that passes to another group stays below the same parent; that of
        // `top` itself may be a sibling's by now.
        let wanted = Some(top.key());
        let _is_any = groups.for_each_leaf(&shape, top.id(), wanted, dying, visit);
    }
}

impl Groups {
    /// Depth first; no deeper than [`DEPTH_MAX`](crate::group::DEPTH_MAX). Begins with the group in
    /// the slot of `id`, if that is the `wanted` one or any is. `dying` is the ancestor that is
    /// being stopped, if any. Returns whether a leaf was visited.
    fn for_each_leaf(
        &self,
        shape: &TreeShape,
        id: GroupId,
        wanted: Option<GroupKey>,
        dying: Option<GroupKey>,
        visit: &mut dyn FnMut(&LeafGroup),
    ) -> bool {
        /// Chosen: a look may miss a child that is replaced meanwhile.
        const LOOKS_MAX: usize = 8;
        let slot = self.slot(id);
        let of = |meta: &Arc<Meta>| (meta.key, meta.oom_score_adj(), meta.is_oom_victim());
        let is_it = |key: GroupKey| wanted.is_none_or(|wanted| wanted == key);
        let living = slot.read_living(of).filter(|(key, ..)| is_it(*key));
        let Some((key, oom_score_adj, is_oom_victim)) = living else {
            return false;
        };
        let dying = dying.or(is_oom_victim.then_some(key));
        for _ in 0..LOOKS_MAX {
            if !self.has_children(shape, id) {
                // Tokens are nothing to wait for, and an estimate does not tell them from usage.
                let exact = dying.map(|_| self.account_within(shape, id));
                let exact = exact.filter(|account| account.is_exact);
                let leaf = LeafGroup {
                    key,
                    usage: exact.map_or_else(
                        || self.usage_bounds(id),
                        |account| Estimate::exact(account.used),
                    ),
                    oom_score_adj,
                    is_oom_victim: dying.is_some(),
                };
                let is_still = slot.is_of(key.incarnation);
                if is_still {
                    visit(&leaf);
                }
                return is_still;
            }
            let children = self.children(shape, id);
            let is_any = children.fold(false, |is_any, (child, _)| {
                self.for_each_leaf(shape, child, None, dying, visit) || is_any
            });
            if is_any {
                return true;
            }
        }
        false
    }
}
