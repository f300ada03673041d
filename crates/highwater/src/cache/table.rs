//! Software page tables: the frames of a mapping's pages.
//!
//! A table has one word for each page of its mapping, its *entry*:
//!
//! ```text
//! absent --install--> present(frame, young) --clear--> absent | swapped
//!    \-------------------- punch ----------> hole <--/           (for ever)
//! ```
//!
//! A *hole* is a page that was unmapped. An entry says where a page is, not that it may be
//! accessed: the frame's tag or latch decides that, so a stale entry costs a second lookup and
//! nothing else. The *young* mark counts accesses since reclaim last scanned the entry, up to the
//! number that the cache uses.
//!
//! A thread that holds the page (borrow, pin or latch) may install; any thread may clear; the
//! thread that clears an entry lowers the frame's count (`mapcount`). Each transition is one atomic
//! step on the word, so that each installed frame is taken out once.
//!
//! A table of up to 2^18 pages (1 GiB) is one flat array, in memory that the system commits as it
//! is written: one load reaches an entry. A larger one has leaves of 512 entries, which come with
//! the first page that is installed there, and go with the last (module `leaves`): it costs memory
//! for the parts in use, whatever its length.
//!
//! Entries that are unmapped as a whole leaf are not written, if none was in use.
//!
//! Deviation: unlike hardware tables, up to 512 GiB at most two levels, and no dirty bit, because
//! writers mark the frame itself under its latch.

use std::fmt;
use std::ops::Range;

use super::leaves::{HeldLeaf, Leaves};
use super::nodes::NODE_SHIFT;
use crate::memmap::zeroed;
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::units::Pfn;

/// Most entries of a flat array, 2 MiB, as a power of two. Few in models.
const FLAT_SHIFT: u32 = if cfg!(loom) { 2 } else { 18 };
/// Entries of a leaf, or of a part of a flat array that is known to be unused.
const LEAF: u64 = 1 << NODE_SHIFT;

/// Contents of an entry: one word, changed by [`PageTable`] only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry(u64);

// The access count fits its bits.
const _: () = assert!(super::CREDIT_MAX <= Entry::YOUNG_MAX);

impl Entry {
    /// The frame's number is the low half.
    pub(super) const ABSENT: Self = Self(0);
    const SWAPPED: Self = Self(1 << 32);
    const HOLE: Self = Self(1 << 33);
    const PRESENT: u64 = 1 << 60;
    const YOUNG_SHIFT: u32 = 61;
    const YOUNG: u64 = (Self::YOUNG_MAX as u64) << Self::YOUNG_SHIFT;
    const YOUNG_MAX: u32 = 0b11;
    /// Present, and a further access would not be counted: the sign bit, so that the test needs no
    /// constant.
    const OFTEN: u64 = 1 << 63;

    const fn present(pfn: Pfn) -> Self {
        Self(pfn.0 as u64 | Self::PRESENT)
    }

    /// Returns the frame that a present entry names.
    #[inline]
    pub(super) const fn pfn(self) -> Option<Pfn> {
        if self.0 & Self::PRESENT == 0 {
            return None;
        }
        Some(self.low_half())
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "it is half a word")]
    const fn low_half(self) -> Pfn {
        Pfn(self.0 as u32)
    }

    /// Returns the counted accesses since the mark was last cleared.
    #[inline]
    pub(super) const fn young(self) -> u32 {
        ((self.0 & Self::YOUNG) >> Self::YOUNG_SHIFT) as u32
    }

    /// Returns the frame that an entry names, if a further access would not be counted.
    #[inline(always)]
    pub(super) const fn often_accessed(self) -> Option<Pfn> {
        if self.0 & Self::OFTEN == 0 {
            return None;
        }
        debug_assert!(self.pfn().is_some());
        Some(self.low_half())
    }

    pub(super) const fn is_swapped(self) -> bool {
        self.0 == Self::SWAPPED.0
    }

    pub(super) const fn is_hole(self) -> bool {
        self.0 == Self::HOLE.0
    }

    const fn without_young(self) -> Self {
        Self(self.0 & !(Self::YOUNG | Self::OFTEN))
    }

    /// Returns the entry with one access more, up to `young_max`.
    const fn touched(self, young_max: u32) -> Self {
        if self.young() >= young_max {
            return Self(self.0 | Self::OFTEN);
        }
        let more = self.0 + (1 << Self::YOUNG_SHIFT);
        let is_often = Self(more).young() == young_max;
        Self(more | if is_often { Self::OFTEN } else { 0 })
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pfn() {
            Some(pfn) => write!(f, "{pfn} young {}", self.young()),
            None if self.is_hole() => f.write_str("hole"),
            None if self.is_swapped() => f.write_str("swapped"),
            None => f.write_str("absent"),
        }
    }
}

