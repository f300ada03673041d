//! Blocks of frames for pages larger than 4 KiB, when the free frames are scattered.
//!
//! Reclaim frees pages in the order of their use, wherever they lie. A pool whose pages all have
//! one size gives each new page the block of an old one. Among smaller pages, evicting them one by
//! one would free most of the pool before a block comes together. So the pages of one block are
//! evicted instead, whatever their age: of the next [`LOOKS`] blocks, those of the block that has
//! most free frames.
//!
//! A block is left alone if a frame of it is in use for anything but the cache, or holds a page
//! that is pinned, latched or locked, part of a larger page, protected by its group's `min`, dirty
//! (if the request waits for no storage), or to be swapped out of a group that never swaps.
//!
//! Bounds: one search looks at each block at most once, and protection is evaluated once for each
//! group. A request that finds no block waits for other threads to release pages, and searches
//! again, 16 times at most; then it fails with
//! [`AllocError::Fragmented`](crate::frame::AllocError::Fragmented). No group is stopped for it:
//! there is memory.
//!
//! Source: lumpy reclaim of Linux, 2.6.23 to 3.4. Deviation: the block is chosen by its contents,
//! and not around the oldest page.

use std::collections::HashMap;

use super::Core;
use crate::cache::{PageKey, WrittenBack};
use crate::reclaim::Actor;
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

/// The pages of a block, which can probably be evicted.
type BlockPages = Vec<(Pfn, PageKey)>;

fn frames_of(pages: &[(Pfn, PageKey)]) -> Pages {
    pages.iter().map(|(_, key)| key.order().pages()).sum()
}

/// A search for a block of an order.
struct BlockSearch<'a> {
    core: &'a Core,
    order: Order,
    actor: Actor,
    /// What is known of the groups that pay for pages.
    givers: HashMap<GroupId, Giver>,
}

/// What may be taken from a group.
#[derive(Clone, Copy)]
struct Giver {
    gives_block: bool,
    swaps: bool,
}

impl Core {
    /// Evicts the pages of one block of an order, as far as an actor may, and looks at `at_most`
    /// blocks for that; returns false if there is no such block.
    pub(super) fn evict_block(&self, order: Order, actor: Actor, at_most: u32) -> bool {
        // Frames in lists belong to no block.
        if self.pool.drain_all() > Pages::ZERO {
            self.stats.drain_all.add(1);
        }
        let search = BlockSearch {
            core: self,
            order,
            actor,
            givers: HashMap::new(),
        };
        if search.evict_one(at_most) {
            // They are in lists again.
            self.pool.drain_all();
            self.stats.lumpy_success.add(1);
            return true;
        }
        self.stats.lumpy_fail.add(1);
        false
    }
}

impl BlockSearch<'_> {
    fn evict_one(mut self, at_most: u32) -> bool {
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
            let mut candidates: Vec<BlockPages> =
                blocks.filter_map(|block| self.pages_of(block)).collect();
            candidates.sort_by_key(|pages| frames_of(pages));
            for pages in candidates {
                if self.may_all_go(&pages) && self.evict(&pages) {
                    return true;
                }
                // Some pages of it may have gone.
                self.givers.clear();
            }
        }
        false
    }

    /// Returns the pages of a block, unless it has to be left alone.
    fn pages_of(&mut self, block: u32) -> Option<BlockPages> {
        let mut pages = Vec::new();
        let mut at = Pfn(block << self.order.get());
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
            } else if !self.core.memory.is_free(at) {
                return None;
            }
            at = Pfn(at.0 + frames);
        }
        Some(pages)
    }

    /// Returns whether a page may be evicted, as far as its group and its storage are concerned.
    fn may_go(&mut self, pfn: Pfn, key: PageKey) -> bool {
        let giver = self.giver(self.core.cache.group_of(pfn));
        let writes = || match key.file().kind().is_swap_backed() {
            true => giver.swaps && self.actor != Actor::Clean,
            false => self.actor != Actor::Clean,
        };
        giver.gives_block && (!self.core.cache.is_dirty(pfn) || writes())
    }

    fn may_all_go(&mut self, pages: &[(Pfn, PageKey)]) -> bool {
        pages.iter().all(|(pfn, key)| self.may_go(*pfn, *key))
    }

    fn giver(&mut self, group: GroupId) -> Giver {
        // As much as a larger page that begins with the block.
        let frames = self.order.max(self.core.cache.order_max()).pages();
        let reclaim = &self.core.reclaim;
        *self.givers.entry(group).or_insert_with(|| Giver {
            gives_block: reclaim.exposes(group, frames),
            swaps: reclaim.may_swap(group),
        })
    }

    /// Evicts the pages of a block; returns false if one of them resists.
    fn evict(&self, pages: &[(Pfn, PageKey)]) -> bool {
        let (cache, reclaim) = (&self.core.cache, &self.core.reclaim);
        let stays = |&(pfn, key): &(Pfn, PageKey)| cache.is_held(pfn, key) || cache.is_locked(pfn);
        if pages.iter().any(stays) {
            return false;
        }
        for &(pfn, key) in pages.iter().filter(|(pfn, _)| cache.is_dirty(*pfn)) {
            if self.actor == Actor::Clean {
                return false;
            }
            match cache.try_write_back(pfn, &mut Woken::default()) {
                Ok(WrittenBack::Clean | WrittenBack::Written) => {}
                Ok(WrittenBack::Awaited(_)) => reclaim.rotate(&[(pfn, key)]),
                Ok(WrittenBack::Latched | WrittenBack::HeldUp | WrittenBack::NoSlot) | Err(_) => {
                    return false;
                }
            }
        }
        reclaim.evict_unlocked(pages)
    }
}
