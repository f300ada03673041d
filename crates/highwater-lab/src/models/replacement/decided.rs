//! A cache that the library's eviction policies drive, with complete knowledge of each access.
//!
//! It carries out a policy's decisions as reclaim does, in clusters from the end of a list; but an
//! access updates the page's mark exactly. So its misses differ from those of the library by what
//! the library does not know, and from those of the exact models by the policy's stated deviations
//! and the clusters.

use highwater::lab::cache::{AccessTimes, Referenced};
use highwater::lab::reclaim::policy::{
    EvictedBy, EvictionPolicy, Fate, Lens, Look, PolicyState, Side,
};
use highwater::lab::reclaim::{LOOKS, PageType, Places, Recency, Stamp};
use highwater::units::{GroupId, Pages, Pfn};

use super::Replacement;
use super::lists::Lists;

/// The group that all pages belong to.
const GROUP: GroupId = GroupId(0);

const SIDES: [Side; 2] = [Side::Inactive, Side::Active];

/// Limits of a cluster: pages that reclaim isolates at once, and the part of a pool that they are.
const CLUSTER_MAX: usize = 32;
const CLUSTER_FRACTION: usize = 256;

/// Returns the size of a cluster of reclaim in a pool of that many pages.
fn cluster(capacity: usize) -> usize {
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
    /// Ghosts, by page.
    left: Vec<Option<Ghost>>,
    /// If the policy is bounded by LRU.
    bounds: Option<Bounds>,
    /// Buffer of a scan.
    scanned: Vec<u32>,
}

/// The record of an evicted page.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    from: Side,
    /// Its number among the evictions from that list. Not aligned, so that a record has twelve
    /// bytes: curves have many.
    age: [u8; 8],
    /// Its last known access, if the policy is bounded by LRU.
    stamp: Stamp,
}

/// The order of accesses of a policy that is bounded by LRU; a page's number is its frame's.
#[derive(Debug)]
struct Bounds {
    places: Places,
    recency: Recency,
    /// Accesses that were not collected yet, by page, and their times.
    young: Vec<u8>,
    times: AccessTimes,
    /// Buffer of a walk.
    walked: Vec<Pfn>,
}

impl Bounds {
    fn new(footprint: usize, capacity: usize) -> Self {
        let [frames, resident] = [footprint, capacity].map(|pages| Pages(pages as u64));
        Self {
            places: Places::new(frames),
            times: AccessTimes::new([frames, resident], 1),
            recency: Recency::default(),
            young: vec![0; footprint],
            walked: Vec::new(),
        }
    }

    /// Marks an access to a page, up to `most`.
    fn mark(&mut self, page: u32, most: u8) {
        let young = &mut self.young[page as usize];
        if *young < most {
            *young += 1;
            self.times.note(Pfn(page), GROUP);
        }
    }
}

