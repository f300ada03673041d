//! Open files: what their pages are read from and written to.

use std::collections::VecDeque;
use std::fmt;

use thiserror::Error;

use super::Evicted;
use super::anon::Anon;
use super::backing::{Backing, FileBacking};
use super::key::PageKey;
use super::readahead::Readahead;
use super::rmap::Rmap;
use super::writeback::SyncFailures;
use crate::counter::{CounterSet, Layout};
use crate::percpu::Regime;
use crate::sync::{Arc, LockClass, Rank, RwLock};
use crate::topology::Topology;
use crate::units::{Estimate, Pages};

static FILES_LOCK: LockClass = LockClass::new("files", Rank::Files);

/// How a file may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its contents do not change while it is open.
    ReadOnly,
    /// Its pages may be written through the cache.
    ReadWrite,
}

/// What the pages of a file object are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Pages of a file: they are read from it, and written back to it.
    File,
    /// Anonymous memory: it begins as zeros, is swapped out, and ends with its mapping.
    Anon,
    /// Shared memory: as anonymous, but for whoever maps it.
    Shmem,
}

impl FileKind {
    /// Whether pages go to swap when they are taken back. They are on the lists of anonymous pages.
    #[must_use]
    pub const fn is_swap_backed(self) -> bool {
        matches!(self, Self::Anon | Self::Shmem)
    }
}

/// Number of an open file; its lowest bits say what its pages are, and how they are used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u32);

/// Bits of a file number.
const FILE_BITS: u32 = 20;
/// Those of them that say what the pages are.
const KIND_BITS: u32 = 2;
const READ_ONLY: u32 = 0;
const READ_WRITE: u32 = 1;
const ANON: u32 = 2;
const SHMEM: u32 = 3;

impl FileId {
    /// Files that can be open at once, mappings of anonymous memory included.
    pub const MAX: usize = (1 << (FILE_BITS - KIND_BITS)) - 2;

    fn new(slot: usize, kind: FileKind, access: Access) -> Self {
        debug_assert!(slot < Self::MAX);
        let slot = u32::try_from(slot + 1).expect("at most `MAX` files are open");
        let kind = match (kind, access) {
            (FileKind::File, Access::ReadOnly) => READ_ONLY,
            (FileKind::File, Access::ReadWrite) => READ_WRITE,
            (FileKind::Anon, _) => ANON,
            (FileKind::Shmem, _) => SHMEM,
        };
        Self(slot << KIND_BITS | kind)
    }

    fn slot(self) -> usize {
        (self.0 >> KIND_BITS) as usize - 1
    }

    /// What the file's pages are.
    #[must_use]
    pub const fn kind(self) -> FileKind {
        match self.0 & ((1 << KIND_BITS) - 1) {
            READ_ONLY | READ_WRITE => FileKind::File,
            ANON => FileKind::Anon,
            _ => FileKind::Shmem,
        }
    }

    pub(super) const fn get(self) -> u32 {
        self.0
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the upper bits of a key are a file number"
    )]
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits as u32)
    }

    /// Whether pages of the file have latches and may be dirty: all but those of read-only files.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.0 & ((1 << KIND_BITS) - 1) != READ_ONLY
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind() {
            FileKind::File if self.is_writable() => "writable file",
            FileKind::File => "file",
            FileKind::Anon => "anon",
            FileKind::Shmem => "shmem",
        };
        write!(f, "{kind} {}", self.0 >> KIND_BITS)
    }
}

/// No number is left for another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{max} files are open, which is the most: close some")]
pub struct TooManyFiles {
    /// The most files that can be open.
    pub max: usize,
}

/// An open file.
#[derive(Debug)]
pub struct FileEntry {
    id: FileId,
    /// As many as there were when it was opened.
    pages: u64,
    backing: Arc<dyn Backing>,
    /// Whether the backing writes each byte that it says it has read: one of the library's own.
    is_truthful: bool,
    /// What is behind `backing` if the pages are swap-backed.
    anon: Option<Arc<Anon>>,
    readahead: Readahead,
    resident: CounterSet<1>,
    pub(super) sync_failures: SyncFailures,
    /// Who maps it.
    pub(super) rmap: Rmap,
}

/// What a file is opened over.
#[derive(Debug)]
pub(super) enum Source {
    /// A file of the system.
    System(FileBacking, Access),
    /// Storage that an embedder brings.
    Backing(Arc<dyn Backing>, Access),
    /// Memory: anonymous, or shared.
    Memory(Anon, FileKind),
}

/// The only counter of a file.
const ONLY: usize = 0;

impl FileEntry {
    /// The file's number.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }

    /// The name of a page of the file.
    ///
    /// # Panics
    ///
    /// As [`PageKey::new`].
    #[must_use]
    pub fn key(&self, page: u64) -> PageKey {
        PageKey::new(self.id, page)
    }

    /// Pages in the file.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Where its pages are read from and written to.
    #[must_use]
    pub fn backing(&self) -> &dyn Backing {
        &*self.backing
    }

