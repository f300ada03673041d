//! From misses in the sample to the miss ratio of the trace.
//!
//! With `N` accesses in the trace and a share `R` of its pages sampled, the sample should have
//! `R * N` accesses; it has some more or less, mostly to the most popular pages, and so some misses
//! more or less than its share. The usual corrections take all of the difference for hits (SHARDS
//! calls it adjusted), or for hits and misses in the sample's own proportion. Here the sample
//! itself tells how many misses go with an access more: the slope of the regression of the misses
//! of its pages on their accesses.
//!
//! Measured by the lab's `tests/curve_error.rs`.
//!
//! Source: Waldspurger and others, FAST 2015 (SHARDS-adj) and USENIX ATC 2017 (miniature
//! simulations). Deviation: the regression estimator of survey sampling (Cochran, "Sampling
//! Techniques", chapter 7).

use std::io;

use super::distance::StackDistances;
use super::sample::Sample;
use crate::models::Algorithm;
use crate::report::text::to_f64;

/// Misses in a sample, in a cache of one size.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    misses: u64,
    /// Sum over the misses of the accesses to their pages.
    weighted: u128,
}

impl Tally {
    fn add(&mut self, accesses: u64) {
        self.misses += 1;
        self.weighted += u128::from(accesses);
    }
}

/// What the accesses of a sample say about those of the trace.
#[derive(Clone, Copy, Debug)]
struct Scale {
    /// Accesses that the sample would have if its pages were like all.
    expected: f64,
    /// Accesses that it has.
    sampled: f64,
    /// Mean of the accesses to a sampled page, and the sum of the squares of the deviations.
    mean: f64,
    deviations: f64,
}

impl Scale {
    fn new(sample: &Sample) -> Self {
        let sampled = to_f64(sample.nr_accesses());
        let mean = sampled / to_f64(sample.nr_pages().max(1) as u64);
        let deviations = sample.counts().iter().map(|&count| to_f64(count) - mean);
        Self {
            expected: sample.rate() * to_f64(sample.accesses()),
            sampled,
            mean,
            deviations: deviations.map(|deviation| deviation * deviation).sum(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn ratio(&self, tally: Tally) -> f64 {
        let misses = to_f64(tally.misses);
        let slope = match self.deviations > 0.0 {
            true => (tally.weighted as f64 - self.mean * misses) / self.deviations,
            false => 1.0,
        };
        // A page cannot have fewer misses than none, or more than accesses.
        let misses = misses - slope.clamp(0.0, 1.0) * (self.sampled - self.expected);
        (misses / self.expected).clamp(0.0, 1.0)
    }
}

/// Returns the miss ratios of LRU caches of `capacities` pages of the sample, which increase.
///
/// # Errors
///
/// When the sample's temporary file cannot be read.
pub fn lru(sample: &Sample, capacities: &[usize]) -> io::Result<Vec<f64>> {
    let mut distances = StackDistances::new(sample.nr_pages());
    // An access misses at all capacities up to its distance.
    let nr_missing: Vec<usize> = (0..sample.nr_pages())
        .map(|distance| capacities.partition_point(|capacity| *capacity <= distance))
        .collect();
    let mut tallies = vec![Tally::default(); capacities.len() + 1];
    sample.for_each(|slot| {
        let slot = usize::from(slot);
        let missing = distances
            .access(slot)
            .map_or(capacities.len(), |distance| nr_missing[distance as usize]);
        tallies[missing].add(sample.counts()[slot]);
    })?;
    let scale = Scale::new(sample);
    let mut sum = Tally::default();
    let mut ratios = Vec::new();
    for tally in tallies.iter().skip(1).rev() {
        sum.misses += tally.misses;
        sum.weighted += tally.weighted;
        ratios.push(scale.ratio(sum));
    }
    ratios.reverse();
    Ok(ratios)
}

/// Returns the miss ratio under a policy of a cache of `capacity` pages of the sample.
///
/// # Errors
///
/// When the sample's temporary file cannot be read.
///
/// # Panics
///
/// When `capacity` is 0, and for Belady's, which knows the future.
pub fn simulated(sample: &Sample, policy: Algorithm, capacity: usize) -> io::Result<f64> {
    let mut cache = policy.online(capacity, sample.nr_pages());
    let mut tally = Tally::default();
    sample.for_each(|slot| {
        if !cache.access(u32::from(slot)) {
            tally.add(sample.counts()[usize::from(slot)]);
        }
    })?;
    Ok(Scale::new(sample).ratio(tally))
}
