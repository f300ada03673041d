//! Mappings: page access for the embedder.

use std::ops::Range;

use super::Core;
use super::fault::ReadError;
use super::file::{File, RangeError};
use super::fill::Source;
use super::guard::Guard;
use super::space::Space;
use crate::cache::{
    Access, Area, AreaFlag, AreaSpec, PageFlag, PageKey, PageRead, PageWrite, ReadPattern, WasYoung,
};
use crate::memmap::{FrameMemory, Pinned};
use crate::sync::Arc;
use crate::units::{PAGE_SIZE, Pfn};

/// A range of a file's pages in a space (VMA). Cheap to clone; unmapped with its last handle, or in
/// parts before ([`unmap`](Self::unmap)). Page numbers are relative to the mapping's start.
#[derive(Clone, Debug)]
pub struct Mapping {
    // First, because every read needs these two.
    area: Arc<Area>,
    /// The memory whose guards it accepts.
    memory: Arc<FrameMemory>,
    open: Arc<OpenMapping>,
}

#[derive(Debug)]
struct OpenMapping {
    area: Arc<Area>,
    /// Access mode of the file.
    access: Access,
    pages: u64,
    core: Arc<Core>,
    file: File,
    space: Space,
}

/// A pinned page: readable while this is held, across waiting and between threads. Each pin costs
/// an atomic on the frame's word; a pinned page cannot be evicted.
#[derive(Debug)]
pub struct PinnedPage {
    pinned: Pinned,
    _file: File,
}

impl Mapping {
    pub(super) fn new(file: File, space: Space, pages: Range<u64>) -> Self {
        let spec = AreaSpec {
            file: Arc::clone(file.entry()),
            space: Arc::clone(space.entry()),
            group: space.group().clone(),
            pages,
            member: file.entry().id().kind().into(),
        };
        let core = Arc::clone(&file.shared().core);
        let memory = Arc::clone(&core.memory);
        let area = core.map(spec);
        let open = OpenMapping {
            access: file.access(),
            pages: area.pages(),
            area: Arc::clone(&area),
            core,
            file,
            space,
        };
        Self {
            area,
            memory,
            open: Arc::new(open),
        }
    }