/// Result of installing a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Installed {
    /// This call made the entry name the frame; the former entry.
    Now(Entry),
    /// The entry named the frame already.
    Before,
    /// The page was unmapped.
    Hole,
}

/// The entries of one mapping.
pub(super) struct PageTable {
    /// The entries of a table of up to 2^18 pages; empty for a larger one.
    flat: Box<[AtomicU64]>,
    /// By part of the flat array: a [`part`]. Written by: threads that install there first, or
    /// unmap all of it. Read by: any thread. Publishes: nothing; a thread that is told of an
    /// entry sees the part in use.
    parts: Box<[AtomicU8]>,
    /// The entries of a larger table.
    leaves: Option<Leaves>,
    len: u64,
    /// Maximum of the access count.
    young_max: u32,
}

/// States of a part of a flat array.
mod part {
    pub(super) const UNUSED: u8 = 0;
    pub(super) const USED: u8 = 1;
    /// All entries are holes, and none is written.
    pub(super) const HOLES: u8 = 2;
}

impl PageTable {
    /// Creates a table of `len` pages, all absent, which counts up to `young_max` accesses, at most
    /// 3.
    pub(super) fn new(len: u64, young_max: u32) -> Self {
        debug_assert!(young_max <= Entry::YOUNG_MAX, "{young_max} accesses");
        let is_flat = len <= 1 << FLAT_SHIFT;
        let nr_flat = if is_flat { index_of(len) } else { 0 };
        Self {
            flat: zeroed(nr_flat),
            parts: zeroed(nr_flat.div_ceil(index_of(LEAF))),
            leaves: (!is_flat).then(|| Leaves::new(len)),
            len,
            young_max,
        }
    }

    /// Returns a page's current entry. One that names a frame is a hint: in a large table it may be
    /// another page's, whose leaf is where the page's own was a moment before.
    #[inline]
    pub(super) fn get(&self, page: u64) -> Entry {
        // Relaxed: the frame's own word decides.
        let hint = self
            .word(page)
            .map(|word| Entry(word.load(Ordering::Relaxed)));
        match hint {
            Some(entry) if entry.pfn().is_some() => entry,
            _ => self.get_exactly(page),
        }
    }

    /// Returns whether a page was unmapped.
    pub(super) fn is_hole(&self, page: u64) -> bool {
        self.get_exactly(page).is_hole()
    }

    /// As [`get`](Self::get), but an entry that names a frame was the page's, unless the page was
    /// absent or swapped meanwhile. Pages behind the end are absent.
    fn get_exactly(&self, page: u64) -> Entry {
        if page >= self.len {
            return Entry::ABSENT;
        }
        let Some(leaves) = &self.leaves else {
            let is_holes = self.part_of(page).load(Ordering::Relaxed) == part::HOLES;
            let entry = Entry(self.flat[index_of(page)].load(Ordering::Relaxed));
            return if is_holes { Entry::HOLE } else { entry };
        };
        let (leaf, slot) = split(page);
        match leaves.look(leaf, slot).map(Entry) {
            Some(entry) if entry == Entry::ABSENT || entry.pfn().is_some() => entry,
            _ => match leaves.hold_or_lock(leaf) {
                HeldLeaf::Leaf(hold) => Entry(hold.words[slot].load(Ordering::Relaxed)),
                HeldLeaf::Nothing => Entry::ABSENT,
                HeldLeaf::Holes => Entry::HOLE,
            },
        }
    }

    /// Returns a page's current entry, if the table is flat.
    #[inline(always)]
    pub(super) fn get_at_once(&self, page: u64) -> Option<Entry> {
        // Entries of an unused part, or of holes, are absent.
        let word = self.flat.get(usize::try_from(page).ok()?)?;
        // Relaxed: as in `get`.
        Some(Entry(word.load(Ordering::Relaxed)))
    }

