//! File numbers, which encode the kind of the file and the size of its pages; and page keys: file
//! and page number in one word.

use std::fmt;

use crate::memmap::{ORDER_BITS, TAG_LARGE, TAG_ORDER_SHIFT, order_of_bits};
use crate::units::{FilePage, Order};

/// Access mode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its contents do not change while it is open.
    ReadOnly,
    /// Its pages may be written through the cache.
    ReadWrite,
}

/// Kind of a file object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A file: pages are read from it and written back to it.
    File,
    /// Anonymous memory: starts as zeros, is swapped out, and ends with its mapping.
    Anon,
    /// Shared memory: as anonymous, for any number of mappings.
    Shmem,
}

impl FileKind {
    /// Returns whether evicted pages go to swap. They are on the anonymous lists.
    #[must_use]
    pub const fn is_swap_backed(self) -> bool {
        matches!(self, Self::Anon | Self::Shmem)
    }
}

/// Number of an open file, with its kind, access mode and page size:
///
/// | bits | |
/// |---|---|
/// | 22 | whether its pages are larger than 4 KiB |
/// | 5 to 21 | the file's slot, from 1 |
/// | 3 and 4 | kind and access mode |
/// | 0 to 2 | order of its pages |
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u32);

const SLOT_BITS: u32 = 17;
const KIND_BITS: u32 = 2;
const SLOT_SHIFT: u32 = KIND_SHIFT + KIND_BITS;
const KIND_SHIFT: u32 = ORDER_BITS;
const LARGE: u32 = 1 << (SLOT_SHIFT + SLOT_BITS);
const _: () = assert!((LARGE as u64) << TAG_ORDER_SHIFT == TAG_LARGE);
const READ_ONLY: u32 = 0;
const READ_WRITE: u32 = 1;
const ANON: u32 = 2;
const SHMEM: u32 = 3;

impl FileId {
    /// Maximum number of open files, mappings of anonymous memory included.
    pub const MAX: usize = (1 << SLOT_BITS) - 2;

    pub(super) fn new(slot: usize, kind: FileKind, access: Access, order: Order) -> Self {
        debug_assert!(slot < Self::MAX);
        let slot = u32::try_from(slot + 1).expect("at most `MAX` files are open");
        let large = if order == Order::ZERO { 0 } else { LARGE };
        let kind = match (kind, access) {
            (FileKind::File, Access::ReadOnly) => READ_ONLY,
            (FileKind::File, Access::ReadWrite) => READ_WRITE,
            (FileKind::Anon, _) => ANON,
            (FileKind::Shmem, _) => SHMEM,
        };
        Self(large | slot << SLOT_SHIFT | kind << KIND_SHIFT | u32::from(order.get()))
    }

    pub(super) fn slot(self) -> usize {
        self.number() as usize - 1
    }

    /// Returns the file's number among the files of a cache, from 1.
    pub(crate) const fn number(self) -> u32 {
        self.0 >> SLOT_SHIFT & ((1 << SLOT_BITS) - 1)
    }

    /// Returns the order of the file's pages: 0 for 4 KiB.
    #[must_use]
    #[inline]
    pub const fn order(self) -> Order {
        order_of_bits(self.0 as u64)
    }

    /// Returns the number of pages that a file of this page size may have: 2^44, or 2^41 if its
    /// pages are larger than 4 KiB.
    #[must_use]
    #[inline]
    pub const fn pages_max(self) -> u64 {
        PageKey::pages_max_of(self.order())
    }

    const fn kind_bits(self) -> u32 {
        self.0 >> KIND_SHIFT & ((1 << KIND_BITS) - 1)
    }

    /// Returns the file's kind.
    #[must_use]
    pub const fn kind(self) -> FileKind {
        match self.kind_bits() {
            READ_ONLY | READ_WRITE => FileKind::File,
            ANON => FileKind::Anon,
            _ => FileKind::Shmem,
        }
    }

    /// Returns the access mode that the file was opened for.
    #[must_use]
    pub const fn access(self) -> Access {
        match self.is_writable() {
            true => Access::ReadWrite,
            false => Access::ReadOnly,
        }
    }

    /// Returns whether pages of the file have latches and can be dirty: false for read-only files.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.kind_bits() != READ_ONLY
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            FileKind::File if self.is_writable() => "writable file",
            FileKind::File => "file",
            FileKind::Anon => "anon",
            FileKind::Shmem => "shmem",
        };
        write!(f, "{kind} {}", self.number())
    }
}

/// File and page number, packed into one word that is not 0, so that it can be the tag that a frame
/// is published under: the file's number, in the upper 23 bits, and the page's. The lowest bits of
/// the file's number, the order of its pages, are 0 if these are of 4 KiB, which leaves them to the
/// page's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey(u64);

impl PageKey {
    /// One more than the largest page number, for pages of 4 KiB: files of up to 64 PiB.
    pub const PAGES_MAX: u64 = 1 << (TAG_ORDER_SHIFT + ORDER_BITS);
    /// One more than the largest page number, for larger pages.
    pub const LARGE_PAGES_MAX: u64 = 1 << TAG_ORDER_SHIFT;

    /// Returns one more than the largest page number, for pages of an order.
    #[must_use]
    pub const fn pages_max_of(order: Order) -> u64 {
        match order.get() {
            0 => Self::PAGES_MAX,
            _ => Self::LARGE_PAGES_MAX,
        }
    }

    /// Returns the key of page `page` of a file.
    ///
    /// # Panics
    ///
    /// When `page` is [`FileId::pages_max`] or more: opening refuses such files.
    #[must_use]
    #[inline]
    pub fn new(file: FileId, page: impl Into<FilePage>) -> Self {
        let FilePage(page) = page.into();
        assert!(page < file.pages_max(), "page {page} of a file");
        Self(u64::from(file.0) << TAG_ORDER_SHIFT | page)
    }

    /// Returns the key of a later page in the same file, which must exist.
    #[inline]
    pub(super) fn plus(self, pages: u64) -> Self {
        debug_assert!(self.page().0 + pages < self.file().pages_max());
        Self(self.0 + pages)
    }

    /// Returns whether another page is the next one in the same file.
    pub(super) fn is_followed_by(self, other: Self) -> bool {
        other.page() > FilePage(0) && other.0 == self.0 + 1
    }

    /// Returns the key whose [`get`](Self::get) is `word`, or `None` for 0.
    pub(crate) const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self(word)) }
    }

    /// Returns the key as one word.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the page's number in its file.
    #[must_use]
    pub const fn page(self) -> FilePage {
        let max = match self.0 & TAG_LARGE {
            0 => Self::PAGES_MAX,
            _ => Self::LARGE_PAGES_MAX,
        };
        FilePage(self.0 & (max - 1))
    }

    /// Returns the page's file.
    #[must_use]
    pub const fn file(self) -> FileId {
        let bits = (self.0 >> TAG_ORDER_SHIFT) as u32;
        match self.0 & TAG_LARGE {
            0 => FileId(bits >> ORDER_BITS << ORDER_BITS),
            _ => FileId(bits),
        }
    }

    /// Returns the order of the page's frame: 0 for 4 KiB.
    #[must_use]
    #[inline]
    pub const fn order(self) -> Order {
        self.file().order()
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of {:?}", self.page(), self.file())
    }
}
