//! CAR (CLOCK with adaptive replacement): ARC with two CLOCKs as its lists of pages, so that a hit
//! sets a mark and moves nothing.
//!
//! Source: Bansal and Modha, FAST 2004, figure 2.

use super::Replacement;
use super::lists::Lists;

const ONCE: usize = 0;
const AGAIN: usize = 1;
const ONCE_GHOST: usize = 2;
const AGAIN_GHOST: usize = 3;

#[derive(Debug)]
pub(super) struct Car {
    capacity: usize,
    /// Target size of the list of pages seen once: the paper's p.
    target: usize,
    lists: Lists<4>,
}

impl Car {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            target: 0,
            lists: Lists::new(footprint),
        }
    }

    /// Evicts a page: the paper's `replace`. Terminates: each round clears a mark, and only an
    /// access sets one.
    fn replace(&mut self) {
        loop {
            let is_once = self.lists.len(ONCE) >= self.target.max(1);
            let (list, ghost) = if is_once {
                (ONCE, ONCE_GHOST)
            } else {
                (AGAIN, AGAIN_GHOST)
            };
            let Some(page) = self.lists.pop(list) else {
                return;
            };
            if self.lists.mark(page) == 0 {
                self.lists.push(ghost, page);
                return;
            }
            self.lists.set_mark(page, 0);
            self.lists.push(AGAIN, page);
        }
    }

    /// Drops the oldest ghost of the side that has too many.
    fn forget(&mut self) {
        let once = self.lists.len(ONCE) + self.lists.len(ONCE_GHOST);
        let again = self.lists.len(AGAIN) + self.lists.len(AGAIN_GHOST);
        if once == self.capacity {
            self.lists.pop(ONCE_GHOST);
        } else if once + again == 2 * self.capacity {
            self.lists.pop(AGAIN_GHOST);
        }
    }
}

impl Replacement for Car {
    fn access(&mut self, page: u32) -> bool {
        let list = self.lists.list_of(page);
        if matches!(list, Some(ONCE | AGAIN)) {
            self.lists.set_mark(page, 1);
            return true;
        }
        let ghost = list;
        if self.resident() == self.capacity {
            self.replace();
            if ghost.is_none() {
                self.forget();
            }
        }
        self.lists.set_mark(page, 0);
        let once_ghosts = self.lists.len(ONCE_GHOST);
        let again_ghosts = self.lists.len(AGAIN_GHOST);
        match ghost {
            Some(ONCE_GHOST) => {
                let step = (again_ghosts / once_ghosts).max(1);
                self.target = (self.target + step).min(self.capacity);
                self.lists.move_to(AGAIN, page);
            }
            Some(_) => {
                let step = (once_ghosts / again_ghosts).max(1);
                self.target = self.target.saturating_sub(step);
                self.lists.move_to(AGAIN, page);
            }
            None => self.lists.push(ONCE, page),
        }
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(ONCE) + self.lists.len(AGAIN)
    }
}
