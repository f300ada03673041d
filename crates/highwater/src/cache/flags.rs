//! Page flags: reclaim's per-page state between two scans.
//!
//! They are the kernel's page flags that a page cache needs and that are stored nowhere else: the
//! young bit is in the entries that map a page, the dirty mark beside its latch, and list
//! membership in its link.
//!
//! Invariant: a frame's flags are those of one page; they are reset when a fill begins.
//!
//! **Write-back and reclaim.** A thread that writes a page back sets a flag, under the page's
//! exclusive latch, and clears it when storage has answered, with success or not. Reclaim, which
//! holds no latch, flags a page that it finds under write-back; the thread that ends the write-back
//! then learns of it and has the page *rotated*. Both flags are in one word, and each step is one
//! atomic change of it:
//!
//! | step | before | after |
//! |---|---|---|
//! | begin | - | `Writeback` |
//! | await | `Writeback` | `Writeback`, `Reclaim` |
//! | await | - | unchanged: reclaim handles the page itself |
//! | end | `Writeback`, perhaps `Reclaim` | -; returns whether it was awaited |
//!
//! Changes of one word have one total order, whatever their orderings: either reclaim's comes
//! before the end, and the writer sees it, or it comes after, and reclaim sees that write-back has
//! ended. Neither is missed, and no flag is left behind. Checked by `reclaim`'s models.
//!
//! Source: `folio_end_writeback` of Linux. Deviation: there the flags change one after the other,
//! so a write-back that ends in between leaves `reclaim` set, and the flag is taken for another
//! one.

use super::PageCache;
use crate::sync::atomic::{AtomicU16, Ordering};
use crate::units::Pfn;

/// One flag of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PageFlag {
    /// Accessed once since reclaim last scanned it, apart from its entries' young bits.
    Referenced = 1,
    /// Belongs on an active list.
    Active = 1 << 1,
    /// Was active before: a refault of it is thrashing.
    Workingset = 1 << 2,
    /// Reclaim found it under write-back: it is rotated to be evicted next when that ends. Only set
    /// together with [`Writeback`](Self::Writeback).
    Reclaim = 1 << 3,
    /// Belongs on the unevictable list.
    Unevictable = 1 << 4,
    /// Swap-backed: evicted to swap, not to a file.
    Swapbacked = 1 << 5,
    /// Marked by readahead: its first reader opens the next window (module `readahead`).
    Readahead = 1 << 6,
    /// Read ahead, and not accessed yet.
    Unread = 1 << 7,
    /// Its last write-back failed or was partial.
    Refused = 1 << 8,
    /// Brought in without a request, and not accessed yet: its first access earns credit.
    Ahead = 1 << 11,
    /// An entry that maps it has counted an access since reclaim last
    /// [took](PageCache::take_accesses) them.
    Touched = 1 << 14,
    /// Under write-back: its storage has been asked to write it, and has not answered yet.
    Writeback = 1 << 10,
}

/// Beside [`PageFlag::Referenced`], the upper bit of an access count, for policies that count
/// accesses.
const REFERENCED_TWICE: u16 = 1 << 9;
const CREDIT: u16 = PageFlag::Referenced as u16 | REFERENCED_TWICE;
/// Accesses that no entry records and reclaim has not seen, up to three.
const FRESH_SHIFT: u32 = 12;
const FRESH: u16 = 3 << FRESH_SHIFT;

const WRITEBACK: u16 = PageFlag::Writeback as u16;
const AWAITED: u16 = PageFlag::Reclaim as u16;

/// Maximum of a frame's access counts.
pub const CREDIT_MAX: u32 = 3;

const fn credit_of(flags: u16) -> u32 {
    let [low, high] = [PageFlag::Referenced as u16, REFERENCED_TWICE];
    (flags & low != 0) as u32 + 2 * (flags & high != 0) as u32
}

const fn fresh_of(flags: u16) -> u32 {
    ((flags & FRESH) >> FRESH_SHIFT) as u32
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
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameFlags<'a>(&'a AtomicU16);

