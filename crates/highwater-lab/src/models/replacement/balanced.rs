//! Balanced: S3-FIFO with an adaptive length of the small queue.
//!
//! New pages enter the small queue. At its end, a page that was accessed twice moves to the large
//! queue, one that was accessed once is reinserted, and the others are evicted. The large queue is
//! a CLOCK. Each evicted page leaves a ghost with its queue, and the number of evictions from that
//! queue by then.
//!
//! A refaulting page enters the large queue if it was evicted from the small one and the refault
//! distance is at most one and a half times the capacity. It enters the small one again if it was
//! evicted from the large one: a page that the CLOCK evicted is worth no more than a new page. If
//! the distance is so short that a queue longer by 1/8 of the capacity would have kept the page,
//! its queue grows at the other's expense. Both queues are judged by the same distance, so that a
//! page is worth the same at the end of either.
//!
//! Besides this learnt length, the small queue can be wide: nineteen twentieths of the
//! capacity. A duel selects one of the two lengths by their regrets in a round ([`Duel`]).
//!
//! This is the library's default eviction policy with complete knowledge: in the library, accesses
//! set marks that are read later, and pages are scanned in clusters.
//!
//! Source: S3-FIFO as in `s3_fifo.rs`; ghosts and refault distances as in the workingset detection
//! of Linux; a share that moves with hits on ghosts, from ARC. Deviations: the combination of the
//! three, and the duel.

use super::Replacement;
use super::lists::Lists;

const SMALL: usize = 0;
const MAIN: usize = 1;

const MOVE_TO_MAIN: u8 = 2;
const MARK_MAX: u8 = 3;

/// Whether the small queue is wide, and the counts that decide it.
#[derive(Debug)]
struct Duel {
    is_wide: bool,
    /// Evictions at which counting begins, and at which the round ends.
    begin: usize,
    end: usize,
    /// Refaults that the other length would have avoided; pages of the large queue that were
    /// reinserted.
    regrets: usize,
    kept: usize,
    /// Regrets of the last round with the learnt length, and with the wide queue.
    known: [usize; 2],
    wait: usize,
    patience: usize,
}

impl Duel {
    fn new() -> Self {
        Self {
            is_wide: false,
            begin: 0,
            end: 0,
            regrets: 0,
            kept: 0,
            known: [0; 2],
            wait: 0,
            patience: 4,
        }
    }

    fn advance(&mut self, nr_left: usize, capacity: usize) {
        if nr_left < self.end {
            return;
        }
        let round = 2 * capacity + 64;
        let is_first = self.end == 0;
        self.end = nr_left + round;
        if is_first {
            return;
        }
        self.known[usize::from(self.is_wide)] = self.regrets;
        self.wait = self.wait.saturating_sub(1);
        let [learnt, wide] = self.known;
        let is_wide_better = learnt > 2 * wide;
        let is_due = 8 * learnt > round && learnt >= self.kept;
        (self.regrets, self.kept) = (0, 0);
        let changes = if self.is_wide {
            !is_wide_better || self.wait == 0
        } else {
            is_due && (is_wide_better || self.wait == 0)
        };
        if changes {
            self.is_wide = !self.is_wide;
            self.wait = self.patience;
            self.patience = (2 * self.patience).min(64);
            self.begin = nr_left + capacity / 2;
            self.end = self.begin + round;
        }
    }
}

/// Length of the small queue, learnt from refaults.
#[derive(Debug)]
pub(super) struct Learnt {
    capacity: usize,
    pub(super) len: usize,
}

impl Learnt {
    pub(super) fn new(capacity: usize) -> Self {
        let len = (capacity / 10).max(1);
        Self { capacity, len }
    }

    /// Makes a queue longer, in larger steps while few pages were evicted.
    pub(super) fn lengthen(&mut self, queue: usize, nr_left: usize) {
        let (divisor, step_max) = match nr_left {
            left if 2 * left < self.capacity => (8, 32),
            left if left < self.capacity => (8, 8),
            _ => (64, 2),
        };
        let step = (self.capacity / divisor).clamp(1, step_max);
        let len = match queue {
            SMALL => self.len + step,
            _ => self.len.saturating_sub(step),
        };
        let most = (self.capacity * 9 / 10).max(1);
        self.len = len.clamp((self.capacity / 100).max(1), most);
    }
}

#[derive(Debug)]
pub(super) struct Balanced {
    capacity: usize,
    learnt: Learnt,
    duel: Duel,
    lists: Lists<2>,
    /// Evictions from the small and the large queue so far.
    left: [usize; 2],
    /// Ghosts, by page: its queue, and the evictions from that queue by then.
    left_at: Vec<Option<(usize, usize)>>,
}

impl Balanced {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            learnt: Learnt::new(capacity),
            duel: Duel::new(),
            lists: Lists::new(footprint),
            left: [0; 2],
            left_at: vec![None; footprint],
        }
    }

    fn target(&self) -> usize {
        if self.duel.is_wide {
            (self.capacity * 19 / 20).max(1)
        } else {
            self.learnt.len
        }
    }

    /// Returns whether fewer pages were evicted than the cache has.
    fn is_beginning(&self) -> bool {
        self.nr_left() < self.capacity
    }

    /// Returns whether the length of the small queue shows that the working set changes, or shows
    /// nothing yet: pages of the former set then stay for one round of the large queue, however
    /// often they were accessed.
    fn is_changing(&self) -> bool {
        self.is_beginning() || 3 * self.target() >= 2 * self.capacity
    }

    fn nr_left(&self) -> usize {
        self.left.iter().sum()
    }

    fn evict(&mut self) {
        if self.lists.len(MAIN) > self.capacity - self.target() || self.lists.len(SMALL) == 0 {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    /// Moves at most one page to the large queue, and evicts at most one.
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
        // Terminates: each round lowers a mark, and only an access raises one.
        while let Some(page) = self.lists.pop(MAIN) {
            let mark = self.lists.mark(page);
            if mark == 0 {
                return self.remember(MAIN, page);
            }
            self.duel.kept += 1;
            let rounds = if self.is_changing() { 0 } else { mark - 1 };
            self.lists.set_mark(page, rounds);
            self.lists.push(MAIN, page);
        }
    }

    fn remember(&mut self, queue: usize, page: u32) {
        self.left[queue] += 1;
        self.left_at[page as usize] = Some((queue, self.left[queue]));
    }

    /// Learns from a refault; returns the queue that the page enters.
    fn refault(&mut self, queue: usize, left_at: usize) -> usize {
        let distance = self.left[queue] - left_at;
        let regretted = if self.duel.is_wide { MAIN } else { SMALL };
        let would_stay = distance + self.lists.len(queue) <= self.capacity;
        if queue == regretted && would_stay && self.nr_left() >= self.duel.begin {
            self.duel.regrets += 1;
        }
        if !self.duel.is_wide && distance <= self.capacity / 8 + 1 {
            self.learnt.lengthen(queue, self.nr_left());
        }
        match queue {
            SMALL if distance <= self.capacity + self.capacity / 2 => MAIN,
            _ => SMALL,
        }
    }

    fn is_filling(&self) -> bool {
        self.left == [0; 2] && self.lists.len(SMALL) >= self.target()
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
        self.duel.advance(self.nr_left(), self.capacity);
        let queue = match self.left_at[page as usize].take() {
            Some((queue, left_at)) => self.refault(queue, left_at),
            // Before the first eviction, new pages fill both queues.
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
