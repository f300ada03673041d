//! When pages were last accessed, by epochs, and which of them LRU would have.
//!
//! An epoch is a number of arrivals. Each page that was ever accessed, in the cache or not, counts
//! in the epoch of its last access that is known. LRU has the pages of the latest epochs that fill
//! the cache, and a share of the epoch in which it becomes full. Pages in the cache are on one list
//! for each epoch, in the order in which they entered it: the oldest of them is the one that LRU
//! would evict next.

use super::lists::Lists;

/// Epochs that are counted apart, twice as many as a capacity of arrivals has. A page that was not
/// accessed for longer is one that LRU has not.
const KEPT: usize = 128;
const KEPT_EPOCHS: u32 = 128;

/// The unit of a share.
pub(super) const ONE: i64 = 256;

/// What LRU would have: a share of one epoch's pages, and all of later ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bound {
    epoch: u32,
    share: i64,
    /// Pages that LRU would have and the cache has not, in units of [`ONE`].
    pub(super) absent: i64,
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
    now: u32,
    /// Pages by epoch, and those of them that are not in the cache. An epoch's place is its number
    /// modulo [`KEPT`].
    counts: [i64; KEPT],
    absent: [i64; KEPT],
    /// Pages in the cache, by epoch.
    order: Lists<KEPT>,
    /// Epochs of the last known accesses, by page.
    of: Vec<Option<u32>>,
}

impl Recency {
    /// Creates an account of an LRU of that many pages.
    pub(super) fn new(capacity: usize, footprint: usize) -> Self {
        Self {
            capacity: i64::try_from(capacity).expect("a count of pages"),
            now: KEPT_EPOCHS,
            counts: [0; KEPT],
            absent: [0; KEPT],
            order: Lists::new(footprint),
            of: vec![None; footprint],
        }
    }

    /// Returns the epoch of a page's last known access.
    pub(super) fn of(&self, page: u32) -> Option<u32> {
        self.of[page as usize]
    }

    /// Returns an epoch's place, if it is counted still.
    fn place(&self, epoch: u32) -> Option<usize> {
        (self.now - epoch < KEPT_EPOCHS).then_some(epoch as usize % KEPT)
    }

    /// Returns the place of a page's epoch, if it is counted still.
    fn place_of(&self, page: u32) -> Option<usize> {
        self.of(page).and_then(|epoch| self.place(epoch))
    }

    /// Counts a page that comes in, in the present epoch.
    pub(super) fn enter(&mut self, page: u32) {
        if let Some(place) = self.place_of(page) {
            self.absent[place] -= 1;
        }
        self.move_to(page, self.now);
    }

    /// Counts a page of the cache that was accessed `delay` epochs ago, or later.
    pub(super) fn touch(&mut self, page: u32, delay: u32) {
        let known = self.of(page).expect("it came in");
        self.order.remove(page);
        self.move_to(page, known.max(self.now - delay));
    }

    fn move_to(&mut self, page: u32, epoch: u32) {
        if let Some(place) = self.place_of(page) {
            self.counts[place] -= 1;
        }
        self.of[page as usize] = Some(epoch);
        self.counts[epoch as usize % KEPT] += 1;
        self.order.push(epoch as usize % KEPT, page);
    }

    /// Counts a page of the cache as absent.
    pub(super) fn leave(&mut self, page: u32) {
        self.order.remove(page);
        let place = self.place_of(page).expect("pages of the cache are counted");
        self.absent[place] += 1;
    }

    /// Begins an epoch.
    pub(super) fn advance(&mut self) {
        self.now += 1;
        let place = self.now as usize % KEPT;
        (self.counts[place], self.absent[place]) = (0, 0);
        // Pages of the cache that are older than all epochs belong to the oldest.
        let oldest = self.now + 1 - KEPT_EPOCHS;
        while let Some(page) = self.order.pop(place) {
            self.of[page as usize] = None;
            self.move_to(page, oldest);
        }
    }

    fn epochs(&self) -> impl DoubleEndedIterator<Item = (u32, usize)> + use<> {
        (self.now + 1 - KEPT_EPOCHS..=self.now).map(|epoch| (epoch, epoch as usize % KEPT))
    }

    /// Returns the page of the cache whose last known access is the oldest.
    pub(super) fn oldest(&self) -> Option<u32> {
        self.epochs().find_map(|(_, place)| self.order.tail(place))
    }

    /// Returns the pages of the cache, that with the oldest last known access first.
    pub(super) fn in_order(&self) -> Vec<u32> {
        let mut pages = Vec::new();
        for (_, place) in self.epochs() {
            let newer = |page: &u32| self.order.newer(*page);
            pages.extend(std::iter::successors(self.order.tail(place), newer));
        }
        pages
    }

    /// Returns where LRU's pages end.
    pub(super) fn bound(&self) -> Bound {
        let (mut room, mut absent) = (self.capacity, 0);
        for (epoch, place) in self.epochs().rev() {
            let count = self.counts[place];
            if count >= room {
                let share = ONE * room / count.max(1);
                let absent = ONE * absent + share * self.absent[place];
                return Bound {
                    epoch,
                    share,
                    absent,
                };
            }
            room -= count;
            absent += self.absent[place];
        }
        // LRU has every page that is counted.
        Bound {
            epoch: 0,
            share: ONE,
            absent: ONE * absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Goal: the bound is where LRU's pages end, the pages that only LRU has are counted, and the
    // oldest page of the cache is found. Method: random accesses and evictions, compared with the
    // order of last accesses in a plain list.
    #[test]
    fn the_bound_is_where_lru_ends() {
        let (capacity, footprint) = (10, 30);
        let mut random = fastrand::Rng::with_seed(5);
        let mut recency = Recency::new(capacity, footprint);
        let mut latest: Vec<u32> = Vec::new();
        let mut cached: Vec<u32> = Vec::new();
        for time in 0..3000 {
            let page = random.u32(0..30).min(random.u32(0..30));
            latest.retain(|other| *other != page);
            latest.push(page);
            if cached.contains(&page) {
                recency.touch(page, 0);
            } else {
                recency.enter(page);
                cached.push(page);
            }
            if cached.len() > capacity {
                let left = cached.swap_remove(random.usize(0..cached.len()));
                recency.leave(left);
            }
            if time % 3 == 0 {
                recency.advance();
            }
            let bound = recency.bound();
            let mut absent = [0; 2];
            for (rank, page) in latest.iter().rev().enumerate() {
                let share = bound.share_of(recency.of(*page));
                assert!(share > 0 || rank >= capacity, "time {time}: LRU has {page}");
                assert!(
                    share < ONE || rank < capacity,
                    "time {time}: LRU lacks {page}"
                );
                if !cached.contains(page) {
                    absent[0] += share / ONE * ONE;
                    absent[1] += if share > 0 { ONE } else { 0 };
                }
            }
            let [least, most] = absent;
            assert!(
                (least..=most).contains(&bound.absent),
                "time {time}: {} is not in {least} to {most}",
                bound.absent
            );
            let oldest = recency.oldest().and_then(|page| recency.of(page));
            let epochs = cached.iter().map(|page| recency.of(*page));
            assert_eq!(oldest, epochs.min().flatten(), "time {time}");
            assert_eq!(recency.in_order().len(), cached.len());
        }
    }
}
