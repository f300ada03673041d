//! Blocks of frames for pages larger than 4 KiB, when the free frames are scattered.
//!
//! Reclaim frees pages in the order of their use, wherever they lie. A pool whose pages all have
//! one size gives each new page the block of an old one. Among smaller pages, evicting them one by
//! one would free most of the pool before a block comes together. So the pages of one block are
//! evicted instead, whatever their age: of the next [`LOOKS`] blocks, those of the block that has
//! most free frames.
//!
//! A block is left alone if a frame of it is in use for anything but the cache, or holds a page
//! that is pinned, latched, locked or in transit, part of a larger page, protected by its group's
//! `min`, dirty (if the request waits for no storage, or storage fails), or to be swapped out of a
//! group that never swaps. If there is no other, frames that a smaller capacity has taken out of
//! the pool are [exchanged](crate::frame::FramePool::exchange) for others.
//!
//! Bounds: one search looks at each block at most twice, and protection is evaluated once for each
//! group. A request that finds no block waits for other threads to release pages, and searches
//! again: 16 times at most, 128 where each search wrote pages back or other threads had pages in
//! hand, 1,024 where pages arrived, not counting waits for pages that do not. Then it fails with
//! [`AllocError::Fragmented`](crate::frame::AllocError::Fragmented). No group is stopped for it:
//! there is memory.
//!
//! Source: lumpy reclaim of Linux, 2.6.23 to 3.4. Deviation: the block is chosen by its contents,
//! and not around the oldest page.

use std::collections::HashMap;

use super::Core;
use crate::cache::{FileId, PageKey, WrittenBack};
use crate::group::Depth;
use crate::reclaim::{Actor, Outcome};
use crate::sync::Woken;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::{GroupId, Order, Pages, Pfn};

/// Blocks among which one is chosen. Chosen: they are looked at in about the time of one read from
/// a fast disk.
pub(super) const LOOKS: u32 = 64;

/// Where the next search begins: the number of a block.
/// Written and read by: threads that search. Publishes: nothing.
#[derive(Debug, Default)]
pub(super) struct LumpyCursor(AtomicU32);

/// Pages of one file, or of all that is swapped, that a search fails to write back before it takes
/// clean ones only. Chosen: storage that fails usually fails again; and one bad place is no reason
/// to stop.
const FAILED_MAX: u32 = 32;

/// What a search for a block has come to.
#[derive(Debug, Default)]
pub(super) struct BlockSearched {
    pub(super) is_found: bool,
    pub(super) nr_written: u64,
    /// Whether a block was left alone for a page in transit.
    pub(super) has_transit: bool,
    /// Why pages stayed.
    pub(super) outcome: Outcome,
}

/// A block, whose pages can probably be evicted.
struct Candidate {
    first: Pfn,
    pages: Vec<(Pfn, PageKey)>,
    /// Frames of it that are out of the pool.
    nr_out: u64,
}

impl Candidate {
    /// Returns the frames that have to become free.
    fn frames(&self) -> Pages {
        let of_pages: Pages = self.pages.iter().map(|(_, key)| key.order().pages()).sum();
        of_pages + Pages(self.nr_out)
    }
}

/// A search for a block of an order.
struct BlockSearch<'a> {
    core: &'a Core,
    order: Order,
    actor: Actor,
    /// What is known of the groups that pay for pages.
    givers: HashMap<GroupId, Giver>,
    /// Pages that could not be written back, by storage.
    failed: HashMap<StorageOf, u32>,
    /// The frames that may be exchanged, ascending.
    out_of_pool: Vec<Pfn>,
    searched: BlockSearched,
}

/// The storage of a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum StorageOf {
    File(FileId),
    Swap,
}

impl StorageOf {
    fn of(key: PageKey) -> Self {
        match key.file() {
            file if file.kind().is_swap_backed() => Self::Swap,
            file => Self::File(file),
        }
    }
}

/// What may be taken from a group.
#[derive(Clone, Copy)]
struct Giver {
    gives_block: bool,
    swaps: bool,
}

impl Core {
    /// Evicts the pages of one block of an order, as far as an actor may, and looks at `at_most`
    /// blocks for that.
    pub(super) fn evict_block(&self, order: Order, actor: Actor, at_most: u32) -> BlockSearched {
        // Frames in lists belong to no block, and pages in batches to no list.
        if self.pool.drain_all() > Pages::ZERO {
            self.stats.drain_all.add(1);
        }
        self.reclaim.drain_batches();
        let mut search = BlockSearch {
            core: self,
            order,
            actor,
            givers: HashMap::new(),
            failed: HashMap::new(),
            out_of_pool: Vec::new(),
            searched: BlockSearched::default(),
        };
        search.searched.is_found = search.evict_one(at_most)
            || at_most == u32::MAX && search.may_exchange() && search.evict_one(at_most);
        if search.searched.is_found {
            // They are in lists again.
            self.pool.drain_all();
            self.stats.lumpy_success.add(1);
        } else {
            self.stats.lumpy_fail.add(1);
        }
        search.searched
    }
}

