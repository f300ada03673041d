//! SIEVE on a sample, with the hand's distance from the head known by less than a sampled page.
//!
//! SIEVE's hand spends much of its time near the head: there it evicts pages so soon after they
//! came in that hardly any was accessed meanwhile, so it hardly comes nearer, and evicts new pages
//! for long (half of all evictions from a cache of 1 % of OLTP). A cache of a sample cannot tell:
//! its hand passes the newest sampled page, while up to as many pages as it stands for are still
//! before it, and begins at the tail. Such caches missed up to 4.5 points too few.
//!
//! So from then on the distance is an estimate, in pages of the trace. It begins with the pages
//! that came in after the newest sampled one, a geometrically distributed number. A sampled page
//! that comes in then is not put on the list; its next access tells whether it was in time, before
//! the hand came, or whether the page had been evicted. The hand comes nearer by a page for each
//! page that was accessed in time; how many are, at each distance, is counted on the sample. Once
//! no page is left before the hand, it begins at the tail.
//!
//! The caches of several sizes are simulated at once: most accesses hit many of them, for the cost
//! of one look at the page, whose state in each cache is a bit.
//!
//! Measured by the lab's `tests/curve_error.rs`. The estimate holds for samples of any size: with
//! 32 and 64 Ki pages, the errors of OLTP are 0.40 and 0.39 points. A distance that always began
//! with its mean had 0.57 and 0.80 points: of the larger sample, no other page is before the hand
//! in a third of the cases.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::ptr;

use super::reuse::{Class, NR_CLASSES, class_near};
use super::sample::{SAMPLES_OF_SIEVE, Sample, Samples};
use crate::models::Algorithm;

/// Caches that are simulated at once: one for each bit.
type Caches = u16;

/// Pages that their queues hold together, at most, but for pages that came in near the hand and
/// stayed. Chosen: of two parts at once, queues, tables of pages and buffers fit the mebibyte of a
/// curve.
const HELD_MAX: usize = 3 * SAMPLES_OF_SIEVE / 2;

/// What is taken for known of the accesses soon after a miss: as much as so many of them tell, at
/// each distance. Chosen: without, a distance at which the sample saw none is kept for ever.
const PRIOR: f64 = 4.0;

/// The first guess at the part of pages that are accessed in time, and the misses for which it
/// counts. A guess, outweighed after some dozens of misses.
const GUESS: f64 = 0.05;
const GUESS_MISSES: f64 = 20.0;

/// Where `n` less this many misses are expected, fewer than `n` happen in half the cases. Source:
/// the median of Poisson's distribution.
const BELOW_MEDIAN: f64 = 1.0 / 3.0;

/// The part of a turn by which successive draws differ: no two of many are close together.
const GOLDEN: f64 = 0.618_033_988_749_895;

/// Pages before the hand, at least: it evicts one, and the page that misses is another.
const NEAREST: f64 = 2.0;

/// Pages that came in near the hand, of which is known when. The hand is 32 sampled misses away in
/// one of 2^46 cases, so that what came in before is taken to be late.
const YOUNG_MAX: usize = 32;

/// Steps in which the hand moves between two sampled misses: it slows down as it comes nearer.
const STEPS: u32 = 4;

/// Splits increasing sizes into those whose caches are simulated at once.
pub(super) fn parts<'a>(samples: &Samples, mut sizes: &'a [u64]) -> Vec<&'a [u64]> {
    let mut parts = Vec::new();
    while let Some(first) = sizes.first() {
        let sample = samples.of(Algorithm::Sieve, *first);
        let mut held = 0;
        let fitting = sizes
            .iter()
            .take(Caches::BITS as usize)
            .take_while(|pages| {
                held += sample.capacity(**pages);
                held <= HELD_MAX && ptr::eq(samples.of(Algorithm::Sieve, **pages), sample)
            });
        let (part, rest) = sizes.split_at(fitting.count().max(1));
        parts.push(part);
        sizes = rest;
    }
    parts
}

/// Returns the pages of the queue of a cache: one of all pages evicts none, and needs no order.
fn queued(sample: &Sample, capacity: usize) -> usize {
    match capacity < sample.nr_pages() {
        true => capacity,
        false => 0,
    }
}

