//! Mappings: ranges of files in a space. Reads and writes of their pages: `access.rs`.

use std::iter;
use std::ops::Range;

use super::Core;
use super::error::RangeError;
use super::file::File;
use super::source::FillSource;
use super::space::Space;
use crate::cache::{Access, AreaFlag, AreaSpec, PageFlag, ReadPattern, VmArea, WasYoung};
use crate::memmap::FrameMemory;
use crate::sync::Arc;
use crate::units::{FilePage, MapPage, Pfn};

/// A range of a file's pages in a space (VMA). Cheap to clone; unmapped with its last handle, or in
/// parts before ([`unmap`](Self::unmap)). Page numbers are relative to the mapping's start.
#[derive(Clone, Debug)]
pub struct Mapping {
    // First, because every read needs these two.
    pub(super) area: Arc<VmArea>,
    /// The memory whose guards it accepts.
    pub(super) memory: Arc<FrameMemory>,
    pub(super) open: Arc<OpenMapping>,
}

#[derive(Debug)]
pub(super) struct OpenMapping {
    area: Arc<VmArea>,
    /// Access mode of the file.
    pub(super) access: Access,
    pages: u64,
    core: Arc<Core>,
    pub(super) file: File,
    space: Space,
}

impl Space {
    /// Maps a range of a file's pages.
    ///
    /// # Cost
    ///
    /// A page table, which takes memory as pages are accessed. Of up to 2^18 pages (1 GiB): 4 KiB
    /// for each 512 pages of which one was accessed, until the mapping ends. Of more pages: 4 KiB
    /// for each 512 pages of which one is mapped, in swap, or was unmapped apart from the others;
    /// above 2^27 pages (512 GiB) as much again, above 2^36 twice, where these are far apart. That
    /// goes with the last such page, but for at most 256 KiB, and 2 MiB for each mapping. All of it
    /// is charged to no group.
    ///
    /// # Errors
    ///
    /// When the range is not within the file.
    ///
    /// # Panics
    ///
    /// When the file belongs to another manager.
    pub fn map_file(
        &self,
        file: &File,
        pages: Range<impl Into<FilePage>>,
    ) -> Result<Mapping, RangeError> {
        assert!(
            Arc::ptr_eq(file.shared(), self.shared()),
            "the file is of another manager"
        );
        let pages = FilePage::range(pages);
        if pages.start > pages.end || pages.end.0 > file.pages() {
            return Err(RangeError::File {
                start: pages.start,
                end: pages.end,
                pages: file.pages(),
            });
        }
        Ok(Mapping::new(file.clone(), self.clone(), pages))
    }
}

impl Mapping {
    pub(super) fn new(file: File, space: Space, pages: Range<FilePage>) -> Self {
        debug_assert!(
            Arc::ptr_eq(file.shared(), space.shared()),
            "file and space are of one manager"
        );
        let nr_pages = pages.end.0 - pages.start.0;
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
        debug_assert_eq!(area.pages(), nr_pages, "an area is as long as its range");
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
    /// let part = hw.space(&hw.root()).map_file(&file, 1..3)?;
    /// assert_eq!(part.pages(), 2);
    /// # drop(map);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.open.pages
    }

