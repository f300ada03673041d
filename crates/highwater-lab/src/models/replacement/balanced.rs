//! Balanced: S3-FIFO whose small queue finds its own length.
//!
//! New pages come into the small queue. At its end, a page that was accessed twice moves on to the large queue, one
//! that was accessed once goes round once more, the others leave. The large queue is a clock. Every page that leaves
//! is remembered for a while, with the queue it left and how many had left that queue by then.
//!
//! A page that comes back goes to the large queue if it had left the small one, and passes the small one again if it
//! had left the large one: what the clock gave up is not worth more than a new page. If it left so recently that a
//! queue longer by 1/32 of the capacity would have kept it, its queue grows by one page at the other's expense. Both
//! queues are asked the same question, so that a page is worth as much at the end of either.
//!
//! This is the library's default eviction policy with everything known at once: there, accesses are marks that are
//! looked at later, and pages are looked at in clusters.
//!
//! Source: S3-FIFO as in `s3_fifo.rs`; what remains of a page, and its distance, as in the workingset detection of Linux;
//! a share that moves with hits on names, from ARC. Deviations: all three are asked at once.

use super::Replacement;
use super::lists::Lists;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOST_OF_SMALL: usize = 2;
const GHOST_OF_MAIN: usize = 3;

const MOVE_TO_MAIN: u8 = 2;
const MARK_MAX: u8 = 3;

#[derive(Debug)]
pub(super) struct Balanced {
    capacity: usize,
    /// Pages that the small queue is to have.
    target: usize,
    has_evicted: bool,
    lists: Lists<4>,
    /// Pages that left the small and the large queue so far.
    left: [u32; 2],
    /// By page: how many had left its queue when it did.
    left_at: Vec<u32>,
    /// By page that left: how many had left either queue.
    age: Vec<u32>,
}

impl Balanced {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            target: (capacity / 10).max(1),
            has_evicted: false,
            lists: Lists::new(footprint),
            left: [0; 2],
            left_at: vec![0; footprint],
            age: vec![0; footprint],
        }
    }

    fn evict(&mut self) {
        self.has_evicted = true;
        let main_max = self.capacity - self.target;
        if self.lists.len(MAIN) > main_max || self.lists.len(SMALL) == 0 {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    /// May move all of the small queue on and evict nothing.
    fn evict_small(&mut self) {
        while let Some(page) = self.lists.pop(SMALL) {
            match self.lists.mark(page) {
                0 => return self.remember(SMALL, page),
                1..MOVE_TO_MAIN => self.lists.push(SMALL, page),
                _ => self.lists.push(MAIN, page),
            }
            self.lists.set_mark(page, 0);
        }
    }

    fn evict_main(&mut self) {
        // Ends: each round lowers a mark, and only an access raises one.
        while let Some(page) = self.lists.pop(MAIN) {
            let mark = self.lists.mark(page);
            if mark == 0 {
                return self.remember(MAIN, page);
            }
            self.lists.set_mark(page, mark - 1);
            self.lists.push(MAIN, page);
        }
    }

    /// Forgets whatever left more than 3/2 of the capacity of pages ago.
    fn remember(&mut self, queue: usize, page: u32) {
        self.left[queue] += 1;
        self.left_at[page as usize] = self.left[queue];
        self.age[page as usize] = self.nr_left();
        self.lists.push(GHOST_OF_SMALL + queue, page);
        let ghosts_max = self.capacity + self.capacity / 2;
        if self.lists.len(GHOST_OF_SMALL) + self.lists.len(GHOST_OF_MAIN) > ghosts_max {
            let oldest = [GHOST_OF_SMALL, GHOST_OF_MAIN].into_iter();
            let oldest = oldest.filter_map(|ghosts| self.lists.tail(ghosts));
            if let Some(page) = oldest.min_by_key(|page| self.age[*page as usize]) {
                self.lists.remove(page);
            }
        }
    }

    fn nr_left(&self) -> u32 {
        self.left[SMALL] + self.left[MAIN]
    }

    /// Learns from a page that comes back.
    fn refault(&mut self, queue: usize, page: u32) {
        self.lists.remove(page);
        let distance = self.left[queue] - self.left_at[page as usize];
        if distance as usize > self.capacity / 32 + 1 {
            return;
        }
        let least = (self.capacity / 100).max(1);
        let most = (self.capacity * 9 / 10).max(1);
        let target = match queue {
            SMALL => self.target + 1,
            _ => self.target - 1,
        };
        self.target = target.clamp(least, most);
    }
}

impl Replacement for Balanced {
    fn access(&mut self, page: u32) -> bool {
        let list = self.lists.list_of(page);
        match list {
            Some(SMALL | MAIN) => {
                self.lists.raise_mark(page, MARK_MAX);
                return true;
            }
            Some(ghosts) => self.refault(ghosts - GHOST_OF_SMALL, page),
            None => {}
        }
        while self.resident() == self.capacity {
            self.evict();
        }
        let is_small_full = self.lists.len(SMALL) >= self.target;
        let goes_to_main = list == Some(GHOST_OF_SMALL) || (!self.has_evicted && is_small_full);
        self.lists.set_mark(page, 0);
        self.lists
            .push(if goes_to_main { MAIN } else { SMALL }, page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }
}
