//! Bounded: LRU by walks, and in its place the lists of [`Balanced`](super::Algorithm::Balanced)
//! for as long as they miss less than LRU would.
//!
//! A study for the default policy: marks say that a page was accessed, but not when, so *balanced*
//! takes pages of a former working set for pages in use, and has up to 38 % more misses than LRU
//! then. Here both lists are walked once in an epoch, a sixteenth of the capacity of arrivals, and
//! marks are collected. That tells two things:
//!
//! - **An order.** The small queue is sorted by arrival. If pages that a walk finds accessed move
//!   to the head of the large one, that is sorted by last access. The older of the two tails is
//!   LRU's victim, if a page that was found accessed counts as old as one that arrived in the
//!   middle of the epoch. With eight epochs this alone has at most 2 % more misses than LRU on
//!   every generated family.
//! - **An account** ([`Recency`]). A refault of a page that LRU would still have is a miss more
//!   than LRU's; an access to a resident page that LRU would have evicted is a miss less. The sum
//!   is the *debt*. It needs no trial of LRU, and holds for any lists.
//!
//! The cache begins as LRU. The learnt lists are tried once an eighth of half a capacity of
//! arrivals were refaults. They stay until they owe a twenty-fifth of the capacity, and as much as
//! is saved by then, more than at their best; then LRU follows for a number of rounds that doubles
//! with each trial that cost misses. A trial needs a budget, 1.5 % of all misses less the debt:
//! this bounds the sum of all trials, as far as the account is exact.
//!
//! Measured: at most 5.5 % more misses than LRU (twenty seeds; a set replaced beside popular
//! pages; others 2.3 %) on the families of the lab's `tests/lru_bound.rs`, where *balanced* has up
//! to 38 %. Over recorded traces, means of 5.1 % and 7.5 % fewer in caches of 1 and 10 % of the
//! footprint (*balanced*: 5.1 and 8.1 %): some traces are over before LRU is left. Price: a walk
//! looks at every page, so each arrival costs sixteen looks.
//!
//! The library has no such policy. It would walk the lists with a cursor, stamp links, and keep
//! epochs in shadows; readers would do as now.
//!
//! Source: set dueling, with an account in place of sampled sets; walks that collect marks, from
//! MGLRU.

use super::Replacement;
use super::balanced::Learnt;
use super::lists::Lists;
use super::recency::{Bound, ONE, Recency};

const SMALL: usize = 0;
const MAIN: usize = 1;

const MARK_MAX: u8 = 3;

/// Epochs in a capacity of arrivals. Chosen: with eight, means over recorded traces are 4.9 % and
/// 7.2 %, because the account is less exact.
const EPOCHS: usize = 16;

/// Part of a round that must be refaults before the learnt lists are tried.
const NOTICEABLE: usize = 8;

/// Part of the capacity that a trial may owe. Chosen: with 0.08, popular pages beside a set that is
/// replaced have up to 4 % more misses than LRU (2.9 %).
const TRIAL: usize = 25;

const PATIENCE_MAX: usize = 64;

/// The lists in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Lru,
    Learnt,
}

/// When to try the learnt lists, and when to leave them.
#[derive(Debug)]
struct Account {
    mode: Mode,
    /// Misses above LRU's, and those above the lowest sum of this trial.
    debt: i64,
    above_lowest: i64,
    debt_before: i64,
    refaults: usize,
    round_end: usize,
    has_tried: bool,
    wait: usize,
    patience: usize,
}

impl Account {
    const fn new() -> Self {
        Self {
            mode: Mode::Lru,
            debt: 0,
            above_lowest: 0,
            debt_before: 0,
            refaults: 0,
            round_end: 0,
            has_tried: false,
            wait: 0,
            patience: 1,
        }
    }

    /// Adds misses above LRU's, in units of [`ONE`]. Those of LRU by walks are its price.
    fn owe(&mut self, misses: i64) {
        if self.mode == Mode::Learnt {
            self.debt += misses;
            self.above_lowest = (self.above_lowest + misses).max(0);
        }
    }

