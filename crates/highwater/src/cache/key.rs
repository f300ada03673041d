//! Page keys: file and page number in one word.

use std::fmt;

use super::file::FileId;

/// Bits of a page number: files of up to 2^44 pages (64 PiB).
const PAGE_BITS: u32 = 44;

/// File and page number, packed into one word that is not 0, so that it can be the tag that a frame
/// is published under.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey(u64);

impl PageKey {
    /// One more than the largest page number.
    pub const PAGES_MAX: u64 = 1 << PAGE_BITS;

    /// Returns the key of page `page` of a file.
    ///
    /// # Panics
    ///
    /// When `page` is [`PAGES_MAX`](Self::PAGES_MAX) or more: opening refuses such files.
    #[must_use]
    pub fn new(file: FileId, page: u64) -> Self {
        assert!(page < Self::PAGES_MAX, "page {page} of a file");
        Self(u64::from(file.get()) << PAGE_BITS | page)
    }

    /// Returns the key of a later page in the same file, which must exist.
    #[inline]
    pub(super) fn plus(self, pages: u64) -> Self {
        debug_assert!(self.page() + pages < Self::PAGES_MAX);
        Self(self.0 + pages)
    }

    /// Returns whether another page is the next one in the same file.
    pub(super) fn is_followed_by(self, other: Self) -> bool {
        other.page() > 0 && other.0 == self.0 + 1
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
    pub const fn page(self) -> u64 {
        self.0 & (Self::PAGES_MAX - 1)
    }

    /// Returns the page's file.
    #[must_use]
    pub const fn file(self) -> FileId {
        FileId::from_bits(self.0 >> PAGE_BITS)
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of {:?}", self.page(), self.file())
    }
}
