//! Selects the groups that have series of their own: the top k by usage, best first.
//!
//! A group uses at least as much as any group below it, so a best-first search from the root meets
//! groups in the order of their usage, and visits only children of named groups. The groups that
//! remain in its queue are disjoint: together they are the rest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use highwater::group::Tolerance;
use highwater::{Bytes, Estimate, Group};

/// A group on the search's way.
pub(crate) struct Node {
    pub(crate) group: Group,
    pub(crate) usage: Estimate<Bytes>,
    /// Its parent's place in [`Tree::named`]; `None` for the root.
    pub(crate) parent: Option<usize>,
    depth: u32,
}

/// The groups of a scrape.
pub(crate) struct Tree {
    /// The root, then the largest groups, each after its parent.
    pub(crate) named: Vec<Node>,
    /// The topmost groups that are not named.
    pub(crate) rest: Vec<Node>,
}

/// What a scrape accepts of statistics: everything, so that it never flushes.
pub(crate) const NEVER_FLUSH: Tolerance = Tolerance::ANY;

pub(crate) fn walk(root: &Group, groups_max: usize, depth_max: u32) -> Tree {
    let mut nodes: Vec<Option<Node>> = Vec::new();
    let mut queue = BinaryHeap::new();
    let mut named: Vec<Node> = Vec::new();
    let mut next = Some(Node {
        usage: root.usage(),
        group: root.clone(),
        parent: None,
        depth: 0,
    });
    while let Some(node) = next {
        if node.depth < depth_max {
            for group in node.group.children() {
                let usage = group.usage();
                // Equal groups in the order of the tree.
                queue.push((usage.value, Reverse(nodes.len())));
                nodes.push(Some(Node {
                    group,
                    usage,
                    parent: Some(named.len()),
                    depth: node.depth + 1,
                }));
            }
        }
        named.push(node);
        next = (named.len() <= groups_max)
            .then(|| queue.pop())
            .flatten()
            .and_then(|(_, Reverse(at))| nodes[at].take());
    }
    Tree {
        named,
        rest: nodes.into_iter().flatten().collect(),
    }
}
