//! The order of accesses beside a plain list of them, walks, and the account.

use super::*;

/// Pages in and out of memory, each in a frame of its own number, and the plain list of their
/// accesses.
struct Model {
    places: Places,
    recency: Recency,
    stamps: Vec<Option<Stamp>>,
    cached: Vec<u32>,
    /// The latest last.
    accesses: Vec<u32>,
    /// The time: marked accesses.
    now: u32,
}

impl Model {
    fn new(pages: u32) -> Self {
        Self {
            places: Places::new(Pages(u64::from(pages))),
            recency: Recency::default(),
            stamps: vec![None; pages as usize],
            cached: Vec::new(),
            accesses: Vec::new(),
            now: 0,
        }
    }

    fn access(&mut self, page: u32) {
        self.accesses.retain(|other| *other != page);
        self.accesses.push(page);
        if self.cached.contains(&page) {
            // Known at once, as if a walk had just come to it.
            self.now += 1;
            self.recency.catch_up(self.now);
            return self.recency.touch(&self.places, Pfn(page), self.now);
        }
        if let Some(stamp) = self.stamps[page as usize].take() {
            self.places.note_known(Pfn(page), stamp, 0, 1);
        }
        self.recency.enter(&self.places, Pfn(page), self.now);
        self.cached.push(page);
    }

    fn evict(&mut self, nth: usize) {
        let page = self.cached.swap_remove(nth);
        self.stamps[page as usize] = Some(self.recency.leave(&self.places, Pfn(page)));
    }

    /// Returns the epoch of a page's last known access.
    fn stamp(&self, page: u32) -> Option<Stamp> {
        match self.places.has(Pfn(page)) {
            true => Some(self.places.stamp(Pfn(page))),
            false => self.stamps[page as usize],
        }
    }

    /// Returns the share of a page's epoch that LRU has.
    fn share(&self, page: u32) -> i64 {
        let stamp = self.stamp(page);
        stamp.map_or(0, |stamp| self.recency.epochs.share(stamp))
    }
}

#[test]
fn the_bound_is_where_lru_ends() {
    // Goal: the bound is where LRU's pages end, pages that only LRU has are counted, and the
    // order is that of the stamps. Method: random accesses, known at
    // once, and evictions, beside the plain list of last accesses.
    let mut rng = crate::seed::rng(31);
    for capacity in [10, 100] {
        let mut model = Model::new(3 * capacity);
        // Before the number of an epoch returns.
        for time in 0..2000 {
            let page = rng.u32(0..3 * capacity).min(rng.u32(0..3 * capacity));
            model.access(page);
            if model.cached.len() > capacity as usize {
                model.evict(rng.usize(0..model.cached.len()));
            }
            model.recency.victims();
            let lru = model.recency.capacity();
            let mut absent = [0; 2];
            for (rank, page) in (0..).zip(model.accesses.iter().rev()) {
                let share = model.share(*page);
                assert!(share > 0 || rank >= lru, "time {time}: LRU has {page}");
                assert!(share < ONE || rank < lru, "time {time}: LRU lacks {page}");
                if !model.cached.contains(page) {
                    absent[0] += share / ONE * ONE;
                    absent[1] += if share > 0 { ONE } else { 0 };
                }
            }
            let [least, most] = absent;
            assert!(
                (least..=most).contains(&model.recency.epochs.absent()),
                "time {time}: {} is not in {least} to {most}",
                model.recency.epochs.absent()
            );
            let listed = model.recency.check(&model.places);
            assert_eq!(listed, model.cached.len() as u64);
            let stamps = model.recency.oldest_first(&model.places);
            let stamps = stamps.filter_map(|pfn| model.stamp(pfn.0));
            let ages: Vec<u16> = stamps.map(|it| model.recency.epochs.age(it)).collect();
            assert!(ages.is_sorted_by(|older, newer| older >= newer), "{ages:?}");
        }
    }
}

#[test]
fn a_walk_comes_to_every_page() {
    // Goal: a walk begins at the oldest page, comes to each page once, passes over those that
    // leave, and takes a sixteenth of the arrivals that fill the memory. Method: one walk beside
    // arrivals and evictions; the pages that were there all the while are found once.
    let capacity = 1600;
    let mut model = Model::new(4 * capacity);
    (0..capacity).for_each(|page| model.access(page));
    model.recency.nr_due = 0;
    let mut found = Vec::new();
    for page in 0..capacity / 16 {
        model.access(capacity + page);
        // The oldest, before the walk comes to it, or after.
        let at = model.cached.iter().position(|it| *it == 2 * page + 1);
        model.evict(at.expect("not evicted yet"));
        model.recency.walk(&model.places, 0, u64::MAX, &mut found);
    }
    assert_eq!(found.len(), capacity as usize);
    let is_old = |page: &u32| *page < capacity;
    let mut stayed: Vec<u32> = model.cached.iter().copied().filter(is_old).collect();
    stayed.sort_unstable();
    let old = found.iter().map(|pfn| pfn.0).filter(is_old);
    let walked: Vec<u32> = old.filter(|page| stayed.contains(page)).collect();
    assert_eq!(walked, stayed, "each once, in order");
}

#[test]
fn accesses_that_are_found_late_come_in_the_order_of_their_times() {
    // Goal: the order is that of the accesses, not that in which a walk finds them. Method: pages
    // come in in order, are read backwards while none comes in, and found by the next walk.
    let capacity = 1000;
    let mut model = Model::new(2 * capacity);
    (0..capacity).for_each(|page| model.access(page));
    model.recency.nr_due = 0;
    model.now = 3 * capacity;
    for page in capacity..capacity + capacity.div_ceil(16) {
        model.access(page);
        let mut found = Vec::new();
        let walked = &mut model.recency;
        walked.walk(&model.places, model.now, u64::MAX, &mut found);
        for pfn in found.iter().filter(|pfn| pfn.0 < capacity) {
            let time = 2 * capacity - pfn.0;
            walked.touch(&model.places, *pfn, time);
        }
    }
    let order = model.recency.oldest_first(&model.places);
    let read: Vec<u32> = order.map(|pfn| pfn.0).filter(|it| *it < capacity).collect();
    assert!(read.is_sorted_by(|older, newer| older > newer), "{read:?}");
    model.recency.check(&model.places);
}

#[test]
fn debts_turn_eviction_to_lru() {
    // Goal: refaults of pages that LRU has lead to LRU's victims, and further accesses to pages
    // that LRU has not lead back. Method: pages are evicted and read again at once; then others
    // are read again after LRU would have evicted them.
    let capacity = 100;
    let mut model = Model::new(10 * capacity);
    (0..capacity).for_each(|page| model.access(page));
    assert_eq!(model.recency.victims(), EvictedBy::Policy);
    for _ in 0..5 {
        model.evict(model.cached.len() - 1);
        let page = *model.accesses.last().expect("accessed");
        model.access(page);
    }
    assert_eq!(model.recency.victims(), EvictedBy::Lru);
    // The first pages stay, all others leave as they come.
    for page in capacity..10 * capacity {
        model.access(page);
        model.evict(model.cached.len() - 1);
    }
    (0..capacity / 2).for_each(|page| model.access(page));
    assert_eq!(model.recency.victims(), EvictedBy::Policy);
}
