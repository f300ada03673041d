//! Page access through a mapping: reads under a guard, pins, and latched reads and writes.

use std::ops::Deref;

use super::error::ReadError;
use super::file::File;
use super::guard::Guard;
use super::latched::{OptimisticRead, PageRead, PageWrite};
use super::mapping::Mapping;
use crate::cache::{Access, PageKey};
use crate::memmap::{Glimpse, Pinned};
use crate::units::{MapPage, Pfn};

/// A pinned page: readable while this is held, across waiting and between threads. Each pin costs
/// an atomic on the frame's word, and one each on the reference counts of the file and of the
/// memory, which all pins share; a pinned page cannot be evicted.
#[derive(Debug)]
pub struct PinnedPage {
    pinned: Pinned,
    _file: File,
}

impl Mapping {
    /// Returns a page of a read-only file if it is resident. Pages beyond the mapping never are.
    ///
    /// # Cost
    ///
    /// A few loads; no store to shared memory once the page is young.
    ///
    /// # Panics
    ///
    /// When the guard belongs to another manager.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let guard = hw.enter();
    /// assert!(map.try_read(&guard, 0).is_none()); // not resident yet
    /// map.read(&guard, 0)?;
    /// assert_eq!(map.try_read(&guard, 0).unwrap()[0], 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn try_read<'g>(&self, guard: &'g Guard<'_>, page: impl Into<MapPage>) -> Option<&'g [u8]> {
        let page = page.into();
        match self.read_young(guard, page) {
            None => self.try_read_slowly(guard, page),
            read => read,
        }
    }

    /// Returns a page of a read-only file, read in if it is not resident. The last page of a file
    /// is zero beyond the end of the file.
    ///
    /// # Cost
    ///
    /// As [`try_read`](Self::try_read) if the page is resident; otherwise the file's I/O, and
    /// reclaim if memory is short.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; nothing is cached or charged then.
    ///
    /// # Panics
    ///
    /// When the guard belongs to another manager.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let guard = hw.enter();
    /// assert_eq!(map.read(&guard, 0)?, &[7; 4096]);
    /// assert!(map.read(&guard, 3).is_err()); // beyond the mapping
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn read<'g>(
        &self,
        guard: &'g Guard<'_>,
        page: impl Into<MapPage>,
    ) -> Result<&'g [u8], ReadError> {
        let page = page.into();
        let bytes = match self.read_young(guard, page) {
            Some(bytes) => bytes,
            None => self.read_slowly(guard, page)?,
        };
        Ok(bytes)
    }

    /// Returns a page of a read-only file that is mapped and young: the fast path of a read. All
    /// else is out of line.
    #[inline(always)]
    fn read_young<'g>(&self, guard: &'g Guard<'_>, page: MapPage) -> Option<&'g [u8]> {
        let Self { area, memory, .. } = self;
        if !guard.reader().is_of(memory) {
            return None;
        }
        area.borrow_young(guard.reader(), page)
    }

    #[cold]
    #[inline(never)]
    fn try_read_slowly<'g>(&self, guard: &'g Guard<'_>, page: MapPage) -> Option<&'g [u8]> {
        let core = self.core();
        guard.assert_of(core);
        self.try_hold(page, Access::ReadOnly, |key, pfn| {
            core.cache.borrow_at(guard.reader(), key, pfn)
        })
    }

    #[cold]
    #[inline(never)]
    fn read_slowly<'g>(&self, guard: &'g Guard<'_>, page: MapPage) -> Result<&'g [u8], ReadError> {
        let core = self.core();
        guard.assert_of(core);
        self.hold(page, Access::ReadOnly, |key, pfn| {
            core.cache.borrow_at(guard.reader(), key, pfn)
        })
    }

    /// Pins a page of a read-only file.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let page = map.pin(0)?;
    /// hw.drop_caches(); // pinned pages stay
    /// let sum = std::thread::spawn(move || page.iter().map(|&b| u64::from(b)).sum::<u64>());
    /// assert_eq!(sum.join().unwrap(), 7 * 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pin(&self, page: impl Into<MapPage>) -> Result<PinnedPage, ReadError> {
        self.pin_page(page.into())
    }

    fn pin_page(&self, page: MapPage) -> Result<PinnedPage, ReadError> {
        let core = self.core();
        let pinned = self.hold(page, Access::ReadOnly, |key, pfn| {
            core.cache.pin_at(key, pfn)
        })?;
        Ok(self.pinned_page(pinned))
    }

    /// Returns a page of a writable file, latched for reading. `None` if it is not resident, or if
    /// this would wait for a writer, for write-back, or for a thread that waits for either.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// assert!(map.try_read_latched(0).is_none()); // not resident yet
    /// let write = map.write(0)?;
    /// assert!(map.try_read_latched(0).is_none()); // held
    /// drop(write);
    /// assert_eq!(map.try_read_latched(0).unwrap()[0], 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn try_read_latched(&self, page: impl Into<MapPage>) -> Option<PageRead<'_>> {
        let page = page.into();
        match self.latch_young(page) {
            None => self.try_latch_to_read(page),
            read => read,
        }
    }

    fn try_latch_to_read(&self, page: MapPage) -> Option<PageRead<'_>> {
        let core = self.core();
        let latched = self.try_hold(page, Access::ReadWrite, |key, pfn| {
            core.cache.try_latch_at(key, pfn)
        })?;
        Some(PageRead::new(core, latched))
    }

    /// Returns a page of a writable file that is mapped and young, latched for reading, if that
    /// does not wait: the fast path of a latched read.
    #[inline]
    pub(super) fn latch_young(&self, page: MapPage) -> Option<PageRead<'_>> {
        let pfn = self.area.frame_if_young(page)?;
        let (core, key) = (self.core(), self.area.key(page));
        let latched = core.cache.try_latch_at(key, pfn)?;
        // The slow path says why not.
        (!self.area.is_cut_off(page)).then(|| PageRead::new(core, latched))
    }

    /// Begins an optimistic read of a page of a writable file. `None` if the page is not resident,
    /// or held by a writer: [`read_latched`](Self::read_latched) waits for these, and
    /// reads the page in. Counts as an access to the page, as every other read.
    ///
    /// # Cost
    ///
    /// A few loads; no store to shared memory once the page is young.
    ///
    /// # Examples
    ///
    /// A descent through a tree is in the documentation of [`OptimisticRead`].
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let four = loop {
    ///     let Some(page) = map.read_optimistic(2) else {
    ///         drop(map.read_latched(2)?); // waits, and reads the page in
    ///         continue;
    ///     };
    ///     let four: [u8; 4] = page.array_at(100);
    ///     if page.validate() {
    ///         break four;
    ///     }
    /// };
    /// assert_eq!(four, [7; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    #[must_use]
    pub fn read_optimistic(&self, page: impl Into<MapPage>) -> Option<OptimisticRead<'_>> {
        let page = page.into();
        if let Some(pfn) = self.area.frame_if_young(page) {
            let key = self.area.key(page);
            if let Some(glimpse) = self.memory.glimpse(pfn, key.get()) {
                // After the glimpse, which was of the page before it was cut off, or shows that.
                let is_there = !self.area.is_cut_off(page);
                return is_there.then(|| self.optimistic(page, glimpse));
            }
        }
        self.read_optimistic_slowly(page)
    }

    #[inline(always)]
    fn optimistic<'m>(&'m self, page: MapPage, glimpse: Glimpse<'m>) -> OptimisticRead<'m> {
        OptimisticRead::new(self.core(), &self.area, page, glimpse)
    }

    /// Takes the latch for a moment, because only a holder may map a page.
    #[cold]
    #[inline(never)]
    fn read_optimistic_slowly(&self, page: MapPage) -> Option<OptimisticRead<'_>> {
        let glimpse = self.try_latch_to_read(page)?.glimpse()?;
        Some(self.optimistic(page, glimpse))
    }

    /// Returns a page of a writable file, latched for reading; reads it in if it is not resident.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// assert_eq!(map.read_latched(0)?[..4], [7; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_latched(&self, page: impl Into<MapPage>) -> Result<PageRead<'_>, ReadError> {
        let page = page.into();
        match self.latch_young(page) {
            Some(read) => Ok(read),
            None => self.latch_to_read(page),
        }
    }

    fn latch_to_read(&self, page: MapPage) -> Result<PageRead<'_>, ReadError> {
        let core = self.core();
        let latched = self.hold(page, Access::ReadWrite, |key, pfn| {
            core.cache.latch_at(key, pfn)
        })?;
        Ok(PageRead::new(core, latched))
    }

    /// Returns a page of a writable file, latched for writing. `None` if it is not resident, if
    /// this would wait for another holder of its latch, or if it is clean and dirty pages exceed
    /// their limit, so that [`write`](Self::write) would wait for write-back.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let read = map.read_latched(0)?;
    /// assert!(map.try_write(0).is_none()); // held
    /// drop(read);
    /// map.try_write(0).unwrap()[0] = 8;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn try_write(&self, page: impl Into<MapPage>) -> Option<PageWrite<'_>> {
        self.try_latch_to_write(page.into())
    }

    fn try_latch_to_write(&self, page: MapPage) -> Option<PageWrite<'_>> {
        let core = self.core();
        let latched = self.try_hold(page, Access::ReadWrite, |key, pfn| {
            let may_dirty = core.cache.may_dirty_now(key, pfn);
            may_dirty.then(|| core.cache.try_latch_to_write_at(key, pfn))?
        })?;
        Some(PageWrite::new(core, latched))
    }

    /// As [`read_latched`](Self::read_latched), for a page that is resident: waits for its latch.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn read_latched_if_resident(
        &self,
        page: impl Into<MapPage>,
    ) -> Option<PageRead<'_>> {
        let core = self.core();
        let latched = self.try_hold(page.into(), Access::ReadWrite, |key, pfn| {
            core.cache.latch_at(key, pfn)
        })?;
        Some(PageRead::new(core, latched))
    }

    /// As [`write`](Self::write), for a page that is resident: it waits for the latch.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn write_if_resident(&self, page: impl Into<MapPage>) -> Option<PageWrite<'_>> {
        let core = self.core();
        let latched = self.try_hold(page.into(), Access::ReadWrite, |key, pfn| {
            core.cache.latch_to_write_at(key, pfn)
        })?;
        Some(PageWrite::new(core, latched))
    }

    /// Returns a page of a writable file, latched for writing; reads it in if it is not resident.
    /// The first mutable access marks it dirty ([`PageWrite::mark_dirty`]); a page that is not
    /// written to is not written back.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let mut page = map.write(0)?;
    /// page[..5].copy_from_slice(b"hello");
    /// drop(page); // releases the latch
    /// assert_eq!(&map.read_latched(0)?[..6], b"hello\x07");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(&self, page: impl Into<MapPage>) -> Result<PageWrite<'_>, ReadError> {
        self.latch_to_write(page.into())
    }

    fn latch_to_write(&self, page: MapPage) -> Result<PageWrite<'_>, ReadError> {
        let core = self.core();
        if !self.open.file.entry().id().kind().is_swap_backed() {
            core.balance_dirty_pages();
        }
        let latched = self.hold(page, Access::ReadWrite, |key, pfn| {
            core.cache.latch_to_write_at(key, pfn)
        })?;
        Ok(PageWrite::new(core, latched))
    }

    /// Pins or latches a resident page.
    #[inline]
    fn try_hold<R>(
        &self,
        page: MapPage,
        needs: Access,
        hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Option<R> {
        self.check(page, needs).ok()?;
        let held = self.core().cache.hold_mapped(&self.area, page, hold)?;
        self.check_held(page, needs).ok()?;
        Some(held)
    }

    /// Checks that a latched page was part of mapping and file when the latch was taken. Until it
    /// is released, it stays so.
    #[inline]
    pub(super) fn check_held(&self, page: MapPage, needs: Access) -> Result<(), ReadError> {
        if self.is_gone(page, needs) {
            return Err(ReadError::Unmapped { page });
        }
        match needs {
            Access::ReadOnly => Ok(()),
            Access::ReadWrite => self.area.file().check_end(self.area.key(page).page()),
        }
    }

    /// Returns whether a latched page was unmapped before the latch was taken: anonymous memory is
    /// zeros once it is unmapped.
    #[inline]
    fn is_gone(&self, page: MapPage, needs: Access) -> bool {
        needs == Access::ReadWrite && self.area.is_hole(page)
    }

    /// Pins or latches a page; reads it in if it is not resident.
    #[inline]
    fn hold<R>(
        &self,
        page: MapPage,
        needs: Access,
        mut hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Result<R, ReadError> {
        self.check(page, needs)?;
        let cache = &self.core().cache;
        let held = match cache.hold_by_entry(&self.area, page, &mut hold) {
            Some(held) => held,
            None => self.fault(page, hold)?,
        };
        self.check_held(page, needs)?;
        Ok(held)
    }

    /// Pins or latches a page that has no entry in the page table.
    #[cold]
    fn fault<R>(
        &self,
        page: MapPage,
        mut hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Result<R, ReadError> {
        if let Some(held) = self.hold_unmapped(page, &mut hold)? {
            return Ok(held);
        }
        let (core, area) = (self.core(), &self.area);
        let key = area.key(page);
        core.fault(area, page, |pfn| {
            let held = hold(key, pfn)?;
            core.cache.install(area, page, pfn);
            Some(held)
        })
    }

    /// Pins or latches a resident page that has no entry in the page table, unless it has a
    /// readahead mark.
    fn hold_unmapped<R>(
        &self,
        page: MapPage,
        hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Result<Option<R>, ReadError> {
        let (core, area) = (self.core(), &*self.area);
        if area.is_hole(page) {
            return Err(ReadError::Unmapped { page });
        }
        if core.cache.is_marked_ahead(area.key(page)) {
            return Ok(None);
        }
        Ok(core.cache.hold_unmapped(area, page, hold))
    }

    /// Pins a page of a read-only file if it is resident, and has no readahead mark.
    pub(super) fn pin_resident(&self, page: MapPage) -> Result<Option<Pinned>, ReadError> {
        self.check(page, Access::ReadOnly)?;
        let cache = &self.core().cache;
        let pin = |key, pfn| cache.pin_at(key, pfn);
        match cache.hold_by_entry(&self.area, page, pin) {
            None => self.hold_unmapped(page, pin),
            pinned => Ok(pinned),
        }
    }

    /// Returns a pinned page of this mapping to the program.
    pub(super) fn pinned_page(&self, pinned: Pinned) -> PinnedPage {
        PinnedPage {
            pinned,
            _file: self.open.file.clone(),
        }
    }

    /// Checks that the page is inside the mapping and the file's access mode fits the call.
    #[inline]
    pub(super) fn check(&self, page: MapPage, needs: Access) -> Result<(), ReadError> {
        if page.0 >= self.pages() {
            return Err(ReadError::OutOfRange {
                page,
                pages: self.pages(),
            });
        }
        if self.open.access != needs {
            return Err(wrong_access(needs));
        }
        Ok(())
    }
}

#[cold]
fn wrong_access(needs: Access) -> ReadError {
    match needs {
        Access::ReadOnly => ReadError::Access {
            is: "to write",
            needs: "to read only",
        },
        Access::ReadWrite => ReadError::Access {
            is: "to read only",
            needs: "to write",
        },
    }
}

impl Deref for PinnedPage {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.pinned.bytes()
    }
}