    /// Counts an access through an entry that was seen as `seen` and names a frame; returns the
    /// accesses that it had counted before, or `None` if it counts no more.
    #[inline]
    pub(super) fn touch(&self, page: u64, seen: Entry) -> Option<u32> {
        match seen.often_accessed() {
            None => self.touch_slowly(page, seen),
            Some(_) => None,
        }
    }

    #[cold]
    fn touch_slowly(&self, page: u64, seen: Entry) -> Option<u32> {
        let word = self.word(page)?;
        // Before the exchange, which commits memory also where it fails.
        if word.load(Ordering::Relaxed) != seen.0 {
            return None;
        }
        let touched = seen.touched(self.young_max);
        // Relaxed: the page's flag orders it. Failure means that the entry changed meanwhile, and
        // loses one access: at worst a second chance. In a leaf that has become another one since,
        // the access counts for another page that was in the frame.
        let result = word.compare_exchange(seen.0, touched.0, Ordering::Relaxed, Ordering::Relaxed);
        result.is_ok().then(|| seen.young())
    }

    /// Makes an entry name the frame that holds its page, accessed once. The caller holds the page
    /// and has raised the frame's count; unless the result is [`Installed::Now`], it must lower the
    /// count again.
    ///
    /// # Panics
    ///
    /// When the entry names another frame: a page is in one frame at a time.
    pub(super) fn install(&self, page: u64, pfn: Pfn) -> Installed {
        let Some(leaves) = &self.leaves else {
            return match self.use_part(page) {
                true => self.install_in(&self.flat[index_of(page)], page, pfn),
                false => Installed::Hole,
            };
        };
        let (leaf, slot) = split(page);
        let Some(hold) = leaves.hold_or_make(leaf) else {
            return Installed::Hole;
        };
        let installed = self.install_in(&hold.words[slot], page, pfn);
        if installed == Installed::Now(Entry::ABSENT) {
            hold.keep_for_entry();
        }
        installed
    }

    fn install_in(&self, word: &AtomicU64, page: u64, pfn: Pfn) -> Installed {
        // Relaxed: the exchange below decides.
        let mut seen = Entry(word.load(Ordering::Relaxed));
        // Terminates: an entry that fails the exchange has become present, swapped or a hole, or
        // was marked.
        loop {
            if seen.is_hole() {
                return Installed::Hole;
            }
            if let Some(there) = seen.pfn() {
                assert_eq!(there, pfn, "page {page} of a mapping is in two frames");
                return Installed::Before;
            }
            let present = Entry::present(pfn).touched(self.young_max);
            // Release. Pairs with: the acquire of `clear_in` and `punch_in`: the count that the
            // caller raised is lowered after that, never before.
            match word.compare_exchange(seen.0, present.0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Installed::Now(seen),
                Err(now) => seen = Entry(now),
            }
        }
    }

    /// Clears an entry that names `pfn` and leaves `left`. Returns the former entry, or `None` if
    /// it named another frame or none.
    pub(super) fn clear(&self, page: u64, pfn: Pfn, left: Left) -> Option<Entry> {
        let left = match left {
            Left::Absent => Entry::ABSENT,
            Left::Swapped => Entry::SWAPPED,
        };
        self.change(page, |word| {
            // Relaxed: the exchange below decides.
            let mut seen = Entry(word.load(Ordering::Relaxed));
            // Terminates: it fails only when the mark has grown, which is bounded, or the frame is
            // gone.
            while seen.pfn() == Some(pfn) {
                // Acquire. Pairs with: the release of `install_in`.
                match word.compare_exchange(seen.0, left.0, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Some((seen, left)),
                    Err(now) => seen = Entry(now),
                }
            }
            None
        })
    }

    /// Changes an entry by `step`, which returns it as it was, and as it is now; not one of a leaf
    /// that is not there.
    fn change(
        &self,
        page: u64,
        step: impl FnOnce(&AtomicU64) -> Option<(Entry, Entry)>,
    ) -> Option<Entry> {
        let Some(leaves) = &self.leaves else {
            return step(&self.flat[index_of(page)]).map(|(was, _)| was);
        };
        let (leaf, slot) = split(page);
        let HeldLeaf::Leaf(mut hold) = leaves.hold(leaf) else {
            return None;
        };
        let (was, is) = step(&hold.words[slot])?;
        debug_assert!(was != Entry::ABSENT, "an entry is filled by `install`");
        hold.end_for_entries(u64::from(is == Entry::ABSENT));
        Some(was)
    }