    /// Whether a frame that its pages are read into may hold what others left there, because all of
    /// it is written over or the read fails. Of storage that an embedder brings that is not known:
    /// it may say that it has read what it has not, and would show one tenant's bytes to another;
    /// nor is it to see them itself.
    #[must_use]
    pub fn is_truthful(&self) -> bool {
        self.is_truthful
    }

    /// The memory whose pages these are, if they are swap-backed.
    pub(super) fn anon(&self) -> Option<&Anon> {
        self.anon.as_deref()
    }

    /// Whether a page that is not resident has to be read from storage: that of a file always, that
    /// of anonymous memory if it lies in swap.
    #[must_use]
    pub fn is_stored(&self, page: u64) -> bool {
        self.anon().is_none_or(|anon| anon.is_swapped(page))
    }

    /// Where the file is read in order.
    #[must_use]
    pub fn readahead(&self) -> &Readahead {
        &self.readahead
    }

    /// Counts a page that has become resident.
    pub fn note_filled(&self) {
        self.resident.add(ONLY, 1);
    }

    /// Pages of the file in the cache, within the counter's accuracy.
    #[must_use]
    pub fn resident(&self) -> Estimate<i64> {
        self.resident.approximate_sum(ONLY)
    }

    /// Pages of the file in the cache, by visiting every CPU; exact when nothing moves.
    #[must_use]
    pub fn resident_precise(&self) -> i64 {
        self.resident.precise_sum(ONLY)
    }
}

/// Every open file, by number. A closed file's number is used again as late as possible: by then
/// the shadows of its pages are forgotten.
#[derive(Debug)]
pub(super) struct Files {
    open: RwLock<Open>,
    layout: Arc<Layout>,
}

#[derive(Debug, Default)]
struct Open {
    /// By slot.
    entries: Vec<Option<Arc<FileEntry>>>,
    /// Slots of closed files, in the order of closing.
    closed: VecDeque<usize>,
}

impl Files {
    pub(super) fn new(topology: &Topology, regime: Regime) -> Self {
        Self {
            open: RwLock::new(&FILES_LOCK, Open::default()),
            layout: Layout::new(topology, regime),
        }
    }

    pub(super) fn open(&self, source: Source) -> Result<Arc<FileEntry>, TooManyFiles> {
        let is_truthful = !matches!(source, Source::Backing(..));
        let (backing, anon, kind, access) = match source {
            Source::System(file, access) => {
                let backing = Arc::new(file) as Arc<dyn Backing>;
                (backing, None, FileKind::File, access)
            }
            Source::Backing(backing, access) => (backing, None, FileKind::File, access),
            Source::Memory(anon, kind) => {
                let anon = Arc::new(anon);
                let backing = Arc::clone(&anon) as Arc<dyn Backing>;
                (backing, Some(anon), kind, Access::ReadWrite)
            }
        };
        let resident = CounterSet::new(&self.layout);
        // Not under the lock: it may panic.
        let pages = backing.pages();
        let mut open = self.open.write();
        let slot = match open.entries.len() {
            FileId::MAX => open.closed.pop_front(),
            unused => Some(unused),
        };
        let slot = slot.ok_or(TooManyFiles { max: FileId::MAX })?;
        let entry = Arc::new(FileEntry {
            id: FileId::new(slot, kind, access),
            pages,
            backing,
            is_truthful,
            anon,
            readahead: Readahead::default(),
            resident,
            sync_failures: SyncFailures::new(),
            rmap: Rmap::new(),
        });
        if slot == open.entries.len() {
            open.entries.push(None);
        }
        open.entries[slot] = Some(Arc::clone(&entry));
        Ok(entry)
    }

    /// Forgets a file none of whose pages is in the cache any more.
    pub(super) fn close(&self, id: FileId) {
        let mut open = self.open.write();
        let entry = open.entries[id.slot()].take();
        debug_assert!(
            entry.is_some_and(|entry| entry.id == id),
            "{id:?} closed twice"
        );
        open.closed.push_back(id.slot());
    }

    /// Counts pages that have left the cache, a run of one file's pages at a time.
    pub(super) fn note_evicted(&self, evicted: &[Evicted]) {
        for run in evicted.chunk_by(|a, b| a.key.file() == b.key.file()) {
            let count = i64::try_from(run.len()).expect("a cluster of pages");
            if let Some(entry) = self.get(run[0].key.file()) {
                entry.resident.add(ONLY, -count);
            }
        }
    }

    /// Files that are open, or have pages in the cache.
    pub(super) fn all(&self) -> Vec<Arc<FileEntry>> {
        self.open.read().entries.iter().flatten().cloned().collect()
    }

    /// Pages of all open objects that have a slot in swap.
    pub(super) fn nr_places(&self) -> Pages {
        let open = self.open.read();
        let anon = open
            .entries
            .iter()
            .flatten()
            .filter_map(|entry| entry.anon());
        anon.map(Anon::nr_places).sum()
    }

    /// The open file of a number, which a page of it is in the cache for.
    pub(super) fn get(&self, id: FileId) -> Option<Arc<FileEntry>> {
        let open = self.open.read();
        open.entries
            .get(id.slot())?
            .clone()
            .filter(|entry| entry.id == id)
    }
}