    /// Returns the number of pages in the mapping as it was created.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.open.pages
    }

    /// Returns the mapped file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.open.file
    }

    /// Returns the space of the mapping.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.open.space
    }

    /// Unmaps pages permanently, for all handles of this mapping. Reading them is an error from
    /// then on.
    ///
    /// # Cost
    ///
    /// The file's rmap lock, held while the entries of the range are cleared.
    ///
    /// # Errors
    ///
    /// When the range is not within the mapping; nothing is unmapped then.
    pub fn unmap(&self, pages: Range<u64>) -> Result<(), RangeError> {
        self.check_range(&pages)?;
        self.core().unmap(&self.area, pages.clone());
        self.core().discard_unmapped(&self.area, pages);
        Ok(())
    }

    /// Sets the order in which pages will be read through this mapping. With a known order, an
    /// access does not predict later ones, so it does not protect its page from eviction
    /// (`MADV_SEQUENTIAL`, `MADV_RANDOM`).
    pub fn set_read_pattern(&self, pattern: ReadPattern) {
        self.area.set_read_pattern(pattern);
    }

    /// Reads missing pages in, as far as memory is available without selecting a victim
    /// (`MADV_WILLNEED`). They are charged to the space's group, and mapped when they are first
    /// accessed.
    ///
    /// # Cost
    ///
    /// The I/O, synchronously.
    ///
    /// # Errors
    ///
    /// When the range is not within the mapping.
    pub fn will_need(&self, pages: Range<u64>) -> Result<(), RangeError> {
        self.check_range(&pages)?;
        let area = &*self.area;
        let first = area.key(0).page();
        let pages = first + pages.start..first + pages.end;
        self.core().read_ahead_all(Source::of(area), pages);
        Ok(())
    }

    /// Removes pages from the mapping's page table (`MADV_DONTNEED` of a file): they leave the
    /// space's resident set, and the next access looks them up again. Written data stays, of
    /// anonymous memory, too; [`discard`](Self::discard) drops it.
    ///
    /// # Cost
    ///
    /// A few atomics for each page that is mapped; no lock.
    ///
    /// # Errors
    ///
    /// When the range is not within the mapping.
    pub fn dont_need(&self, pages: Range<u64>) -> Result<(), RangeError> {
        self.check_range(&pages)?;
        let area = &*self.area;
        self.core()
            .let_go(area, |core, leaving| core.cache.zap(area, pages, leaving));
        Ok(())
    }

    /// Marks the pages as executable: one access through this mapping activates them, where others
    /// need two.
    pub fn set_executable(&self) {
        self.area.set(AreaFlag::Executable);
    }

    /// Locks mapped pages (`mlock`): reclaim moves them to the unevictable pages when it finds
    /// them, until they are unlocked or unmapped. Reads no pages in. Locks do not nest.
    pub fn lock(&self) {
        self.area.set(AreaFlag::Locked);
    }

    /// Unlocks the pages that no other mapping has locked.
    ///
    /// # Cost
    ///
    /// A visit to each entry of the mapping.
    pub fn unlock(&self) {
        let (core, area) = (self.core(), &*self.area);
        area.clear(AreaFlag::Locked);
        core.cache
            .for_each_mapped(area, |pfn| core.reclaim.rescue_unlocked(pfn));
    }

    pub(super) fn check_range(&self, pages: &Range<u64>) -> Result<(), RangeError> {
        if pages.start > pages.end || pages.end > self.pages() {
            return Err(RangeError {
                start: pages.start,
                end: pages.end,
                pages: self.pages(),
            });
        }
        Ok(())
    }

    /// Returns a page of a read-only file if it is resident. Pages beyond the mapping never are.
    ///
    /// # Cost
    ///
    /// A few loads; no store to shared memory once the page is young.
    ///
    /// # Panics
    ///
    /// When the guard belongs to another manager.
    #[inline(always)]
    pub fn try_read<'g>(&self, guard: &'g Guard<'_>, page: u64) -> Option<&'g [u8; PAGE_SIZE]> {
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
    #[inline(always)]
    pub fn read<'g>(
        &self,
        guard: &'g Guard<'_>,
        page: u64,
    ) -> Result<&'g [u8; PAGE_SIZE], ReadError> {
        let bytes = match self.read_young(guard, page) {
            Some(bytes) => bytes,
            None => self.read_slowly(guard, page)?,
        };
        Ok(bytes)
    }

    /// Returns a page of a read-only file that is mapped and young: the fast path of a read. All
    /// else is out of line.
    #[inline(always)]
    fn read_young<'g>(&self, guard: &'g Guard<'_>, page: u64) -> Option<&'g [u8; PAGE_SIZE]> {
        let Self { area, memory, .. } = self;
        if !guard.reader().is_of(memory) {
            return None;
        }
        area.borrow_young(guard.reader(), page)
    }

    #[cold]
    #[inline(never)]
    fn try_read_slowly<'g>(&self, guard: &'g Guard<'_>, page: u64) -> Option<&'g [u8; PAGE_SIZE]> {
        let core = self.core();
        guard.assert_of(core);
        self.try_hold(page, Access::ReadOnly, |key, pfn| {
            core.cache.borrow_at(guard.reader(), key, pfn)
        })
    }

    #[cold]
    #[inline(never)]
    fn read_slowly<'g>(
        &self,
        guard: &'g Guard<'_>,
        page: u64,
    ) -> Result<&'g [u8; PAGE_SIZE], ReadError> {
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
    pub fn pin(&self, page: u64) -> Result<PinnedPage, ReadError> {
        let core = self.core();
        let pinned = self.hold(page, Access::ReadOnly, |key, pfn| {
            core.cache.pin_at(key, pfn)
        })?;
        Ok(PinnedPage {
            pinned,
            _file: self.open.file.clone(),
        })
    }

    /// Returns a page of a writable file, latched for reading, if it is resident.
    #[must_use]
    pub fn try_read_latched(&self, page: u64) -> Option<PageRead<'_>> {
        self.try_hold(page, Access::ReadWrite, |key, pfn| {
            self.core().cache.latch_at(key, pfn)
        })
    }

    /// Returns a page of a writable file, latched for reading; reads it in if it is not resident.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_latched(&self, page: u64) -> Result<PageRead<'_>, ReadError> {
        self.hold(page, Access::ReadWrite, |key, pfn| {
            self.core().cache.latch_at(key, pfn)
        })
    }

    /// Returns a page of a writable file, latched for writing and marked dirty, if it is resident.
    #[must_use]
    pub fn try_write(&self, page: u64) -> Option<PageWrite<'_>> {
        let write = self.try_hold(page, Access::ReadWrite, |key, pfn| {
            self.core().cache.latch_to_write_at(key, pfn)
        })?;
        self.core().note_written(&write);
        Some(write)
    }

    /// Returns a page of a writable file, latched for writing and marked dirty; reads it in if it
    /// is not resident.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn write(&self, page: u64) -> Result<PageWrite<'_>, ReadError> {
        if !self.open.file.entry().id().kind().is_swap_backed() {
            self.core().balance_dirty_pages();
        }
        let write = self.hold(page, Access::ReadWrite, |key, pfn| {
            self.core().cache.latch_to_write_at(key, pfn)
        })?;
        self.core().note_written(&write);
        Ok(write)
    }

    pub(super) fn area(&self) -> &Arc<Area> {
        &self.area
    }

    /// Pins or latches a resident page.
    #[inline]
    fn try_hold<R>(
        &self,
        page: u64,
        needs: Access,
        hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Option<R> {
        self.check(page, needs).ok()?;
        let held = self.core().cache.hold_mapped(&self.area, page, hold)?;
        (!self.is_gone(page, needs)).then_some(held)
    }

    /// Returns whether a latched page was unmapped before the latch was taken: anonymous memory is
    /// zeros once it is unmapped.
    #[inline]
    fn is_gone(&self, page: u64, needs: Access) -> bool {
        needs == Access::ReadWrite && self.area.is_hole(page)
    }

    /// Pins or latches a page; reads it in if it is not resident.
    #[inline]
    fn hold<R>(
        &self,
        page: u64,
        needs: Access,
        mut hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Result<R, ReadError> {
        self.check(page, needs)?;
        let cache = &self.core().cache;
        let held = match cache.hold_by_entry(&self.area, page, &mut hold) {
            Some(held) => held,
            None => self.fault(page, hold)?,
        };
        if self.is_gone(page, needs) {
            return Err(ReadError::Unmapped { page });
        }
        Ok(held)
    }

    /// Pins or latches a page that has no entry in the page table.
    #[cold]
    fn fault<R>(
        &self,
        page: u64,
        mut hold: impl FnMut(PageKey, Pfn) -> Option<R>,
    ) -> Result<R, ReadError> {
        let (core, area) = (self.core(), &*self.area);
        if area.is_hole(page) {
            return Err(ReadError::Unmapped { page });
        }
        let key = area.key(page);
        if !core.cache.is_marked_ahead(key)
            && let Some(held) = core.cache.hold_unmapped(area, page, &mut hold)
        {
            return Ok(held);
        }
        core.fault(area, page, |pfn| {
            let held = hold(key, pfn)?;
            core.cache.install(area, page, pfn);
            Some(held)
        })
    }

    /// Checks that the page is inside the mapping and the file's access mode fits the call.
    #[inline]
    fn check(&self, page: u64, needs: Access) -> Result<(), ReadError> {
        if page >= self.pages() {
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

    pub(super) fn core(&self) -> &Core {
        &self.open.core
    }
}

impl Core {
    fn map(&self, spec: AreaSpec) -> Arc<Area> {
        let area = self.cache.map(spec);
        self.reclaim.settle_deferred(area.file());
        area
    }

    /// Unmaps pages of an area. Accessed bits of the cleared entries are transferred to the pages.
    fn unmap(&self, area: &Arc<Area>, pages: Range<u64>) {
        self.let_go(area, |core, leaving| core.cache.unmap(area, pages, leaving));
        self.reclaim.settle_deferred(area.file());
    }

    /// Clears entries of an area by `take`, and makes pages evictable that only its lock kept.
    fn let_go(&self, area: &Area, take: impl FnOnce(&Self, &mut dyn FnMut(Pfn, WasYoung))) {
        let (mut were_locked, mut were_young) = (Vec::new(), Vec::new());
        take(self, &mut |pfn, WasYoung(was_young)| {
            if was_young {
                were_young.push(pfn);
            }
            // Also if the page has the flag: another thread may have unlocked the area a moment ago
            // and no longer found the entry.
            if area.has(AreaFlag::Locked) || self.cache.has_flag(pfn, PageFlag::Unevictable) {
                were_locked.push(pfn);
            }
        });
        // Outside the file's rmap lock. A page that has left its frame meanwhile has no key there.
        for pfn in were_young {
            if let Some(key) = self.cache.key_of(pfn) {
                self.reclaim.mark_accessed(pfn, key);
            }
        }
        // Not earlier: until then the area maps them.
        for pfn in were_locked {
            self.reclaim.rescue_unlocked(pfn);
        }
    }
}

impl Drop for OpenMapping {
    fn drop(&mut self) {
        self.core.unmap(&self.area, 0..self.pages);
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

impl PinnedPage {
    /// Returns the page's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        self.pinned.bytes()
    }
}
