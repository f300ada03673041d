//! One reserved range of real memory (mmap).
//!
//! The whole range is mapped at creation, without swap reservation; the system commits memory as it
//! is first touched, in huge pages where it can ([`HUGE_BYTES`] alignment, `MADV_HUGEPAGE`).

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use thiserror::Error;

use crate::units::{Bytes, PAGE_SIZE, Pages, Pfn};

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
    let pages = u64::try_from(pages).ok()?;
    let bytes = pages.checked_mul(system_page_bytes()? as u64)?;
    Some(Bytes(bytes)).filter(|bytes| *bytes > Bytes(0))
}

/// Returns the size of the system's pages, by which it commits and takes back memory: 4 to 64 KiB;
/// `None` if the system does not tell.
pub(super) fn system_page_bytes() -> Option<usize> {
    // SAFETY: asks for a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0)
}

/// Returns the pages of `granule` bytes that lie in a range as a whole; where there are none, an
/// empty range at its start.
fn whole_pages(bytes: &Range<usize>, granule: usize) -> Range<usize> {
    let start = bytes.start.next_multiple_of(granule);
    let end = bytes.end / granule * granule;
    match start < end {
        true => start..end,
        false => bytes.start..bytes.start,
    }
}

/// A page-aligned range of memory, unmapped when dropped.
#[derive(Debug)]
pub struct Reservation {
    /// First byte handed out; aligned to [`HUGE_BYTES`].
    base: NonNull<u8>,
    pages: u32,
    /// Size of the system's pages. madvise(2) rounds lengths up to it: to bytes of other frames.
    granule: usize,
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
            granule: system_page_bytes().unwrap_or(HUGE_BYTES),
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
            granule: PAGE_SIZE,
            mapping: NonNull::dangling(),
            mapping_len: 0,
        }
    }

    /// Returns the number of pages in the range.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages(u64::from(self.pages))
    }

    /// Returns the memory of `count` frames starting at `first` to the system, as far as they fill
    /// pages of its own; all of them read as zeros afterwards. Returns whether the system took it.
    ///
    /// # Safety
    ///
    /// The caller has exclusive use of these frames for the length of the call.
    ///
    /// # Panics
    ///
    /// When the frames are not all inside the range.
    pub unsafe fn release(&self, first: Pfn, count: Pages) -> bool {
        let bytes = self.offsets(first, count);
        let whole = whole_pages(&bytes, self.granule);
        // The second for memory that is locked (`mlockall`), from Linux 5.18 on.
        let mut advices = [libc::MADV_DONTNEED, libc::MADV_DONTNEED_LOCKED].into_iter();
        let is_taken =
            !whole.is_empty() && advices.any(|advice| self.advise(whole.clone(), advice));
        // In a sandbox, for example. Zeroed all the same: the old bytes may be another owner's.
        let kept = match is_taken {
            true => [bytes.start..whole.start, whole.end..bytes.end],
            false => [bytes.start..bytes.start, bytes],
        };
        for bytes in kept {
            // SAFETY: the offset lies in the range, as checked above.
            let start = unsafe { self.base.add(bytes.start) };
            let start = NonNull::slice_from_raw_parts(start, bytes.len());
            // SAFETY: the bytes lie in the range, and begin as zeros; the caller has exclusive use
            // of them.
            let bytes = unsafe { &mut *start.as_ptr() };
            for page in bytes.chunks_exact_mut(PAGE_SIZE) {
                // Reading a page that was never written does not commit it.
                if page.iter().any(|byte| *byte != 0) {
                    page.fill(0);
                }
            }
        }
        is_taken
    }

    /// Returns how many of some neighbouring frames are resident, of those that
    /// [`release`](Self::release) can return; all of these if the system does not tell. A snapshot,
    /// and only an estimate for frames that other threads use.
    ///
    /// # Panics
    ///
    /// When the frames are not all inside the range.
    pub(super) fn nr_resident(&self, first: Pfn, count: Pages) -> Pages {
        let bytes = whole_pages(&self.offsets(first, count), self.granule);
        // The system's pages are no smaller than a frame.
        let mut resident = vec![0_u8; bytes.len() / PAGE_SIZE];
        // SAFETY: the first frame lies in the range, or the range of none begins at its end.
        let start = unsafe { self.base.add(bytes.start) };
        let out = resident.as_mut_ptr();
        // SAFETY: the bytes belong to this mapping, and the vector has at least a byte for each
        // page of the system in them.
        let result = unsafe { libc::mincore(start.as_ptr().cast(), bytes.len(), out) };
        let nr_system_pages = match result {
            0 => resident.iter().filter(|&byte| byte & 1 == 1).count(),
            _ => bytes.len() / self.granule,
        };
        Pages((nr_system_pages * (self.granule / PAGE_SIZE)) as u64)
    }

    /// Returns where the bytes of `count` frames starting at `first` lie in the range.
    fn offsets(&self, first: Pfn, count: Pages) -> Range<usize> {
        let end = u64::from(first.0) + count.0;
        assert!(
            end <= u64::from(self.pages),
            "frames up to {end} of {}",
            self.pages
        );
        let end = usize::try_from(end).expect("within the range");
        first.index() * PAGE_SIZE..end * PAGE_SIZE
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
            _ = self.advise(bytes, advice);
        }
    }

    /// Gives advice about part of the range; returns whether the system accepts it.
    fn advise(&self, bytes: Range<usize>, advice: libc::c_int) -> bool {
        // SAFETY: callers pass offsets inside the range.
        let start = unsafe { self.base.add(bytes.start) };
        // SAFETY: the bytes belong to this mapping; `MADV_HUGEPAGE` and `MADV_NOHUGEPAGE` change no
        // contents, and the others are only passed by `release`, for whole pages of the system of
        // which its caller has exclusive use.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes.len(), advice) == 0 }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Range, Reservation, whole_pages};
    use crate::units::{PAGE_SIZE, Pages, Pfn};

    // Goal: what is returned to the system reaches no byte outside of a range. Method: every range
    // of up to 40 frames in system pages of 1, 4 and 16 frames, against a look at each such page.
    #[test]
    fn whole_pages_of_a_range_are_those_inside_it() {
        for granule in [1, 4, 16] {
            for bytes in (0..40).flat_map(|start| (start..=40).map(move |end| start..end)) {
                let is_inside = |page: &usize| {
                    bytes.start <= page * granule && (page + 1) * granule <= bytes.end
                };
                let inside: Vec<usize> = (0..40).filter(is_inside).collect();
                let whole = whole_pages(&bytes, granule);
                let Range { start, end } = whole;
                assert!(bytes.start <= start && end <= bytes.end, "{bytes:?}");
                assert_eq!(end - start, inside.len() * granule, "{bytes:?}");
                assert!(inside.first().is_none_or(|page| page * granule == start));
            }
        }
    }
    #[test]
    fn neighbours_in_a_larger_page_of_the_system_keep_their_bytes() {
        // Symptom: where the system's pages are larger than a frame, returning frames 0 to 3 wiped
        // frames 4 to 15. Method: a reservation that takes the system's pages for 64 KiB; frames
        // that fill none are zeroed and kept, a page in the middle of a run is returned.
        let mut range = Reservation::new(Pages(64)).unwrap();
        range.granule = 16 * PAGE_SIZE;
        let fill = |pfn: u32| {
            // SAFETY: the frame lies in the range, and nothing else refers to its bytes.
            unsafe { range.frame_ptr(Pfn(pfn)).write_bytes(5, PAGE_SIZE) };
        };
        (0..64).for_each(fill);
        // SAFETY: the only thread that knows of the range has no reference to its bytes.
        let are_taken = [(0, 4), (6, 34)]
            .map(|(first, count)| unsafe { range.release(Pfn(first), Pages(count)) });
        assert_eq!(are_taken, [false, true]);
        for pfn in 0..64 {
            // SAFETY: as above; each byte was written.
            let byte = unsafe { range.frame_ptr(Pfn(pfn)).read() };
            let is_kept = [4, 5].contains(&pfn) || pfn >= 40;
            assert_eq!(byte, if is_kept { 5 } else { 0 }, "{pfn}");
        }
    }
}
