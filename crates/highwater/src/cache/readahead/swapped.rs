//! Reading swap ahead: the pages of a run, which were swapped out one after the other.
//!
//! A missing page that is in swap is read together with those behind it that are in neighbouring
//! slots, by one request. Programs that write memory in order and read it in that order later, such
//! as a merge of sorted runs, get most pages by fewer requests. No history of accesses is needed: a
//! merge jumps from run to run.
//!
//! Two bounds keep that from costing more than it saves:
//!
//! - Pages that were read ahead and wait for their first access are at most an eighth of the pool,
//!   for all objects together, and of the payer's maximum, for each object. Reclaim comes to them
//!   once before it drops them, and twice to pages that were accessed and are done with; so with a
//!   quarter, a merge of many runs lost pages before their access.
//! - The credit of the object (module `credit`): it begins with a window, and pages that are not
//!   accessed use it up.
//!
//! A window has a part of what these bounds leave, so that each of many runs gets as much as the
//! others, and those that come first no pages which wait too long.
//!
//! Source: the swap readahead of Linux, by clusters of slots. Deviation: forward only, within one
//! object, and limited by what waits, instead of by the hits of the last window.

use super::{PageCache, ReadPattern, Readahead, Window};
use crate::cache::FileEntry;
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::units::{FilePage, Pages};

/// The longest window. Chosen: as of a stream that storage keeps up with.
const WINDOW_MAX: u64 = super::READAHEAD_USUAL.0;
/// Pages that wait for their first access, as a share of memory. See the module.
const WAITING_SHARE: u64 = 8;
/// A window as a part of the pages that may still wait. Chosen: all readers together settle at most
/// of what may wait, from eight runs on.
const WINDOW_SHARE: u64 = 16;

/// Number of pages that were read ahead and wait for their first access.
#[derive(Debug, Default)]
pub(in crate::cache) struct WaitingPages(
    /// Written by: threads that read ahead, access a page first, or evict it. Read by: threads that
    /// miss. Publishes: nothing; those at the same time may each add a window.
    AtomicI64,
);

// Relaxed, all: see the field.
impl WaitingPages {
    /// Adds `pages`; a negative number subtracts.
    pub(in crate::cache) fn add(&self, pages: i64) {
        self.0.fetch_add(pages, Ordering::Relaxed);
    }

    pub(in crate::cache) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns how many more may wait where `memory` pages are there for all.
    fn room_in(&self, memory: Pages) -> u64 {
        let waiting = u64::try_from(self.get()).unwrap_or(0);
        (memory.0 / WAITING_SHARE).saturating_sub(waiting)
    }
}

impl PageCache {
    /// Returns the window to read for a missing page of swap-backed memory: as
    /// [`window_of_miss`](Self::window_of_miss), of a pool of `pool` pages, for a group that may
    /// have `group` pages.
    pub fn window_of_swapped(
        &self,
        readahead: &Readahead,
        file: &FileEntry,
        page: FilePage,
        max: Pages,
        (pool, group): (Pages, Pages),
    ) -> Window {
        let Some(anon) = file.anon() else {
            return Window::of_request(page..page + 1);
        };
        let allowed = match readahead.pattern() {
            ReadPattern::Random => 0,
            ReadPattern::Normal | ReadPattern::Sequential => {
                let waiting = anon.waiting();
                let of_all = anon.waiting_of_all().map_or(0, |all| all.room_in(pool));
                let room = waiting.room_in(group).min(of_all);
                room.min(file.credit().allowed()).div_ceil(WINDOW_SHARE)
            }
        };
        let longest = max.0.min(WINDOW_MAX).min(1 + allowed);
        let run = anon.run_len(page, usize::try_from(longest).unwrap_or(1)) as u64;
        let is_cached = |at: &u64| self.seems_cached(file.key(page + *at));
        let missing = (1..run).take_while(|at| !is_cached(at)).count() as u64;
        Window {
            pages: page..page + 1 + missing,
            mark: None,
            ahead: page + 1,
        }
    }
}
