//! A spatial sample of a trace: some of its pages, and every access to them.
//!
//! A page is sampled if its value, `page * GOLDEN + offset` modulo 2^64, is below a threshold. When
//! the sample would hold more than [`SAMPLES_MAX`] pages, the page with the largest value leaves it
//! and that value becomes the threshold. So the sample is at any time the whole of a fixed share of
//! all pages, its *rate*, and holds each access to each of its pages. Accesses of pages that left
//! are dropped at the end ([`Sampler::finish`]), so that one rate holds for the whole trace.
//!
//! A multiple of the golden ratio is not random: of adjacent pages, it takes nearly equal shares in
//! each range of them (the three-gap theorem), where a random choice would take more of one scan
//! and less of the next. Keys that are hashes are sampled as by any hash.
//!
//! Invariants: `slots` and `largest` hold the same pages, [`SAMPLES_MAX`] at most, all with values
//! up to `bound`; `reuse` has classified every access of the trace, sampled or not.
//!
//! Source: Waldspurger and others, "Efficient MRC Construction with SHARDS", FAST 2015 (a fixed
//! size). Deviations: the multiple of the golden ratio; all accesses are of one rate, not rescaled.

use std::collections::BinaryHeap;
use std::io;
use std::path::Path;

use hashbrown::HashTable;

use super::config::{Sizes, ladder};
use super::reuse::{Class, Counts, ReuseTimes, Weights};
use super::stream::{Stream, fields};
use crate::report::text::to_f64;

/// Pages of a sample.
pub const SAMPLES_MAX: usize = 8192;

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sampled page.
#[derive(Clone, Copy, Debug)]
struct Page {
    value: u64,
    /// Entries of the stream before its first access.
    since: u64,
}

/// Samples a trace while it is read.
#[derive(Debug)]
pub struct Sampler {
    offset: u64,
    samples_max: usize,
    /// The largest value that is sampled.
    bound: u64,
    /// Slots by value, which names the page: the multiplier is odd.
    slots: HashTable<u16>,
    largest: BinaryHeap<(u64, u16)>,
    pages: Vec<Page>,
    stream: Stream,
    reuse: ReuseTimes,
    accesses: u64,
}

impl Sampler {
    /// Creates an empty sample. `seed` selects the pages; accesses that do not fit memory go to an
    /// unlinked file in `dir`.
    #[must_use]
    pub fn new(seed: u64, dir: &Path) -> Self {
        Self::with_samples(SAMPLES_MAX, seed, dir)
    }

