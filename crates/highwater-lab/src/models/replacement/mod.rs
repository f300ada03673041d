//! Exact replacement algorithms: the victim of a full cache, chosen at each access with complete
//! knowledge.
//!
//! The library's eviction policies are compared with them. The library cannot run most of them
//! exactly: its accesses set a mark and move nothing, and it scans pages later, in clusters.
//!
//! Pages are numbered densely ([`AccessTrace`]), so that every list and table is an array and the
//! models do millions of accesses a second.
//!
//! Invariant: a cache of `capacity` pages never holds more, and the page accessed last is one of
//! them.
//!
//! Checked against independent counts and plain oracles:
//! `tests/policies.rs::models_match_the_reference_counts`, and below.

mod arc;
mod belady;
mod cache;
mod car;
mod clock;
mod decided;
mod lists;
mod lru;
mod s3_fifo;
mod sieve;
mod two_q;

use highwater::lab::reclaim::policy::Balanced;

pub use cache::{AccessTrace, Replacement};
pub use decided::Decided;

/// A replacement algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Least recently used.
    Lru,
    /// First in first out.
    Fifo,
    /// First in first out with a second chance.
    Clock,
    /// CLOCK with survivors that stay in place.
    Sieve,
    /// A small, a large and a ghost queue.
    S3Fifo,
    /// A FIFO before an LRU list.
    TwoQ,
    /// Two LRU lists whose share adapts.
    Arc,
    /// Two clocks whose share adapts.
    Car,
    /// S3-FIFO with an adaptive small queue, bounded by LRU: the library's default, as its own
    /// code decides, one page at a time.
    Balanced,
    /// Belady's MIN, which knows the future.
    Belady,
}

impl Algorithm {
    /// All of them, LRU first and Belady's last.
    pub const ALL: [Self; 10] = [
        Self::Lru,
        Self::Fifo,
        Self::Clock,
        Self::Sieve,
        Self::S3Fifo,
        Self::TwoQ,
        Self::Arc,
        Self::Car,
        Self::Balanced,
        Self::Belady,
    ];

    /// Returns its authors' name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "LRU",
            Self::Fifo => "FIFO",
            Self::Clock => "CLOCK",
            Self::Sieve => "SIEVE",
            Self::S3Fifo => "S3-FIFO",
            Self::TwoQ => "2Q",
            Self::Arc => "ARC",
            Self::Car => "CAR",
            Self::Balanced => "balanced",
            Self::Belady => "Belady",
        }
    }

    /// Does `work` with an empty cache of `capacity` pages for the pages `0 .. footprint`, in which
    /// the accesses need not be known beforehand. It is compiled for each algorithm, so that an
    /// access is no indirect call.
    ///
    /// # Panics
    ///
    /// When `capacity` is 0, and for Belady's, which knows the future.
    pub fn with<W: Work>(self, capacity: usize, footprint: usize, work: W) -> W::Output {
        assert!(capacity > 0, "a cache of no pages");
        match self {
            Self::Lru => work.run(lru::Lru::new(capacity, footprint)),
            Self::Fifo => work.run(lru::Fifo::new(capacity, footprint)),
            Self::Clock => work.run(clock::Clock::new(capacity, footprint)),
            Self::Sieve => work.run(sieve::Sieve::new(capacity, footprint)),
            Self::S3Fifo => work.run(s3_fifo::S3Fifo::new(capacity, footprint)),
            Self::TwoQ => work.run(two_q::TwoQ::new(capacity, footprint)),
            Self::Arc => work.run(arc::Arc::new(capacity, footprint)),
            Self::Car => work.run(car::Car::new(capacity, footprint)),
            Self::Balanced => work.run(Decided::new(Balanced, capacity, footprint)),
            Self::Belady => panic!("Belady's algorithm needs the whole trace"),
        }
    }

    /// Returns the misses of a cache of `capacity` pages, empty at first, on `trace`.
    ///
    /// # Panics
    ///
    /// When `capacity` is 0.
    #[must_use]
    pub fn misses(self, trace: &AccessTrace, capacity: usize) -> u64 {
        assert!(capacity > 0, "a cache of no pages");
        match self {
            Self::Belady => misses(belady::Belady::new(capacity, trace), trace),
            _ => self.with(capacity, trace.footprint(), trace),
        }
    }
}

/// Work with a cache of any algorithm.
pub trait Work {
    /// Its result.
    type Output;

    /// Does it, with an empty cache.
    fn run(self, cache: impl Replacement) -> Self::Output;
}

impl Work for &AccessTrace {
    type Output = u64;

    fn run(self, cache: impl Replacement) -> u64 {
        misses(cache, self)
    }
}

/// Returns the misses of `cache` on `trace`.
pub fn misses(mut cache: impl Replacement, trace: &AccessTrace) -> u64 {
    let pages = trace.pages().iter();
    pages.map(|&page| u64::from(!cache.access(page))).sum()
}

#[cfg(test)]
mod tests;
