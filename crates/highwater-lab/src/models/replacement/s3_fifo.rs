//! S3-FIFO: a small queue that most pages leave soon, a large one for pages that were accessed in
//! it, and a ghost queue of pages evicted from the small one.
//!
//! Source: Yang and others, SOSP 2023, with the defaults of the author's simulator, libCacheSim: a
//! tenth of the capacity for the small queue, nine tenths for the large one and as many ghosts; a
//! page moves to the large queue after two accesses; before the first eviction, pages that do not
//! fit the small queue enter the large one.

use super::Replacement;
use super::lists::Lists;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST: usize = 2;

/// Accesses after which a page moves to the large queue.
const MOVE_TO_MAIN: u8 = 2;
/// Limit of the access count. Each access is good for one round of the large queue.
const MARK_MAX: u8 = 3;

#[derive(Debug)]
pub(super) struct S3Fifo {
    capacity: usize,
    small_max: usize,
    ghost_max: usize,
    has_evicted: bool,
    lists: Lists<3>,
}

impl S3Fifo {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            small_max: (capacity / 10).max(1),
            ghost_max: capacity * 9 / 10,
            has_evicted: false,
            lists: Lists::new(footprint),
        }
    }

    fn evict(&mut self) {
        self.has_evicted = true;
        let main_max = self.capacity - self.small_max;
        if self.lists.len(MAIN) > main_max || self.lists.len(SMALL) == 0 {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    /// Moves up to all pages of the small queue to the large one; may evict nothing.
    fn evict_small(&mut self) {
        while let Some(page) = self.lists.pop(SMALL) {
            if self.lists.mark(page) >= MOVE_TO_MAIN {
                self.lists.set_mark(page, 0);
                self.lists.push(MAIN, page);
                continue;
            }
            self.lists.push(GHOST, page);
            if self.lists.len(GHOST) > self.ghost_max {
                self.lists.pop(GHOST);
            }
            return;
        }
    }

    fn evict_main(&mut self) {
        // Terminates: each round lowers a mark, and only an access raises one.
        while let Some(page) = self.lists.pop(MAIN) {
            let mark = self.lists.mark(page);
            if mark == 0 {
                return;
            }
            self.lists.set_mark(page, mark - 1);
            self.lists.push(MAIN, page);
        }
    }
}

impl Replacement for S3Fifo {
    fn access(&mut self, page: u32) -> bool {
        let list = self.lists.list_of(page);
        if matches!(list, Some(SMALL | MAIN)) {
            self.lists.raise_mark(page, MARK_MAX);
            return true;
        }
        let is_known = list == Some(GHOST);
        if is_known {
            self.lists.remove(page);
        }
        while self.resident() == self.capacity {
            self.evict();
        }
        let is_small_full = self.lists.len(SMALL) >= self.small_max;
        let goes_to_main = is_known || (!self.has_evicted && is_small_full);
        self.lists.set_mark(page, 0);
        self.lists
            .push(if goes_to_main { MAIN } else { SMALL }, page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }
}