// Relaxed throughout: a flag describes its page and orders nothing. Flags for the page's list are
// written by the thread that has isolated it, or under the list's lock.
impl FrameFlags<'_> {
    pub(super) fn reset(self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn has(self, flag: PageFlag) -> bool {
        self.0.load(Ordering::Relaxed) & flag as u16 != 0
    }

    /// Sets a flag; returns whether it was set before. Stores nothing then.
    fn set(self, flag: PageFlag) -> bool {
        self.has(flag) || self.0.fetch_or(flag as u16, Ordering::Relaxed) & flag as u16 != 0
    }

    /// Clears a flag; returns whether it was set before. Stores nothing otherwise.
    fn clear(self, flag: PageFlag) -> bool {
        self.has(flag) && self.0.fetch_and(!(flag as u16), Ordering::Relaxed) & flag as u16 != 0
    }
}

impl FrameFlags<'_> {
    fn begin_writeback(self) {
        let was = self.0.fetch_or(WRITEBACK, Ordering::Relaxed);
        debug_assert_eq!(was & WRITEBACK, 0, "one writes it back at a time");
    }

    /// Ends the write-back; returns whether reclaim awaits the page.
    fn end_writeback(self) -> bool {
        let was = self.0.fetch_and(!(WRITEBACK | AWAITED), Ordering::Relaxed);
        debug_assert!(was & WRITEBACK != 0, "begun before");
        was & AWAITED != 0
    }

    /// Sets the await flag; returns whether it was set before, or `None` without a write-back,
    /// where it stores nothing.
    fn await_writeback(self) -> Option<bool> {
        let awaited = |flags| (flags & WRITEBACK != 0).then_some(flags | AWAITED);
        // Relaxed, both: a store follows the latest value. A stale value that shows no write-back
        // is as good as an earlier look.
        let was = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, awaited);
        was.ok().map(|was| was & AWAITED != 0)
    }
}

