//! Exact LRU (least recently used) replacement: the reference for miss ratios.
//!
//! The resident pages form a doubly linked list in order of their last access, inside one array; a
//! hash table maps a page to its slot. Both hold at most `capacity` entries, for any number of
//! distinct pages.
//!
//! Invariants: the list and the table hold the same pages, `len <= capacity`; the page at `oldest`
//! is the least recently accessed one.
//!
//! Checked against published miss ratios: `tests/traces.rs::shared_traces_match_their_table`.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// No slot of the array.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    page: u64,
    /// Neighbour with the next earlier last access.
    older: u32,
    /// Neighbour with the next later last access.
    newer: u32,
}

/// An exact LRU cache of pages: only their numbers.
///
/// # Cost
///
/// O(1) per access, about 40 bytes per entry in use.
///
/// # Examples
///
/// ```
/// use highwater_lab::models::Lru;
///
/// let mut lru = Lru::new(2);
/// let hits = [1, 2, 1, 3, 1, 2].map(|page| lru.access(page));
/// assert_eq!(hits, [false, false, true, false, true, false]);
/// ```
#[derive(Debug)]
pub struct Lru {
    capacity: usize,
    nodes: Vec<Node>,
    places: HashMap<u64, u32, PageHashers>,
    oldest: u32,
    newest: u32,
}

impl Lru {
    /// Creates an empty cache of `capacity` pages; one of no pages never hits.
    ///
    /// # Panics
    ///
    /// When `capacity` is 2^32 - 1 or more: slots are numbered with 32 bits.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!(
            u32::try_from(capacity).is_ok_and(|capacity| capacity < NONE),
            "an LRU of {capacity} entries: expected less than 2^32 - 1"
        );
        Self {
            capacity,
            nodes: Vec::new(),
            places: HashMap::default(),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Accesses a page; returns `true` if it was resident. Makes it the newest, and evicts the
    /// oldest if there is no room.
    pub fn access(&mut self, page: u64) -> bool {
        if self.capacity == 0 {
            return false;
        }
        if let Some(&place) = self.places.get(&page) {
            if place != self.newest {
                self.unlink(place);
                self.link_newest(place);
            }
            return true;
        }
        let place = self.place_for(page);
        self.places.insert(page, place);
        self.link_newest(place);
        debug_assert_eq!(self.places.len(), self.nodes.len(), "list and table agree");
        false
    }

    /// Returns the number of resident pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether no page is resident.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns an unlinked slot for a new page: a fresh one, or that of the oldest page, which is
    /// evicted.
    fn place_for(&mut self, page: u64) -> u32 {
        let node = Node {
            page,
            older: NONE,
            newer: NONE,
        };
        if self.nodes.len() < self.capacity {
            let place = u32::try_from(self.nodes.len()).expect("capacity is checked by `new`");
            self.nodes.push(node);
            return place;
        }
        let place = self.oldest;
        self.unlink(place);
        self.places.remove(&self.nodes[place as usize].page);
        self.nodes[place as usize] = node;
        place
    }

    fn unlink(&mut self, place: u32) {
        let Node { older, newer, .. } = self.nodes[place as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
    }

    fn link_newest(&mut self, place: u32) {
        let older = self.newest;
        let node = &mut self.nodes[place as usize];
        node.older = older;
        node.newer = NONE;
        match older {
            NONE => self.oldest = place,
            older => self.nodes[older as usize].newer = place,
        }
        self.newest = place;
    }
}

/// Builds [`PageHasher`]s.
pub(crate) type PageHashers = BuildHasherDefault<PageHasher>;

/// Mixes a page number by one multiplication, whose upper half is folded into the lower. No
/// adversary chooses page numbers here, and the standard hasher would take most of the model's
/// time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 << 8 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, page: u64) {
        /// 2^64 divided by the golden ratio, odd: spreads neighbours far apart.
        const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = page.wrapping_mul(MULTIPLIER);
        self.0 = product ^ product >> 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the model is exact. Method: compare with a plain list, moved on every access, over
    // random pages of a range around the capacity.
    #[test]
    fn hits_equal_those_of_a_plain_list() {
        let mut random = fastrand::Rng::with_seed(7);
        for capacity in [0, 1, 2, 3, 17, 100] {
            let mut lru = Lru::new(capacity);
            let mut list: Vec<u64> = Vec::new();
            for _ in 0..20_000 {
                let page = random.u64(0..150);
                let known = list.iter().position(|&other| other == page);
                if let Some(at) = known {
                    list.remove(at);
                }
                list.push(page);
                if list.len() > capacity {
                    list.remove(0);
                }
                assert_eq!(lru.access(page), known.is_some(), "capacity {capacity}");
                assert_eq!(lru.len(), list.len());
            }
        }
    }
}