/// Returns the part of the trace's accesses that miss, for caches of each of `capacities` pages of
/// the sample.
pub(super) fn misses(sample: &Sample, capacities: &[usize]) -> io::Result<Vec<f64>> {
    let mut sieves = Sieves::new(sample, capacities);
    sample.for_each_class(|slot, class| sieves.access(slot, class, sample.weight(class)))?;
    let missed = sieves.caches.iter().map(|cache| cache.missed.min(1.0));
    Ok(missed.collect())
}

/// Caches of several sizes, that see the same accesses.
struct Sieves {
    /// By slot.
    pages: Vec<Page>,
    caches: Vec<Cache>,
    /// All of them.
    all: Caches,
    /// The part of the trace's accesses so far.
    accessed: f64,
}

/// A sampled page: the caches of which each is true.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    resident: Caches,
    /// Of those where it is resident: it was accessed since the hand passed. Of the others: it came
    /// in near the hand.
    marked: Caches,
    /// The last access missed.
    has_missed: Caches,
}

impl Sieves {
    fn new(sample: &Sample, capacities: &[usize]) -> Self {
        let cache = |capacity: &usize| Cache::new(sample, *capacity);
        Self {
            pages: vec![Page::default(); sample.nr_pages()],
            caches: capacities.iter().map(cache).collect(),
            all: Caches::MAX >> (Caches::BITS as usize - capacities.len()),
            accessed: 0.0,
        }
    }

    fn access(&mut self, slot: u16, class: Class, weight: f64) {
        self.accessed += weight;
        let page = self.pages[usize::from(slot)];
        for at in bits(page.has_missed) {
            self.caches[at].after_miss[usize::from(class)] += 1;
        }
        let (hit, young) = (page.resident, page.marked & !page.resident);
        let (mut in_time, mut near) = (0, 0);
        for at in bits(self.all & !hit) {
            let (cache, bit) = (&mut self.caches[at], 1 << at);
            cache.accessed = self.accessed;
            if young & bit != 0 && cache.is_in_time(slot, class) {
                in_time |= bit;
                cache.enter(slot);
            } else if cache.miss(&mut self.pages, slot, bit, weight) == Entry::NearHand {
                near |= bit;
            }
        }
        self.pages[usize::from(slot)] = Page {
            resident: self.all & !near,
            marked: hit | near,
            has_missed: self.all & !hit & !in_time,
        };
    }
}

/// Where a page came in that missed.
#[derive(PartialEq, Eq)]
enum Entry {
    AtHead,
    /// Its next access tells whether it stayed.
    NearHand,
}

fn bits(mut caches: Caches) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (caches != 0).then(|| caches.trailing_zeros() as usize);
        caches &= caches.wrapping_sub(1);
        lowest
    })
}

/// One cache.
struct Cache {
    capacity: usize,
    /// Its pages from the tail to the hand, a gap where pages were evicted, and the pages from the
    /// hand to the head. Empty in a cache of all pages.
    queue: Vec<u16>,
    nr_passed: usize,
    hand: usize,
    head: usize,
    /// Pages of the trace for each sampled one.
    interval: f64,
    /// Pages of the trace before the hand, if no sampled page is.
    near: Option<f64>,
    /// The last draw of a distance, as a part of all that it could have been.
    drawn: f64,
    /// The pages that came in near the hand last, each with the pages before the hand then.
    young: VecDeque<(u16, f64)>,
    /// Accesses to pages whose access before was a miss, by class.
    after_miss: [u32; NR_CLASSES],
    nr_missed: u32,
    /// Parts of the trace's accesses, up to the last that was no hit: all, and those that missed.
    accessed: f64,
    missed: f64,
}

impl Cache {
    fn new(sample: &Sample, capacity: usize) -> Self {
        Self {
            capacity,
            queue: vec![0; 2 * queued(sample, capacity)],
            nr_passed: 0,
            hand: 0,
            head: 0,
            interval: 1.0 / sample.rate(),
            near: None,
            drawn: 0.0,
            young: VecDeque::with_capacity(YOUNG_MAX),
            after_miss: [0; NR_CLASSES],
            nr_missed: 0,
            accessed: 0.0,
            missed: 0.0,
        }
    }

    /// Adds a page at the head.
    fn enter(&mut self, slot: u16) {
        if self.queue.is_empty() {
            return;
        }
        if self.head == self.queue.len() {
            self.close_gap();
        }
        self.queue[self.head] = slot;
        self.head += 1;
    }

