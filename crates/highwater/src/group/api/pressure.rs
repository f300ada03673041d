//! Pressure stall information (PSI) of a group's handle.

use std::time::Duration;

use super::node::GroupNode;
use crate::group::policy::pressure::{Change, Stalls};

impl GroupNode {
    /// Reports a change of a thread's state at `now` to the meters of this group and its ancestors:
    /// for each level, by its [depth](Self::depth), the result of `change`.
    ///
    /// # Cost
    ///
    /// A lock of its own for each level. Allocates the meter of a group that had none.
    pub fn change_stalls(&self, now: Duration, change: impl Fn(u32) -> Option<Change>) {
        for meta in self.meta().up() {
            if let Some(change) = change(meta.depth) {
                meta.meter.change(change, now);
            }
        }
    }

    /// Returns the time that the group and its descendants lost for lack of memory, up to `now`.
    #[must_use]
    pub fn pressure(&self, now: Duration) -> Stalls {
        self.meta().meter.read(now)
    }

    /// Returns the depth of the lowest common ancestor of this group and `other`; `None` for
    /// another tree.
    #[must_use]
    pub fn depth_shared_with(&self, other: &Self) -> Option<u32> {
        let up = |group: &Self| std::iter::successors(Some(group.clone()), Self::parent);
        up(self)
            .find(|above| other.is_descendant_of(above))
            .map(|group| group.depth())
    }
}
