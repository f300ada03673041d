//! SIEVE: CLOCK with survivors that stay in place while the hand passes over them.
//!
//! The hand moves from the oldest page towards the newest and evicts the first page that was not
//! accessed since the hand last passed it. New pages enter at the head, behind survivors that never
//! move: the hand reaches them soon after they enter.
//!
//! Source: Zhang and others, NSDI 2024, algorithm 1.

use super::Replacement;
use super::lists::Lists;

const RESIDENT: usize = 0;

/// A SIEVE cache; see the module.
#[derive(Debug)]
pub(super) struct Sieve {
    capacity: usize,
    lists: Lists<1>,
    hand: Option<u32>,
}

impl Sieve {
    /// Creates an empty cache for the pages `0 .. footprint`.
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            lists: Lists::new(footprint),
            hand: None,
        }
    }

    /// Moves the hand until it has evicted a page; after the newest, it begins at the tail.
    fn evict(&mut self) {
        // Terminates: each step clears a mark, and only an access sets one.
        while let Some(page) = self.hand.or(self.lists.tail(RESIDENT)) {
            self.hand = self.lists.newer(page);
            if self.lists.mark(page) == 0 {
                return self.lists.remove(page);
            }
            self.lists.set_mark(page, 0);
        }
    }
}

impl Replacement for Sieve {
    fn access(&mut self, page: u32) -> bool {
        if self.lists.list_of(page).is_some() {
            self.lists.set_mark(page, 1);
            return true;
        }
        if self.lists.len(RESIDENT) >= self.capacity {
            self.evict();
        }
        self.lists.push(RESIDENT, page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(RESIDENT)
    }
}