impl PageCache {
    pub(super) fn frame_flags(&self, pfn: Pfn) -> FrameFlags<'_> {
        FrameFlags(&self.flags[pfn.index()])
    }

    /// Marks a page as under write-back. The exclusive latch is held, and the page until the
    /// end.
    pub(super) fn begin_writeback(&self, pfn: Pfn) {
        self.frame_flags(pfn).begin_writeback();
    }

    /// Ends the write-back of a page; returns whether reclaim awaits the page.
    pub(super) fn end_writeback(&self, pfn: Pfn) -> bool {
        self.frame_flags(pfn).end_writeback()
    }

    /// Makes the thread that writes a page back rotate it, for reclaim, which has isolated it;
    /// returns whether it was awaited before. Returns `None`, without effect, if the page is not
    /// under write-back.
    pub fn await_writeback(&self, pfn: Pfn) -> Option<bool> {
        self.frame_flags(pfn).await_writeback()
    }

    /// Checks that no page is under write-back or awaited.
    pub(super) fn check_writeback(&self) {
        for (pfn, flags) in (0..).map(Pfn).zip(&self.flags) {
            // Relaxed: as above.
            let left = flags.load(Ordering::Relaxed) & (WRITEBACK | AWAITED);
            assert!(
                left == 0 || self.key_of(pfn).is_none(),
                "{pfn} is under write-back at rest: {left:#x}"
            );
        }
    }

    /// Returns whether a page has a flag.
    #[must_use]
    pub fn has_flag(&self, pfn: Pfn, flag: PageFlag) -> bool {
        self.frame_flags(pfn).has(flag)
    }

    /// Sets a flag of a page; returns whether it was set before.
    pub fn set_flag(&self, pfn: Pfn, flag: PageFlag) -> bool {
        self.frame_flags(pfn).set(flag)
    }

    /// Clears a flag of a page; returns whether it was set before.
    pub fn clear_flag(&self, pfn: Pfn, flag: PageFlag) -> bool {
        self.frame_flags(pfn).clear(flag)
    }

    /// Counts an access that no entry records, up to [`CREDIT_MAX`]. Stores nothing at that
    /// maximum.
    pub fn add_access(&self, pfn: Pfn) {
        let flags = &self.flags[pfn.index()];
        let more = |flags| (flags & FRESH != FRESH).then_some(flags + (1 << FRESH_SHIFT));
        // Relaxed, both: as above. No effect at the maximum.
        let added = flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if added.is_ok() {
            self.note_time(pfn);
        }
    }

    /// Records that an entry which maps the page has counted its first access.
    pub(super) fn note_touched(&self, pfn: Pfn) {
        // Release. Pairs with: the acquire of `take_touched`: a thread that clears the flag sees
        // the entry's mark. A change of the word in any case, since a thread that only saw the
        // flag set could not know whether it was cleared before or after the entry was searched.
        self.flags[pfn.index()].fetch_or(PageFlag::Touched as u16, Ordering::Release);
    }

    /// Returns whether entries may have counted accesses; clears the flag.
    pub(super) fn take_touched(&self, pfn: Pfn) -> bool {
        const TOUCHED: u16 = PageFlag::Touched as u16;
        // Acquire. Pairs with: the release of `note_touched`. Stores nothing if it is clear.
        self.has_flag(pfn, PageFlag::Touched)
            && self.flags[pfn.index()].fetch_and(!TOUCHED, Ordering::Acquire) & TOUCHED != 0
    }

    /// Takes the accesses that no entry records; returns their number.
    pub fn take_copies(&self, pfn: Pfn) -> u32 {
        let flags = &self.flags[pfn.index()];
        // Relaxed, both: as above. Stores nothing if there were none.
        match fresh_of(flags.load(Ordering::Relaxed)) {
            0 => 0,
            _ => fresh_of(flags.fetch_and(!FRESH, Ordering::Relaxed)),
        }
    }

    /// Returns whether there were accesses that no entry records.
    #[must_use]
    pub fn has_accesses(&self, pfn: Pfn) -> bool {
        // Relaxed: as above.
        let flags = self.flags[pfn.index()].load(Ordering::Relaxed);
        fresh_of(flags) > 0 || credit_of(flags) > 0
    }

    /// Adds to the count of accesses that reclaim has seen, up to [`CREDIT_MAX`].
    pub fn add_credit(&self, pfn: Pfn, accesses: u32) {
        let flags = &self.flags[pfn.index()];
        let more = |flags| {
            let credit = (credit_of(flags) + accesses).min(CREDIT_MAX);
            (credit_of(flags) != credit).then(|| with_credit(flags, credit))
        };
        // Relaxed, both: as above.
        _ = flags.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// Sets the count of accesses that reclaim has seen; returns the previous count.
    pub fn replace_credit(&self, pfn: Pfn, credit: u32) -> u32 {
        let flags = &self.flags[pfn.index()];
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
        // Goal: each count reads back unchanged and no other flag changes; a count of one equals a
        // reference.
        for flags in 0..=u16::MAX {
            for credit in 0..=CREDIT_MAX {
                let with = with_credit(flags, credit);
                assert_eq!(credit_of(with), credit);
                assert_eq!(with & !CREDIT, flags & !CREDIT);
            }
        }
        assert_eq!(credit_of(PageFlag::Referenced as u16), 1);
        for other in [PageFlag::Refused, PageFlag::Writeback, PageFlag::Ahead] {
            assert_eq!((CREDIT | FRESH) & other as u16, 0);
        }
        assert_eq!(CREDIT & FRESH, 0);
    }

    #[test]
    fn a_page_is_awaited_only_while_it_is_under_write_back() {
        // Goal: every row of the module's table, and no step changes another flag.
        for others in [0, !(WRITEBACK | AWAITED)] {
            let word = AtomicU16::new(others);
            let flags = FrameFlags(&word);
            assert_eq!(flags.await_writeback(), None);
            flags.begin_writeback();
            assert!(!flags.end_writeback());
            flags.begin_writeback();
            assert_eq!(flags.await_writeback(), Some(false));
            assert_eq!(flags.await_writeback(), Some(true));
            assert!(flags.has(PageFlag::Writeback) && flags.has(PageFlag::Reclaim));
            assert!(flags.end_writeback());
            assert_eq!(word.load(Ordering::Relaxed), others);
        }
    }
}
