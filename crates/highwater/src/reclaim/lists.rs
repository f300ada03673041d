//! The LRU lists and their links.
//!
//! Lists are threaded through one array of links, indexed by frame, that all groups share; a
//! frame's link belongs to the group that pays for its page and is touched only under that group's
//! lruvec lock.
//!
//! Invariant: a link's `list` names the list that the frame is on; none means isolated, in an add
//! batch, or not a page. Lengths are the number of links on each list. A page counts once whatever
//! its size; the number of frames is kept beside, for statistics in amounts of memory.

use super::recency::Recency;
use crate::memmap::zeroed;
use crate::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use crate::units::{Order, Pages, Pfn};

const NIL: u32 = u32::MAX;
/// Word of a link that is on no list; others are the list's number plus one, and the order of the
/// page's frame above.
const UNLISTED: u8 = 0;
const ORDER_SHIFT: u32 = 4;

/// Backing of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageType {
    /// Anonymous or shared memory: swap-backed.
    Anon,
    /// A page of a file.
    File,
}

impl PageType {
    /// Both, in the kernel's order.
    pub const ALL: [Self; 2] = [Self::Anon, Self::File];

    /// Returns a list of this type.
    #[must_use]
    pub const fn list(self, side: Side) -> LruList {
        match side {
            Side::Inactive => self.inactive(),
            Side::Active => self.active(),
        }
    }

    /// Returns the list of this type's pages that were accessed at most once.
    #[must_use]
    pub const fn inactive(self) -> LruList {
        match self {
            Self::Anon => LruList::InactiveAnon,
            Self::File => LruList::InactiveFile,
        }
    }

    /// Returns the list of this type's pages in the working set.
    #[must_use]
    pub const fn active(self) -> LruList {
        match self {
            Self::Anon => LruList::ActiveAnon,
            Self::File => LruList::ActiveFile,
        }
    }
}

/// One of the two lists of pages of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The inactive list.
    Inactive,
    /// The active list.
    Active,
}

impl Side {
    /// Returns the other list.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Inactive => Self::Active,
            Self::Active => Self::Inactive,
        }
    }
}

/// The list of its type at whose head a page is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The inactive list.
    Inactive,
    /// The active list.
    Active,
    /// The unevictable list.
    Unevictable,
}

impl From<Side> for Placement {
    fn from(side: Side) -> Self {
        match side {
            Side::Inactive => Self::Inactive,
            Side::Active => Self::Active,
        }
    }
}

impl From<LruList> for Placement {
    fn from(list: LruList) -> Self {
        match list {
            LruList::Unevictable => Self::Unevictable,
            list if list.is_active() => Self::Active,
            _ => Self::Inactive,
        }
    }
}

/// One of a group's lists, in the kernel's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LruList {
    /// Evictable anonymous pages.
    InactiveAnon,
    /// Anonymous pages of the working set.
    ActiveAnon,
    /// Evictable file pages.
    InactiveFile,
    /// File pages of the working set.
    ActiveFile,
    /// Pages that are never evicted. Reclaim does not scan them.
    Unevictable,
}

impl LruList {
    /// All lists.
    pub const ALL: [Self; Self::COUNT] = [
        Self::InactiveAnon,
        Self::ActiveAnon,
        Self::InactiveFile,
        Self::ActiveFile,
        Self::Unevictable,
    ];

    /// Number of lists.
    pub const COUNT: usize = 5;

    /// Returns whether the list holds pages of the working set.
    #[must_use]
    pub const fn is_active(self) -> bool {
        matches!(self, Self::ActiveAnon | Self::ActiveFile)
    }

    /// Returns the type of its pages, unless they are never evicted.
    pub(super) const fn page_type(self) -> Option<PageType> {
        match self {
            Self::InactiveAnon | Self::ActiveAnon => Some(PageType::Anon),
            Self::InactiveFile | Self::ActiveFile => Some(PageType::File),
            Self::Unevictable => None,
        }
    }

