//! A cache that the library's eviction policies drive, with complete knowledge of each access.
//!
//! It carries out a policy's decisions as reclaim does, in clusters from the end of a list; but an
//! access updates the page's mark exactly. So its misses differ from those of the library by what
//! the library does not know, and from those of the exact models by the policy's stated deviations
//! and the clusters.

use highwater::lab::cache::Referenced;
use highwater::lab::reclaim::PageType;
use highwater::lab::reclaim::policy::{EvictionPolicy, Fate, Lens, Look, PolicyState, Side};

use super::lists::Lists;
use super::{AccessTrace, Replacement};

const SIDES: [Side; 2] = [Side::Inactive, Side::Active];

/// Limits of a cluster: pages that reclaim isolates at once, and the part of a pool that they are.
const CLUSTER_MAX: usize = 32;
const CLUSTER_FRACTION: usize = 256;

/// Returns the size of a cluster of reclaim in a pool of that many pages.
pub(super) fn cluster(capacity: usize) -> usize {
    (capacity / CLUSTER_FRACTION).clamp(1, CLUSTER_MAX)
}

/// A cache under the policy `P`; see the module.
#[derive(Debug)]
pub struct Decided<P> {
    policy: P,
    state: PolicyState,
    capacity: usize,
    cluster: usize,
    lists: Lists<2>,
    /// Ghosts, by page: its list, and its number among the evictions from that list.
    left: Vec<Option<(Side, u64)>>,
}

impl<P: EvictionPolicy> Decided<P> {
    /// Creates an empty cache for the pages of a trace, which scans pages one by one.
    #[must_use]
    pub fn new(policy: P, trace: &AccessTrace, capacity: usize) -> Self {
        Self {
            policy,
            state: PolicyState::default(),
            capacity,
            cluster: 1,
            lists: Lists::new(trace.footprint()),
            left: vec![None; trace.footprint()],
        }
    }

    /// Scans in clusters of reclaim's size in a pool of that many pages.
    #[must_use]
    pub fn in_clusters(mut self) -> Self {
        self.cluster = cluster(self.capacity);
        self
    }

    fn lens(&self) -> Lens {
        Lens {
            inactive: self.lists.len(Side::Inactive as usize) as u64,
            active: self.lists.len(Side::Active as usize) as u64,
            capacity: self.capacity as u64,
        }
    }

    /// Scans a cluster of the list that the policy names.
    fn shrink(&mut self) {
        let from = self.policy.next(&self.state, self.lens());
        let isolated: Vec<u32> = (0..self.cluster)
            .map_while(|_| self.lists.pop(from as usize))
            .collect();
        for page in isolated {
            let look = Look {
                entries: Referenced::Seen {
                    young: 0,
                    executable: false,
                    locked: false,
                },
                credit: u32::from(self.lists.mark(page)),
                page_type: PageType::File,
            };
            match self.policy.judge(&self.state, self.lens(), from, look) {
                Fate::Evict | Fate::EvictClean => {
                    let age = self.state.leave(from, 1);
                    self.left[page as usize] = Some((from, age));
                }
                Fate::Stay { to, credit } => {
                    let credit = u8::try_from(credit).expect("at most three");
                    self.lists.set_mark(page, credit);
                    self.lists.push(to as usize, page);
                }
                Fate::Cull => unreachable!("no page is locked"),
            }
        }
    }
}

impl<P: EvictionPolicy> Replacement for Decided<P> {
    fn access(&mut self, page: u32) -> bool {
        if self.lists.list_of(page).is_some() {
            let most = u8::try_from(self.policy.accesses_max()).expect("at most three");
            self.lists.raise_mark(page, most);
            return true;
        }
        while self.resident() >= self.capacity {
            self.shrink();
        }
        let left = self.left[page as usize].take();
        let departure = left.map(|(from, age)| self.state.departure(from, age));
        let to = self.policy.admit(&self.state, self.lens(), departure);
        self.lists.set_mark(page, 0);
        self.lists.push(to as usize, page);
        false
    }

    fn resident(&self) -> usize {
        SIDES.map(|side| self.lists.len(side as usize)).iter().sum()
    }
}
