//! Bringing a page in: the path of every miss.
//!
//! One thread reads a page, others that want it wait; whoever comes back from waiting looks again.
//! The faulting group pays. On any failure (no memory, an I/O error, a short read, a panic of the
//! storage) the page is as absent as before: the frame is freed, nothing stays charged, and those
//! who waited try for themselves.

use std::io;

use thiserror::Error;

use super::Core;
use super::slow::{AllocError, Patience};
use crate::cache::{FileEntry, Filling, PageKey, Presence};
use crate::group::{Charge, GroupNode, StatItem};
use crate::reclaim::{OnItsWay, pages_item};
use crate::units::{Pages, Pfn};

/// Rounds of one fault. A round ends because another thread filled or evicted the page meanwhile;
/// a page that this thread has filled itself is taken before it can be evicted.
const ROUNDS_MAX: u32 = 10_000;

/// A page could not be read. Nothing is cached and nothing is charged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The page is not in the mapping.
    #[error("page {page} is outside the mapping, which has {pages} pages from 0")]
    OutOfRange {
        /// The page asked for.
        page: u64,
        /// Pages in the mapping.
        pages: u64,
    },
    /// The page was unmapped.
    #[error("page {page} of the mapping was unmapped")]
    Unmapped {
        /// The page asked for.
        page: u64,
    },
    /// The file was opened for another kind of access.
    #[error("the file is open {is}, but the call is for files open {needs}")]
    Access {
        /// How it is open.
        is: &'static str,
        /// What the call needs.
        needs: &'static str,
    },
    /// The storage refused.
    #[error("reading page {page} failed: {source}")]
    Io {
        /// The page's number in its file.
        page: u64,
        /// Its reason.
        source: io::Error,
    },
    /// The storage gave less than the page has.
    #[error("reading page {page} fell short: {got} of {want} bytes; was the file truncated?")]
    Short {
        /// The page's number in its file.
        page: u64,
        /// Bytes read.
        got: usize,
        /// Bytes in the page.
        want: usize,
    },
    /// There is no memory for it.
    #[error("no memory for page {page}: {source}")]
    NoMemory {
        /// The page's number in its file.
        page: u64,
        /// Why.
        source: AllocError,
    },
    /// Other threads filled and evicted the page each time this one looked.
    #[error("page {page} came and went {rounds} times before it was caught: the pool is too small")]
    Starved {
        /// The page's number in its file.
        page: u64,
        /// How often.
        rounds: u32,
    },
}

/// A fill that is aborted unless it is finished: on an error, and on a panic of the storage.
struct Fill<'a> {
    core: &'a Core,
    parts: Option<(Filling, Charge)>,
}

impl Core {
    /// Brings a page in, unless it is there, and hands its frame to `take`, which may find that the
    /// page has left the frame again.
    pub(super) fn fault<R>(
        &self,
        file: &FileEntry,
        group: &GroupNode,
        key: PageKey,
        mut take: impl FnMut(Pfn) -> Option<R>,
    ) -> Result<R, ReadError> {
        self.stats.pgfault.add(1);
        group.add_stat(StatItem::Pgfault, 1);
        for _ in 0..ROUNDS_MAX {
            if let Presence::Resident(pfn) = self.cache.lookup(key) {
                match take(pfn) {
                    Some(taken) => return Ok(taken),
                    None => continue,
                }
            }
            let Some((fill, on_its_way)) = self.begin_fill(group, key)? else {
                continue;
            };
            let pfn = fill.read(file, group, key)?;
            // Taken before the page is on a list: until then nobody can evict it.
            let taken = take(pfn);
            // The read that brings a page in is not a reason to keep it; the next one is.
            self.cache.forget_young(pfn);
            self.reclaim.add_page(pfn, key);
            drop(on_its_way);
            return Ok(taken.expect("a page on no list stays"));
        }
        Err(ReadError::Starved {
            page: key.page(),
            rounds: ROUNDS_MAX,
        })
    }

    /// Takes memory for a page and enters it as being filled; `None` when another was first.
    fn begin_fill(
        &self,
        group: &GroupNode,
        key: PageKey,
    ) -> Result<Option<(Fill<'_>, OnItsWay)>, ReadError> {
        let no_memory = |source| ReadError::NoMemory {
            page: key.page(),
            source,
        };
        // What it owes is for the program to ask for: `Group::throttle`.
        let (charge, _owed) = self
            .charge(group, Pages(1), Patience::Fault)
            .map_err(|failed| no_memory(failed.into()))?;
        let frame = self.alloc_frame(group).map_err(no_memory)?;
        // Not before: those who wait for frames would wait for each other.
        let on_its_way = self.reclaim.page_on_its_way(group);
        match self.cache.begin_fill(key, frame, group.id()) {
            Ok(filling) => {
                let parts = Some((filling, charge));
                Ok(Some((Fill { core: self, parts }, on_its_way)))
            }
            Err(frame) => {
                self.pool.free(frame);
                Ok(None)
            }
        }
    }
}

impl Fill<'_> {
    /// Reads the page from its file and makes it resident.
    fn read(mut self, file: &FileEntry, group: &GroupNode, key: PageKey) -> Result<Pfn, ReadError> {
        let core = self.core;
        let (filling, _) = self.parts.as_mut().expect("present until finished");
        // Before: a page that has been read in is there.
        let is_major = file.is_stored(key.page());
        fill_from(file, key.page(), core.cache.filling_bytes(filling))?;
        if is_major {
            core.stats.pgmajfault.add(1);
            group.add_stat(StatItem::Pgmajfault, 1);
        }
        let (filling, charge) = self.parts.take().expect("present until finished");
        let pfn = core.cache.finish_fill(filling);
        file.note_filled();
        group.add_stat(pages_item(key.file().kind()), 1);
        // From here on the page pays, until it is evicted.
        let _paid_by_the_page = charge.disown();
        Ok(pfn)
    }
}

/// Reads one page; the last page of a file is zero beyond the file's end.
fn fill_from(file: &FileEntry, page: u64, bytes: &mut [u8]) -> Result<(), ReadError> {
    let want = file.backing().page_len(page);
    match file.backing().read_page(page, &mut bytes[..want]) {
        Ok(got) if got == want => {
            bytes[want..].fill(0);
            Ok(())
        }
        Ok(got) => Err(ReadError::Short { page, got, want }),
        Err(source) => Err(ReadError::Io { page, source }),
    }
}

impl Drop for Fill<'_> {
    fn drop(&mut self) {
        if let Some((filling, charge)) = self.parts.take() {
            let frame = self.core.cache.abort_fill(filling);
            self.core.pool.free(frame);
            drop(charge);
        }
    }
}
