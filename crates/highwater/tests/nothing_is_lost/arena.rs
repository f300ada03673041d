//! The workers' shared state: files, memory and mappings, with their expected contents.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use highwater::units::{GroupId, PAGE_SIZE};
use highwater::{Access, Backing, File, Manager, Mapping, Pages, Space, SyncError, WriteGate};

use super::model::{Begins, Model};
use super::storage::{Disk, Storage, Wrongs};
use super::system::SystemFile;

/// A file, or a memory object, and its expected contents.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) model: Arc<Model>,
    /// Its storage that misbehaves; `None` for memory, and for a file of the system.
    pub(crate) storage: Option<Arc<Storage>>,
    system: Option<Arc<SystemFile>>,
    pub(crate) file: File,
    pub(crate) access: Access,
}

impl Opened {
    pub(crate) fn new(hw: &Manager, storage: Arc<Storage>, access: Access) -> Self {
        let backing = Arc::clone(&storage) as Arc<dyn Backing>;
        let file = hw.open_backing(backing, access).expect("one file more");
        if access == Access::ReadWrite {
            file.set_write_gate(Arc::clone(&storage.log) as Arc<dyn WriteGate>);
        }
        Self {
            model: Arc::clone(storage.model()),
            storage: Some(storage),
            system: None,
            file,
            access,
        }
    }

    /// Shared memory.
    pub(crate) fn memory(hw: &Manager, id: u32, pages: u64) -> Self {
        let file = hw.shared_memory(Pages(pages)).expect("a little memory");
        Self::of_memory(id, file)
    }

    fn of_memory(id: u32, file: File) -> Self {
        Self {
            model: Arc::new(Model::new(id, file.pages() * 512, PAGE_SIZE, Begins::Empty)),
            storage: None,
            system: None,
            file,
            access: Access::ReadWrite,
        }
    }

    /// A file of the system, for direct I/O where there is any.
    pub(crate) fn system(hw: &Manager, id: u32, words: u64, access: Access) -> Self {
        let system = SystemFile::new(id, words);
        Self {
            model: Arc::clone(system.model()),
            storage: None,
            file: system.open(hw, access),
            system: Some(system),
            access,
        }
    }

    /// Syncs a file of the system: what was written before is stored.
    pub(crate) fn flush(&self) {
        if let Some(system) = &self.system {
            let settled = self.model.settled();
            self.file.sync().expect("no disk fails");
            system.assert_stored(&settled);
        }
    }

    /// Makes storage work again, and writes everything back.
    pub(crate) fn recover(&self) {
        if let Some(storage) = &self.storage {
            storage.mend();
            // The first sync may report syncs that failed for other handles.
            let synced = match self.file.sync() {
                Err(SyncError::Earlier { .. }) => self.file.sync(),
                synced => synced,
            };
            synced.expect("storage works again");
            storage.assert_all_stored();
        }
        self.flush();
    }
}

/// A handle of a file that one worker syncs.
#[derive(Debug)]
pub(crate) struct Handle {
    file: File,
    storage: Arc<Storage>,
    /// Syncs that had failed before the file was opened.
    failed_before: u64,
    /// Failures that it has reported.
    heard: u64,
}

impl Handle {
    /// Returns `None` for memory. No sync of the file, as it is open now, has failed yet.
    pub(crate) fn new(of: &Opened) -> Option<Self> {
        let storage = of.storage.clone()?;
        Some(Self {
            file: of.file.clone(),
            failed_before: storage.failed_syncs(),
            storage,
            heard: 0,
        })
    }

    /// Syncs: unless pages could not be written, everything that was written before is on storage,
    /// and durable on success. The handle reports each failed sync once, its own or another's,
    /// before it reports success. Returns whether it succeeded.
    pub(crate) fn sync(&mut self) -> bool {
        let settled = self.storage.model().settled();
        let before = self.storage.failed_syncs() - self.failed_before;
        let result = self.file.sync();
        match &result {
            Err(SyncError::WriteBack { .. }) => return false,
            Err(SyncError::Durability(_)) => self.heard += 1,
            Err(SyncError::Earlier { failures, .. }) => self.heard += failures,
            Ok(()) => self.storage.assert_durable(&settled),
            Err(error) => panic!("{error}"),
        }
        self.storage.assert_stored(&settled);
        let after = self.storage.failed_syncs() - self.failed_before;
        let heard = self.heard;
        assert!(heard <= after, "heard of {heard} failures of {after}");
        if !matches!(result, Err(SyncError::Durability(_))) {
            assert!(before <= heard, "heard of {heard} failures of {before}");
        }
        result.is_ok()
    }
}

/// A mapping, and its unmapped pages. Clones share both.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub(crate) map: Mapping,
    /// The paying group.
    pub(crate) group: GroupId,
    pub(crate) of: Opened,
    pub(crate) first: u64,
    /// Set before a page is unmapped.
    goes: Arc<[AtomicBool]>,
    /// Set after it was.
    is_gone: Arc<[AtomicBool]>,
}

impl Mapped {
    pub(crate) fn new((space, group): &(Space, GroupId), of: &Opened, pages: Range<u64>) -> Self {
        let map = space.map_file(&of.file, pages.clone());
        Self::of(map.expect("within the file"), *group, of, pages)
    }

    /// Maps private memory, unless the mapping is passed on.
    pub(crate) fn anonymous((space, group): &(Space, GroupId), id: u32, pages: u64) -> Self {
        let map = space.map_anon(Pages(pages)).expect("a little memory");
        let of = Opened::of_memory(id, map.file().clone());
        Self::of(map, *group, &of, 0..pages)
    }

    fn of(map: Mapping, group: GroupId, of: &Opened, pages: Range<u64>) -> Self {
        let flags = || pages.clone().map(|_| AtomicBool::new(false)).collect();
        Self {
            map,
            group,
            of: of.clone(),
            first: pages.start,
            goes: flags(),
            is_gone: flags(),
        }
    }

    pub(crate) fn unmap(&self, pages: Range<u64>) {
        let set = |flags: &[AtomicBool]| {
            for page in pages.clone() {
                flags[usize::try_from(page).expect("a small mapping")]
                    .store(true, Ordering::SeqCst);
            }
        };
        set(&self.goes);
        self.map.unmap(pages.clone()).expect("within the mapping");
        set(&self.is_gone);
    }

    pub(crate) fn is_gone(&self, page: u64) -> bool {
        self.is_gone[usize::try_from(page).expect("a small mapping")].load(Ordering::SeqCst)
    }

    pub(crate) fn goes(&self, page: u64) -> bool {
        self.goes[usize::try_from(page).expect("a small mapping")].load(Ordering::SeqCst)
    }
}

/// The workers' shared state.
pub(crate) struct Arena {
    pub(crate) hw: Manager,
    pub(crate) files: Vec<Opened>,
    /// Mappings in transit from one worker to another.
    pub(crate) passing: Mutex<Vec<Mapped>>,
    /// The swap storage.
    pub(crate) swap: Arc<Disk>,
    pub(crate) wrongs: Arc<Wrongs>,
    /// The largest page of a file.
    pub(crate) page_max: PageMax,
}

/// Largest order of a file's pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageMax(pub(crate) u8);

impl PageMax {
    /// Returns the storage of a file of up to `pages` pages of some size.
    pub(crate) fn storage(
        self,
        rng: &mut Rng,
        id: u32,
        words: u64,
        wrongs: &Arc<Wrongs>,
    ) -> Arc<Storage> {
        let order = rng.u8(..=self.0);
        let words = rng.u64(512..words) << order;
        Storage::new(id, words, PAGE_SIZE << order, wrongs)
    }
}
