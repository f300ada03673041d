//! What a query can have when no other query has anything.
//!
//! Memory that queries have is returned. What the program charges beside them, to a tenant's group,
//! to another one below it or to one above it, may never be. So a query that waits to run alone
//! waits for all that queries have, and for nothing else.

use std::iter;

use highwater::group::{GroupPath, StatItem, Tolerance};
use highwater::units::Pages;
use highwater::{Bytes, Group};

use crate::refusal::left;
use crate::stop::is_query;
use crate::tenant::Tenant;

/// Looks at what queries use. Chosen: queries that grow and shrink meanwhile can make one look
/// wrong, hardly two.
const LOOKS: usize = 2;

impl Tenant {
    /// Returns the most that one query of this tenant can have, as far as the group with this path
    /// decides it: the tenant's or one above it, where a query was refused.
    ///
    /// # Cost
    ///
    /// A few exact usages of the group and of each query below it.
    pub(crate) fn most_for_one(&self, refused: &GroupPath) -> Bytes {
        let own = self.group().clone();
        let path: Vec<Group> = iter::successors(Some(own), Group::parent).collect();
        let of_path = path.iter().find(|group| group.path() == *refused);
        of_path.map_or(Bytes::MAX, |group| {
            let of_others = outside(group, || of_queries(group, &path));
            left(group.effective_max(), of_others)
        })
    }

    /// Returns whether a query that needs so much in all could have it, as far as is known: if all
    /// gave way but the queries that it runs in, and what the program charged to the tenant's own
    /// group. Any other group may have a handler that gives memory back.
    ///
    /// # Cost
    ///
    /// A few exact usages of the tenant and of each query.
    pub(crate) fn has_room_for_one(&self, query: &Group, mut needed: Bytes) -> bool {
        let mut above = iter::successors(query.parent(), Group::parent);
        above.all(|group| {
            if group == *self.group() || is_query(&group) {
                needed += of_itself(&group);
            }
            needed <= group.limits().max
        })
    }
}

/// Returns what is used in a group outside of parts of it. Less, if these grow or shrink meanwhile:
/// then a query waits for more than it needs to, instead of beginning with too little, or makes
/// others give way, instead of being refused.
fn outside(group: &Group, of_parts: impl Fn() -> Bytes) -> Bytes {
    let mut before = of_parts();
    let looks = (0..LOOKS).map(|_| {
        let usage = group.usage_precise();
        let after = of_parts();
        left(usage, std::mem::replace(&mut before, after).max(after))
    });
    looks.min().unwrap_or_default()
}

/// Returns what queries in this subtree use. One on the tenant's own path waits for the tenant, and
/// returns nothing before.
fn of_queries(group: &Group, path: &[Group]) -> Bytes {
    if is_query(group) && !path.contains(group) {
        return group.usage_precise();
    }
    let children = group.children().into_iter();
    children.fold(Bytes::ZERO, |sum, child| sum + of_queries(&child, path))
}

/// Returns what is charged to a group itself. Without pages of the group and below it, which may be
/// evicted.
fn of_itself(group: &Group) -> Bytes {
    let of_children = || group.children().iter().map(Group::usage_precise).sum();
    let own = outside(group, of_children);
    if own == Bytes::ZERO {
        return own;
    }
    let stats = group.stats(Tolerance::EXACT);
    let pages = [StatItem::Anon, StatItem::File, StatItem::Shmem].map(|item| stats.get(item));
    let pages = pages.map(|pages| u64::try_from(pages).unwrap_or(0));
    left(own, Pages(pages.iter().sum()).bytes())
}
