//! Fuzzy checkpoints: the dirty pages of a file with their recovery LSNs, beside writers.
//!
//! A page counts as dirty from its dirty mark on, and its recovery LSN is set later under the same
//! hold of its latch. So a page whose mark or LSN is not there is looked at under its latch, which
//! waits for a writer that may have appended its record already. Hence, if each record is appended
//! while its page is latched for writing: a change whose record was in the log before a scan began
//! is on storage, or its page is in the result, with that LSN or a lower one.
//!
//! A mark and an LSN that are read without the latch may be those of an earlier change, which has
//! reached storage meanwhile: the LSN is lower then, and the result cautious.
//!
//! Source: fuzzy checkpoints of ARIES (Mohan et al. 1992). Deviation: there a table of dirty pages
//! is kept; here the frames are scanned.

use std::ops::Range;

use super::{FileEntry, PageCache, PageKey};
use crate::units::{FilePage, Pfn};

/// A dirty page of a file.
#[derive(Clone, Copy, Debug)]
pub struct DirtyLsn {
    /// The page.
    pub key: PageKey,
    /// Its frame.
    pub pfn: Pfn,
    /// LSN of the first change since it was clean; 0 if none was set.
    pub recovery: u64,
}

impl PageCache {
    /// Returns the dirty pages of a file with their recovery LSNs, in no order. Waits for threads
    /// that have latched a clean page, or a page without LSN, for writing.
    ///
    /// # Cost
    ///
    /// [`pages_of`](Self::pages_of), and the latch of each page without LSN.
    pub fn dirty_lsns_of(&self, file: &FileEntry) -> Vec<DirtyLsn> {
        let id = file.id();
        let mut dirty = Vec::new();
        for pfn in self.pages_of(id) {
            let Some(key) = self.key_of(pfn).filter(|key| key.file() == id) else {
                continue;
            };
            let mut recovery = self.lsns.recovery(pfn);
            // Held until the marks are read again.
            let mut latch = None;
            if recovery == 0 || !self.is_dirty(pfn) {
                latch = self.latch_at(key, pfn);
                if latch.is_none() {
                    // It has left its frame, so it was written back.
                    continue;
                }
                recovery = self.lsns.recovery(pfn);
            }
            if self.is_dirty(pfn) {
                let page = DirtyLsn { key, pfn, recovery };
                dirty.push(page);
            }
            drop(latch);
        }
        dirty
    }

    /// Returns those of a file's pages that are dirty at this moment and within `pages`, with their
    /// frames, in the file's order.
    ///
    /// # Cost
    ///
    /// As [`dirty_pages_of`](Self::dirty_pages_of), at most a lookup for each page of the range.
    #[must_use]
    pub fn dirty_pages_in(&self, file: &FileEntry, pages: &Range<FilePage>) -> Vec<(PageKey, Pfn)> {
        let mut dirty = self.dirty_among(file.id(), self.pages_within(file, pages));
        dirty.retain(|(key, _)| pages.contains(&key.page()));
        dirty
    }
}
