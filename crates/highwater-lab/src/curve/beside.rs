//! Curves of accesses that something else makes: a replay.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use highwater::units::PAGE_BYTES;
use serde::{Deserialize, Serialize};

use super::config::{NR_OF_MANAGER, NR_SIZES, POLICIES, Sizes};
use super::report::Curve;
use super::sample::Sampler;
use super::{crew, meaning, profile};
use crate::models::Algorithm;
use crate::replay::PageObserver;

/// Samples a tenant's accesses while they are replayed. Clones share one sample.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The sample, or why there is none.
    sampler: Arc<Mutex<io::Result<Sampler>>>,
}

/// The curves of what was replayed, one for each policy of the manager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BesideCurves {
    /// The tenant's name.
    pub name: String,
    /// Distinct pages, in bytes: an estimate if `sample_ratio` is below 1.
    pub footprint_bytes: u64,
    /// Share of the pages that were sampled; 1 if every page was, and the curves are exact.
    pub sample_ratio: f64,
    /// Pages that were sampled.
    pub sampled_pages: u64,
    /// A curve for each policy.
    pub curves: Vec<Curve>,
}

impl Beside {
    /// Creates an empty sample. `seed` selects the pages; accesses that do not fit memory go to an
    /// unlinked file in `dir`.
    #[must_use]
    pub fn new(seed: u64, dir: &Path) -> Self {
        Self {
            sampler: Arc::new(Mutex::new(Ok(Sampler::new(seed, dir)))),
        }
    }

    /// Draws the curves of the accesses so far, and ends the sample.
    ///
    /// # Errors
    ///
    /// When a temporary file could not be made, written or read, or the sample has ended.
    pub fn draw(&self, name: &str) -> io::Result<BesideCurves> {
        let taken = Err(io::Error::other("the curves are drawn"));
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = std::mem::replace(&mut *sampler, taken)?.finish()?;
        drop(sampler);
        let sizes = samples.sizes(&Sizes::Ladder(NR_SIZES));
        let policies: [Algorithm; NR_OF_MANAGER] = std::array::from_fn(|at| POLICIES[at].0);
        let jobs = profile::jobs(&policies, &samples, &sizes);
        let ratios = crew::each(jobs.len(), |number| jobs[number].ratios(&samples))?;
        let small = samples.small();
        Ok(BesideCurves {
            name: name.to_owned(),
            footprint_bytes: small.footprint() * PAGE_BYTES,
            sample_ratio: small.rate(),
            sampled_pages: small.nr_pages() as u64,
            curves: meaning::curves(&policies, &sizes, &ratios.concat()),
        })
    }
}

impl PageObserver for Beside {
    fn pages(&mut self, mut pages: Range<u64>) {
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(sampling) = &mut *sampler
            && let Err(error) = pages.try_for_each(|page| sampling.access(page))
        {
            *sampler = Err(error);
        }
    }
}
