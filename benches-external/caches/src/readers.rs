//! Readers of pages: Highwater and the kernel.

#![expect(unsafe_code, reason = "maps the file, as the bound to compare with")]

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use highwater::units::{PAGE_BYTES, PAGE_SIZE};
use highwater::{Access, FileBacking, Manager, Mapping};

use crate::places::{COUNT, Page, Place};

/// One way to read pages, from any thread.
pub(crate) trait Reader: Send + Sync {
    /// Returns the sum of the words at some places.
    fn sum(&self, places: &[Place]) -> u64;
}

/// Reads one place at a time; sums the results of `read`.
pub(crate) struct Each<F>(pub(crate) F);

impl<F: Fn(Place) -> u64 + Send + Sync> Reader for Each<F> {
    #[inline]
    fn sum(&self, places: &[Place]) -> u64 {
        let read = |&place: &Place| black_box((self.0)(place));
        places.iter().map(read).sum()
    }
}

/// A file in Highwater, all of it resident.
pub(crate) struct Highwater {
    hw: Manager,
    map: Mapping,
}

impl Highwater {
    pub(crate) fn new(file: &File) -> Arc<Self> {
        // An eighth more than the file: the reserve of lists and watermarks.
        let capacity = highwater::Pages(u64::from(COUNT + COUNT / 8)).bytes();
        let built = Manager::builder().capacity(capacity).build();
        let hw = built.expect("72 MiB of memory");
        let backing = FileBacking::new(file.try_clone().expect("a descriptor"));
        let backing = Arc::new(backing.expect("a file has a length"));
        let opened = hw.open_backing(backing, Access::ReadOnly);
        let opened = opened.expect("one file");
        let mapped = hw.space(&hw.root()).map_file(&opened, 0..u64::from(COUNT));
        let map = mapped.expect("the whole file");
        for page in 0..u64::from(COUNT) {
            map.read(&hw.enter(), page)
                .expect("the pool holds the file");
        }
        assert_eq!(opened.resident_precise(), i64::from(COUNT));
        Arc::new(Self { hw, map })
    }

    /// A guard for each read.
    pub(crate) fn one_a_guard(this: &Arc<Self>) -> impl Reader + 'static {
        let this = Arc::clone(this);
        Each(move |place: Place| {
            let guard = this.hw.enter();
            let read = this.map.read(&guard, u64::from(place.page));
            place.word_of(read.expect("a resident page"))
        })
    }

    /// A guard for eight reads.
    pub(crate) fn eight_a_guard(this: &Arc<Self>) -> impl Reader + 'static {
        Eight(Arc::clone(this))
    }
}

struct Eight(Arc<Highwater>);

impl Reader for Eight {
    #[inline]
    fn sum(&self, places: &[Place]) -> u64 {
        let Highwater { hw, map } = &*self.0;
        let read_eight = |places: &[Place]| -> u64 {
            let guard = hw.enter();
            let read = |place: &Place| {
                let read = map.read(&guard, u64::from(place.page));
                black_box(place.word_of(read.expect("a resident page")))
            };
            places.iter().map(read).sum()
        };
        places.chunks(8).map(read_eight).sum()
    }
}

/// The kernel's page cache, read by a system call that copies the page.
pub(crate) fn pread(file: &File) -> impl Reader + 'static {
    let file = file.try_clone().expect("a descriptor");
    Each(move |place: Place| {
        let mut buf = [0; PAGE_SIZE];
        let at = u64::from(place.page) * PAGE_BYTES;
        file.read_exact_at(&mut buf, at).expect("a resident page");
        place.word_of(&buf)
    })
}

/// The kernel's page cache, mapped: no cost of an index, guards or marks.
pub(crate) struct Mapped(*const Page);

// SAFETY: the mapping lasts as long as the process, and is only read.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                COUNT as usize * PAGE_SIZE,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(start.cast()))
    }
}

impl Reader for Mapped {
    #[inline]
    fn sum(&self, places: &[Place]) -> u64 {
        let read = |place: &Place| {
            assert!(place.page < COUNT, "page {}", place.page);
            // SAFETY: within the mapping, which lasts as long as the process.
            let page = unsafe { self.0.add(place.page as usize) };
            // SAFETY: mapped, aligned to a page, and the file is not written meanwhile.
            black_box(place.word_of(unsafe { &*page }))
        };
        places.iter().map(read).sum()
    }
}
