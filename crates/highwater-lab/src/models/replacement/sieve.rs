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
pub(crate) struct Sieve {
    capacity: usize,
    lists: Lists<1>,
    hand: Option<u32>,
}

impl Sieve {
    /// Creates an empty cache for the pages `0 .. footprint`.
    pub(crate) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            lists: Lists::new(footprint),
            hand: None,
        }
    }

    /// Marks a page, if it is resident; returns whether it is.
    pub(crate) fn hit(&mut self, page: u32) -> bool {
        let is_resident = self.lists.list_of(page).is_some();
        if is_resident {
            self.lists.set_mark(page, 1);
        }
        is_resident
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lists.len(RESIDENT) >= self.capacity
    }

    /// Returns whether the hand starts at the oldest page next: it has passed the newest.
    pub(crate) const fn is_turning(&self) -> bool {
        self.hand.is_none()
    }

    /// Moves the hand until it has evicted a page, or has passed the newest; returns whether it
    /// has evicted one.
    pub(crate) fn advance(&mut self) -> bool {
        let mut at = self.hand.or(self.lists.tail(RESIDENT));
        while let Some(page) = at {
            at = self.lists.newer(page);
            if self.lists.mark(page) == 0 {
                self.lists.remove(page);
                self.hand = at;
                return true;
            }
            self.lists.set_mark(page, 0);
        }
        self.hand = None;
        false
    }

    /// Adds a page that is not resident, at the head.
    pub(crate) fn insert(&mut self, page: u32) {
        self.lists.push(RESIDENT, page);
    }
}

impl Replacement for Sieve {
    fn access(&mut self, page: u32) -> bool {
        if self.hit(page) {
            return true;
        }
        if self.is_full() {
            // Terminates: a turn clears all marks, and only an access sets one.
            while !self.advance() {}
        }
        self.insert(page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(RESIDENT)
    }
}
