//! LRU (least recently used) and FIFO (first in, first out).

use super::Replacement;
use super::lists::Lists;

const RESIDENT: usize = 0;

/// Evicts the page with the earliest last access.
#[derive(Debug)]
pub(super) struct Lru {
    capacity: usize,
    lists: Lists<1>,
}

impl Lru {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            lists: Lists::new(footprint),
        }
    }
}

impl Replacement for Lru {
    fn access(&mut self, page: u32) -> bool {
        if self.lists.list_of(page).is_some() {
            self.lists.move_to(RESIDENT, page);
            return true;
        }
        if self.lists.len(RESIDENT) == self.capacity {
            self.lists.pop(RESIDENT);
        }
        self.lists.push(RESIDENT, page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(RESIDENT)
    }
}

/// Evicts the page that came in first.
#[derive(Debug)]
pub(super) struct Fifo(Lru);

impl Fifo {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self(Lru::new(capacity, footprint))
    }
}

impl Replacement for Fifo {
    fn access(&mut self, page: u32) -> bool {
        self.0.lists.list_of(page).is_some() || self.0.access(page)
    }

    fn resident(&self) -> usize {
        self.0.resident()
    }
}
