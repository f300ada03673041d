//! Balanced: S3-FIFO whose small queue finds its own length.
//!
//! New pages come into the small queue. At its end, a page that was accessed twice moves on to the large queue, one
//! that was accessed once goes round once more, the others leave. The large queue is a clock. Of every page that leaves
//! it is remembered which queue it left and how many had left that queue by then.
//!
//! A page that comes back goes to the large queue if it had left the small one within one and a half times the capacity
//! of others, and passes the small one again if it had left the large one: what the clock gave up is not worth more than a
//! new page. If it left so recently that a queue longer by 1/32 of the capacity would have kept it, its queue grows by
//! one page at the other's expense. Both queues are asked the same question, so that a page is worth as much at the end
//! of either.
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

const MOVE_TO_MAIN: u8 = 2;
const MARK_MAX: u8 = 3;

#[derive(Debug)]
pub(super) struct Balanced {
    capacity: usize,
    /// Pages that the small queue is to have.
    target: usize,
    lists: Lists<2>,
    /// Pages that left the small and the large queue so far.
    left: [usize; 2],
    /// By page that left: its queue, and how many had left that.
    left_at: Vec<Option<(usize, usize)>>,
}

impl Balanced {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            target: (capacity / 10).max(1),
            lists: Lists::new(footprint),
            left: [0; 2],
            left_at: vec![None; footprint],
        }
    }

    fn evict(&mut self) {
        if self.lists.len(MAIN) > self.capacity - self.target || self.lists.len(SMALL) == 0 {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    /// Moves at most one page on, and evicts at most one.
    fn evict_small(&mut self) {
        let Some(page) = self.lists.pop(SMALL) else {
            return;
        };
        match self.lists.mark(page) {
            0 => return self.remember(SMALL, page),
            1..MOVE_TO_MAIN => self.lists.push(SMALL, page),
            _ => self.lists.push(MAIN, page),
        }
        self.lists.set_mark(page, 0);
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

    fn remember(&mut self, queue: usize, page: u32) {
        self.left[queue] += 1;
        self.left_at[page as usize] = Some((queue, self.left[queue]));
    }

    /// Learns from a page that comes back; the queue that it comes into.
    fn refault(&mut self, queue: usize, left_at: usize) -> usize {
        let distance = self.left[queue] - left_at;
        if distance <= self.capacity / 32 + 1 {
            let least = (self.capacity / 100).max(1);
            let most = (self.capacity * 9 / 10).max(1);
            let target = match queue {
                SMALL => self.target + 1,
                _ => self.target - 1,
            };
            self.target = target.clamp(least, most);
        }
        match queue {
            SMALL if distance <= self.capacity + self.capacity / 2 => MAIN,
            _ => SMALL,
        }
    }

    fn is_filling(&self) -> bool {
        self.left == [0; 2] && self.lists.len(SMALL) >= self.target
    }
}

impl Replacement for Balanced {
    fn access(&mut self, page: u32) -> bool {
        if self.lists.list_of(page).is_some() {
            self.lists.raise_mark(page, MARK_MAX);
            return true;
        }
        while self.resident() == self.capacity {
            self.evict();
        }
        let queue = match self.left_at[page as usize].take() {
            Some((queue, left_at)) => self.refault(queue, left_at),
            // Until something had to go, new pages fill both queues.
            None if self.is_filling() => MAIN,
            None => SMALL,
        };
        self.lists.set_mark(page, 0);
        self.lists.push(queue, page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }
}
