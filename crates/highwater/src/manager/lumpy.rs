//! Blocks of frames for pages larger than 4 KiB, when the free frames are scattered.
//!
//! Reclaim frees pages in the order of their use, wherever they lie. A pool whose pages all have
//! one size gives each new page the block of an old one. Among smaller pages, evicting them one by
//! one would free most of the pool before a block comes together. So the pages of one block are
//! evicted instead, whatever their age: of the next [`LOOKS`] blocks, those of the block that has
//! most free frames. A page that resists, because it is pinned or latched, leaves its block to the
//! next best one.
//!
//! A block is left alone if a frame of it is in use for anything but the cache, or holds a page
//! that is locked, dirty (if the request waits for no storage), part of a larger page, or protected
//! by its group's `min`.
//!
//! Bounds: one request looks at each block at most once in each attempt, and its attempts are those
//! of the slow path. If nothing can be evicted, it goes on there as one that found no frame, and
//! fails with [`AllocError::Fragmented`](crate::frame::AllocError::Fragmented).
//!
//! Source: lumpy reclaim of Linux, 2.6.23 to 3.4. Deviation: the block is chosen by its contents,
//! and not around the oldest page.

use super::Core;
use crate::cache::{PageKey, WrittenBack};
use crate::reclaim::Actor;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::units::{Order, Pages, Pfn};

/// Blocks among which one is chosen. Chosen: they are looked at in about the time of one read from
/// a fast disk.
const LOOKS: u32 = 64;

/// Where the next request begins to look: the number of a frame.
/// Written and read by: threads that look. Publishes: nothing.
#[derive(Debug, Default)]
pub(super) struct LumpyCursor(AtomicU32);

/// The pages of a block, which can probably be evicted.
type BlockPages = Vec<(Pfn, PageKey)>;

fn frames_of(pages: &[(Pfn, PageKey)]) -> Pages {
    pages.iter().map(|(_, key)| key.order().pages()).sum()
}

impl Core {
    /// Evicts the pages of one block of an order, as far as an actor may; returns false if there is
    /// no such block.
    pub(super) fn evict_block(&self, order: Order, actor: Actor) -> bool {
        // Frames in lists belong to no block.
        if self.pool.drain_all() > Pages::ZERO {
            self.stats.drain_all.add(1);
        }
        let nr_blocks = u32::try_from(self.memory.pages().0 >> order.get());
        let nr_blocks = nr_blocks.expect("frames have 32-bit numbers");
        let mut left = nr_blocks;
        // Terminates: each round looks at the next blocks, and each block is looked at once.
        while left > 0 {
            let looks = left.min(LOOKS);
            left -= looks;
            // Relaxed: see the field.
            let first = self.lumpy.0.fetch_add(looks, Ordering::Relaxed);
            let block = |nth| Pfn((first.wrapping_add(nth) % nr_blocks) << order.get());
            let pages = |nth| self.pages_of_block(block(nth), order, actor);
            let mut candidates: Vec<BlockPages> = (0..looks).filter_map(pages).collect();
            candidates.sort_by_key(|pages| frames_of(pages));
            if candidates.iter().any(|pages| self.evict_together(pages)) {
                // They are in lists again.
                self.pool.drain_all();
                self.stats.lumpy_success.add(1);
                return true;
            }
        }
        self.stats.lumpy_fail.add(1);
        false
    }

    /// Returns the pages of a block, unless it has to be left alone.
    fn pages_of_block(&self, block: Pfn, order: Order, actor: Actor) -> Option<BlockPages> {
        let mut pages = Vec::new();
        let end = block.0 + (1 << order.get());
        let mut at = block;
        while at.0 < end {
            let mut frames = 1;
            if let Some(key) = self.cache.key_of(at) {
                let is_spared = actor == Actor::Clean && self.cache.is_dirty(at);
                let group = self.cache.group_of(at);
                if key.order() > order || is_spared || !self.reclaim.exposes(group, order.pages()) {
                    return None;
                }
                frames = 1 << key.order().get();
                pages.push((at, key));
            } else if !self.memory.is_free(at) {
                return None;
            }
            at = Pfn(at.0 + frames);
        }
        Some(pages)
    }

    /// Evicts the pages of a block; returns false if one of them resists.
    fn evict_together(&self, pages: &[(Pfn, PageKey)]) -> bool {
        if pages.iter().any(|(pfn, _)| self.cache.is_locked(*pfn)) {
            return false;
        }
        for &(pfn, key) in pages {
            match self.cache.try_write_back(pfn) {
                Ok(WrittenBack::Clean | WrittenBack::Written) => {}
                Ok(WrittenBack::Awaited(_)) => self.reclaim.rotate(&[(pfn, key)]),
                Ok(WrittenBack::Latched | WrittenBack::HeldUp | WrittenBack::NoSlot) | Err(_) => {
                    return false;
                }
            }
        }
        self.reclaim.evict_unlocked(pages)
    }
}
