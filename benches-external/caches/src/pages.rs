//! The pages that are read: what they hold, and in which order.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

pub(crate) const PAGE: usize = 4096;
/// 64 MiB: beyond the processor's caches.
pub(crate) const COUNT: u32 = 16_384;
/// Of the Zipf law.
const EXPONENT: f64 = 0.9;

/// A page's bytes.
pub(crate) type Bytes = [u8; PAGE];

const LINE: u32 = 64;

/// What page `page` holds: its number, in every word.
pub(crate) fn content(page: u32) -> Bytes {
    let words = [u64::from(page).to_le_bytes(); PAGE / 8];
    words.as_flattened().try_into().expect("one page")
}

/// What one read looks at: a word of a page.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) page: u32,
    /// Bytes from the beginning of the page.
    offset: u32,
}

impl Place {
    /// In any line of the page, each as often as another.
    fn within(page: u32, rng: &mut fastrand::Rng) -> Self {
        let offset = rng.u32(..PAGE as u32 / LINE) * LINE;
        Self { page, offset }
    }

    /// The word.
    #[inline]
    pub(crate) fn word_of(self, page: &Bytes) -> u64 {
        let at = self.offset as usize;
        u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
    }
}

/// A file of all pages, which the kernel has in its cache.
pub(crate) fn file() -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    for page in 0..COUNT {
        file.write_all(&content(page))?;
    }
    Ok(file)
}

/// Which pages are read, in order.
#[derive(Clone, Copy)]
pub(crate) enum Law {
    /// Zipf, the ranks scattered over the file.
    Zipf,
    /// One page, again and again.
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

    /// So many reads for each of two threads.
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
    /// The first so many.
    pub(crate) fn first(&self, times: u32) -> &[Place] {
        &self.0[..times as usize]
    }
}

fn hot(reads: u32, seed: u64) -> Vec<Place> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let draw = |_| Place::within(COUNT / 2, &mut rng);
    (0..reads).map(draw).collect()
}

fn zipf(reads: u32, seed: u64) -> Vec<Place> {
    let mut pages: Vec<u32> = (0..COUNT).collect();
    // The same pages are hot for every thread.
    fastrand::Rng::with_seed(0).shuffle(&mut pages);
    let mut cumulative = Vec::with_capacity(pages.len());
    let mut total = 0.0;
    for rank in 1..=COUNT {
        total += f64::from(rank).powf(-EXPONENT);
        cumulative.push(total);
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    let draw = |_| {
        let at = rng.f64() * total;
        let rank = cumulative.partition_point(|&sum| sum < at);
        Place::within(pages[rank.min(pages.len() - 1)], &mut rng)
    };
    (0..reads).map(draw).collect()
}
