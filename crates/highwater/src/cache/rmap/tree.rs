//! The interval tree of a file's mappings: finds the areas that map a page.
//!
//! A treap ordered by the start of the mapped range; each node knows the greatest end below it, so
//! that a search for a page skips ranges that end before it or begin after it. Nodes are shared and
//! immutable: an insertion or removal copies the O(log n) nodes on its path from the root, and a
//! thread that holds the former root keeps the former tree ([`super::Rmap`]).
//!
//! Invariant: keys `(start, area's number)` are in order and unique; no node's weight is above its
//! parent's; `reach` is the greatest end of the subtree.
//!
//! Source: treaps (Aragon and Seidel, 1989); interval trees augmented by the greatest end (Cormen
//! et al.). Deviation from Linux, whose tree changes in place under the lock: readers here need
//! none.

use std::ops::Range;

use super::super::area::VmArea;
use crate::sync::Arc;
use crate::units::FilePage;

/// A tree; may be empty.
pub(super) type Tree = Option<Arc<RmapNode>>;

/// A range of a file that an area maps.
#[derive(Debug)]
pub(super) struct RmapNode {
    pages: Range<FilePage>,
    area: Arc<VmArea>,
    weight: u64,
    /// The greatest end of a range in this subtree.
    reach: FilePage,
    before: Tree,
    behind: Tree,
}

impl RmapNode {
    fn key(&self) -> (FilePage, u64) {
        (self.pages.start, self.area.number())
    }

    /// Returns the depth of this node's subtree, given that of its subtrees.
    #[cfg(all(test, not(loom)))]
    pub(super) fn depth(&self, of: impl Fn(&Tree) -> usize) -> usize {
        1 + of(&self.before).max(of(&self.behind))
    }

    /// Returns this node over other subtrees.
    fn over(&self, before: Tree, behind: Tree) -> Tree {
        let below = [&before, &behind].into_iter().flatten();
        let reach = below
            .map(|node| node.reach)
            .fold(self.pages.end, FilePage::max);
        Some(Arc::new(Self {
            pages: self.pages.clone(),
            area: Arc::clone(&self.area),
            weight: self.weight,
            reach,
            before,
            behind,
        }))
    }
}

/// Returns the tree with one more range.
pub(super) fn with(tree: &Tree, pages: Range<FilePage>, area: &Arc<VmArea>) -> Tree {
    let node = RmapNode {
        reach: pages.end,
        weight: weight(pages.start.0, area.number()),
        pages,
        area: Arc::clone(area),
        before: None,
        behind: None,
    };
    let (before, behind) = split(tree, node.key());
    join(&join(&before, &Some(Arc::new(node))), &behind)
}

/// Returns the tree without a range.
///
/// # Panics
///
/// When it is not in the tree.
pub(super) fn without(tree: &Tree, start: FilePage, area: &VmArea) -> Tree {
    let key = (start, area.number());
    let (before, rest) = split(tree, key);
    let (found, behind) = split(&rest, (start, area.number() + 1));
    let found = found.expect("a mapped range is in the tree");
    debug_assert!(found.key() == key && found.before.is_none() && found.behind.is_none());
    join(&before, &behind)
}

/// Calls `visit` with every area that maps a page, in order of their starts.
pub(super) fn for_each_of(tree: &Tree, page: FilePage, visit: &mut impl FnMut(&Arc<VmArea>)) {
    let Some(node) = tree else { return };
    if node.reach <= page {
        return;
    }
    for_each_of(&node.before, page, visit);
    if node.pages.start <= page {
        if page < node.pages.end {
            visit(&node.area);
        }
        for_each_of(&node.behind, page, visit);
    }
}

/// Calls `visit` with every range.
pub(super) fn for_each(tree: &Tree, visit: &mut impl FnMut(&Range<FilePage>, &Arc<VmArea>)) {
    if let Some(node) = tree {
        for_each(&node.before, visit);
        visit(&node.pages, &node.area);
        for_each(&node.behind, visit);
    }
}

/// Splits a tree into keys before `key`, and the rest.
fn split(tree: &Tree, key: (FilePage, u64)) -> (Tree, Tree) {
    let Some(node) = tree else {
        return (None, None);
    };
    if node.key() < key {
        let (before, behind) = split(&node.behind, key);
        (node.over(node.before.clone(), before), behind)
    } else {
        let (before, behind) = split(&node.before, key);
        (before, node.over(behind, node.behind.clone()))
    }
}

/// Joins two trees; all keys of the first are before those of the second.
fn join(first: &Tree, second: &Tree) -> Tree {
    match (first, second) {
        (None, tree) | (tree, None) => tree.clone(),
        (Some(a), Some(b)) if a.weight >= b.weight => {
            a.over(a.before.clone(), join(&a.behind, second))
        }
        (Some(_), Some(b)) => b.over(join(first, &b.before), b.behind.clone()),
    }
}

/// Pseudo-random and the same in every run. The finaliser of `SplitMix64` spreads neighbours.
fn weight(start: u64, number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ start;
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}
