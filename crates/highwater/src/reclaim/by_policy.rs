//! Reclaim under an eviction policy other than the two-list LRU: calls the policy and carries out
//! its decisions.
//!
//! Everything else is as with two lists: groups, protection, priorities, clusters, the balance of
//! anonymous and file pages. The shares of a type's inactive and active list are added, and a step
//! scans a cluster of the list that the policy chooses; pages are evicted from either. A page's
//! shadow keeps its list, and that list's count, in place of the clock.
//!
//! Counters: pages scanned on either list in `pgscan`, pages that move on in `pgactivate`;
//! `pgrefill` and `pgdeactivate` stay 0, because no list is only aged. A refault that is activated
//! is a *workingset activation*; none is a *restore*.

use super::lists::PageType;
use super::lruvec::Lruvec;
use super::policy::{Departure, EvictionPolicy, Fate, Lens, Look, PolicyKind, Side};
use super::scan::{Round, Scan, Step};
use super::shadow::{Recalled, Shadow};
use super::shrink::Cluster;
use super::table::{note_placement, type_of};
use super::{Placement, Reclaim, Refault};
use crate::cache::{Evicted, PageFlag, PageKey, Referenced};
use crate::units::Pfn;

const fn place(side: Side) -> Placement {
    match side {
        Side::Inactive => Placement::Inactive,
        Side::Active => Placement::Active,
    }
}

/// Returns the lengths of a group's lists of one type.
fn lens(lruvec: &Lruvec, page_type: PageType) -> Lens {
    let sizes = lruvec.sizes();
    let [inactive, active] =
        [page_type.inactive(), page_type.active()].map(|list| sizes.of(list).0);
    Lens {
        inactive,
        active,
        capacity: inactive + active,
    }
}

/// Records a refault whose distance is within the capacity: its type needs more pages. If the page
/// had been among those that stay, it costs as much as a write.
fn note_return(lruvec: &Lruvec, page_type: PageType, departure: Departure) {
    if departure.distance > lens(lruvec, page_type).capacity {
        return;
    }
    lruvec.note_refault(page_type);
    if departure.from == Side::Active {
        lruvec.note_cost(page_type, 1, 0);
    }
}

impl Reclaim {
    /// Selects an eviction policy.
    #[must_use]
    pub fn with_eviction_policy(mut self, kind: PolicyKind) -> Self {
        self.policy_kind = kind;
        self.policy = kind.policy();
        self
    }

    /// Returns the eviction policy.
    #[must_use]
    pub const fn eviction_policy(&self) -> PolicyKind {
        self.policy_kind
    }

    /// Returns whether the access that brings a page in through a mapping leaves it young.
    #[must_use]
    pub const fn counts_first_access(&self) -> bool {
        self.policy.is_none() && self.rules.counts_first_access()
    }

    /// Returns whether the copying read that brings a page in counts as an access to it, as in the
    /// kernel.
    #[must_use]
    pub const fn counts_first_copy(&self) -> bool {
        self.policy.is_none()
    }

    /// Asks the policy for the list of a page that has come in; returns whether it is a refault.
    pub(super) fn admit_by_policy(
        &self,
        policy: &dyn EvictionPolicy,
        lruvec: &Lruvec,
        pfn: Pfn,
        key: PageKey,
    ) -> Option<Refault> {
        let page_type = type_of(&self.cache, pfn);
        let shadow = self.shadows.take(key);
        let departure = shadow.and_then(|shadow| self.departure(lruvec, page_type, shadow));
        if let Some(departure) = departure {
            note_return(lruvec, page_type, departure);
        }
        let to = policy.admit(
            lruvec.policy_state(page_type),
            lens(lruvec, page_type),
            departure,
        );
        note_placement(&self.cache, pfn, place(to));
        shadow.map(|_| match to {
            Side::Active => Refault::WithinWorkingset,
            Side::Inactive => Refault::Beyond,
        })
    }