    /// Changes the mode, if it is due. Called at each arrival; returns whether it changes.
    fn advance(&mut self, arrivals: usize, capacity: usize) -> bool {
        let pages = |count: usize| ONE * i64::try_from(count).expect("a count of pages");
        let round = capacity / 2 + 16;
        let changes = match self.mode {
            Mode::Lru => {
                let is_noticed = NOTICEABLE * self.refaults > round;
                let is_early = is_noticed && self.wait == 0;
                if arrivals < self.round_end && !is_early {
                    return false;
                }
                self.round_end = arrivals + round;
                self.refaults = 0;
                self.wait = self.wait.saturating_sub(1);
                let budget = pages(3 * arrivals / 200) - self.debt.max(0);
                let is_affordable = self.wait == 0 && budget > pages(capacity / TRIAL);
                is_noticed && (is_affordable || !self.has_tried)
            }
            Mode::Learnt => {
                self.above_lowest > pages(capacity.div_ceil(TRIAL)) + (-self.debt).max(0)
            }
        };
        self.debt = self.debt.max(-pages(4 * capacity));
        if changes {
            self.change(arrivals + round);
        }
        changes
    }

    fn change(&mut self, round_end: usize) {
        self.mode = match self.mode {
            Mode::Lru => {
                self.has_tried = true;
                self.above_lowest = 0;
                self.debt_before = self.debt;
                Mode::Learnt
            }
            Mode::Learnt => {
                self.patience = match self.debt > self.debt_before {
                    true => (2 * self.patience).min(PATIENCE_MAX),
                    false => 1,
                };
                self.wait = self.patience;
                self.refaults = 0;
                self.round_end = round_end;
                Mode::Lru
            }
        };
    }
}

/// A page's departure: its queue, and the evictions from that queue by then.
#[derive(Clone, Copy, Debug)]
struct Left {
    queue: usize,
    at: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Bounded {
    capacity: usize,
    cluster: usize,
    learnt: Learnt,
    /// Whether new pages fill the large queue, which LRU has left short.
    is_filling: bool,
    lists: Lists<2>,
    /// Accesses since the last walk, and times of arrival or of the last known access, by page.
    young: Vec<u8>,
    stamps: Vec<usize>,
    left: [usize; 2],
    left_at: Vec<Option<Left>>,
    arrivals: usize,
    walked: usize,
    recency: Recency,
    /// LRU's pages at the last walk and now.
    bounds: [Bound; 2],
    account: Account,
}

impl Bounded {
    /// Creates an empty cache.
    #[must_use]
    pub fn new(trace: &super::AccessTrace, capacity: usize) -> Self {
        let footprint = trace.footprint();
        Self {
            capacity,
            cluster: super::decided::cluster(capacity),
            learnt: Learnt::new(capacity),
            is_filling: false,
            lists: Lists::new(footprint),
            young: vec![0; footprint],
            stamps: vec![0; footprint],
            left: [0; 2],
            left_at: vec![None; footprint],
            arrivals: 0,
            walked: 0,
            recency: Recency::new(capacity, footprint),
            bounds: [Bound::default(); 2],
            account: Account::new(),
        }
    }

    fn nr_left(&self) -> usize {
        self.left.iter().sum()
    }

    fn is_changing(&self) -> bool {
        self.nr_left() < self.capacity || 3 * self.learnt.len >= 2 * self.capacity
    }

    /// Returns the time of an access that was found now and made since the last walk.
    fn middle(&self) -> usize {
        self.walked.midpoint(self.arrivals)
    }

    /// Collects a page's accesses; returns whether there were any.
    fn collect(&mut self, page: u32) -> bool {
        let young = std::mem::take(&mut self.young[page as usize]);
        if young > 0 {
            let known = self.recency.of(page);
            let shares = self.bounds.map(|bound| bound.share_of(known));
            let share = shares.iter().sum::<i64>() / 2;
            self.account.owe(share - ONE);
            self.recency.touch(page);
            let mark = self.lists.mark(page) + young;
            self.lists.set_mark(page, mark.min(MARK_MAX));
        }
        young > 0
    }

    fn walk(&mut self) {
        let mut accessed = Vec::new();
        for queue in [MAIN, SMALL] {
            let mut next = self.lists.tail(queue);
            while let Some(page) = next {
                next = self.lists.newer(page);
                if self.collect(page) {
                    accessed.push(page);
                }
            }
        }
        let middle = self.middle();
        self.walked = self.arrivals;
        for page in accessed {
            let stamp = &mut self.stamps[page as usize];
            *stamp = middle.max(*stamp);
            if self.account.mode == Mode::Lru {
                self.lists.set_mark(page, 0);
                self.lists.move_to(MAIN, page);
            }
        }
        self.recency.advance();
        self.bounds = [self.recency.bound(); 2];
    }

