//! Flags of the page that a frame holds: what reclaim remembers of it between two looks.
//!
//! They are the kernel's page flags that a page cache needs and that are kept nowhere else: whether a
//! page is young is in the entries that map it, whether it is dirty beside its latch, and whether it is
//! on a list in its link.
//!
//! Invariant: a frame's flags are those of one page; they are reset when a fill begins.

use super::PageCache;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::units::Pfn;

/// One flag of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageFlag {
    /// Accessed once since reclaim last looked, as far as is known without its entries.
    Referenced = 1,
    /// Belongs on an active list.
    Active = 1 << 1,
    /// Was active before: if it is evicted and comes back, that is thrashing.
    Workingset = 1 << 2,
    /// Seen dirty at the end of the inactive list: to be freed as soon as it is clean.
    Reclaim = 1 << 3,
    /// Belongs on the unevictable list.
    Unevictable = 1 << 4,
    /// Goes to swap when it is evicted, not to a file.
    Swapbacked = 1 << 5,
    /// Who finds it resident reads the next window (module `readahead`).
    Readahead = 1 << 6,
    /// Was read ahead, and nobody has asked for it yet.
    Unread = 1 << 7,
}

/// The flags of one frame.
/// Written by: readers and reclaimers, each flag on its own. Read by: reclaim. Publishes: nothing.
#[derive(Debug, Default)]
pub(super) struct FrameFlags(AtomicU8);

// Relaxed throughout: a flag says something about its page and orders nothing. Those that say where a
// page belongs are written by whoever has it off the lists, or holds their lock.
impl FrameFlags {
    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn has(&self, flag: PageFlag) -> bool {
        self.0.load(Ordering::Relaxed) & flag as u8 != 0
    }

    /// Whether it was set before. Stores nothing then.
    fn set(&self, flag: PageFlag) -> bool {
        self.has(flag) || self.0.fetch_or(flag as u8, Ordering::Relaxed) & flag as u8 != 0
    }

    /// Whether it was set before. Stores nothing otherwise.
    fn clear(&self, flag: PageFlag) -> bool {
        self.has(flag) && self.0.fetch_and(!(flag as u8), Ordering::Relaxed) & flag as u8 != 0
    }
}

impl PageCache {
    /// Whether a page has a flag.
    #[must_use]
    pub fn has_flag(&self, pfn: Pfn, flag: PageFlag) -> bool {
        self.flags[pfn.index()].has(flag)
    }

    /// Sets a flag of a page; whether it was set before.
    pub fn set_flag(&self, pfn: Pfn, flag: PageFlag) -> bool {
        self.flags[pfn.index()].set(flag)
    }

    /// Clears a flag of a page; whether it was set before.
    pub fn clear_flag(&self, pfn: Pfn, flag: PageFlag) -> bool {
        self.flags[pfn.index()].clear(flag)
    }
}