    /// Makes room behind the head. Half of the queue's places are free, but for the pages that came
    /// in near the hand and stayed.
    #[cold]
    fn close_gap(&mut self) {
        self.queue.copy_within(self.hand..self.head, self.nr_passed);
        self.head -= self.hand - self.nr_passed;
        self.hand = self.nr_passed;
        if self.head == self.queue.len() {
            self.queue.resize(2 * self.head, 0);
        }
    }

    fn is_full(&self) -> bool {
        self.nr_passed + self.head - self.hand >= self.capacity
    }

    /// Moves the hand until it has evicted a page, or has passed the newest; returns whether it
    /// has. Then it begins at the tail.
    fn advance(&mut self, pages: &mut [Page], bit: Caches) -> bool {
        while self.hand < self.head {
            let slot = self.queue[self.hand];
            self.hand += 1;
            let page = &mut pages[usize::from(slot)];
            if page.marked & bit == 0 {
                page.resident &= !bit;
                break;
            }
            page.marked &= !bit;
            self.queue[self.nr_passed] = slot;
            self.nr_passed += 1;
        }
        let is_turn = self.hand == self.head;
        if is_turn {
            self.head = mem::take(&mut self.nr_passed);
            self.hand = 0;
        }
        is_turn
    }

    /// Adds a page that missed.
    fn miss(&mut self, pages: &mut [Page], slot: u16, bit: Caches, weight: f64) -> Entry {
        self.missed += weight;
        self.nr_missed += 1;
        if let Some(distance) = self.near {
            self.near = self.approached(distance);
        }
        while self.near.is_none() && self.is_full() {
            if self.advance(pages, bit) {
                self.near = self.draw_distance();
            }
        }
        let Some(distance) = self.near else {
            self.enter(slot);
            return Entry::AtHead;
        };
        if self.young.len() == YOUNG_MAX {
            self.young.pop_front();
        }
        self.young.push_back((slot, distance));
        Entry::NearHand
    }

    /// Returns whether a page that came in near the hand is accessed before the hand came.
    fn is_in_time(&self, slot: u16, class: Class) -> bool {
        let young = self.young.iter().rev().find(|(it, _)| *it == slot);
        young.is_some_and(|(_, distance)| class <= self.last_in_time(*distance))
    }

    /// Returns the class of the longest time after which the hand, at a distance in pages, has
    /// probably not come: each miss moves it by one.
    fn last_in_time(&self, distance: f64) -> Class {
        let miss_ratio = self.missed / self.accessed;
        class_near(1.0 + (distance - BELOW_MEDIAN) / miss_ratio)
    }

    /// Draws the pages before the hand when it has passed the newest sampled page.
    fn draw_distance(&mut self) -> Option<f64> {
        self.drawn = (self.drawn + GOLDEN).fract();
        // None, of a sample of every page.
        let others = 1.0 - 1.0 / self.interval;
        let distance = 1.0 + (1.0 - self.drawn).log(others).floor();
        (distance >= NEAREST).then_some(distance)
    }

    /// Returns the distance after as many misses as there are between two sampled ones; `None` if
    /// no page is left before the hand.
    fn approached(&self, mut distance: f64) -> Option<f64> {
        let nr_missed = f64::from(self.nr_missed);
        let of_interval =
            (self.nr_in_time(self.interval) + GUESS * GUESS_MISSES) / (nr_missed + GUESS_MISSES);
        for _ in 0..STEPS {
            let behind = distance.floor();
            // As far as the sample does not tell, it is proportional to their number.
            let proportional = of_interval * behind / self.interval;
            let in_time = (self.nr_in_time(behind) + PRIOR) / (nr_missed + PRIOR / proportional);
            distance -= in_time * self.interval / f64::from(STEPS);
            if distance < NEAREST {
                return None;
            }
        }
        Some(distance)
    }

    /// Returns the number of pages that were accessed again within so many misses after their own.
    fn nr_in_time(&self, nr_misses: f64) -> f64 {
        let last = self.last_in_time(nr_misses);
        let counts = self.after_miss.iter().take(usize::from(last) + 1);
        f64::from(counts.sum::<u32>())
    }
}