    /// Returns the list that a link's word names.
    fn of_word(word: u8) -> Option<Self> {
        let number = word & ((1 << ORDER_SHIFT) - 1);
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Returns the word that [`of_word`](Self::of_word) decodes.
    const fn word(self, order: Order) -> u8 {
        (self as u8 + 1) | (order.get() << ORDER_SHIFT)
    }
}

/// A frame's link: the next and previous frame, valid while it is on a list, and the list's word.
/// Written by and read under: the lruvec lock of the page's group. The word is also read under the
/// locks of other groups, and publishes the page's group.
type Link = (AtomicU32, AtomicU32, AtomicU8);

/// The links of all frames.
pub(super) struct Links(Box<[Link]>);

/// Heads and tails of one group's lists.
#[derive(Debug, Default)]
pub(super) struct Lists {
    lists: [List; LruList::COUNT],
    /// The order of accesses to the pages of each type, from its first page on, if the policy is
    /// bounded by LRU.
    recency: [Option<Box<Recency>>; 2],
    /// Whether the group was removed; its pages are then the parent's.
    pub(super) is_dead: bool,
}

#[derive(Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u64,
    frames: u64,
}

impl Default for List {
    fn default() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            len: 0,
            frames: 0,
        }
    }
}

impl Lists {
    pub(super) fn len(&self, list: LruList) -> u64 {
        self.lists[list as usize].len
    }

    /// Returns the number of frames that hold the pages of a list.
    pub(super) fn frames(&self, list: LruList) -> u64 {
        self.lists[list as usize].frames
    }

    /// Returns the length of both lists of a type.
    pub(super) fn len_of(&self, page_type: PageType) -> u64 {
        self.len(page_type.inactive()) + self.len(page_type.active())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.iter().all(|list| list.len == 0)
    }

    /// Returns the order of the pages of a type; creates it for the first page.
    pub(super) fn recency(&mut self, page_type: PageType) -> &mut Recency {
        self.recency[page_type as usize].get_or_insert_default()
    }

    /// Returns the orders of both types, as far as there are any.
    pub(super) fn orders(&mut self) -> impl Iterator<Item = &mut Recency> {
        self.recency.iter_mut().filter_map(Option::as_deref_mut)
    }
}

// Relaxed below, where no comment says otherwise: links are touched only under their lruvec's lock.
impl Links {
    pub(super) fn new(frames: Pages) -> Self {
        let nr_frames = usize::try_from(frames.0).expect("frames fit memory");
        Self(zeroed(nr_frames)) // all `UNLISTED`
    }

    fn next(&self, frame: u32) -> Option<&AtomicU32> {
        self.0.get(frame as usize).map(|link| &link.0)
    }

    fn prev(&self, frame: u32) -> Option<&AtomicU32> {
        self.0.get(frame as usize).map(|link| &link.1)
    }

    pub(super) fn nr_frames(&self) -> usize {
        self.0.len()
    }

    /// Returns the list that a page is on. If its group is read afterwards, that is the list's, or
    /// one that the page had later.
    pub(super) fn list_of(&self, pfn: Pfn) -> Option<LruList> {
        // Acquire. Pairs with: `store_list`.
        LruList::of_word(self.0[pfn.index()].2.load(Ordering::Acquire))
    }

    /// Stores the word of a page's list.
    fn store_list(word: &AtomicU8, to: LruList, order: Order) {
        // Release. Pairs with: `list_of`. The page's group was set before it is put on a list.
        word.store(to.word(order), Ordering::Release);
    }

