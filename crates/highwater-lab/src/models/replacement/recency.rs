//! When pages were accessed, by epochs, and which of them LRU would have.
//!
//! An epoch is a number of arrivals. Each page that was ever accessed, resident or not, counts in
//! the epoch of its last access that is known. LRU has the pages of the latest epochs that fill the
//! cache, and a share of the epoch in which it becomes full.

use std::collections::VecDeque;

/// Epochs that are counted apart. A page whose last access is older is one that LRU has not.
const KEPT: usize = 64;

/// The unit of a share.
pub(super) const ONE: i64 = 256;

/// An epoch, and the share of its pages that LRU has; it has all of later epochs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bound {
    epoch: u32,
    share: i64,
}

impl Bound {
    /// Returns the share of an epoch's pages that LRU has, in units of [`ONE`].
    pub(super) fn share_of(self, epoch: Option<u32>) -> i64 {
        match epoch {
            Some(epoch) if epoch > self.epoch => ONE,
            Some(epoch) if epoch == self.epoch => self.share,
            _ => 0,
        }
    }
}

#[derive(Debug)]
pub(super) struct Recency {
    capacity: i64,
    /// Pages by epoch, the present one last.
    counts: VecDeque<i64>,
    now: u32,
    /// Epochs of the last accesses, by page.
    of: Vec<Option<u32>>,
}

impl Recency {
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity: i64::try_from(capacity).expect("a count of pages"),
            counts: VecDeque::from([0]),
            now: 0,
            of: vec![None; footprint],
        }
    }

    /// Returns the epoch of a page's last access.
    pub(super) fn of(&self, page: u32) -> Option<u32> {
        self.of[page as usize]
    }

    /// Counts a page in the present epoch.
    pub(super) fn touch(&mut self, page: u32) {
        if let Some(epoch) = self.of[page as usize].replace(self.now) {
            self.count(epoch, -1);
        }
        self.count(self.now, 1);
    }

    fn count(&mut self, epoch: u32, change: i64) {
        let age = (self.now - epoch) as usize;
        if let Some(at) = self.counts.len().checked_sub(1 + age) {
            self.counts[at] += change;
        }
    }

    /// Begins an epoch.
    pub(super) fn advance(&mut self) {
        self.now += 1;
        self.counts.push_back(0);
        if self.counts.len() > KEPT {
            self.counts.pop_front();
        }
    }

    /// Returns where LRU's pages end.
    pub(super) fn bound(&self) -> Bound {
        let mut room = self.capacity;
        for (epoch, count) in (0..=self.now).rev().zip(self.counts.iter().rev()) {
            if *count >= room {
                let share = ONE * room / (*count).max(1);
                return Bound { epoch, share };
            }
            room -= count;
        }
        // LRU has every page that is counted.
        Bound {
            epoch: 0,
            share: ONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the bound is where LRU's pages end. Method: random accesses, compared with the order of
    // last accesses in a plain list.
    #[test]
    fn the_bound_is_where_lru_ends() {
        let (capacity, footprint) = (10, 30);
        let mut random = fastrand::Rng::with_seed(5);
        let mut recency = Recency::new(capacity, footprint);
        let mut latest: Vec<u32> = Vec::new();
        for time in 0..3000 {
            let page = random.u32(0..30).min(random.u32(0..30));
            latest.retain(|other| *other != page);
            latest.push(page);
            recency.touch(page);
            if time % 3 == 0 {
                recency.advance();
            }
            let bound = recency.bound();
            for (rank, page) in latest.iter().rev().enumerate() {
                let share = bound.share_of(recency.of(*page));
                assert!(share > 0 || rank >= capacity, "time {time}: LRU has {page}");
                assert!(
                    share < ONE || rank < capacity,
                    "time {time}: LRU lacks {page}"
                );
            }
        }
    }
}
