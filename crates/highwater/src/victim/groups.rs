//! Groups as candidates: the childless groups below the full one.

use crate::group::{GroupKey, GroupNode, GroupPath, GroupTree, LeafGroup};
use crate::units::Bytes;

use super::choice::{Census, Choice, Decision};
use super::select::Selector;
use super::{Candidates, Policy, Standing, State};

/// Retries of a selection when the chosen group disappeared, with its last page, before a handle
/// was obtained.
const VANISHED_MAX: usize = 4;

/// The selected group, and the numbers that selected it.
#[derive(Clone, Debug)]
pub struct ChosenGroup {
    /// The group.
    pub group: GroupNode,
    /// The whole record, with groups by their paths.
    pub record: Choice<GroupPath>,
}

/// The childless groups below a target.
struct LeafCandidates<'a, F> {
    groups: &'a GroupTree,
    target: &'a GroupNode,
    is_spared: F,
}

impl<F: Fn(GroupKey) -> bool> Candidates for LeafCandidates<'_, F> {
    type Id = GroupKey;

    fn for_each(&self, mut visit: impl FnMut(GroupKey, &Standing)) {
        self.groups
            .for_each_leaf(self.target, &mut |leaf: &LeafGroup| {
                let state = if (self.is_spared)(leaf.key) {
                    State::Spared
                } else if leaf.is_oom_victim {
                    State::Dying
                } else {
                    State::Ordinary
                };
                let standing = Standing {
                    usage: leaf.usage,
                    oom_score_adj: leaf.oom_score_adj,
                    state,
                };
                visit(leaf.key, &standing);
            });
    }

    fn precise_usage(&self, id: GroupKey) -> Option<Bytes> {
        self.groups.usage_precise_of(id)
    }
}

/// Selects the childless group below `target` (or `target` itself) that should be stopped, except
/// those for which `is_spared` returns true. `is_spared` must not call into the tree.
///
/// # Accuracy
///
/// As [`Selector::select`]. The victim is [read](Policy::reads_victim), unless the policy allows no
/// exact reads.
///
/// # Cost
///
/// One walk over the groups below `target` ([`GroupTree::for_each_leaf`]), and for each exact read
/// [`GroupTree::usage_precise_of`]. No allocation.
pub fn select(
    groups: &GroupTree,
    target: &GroupNode,
    is_spared: impl Fn(GroupKey) -> bool,
    policy: &Policy,
    selector: &mut Selector<GroupKey>,
) -> Decision<ChosenGroup, GroupNode> {
    let policy = Policy {
        reads_victim: true,
        ..*policy
    };
    let leaves = LeafCandidates {
        groups,
        target,
        is_spared,
    };
    let mut census = Census::default();
    for _ in 0..VANISHED_MAX {
        match selector.select(&leaves, &policy) {
            Decision::Chosen(choice) => {
                if let Some(group) = groups.find(choice.id) {
                    let record = choice.with_ids(|key| groups.path_of(key));
                    return Decision::Chosen(ChosenGroup { group, record });
                }
                census = choice.census;
            }
            Decision::Wait {
                dying,
                census: seen,
            } => {
                if let Some(dying) = groups.find(dying) {
                    return Decision::Wait {
                        dying,
                        census: seen,
                    };
                }
                census = seen;
            }
            Decision::Nobody(census) => return Decision::Nobody(census),
        }
    }
    Decision::Nobody(census)
}
