//! CLOCK: FIFO, but a page that was accessed since it came in is reinserted (second chance).
//!
//! Source: Corbató 1968, in the form of a queue ("FIFO reinsertion").

use super::Replacement;
use super::lists::Lists;

const RESIDENT: usize = 0;

#[derive(Debug)]
pub(super) struct Clock {
    capacity: usize,
    lists: Lists<1>,
}

impl Clock {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            lists: Lists::new(footprint),
        }
    }

    fn evict(&mut self) {
        // Terminates: each round clears a mark, and only an access sets one.
        while let Some(page) = self.lists.pop(RESIDENT) {
            if self.lists.mark(page) == 0 {
                return;
            }
            self.lists.set_mark(page, 0);
            self.lists.push(RESIDENT, page);
        }
    }
}

impl Replacement for Clock {
    fn access(&mut self, page: u32) -> bool {
        if self.lists.list_of(page).is_some() {
            self.lists.set_mark(page, 1);
            return true;
        }
        if self.lists.len(RESIDENT) == self.capacity {
            self.evict();
        }
        self.lists.push(RESIDENT, page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(RESIDENT)
    }
}
