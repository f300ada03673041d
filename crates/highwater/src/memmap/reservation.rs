//! One reserved range of real memory (mmap).
//!
//! The whole range is mapped at creation, without swap reservation; the system commits memory as it
//! is first touched, in huge pages where it can ([`HUGE_BYTES`] alignment, `MADV_HUGEPAGE`).

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use thiserror::Error;

use crate::units::{Bytes, PAGE_BYTES, PAGE_SIZE, Pages, Pfn};

/// Size and alignment of a huge page on x86-64 and most ARM systems.
const HUGE_BYTES: usize = 2 << 20;
/// Frames of such an area.
pub(crate) const HUGE_FRAMES: u32 = 512;
const _: () = assert!(HUGE_FRAMES as usize * PAGE_SIZE == HUGE_BYTES);

/// Whether the system is to use huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugePages {
    /// Where it can, also later (`khugepaged`).
    Wanted,
    /// In no place that has none.
    Unwanted,
}

/// Reserving or releasing memory failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MapError {
    /// The size is outside the allowed range.
    #[error("cannot reserve {requested}: the size must be 4 KiB to {max}, in whole pages")]
    Size {
        /// The requested size.
        requested: Bytes,
        /// The maximum.
        max: Bytes,
    },
    /// The machine has less memory.
    #[error("cannot cut frames from {requested}: the machine has {memory} of memory")]
    AboveMachine {
        /// The requested size.
        requested: Bytes,
        /// The machine's memory.
        memory: Bytes,
    },
    /// The system refused.
    #[error("the system refused to reserve {requested} of address space: {source}")]
    System {
        /// The requested size.
        requested: Bytes,
        /// The system's error.
        source: io::Error,
    },
}

/// Returns the machine's memory; `None` if the system does not tell.
pub(super) fn memory_of_machine() -> Option<Bytes> {
    // SAFETY: asks for a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: asks for a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let (pages, page_bytes) = (u64::try_from(pages).ok()?, u64::try_from(page_bytes).ok()?);
    Some(Bytes(pages.checked_mul(page_bytes)?)).filter(|bytes| *bytes > Bytes(0))
}

/// A page-aligned range of memory, unmapped when dropped.
#[derive(Debug)]
pub struct Reservation {
    /// First byte handed out; aligned to [`HUGE_BYTES`].
    base: NonNull<u8>,
    pages: u32,
    /// The whole mapping, with the slack that alignment needed.
    mapping: NonNull<libc::c_void>,
    mapping_len: usize,
}