    fn shrink(&mut self) {
        match self.account.mode {
            Mode::Lru => (0..self.cluster).for_each(|_| self.shrink_older()),
            Mode::Learnt => self.shrink_learnt(),
        }
    }

    /// Evicts from the queue whose tail is older.
    fn shrink_older(&mut self) {
        let [small, main] = [SMALL, MAIN].map(|queue| {
            let tail = self.lists.tail(queue);
            tail.map_or(usize::MAX, |page| self.stamps[page as usize])
        });
        let queue = if main <= small { MAIN } else { SMALL };
        let Some(page) = self.lists.pop(queue) else {
            return;
        };
        if self.collect(page) {
            self.lists.set_mark(page, 0);
            self.stamps[page as usize] = self.middle();
            self.lists.push(MAIN, page);
        } else {
            self.remember(queue, page);
        }
    }

    fn shrink_learnt(&mut self) {
        let is_long = self.lists.len(MAIN) > self.capacity - self.learnt.len;
        let queue = if is_long || self.lists.len(SMALL) == 0 {
            MAIN
        } else {
            SMALL
        };
        let isolated: Vec<u32> = (0..self.cluster)
            .map_while(|_| self.lists.pop(queue))
            .collect();
        for page in isolated {
            self.collect(page);
            let (to, mark) = match (queue, self.lists.mark(page)) {
                (_, 0) => {
                    self.remember(queue, page);
                    continue;
                }
                (SMALL, 1) => (SMALL, 0),
                (SMALL, _) => (MAIN, 0),
                (_, _) if self.is_changing() => (MAIN, 0),
                (_, mark) => (MAIN, mark - 1),
            };
            self.stamps[page as usize] = self.arrivals;
            self.lists.set_mark(page, mark);
            self.lists.push(to, page);
        }
    }

    fn remember(&mut self, queue: usize, page: u32) {
        self.left[queue] += 1;
        let at = self.left[queue];
        self.left_at[page as usize] = Some(Left { queue, at });
    }

    /// Learns from a refault; returns the queue that the page enters.
    fn refault(&mut self, page: u32, left: Left) -> usize {
        let share = self.bounds[1].share_of(self.recency.of(page));
        self.account.owe(share);
        self.account.refaults += 1;
        if self.account.mode == Mode::Lru {
            return SMALL;
        }
        let distance = self.left[left.queue] - left.at;
        if distance <= self.capacity / 8 + 1 {
            self.learnt.lengthen(left.queue, self.nr_left());
        }
        match left.queue {
            SMALL if distance <= self.capacity + self.capacity / 2 => MAIN,
            _ => SMALL,
        }
    }

    /// Makes a queue longer.
    fn arrive(&mut self) {
        self.arrivals += 1;
        if self.arrivals >= self.walked + (self.capacity / EPOCHS).max(1) {
            self.walk();
        }
        self.bounds[1] = self.recency.bound();
        if self.account.advance(self.arrivals, self.capacity) {
            let is_learnt = self.account.mode == Mode::Learnt;
            self.is_filling = is_learnt && 4 * self.lists.len(MAIN) < self.capacity;
        }
        self.is_filling &= self.lists.len(MAIN) < self.capacity - self.learnt.len;
    }
}

impl Replacement for Bounded {
    fn access(&mut self, page: u32) -> bool {
        if self.lists.list_of(page).is_some() {
            let young = &mut self.young[page as usize];
            *young = (*young + 1).min(MARK_MAX);
            return true;
        }
        while self.resident() >= self.capacity {
            self.shrink();
        }
        self.arrive();
        let queue = match self.left_at[page as usize].take() {
            Some(left) => self.refault(page, left),
            None => SMALL,
        };
        let queue = if self.is_filling { MAIN } else { queue };
        self.recency.touch(page);
        self.stamps[page as usize] = self.arrivals;
        self.young[page as usize] = 0;
        self.lists.set_mark(page, 0);
        self.lists.push(queue, page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }
}