    /// Puts a page, whose frame is of `order`, at the head.
    pub(super) fn push_head(&self, lists: &mut Lists, pfn: Pfn, to: LruList, order: Order) {
        let (next, prev, word) = &self.0[pfn.index()];
        assert_eq!(self.list_of(pfn), None, "{pfn} is on a list already");
        let list = &mut lists.lists[to as usize];
        Self::store_list(word, to, order);
        prev.store(NIL, Ordering::Relaxed);
        next.store(list.head, Ordering::Relaxed);
        match self.prev(list.head) {
            Some(before_head) => before_head.store(pfn.0, Ordering::Relaxed),
            None => list.tail = pfn.0,
        }
        list.head = pfn.0;
        list.len += 1;
        list.frames += order.pages().0;
    }

    /// Puts a page at the tail, which reclaim scans first.
    pub(super) fn push_tail(&self, lists: &mut Lists, pfn: Pfn, to: LruList, order: Order) {
        let (next, prev, word) = &self.0[pfn.index()];
        assert_eq!(self.list_of(pfn), None, "{pfn} is on a list already");
        let list = &mut lists.lists[to as usize];
        Self::store_list(word, to, order);
        next.store(NIL, Ordering::Relaxed);
        prev.store(list.tail, Ordering::Relaxed);
        match self.next(list.tail) {
            Some(after_tail) => after_tail.store(pfn.0, Ordering::Relaxed),
            None => list.head = pfn.0,
        }
        list.tail = pfn.0;
        list.len += 1;
        list.frames += order.pages().0;
    }

    pub(super) fn pop_tail(&self, lists: &mut Lists, from: LruList) -> Option<Pfn> {
        let tail = self.tail(lists, from)?;
        self.unlink(lists, tail);
        Some(tail)
    }

    pub(super) fn tail(&self, lists: &Lists, from: LruList) -> Option<Pfn> {
        let tail = lists.lists[from as usize].tail;
        (tail != NIL).then_some(Pfn(tail))
    }

    /// Returns the number of frames of a page that is on a list.
    pub(super) fn frames_of(&self, pfn: Pfn) -> u64 {
        1 << (self.0[pfn.index()].2.load(Ordering::Relaxed) >> ORDER_SHIFT)
    }

    /// Removes a page from its list.
    pub(super) fn unlink(&self, lists: &mut Lists, pfn: Pfn) {
        let (next, prev, word) = &self.0[pfn.index()];
        let from = self.list_of(pfn);
        let from = from.unwrap_or_else(|| unreachable!("{pfn} is on no list"));
        let list = &mut lists.lists[from as usize];
        let (next, prev) = (next.load(Ordering::Relaxed), prev.load(Ordering::Relaxed));
        debug_assert!(
            (prev == NIL) == (list.head == pfn.0) && (next == NIL) == (list.tail == pfn.0),
            "{pfn} and the ends of {from:?} disagree"
        );
        match self.next(prev) {
            Some(after_prev) => after_prev.store(next, Ordering::Relaxed),
            None => list.head = next,
        }
        match self.prev(next) {
            Some(before_next) => before_next.store(prev, Ordering::Relaxed),
            None => list.tail = prev,
        }
        list.len -= 1;
        list.frames -= self.frames_of(pfn);
        word.store(UNLISTED, Ordering::Relaxed);
    }

    /// Checks one list, and calls `look` with each page on it.
    pub(super) fn check(&self, lists: &Lists, id: LruList, mut look: impl FnMut(Pfn)) {
        let list = &lists.lists[id as usize];
        let (mut at, mut prev, mut len, mut frames) = (list.head, NIL, 0, 0);
        while at != NIL {
            let (next, before, _) = &self.0[at as usize];
            assert_eq!(self.list_of(Pfn(at)), Some(id), "F{at}");
            assert_eq!(before.load(Ordering::Relaxed), prev, "F{at}");
            look(Pfn(at));
            frames += self.frames_of(Pfn(at));
            (prev, at, len) = (at, next.load(Ordering::Relaxed), len + 1);
        }
        assert_eq!(
            (list.tail, list.len, list.frames),
            (prev, len, frames),
            "tail and length of {id:?}"
        );
    }
}