// SAFETY: a reservation is a range of addresses that it alone unmaps; nothing in it is tied to the
// thread that made it, and its methods that touch bytes state the conditions for calling them.
unsafe impl Send for Reservation {}
// SAFETY: as above: shared use is governed by the contracts of the unsafe methods.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// The largest reservation: frame numbers are 32 bits wide and two of them are marks.
    pub const MAX: Pages = Pages(u32::MAX as u64 - 2);

    /// Reserves `pages` pages of zeroed memory and asks for huge pages.
    ///
    /// # Cost
    ///
    /// Two system calls; memory is committed when it is touched.
    ///
    /// # Errors
    ///
    /// [`MapError::Size`] for no pages or more than [`Reservation::MAX`]; [`MapError::System`] when
    /// the system has no such range.
    ///
    /// # Panics
    ///
    /// Never: a page-aligned address has a huge-aligned one within 2 MiB.
    pub fn new(pages: Pages) -> Result<Self, MapError> {
        let requested = pages.bytes();
        let refused = || MapError::Size {
            requested,
            max: Self::MAX.bytes(),
        };
        if pages == Pages::ZERO || pages > Self::MAX {
            return Err(refused());
        }
        let nr_pages = u32::try_from(pages.0).map_err(|_| refused())?;
        let len = usize::try_from(requested.0).map_err(|_| refused())?;
        let mapping_len = len.checked_add(HUGE_BYTES).ok_or_else(refused)?;

        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that
        // exists.
        let mapping = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapping_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let system = || MapError::System {
            requested,
            source: io::Error::last_os_error(),
        };
        if mapping == libc::MAP_FAILED {
            return Err(system());
        }
        let mapping = NonNull::new(mapping).ok_or_else(system)?;
        let slack = mapping.cast::<u8>().align_offset(HUGE_BYTES);
        assert!(
            slack < HUGE_BYTES,
            "a page-aligned address has a huge-aligned one within 2 MiB"
        );
        // SAFETY: `slack < HUGE_BYTES` and the mapping is `HUGE_BYTES` longer than `len`, so base
        // and all `len` bytes behind it lie inside.
        let base = unsafe { mapping.cast::<u8>().add(slack) };
        let reservation = Self {
            base,
            pages: nr_pages,
            mapping,
            mapping_len,
        };
        reservation.advise_huge(0..len, HugePages::Wanted);
        Ok(reservation)
    }

    /// Returns a range of no pages: nothing is mapped.
    pub(super) const fn empty() -> Self {
        Self {
            base: NonNull::dangling(),
            pages: 0,
            mapping: NonNull::dangling(),
            mapping_len: 0,
        }
    }

    /// Returns the number of pages in the range.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages(u64::from(self.pages))
    }

    /// Returns the memory of `count` frames starting at `first` to the system; they read as zeros
    /// afterwards. Returns whether the system took it.
    ///
    /// # Safety
    ///
    /// The caller has exclusive use of these frames for the length of the call.
    ///
    /// # Panics
    ///
    /// When the frames are not all inside the range.
    pub unsafe fn release(&self, first: Pfn, count: Pages) -> bool {
        let end = u64::from(first.0) + count.0;
        assert!(
            end <= u64::from(self.pages),
            "release of frames up to {end} of {}",
            self.pages
        );
        let bytes = usize::try_from(count.0 * PAGE_BYTES).expect("within the range");
        let offset = first.index() * PAGE_SIZE;
        // The second for memory that is locked (`mlockall`), from Linux 5.18 on.
        let mut advices = [libc::MADV_DONTNEED, libc::MADV_DONTNEED_LOCKED].into_iter();
        if advices.any(|advice| self.advise(offset, bytes, advice)) {
            return true;
        }
        // In a sandbox, for example. Zeroed all the same: the old bytes may be another owner's.
        // SAFETY: the offset lies in the range, as checked above.
        let start = unsafe { self.base.add(offset) };
        let start = NonNull::slice_from_raw_parts(start, bytes);
        // SAFETY: the bytes lie in the range, and begin as zeros; the caller has exclusive use of
        // them.
        let bytes = unsafe { &mut *start.as_ptr() };
        for page in bytes.chunks_exact_mut(PAGE_SIZE) {
            // Reading a page that was never written does not commit it.
            if page.iter().any(|byte| *byte != 0) {
                page.fill(0);
            }
        }
        false
    }

    /// Returns how many of some neighbouring frames are resident; all of them if the system does
    /// not tell. A snapshot, and only an estimate for frames that other threads use.
    ///
    /// # Panics
    ///
    /// When the frames are not all inside the range.
    pub(super) fn nr_resident(&self, first: Pfn, count: Pages) -> Pages {
        let end = u64::from(first.0) + count.0;
        assert!(
            end <= u64::from(self.pages),
            "frames up to {end} of {}",
            self.pages
        );
        let nr_pages = usize::try_from(count.0).expect("within the range");
        let mut resident = vec![0_u8; nr_pages];
        // SAFETY: the first frame lies in the range, or the range of none begins at its end.
        let start = unsafe { self.base.add(first.index() * PAGE_SIZE) };
        let (len, out) = (nr_pages * PAGE_SIZE, resident.as_mut_ptr());
        // SAFETY: the bytes belong to this mapping, and the vector has a byte for each page of
        // them.
        let result = unsafe { libc::mincore(start.as_ptr().cast(), len, out) };
        match result {
            0 => Pages(resident.iter().map(|byte| u64::from(byte & 1)).sum()),
            _ => count,
        }
    }

    /// Returns a pointer to the first byte of a frame.
    ///
    /// # Panics
    ///
    /// When the frame is not in the range.
    #[inline]
    pub(super) fn frame_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        assert!(pfn.0 < self.pages, "{pfn} of {} frames", self.pages);
        // SAFETY: checked above.
        unsafe { self.frame_ptr_unchecked(pfn) }
    }

    /// As [`frame_ptr`](Self::frame_ptr), without the check.
    ///
    /// # Safety
    ///
    /// The frame is in the range.
    #[inline]
    pub(super) unsafe fn frame_ptr_unchecked(&self, pfn: Pfn) -> NonNull<u8> {
        debug_assert!(pfn.0 < self.pages, "{pfn} of {} frames", self.pages);
        // SAFETY: the caller says that the offset lies inside the range, which is one allocation.
        unsafe { self.base.add(pfn.index() * PAGE_SIZE) }
    }

    /// Tells the system whether to use huge pages in some areas of 2 MiB, by their numbers; those
    /// behind the end are ignored. Best effort.
    pub(super) fn set_huge(&self, areas: Range<u32>, huge: HugePages) {
        let len = self.pages as usize * PAGE_SIZE;
        let [start, end] = [areas.start, areas.end].map(|at| len.min(at as usize * HUGE_BYTES));
        self.advise_huge(start..end, huge);
    }

    fn advise_huge(&self, bytes: Range<usize>, huge: HugePages) {
        let advice = match huge {
            HugePages::Wanted => libc::MADV_HUGEPAGE,
            HugePages::Unwanted => libc::MADV_NOHUGEPAGE,
        };
        if !bytes.is_empty() {
            _ = self.advise(bytes.start, bytes.len(), advice);
        }
    }

    /// Gives advice about part of the range; returns whether the system accepts it.
    fn advise(&self, offset: usize, len: usize, advice: libc::c_int) -> bool {
        // SAFETY: callers pass offsets inside the range.
        let start = unsafe { self.base.add(offset) };
        // SAFETY: the bytes belong to this mapping; `MADV_HUGEPAGE` and `MADV_NOHUGEPAGE` change no
        // contents, and the others are only passed by `release`, whose caller has exclusive use.
        unsafe { libc::madvise(start.as_ptr().cast(), len, advice) == 0 }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.mapping_len == 0 {
            return;
        }
        // SAFETY: exactly the range that `new` mapped, unmapped once; borrowers of the bytes borrow
        // `self`.
        let result = unsafe { libc::munmap(self.mapping.as_ptr(), self.mapping_len) };
        debug_assert_eq!(result, 0, "unmapping what was mapped");
    }
}
