//! Letting go of what memory holds: pages of an anonymous or shared object are zeros again,
//! wherever they were.
//!
//! A resident page is made zero under its exclusive latch and is clean then, without a slot: it can
//! be evicted without I/O, and is right if it stays. A page in swap loses its slot, for which no
//! lock is needed (module `anon`); then it is looked for again, because somebody may have read it
//! in meanwhile.

use std::ops::Range;

use super::anon::Anon;
use super::{FileEntry, PageCache, PageKey, Presence};
use crate::sync::RwLockWriteGuard;
use crate::units::Pfn;

/// Whether to wait for pages that somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Until they are let go of.
    Wait,
    /// Not at all: they keep what they hold.
    Skip,
}

impl PageCache {
    /// Lets every page of an object's memory forget what it holds, for an object that nobody can
    /// reach any more: the pages can be evicted without I/O, and no slot is theirs.
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
        // Not before: a page that is dirty may be given a slot, and one that is clean is not any
        // more.
        anon.forget_all();
    }

    /// Makes pages of an object's memory zeros, unless `is_needed` says otherwise of one; those
    /// that are resident, with their frames. In a range of more pages than there are frames, one
    /// that others touch meanwhile may stay as it was.
    ///
    /// # Cost
    ///
    /// The lock of an index shard for each page of the range, or a look at each frame if those are
    /// fewer.
    pub fn discard(
        &self,
        file: &FileEntry,
        pages: Range<u64>,
        discard: Discard,
        mut is_needed: impl FnMut(u64) -> bool,
    ) -> Vec<(Pfn, PageKey)> {
        let Some(anon) = file.anon() else {
            return Vec::new();
        };
        let mut resident = Vec::new();
        let mut one = |page: u64| {
            if !is_needed(page) {
                resident.extend(self.discard_page(file, anon, page, discard));
            }
        };
        if pages.end.saturating_sub(pages.start) <= self.groups.len() as u64 {
            pages.for_each(&mut one);
        } else {
            // Those in frames first: one that leaves its frame meanwhile is in swap by then.
            let frames = self.pages_of(file.id());
            let in_frames = frames.filter_map(|pfn| Some(self.key_of(pfn)?.page()));
            let mut touched: Vec<u64> = in_frames.collect();
            touched.extend(anon.swapped_in(&pages));
            touched.sort_unstable();
            touched.dedup();
            touched.retain(|page| pages.contains(page));
            touched.into_iter().for_each(&mut one);
        }
        resident
    }

    /// Makes a page zeros; its frame and name, if it is resident.
    fn discard_page(
        &self,
        file: &FileEntry,
        anon: &Anon,
        page: u64,
        discard: Discard,
    ) -> Option<(Pfn, PageKey)> {
        let key = PageKey::new(file.id(), page);
        // Whether the page was in swap: who has read it in meanwhile has what was there.
        let mut was_in_swap = false;
        // Ends: each further round is because another thread has read the page in or evicted it
        // meanwhile.
        loop {
            let Presence::Resident(pfn) = self.lookup(key) else {
                if !anon.is_swapped(page) {
                    return None;
                }
                anon.forget(page);
                was_in_swap = true;
                continue;
            };
            let latch = match discard {
                Discard::Wait => self.latch_exclusively(key, pfn),
                Discard::Skip => Some(self.latches.of(pfn).frame.try_write()?),
            };
            let still_there = |latch: &RwLockWriteGuard<'_, _>| {
                let held: &Option<_> = latch;
                held.is_some() && self.key_of(pfn) == Some(key)
            };
            let Some(mut latch) = latch.filter(still_there) else {
                continue;
            };
            if let Some(frame) = latch.as_mut()
                && (was_in_swap || anon.is_swapped(page) || self.is_dirty(pfn))
            {
                self.memory.bytes_mut(frame).fill(0);
                anon.forget(page);
                if self.is_dirty(pfn) {
                    self.clear_dirty(pfn, key);
                }
            }
            return Some((pfn, key));
        }
    }
}
