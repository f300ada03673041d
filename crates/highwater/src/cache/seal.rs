//! Sealing: copies of pages that storage completes before they are written.
//!
//! The copy is made and written under the page's exclusive latch, as a page without a seal is
//! written: so the image is that of one moment, whose LSN was checked, and two write-backs of a
//! page do not overtake each other. Copies are aligned like frames, for storage that wraps direct
//! I/O.

use super::FileEntry;
use super::PageCache;
use super::aligned::AlignedBytes;
use crate::memmap::Frame;
use crate::units::FilePage;

/// A page as it is written.
pub(super) enum Image<'f> {
    /// The cached one.
    Own(&'f [u8]),
    /// A copy that was sealed.
    Sealed(AlignedBytes),
}

impl Image<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Sealed(copy) => copy,
        }
    }
}

impl PageCache {
    /// Returns a page as it is to be written: sealed, if its storage asks for that. The exclusive
    /// latch is held. Panics if the storage does.
    pub(super) fn image<'f>(
        &'f self,
        page: FilePage,
        frame: &'f Frame,
        file: &FileEntry,
    ) -> Image<'f> {
        let (bytes, backing) = (self.memory.bytes(frame), file.backing());
        let bytes = &bytes[..file.page_len(page)];
        if !backing.seals() {
            return Image::Own(bytes);
        }
        let mut copy = AlignedBytes::copy_of(bytes);
        backing.seal(page, &mut copy);
        Image::Sealed(copy)
    }
}
