//! A cache, and the accesses that it is judged by.

use std::collections::HashMap;

use crate::models::lru::PageHashers;

/// A cache of a fixed number of pages.
pub trait Replacement {
    /// Accesses a page, which is then resident; returns `true` if it was resident before.
    fn access(&mut self, page: u32) -> bool;

    /// Returns the number of resident pages.
    fn resident(&self) -> usize;
}

/// The accesses of a trace; pages are numbered in the order in which they first appear.
#[derive(Clone, Debug, Default)]
pub struct AccessTrace {
    pages: Vec<u32>,
    footprint: usize,
}

impl AccessTrace {
    /// Returns the accesses, as page numbers below [`footprint`](Self::footprint).
    #[must_use]
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Returns the number of distinct pages.
    #[must_use]
    pub fn footprint(&self) -> usize {
        self.footprint
    }

    /// Returns the capacity of a cache that holds `share` of the footprint, at least one page.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a count far below 2^53"
    )]
    pub fn capacity(&self, share: f64) -> usize {
        ((self.footprint as f64 * share) as usize).max(1)
    }
}

impl FromIterator<u64> for AccessTrace {
    /// # Panics
    ///
    /// When there are 2^32 - 1 distinct pages or accesses, or more.
    fn from_iter<I: IntoIterator<Item = u64>>(pages: I) -> Self {
        let mut numbers = HashMap::<u64, u32, PageHashers>::default();
        let mut number = |page| {
            let next = u32::try_from(numbers.len()).expect("fewer than 2^32 pages");
            *numbers.entry(page).or_insert(next)
        };
        let pages: Vec<u32> = pages.into_iter().map(&mut number).collect();
        assert!(
            u32::try_from(pages.len()).is_ok_and(|accesses| accesses < u32::MAX),
            "{} accesses: expected less than 2^32 - 1",
            pages.len()
        );
        let footprint = numbers.len();
        Self { pages, footprint }
    }
}
