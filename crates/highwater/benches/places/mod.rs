//! The pages that are read: their contents, and the places of reads.

use std::fs::File;
use std::io::{self, Write};

use highwater::units::{PAGE_BYTES, PAGE_SIZE};

/// A page's bytes.
pub(crate) type Page = [u8; PAGE_SIZE];

/// 64 MiB: beyond the processor's caches.
pub(crate) const COUNT: u32 = 16_384;
/// Of the Zipf law.
const EXPONENT: f64 = 0.9;
const LINE_BYTES: u32 = 64;
/// In a page.
const LINES: u32 = 64;
const _: () = assert!(
    LINES as u64 * LINE_BYTES as u64 == PAGE_BYTES,
    "whole lines"
);

/// Returns the content of page `page`: its number, in every word.
pub(crate) fn content(page: u32) -> Page {
    let words = [u64::from(page).to_le_bytes(); PAGE_SIZE / 8];
    words.as_flattened().try_into().expect("one page")
}

/// A file of all pages, which the kernel has in its cache.
pub(crate) fn file() -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    for page in 0..COUNT {
        file.write_all(&content(page))?;
    }
    Ok(file)
}

/// The place of one read: a word of a page.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) page: u32,
    /// Bytes from the beginning of the page.
    pub(crate) offset: u32,
}

impl Place {
    /// In any line of the page, each as often as another.
    pub(crate) fn within(page: u32, rng: &mut fastrand::Rng) -> Self {
        let offset = rng.u32(..LINES) * LINE_BYTES;
        Self { page, offset }
    }

    /// The word, which is the page's number wherever it is.
    #[inline]
    pub(crate) fn word_of(self, page: &[u8]) -> u64 {
        let at = self.offset as usize;
        u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
    }
}

/// Places in the order of reading: the pages by a Zipf law whose ranks are scattered over the file.
pub(crate) fn zipf(reads: u32, seed: u64) -> Vec<Place> {
    zipf_over(COUNT, reads, seed)
}

/// As [`zipf`], over a file of `count` pages.
pub(crate) fn zipf_over(count: u32, reads: u32, seed: u64) -> Vec<Place> {
    let mut pages: Vec<u32> = (0..count).collect();
    // The same pages are hot for every thread.
    fastrand::Rng::with_seed(0).shuffle(&mut pages);
    let mut cumulative = Vec::with_capacity(pages.len());
    let mut total = 0.0;
    for rank in 1..=count {
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
