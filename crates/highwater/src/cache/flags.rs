//! Flags of the page that a frame holds: what reclaim remembers of it between two looks.
//!
//! They are the kernel's page flags that a page cache needs and that are kept nowhere else: whether a
//! page is young is in the entries that map it, whether it is dirty beside its latch, and whether it is
//! on a list in its link.
//!
//! Invariant: a frame's flags are those of one page; they are reset when a fill begins.

use super::PageCache;
use crate::sync::atomic::{AtomicU16, Ordering};
use crate::units::Pfn;

/// One flag of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
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
    /// Its storage refused it when it was last to be written back, or took a part only.
    Refused = 1 << 8,
}

/// Beside [`PageFlag::Referenced`], the upper bit of a count of accesses, for policies that count them.
const REFERENCED_TWICE: u16 = 1 << 9;
const CREDIT: u16 = PageFlag::Referenced as u16 | REFERENCED_TWICE;

/// Accesses that a frame's flags can count.
pub const CREDIT_MAX: u32 = 3;

const fn credit_of(flags: u16) -> u32 {
    let [low, high] = [PageFlag::Referenced as u16, REFERENCED_TWICE];
    (flags & low != 0) as u32 + 2 * (flags & high != 0) as u32
}

const fn with_credit(flags: u16, credit: u32) -> u16 {
    let low = if credit & 1 != 0 {
        PageFlag::Referenced as u16
    } else {
        0
    };
    let high = if credit & 2 != 0 { REFERENCED_TWICE } else { 0 };
    flags & !CREDIT | low | high
}

/// The flags of one frame.
/// Written by: readers and reclaimers, each flag on its own. Read by: reclaim. Publishes: nothing.
#[derive(Debug, Default)]
pub(super) struct FrameFlags(AtomicU16);

// Relaxed throughout: a flag says something about its page and orders nothing. Those that say where a
// page belongs are written by whoever has it off the lists, or holds their lock.
impl FrameFlags {
    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn has(&self, flag: PageFlag) -> bool {
        self.0.load(Ordering::Relaxed) & flag as u16 != 0
    }

    /// Whether it was set before. Stores nothing then.
    fn set(&self, flag: PageFlag) -> bool {
        self.has(flag) || self.0.fetch_or(flag as u16, Ordering::Relaxed) & flag as u16 != 0
    }

    /// Whether it was set before. Stores nothing otherwise.
    fn clear(&self, flag: PageFlag) -> bool {
        self.has(flag) && self.0.fetch_and(!(flag as u16), Ordering::Relaxed) & flag as u16 != 0
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

    /// Counts an access that no entry tells of, up to [`CREDIT_MAX`]. Stores nothing then.
    pub fn add_credit(&self, pfn: Pfn) {
        let flags = &self.flags[pfn.index()].0;
        let more = |flags| {
            let credit = credit_of(flags);
            (credit < CREDIT_MAX).then(|| with_credit(flags, credit + 1))
        };
        // Relaxed, both: as above. It has no effect where there is nothing to count.
        _ = flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Whether there were accesses that no entry tells of.
    #[must_use]
    pub fn has_credit(&self, pfn: Pfn) -> bool {
        // Relaxed: as above.
        credit_of(self.flags[pfn.index()].0.load(Ordering::Relaxed)) > 0
    }

    /// Sets the count of accesses that no entry tells of; what it was.
    pub fn replace_credit(&self, pfn: Pfn, credit: u32) -> u32 {
        let flags = &self.flags[pfn.index()].0;
        let replace = |flags| (credit_of(flags) != credit).then(|| with_credit(flags, credit));
        // Relaxed, both: as above.
        let was = flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, replace);
        credit_of(was.unwrap_or_else(|same| same))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn credit_is_a_number_beside_the_other_flags() {
        // Goal: each count is read back and no other flag is touched; a count of one is a reference.
        for flags in 0..=u16::MAX {
            for credit in 0..=CREDIT_MAX {
                let with = with_credit(flags, credit);
                assert_eq!(credit_of(with), credit);
                assert_eq!(with & !CREDIT, flags & !CREDIT);
            }
        }
        assert_eq!(credit_of(PageFlag::Referenced as u16), 1);
        assert_eq!(CREDIT & PageFlag::Refused as u16, 0);
    }
}
