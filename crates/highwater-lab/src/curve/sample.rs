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
//! up to `bound`; `pages[slot]` counts every access of the trace to its page.
//!
//! Source: Waldspurger and others, "Efficient MRC Construction with SHARDS", FAST 2015 (a fixed
//! size). Deviations: the multiple of the golden ratio; counts are of one rate, not rescaled.

use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::path::Path;

use super::stream::Stream;
use crate::models::PageHashers;
use crate::report::text::to_f64;

/// Pages of a sample.
pub const SAMPLES_MAX: usize = 8192;

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sampled page.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Entries of the stream before its first access.
    since: u64,
    accesses: u64,
}

/// Samples a trace while it is read.
#[derive(Debug)]
pub struct Sampler {
    offset: u64,
    samples_max: usize,
    /// The largest value that is sampled.
    bound: u64,
    /// Slots by value, which names the page: the multiplier is odd.
    slots: HashMap<u64, u16, PageHashers>,
    largest: BinaryHeap<(u64, u16)>,
    pages: Vec<Page>,
    stream: Stream,
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
            slots: HashMap::default(),
            largest: BinaryHeap::new(),
            pages: Vec::new(),
            stream: Stream::new(dir),
            accesses: 0,
        }
    }

    /// Counts an access of the trace.
    ///
    /// # Cost
    ///
    /// A multiplication and a comparison, for pages that are not sampled.
    ///
    /// # Errors
    ///
    /// When the temporary file cannot be made or written.
    #[inline]
    pub fn access(&mut self, page: u64) -> io::Result<()> {
        self.accesses += 1;
        let value = page.wrapping_mul(GOLDEN).wrapping_add(self.offset);
        match value <= self.bound {
            true => self.take(value),
            false => Ok(()),
        }
    }

    /// Returns the accesses so far.
    #[must_use]
    pub const fn accesses(&self) -> u64 {
        self.accesses
    }

    fn take(&mut self, value: u64) -> io::Result<()> {
        let slot = match self.slots.get(&value) {
            Some(slot) => *slot,
            None => match self.enter(value) {
                Some(slot) => slot,
                None => return Ok(()),
            },
        };
        self.pages[usize::from(slot)].accesses += 1;
        self.stream.push(slot)
    }

    /// Adds a page, for which another may leave; `None` if it is the one that leaves.
    fn enter(&mut self, value: u64) -> Option<u16> {
        let page = Page {
            since: self.stream.len(),
            accesses: 0,
        };
        let slot = if self.pages.len() < self.samples_max {
            self.pages.push(page);
            u16::try_from(self.pages.len() - 1).expect("at most 2^16 pages")
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
            self.slots.remove(&largest);
            self.slots.insert(value, slot);
            self.pages[usize::from(slot)] = page;
            return Some(slot);
        };
        self.slots.insert(value, slot);
        self.largest.push((value, slot));
        Some(slot)
    }

    /// Returns the bytes of memory that the sampler holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        // A table of the standard library has a byte of control and an eighth of free places; it
        // is a power of two of entries.
        let places = (self.slots.capacity() * 8 / 7).next_power_of_two();
        places * (size_of::<(u64, u16)>() + 1)
            + self.largest.capacity() * size_of::<(u64, u16)>()
            + self.pages.capacity() * size_of::<Page>()
            + self.stream.memory_bytes()
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
        let mut position = 0;
        let mut result = Ok(());
        stream.for_each(|slot| {
            if position >= pages[usize::from(slot)].since && result.is_ok() {
                result = kept.push(slot);
            }
            position += 1;
        })?;
        result?;
        Ok(Sample {
            rate,
            accesses: self.accesses,
            counts: pages.iter().map(|page| page.accesses).collect(),
            stream: kept,
        })
    }
}

/// The accesses to a fixed share of a trace's pages.
#[derive(Debug)]
pub struct Sample {
    rate: f64,
    accesses: u64,
    /// Accesses of each sampled page, by slot.
    counts: Vec<u64>,
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
        self.counts.len()
    }

    /// Returns the number of accesses to sampled pages.
    #[must_use]
    pub const fn nr_accesses(&self) -> u64 {
        self.stream.len()
    }

    /// Returns the accesses of each sampled page, by slot.
    pub(super) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Calls `visit` with the slot of each access, in order.
    pub(super) fn for_each(&self, visit: impl FnMut(u16)) -> io::Result<()> {
        self.stream.for_each(visit)
    }

    /// Returns the bytes of memory that the sample holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u64>() + self.stream.memory_bytes()
    }
}
