//! Bounded: the lists of [`Balanced`](super::Algorithm::Balanced), and LRU by walks wherever those
//! would owe too much.
//!
//! A study for the default policy: marks say that a page was accessed, but not when, so *balanced*
//! takes pages of a former working set for pages in use, and has up to 38 % more misses than LRU
//! then. Here a walk goes through the pages, from the oldest last access that is known, and
//! collects their marks: sixteen looks for each arrival, so that a walk takes a sixteenth of the
//! capacity. A page whose mark it finds counts as accessed three quarters of a walk ago. That tells
//! two things ([`Recency`]):
//!
//! - **An order.** The page with the oldest last access is LRU's victim. Evicting these alone has
//!   at most 1.5 % more misses than LRU on every generated family.
//! - **An account.** A refault of a page that LRU would still have is a miss more than LRU's; an
//!   access to a resident page that LRU would have evicted is a miss less. The sum is the *debt*.
//!   It needs no trial of LRU, and holds for any lists. A page that LRU would have and the cache
//!   has not is *absent*: it becomes a debt if it is accessed before LRU evicts it too.
//!
//! Each eviction takes the learnt lists' victim while debt and absent pages are within a *credit*,
//! and otherwise LRU's, which never adds to either. Two ideas make the credit small where it would
//! be wasted and large where it pays:
//!
//! - It grows with LRU's misses of pages that were known before, by a fiftieth of them, and at
//!   first by a half, up to a tenth of the capacity. Where LRU misses nothing but new pages, no
//!   order of eviction can gain anything, and LRU is followed. Those are the loads on which
//!   *balanced* is worst: a working set that is replaced.
//! - An absent page costs 0.15 of a miss, because most are never accessed in time: they are the
//!   pages that were read once. A price of 1 would bound the debt by the credit; this one bounds it
//!   by 6.7 times that, which takes loads whose absent pages pay off at first and are then all
//!   read.
//!
//! LRU is taken to have 3 % more pages than the cache, so that accesses that are known too late do
//! not look like gains: without, new pages that are reused after a long pause have up to 5.3 % more
//! misses than LRU.
//!
//! When the learnt lists take over from LRU and the large queue is short, new pages fill it first.
//!
//! Measured: at most 1.6 % more misses than LRU on every family (twelve seeds; the lab's
//! `tests/lru_bound.rs`), and on average 8.9 % fewer on those that *balanced* is promised for (one
//! seed; *balanced*: 9.1 %). Over the recorded traces (`highwater lab policies`), means of 4.8 and
//! 8.9 % fewer in caches of 1 and 10 % of the footprint (*balanced*: 5.1 and 8.1 %; the difference
//! at 1 % is one trace, in a cache of two pages). Other figures in this file: two seeds.
//!
//! The library has no such policy. It would walk its lists with a cursor, keep a second link and a
//! stamp for each frame, and six bits of epoch in a shadow; readers would do as now.
//!
//! Source: the potential of competitive analysis, as an account at run time; walks that collect
//! marks, from MGLRU.

use super::Replacement;
use super::balanced::Learnt;
use super::lists::Lists;
use super::recency::{Bound, ONE, Recency};

const SMALL: usize = 0;
const MAIN: usize = 1;

const MARK_MAX: u8 = 3;

/// Epochs in a capacity of arrivals. Chosen: with 32, a set that is replaced in order has up to
/// 4.0 % more misses than LRU (1.2 %).
const EPOCHS: usize = 64;

/// Looks for each arrival. Chosen: with eight, new pages that are reused after a long pause have up
/// to 4.8 % more misses than LRU (1.2 %).
const LOOKS: usize = 16;

fn pages(count: usize) -> i64 {
    ONE * i64::try_from(count).expect("a count of pages")
}

/// The account of misses, in units of [`ONE`].
#[derive(Debug, Default)]
struct Account {
    capacity: i64,
    /// Misses above LRU's.
    debt: i64,
    /// LRU's misses of pages that were known before.
    avoidable: i64,
}

impl Account {
    fn new(capacity: usize) -> Self {
        Self {
            capacity: pages(capacity),
            ..Self::default()
        }
    }

    /// Counts a refault of a page that LRU has with that share.
    fn refault(&mut self, share: i64) {
        self.debt += share;
        self.avoidable += ONE - share;
    }

    /// Counts an access to a page of the cache. What is saved covers half a capacity of debts.
    fn hit(&mut self, share: i64) {
        self.debt = (self.debt + share - ONE).max(-self.capacity / 2);
        self.avoidable += ONE - share;
    }

    /// Returns whether the learnt lists may evict a page that LRU has.
    ///
    /// Chosen: without the part that comes at first, recorded traces avoid 2.4 % of LRU's misses in
    /// a cache of 10 % of the footprint (8.9 %). Without a price of absent pages, a set that is
    /// replaced in order has up to 5.1 % more misses than LRU; with one of 0.3, recorded traces
    /// avoid 8.0 %.
    fn affords(&self, absent: i64) -> bool {
        let first = (self.avoidable / 2).min(self.capacity / 10);
        let credit = first + self.avoidable / 50;
        self.debt + absent * 3 / 20 <= credit
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
pub(super) struct Bounded {
    capacity: usize,
    cluster: usize,
    learnt: Learnt,
    /// Whether LRU's victims are evicted, as of the last arrival.
    is_lru: bool,
    /// Whether new pages fill the large queue, which LRU has left short.
    is_filling: bool,
    lists: Lists<2>,
    /// Accesses that no walk has found yet, by page.
    young: Vec<u8>,
    left: [usize; 2],
    left_at: Vec<Option<Left>>,
    arrivals: usize,
    epoch_end: usize,
    recency: Recency,
    bound: Bound,
    account: Account,
    /// The pages of a walk, last first, as far as it has not come yet.
    walk: Vec<u32>,
}

impl Bounded {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity,
            cluster: super::decided::cluster(capacity),
            learnt: Learnt::new(capacity),
            is_lru: true,
            is_filling: false,
            lists: Lists::new(footprint),
            young: vec![0; footprint],
            left: [0; 2],
            left_at: vec![None; footprint],
            arrivals: 0,
            epoch_end: 0,
            recency: Recency::new(capacity + 3 * capacity / 100, footprint),
            bound: Bound::default(),
            account: Account::new(capacity),
            walk: Vec::new(),
        }
    }

