//! Tests of the models against plain ones, over small random traces.

use std::collections::VecDeque;

use super::*;

/// Draws pages `0 .. footprint`, low ones more often, with some runs, which act as scans.
fn random_trace(seed: u64, footprint: u64, accesses: usize) -> AccessTrace {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut pages = Vec::new();
    while pages.len() < accesses {
        let first = random.u64(0..footprint).min(random.u64(0..footprint));
        let run = if random.u8(0..20) == 0 {
            random.u64(1..footprint)
        } else {
            1
        };
        pages.extend((first..first + run).map(|page| page % footprint));
    }
    pages.truncate(accesses);
    pages.into_iter().collect()
}

/// Runs `check` on some traces and capacities.
fn on_traces(check: impl Fn(&AccessTrace, usize)) {
    for seed in 0..6 {
        let trace = random_trace(seed, 60, 3000);
        for capacity in [1, 2, 3, 7, 10, 25, 40, 59, 60, 100] {
            check(&trace, capacity);
        }
    }
}

fn misses_of(trace: &AccessTrace, mut is_hit: impl FnMut(u32) -> bool) -> u64 {
    let pages = trace.pages().iter();
    pages.map(|page| u64::from(!is_hit(*page))).sum()
}

// Goal: pages keep their identity. Method: pages of any number, compared after translation.
#[test]
fn pages_are_numbered_in_order_of_appearance() {
    let trace: AccessTrace = [900, 7, 900, 1 << 40, 7].into_iter().collect();
    assert_eq!(trace.pages(), [0, 1, 0, 2, 1]);
    assert_eq!(trace.footprint(), 3);
    assert_eq!(
        [0.1, 0.34, 1.0].map(|share| trace.capacity(share)),
        [1, 1, 3]
    );
}

// Goal: LRU on dense pages equals the LRU that the replay is compared with.
#[test]
fn lru_is_lru() {
    on_traces(|trace, capacity| {
        let mut other = super::super::Lru::new(capacity);
        let expected = misses_of(trace, |page| other.access(u64::from(page)));
        assert_eq!(Algorithm::Lru.misses(trace, capacity), expected);
    });
}

// Goal: FIFO evicts in order of arrival. Method: a plain queue.
#[test]
fn fifo_evicts_in_order_of_arrival() {
    on_traces(|trace, capacity| {
        let mut queue = VecDeque::new();
        let expected = misses_of(trace, |page| {
            let is_hit = queue.contains(&page);
            if !is_hit {
                queue.push_back(page);
                if queue.len() > capacity {
                    queue.pop_front();
                }
            }
            is_hit
        });
        assert_eq!(Algorithm::Fifo.misses(trace, capacity), expected);
    });
}

// Goal: the queue with reinsertion is CLOCK. Method: a ring of frames and a hand that stands at the
// oldest.
#[test]
fn clock_is_a_ring_with_a_hand() {
    on_traces(|trace, capacity| {
        let mut ring: Vec<(u32, bool)> = Vec::new();
        let mut hand = 0;
        let expected = misses_of(trace, |page| {
            if let Some(frame) = ring.iter_mut().find(|frame| frame.0 == page) {
                frame.1 = true;
                return true;
            }
            if ring.len() < capacity {
                ring.push((page, false));
                return false;
            }
            while std::mem::take(&mut ring[hand].1) {
                hand = (hand + 1) % capacity;
            }
            ring[hand] = (page, false);
            hand = (hand + 1) % capacity;
            false
        });
        assert_eq!(Algorithm::Clock.misses(trace, capacity), expected);
    });
}

// Goal: SIEVE's survivors stay in place. Method: a plain array, newest last, and a hand that is an
// index.
#[test]
fn sieve_is_an_array_with_a_hand() {
    on_traces(|trace, capacity| {
        let mut pages: Vec<(u32, bool)> = Vec::new();
        let mut hand = 0;
        let expected = misses_of(trace, |page| {
            if let Some(known) = pages.iter_mut().find(|known| known.0 == page) {
                known.1 = true;
                return true;
            }
            if pages.len() == capacity {
                while std::mem::take(&mut pages[hand % capacity].1) {
                    hand = hand % capacity + 1;
                }
                hand %= capacity;
                pages.remove(hand);
            }
            pages.push((page, false));
            // At the end of the list the hand restarts at the oldest page, not at the one that has
            // just entered.
            if hand == capacity - 1 {
                hand = 0;
            }
            false
        });
        assert_eq!(Algorithm::Sieve.misses(trace, capacity), expected);
    });
}

/// S3-FIFO from plain queues of pages and their marks.
#[derive(Default)]
struct PlainS3Fifo {
    small: VecDeque<(u32, u8)>,
    main: VecDeque<(u32, u8)>,
    ghosts: VecDeque<u32>,
    is_warm: bool,
}

impl PlainS3Fifo {
    fn access(&mut self, page: u32, capacity: usize) -> bool {
        let mut resident = self.small.iter_mut().chain(&mut self.main);
        if let Some((_, mark)) = resident.find(|known| known.0 == page) {
            *mark = (*mark + 1).min(3);
            return true;
        }
        let ghost = self.ghosts.iter().position(|known| *known == page);
        ghost.map(|at| self.ghosts.remove(at));
        let small_max = (capacity / 10).max(1);
        while self.small.len() + self.main.len() == capacity {
            self.evict(capacity, small_max);
        }
        if ghost.is_some() || (!self.is_warm && self.small.len() >= small_max) {
            self.main.push_back((page, 0));
        } else {
            self.small.push_back((page, 0));
        }
        false
    }

