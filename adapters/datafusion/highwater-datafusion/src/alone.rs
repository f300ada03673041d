//! What a query can have when no other query has anything.
//!
//! Memory that queries have is returned. What the program charges beside them, to a tenant's group,
//! to another one below it or to one above it, may never be. So a query that waits to run alone
//! waits for all that queries have, and for nothing else.

use highwater::group::GroupPath;
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
        let path: Vec<Group> = std::iter::successors(Some(own), Group::parent).collect();
        let of_path = path.iter().find(|group| group.path() == *refused);
        of_path.map_or(Bytes::MAX, |group| {
            left(group.effective_max(), outside(group, &path))
        })
    }
}

/// Returns what is used in a group outside of queries. Less, if queries grow or shrink meanwhile:
/// then a query waits for more than it needs to, instead of beginning with too little.
fn outside(group: &Group, path: &[Group]) -> Bytes {
    let mut before = of_queries(group, path);
    let looks = (0..LOOKS).map(|_| {
        let usage = group.usage_precise();
        let after = of_queries(group, path);
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
