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
//! step on the word (an install into a leaf that may be punched takes two, below), so that each
//! installed frame is taken out once.
//!
//! Entries are in leaves, which are allocated when a page of theirs is first installed and need not
//! be visited before. A table of up to 2^18 pages (1 GiB) has one flat array, in memory that the
//! system commits as it is written: one load reaches an entry. In a larger table each leaf has its
//! own memory. A leaf has 512 entries, or up to 2^18 if the table would otherwise have more than
//! 16,384 leaves.
//!
//! A leaf with own memory that is unmapped as a whole is *punched*: its absent entries are holes,
//! and are not written, or a mapping with a few pages in each of many leaves would commit its whole
//! table when it goes. An install *reserves* an absent entry of such memory, looks whether the leaf
//! is punched, and only then makes the entry present, if it is still reserved by the same call. So
//! no hole is ever present, also not for a moment.
//!
//! The module `leaves` holds the directory of leaves: a table costs memory for the parts in use,
//! whatever its length.
//!
//! Deviation: unlike hardware tables, at most two levels, and no dirty bit, because writers mark
//! the frame itself under its latch.

use std::fmt;
use std::iter;
use std::ops::Range;
use std::ptr;

use super::leaves::{LEAVES_SHIFT, Leaf, Leaves, OwnLeaf};
use crate::memmap::zeroed;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread;
use crate::units::Pfn;

/// Entries of a leaf, as a power of two: one page of them. Few in models.
const LEAF_SHIFT_MIN: u32 = if cfg!(loom) { 1 } else { 9 };
/// At most this many entries, 2 MiB, are allocated at once or form a flat array.
const LEAF_SHIFT_MAX: u32 = if cfg!(loom) { 2 } else { 18 };

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
    /// Set in an entry that is absent and about to be made present, in a leaf with own memory.
    const RESERVED: u64 = 1 << 59;
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

    /// Returns the reservation of one call, which knows it by an address on its stack: no other
    /// call makes an entry equal to it.
    fn reserved_by<T>(local: &T) -> Self {
        let address = ptr::from_ref(local).addr() as u64;
        Self(Self::RESERVED | address & (Self::RESERVED - 1))
    }

    const fn is_reserved(self) -> bool {
        self.0 & (Self::PRESENT | Self::RESERVED) == Self::RESERVED
    }

    const fn is_absent(self) -> bool {
        self.0 == Self::ABSENT.0 || self.is_reserved()
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
    side_by_side: Box<[AtomicU64]>,
    leaves: Leaves,
    leaf_shift: u32,
    /// The part of a page's number that indexes its leaf.
    slot_mask: u64,
    len: u64,
    /// Maximum of the access count.
    young_max: u32,
}

impl PageTable {
    /// Creates a table of `len` pages, all absent, which counts up to `young_max` accesses, at most
    /// 3.
    pub(super) fn new(len: u64, young_max: u32) -> Self {
        debug_assert!(young_max <= Entry::YOUNG_MAX, "{young_max} accesses");
        let bits = len.max(1).next_power_of_two().ilog2();
        let leaf_shift = bits
            .saturating_sub(LEAVES_SHIFT)
            .clamp(LEAF_SHIFT_MIN, LEAF_SHIFT_MAX);
        let nr_side_by_side = if bits <= LEAF_SHIFT_MAX { len } else { 0 };
        let nr_leaves = len.div_ceil(1 << leaf_shift);
        Self {
            side_by_side: entries(nr_side_by_side),
            leaves: Leaves::new(nr_leaves),
            leaf_shift,
            slot_mask: (1 << leaf_shift) - 1,
            len,
            young_max,
        }
    }