    fn evict(&mut self, capacity: usize, small_max: usize) {
        self.is_warm = true;
        if self.main.len() > capacity - small_max || self.small.is_empty() {
            if let Some((page, mark)) = self.main.pop_front()
                && mark > 0
            {
                self.main.push_back((page, mark - 1));
            }
            return;
        }
        while let Some((page, mark)) = self.small.pop_front() {
            if mark < 2 {
                self.ghosts.push_back(page);
                break;
            }
            self.main.push_back((page, 0));
        }
        while self.ghosts.len() > capacity * 9 / 10 {
            self.ghosts.pop_front();
        }
    }
}

// Goal: S3-FIFO as described. Method: three plain queues.
#[test]
fn s3_fifo_is_three_queues() {
    on_traces(|trace, capacity| {
        let mut plain = PlainS3Fifo::default();
        let expected = misses_of(trace, |page| plain.access(page, capacity));
        assert_eq!(
            Algorithm::S3Fifo.misses(trace, capacity),
            expected,
            "capacity {capacity}"
        );
    });
}

// Goal: Belady's MIN evicts the page with the furthest next access. Method: look into the future at
// each eviction.
#[test]
fn belady_evicts_what_is_needed_last() {
    on_traces(|trace, capacity| {
        let mut resident: Vec<u32> = Vec::new();
        let mut now = 0;
        let expected = misses_of(trace, |page| {
            now += 1;
            if resident.contains(&page) {
                return true;
            }
            if resident.len() == capacity {
                let future = &trace.pages()[now..];
                let next = |page: &u32| future.iter().position(|other| other == page);
                let due = |page: &u32| next(page).unwrap_or(usize::MAX);
                let last = (0..capacity).max_by_key(|at| due(&resident[*at])).unwrap();
                resident.swap_remove(last);
            }
            resident.push(page);
            false
        });
        assert_eq!(Algorithm::Belady.misses(trace, capacity), expected);
    });
}

// Goal: 2Q keeps a page only if it is accessed again after it left the queue of new pages. Method:
// by hand; of 8 pages, 2 in the queue, 4 ghosts.
#[test]
fn two_q_keeps_what_comes_back() {
    let mut cache = two_q::TwoQ::new(8, 100);
    for page in 0..8 {
        assert!(!cache.access(page));
    }
    // A hit in the queue changes nothing: page 0 is evicted all the same.
    assert!(cache.access(0));
    assert!(!cache.access(8));
    assert!(!cache.access(0), "left, and remembered");
    for page in 20..60 {
        cache.access(page);
    }
    assert!(cache.access(0), "a scan does not reach it");
}

// Goal: ARC and CAR keep pages that were seen again while others are scanned, and can give all room
// to either side.
#[test]
fn adaptive_ones_withstand_a_scan() {
    let caches: [Box<dyn Replacement>; 2] = [
        Box::new(arc::Arc::new(10, 2000)),
        Box::new(car::Car::new(10, 2000)),
    ];
    for mut cache in caches {
        for page in [0, 1, 2, 0, 1, 2] {
            cache.access(page);
        }
        for page in 100..1000 {
            assert!(!cache.access(page));
        }
        for page in [0, 1, 2] {
            assert!(cache.access(page), "page {page}");
        }
        // A new loop that fits takes over.
        for _ in 0..20 {
            for page in 1000..1009 {
                cache.access(page);
            }
        }
        assert!((1000..1009).all(|page| cache.access(page)));
    }
}

// Goal: the small queue of the default grows if pages refault just after they left it, and shrinks
// if pages refault that left the large one.
#[test]
fn balanced_queues_find_their_lengths() {
    // Each page is accessed twice, the second time after 12 others: a queue of 10 is slightly too
    // short for that.
    let strides = (0..3000).flat_map(|n: u64| [n + 12, n]);
    let trace: AccessTrace = strides.collect();
    let least = trace.footprint() as u64;
    let balanced = Algorithm::Balanced.misses(&trace, 100);
    let fixed = Algorithm::S3Fifo.misses(&trace, 100);
    assert!(
        balanced < least + least / 10 && fixed > 2 * least - least / 10,
        "{balanced} misses of {least} pages, with a queue of fixed length {fixed}"
    );
}

// Goal: common invariants: a cache never exceeds its capacity, the page accessed last is resident,
// and Belady's MIN misses least.
#[test]
fn caches_hold_what_they_may() {
    fn check(mut cache: impl Replacement, trace: &AccessTrace, capacity: usize) {
        let mut seen = 0;
        for (time, &page) in trace.pages().iter().enumerate() {
            let is_hit = cache.access(page);
            seen += usize::from(!trace.pages()[..time].contains(&page));
            assert!(cache.resident() <= capacity.min(seen));
            assert!(is_hit || cache.resident() > 0);
        }
    }
    let trace = random_trace(11, 60, 1000);
    for capacity in [1, 2, 9, 30] {
        let pages = trace.footprint();
        check(lru::Lru::new(capacity, pages), &trace, capacity);
        check(clock::Clock::new(capacity, pages), &trace, capacity);
        check(sieve::Sieve::new(capacity, pages), &trace, capacity);
        check(s3_fifo::S3Fifo::new(capacity, pages), &trace, capacity);
        check(two_q::TwoQ::new(capacity, pages), &trace, capacity);
        check(arc::Arc::new(capacity, pages), &trace, capacity);
        check(car::Car::new(capacity, pages), &trace, capacity);
        check(Decided::new(Balanced, capacity, pages), &trace, capacity);
        let least = Algorithm::Belady.misses(&trace, capacity);
        for algorithm in Algorithm::ALL {
            assert!(algorithm.misses(&trace, capacity) >= least, "{algorithm:?}");
        }
    }
}
