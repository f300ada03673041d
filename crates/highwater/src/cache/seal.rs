//! Sealing: copies of pages that storage completes before they are written.
//!
//! The copy is made and written under the hold of write-back, as a page without a seal is written:
//! so the image is that of one moment, whose LSN was checked, and two write-backs of a page do not
//! overtake each other. Copies are aligned like frames, for storage that wraps direct
//! I/O.

use super::FileEntry;
use super::aligned::AlignedBytes;
use crate::units::FilePage;

/// A page as it is written.
pub(super) enum Image<'f> {
    /// The cached one.
    Own(&'f [u8]),
    /// A copy that was sealed.
    Sealed(AlignedBytes),
}

impl<'f> Image<'f> {
    /// Returns a page as it is to be written: sealed, if its storage asks for that. Panics if the
    /// storage does.
    pub(super) fn of(page: FilePage, bytes: &'f [u8], file: &FileEntry) -> Self {
        let (bytes, backing) = (&bytes[..file.page_len(page)], file.backing());
        if !backing.seals() {
            return Self::Own(bytes);
        }
        let mut copy = AlignedBytes::copy_of(bytes);
        backing.seal(page, &mut copy);
        Self::Sealed(copy)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Sealed(copy) => copy,
        }
    }
}
