//! Anonymous and shared memory: mappings without a file.
//!
//! Both are objects like files. Their pages start as zeros and are swapped out to the manager's
//! swap area under pressure ([`Builder::swap`](super::Builder::swap)). When it is full, written
//! pages stay in memory, and pages that were only read can be evicted; without one, all stay. An
//! object ends with its last handle or mapping: its pages and swap slots are freed then, without
//! I/O.

use std::ops::Range;

use super::error::MemoryError;
use super::file::File;
use super::mapping::Mapping;
use super::space::Space;
use super::{Core, Handle, Manager};
use crate::cache::{Discard, FileKind, PageKey, VmArea};
use crate::units::{FilePage, MapPage, Pages, Pfn};

impl Space {
    /// Maps private anonymous memory: zeros until written. Pages are charged as they are first read
    /// or written, by [`Mapping::read_latched`] and [`Mapping::write`].
    ///
    /// # Cost
    ///
    /// 16 bytes for each 512 pages, and 2 KiB for each 512 pages of which some were swapped out,
    /// until the mapping ends; and as [`map_file`](Self::map_file). That memory is charged to no
    /// group.
    ///
    /// # Errors
    ///
    /// For more than 16 TiB, when too many files are open, or the manager has no frames.
    pub fn map_anon(&self, pages: Pages) -> Result<Mapping, MemoryError> {
        let memory = open(self.shared(), pages, FileKind::Anon)?;
        Ok(Mapping::new(
            memory,
            self.clone(),
            FilePage(0)..FilePage(pages.0),
        ))
    }
}

impl Mapping {
    /// Discards pages, in memory and in swap, for every mapping of the object: they read as zeros
    /// and cost nothing until the next access (`MADV_REMOVE`).
    ///
    /// # Cost
    ///
    /// The lock of an index shard for each page, or a look at each frame of the pool if those are
    /// fewer. Waits for pages that are pinned or latched; a thread that itself holds one of them
    /// deadlocks.
    ///
    /// # Errors
    ///
    /// For a mapping of a file, and a range that is not within the mapping; nothing is discarded
    /// then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Pages;
    /// # use highwater::Manager;
    /// # let hw = Manager::builder().build()?;
    /// let map = hw.space(&hw.root()).map_anon(Pages(4))?;
    /// map.write(2)?[0] = 8;
    /// map.discard(2..3)?;
    /// assert_eq!(map.read_latched(2)?[0], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn discard(&self, pages: Range<impl Into<MapPage>>) -> Result<(), MemoryError> {
        if !self.area().file().id().kind().is_swap_backed() {
            return Err(MemoryError::NotMemory);
        }
        let pages = self.check_range(pages)?;
        let (core, area) = (self.core(), self.area());
        let resident = core.discard(area, pages.clone(), Discard::Wait, |_| false);
        core.reclaim.evict_pages(&resident);
        core.cache
            .forget_swapped(area.file(), &area.file_pages(&pages));
        Ok(())
    }
}

impl Core {
    /// Discards the given pages of an anonymous mapping after they were unmapped. Pages that are
    /// pinned or latched go with their object.
    pub(super) fn discard_unmapped(&self, area: &VmArea, pages: Range<MapPage>) {
        let file = area.file();
        if file.id().kind() == FileKind::Anon {
            let resident = self.discard(area, pages, Discard::Skip, |page| file.maps_page(page));
            self.reclaim.evict_pages(&resident);
        }
    }

    /// Discards pages of an area.
    fn discard(
        &self,
        area: &VmArea,
        pages: Range<MapPage>,
        discard: Discard,
        is_needed: impl FnMut(FilePage) -> bool,
    ) -> Vec<(Pfn, PageKey)> {
        let pages = area.file_pages(&pages);
        self.cache.discard(area.file(), pages, discard, is_needed)
    }
}

impl Manager {
    /// Maximum size of one anonymous mapping or shared memory object: 16 TiB.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const MEMORY_MAX: Pages = Pages(1 << 32);

    /// Creates memory that several spaces can map ([`Space::map_file`]): zeros until written.
    ///
    /// # Cost
    ///
    /// As [`Space::map_anon`].
    ///
    /// # Errors
    ///
    /// As [`Space::map_anon`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Pages;
    /// # use highwater::{Limits, Manager};
    /// # let hw = Manager::builder().build()?;
    /// # let tenant = hw.root().child("tenant-a", Limits::default())?;
    /// let memory = hw.shared_memory(Pages(4))?;
    /// let (one, other) = (hw.space(&hw.root()), hw.space(&tenant));
    /// one.map_file(&memory, 0..4)?.write(3)?[0] = 8;
    /// assert_eq!(other.map_file(&memory, 0..4)?.read_latched(3)?[0], 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared_memory(&self, pages: Pages) -> Result<File, MemoryError> {
        open(&self.shared, pages, FileKind::Shmem)
    }
}

fn open(shared: &Handle, pages: Pages, kind: FileKind) -> Result<File, MemoryError> {
    shared.core.require_frames()?;
    let max = Manager::MEMORY_MAX;
    if pages > max {
        return Err(MemoryError::TooLarge { pages, max });
    }
    shared.core.reap_closing();
    let entry = shared.core.cache.open_memory(pages, kind)?;
    Ok(File::new(shared, entry))
}
