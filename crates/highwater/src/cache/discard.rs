//! Discarding pages of anonymous or shared memory: they read as zeros again, in memory and in swap.
//!
//! A resident page is zeroed under its exclusive latch and is then clean and without a slot: it can
//! be evicted without I/O, and is correct if it stays. A page in swap loses its slot, which needs
//! no lock (module `anon`); then it is looked up again, because another thread may have read it in
//! meanwhile.

use std::ops::Range;

use super::anon::Anon;
use super::{FileEntry, PageCache, PageKey, Presence};
use crate::sync::Untaken;
use crate::units::{FilePage, Pfn};

/// Treatment of pages that are pinned or latched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Wait until they are released.
    Wait,
    /// Skip them: they keep their contents.
    Skip,
}

impl PageCache {
    /// Discards all pages of an object that is unreachable: the pages can be evicted without I/O,
    /// and all slots are free.
    pub fn discard_all(&self, file: &FileEntry) {
        let Some(anon) = file.anon() else { return };
        for pfn in self.pages_of(file.id()) {
            let key = self.key_of(pfn).filter(|key| key.file() == file.id());
            let Some(key) = key else { continue };
            // Reclaim may be writing it.
            let latch = self.latch_exclusively(key, pfn);
            if latch.is_some() && self.is_dirty(pfn) {
                self.clear_dirty(pfn, key);
            }
        }
        // Only now: a dirty page may still be given a slot; a clean one is not any more.
        anon.forget_all();
    }

    /// Zeroes pages of an object unless `is_needed` holds for them; returns those that are
    /// resident, with their frames. In a range with more pages than there are frames, a page may be
    /// missed that leaves its frame and comes back meanwhile.
    ///
    /// # Cost
    ///
    /// The lock of an index shard for each page of the range, or a look at each frame if those are
    /// fewer.
    pub fn discard(
        &self,
        file: &FileEntry,
        pages: Range<FilePage>,
        discard: Discard,
        mut is_needed: impl FnMut(FilePage) -> bool,
    ) -> Vec<(Pfn, PageKey)> {
        let Some(anon) = file.anon() else {
            return Vec::new();
        };
        let mut resident = Vec::new();
        let mut one = |page: FilePage| {
            if !is_needed(page) {
                resident.extend(self.discard_page(file, anon, page, discard));
            }
        };
        let numbers = FilePage::numbers(&pages);
        if numbers.end.saturating_sub(numbers.start) <= self.groups.len() as u64 {
            numbers.map(FilePage).for_each(&mut one);
        } else {
            // A page that is read in between the looks is in the first, and one that leaves its
            // frame in the last.
            let mut touched: Vec<FilePage> = anon.swapped_in(&pages);
            let frames = self.pages_of(file.id());
            touched.extend(frames.filter_map(|pfn| Some(self.key_of(pfn)?.page())));
            touched.extend(anon.swapped_in(&pages));
            touched.sort_unstable();
            touched.dedup();
            touched.retain(|page| pages.contains(page));
            touched.into_iter().for_each(&mut one);
        }
        resident
    }

    /// Zeroes a page; returns its frame and key if it is resident.
    fn discard_page(
        &self,
        file: &FileEntry,
        anon: &Anon,
        page: FilePage,
        discard: Discard,
    ) -> Option<(Pfn, PageKey)> {
        let key = PageKey::new(file.id(), page);
        // Terminates: each further round means that another thread has read the page in or evicted
        // it meanwhile.
        loop {
            // At one moment: between two, the page could come from swap, lose its slot by a write,
            // and go again.
            if let Some(is_swapped) = self.index.while_absent(key, || anon.is_swapped(page)) {
                if !is_swapped {
                    return None;
                }
                anon.forget(page);
                continue;
            }
            let Presence::Resident(pfn) = self.lookup(key) else {
                continue;
            };
            let latch = match discard {
                Discard::Wait => self.latch_exclusively(key, pfn),
                Discard::Skip => match self.memory.try_exclude(pfn, key.get()) {
                    Err(Untaken::Held) => return None,
                    latch => latch.ok(),
                },
            };
            let Some(mut latch) = latch else {
                continue;
            };
            // Also a clean one without a slot: it may have come from a slot that another thread
            // discards, which has not zeroed it yet.
            latch.bytes_mut().fill(0);
            anon.forget(page);
            if self.is_dirty(pfn) {
                self.clear_dirty(pfn, key);
            }
            return Some((pfn, key));
        }
    }
}