    /// Returns the mapped file.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn file(&self) -> &File {
        &self.open.file
    }

    /// Returns the space of the mapping.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn space(&self) -> &Space {
        &self.open.space
    }

    /// Unmaps pages permanently, for all handles of this mapping. Reading them is an error from
    /// then on. Anonymous pages lose their frames and swap slots, except those that are latched at
    /// the moment, also by reclaim that swaps them out: these keep theirs until the range is
    /// unmapped again, or the mapping ends.
    ///
    /// # Cost
    ///
    /// The file's rmap lock, held while the entries of the range are cleared.
    ///
    /// # Errors
    ///
    /// When the range is not within the mapping; nothing is unmapped then.
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
    /// map.unmap(1..2)?;
    /// let guard = hw.enter();
    /// assert!(map.read(&guard, 1).is_err());
    /// assert!(map.read(&guard, 2).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unmap(&self, pages: Range<impl Into<MapPage>>) -> Result<(), RangeError> {
        let pages = self.check_range(pages)?;
        self.core().unmap(&self.area, pages.clone());
        self.core().discard_unmapped(&self.area, pages);
        Ok(())
    }

    /// Sets the order in which pages will be read through this mapping. Sequential accesses do not
    /// predict later ones, so they do not protect their pages from eviction (`MADV_SEQUENTIAL`).
    /// Accesses in random order do, unlike under the kernel's `MADV_RANDOM`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::ReadPattern;
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// map.set_read_pattern(ReadPattern::Sequential);
    /// let guard = hw.enter();
    /// assert_eq!(map.read(&guard, 0)?[0], 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    /// map.will_need(0..3)?;
    /// let guard = hw.enter();
    /// assert!(map.try_read(&guard, 2).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn will_need(&self, pages: Range<impl Into<MapPage>>) -> Result<(), RangeError> {
        let pages = self.check_range(pages)?;
        let area = &self.area;
        let mut rest = MapPage::numbers(&pages).map(MapPage).peekable();
        while let Some(first) = rest.find(|page| !area.is_hole(*page)) {
            // Up to the next page that is not mapped any more.
            let more = iter::from_fn(|| rest.next_if(|page| !area.is_hole(*page)));
            let run = first..MapPage(first.0 + 1 + more.count() as u64);
            self.core()
                .read_ahead_all(FillSource::of(area), area.file_pages(&run));
        }
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
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn dont_need(&self, pages: Range<impl Into<MapPage>>) -> Result<(), RangeError> {
        let pages = self.check_range(pages)?;
        let area = &*self.area;
        self.core()
            .let_go(area, |core, leaving| core.cache.zap(area, pages, leaving));
        Ok(())
    }

    /// Marks the pages as executable: one access through this mapping activates them, where others
    /// need two.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn set_executable(&self) {
        self.area.set(AreaFlag::Executable);
    }

    /// Locks mapped pages (`mlock`): reclaim moves them to the unevictable pages when it finds
    /// them, until they are unlocked or unmapped. Reads no pages in. Locks do not nest.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn lock(&self) {
        self.area.set(AreaFlag::Locked);
    }

    /// Unlocks the pages that no other mapping has locked.
    ///
    /// # Cost
    ///
    /// A visit to each entry of the mapping.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn unlock(&self) {
        let (core, area) = (self.core(), &*self.area);
        area.clear(AreaFlag::Locked);
        core.cache
            .for_each_mapped(area, |pfn| core.reclaim.rescue_unlocked(pfn));
    }

    /// Returns the range if it is within the mapping.
    pub(super) fn check_range(
        &self,
        pages: Range<impl Into<MapPage>>,
    ) -> Result<Range<MapPage>, RangeError> {
        let pages = MapPage::range(pages);
        if pages.start > pages.end || pages.end.0 > self.pages() {
            return Err(RangeError::Mapping {
                start: pages.start,
                end: pages.end,
                pages: self.pages(),
            });
        }
        Ok(pages)
    }

    pub(super) fn area(&self) -> &Arc<VmArea> {
        &self.area
    }

    pub(super) fn core(&self) -> &Core {
        &self.open.core
    }
}

impl Core {
    fn map(&self, spec: AreaSpec) -> Arc<VmArea> {
        let area = self.cache.map(spec);
        self.reclaim.settle_deferred(area.file());
        area
    }

    /// Unmaps pages of an area. Accessed bits of the cleared entries are transferred to the pages.
    fn unmap(&self, area: &Arc<VmArea>, pages: Range<MapPage>) {
        self.let_go(area, |core, leaving| core.cache.unmap(area, pages, leaving));
        self.reclaim.settle_deferred(area.file());
    }

    /// Clears entries of an area by `take`, and makes pages evictable that only its lock kept.
    fn let_go(&self, area: &VmArea, take: impl FnOnce(&Self, &mut dyn FnMut(Pfn, WasYoung))) {
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
        self.core.unmap(&self.area, MapPage::range(0..self.pages));
    }
}