    fn nr_left(&self) -> usize {
        self.left.iter().sum()
    }

    fn is_changing(&self) -> bool {
        self.nr_left() < self.capacity || 3 * self.learnt.len >= 2 * self.capacity
    }

    /// Returns the arrivals of an epoch.
    fn epoch(&self) -> usize {
        (self.capacity / EPOCHS).max(1)
    }

    /// Returns the epochs that have passed since an access that is found now.
    ///
    /// Chosen: with a half, a set that is replaced in order has up to 2.6 % more misses than LRU;
    /// with a whole walk, two loops have up to 2.8 %.
    fn delay(&self) -> u32 {
        let arrivals = self.capacity / LOOKS * 3 / 4;
        u32::try_from(arrivals / self.epoch()).expect("a few epochs")
    }

    /// Collects a page's accesses; returns whether there were any.
    fn collect(&mut self, page: u32) -> bool {
        let young = std::mem::take(&mut self.young[page as usize]);
        if young > 0 {
            let share = self.bound.share_of(self.recency.of(page));
            self.account.hit(share);
            self.recency.touch(page, self.delay());
            let mark = self.lists.mark(page) + young;
            self.lists.set_mark(page, mark.min(MARK_MAX));
        }
        young > 0
    }

    /// Takes a walk's steps of one arrival.
    fn walk(&mut self) {
        for _ in 0..LOOKS.min(self.resident()) {
            if self.walk.is_empty() {
                self.walk = self.recency.in_order();
                self.walk.reverse();
            }
            let next = self.walk.pop();
            if let Some(page) = next.filter(|page| self.lists.list_of(*page).is_some()) {
                self.collect(page);
            }
        }
    }

    fn shrink(&mut self) {
        match self.account.affords(self.bound.absent) {
            true => self.shrink_learnt(),
            false => (0..self.cluster).for_each(|_| self.shrink_oldest()),
        }
    }

    /// Evicts the page with the oldest known access.
    fn shrink_oldest(&mut self) {
        // Terminates: each round takes a page's marks.
        while let Some(page) = self.recency.oldest() {
            if !self.collect(page) {
                let queue = self.lists.list_of(page).expect("it is in the cache");
                self.lists.remove(page);
                return self.leave(queue, page);
            }
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
                    self.leave(queue, page);
                    continue;
                }
                (SMALL, 1) => (SMALL, 0),
                (SMALL, _) => (MAIN, 0),
                (_, _) if self.is_changing() => (MAIN, 0),
                (_, mark) => (MAIN, mark - 1),
            };
            self.lists.set_mark(page, mark);
            self.lists.push(to, page);
        }
    }

    /// Records a page's departure.
    fn leave(&mut self, queue: usize, page: u32) {
        self.recency.leave(page);
        self.bound.absent += self.bound.share_of(self.recency.of(page));
        self.left[queue] += 1;
        let at = self.left[queue];
        self.left_at[page as usize] = Some(Left { queue, at });
    }

    /// Learns from a refault; returns the queue that the page enters.
    fn refault(&mut self, page: u32, left: Left) -> usize {
        let share = self.bound.share_of(self.recency.of(page));
        self.account.refault(share);
        let distance = self.left[left.queue] - left.at;
        if distance <= self.capacity / 8 + 1 {
            self.learnt.lengthen(left.queue, self.nr_left());
        }
        match left.queue {
            SMALL if distance <= self.capacity + self.capacity / 2 => MAIN,
            _ => SMALL,
        }
    }

    /// Counts an arrival, and takes the steps that are due.
    fn arrive(&mut self) {
        self.arrivals += 1;
        if self.arrivals >= self.epoch_end {
            self.epoch_end = self.arrivals + self.epoch();
            self.recency.advance();
        }
        self.walk();
        self.bound = self.recency.bound();
        let is_lru = !self.account.affords(self.bound.absent);
        if is_lru != self.is_lru {
            self.is_lru = is_lru;
            self.is_filling = !is_lru && 2 * self.lists.len(MAIN) < self.capacity;
        }
        self.is_filling &= self.lists.len(MAIN) < self.capacity - self.learnt.len;
    }

    /// Returns whether new pages fill both queues: before the first eviction.
    fn is_beginning(&self) -> bool {
        self.nr_left() == 0 && self.lists.len(SMALL) >= self.learnt.len
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
            None if self.is_beginning() => MAIN,
            None => SMALL,
        };
        let queue = if self.is_filling { MAIN } else { queue };
        self.recency.enter(page);
        self.young[page as usize] = 0;
        self.lists.set_mark(page, 0);
        self.lists.push(queue, page);
        false
    }

    fn resident(&self) -> usize {
        self.lists.len(SMALL) + self.lists.len(MAIN)
    }
}
