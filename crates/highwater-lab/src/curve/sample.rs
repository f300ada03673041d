//! Spatial samples of a trace: some of its pages, and every access to them.
//!
//! A page is sampled if its value, `page * GOLDEN + offset` modulo 2^64, is at most a bound. When
//! more than [`SAMPLES_OF_SIEVE`] pages are, the bound is lowered by a small part, and pages above
//! it leave. So the sample is at any time the whole of a fixed share of all pages, its *rate*, and
//! holds each access to each of its pages. Accesses of pages that left are dropped at the end
//! ([`Sampler::finish`]), so that one rate holds for the whole trace.
//!
//! Then there are two samples: the [`SAMPLES_MAX`] pages with the smallest values, and all, for
//! SIEVE, whose curves need more.
//!
//! A multiple of the golden ratio is not random: of adjacent pages, it takes nearly equal shares in
//! each range of them (the three-gap theorem), where a random choice would take more of one scan
//! and less of the next. Keys that are hashes are sampled as by any hash. Numbers that are all a
//! large Fibonacci number apart are not evenly spread, and their share is overestimated.
//!
//! Invariants: `slots` holds the sampled pages, [`SAMPLES_OF_SIEVE`] at most, all with values up to
//! `bound`; `reuse` has classified every access of the trace, sampled or not.
//!
//! Source: Waldspurger and others, "Efficient MRC Construction with SHARDS", FAST 2015 (a fixed
//! size). Deviations: the multiple of the golden ratio; pages leave in groups, not one by one; all
//! accesses are of one rate, not rescaled.

use std::io;
use std::path::Path;

use hashbrown::HashTable;

use super::config::{Sizes, ladder};
use super::reuse::{Class, Counts, ReuseTimes, Weights};
use super::stream::Stream;
use crate::models::Algorithm;
use crate::report::text::to_f64;

/// Pages of a sample.
pub const SAMPLES_MAX: usize = 8192;

/// Pages of SIEVE's. Chosen: on P6, whose exact curve jumps from size to size, SIEVE's error is
/// 0.67, 0.56, 0.41 and 0.37 points of the miss ratio with 8, 16, 24 and 32 Ki pages (16 seeds), if
/// it is used for every size.
pub const SAMPLES_OF_SIEVE: usize = 3 * SAMPLES_MAX;

/// The part of the pages from which on a cache of SIEVE is simulated with its own sample. Chosen:
/// smaller caches miss most and would take half of the time, for 0.04 points (the mean of five
/// recorded traces at 1 to 3 %).
const LARGE_FROM: u64 = 32;

/// Pages of the smallest cache that a sample simulates, unless it has every page. Chosen: one more
/// or less is 1.6 % of its size; the smallest of a ladder has 82.
const LEAST_CAPACITY: f64 = 64.0;

/// The bound is lowered by this part. Chosen: a sample lacks 6 % of its pages at most, and one
/// of P6, 101,903 pages, takes 2 % less time than with 32.
const LOWERED: u64 = 16;

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The class of an entry of the stream that is no access: another page takes the slot over.
const TAKEN_OVER: Class = Class::MAX;

/// Samples a trace while it is read.
#[derive(Debug)]
pub(super) struct Sampler {
    offset: u64,
    /// The largest value that is sampled.
    bound: u64,
    /// Slots by value, which names the page: the multiplier is odd.
    slots: HashTable<u16>,
    /// By slot.
    values: Vec<u64>,
    /// Slots whose page has left.
    free: Vec<u16>,
    stream: Stream,
    reuse: ReuseTimes,
    accesses: u64,
}

impl Sampler {
    /// Creates an empty sample. `seed` selects the pages; accesses that do not fit memory go to an
    /// unlinked file in `dir`.
    pub(super) fn new(seed: u64, dir: &Path) -> Self {
        Self {
            offset: fastrand::Rng::with_seed(seed).u64(..),
            bound: u64::MAX,
            // As many as it may need: a table that grows is there twice for a while.
            slots: HashTable::with_capacity(SAMPLES_OF_SIEVE),
            values: Vec::with_capacity(SAMPLES_OF_SIEVE),
            free: Vec::new(),
            stream: Stream::new(dir),
            reuse: ReuseTimes::new(),
            accesses: 0,
        }
    }

