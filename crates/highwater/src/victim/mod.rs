//! Whom to stop when memory is gone: the group that holds most.
//!
//! Candidates are the groups without children below a target: what an embedder runs in. Each is
//! scored by its exact usage, so that the choice is never wrong by what a counter does not know;
//! among equals the one with the lowest number is chosen, so that the same state gives the same
//! victim. Selecting changes nothing: the manager tells the embedder, who knows what "stop it"
//! means.
//!
//! # Cost
//!
//! One exact read per candidate: O(groups x CPUs touched). Selection runs when nothing else helped.

use crate::group::{GroupNode, GroupTree};
use crate::units::{GroupId, Pages};

/// The group that should be stopped, and on which numbers.
#[derive(Clone, Debug)]
pub struct Victim {
    group: GroupNode,
    badness: Pages,
    runner_up: Pages,
    candidates: usize,
}

impl Victim {
    /// The group's number.
    #[must_use]
    pub fn group(&self) -> GroupId {
        self.group.id()
    }

    /// The group.
    #[must_use]
    pub fn node(&self) -> &GroupNode {
        &self.group
    }

    /// The group's path in the tree.
    #[must_use]
    pub fn path(&self) -> String {
        self.group.path()
    }

    /// What the group used when it was chosen, exactly.
    #[must_use]
    pub fn badness(&self) -> Pages {
        self.badness
    }

    /// What the next candidate used: how clear the choice was.
    #[must_use]
    pub fn runner_up(&self) -> Pages {
        self.runner_up
    }

    /// Groups that were considered.
    #[must_use]
    pub fn candidates(&self) -> usize {
        self.candidates
    }
}

/// Chooses the childless group below `target` (or `target` itself) that uses most, leaving out
/// those in `excluded` and those that use nothing. `None` when nobody is left.
#[must_use]
pub fn select(groups: &GroupTree, target: &GroupNode, excluded: &[GroupId]) -> Option<Victim> {
    let mut best: Option<(Pages, GroupNode)> = None;
    let mut runner_up = Pages::ZERO;
    let mut candidates = 0;
    for group in groups.subtree(target) {
        if !group.children().is_empty() || excluded.contains(&group.id()) {
            continue;
        }
        let badness = group.usage_precise();
        if badness == Pages::ZERO {
            continue;
        }
        candidates += 1;
        let is_worse = best.as_ref().is_none_or(|(most, chosen)| {
            badness > *most || (badness == *most && group.id() < chosen.id())
        });
        if is_worse {
            let second = best.replace((badness, group));
            runner_up = second.map_or(Pages::ZERO, |(most, _)| most);
        } else {
            runner_up = runner_up.max(badness);
        }
    }
    best.map(|(badness, group)| Victim {
        group,
        badness,
        runner_up,
        candidates,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::group::{Charge, Limits};
    use crate::units::CpuId;

    fn tree_with(usages: &[u64]) -> (GroupTree, Vec<GroupNode>, Vec<Charge>) {
        let tree = GroupTree::new(8);
        let mut charges = Vec::new();
        let mut groups = Vec::new();
        for (at, &pages) in usages.iter().enumerate() {
            let group = tree
                .root()
                .child(&format!("g{at}"), Limits::default())
                .expect("a name");
            let cpu = CpuId::from_index(at % 8);
            charges.push(group.try_charge_on(cpu, Pages(pages)).expect("no limit"));
            groups.push(group);
        }
        (tree, groups, charges)
    }

    #[test]
    fn the_group_with_most_memory_is_chosen_by_exact_numbers() {
        // Goal: never off by a page. Method: random usages that differ by single pages; an oracle
        // sorts them.
        let mut rng = crate::seed::rng(3);
        for _ in 0..50 {
            let usages: Vec<u64> = (0..20).map(|_| 100 + rng.u64(..40)).collect();
            let (tree, groups, _charges) = tree_with(&usages);
            let mut oracle: Vec<_> = usages.iter().zip(&groups).collect();
            oracle.sort_by_key(|(pages, group)| (std::cmp::Reverse(**pages), group.id()));
            let mut excluded = Vec::new();
            for (at, (pages, group)) in oracle.iter().enumerate() {
                let victim = select(&tree, &tree.root(), &excluded).unwrap();
                assert_eq!(
                    (victim.group(), victim.badness()),
                    (group.id(), Pages(**pages))
                );
                let next = oracle.get(at + 1).map_or(0, |(pages, _)| **pages);
                assert_eq!(victim.runner_up(), Pages(next));
                assert_eq!(victim.candidates(), usages.len() - at);
                excluded.push(victim.group());
            }
            assert!(select(&tree, &tree.root(), &excluded).is_none());
        }
    }

    #[test]
    fn parents_and_the_innocent_elsewhere_are_not_chosen() {
        // Goal: pressure in one subtree stops nobody outside it. Method: a larger group elsewhere.
        let (tree, groups, mut charges) = tree_with(&[10, 500]);
        let child = groups[0].child("child", Limits::default()).unwrap();
        charges.push(child.try_charge(Pages(3)).unwrap());
        let victim = select(&tree, &groups[0], &[]).unwrap();
        assert_eq!((victim.path(), victim.badness()), (child.path(), Pages(3)));
        assert_eq!(
            select(&tree, &tree.root(), &[]).unwrap().group(),
            groups[1].id()
        );
    }

    #[test]
    fn nobody_is_chosen_where_nothing_is_used() {
        // Goal: no victim without memory. Method: an empty tree.
        let tree = GroupTree::new(2);
        assert!(select(&tree, &tree.root(), &[]).is_none());
    }
}