impl<P: EvictionPolicy> Decided<P> {
    /// Creates an empty cache for the pages `0 .. footprint`, which scans pages one by one.
    #[must_use]
    pub fn new(policy: P, capacity: usize, footprint: usize) -> Self {
        Self {
            bounds: policy
                .is_bounded()
                .then(|| Bounds::new(footprint, capacity)),
            policy,
            state: PolicyState::default(),
            capacity,
            cluster: 1,
            lists: Lists::new(footprint),
            left: vec![None; footprint],
            scanned: Vec::new(),
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

    fn accesses_max(&self) -> u8 {
        u8::try_from(self.policy.accesses_max()).expect("at most three")
    }

    /// Scans a cluster: of LRU's victims, or of the list that the policy names.
    fn shrink(&mut self) {
        // Twice as many looks as come due for a cluster, as in reclaim.
        let mut left = 2 * LOOKS * self.cluster as u64;
        while left > 0 {
            match self.walk(left) {
                0 => break,
                looks => left -= looks,
            }
        }
        let whose = |bounds: &mut Bounds| bounds.recency.victims();
        let victims = self.bounds.as_mut().map_or(EvictedBy::Policy, whose);
        self.state.follow(victims, self.lens());
        match victims {
            EvictedBy::Lru => self.shrink_oldest(),
            EvictedBy::Policy => self.shrink_list(),
        }
    }

    fn shrink_list(&mut self) {
        let from = self.policy.next(&self.state, self.lens());
        let mut isolated = std::mem::take(&mut self.scanned);
        isolated.extend((0..self.cluster).map_while(|_| self.lists.pop(from as usize)));
        for page in isolated.drain(..) {
            self.collect(page);
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
                Fate::Evict | Fate::EvictClean => self.leave(from, page),
                Fate::Stay { to, credit } => {
                    let credit = u8::try_from(credit).expect("at most three");
                    self.lists.set_mark(page, credit);
                    self.lists.push(to as usize, page);
                }
                Fate::Cull => unreachable!("no page is locked"),
            }
        }
        self.scanned = isolated;
    }

    /// Evicts those of the pages with the oldest known accesses that were not accessed since.
    fn shrink_oldest(&mut self) {
        let bounds = self.bounds.as_ref().expect("the policy is bounded");
        let mut oldest = std::mem::take(&mut self.scanned);
        let in_order = bounds.recency.oldest_first(&bounds.places);
        oldest.extend(in_order.take(self.cluster).map(|page| page.0));
        for page in oldest.drain(..) {
            if !self.collect(page) {
                let from = SIDES[self.lists.list_of(page).expect("it is in the cache")];
                self.lists.remove(page);
                self.leave(from, page);
            }
        }
        self.scanned = oldest;
    }

    /// Takes up to `most` of the looks that are due; returns their number.
    fn walk(&mut self, most: u64) -> u64 {
        let Some(bounds) = &mut self.bounds else {
            return 0;
        };
        let mut pages = std::mem::take(&mut bounds.walked);
        pages.clear();
        let now = bounds.times.now(GROUP);
        bounds.recency.walk(&bounds.places, now, most, &mut pages);
        for page in &pages {
            self.collect(page.0);
        }
        let looks = pages.len() as u64;
        if let Some(bounds) = &mut self.bounds {
            bounds.walked = pages;
        }
        looks
    }

    /// Collects a page's accesses, if the policy is bounded by LRU; returns whether there were
    /// any.
    fn collect(&mut self, page: u32) -> bool {
        let most = self.accesses_max();
        let Some(bounds) = &mut self.bounds else {
            return false;
        };
        let young = std::mem::take(&mut bounds.young[page as usize]);
        if young > 0 {
            let time = bounds.times.at(Pfn(page));
            bounds.recency.touch(&bounds.places, Pfn(page), time);
            let mark = self.lists.mark(page) + young;
            self.lists.set_mark(page, mark.min(most));
        }
        young > 0
    }

    /// Records the departure of a page that is on no list.
    fn leave(&mut self, from: Side, page: u32) {
        let age = self.state.leave(from, 1).to_ne_bytes();
        let leave = |bounds: &mut Bounds| bounds.recency.leave(&bounds.places, Pfn(page));
        let stamp = self.bounds.as_mut().map_or(Stamp(0), leave);
        self.left[page as usize] = Some(Ghost { from, age, stamp });
    }
}

impl<P: EvictionPolicy> Replacement for Decided<P> {
    fn access(&mut self, page: u32) -> bool {
        let most = self.accesses_max();
        if self.lists.list_of(page).is_some() {
            match &mut self.bounds {
                Some(bounds) => bounds.mark(page, most),
                None => self.lists.raise_mark(page, most),
            }
            return true;
        }
        while self.resident() >= self.capacity {
            self.shrink();
        }
        let left = self.left[page as usize].take();
        let departed = |ghost: Ghost| {
            self.state
                .departure(ghost.from, u64::from_ne_bytes(ghost.age))
        };
        let departure = left.map(departed);
        let to = self.policy.admit(&self.state, self.lens(), departure);
        self.lists.set_mark(page, 0);
        self.lists.push(to as usize, page);
        if let Some(bounds) = &mut self.bounds {
            if let (Some(ghost), Some(departure)) = (left, departure) {
                let (distance, capacity) = (departure.distance, self.capacity as u64);
                bounds
                    .places
                    .note_known(Pfn(page), ghost.stamp, distance, capacity);
            }
            bounds.young[page as usize] = 0;
            let now = bounds.times.now(GROUP);
            bounds.recency.enter(&bounds.places, Pfn(page), now);
        }
        let is_overdue = |bounds: &Bounds| bounds.recency.is_overdue();
        while self.bounds.as_ref().is_some_and(is_overdue) {
            self.walk(u64::MAX);
        }
        false
    }

    fn resident(&self) -> usize {
        SIDES.map(|side| self.lists.len(side as usize)).iter().sum()
    }
}
