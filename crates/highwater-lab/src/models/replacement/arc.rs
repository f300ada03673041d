//! ARC: one LRU list for pages seen once, one for pages seen again; hits on ghosts of either list
//! move the share between them.
//!
//! Source: Megiddo and Modha, FAST 2003, figure 4.

use super::Replacement;
use super::lists::Lists;

const ONCE: usize = 0;
const AGAIN: usize = 1;
const ONCE_GHOST: usize = 2;
const AGAIN_GHOST: usize = 3;

#[derive(Debug)]
pub(super) struct Arc {
    capacity: usize,
    /// Target size of the list of pages seen once: the paper's p.
    target: usize,
    lists: Lists<4>,
}

impl Arc {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            target: 0,
            lists: Lists::new(footprint),
        }
    }

    /// Evicts a page, from those seen once if there are at least `once_min`: the paper's REPLACE.
    fn replace(&mut self, once_min: usize) {
        let (list, ghost) = if self.lists.len(ONCE) >= once_min.max(1) {
            (ONCE, ONCE_GHOST)
        } else {
            (AGAIN, AGAIN_GHOST)
        };
        if let Some(page) = self.lists.pop(list) {
            self.lists.push(ghost, page);
        }
    }

    fn access_new(&mut self, page: u32) {
        let once = self.lists.len(ONCE) + self.lists.len(ONCE_GHOST);
        let again = self.lists.len(AGAIN) + self.lists.len(AGAIN_GHOST);
        if once == self.capacity {
            if self.lists.len(ONCE) < self.capacity {
                self.lists.pop(ONCE_GHOST);
                self.replace(self.target + 1);
            } else {
                self.lists.pop(ONCE);
            }
        } else if once + again >= self.capacity {
            if once + again == 2 * self.capacity {
                self.lists.pop(AGAIN_GHOST);
            }
            self.replace(self.target + 1);
        }
        self.lists.push(ONCE, page);
    }
}

impl Replacement for Arc {
    fn access(&mut self, page: u32) -> bool {
        let once_ghosts = self.lists.len(ONCE_GHOST);
        let again_ghosts = self.lists.len(AGAIN_GHOST);
        match self.lists.list_of(page) {
            Some(ONCE | AGAIN) => {
                self.lists.move_to(AGAIN, page);
                return true;
            }
            Some(ONCE_GHOST) => {
                let step = (again_ghosts / once_ghosts).max(1);
                self.target = (self.target + step).min(self.capacity);
                self.replace(self.target + 1);
                self.lists.move_to(AGAIN, page);
            }
            Some(AGAIN_GHOST) => {
                let step = (once_ghosts / again_ghosts).max(1);
                self.target = self.target.saturating_sub(step);
                self.replace(self.target);
                self.lists.move_to(AGAIN, page);
            }
            _ => self.access_new(page),
        }
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(ONCE) + self.lists.len(AGAIN)
    }
}
