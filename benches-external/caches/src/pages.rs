//! Sequences of pages to read.

use std::sync::Arc;

use crate::places::{COUNT, Place, zipf};

/// Distribution of the pages.
#[derive(Clone, Copy)]
pub(crate) enum Law {
    /// Zipf, the ranks scattered over the file.
    Zipf,
    /// One page, repeatedly.
    Hot,
}

impl Law {
    pub(crate) const ALL: [Self; 2] = [Self::Zipf, Self::Hot];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Zipf => "Zipf 0.9 over 16,384 pages",
            Self::Hot => "one page",
        }
    }

    /// Returns `reads` reads for each of two threads.
    pub(crate) fn sequences(self, reads: u32) -> [Sequence; 2] {
        [1, 2].map(|seed| match self {
            Self::Zipf => Sequence(zipf(reads, seed).into()),
            Self::Hot => Sequence(hot(reads, seed).into()),
        })
    }
}

/// Places in the order of reading. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sequence(Arc<[Place]>);

impl Sequence {
    /// Returns the first `times` places.
    pub(crate) fn first(&self, times: u32) -> &[Place] {
        &self.0[..times as usize]
    }
}

fn hot(reads: u32, seed: u64) -> Vec<Place> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let draw = |_| Place::within(COUNT / 2, &mut rng);
    (0..reads).map(draw).collect()
}