    /// Clears the swap mark of entries whose pages are no longer in swap; returns their number.
    pub(super) fn take_swapped(&self, pages: Range<u64>, is_swapped: impl Fn(u64) -> bool) -> i64 {
        let mut taken = 0;
        self.for_each_within(pages, |page, seen| {
            if seen.is_swapped() && !is_swapped(page) {
                let (from, to) = (Entry::SWAPPED, Entry::ABSENT);
                let was = self.change(page, |word| {
                    // Relaxed, both: it publishes nothing.
                    let result =
                        word.compare_exchange(from.0, to.0, Ordering::Relaxed, Ordering::Relaxed);
                    result.is_ok().then_some((from, to))
                });
                taken += i64::from(was.is_some());
            }
        });
        taken
    }

    /// Turns pages into holes; calls `taken` with each former entry that was not absent.
    pub(super) fn punch(&self, pages: Range<u64>, mut taken: impl FnMut(u64, Entry)) {
        // The leaves that are punched as a whole.
        let last = if pages.end == self.len {
            pages.end.next_multiple_of(LEAF)
        } else {
            pages.end
        };
        let whole = pages.start.div_ceil(LEAF)..last / LEAF;
        let mut page = pages.start;
        while page < pages.end {
            let leaf = page / LEAF;
            let end = (leaf + 1).saturating_mul(LEAF).min(pages.end);
            page = match &self.leaves {
                None => self.punch_part(page..end, &whole, &mut taken),
                Some(leaves) => punch_leaf(leaves, page..end, &whole, &mut taken).min(pages.end),
            };
        }
    }

    /// Punches a part of a flat array, if it is among `whole`, or some pages of it; returns the
    /// page behind.
    fn punch_part(
        &self,
        pages: Range<u64>,
        whole: &Range<u64>,
        taken: &mut impl FnMut(u64, Entry),
    ) -> u64 {
        let state = self.part_of(pages.start);
        let is_whole = whole.contains(&(pages.start / LEAF));
        let (from, to) = match is_whole {
            true => (part::UNUSED, part::HOLES),
            false => (part::UNUSED, part::USED),
        };
        // Relaxed, both: see the field. One exchange decides between this and an install.
        let was = state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        if was != Err(part::HOLES) && !(is_whole && was.is_ok()) {
            for page in pages.clone() {
                punch_in(&self.flat[index_of(page)], page, taken);
            }
        }
        pages.end
    }

    /// Clears the entries that name a frame, of some pages; calls `taken` with each former entry.
    pub(super) fn zap(&self, pages: Range<u64>, mut taken: impl FnMut(Entry)) {
        self.for_each_within(pages, |page, seen| {
            let was = seen
                .pfn()
                .and_then(|pfn| self.clear(page, pfn, Left::Absent));
            was.into_iter().for_each(&mut taken);
        });
    }

