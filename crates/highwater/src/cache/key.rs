//! File numbers, which encode the kind of the file; and page keys: file and page number in one
//! word.

use std::fmt;

use crate::units::FilePage;

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

/// Number of an open file; its lowest bits encode the kind and access mode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u32);

/// Bits of a file number.
const FILE_BITS: u32 = 20;
/// Bits of those that encode kind and access mode.
const KIND_BITS: u32 = 2;
const READ_ONLY: u32 = 0;
const READ_WRITE: u32 = 1;
const ANON: u32 = 2;
const SHMEM: u32 = 3;

impl FileId {
    /// Maximum number of open files, mappings of anonymous memory included.
    pub const MAX: usize = (1 << (FILE_BITS - KIND_BITS)) - 2;

    pub(super) fn new(slot: usize, kind: FileKind, access: Access) -> Self {
        debug_assert!(slot < Self::MAX);
        let slot = u32::try_from(slot + 1).expect("at most `MAX` files are open");
        let kind = match (kind, access) {
            (FileKind::File, Access::ReadOnly) => READ_ONLY,
            (FileKind::File, Access::ReadWrite) => READ_WRITE,
            (FileKind::Anon, _) => ANON,
            (FileKind::Shmem, _) => SHMEM,
        };
        Self(slot << KIND_BITS | kind)
    }

    pub(super) fn slot(self) -> usize {
        (self.0 >> KIND_BITS) as usize - 1
    }

    /// Returns the file's number among the files of a cache, from 1.
    pub(crate) const fn number(self) -> u32 {
        self.0 >> KIND_BITS
    }

    /// Returns the file's kind.
    #[must_use]
    pub const fn kind(self) -> FileKind {
        match self.0 & ((1 << KIND_BITS) - 1) {
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

    const fn get(self) -> u32 {
        self.0
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper bits of a key are a file number"
    )]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits as u32)
    }

    /// Returns whether pages of the file have latches and can be dirty: false for read-only files.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.0 & ((1 << KIND_BITS) - 1) != READ_ONLY
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
        write!(f, "{kind} {}", self.0 >> KIND_BITS)
    }
}

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
    #[inline]
    pub fn new(file: FileId, page: impl Into<FilePage>) -> Self {
        let FilePage(page) = page.into();
        assert!(page < Self::PAGES_MAX, "page {page} of a file");
        Self(u64::from(file.get()) << PAGE_BITS | page)
    }

    /// Returns the key of a later page in the same file, which must exist.
    #[inline]
    pub(super) fn plus(self, pages: u64) -> Self {
        debug_assert!(self.page().0 + pages < Self::PAGES_MAX);
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
        FilePage(self.0 & (Self::PAGES_MAX - 1))
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