    /// Returns a page's current entry.
    #[inline]
    pub(super) fn get(&self, page: u64) -> Entry {
        // Relaxed: the frame's own word decides.
        let entry = match self.existing(page) {
            Some(Some(word)) => Entry(word.load(Ordering::Relaxed)),
            Some(None) => return Entry::HOLE,
            None => return Entry::ABSENT,
        };
        if !entry.is_absent() {
            return entry;
        }
        match self.own_leaf(page).is_some_and(OwnLeaf::is_punched) {
            true => Entry::HOLE,
            false => Entry::ABSENT,
        }
    }

    /// Returns a page's current entry, if the table has a flat array.
    #[inline(always)]
    pub(super) fn get_at_once(&self, page: u64) -> Option<Entry> {
        // Entries of a leaf that was not allocated, or of holes, are absent.
        let word = self.side_by_side.get(usize::try_from(page).ok()?)?;
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
        let word = self.existing(page)??;
        let touched = seen.touched(self.young_max);
        // Relaxed: the page's flag orders it. Failure means that the entry changed meanwhile, and
        // loses one access: at worst a second chance.
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
        let Some(word) = self.word(page) else {
            return Installed::Hole;
        };
        let own = self.own_leaf(page);
        // Relaxed: the exchange below decides.
        let mut seen = Entry(word.load(Ordering::Relaxed));
        // Terminates: an entry that fails the exchange has become present, swapped or a hole, or
        // was marked, or reserved by another thread, which gets time to go on.
        loop {
            if seen.is_hole() {
                return Installed::Hole;
            }
            if let Some(there) = seen.pfn() {
                assert_eq!(there, pfn, "page {page} of a mapping is in two frames");
                return Installed::Before;
            }
            if let Some(own) = own.filter(|_| seen.is_absent()) {
                match own.reserve(word, seen, Entry::reserved_by(&seen)) {
                    Reserved::By(this) => seen = this,
                    Reserved::Hole => return Installed::Hole,
                    Reserved::Changed(now) => {
                        seen = now;
                        continue;
                    }
                }
            }
            let present = Entry::present(pfn).touched(self.young_max);
            // Release. Pairs with: the acquire of `clear` and `punch`: the count that the caller
            // raised is lowered after that, never before.
            match word.compare_exchange(seen.0, present.0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) if seen.is_absent() => return Installed::Now(Entry::ABSENT),
                Ok(_) => return Installed::Now(seen),
                Err(now) => seen = Entry(now),
            }
        }
    }

    /// Clears an entry that names `pfn` and leaves `left`. Returns the former entry, or `None` if
    /// it named another frame or none.
    pub(super) fn clear(&self, page: u64, pfn: Pfn, left: Left) -> Option<Entry> {
        let word = self.existing(page).flatten()?;
        let left = match left {
            Left::Absent => Entry::ABSENT,
            Left::Swapped => Entry::SWAPPED,
        };
        // Relaxed: the exchange below decides.
        let mut seen = Entry(word.load(Ordering::Relaxed));
        // Terminates: it fails only when the mark has grown, which is bounded, or the frame is
        // gone.
        while seen.pfn() == Some(pfn) {
            // Acquire. Pairs with: the release of `install`.
            match word.compare_exchange(seen.0, left.0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(seen),
                Err(now) => seen = Entry(now),
            }
        }
        None
    }

    /// Clears the swap mark of entries whose pages are no longer in swap; returns their number.
    pub(super) fn take_swapped(&self, pages: Range<u64>, is_swapped: impl Fn(u64) -> bool) -> i64 {
        let mut taken = 0;
        for (page, word) in self.made_within(pages) {
            // Relaxed, all: it publishes nothing.
            let (seen, absent) = (Entry(word.load(Ordering::Relaxed)), Entry::ABSENT.0);
            if seen.is_swapped() && !is_swapped(page) {
                let result =
                    word.compare_exchange(seen.0, absent, Ordering::Relaxed, Ordering::Relaxed);
                taken += i64::from(result.is_ok());
            }
        }
        taken
    }

    /// Turns pages into holes; calls `taken` with each former entry that was not absent.
    pub(super) fn punch(&self, pages: Range<u64>, mut taken: impl FnMut(u64, Entry)) {
        let mut page = pages.start;
        while page < pages.end {
            let index = self.leaf_index(page);
            let first = (index as u64) << self.leaf_shift;
            let last = (first + (1 << self.leaf_shift)).min(self.len);
            let end = last.min(pages.end);
            let behind = self.leaves.behind_block(index);
            let block_end = (behind as u64) << self.leaf_shift;
            // A whole block of holes needs no leaves,
            if page == first && block_end.min(self.len) <= pages.end && self.leaves.punch(index) {
                page = block_end;
                continue;
            }
            // nor does a whole leaf of holes need entries.
            let place = self.leaves.place(index);
            let is_whole = page == first && end == last;
            if is_whole && place.is_none_or(|place| place.set(Leaf::Holes).is_ok()) {
                page = end;
                continue;
            }
            let leaf = self.leaf(index);
            // Absent entries of a leaf that was punched as a whole are holes.
            let is_punched = self.own_leaf(page).is_some_and(|own| {
                if is_whole {
                    own.punch();
                }
                own.is_punched()
            });
            for page in page..end {
                let Some(word) = leaf.get(self.slot(page)) else {
                    break;
                };
                // Relaxed: an entry that is reserved later is not made present.
                if is_punched && word.load(Ordering::Relaxed) == Entry::ABSENT.0 {
                    continue;
                }
                // Acquire. Pairs with: the release of `install`.
                let was = Entry(word.swap(Entry::HOLE.0, Ordering::Acquire));
                if !was.is_absent() && !was.is_hole() {
                    taken(page, was);
                }
            }
            page = end;
        }
    }

    /// Clears the entries that name a frame, of some pages; calls `taken` with each former entry.
    pub(super) fn zap(&self, pages: Range<u64>, mut taken: impl FnMut(Entry)) {
        for (page, word) in self.made_within(pages) {
            // Relaxed: `clear` decides.
            let seen = Entry(word.load(Ordering::Relaxed)).pfn();
            let was = seen.and_then(|pfn| self.clear(page, pfn, Left::Absent));
            was.into_iter().for_each(&mut taken);
        }
    }

    /// Clears the young mark of an entry that names `pfn`; returns the former mark.
    pub(super) fn take_young(&self, page: u64, pfn: Pfn) -> u32 {
        let Some(word) = self.existing(page).flatten() else {
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
    pub(super) fn for_each(&self, mut visit: impl FnMut(u64, Entry)) {
        for (page, word) in self.made_within(0..self.len) {
            // Relaxed: for quiescent moments.
            let entry = Entry(word.load(Ordering::Relaxed));
            if entry.pfn().is_some() || entry.is_swapped() {
                visit(page, entry);
            }
        }
    }

    /// Returns the number of allocated places, of leaves and of blocks.
    #[cfg(test)]
    pub(super) fn places_made(&self) -> usize {
        self.leaves.places_made()
    }

    /// Returns the number of entries that were written and are not absent.
    #[cfg(test)]
    pub(super) fn entries_written(&self) -> usize {
        self.made_within(0..self.len)
            .filter(|(_, word)| word.load(Ordering::Relaxed) != Entry::ABSENT.0)
            .count()
    }

    /// Iterates over the words of some pages, but for those of leaves that were not allocated or
    /// are of holes.
    fn made_within(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, &AtomicU64)> {
        let mut next = pages.start;
        let leaves = iter::from_fn(move || {
            // Terminates: `next` rises.
            while next < pages.end {
                let (page, index) = (next, self.leaf_index(next));
                if !self.leaves.is_block_made(index) {
                    next = (self.leaves.behind_block(index) as u64) << self.leaf_shift;
                    continue;
                }
                next = ((index as u64 + 1) << self.leaf_shift).min(pages.end);
                let words = self
                    .made(index)
                    .and_then(|leaf| leaf.get(self.slot(page)..));
                return Some((page..next).zip(words.unwrap_or_default()));
            }
            None
        });
        leaves.flatten()
    }

    /// Returns a page's word if its leaf was allocated: `Some(None)` in a leaf of holes.
    #[inline]
    fn existing(&self, page: u64) -> Option<Option<&AtomicU64>> {
        let index = usize::try_from(page >> self.leaf_shift).ok()?;
        Some(self.made(index)?.get(self.slot(page)))
    }

    /// Returns a page's word; `None` in a leaf of holes.
    fn word(&self, page: u64) -> Option<&AtomicU64> {
        self.leaf(self.leaf_index(page)).get(self.slot(page))
    }

    /// Returns the entries of a leaf, if it was allocated; none for holes.
    #[inline]
    fn made(&self, index: usize) -> Option<&[AtomicU64]> {
        let leaf = self.leaves.get(index)?;
        Some(self.entries_of(index, leaf))
    }

    fn leaf(&self, index: usize) -> &[AtomicU64] {
        let Some(place) = self.leaves.place(index) else {
            return &[];
        };
        let leaf = place.get_or_init(|| {
            if !self.side_by_side.is_empty() {
                return Leaf::SideBySide;
            }
            let first = (index as u64) << self.leaf_shift;
            let entries = entries((self.len - first).min(1 << self.leaf_shift));
            Leaf::Own(OwnLeaf::new(entries))
        });
        self.entries_of(index, leaf)
    }

    #[inline]
    fn entries_of<'t>(&'t self, index: usize, leaf: &'t Leaf) -> &'t [AtomicU64] {
        match leaf {
            Leaf::Holes => &[],
            Leaf::SideBySide => {
                let (first, len) = (index << self.leaf_shift, 1 << self.leaf_shift);
                let rest = &self.side_by_side[first..];
                &rest[..rest.len().min(len)]
            }
            Leaf::Own(own) => &own.entries,
        }
    }

    /// Returns a page's leaf, if it was allocated and has own memory.
    fn own_leaf(&self, page: u64) -> Option<&OwnLeaf> {
        match self.leaves.get(self.leaf_index(page))? {
            Leaf::Own(own) => Some(own),
            Leaf::Holes | Leaf::SideBySide => None,
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a table fits memory")]
    fn leaf_index(&self, page: u64) -> usize {
        (page >> self.leaf_shift) as usize
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a leaf fits memory")]
    fn slot(&self, page: u64) -> usize {
        (page & self.slot_mask) as usize
    }
}

/// Returns `count` entries, all [`Entry::ABSENT`].
#[expect(clippy::cast_possible_truncation, reason = "entries fit memory")]
fn entries(count: u64) -> Box<[AtomicU64]> {
    zeroed(count as usize)
}

/// Result of reserving an absent entry.
enum Reserved {
    /// It is reserved, and may be made present as long as it is.
    By(Entry),
    /// The page was unmapped.
    Hole,
    /// It was changed meanwhile.
    Changed(Entry),
}

impl OwnLeaf {
    /// Makes an entry that was seen as absent, or as reserved by another thread, `this`.
    fn reserve(&self, word: &AtomicU64, seen: Entry, this: Entry) -> Reserved {
        if self.is_punched() {
            return Reserved::Hole;
        }
        let exchange = |from: Entry, to: Entry| {
            // Relaxed, both: it names no frame, and the fence orders it.
            let result = word.compare_exchange(from.0, to.0, Ordering::Relaxed, Ordering::Relaxed);
            result.map_err(|now| Reserved::Changed(Entry(now)))
        };
        // The other call is about to go on. Models search both orders anyway.
        if seen.is_reserved() && !cfg!(loom) {
            thread::yield_now();
        }
        if let Err(changed) = exchange(seen, this) {
            return changed;
        }
        if !self.is_punched_now() {
            return Reserved::By(this);
        }
        match exchange(this, Entry::HOLE) {
            Ok(_) => Reserved::Hole,
            Err(changed) => changed,
        }
    }
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
