//! Effective protection (emin, elow) of a group's handle: from the group that is short of memory
//! downwards, level by level.

use super::node::GroupNode;
use crate::group::policy::protection::{Claim, Parent, Protection};
use crate::units::Bytes;

impl GroupNode {
    /// Returns the effective `min` and `low` when memory is short in `root`: zero unless `root` is
    /// an ancestor.
    ///
    /// # Accuracy
    ///
    /// As exact as [`GroupNode::usage_precise`], each group at a moment of its own.
    ///
    /// # Cost
    ///
    /// For each level between the two where something is protected: the tree's lock for reading,
    /// two reads of usage, and one for each sibling that has a setting and may use less than that.
    #[must_use]
    pub fn protection_below(&self, root: &Self) -> Protection {
        if self == root || !self.is_descendant_of(root) {
            return Protection::NONE;
        }
        let up = std::iter::successors(Some(self.clone()), Self::parent);
        let mut path: Vec<Self> = up.take_while(|group| group != root).collect();
        let Some(mut parent) = path.pop() else {
            return Protection::NONE;
        };
        let mut effective = parent.settings();
        // Below a group without effective protection there is none.
        while effective != Protection::NONE
            && let Some(group) = path.pop()
        {
            effective = group.effective(&parent, effective);
            parent = group;
        }
        effective
    }

    /// Returns the effective settings of a child of `parent`, whose own are `above`.
    fn effective(&self, parent: &Self, above: Protection) -> Protection {
        let (own, usage) = (self.settings(), self.usage_precise());
        let parent_usage = parent.usage_precise();
        let mut claimed = Protection::NONE;
        for sibling in parent.protected_children() {
            let settings = sibling.settings();
            let most = settings.min.max(settings.low);
            let usage = match sibling == *self {
                true => usage,
                false => sibling.usage_at_most(most),
            };
            claimed.min += usage.min(settings.min);
            claimed.low += usage.min(settings.low);
        }
        let effective = |setting, effective, claimed| {
            Claim { usage, setting }.effective(Parent {
                usage: parent_usage,
                effective,
                claimed,
            })
        };
        Protection {
            min: effective(own.min, above.min, claimed.min),
            low: effective(own.low, above.low, claimed.low),
        }
    }

    fn settings(&self) -> Protection {
        let (min, low) = self.meta().settings.protection();
        Protection { min, low }
    }

    /// Returns the group's usage, or `most` if the usage is certainly at least that.
    fn usage_at_most(&self, most: Bytes) -> Bytes {
        match self.usage_bounds().low >= most {
            true => most,
            false => self.usage_precise(),
        }
    }

    /// Returns the living children that have a `min` or a `low`.
    fn protected_children(&self) -> Vec<Self> {
        let metas = self.groups().protected_children(self.id());
        let node = |meta| Self::new(self.owner(), meta);
        metas.into_iter().map(node).collect()
    }
}