    /// Counts an access of the trace.
    ///
    /// # Cost
    ///
    /// A multiplication, a look into a table of half a mebibyte, and a comparison, for pages that
    /// are not sampled.
    ///
    /// # Errors
    ///
    /// When the temporary file cannot be made or written.
    #[inline]
    pub(super) fn access(&mut self, page: u64) -> io::Result<()> {
        self.accesses += 1;
        let value = page.wrapping_mul(GOLDEN).wrapping_add(self.offset);
        let class = self.reuse.access(value);
        match value <= self.bound {
            true => self.take(value, class),
            false => Ok(()),
        }
    }

    fn take(&mut self, value: u64, class: Class) -> io::Result<()> {
        let is_it = |slot: &u16| self.values[usize::from(*slot)] == value;
        let slot = match self.slots.find(hash(value), is_it) {
            Some(slot) => *slot,
            None => match self.enter(value)? {
                Some(slot) => slot,
                None => return Ok(()),
            },
        };
        self.stream.push(slot, class)
    }

    /// Adds a page, for which others may leave; `None` if it is one of these.
    fn enter(&mut self, value: u64) -> io::Result<Option<u16>> {
        while self.slots.len() == SAMPLES_OF_SIEVE {
            self.lower_bound();
        }
        if value > self.bound {
            return Ok(None);
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                self.stream.push(slot, TAKEN_OVER)?;
                self.values[usize::from(slot)] = value;
                slot
            }
            None => {
                self.values.push(value);
                u16::try_from(self.values.len() - 1).expect("at most 2^16 pages")
            }
        };
        insert(&mut self.slots, &self.values, slot);
        Ok(Some(slot))
    }

    /// Lowers the bound; pages above it leave. The table is filled anew: after as many removals, it
    /// would grow.
    fn lower_bound(&mut self) {
        let before = self.bound;
        self.bound -= self.step();
        self.slots.clear();
        for (slot, value) in self.values.iter().enumerate() {
            let number = u16::try_from(slot).expect("at most 2^16 pages");
            if *value <= self.bound {
                insert(&mut self.slots, &self.values, number);
            } else if *value <= before {
                self.free.push(number);
            }
        }
    }

    /// Returns by how much the bound is lowered: less where the values are so close together that
    /// more than a quarter of the pages would leave.
    fn step(&self) -> u64 {
        let mut step = self.bound / LOWERED;
        let stay = |bound: u64| self.values.iter().filter(|value| **value <= bound).count();
        while stay(self.bound - step) < SAMPLES_OF_SIEVE / 4 * 3 {
            step /= 2;
        }
        step
    }

    /// Ends the trace: keeps the accesses of the pages that stayed.
    ///
    /// # Errors
    ///
    /// When the temporary file cannot be read or written.
    pub(super) fn finish(self) -> io::Result<Samples> {
        let Self {
            bound,
            slots,
            values,
            stream,
            reuse,
            accesses,
            ..
        } = self;
        let counts = *reuse.counts();
        drop((slots, reuse));
        let small = bound_of_smallest(&values, bound);
        let mut smallest = Kept::new(&values, small, &stream);
        let mut all = (small < bound).then(|| Kept::new(&values, bound, &stream));
        // By slot, the pages that leave it; the last has left if it is above the bound.
        let mut left: Vec<u32> = values.iter().map(|it| u32::from(*it > bound)).collect();
        drop(values);
        stream.for_each(|slot, class| {
            left[usize::from(slot)] += u32::from(class == TAKEN_OVER);
            Ok(())
        })?;
        stream.for_each(|slot, class| {
            let left = &mut left[usize::from(slot)];
            match (class, *left) {
                (TAKEN_OVER, _) => *left -= 1,
                (_, 0) => {
                    smallest.push(slot, class)?;
                    if let Some(all) = &mut all {
                        all.push(slot, class)?;
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(Samples {
            small: smallest.sample(accesses, &counts),
            of_sieve: all.map(|all| all.sample(accesses, &counts)),
        })
    }
}

/// Returns the bound below which the [`SAMPLES_MAX`] smallest of `values` are; at most `bound`,
/// above which are the values of pages that have left.
fn bound_of_smallest(values: &[u64], bound: u64) -> u64 {
    if values.len() <= SAMPLES_MAX {
        return bound;
    }
    let mut values = values.to_vec();
    let (_, next, _) = values.select_nth_unstable(SAMPLES_MAX);
    u64::min(*next - 1, bound)
}

/// The accesses to the pages up to a bound, while they are copied.
struct Kept {
    bound: u64,
    /// By slot, the page's number in the sample, or [`NONE`](Self::NONE).
    numbers: Vec<u16>,
    nr_pages: usize,
    classes: Counts,
    stream: Stream,
}

impl Kept {
    const NONE: u16 = u16::MAX;

    fn new(values: &[u64], bound: u64, from: &Stream) -> Self {
        let mut nr_pages = 0;
        let number = |value: &u64| {
            if *value > bound {
                return Self::NONE;
            }
            nr_pages += 1;
            nr_pages - 1
        };
        Self {
            bound,
            numbers: values.iter().map(number).collect(),
            nr_pages: nr_pages.into(),
            classes: Counts::default(),
            stream: Stream::new(from.dir()),
        }
    }

    fn push(&mut self, slot: u16, class: Class) -> io::Result<()> {
        match self.numbers[usize::from(slot)] {
            Self::NONE => Ok(()),
            number => {
                self.classes.add(class);
                self.stream.push(number, class)
            }
        }
    }

    fn sample(self, accesses: u64, counts: &Counts) -> Sample {
        let rate = match self.bound {
            u64::MAX => 1.0,
            bound => (to_f64(bound) + 1.0) / 2.0_f64.powi(64),
        };
        Sample {
            rate,
            accesses,
            nr_pages: self.nr_pages,
            weights: counts.weights(&self.classes),
            stream: self.stream,
        }
    }
}

fn insert(slots: &mut HashTable<u16>, values: &[u64], slot: u16) {
    let hash_of = |slot: &u16| hash(values[usize::from(*slot)]);
    slots.insert_unique(hash_of(&slot), slot, hash_of);
}

/// Values are evenly spread over their range, and a sample's over a part of it.
fn hash(value: u64) -> u64 {
    value.rotate_left(32).wrapping_mul(GOLDEN)
}

/// The samples of one trace.
#[derive(Debug)]
pub(super) struct Samples {
    small: Sample,
    /// A larger one for SIEVE, unless the other holds every page that was sampled.
    of_sieve: Option<Sample>,
}

impl Samples {
    /// Returns the sample of most policies.
    pub(super) const fn small(&self) -> &Sample {
        &self.small
    }

    /// Returns the sample from which the miss ratio of a cache of so many pages is taken.
    pub(super) fn of(&self, policy: Algorithm, pages: u64) -> &Sample {
        match &self.of_sieve {
            Some(sample) if self.is_large(policy, pages) => sample,
            _ => &self.small,
        }
    }

    fn is_large(&self, policy: Algorithm, pages: u64) -> bool {
        // At the footprint, only first accesses miss: a matter of one sample for all policies.
        let footprint = self.small.footprint();
        policy == Algorithm::Sieve && (footprint / LARGE_FROM..footprint).contains(&pages)
    }

    /// Returns the sizes of caches of the trace, in pages.
    pub(super) fn sizes(&self, sizes: &Sizes) -> Vec<u64> {
        match sizes {
            Sizes::Ladder(count) => {
                let capacities = ladder(self.small.nr_pages, *count).into_iter();
                let pages = capacities.map(|pages| to_f64(pages as u64) / self.small.rate);
                pages.map(|pages| rounded(pages) as u64).collect()
            }
            Sizes::Given(sizes) => sizes.iter().map(|size| size.pages_floor().0).collect(),
        }
    }
}

/// The accesses to a fixed share of a trace's pages.
#[derive(Debug)]
pub(super) struct Sample {
    rate: f64,
    accesses: u64,
    nr_pages: usize,
    /// By class, the part of the trace's accesses for which a sampled access stands.
    weights: Weights,
    stream: Stream,
}

impl Sample {
    /// Returns the share of all pages that are sampled; 1 if every page is.
    pub(super) const fn rate(&self) -> f64 {
        self.rate
    }

    /// Returns the accesses of the trace, to any page.
    pub(super) const fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Returns the number of sampled pages.
    pub(super) const fn nr_pages(&self) -> usize {
        self.nr_pages
    }

    /// Returns the number of pages of the trace, estimated.
    pub(super) fn footprint(&self) -> u64 {
        rounded(to_f64(self.nr_pages as u64) / self.rate) as u64
    }

    /// Returns the capacity of the cache of the sample that stands for one of so many pages.
    pub(super) fn capacity(&self, pages: u64) -> usize {
        rounded(to_f64(pages) * self.rate)
    }

    /// Returns the pages of the smallest cache that one of the sample can stand for.
    pub(super) fn least_pages(&self) -> u64 {
        match self.rate < 1.0 {
            true => rounded((LEAST_CAPACITY / self.rate).ceil()) as u64,
            false => 1,
        }
    }

    /// Returns the number of accesses to sampled pages.
    pub(super) const fn nr_accesses(&self) -> u64 {
        self.stream.len()
    }

    /// Calls `is_miss` with the slot of each access, in order; returns the part of the trace's
    /// accesses for which those stand that miss.
    pub(super) fn misses(&self, mut is_miss: impl FnMut(u16) -> bool) -> io::Result<f64> {
        let mut missed = Counts::default();
        self.for_each_class(|slot, class| {
            if is_miss(slot) {
                missed.add(class);
            }
        })?;
        Ok(f64::min(self.weights.share(&missed), 1.0))
    }

    /// Calls `visit` with the slot of each access, in order, and the part of the trace's accesses
    /// for which it stands.
    pub(super) fn for_each(&self, mut visit: impl FnMut(u16, f64)) -> io::Result<()> {
        self.for_each_class(|slot, class| visit(slot, self.weights.of(class)))
    }

    /// Calls `visit` with the slot and the class of each access, in order.
    pub(super) fn for_each_class(&self, mut visit: impl FnMut(u16, Class)) -> io::Result<()> {
        self.stream.for_each(|slot, class| {
            visit(slot, class);
            Ok(())
        })
    }

    /// Returns the part of the trace's accesses for which a sampled access of a class stands.
    pub(super) fn weight(&self, class: Class) -> f64 {
        self.weights.of(class)
    }
}

/// Rounds a number of pages; a cache has at least one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "not negative, and casts saturate"
)]
pub(super) fn rounded(pages: f64) -> usize {
    (pages.round() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    /// Checks that a sample has each access to the pages with the smallest values, in order.
    fn check(sample: &Sample, values: &[u64]) {
        let mut sorted: Vec<u64> = values.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let sampled: HashSet<u64> = sorted[..sample.nr_pages].iter().copied().collect();
        let mut expected = values.iter().filter(|value| sampled.contains(value));
        let mut slots: HashMap<u16, u64> = HashMap::new();
        let each = |slot, _| {
            let value = expected.next().expect("no access too many");
            assert_eq!(slots.entry(slot).or_insert(*value), value, "slot {slot}");
        };
        sample.for_each_class(each).unwrap();
        assert_eq!(expected.next(), None);
        assert_eq!(slots.len(), sample.nr_pages);
        assert!(
            slots
                .keys()
                .all(|slot| usize::from(*slot) < sample.nr_pages)
        );
    }

    // Goal: samples are the whole of a share of the pages, although pages leave meanwhile. Method:
    // random accesses to more and more pages, beside a sort of their values.
    #[test]
    fn a_sample_has_every_access_to_its_pages() {
        let [small, large] = [SAMPLES_MAX, SAMPLES_OF_SIEVE].map(|pages| pages as u64);
        for footprint in [1, small, small + 1, large, 3 * large] {
            let mut rng = fastrand::Rng::with_seed(footprint);
            let mut sampler = Sampler::new(footprint, &std::env::temp_dir());
            let recent = (0..4 * footprint).map(|at| rng.u64(at / 8..=at / 4));
            let pages: Vec<u64> = (0..footprint).chain(recent).collect();
            pages.iter().for_each(|page| sampler.access(*page).unwrap());
            let value = |page: &u64| page.wrapping_mul(GOLDEN).wrapping_add(sampler.offset);
            let values: Vec<u64> = pages.iter().map(value).collect();
            let samples = sampler.finish().unwrap();
            check(&samples.small, &values);
            assert_eq!(samples.small.nr_pages as u64, footprint.min(small));
            let Some(of_sieve) = &samples.of_sieve else {
                assert!(footprint <= small);
                continue;
            };
            check(of_sieve, &values);
            let least = large - large / LOWERED - 500;
            let nr_pages = of_sieve.nr_pages as u64;
            assert!(
                (least.min(footprint)..=large).contains(&nr_pages),
                "{nr_pages} pages"
            );
        }
    }

    // Goal: samples are as large where values are close together. Method: numbers a Fibonacci
    // number apart, whose multiples of the golden ratio are nearly whole.
    #[test]
    fn pages_that_are_close_together_do_not_leave_all_at_once() {
        for seed in 0..8 {
            let mut sampler = Sampler::new(seed, &std::env::temp_dir());
            (0..60_000).for_each(|page| sampler.access(page * 832_040).unwrap());
            let samples = sampler.finish().unwrap();
            assert_eq!(samples.small.nr_pages, SAMPLES_MAX);
            let of_sieve = samples.of_sieve.expect("there are more");
            assert!(of_sieve.nr_pages >= SAMPLES_OF_SIEVE / 2, "seed {seed}");
        }
    }
}
