//! Pages of atomic words that come and go one by one: all zero at first, without cost before they
//! are written, and given back to the system when they are zero again.

#[cfg(not(loom))]
use std::{
    alloc::{Layout, handle_alloc_error},
    ptr::{self, NonNull},
};

#[cfg(not(loom))]
use super::reservation::system_page_bytes;
#[cfg(loom)]
use super::words::zeroed;
use crate::sync::atomic::AtomicU64;
use crate::units::PAGE_SIZE;

/// Words of a page. Few in models.
pub(crate) const WORDS_OF_PAGE: usize = if cfg!(loom) { 2 } else { PAGE_SIZE / 8 };

/// A range of pages of words.
#[derive(Debug)]
pub(crate) struct SparseWords {
    #[cfg(not(loom))]
    first: NonNull<AtomicU64>,
    #[cfg(not(loom))]
    count: usize,
    #[cfg(loom)]
    words: Box<[AtomicU64]>,
}

// SAFETY: it alone unmaps the range, and nothing in it is tied to the thread that made it.
#[cfg(not(loom))]
unsafe impl Send for SparseWords {}
// SAFETY: shared use is of atomic words.
#[cfg(not(loom))]
unsafe impl Sync for SparseWords {}

#[cfg(not(loom))]
impl SparseWords {
    /// Reserves `pages` pages.
    ///
    /// # Cost
    ///
    /// Two system calls. Ends the process if there is no such address space, as other allocations
    /// do.
    ///
    /// # Panics
    ///
    /// For more bytes than an address space has.
    pub(crate) fn new(pages: usize) -> Self {
        let count = pages.checked_mul(WORDS_OF_PAGE).expect("it fits memory");
        let layout = Layout::array::<AtomicU64>(count).expect("it fits memory");
        if count == 0 {
            let first = NonNull::dangling();
            return Self { first, count };
        }
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
        // exists.
        let mapping = unsafe {
            libc::mmap(
                ptr::null_mut(),
                layout.size(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let first = match NonNull::new(mapping.cast::<AtomicU64>()) {
            Some(first) if mapping != libc::MAP_FAILED => first,
            _ => handle_alloc_error(layout),
        };
        // A huge page would commit 512 pages for one. Best effort.
        // SAFETY: the bytes belong to this mapping, and keep their contents.
        let _ = unsafe { libc::madvise(mapping, layout.size(), libc::MADV_NOHUGEPAGE) };
        Self { first, count }
    }

    /// Returns all words.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        let words = NonNull::slice_from_raw_parts(self.first, self.count);
        // SAFETY: the mapping has so many words, which the system made zero, and lives as long as
        // `self`; they are only ever used as atomics.
        unsafe { words.as_ref() }
    }

    /// Returns the memory of a page to the system, if that has pages of this size. All its words
    /// are zero, and no thread writes to them meanwhile: threads that read them find zeros before
    /// and after.
    ///
    /// # Cost
    ///
    /// A system call.
    pub(crate) fn decommit(&self, page: usize) {
        let words = &self.words()[page * WORDS_OF_PAGE..][..WORDS_OF_PAGE];
        if system_page_bytes() == Some(PAGE_SIZE) {
            let start = words.as_ptr().cast_mut().cast();
            // SAFETY: whole pages of this private mapping, whose words are zero before and after.
            // A refusal leaves them as they are.
            let _ = unsafe { libc::madvise(start, PAGE_SIZE, libc::MADV_DONTNEED) };
        }
    }
}

#[cfg(not(loom))]
impl Drop for SparseWords {
    fn drop(&mut self) {
        let len = self.count * size_of::<AtomicU64>();
        if len > 0 {
            // SAFETY: exactly the range that `new` mapped; borrowers of the words borrow `self`.
            let result = unsafe { libc::munmap(self.first.as_ptr().cast(), len) };
            debug_assert_eq!(result, 0, "unmapping what was mapped");
        }
    }
}

#[cfg(loom)]
impl SparseWords {
    pub(crate) fn new(pages: usize) -> Self {
        let words = zeroed(pages * WORDS_OF_PAGE);
        Self { words }
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Checks what the caller promises.
    pub(crate) fn decommit(&self, page: usize) {
        use crate::sync::atomic::Ordering;
        let words = &self.words()[page * WORDS_OF_PAGE..][..WORDS_OF_PAGE];
        // Relaxed: the caller's.
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
}