    /// Returns the departure record of a refault; `None` if the page left another group's lists,
    /// which taught these lists nothing.
    fn departure(
        &self,
        lruvec: &Lruvec,
        page_type: PageType,
        shadow: Recalled,
    ) -> Option<Departure> {
        let from = match shadow.was_workingset {
            true => Side::Active,
            false => Side::Inactive,
        };
        let state = lruvec.policy_state(page_type);
        let distance = shadow.age.distance(state.nr_left_of(from));
        (shadow.group == Some(lruvec.group().id())).then_some(Departure { from, distance })
    }

    /// Scans a cluster of the list of each type that the policy chooses; returns the number of
    /// pages scanned. At the last priority, scans the other list too, so that held pages on one do
    /// not hide evictable pages on the other.
    pub(super) fn shrink_by_policy(
        &self,
        policy: &dyn EvictionPolicy,
        round: &Round,
        step: &Step,
        scan: &mut Scan<'_>,
    ) -> u64 {
        let lruvec = &step.lruvec;
        let (before, mut looked) = (scan.outcome.nr_reclaimed, 0);
        for page_type in PageType::ALL {
            let from = policy.next(lruvec.policy_state(page_type), lens(lruvec, page_type));
            let sides = [from, from.other()];
            let nr_sides = if round.level.priority == 0 { 2 } else { 1 };
            for side in &sides[..nr_sides] {
                let list = match side {
                    Side::Inactive => page_type.inactive(),
                    Side::Active => page_type.active(),
                };
                let exposed = step.exposed - (scan.outcome.nr_reclaimed - before);
                let count = step.counts.of(page_type.inactive()).min(exposed);
                let cluster = Cluster {
                    lruvec,
                    page_type,
                    list,
                    count,
                    round,
                };
                looked += self.shrink_list(&cluster, scan);
            }
        }
        looked
    }

    /// Returns the policy's placement of an isolated page; `None` if it is to be evicted, and
    /// clean.
    pub(super) fn place_by_policy(
        &self,
        policy: &dyn EvictionPolicy,
        pfn: Pfn,
        cluster: &Cluster<'_>,
        scan: &mut Scan<'_>,
    ) -> Option<Placement> {
        let from = match cluster.list.is_active() {
            true => Side::Active,
            false => Side::Inactive,
        };
        let entries = self.look_within(pfn, cluster, scan.control);
        if entries == Referenced::Contended {
            return Some(place(from));
        }
        let look = Look {
            entries,
            credit: self.cache.replace_credit(pfn, 0),
            page_type: cluster.page_type,
        };
        let state = cluster.lruvec.policy_state(cluster.page_type);
        let lens = lens(cluster.lruvec, cluster.page_type);
        match policy.judge(state, lens, from, look) {
            Fate::Cull => Some(Placement::Unevictable),
            // At the last priority, the request for memory outweighs recent accesses.
            _ if cluster.is_last_resort() => self.clean(pfn, scan).err(),
            Fate::Stay { to, credit } => {
                self.cache.replace_credit(pfn, credit);
                Some(place(to))
            }
            Fate::EvictClean if self.cache.is_dirty(pfn) => Some(place(from)),
            Fate::Evict | Fate::EvictClean => self.clean(pfn, scan).err(),
        }
    }

    /// Inserts shadows for pages of `lruvec` that are being evicted, by their lists' counts.
    pub(super) fn leave_shadows_by_policy(&self, lruvec: &Lruvec, evicted: &[Evicted]) {
        for evicted in evicted {
            let pfn = evicted.frame.pfn();
            let is_active = self.cache.has_flag(pfn, PageFlag::Active);
            let from = match is_active {
                true => Side::Active,
                false => Side::Inactive,
            };
            let state = lruvec.policy_state(type_of(&self.cache, pfn));
            let shadow = Shadow {
                group: lruvec.group().id(),
                age: state.leave(from, 1),
                was_workingset: is_active,
            };
            self.shadows.insert(evicted.key, shadow);
        }
    }
}