impl BlockSearch<'_> {
    /// Lets frames be exchanged from now on; returns whether there are any.
    fn may_exchange(&mut self) -> bool {
        if self.core.pool.ballooned() > Pages::ZERO {
            self.out_of_pool = self.core.pool.ballooned_below(self.order);
        }
        !self.out_of_pool.is_empty()
    }

    fn evict_one(&mut self, at_most: u32) -> bool {
        let nr_blocks = u32::try_from(self.core.memory.pages().0 >> self.order.get());
        let nr_blocks = nr_blocks.expect("frames have 32-bit numbers");
        let cursor = &self.core.lumpy.0;
        let mut left = at_most.min(nr_blocks);
        // Terminates: each round looks at the next blocks.
        while left > 0 {
            let looks = left.min(LOOKS);
            left -= looks;
            // Relaxed: see the field. Before the looks, so that other threads look elsewhere.
            let at = cursor.fetch_add(looks, Ordering::Relaxed);
            let blocks = (0..looks).map(|nth| at.wrapping_add(nth) % nr_blocks);
            let mut candidates: Vec<Candidate> =
                blocks.filter_map(|block| self.look_at(block)).collect();
            candidates.sort_by_key(Candidate::frames);
            for candidate in candidates {
                if self.may_all_go(&candidate.pages) && self.evict(&candidate) {
                    return true;
                }
                // Some pages of it may have gone.
                self.givers.clear();
            }
        }
        false
    }

    /// Returns what a block has, unless it has to be left alone.
    fn look_at(&mut self, block: u32) -> Option<Candidate> {
        let first = Pfn(block << self.order.get());
        let (mut pages, mut nr_out) = (Vec::new(), 0);
        let mut at = first;
        let end = at.0 + (1 << self.order.get());
        while at.0 < end {
            let mut frames = 1;
            if let Some(key) = self.core.cache.key_of(at) {
                if !self.may_go(at, key) {
                    return None;
                }
                // A larger page that begins here goes as a whole.
                frames = 1 << key.order().get();
                pages.push((at, key));
            } else if self.out_of_pool.binary_search(&at).is_ok() {
                nr_out += 1;
            } else if !self.core.memory.is_free(at) {
                return None;
            }
            at = Pfn(at.0 + frames);
        }
        debug_assert!(
            at.0 == end || pages.len() == 1,
            "a page that reaches beyond the block begins with it"
        );
        Some(Candidate {
            first,
            pages,
            nr_out,
        })
    }

    /// Returns whether a page may be evicted, as far as its group and its storage are concerned.
    fn may_go(&mut self, pfn: Pfn, key: PageKey) -> bool {
        let giver = self.giver(self.core.cache.group_of(pfn));
        if !giver.gives_block || !self.core.cache.is_dirty(pfn) {
            return giver.gives_block;
        }
        let storage = StorageOf::of(key);
        let nr_failed = self.failed.get(&storage).copied().unwrap_or(0);
        let writes = self.actor != Actor::Clean && nr_failed < FAILED_MAX;
        writes && (giver.swaps || storage != StorageOf::Swap)
    }

    fn may_all_go(&mut self, pages: &[(Pfn, PageKey)]) -> bool {
        pages.iter().all(|(pfn, key)| self.may_go(*pfn, *key))
    }

    fn giver(&mut self, group: GroupId) -> Giver {
        // As much as a larger page that begins with the block.
        let frames = self.order.max(self.core.cache.order_max()).pages();
        let (reclaim, root) = (&self.core.reclaim, self.core.groups.root());
        *self.givers.entry(group).or_insert_with(|| Giver {
            gives_block: reclaim.exposes(group, frames, (&root, Depth::AboveMin)),
            swaps: reclaim.may_swap(group),
        })
    }

    /// Frees a block; returns false if a page of it resists, or too few frames are free elsewhere.
    fn evict(&mut self, block: &Candidate) -> bool {
        let (cache, reclaim) = (&self.core.cache, &self.core.reclaim);
        // Looked at before anything goes: the other pages would go in vain.
        for &(pfn, key) in &block.pages {
            if cache.is_held(pfn, key) || cache.is_locked(pfn) {
                self.searched.outcome.nr_borrowed += 1;
                return false;
            }
            if !reclaim.is_listed(pfn) {
                self.searched.has_transit = true;
                return false;
            }
        }
        if !self.clean(&block.pages) {
            return false;
        }
        let range = block.first.0..block.first.0 + (1 << self.order.get());
        (block.nr_out == 0 || self.core.pool.exchange(range))
            && reclaim.evict_unlocked(&block.pages)
    }

    /// Writes the dirty ones of some pages back; returns false if one of them resists. Those after
    /// one that waits for its log are looked at, too: the log is asked once for all.
    fn clean(&mut self, pages: &[(Pfn, PageKey)]) -> bool {
        let (cache, reclaim) = (&self.core.cache, &self.core.reclaim);
        let (searched, mut all_clean) = (&mut self.searched, true);
        for &(pfn, key) in pages.iter().filter(|(pfn, _)| cache.is_dirty(*pfn)) {
            if self.actor == Actor::Clean {
                return false;
            }
            let written = cache.try_write_back(pfn, &mut Woken::default());
            searched.nr_written += u64::from(matches!(
                written,
                Ok(WrittenBack::Written | WrittenBack::Awaited(_))
            ));
            match written {
                Ok(WrittenBack::Clean | WrittenBack::Written) => {}
                Ok(WrittenBack::Awaited(_)) => reclaim.rotate(&[(pfn, key)]),
                Ok(WrittenBack::HeldUp) => {
                    searched.outcome.nr_wal_blocked += 1;
                    all_clean = false;
                }
                Ok(WrittenBack::Latched) => {
                    searched.outcome.nr_borrowed += 1;
                    return false;
                }
                Ok(WrittenBack::NoSlot) => return false,
                Err(error) => {
                    reclaim.note_write_failed(&error);
                    searched.outcome.nr_write_failed += 1;
                    *self.failed.entry(StorageOf::of(key)).or_default() += 1;
                    debug_assert_eq!(
                        self.failed.values().copied().map(u64::from).sum::<u64>(),
                        searched.outcome.nr_write_failed,
                        "each failure is known by its storage"
                    );
                    return false;
                }
            }
        }
        all_clean
    }
}