    /// Creates an empty sample of another size.
    ///
    /// # Panics
    ///
    /// When that is not 1 to 2^16 pages.
    #[must_use]
    pub fn with_samples(samples_max: usize, seed: u64, dir: &Path) -> Self {
        assert!((1..=1 << 16).contains(&samples_max), "slots have 16 bits");
        Self {
            offset: fastrand::Rng::with_seed(seed).u64(..),
            samples_max,
            bound: u64::MAX,
            slots: HashTable::new(),
            largest: BinaryHeap::new(),
            pages: Vec::new(),
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
    pub fn access(&mut self, page: u64) -> io::Result<()> {
        self.accesses += 1;
        let value = page.wrapping_mul(GOLDEN).wrapping_add(self.offset);
        let class = self.reuse.access(value);
        match value <= self.bound {
            true => self.take(value, class),
            false => Ok(()),
        }
    }

    /// Returns the accesses so far.
    #[must_use]
    pub const fn accesses(&self) -> u64 {
        self.accesses
    }

    fn take(&mut self, value: u64, class: Class) -> io::Result<()> {
        let found = (self.slots).find(hash(value), |slot| self.page(*slot).value == value);
        let slot = match found {
            Some(slot) => *slot,
            None => match self.enter(value) {
                Some(slot) => slot,
                None => return Ok(()),
            },
        };
        self.stream.push(slot, class)
    }

    fn page(&self, slot: u16) -> &Page {
        &self.pages[usize::from(slot)]
    }

    /// Adds a page, for which another may leave; `None` if it is the one that leaves.
    fn enter(&mut self, value: u64) -> Option<u16> {
        let page = Page {
            value,
            since: self.stream.len(),
        };
        let slot = if self.pages.len() < self.samples_max {
            self.pages.push(page);
            let slot = u16::try_from(self.pages.len() - 1).expect("at most 2^16 pages");
            self.largest.push((value, slot));
            slot
        } else {
            let mut top = self.largest.peek_mut().expect("the sample is full");
            let (largest, slot) = *top;
            self.bound = largest.max(value) - 1;
            if value > largest {
                return None;
            }
            // Its place in the heap is taken over.
            *top = (value, slot);
            drop(top);
            let left = self.slots.find_entry(hash(largest), |it| *it == slot);
            left.expect("a sampled page has a slot").remove();
            self.pages[usize::from(slot)] = page;
            slot
        };
        let pages = &self.pages;
        let hash_of = |slot: &u16| hash(pages[usize::from(*slot)].value);
        self.slots.insert_unique(hash(value), slot, hash_of);
        Some(slot)
    }

    /// Returns the bytes of memory that the sampler holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.slots.allocation_size()
            + self.largest.capacity() * size_of::<(u64, u16)>()
            + self.pages.capacity() * size_of::<Page>()
            + self.stream.memory_bytes()
            + self.reuse.memory_bytes()
    }

    /// Ends the trace: keeps the accesses of the pages that stayed.
    ///
    /// # Errors
    ///
    /// When the temporary file cannot be read or written.
    pub fn finish(self) -> io::Result<Sample> {
        let Self { stream, pages, .. } = self;
        let rate = match self.bound {
            u64::MAX => 1.0,
            bound => (to_f64(bound) + 1.0) / 2.0_f64.powi(64),
        };
        drop((self.slots, self.largest));
        let mut kept = Stream::new(stream.dir());
        let mut kept_classes = Counts::default();
        let mut position = 0;
        let mut result = Ok(());
        stream.for_each_block(|block| {
            for (slot, class) in block.iter().copied().map(fields) {
                if position >= pages[usize::from(slot)].since && result.is_ok() {
                    kept_classes.add(class);
                    result = kept.push(slot, class);
                }
                position += 1;
            }
        })?;
        result?;
        Ok(Sample {
            rate,
            accesses: self.accesses,
            nr_pages: pages.len(),
            weights: self.reuse.counts().weights(&kept_classes),
            stream: kept,
        })
    }
}

/// Values are evenly spread over their range, and a sample's over a part of it.
fn hash(value: u64) -> u64 {
    value.rotate_left(32).wrapping_mul(GOLDEN)
}

/// The accesses to a fixed share of a trace's pages.
#[derive(Debug)]
pub struct Sample {
    rate: f64,
    accesses: u64,
    nr_pages: usize,
    /// By class, the part of the trace's accesses for which a sampled access stands.
    weights: Weights,
    stream: Stream,
}

impl Sample {
    /// Returns the share of all pages that are sampled; 1 if every page is.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        self.rate
    }

    /// Returns the accesses of the trace, to any page.
    #[must_use]
    pub const fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Returns the number of sampled pages.
    #[must_use]
    pub fn nr_pages(&self) -> usize {
        self.nr_pages
    }

    /// Returns the number of pages of the trace, estimated.
    pub(super) fn footprint(&self) -> u64 {
        rounded(to_f64(self.nr_pages as u64) / self.rate) as u64
    }

    /// Returns capacities of caches of the sample, and the pages of the caches that they stand for.
    pub(super) fn sizes(&self, sizes: &Sizes) -> (Vec<usize>, Vec<u64>) {
        match sizes {
            Sizes::Ladder(count) => {
                let capacities = ladder(self.nr_pages, *count);
                let pages = capacities.iter().map(|pages| to_f64(*pages as u64));
                let pages = pages.map(|pages| rounded(pages / self.rate) as u64);
                (capacities.clone(), pages.collect())
            }
            Sizes::Given(sizes) => {
                let pages: Vec<u64> = sizes.iter().map(|size| size.pages_floor().0).collect();
                let capacities = pages
                    .iter()
                    .map(|pages| rounded(to_f64(*pages) * self.rate));
                (capacities.collect(), pages)
            }
        }
    }

    /// Returns the number of accesses to sampled pages.
    #[must_use]
    pub const fn nr_accesses(&self) -> u64 {
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
        self.stream.for_each_block(|block| {
            for (slot, class) in block.iter().copied().map(fields) {
                visit(slot, class);
            }
        })
    }

    /// Returns the part of the trace's accesses for which a sampled access of a class stands.
    pub(super) fn weight(&self, class: Class) -> f64 {
        self.weights.of(class)
    }

    /// Returns the bytes of memory that the sample holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.stream.memory_bytes()
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