    /// Clears the young mark of an entry that names `pfn`; returns the former mark.
    pub(super) fn take_young(&self, page: u64, pfn: Pfn) -> u32 {
        let Some(word) = self.word(page) else {
            return 0;
        };
        let young =
            |seen| Some(Entry(seen)).filter(|seen| seen.pfn() == Some(pfn) && seen.young() > 0);
        // Relaxed, both: the page's flag orders it. Not left for another access meanwhile: only the
        // first one sets that flag.
        let taken = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seen| {
            Some(young(seen)?.without_young().0)
        });
        taken.map_or(0, |seen| Entry(seen).young())
    }

    /// Calls `visit` for each page whose entry names a frame or is swapped.
    pub(super) fn for_each(&self, visit: impl FnMut(u64, Entry)) {
        self.for_each_within(0..self.len, visit);
    }

    /// As [`for_each`](Self::for_each), for some pages. Each entry is a hint.
    fn for_each_within(&self, pages: Range<u64>, mut visit: impl FnMut(u64, Entry)) {
        let mut page = pages.start;
        // Terminates: it rises.
        while let Some((first, words)) = self.next_used(page).filter(|(at, _)| *at < pages.end) {
            page = (first / LEAF + 1) * LEAF;
            for (page, word) in (first..page.min(pages.end)).zip(words) {
                // Relaxed: the caller decides by another step.
                let entry = Entry(word.load(Ordering::Relaxed));
                if entry.pfn().is_some() || entry.is_swapped() {
                    visit(page, entry);
                }
            }
        }
    }

    /// Returns the first page from `page` on whose part or leaf is in use, and the words from it
    /// on.
    fn next_used(&self, page: u64) -> Option<(u64, &[AtomicU64])> {
        let (leaf, slot) = split(page);
        let (found, words) = match &self.leaves {
            Some(leaves) => leaves.next_made(leaf)?,
            None => {
                let parts = self.parts.get(index_of(leaf)..)?;
                // Relaxed: see the field.
                let is_used = |state: &AtomicU8| state.load(Ordering::Relaxed) == part::USED;
                let found = leaf + parts.iter().position(is_used)? as u64;
                (found, &self.flat[index_of(found * LEAF)..])
            }
        };
        let skipped = if found == leaf { slot } else { 0 };
        Some((found * LEAF + skipped as u64, &words[skipped..]))
    }

    /// Returns the number of pages of leaves and of their directory in use.
    #[cfg(test)]
    pub(super) fn nr_nodes(&self) -> usize {
        self.leaves.as_ref().map_or(0, |leaves| leaves.nr_used())
    }

    /// Returns a page's word, as a hint: in a large table it may be another page's by now.
    #[inline]
    fn word(&self, page: u64) -> Option<&AtomicU64> {
        let Some(leaves) = &self.leaves else {
            return self.flat.get(index_of(page));
        };
        let (leaf, slot) = split(page);
        leaves.word(leaf, slot)
    }

    fn part_of(&self, page: u64) -> &AtomicU8 {
        &self.parts[index_of(page / LEAF)]
    }

    /// Marks a page's part of the flat array as used; returns false for holes.
    fn use_part(&self, page: u64) -> bool {
        let state = self.part_of(page);
        // Relaxed, all: see the field.
        if state.load(Ordering::Relaxed) == part::USED {
            return true;
        }
        let (from, to) = (part::UNUSED, part::USED);
        let was = state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        was != Err(part::HOLES)
    }
}

/// Turns pages of one leaf into holes, or the unused subtree that its leaf would be in, if that is
/// among `whole`; returns the page behind.
fn punch_leaf(
    leaves: &Leaves,
    pages: Range<u64>,
    whole: &Range<u64>,
    taken: &mut impl FnMut(u64, Entry),
) -> u64 {
    let (leaf, slot) = split(pages.start);
    let is_whole = whole.contains(&leaf);
    if is_whole && let Some(behind) = leaves.punch_unused(leaf, whole) {
        return behind.saturating_mul(LEAF);
    }
    let Some(hold) = leaves.hold_or_make(leaf) else {
        return pages.end;
    };
    let words = pages.clone().zip(&hold.words[slot..]);
    let filled = words.filter(|(page, word)| punch_in(word, *page, taken) == Entry::ABSENT);
    hold.take_for_entries(filled.count() as u64);
    if is_whole {
        leaves.turn_into_holes(hold, leaf, pages.end - pages.start);
    }
    pages.end
}

/// Makes an entry a hole; calls `taken` with the former entry, if it was not absent or a hole.
fn punch_in(word: &AtomicU64, page: u64, taken: &mut impl FnMut(u64, Entry)) -> Entry {
    // Acquire. Pairs with: the release of `install_in`.
    let was = Entry(word.swap(Entry::HOLE.0, Ordering::Acquire));
    if was != Entry::ABSENT && !was.is_hole() {
        taken(page, was);
    }
    was
}

/// Returns the leaf of a page, and the page's slot in it.
#[inline]
fn split(page: u64) -> (u64, usize) {
    (page / LEAF, index_of(page % LEAF))
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "arrays fit memory")]
fn index_of(page: u64) -> usize {
    page as usize
}

/// State of an entry after it is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The page is in its file.
    Absent,
    /// The page was swapped out.
    Swapped,
}

impl fmt::Debug for PageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageTable")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
