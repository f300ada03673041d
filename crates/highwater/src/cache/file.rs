//! Open files and their backing storage.

use std::collections::VecDeque;
use std::fs::File;

use thiserror::Error;

use super::anon::Anon;
use super::backing::{Backing, order_of_size, page_len, pages_in};
use super::errseq::{FailuresBefore, SyncFailures, ToldOf};
use super::key::{Access, FileId, FileKind, PageKey};
use super::readahead::credit::Credit;
use super::readahead::{ReadPattern, Readahead};
use super::resize::FileSize;
use super::rmap::Rmap;
use super::swap::SwapSlot;
use super::system_file::FileBacking;
use super::wal::LogGate;
use super::{Evicted, Filling, PageCache};
use crate::counter::{CounterSet, Layout};
use crate::memmap::Advice;
use crate::percpu::Regime;
use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use crate::sync::{Arc, LockClass, OnceLock, Rank, RwLock};
use crate::topology::Topology;
use crate::units::{Estimate, FilePage, Order, PAGE_SIZE, Pages};

static FILES_LOCK: LockClass = LockClass::new("files", Rank::Files);

/// No file number is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{max} files are open, the maximum: close some")]
pub struct TooManyFiles {
    /// The maximum number of open files.
    pub max: usize,
}

/// An open file.
#[derive(Debug)]
pub struct FileEntry {
    id: FileId,
    pub(super) size: FileSize,
    backing: Arc<dyn Backing>,
    /// The system file behind `backing`, if it was opened as one.
    system: Option<Arc<FileBacking>>,
    /// The memory object behind `backing` if the pages are swap-backed.
    anon: Option<Arc<Anon>>,
    readahead: Readahead,
    credit: Credit,
    /// Whether the kernel was told that the file is read at random.
    /// Written and read by: readers that miss. Publishes: nothing; the advice is a hint.
    is_random: AtomicBool,
    resident: CounterSet<1>,
    pub(super) sync_failures: SyncFailures,
    /// The areas that map it.
    pub(super) rmap: Rmap,
    /// The log that its pages wait for, if it has one.
    pub(super) gate: OnceLock<LogGate>,
}

impl PageCache {
    /// Opens a file over `backing`.
    ///
    /// # Errors
    ///
    /// When [`FileId::MAX`] files are open.
    pub fn open(
        &self,
        backing: Arc<dyn Backing>,
        access: Access,
    ) -> Result<Arc<FileEntry>, TooManyFiles> {
        self.files.open(FileSource::Backing(backing, access))
    }

    /// As [`open`](Self::open), for a system file: its pages are read into frames that are not
    /// zeroed, because the system reports correctly how many bytes it has written; pages of other
    /// storage are zeroed first.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_system_file(
        &self,
        file: FileBacking,
        access: Access,
    ) -> Result<Arc<FileEntry>, TooManyFiles> {
        self.files.open(FileSource::System(file, access))
    }

    /// Creates a memory object of `pages` zeros, swapped out to the cache's swap area, if it has
    /// one.
    ///
    /// # Errors
    ///
    /// When [`FileId::MAX`] files are open.
    ///
    /// # Panics
    ///
    /// For [`FileKind::File`], which needs storage ([`open`](Self::open)).
    pub fn open_memory(
        &self,
        pages: Pages,
        kind: FileKind,
    ) -> Result<Arc<FileEntry>, TooManyFiles> {
        assert!(kind.is_swap_backed(), "files are opened over storage");
        let anon = Anon::new(pages, self.swap.clone());
        self.files.open(FileSource::Memory(anon, kind))
    }

    /// Returns the highest order of a file that was ever opened.
    #[must_use]
    pub fn order_max(&self) -> Order {
        self.files.order_max()
    }

    /// Closes a file. The caller has evicted all its pages.
    pub fn close(&self, id: FileId) {
        debug_assert!(
            self.pages_of(id).next().is_none(),
            "{id:?} closed with pages in the cache"
        );
        self.files.close(id);
    }
}

/// Backing of a file to open.
#[derive(Debug)]
enum FileSource {
    /// A system file.
    System(FileBacking, Access),
    /// Storage that the embedder provides.
    Backing(Arc<dyn Backing>, Access),
    /// Anonymous or shared memory.
    Memory(Anon, FileKind),
}

/// The only counter of a file.
const ONLY: usize = 0;

impl FileEntry {
    /// Returns the cursor of a new handle: all earlier failures count as reported.
    #[must_use]
    pub fn told_of_failures(&self) -> ToldOf {
        self.sync_failures.cursor()
    }

    /// Returns the failures of syncs up to now: for a sync that is about to look for pages.
    #[must_use]
    pub fn failures_before(&self) -> FailuresBefore {
        self.sync_failures.before()
    }

    /// Returns the file's number.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Returns the key of a page of the file.
    ///
    /// # Panics
    ///
    /// As [`PageKey::new`].
    #[must_use]
    pub fn key(&self, page: impl Into<FilePage>) -> PageKey {
        PageKey::new(self.id, page)
    }

    /// Returns the number of pages in the file.
    #[inline]
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.size.pages()
    }

    /// Returns the order of its pages: 0 for 4 KiB.
    #[inline]
    #[must_use]
    pub fn order(&self) -> Order {
        self.id.order()
    }

    /// Returns the number of bytes in a page: less in a partial last one.
    #[must_use]
    pub fn page_len(&self, page: FilePage) -> usize {
        page_len(self.backing.len(), self.order(), page)
    }

    /// Returns the storage of its pages.
    #[must_use]
    pub fn backing(&self) -> &dyn Backing {
        &*self.backing
    }

    /// Returns whether its pages may be read into a frame that is not zeroed, because all of it is
    /// overwritten or the read fails. An embedder's storage may report bytes that it has not read,
    /// which would leak one tenant's data to another; nor may it see the frame's former contents
    /// itself.
    #[must_use]
    pub fn is_truthful(&self) -> bool {
        self.system_file().is_some() || self.anon.is_some()
    }

    /// Returns the system file behind the backing, if it was opened as one: its pages can be read
    /// and written through its descriptor.
    #[must_use]
    pub(crate) fn system_file(&self) -> Option<&FileBacking> {
        self.system.as_deref()
    }

    /// Returns the descriptor and the offset of neighbouring pages, if one request to a descriptor
    /// can read all; for swap, also the slot of the first.
    pub(crate) fn run_in_file(&self, pages: &[Filling]) -> Option<(&File, u64, Option<SwapSlot>)> {
        let first = pages[0].page();
        if let Some(anon) = self.anon() {
            let run = anon.run_in_file(first, pages.len())?;
            return Some((run.file, run.offset, Some(run.slot)));
        }
        let system = self.system_file()?;
        Some((system.file_of(first), system.offset_of(first), None))
    }

    /// Completes the read of a run of swap, from a page and its slot on, of which `got` bytes came;
    /// returns the bytes that count as read.
    pub(crate) fn end_swapped_run(
        &self,
        (first, slot): (FilePage, SwapSlot),
        got: usize,
        bufs: &mut [&mut [u8]],
    ) -> usize {
        let anon = self.anon().expect("swap has pages of memory");
        anon.note_read(got / PAGE_SIZE, bufs.len());
        anon.end_run(first, slot, got, bufs)
    }

    /// Returns whether its pages may come from a descriptor of the library's own.
    pub(crate) fn has_descriptor(&self) -> bool {
        self.system.is_some() || self.anon().is_some_and(Anon::has_file)
    }

    /// Returns how many of neighbouring pages, from the first on, one request to a descriptor can
    /// read.
    #[must_use]
    pub(crate) fn run_of_one_file(&self, pages: &[Filling]) -> usize {
        if let Some(anon) = self.anon() {
            return match anon.run_len(pages[0].page(), pages.len()) {
                0 => pages.len(),
                run => run,
            };
        }
        let Some(system) = self.system_file() else {
            return pages.len();
        };
        let file_of = |filling: &Filling| std::ptr::from_ref(system.file_of(filling.page()));
        let first = file_of(&pages[0]);
        let others = pages.iter().position(|page| file_of(page) != first);
        others.unwrap_or(pages.len())
    }

    /// Returns the memory object, if the pages are swap-backed.
    pub(super) fn anon(&self) -> Option<&Anon> {
        self.anon.as_deref()
    }

    /// Returns whether a page that is not resident has to be read from storage: always for a file,
    /// and for anonymous memory if the page is in swap.
    #[must_use]
    pub fn is_stored(&self, page: FilePage) -> bool {
        self.anon().is_none_or(|anon| anon.is_swapped(page))
    }

    /// Returns the readahead state.
    #[must_use]
    pub fn readahead(&self) -> &Readahead {
        &self.readahead
    }

    /// Returns the credit of its readahead.
    pub(super) fn credit(&self) -> &Credit {
        &self.credit
    }

    /// Returns how many pages were read ahead and evicted without an access.
    pub fn nr_unread(&self) -> u64 {
        self.credit.unread()
    }

    /// Counts pages that were brought in and that a call had asked for.
    pub fn note_requested(&self, pages: usize) {
        self.credit.note_requested(pages as u64);
    }

    /// Counts pages that are going to be read and that no call has asked for.
    pub fn note_ahead(&self, pages: usize) {
        self.credit.pay(pages as u64);
        self.note_waiting(pages as u64, 1);
    }

    /// Takes [`note_ahead`](Self::note_ahead) back for pages that were not read after all.
    pub fn note_not_ahead(&self, pages: usize) {
        self.credit.refund(pages as u64);
        self.note_waiting(pages as u64, -1);
    }

    /// Counts the first access of a page that was read ahead.
    pub(super) fn note_ahead_accessed(&self) {
        self.credit.note_accessed();
        self.note_waiting(1, -1);
    }

    /// Counts pages that were read ahead and evicted without an access.
    pub(super) fn note_ahead_unread(&self, pages: u64) {
        self.credit.note_unread(pages);
        self.note_waiting(pages, -1);
    }

    /// Counts pages of memory that wait for their first access, or do no more.
    fn note_waiting(&self, pages: u64, sign: i64) {
        if let Some(anon) = self.anon() {
            anon.note_waiting(sign * pages.cast_signed());
        }
    }

    /// Tells the kernel how the file is read: at random, it reads nothing ahead by itself. For a
    /// system file in its page cache only.
    pub fn note_order(&self, pattern: ReadPattern) {
        let is_random = pattern == ReadPattern::Random;
        // Relaxed, both: see the field.
        if self.is_random.load(Ordering::Relaxed) == is_random {
            return;
        }
        self.is_random.store(is_random, Ordering::Relaxed);
        if let Some(file) = self.system_file() {
            file.advise(if is_random {
                Advice::Random
            } else {
                Advice::Normal
            });
        }
    }

    /// Counts a page that has become resident.
    pub fn note_filled(&self) {
        self.resident.add(ONLY, 1 << self.order().get());
    }

    /// Returns the frames of the file's resident pages, within the counter's accuracy.
    #[must_use]
    pub fn resident(&self) -> Estimate<i64> {
        self.resident.approximate_sum(ONLY)
    }

    /// Returns the frames of the file's resident pages by visiting every CPU; exact when quiescent.
    #[must_use]
    pub fn resident_precise(&self) -> i64 {
        self.resident.precise_sum(ONLY)
    }
}

/// The table of open files, by number. A closed file's number is reused as late as possible: by
/// then the shadows of its pages are forgotten.
#[derive(Debug)]
pub(super) struct FileTable {
    open: RwLock<OpenFiles>,
    /// Written by: threads that open files. Read by: reclaim, after it has found pages of them.
    /// Publishes: nothing.
    order_max: AtomicU8,
    layout: Arc<Layout>,
}

#[derive(Debug, Default)]
struct OpenFiles {
    /// By slot.
    entries: Vec<Option<Arc<FileEntry>>>,
    /// Slots of closed files, in the order of closing.
    closed: VecDeque<usize>,
}

impl FileTable {
    pub(super) fn new(topology: &Topology, regime: Regime) -> Self {
        Self {
            open: RwLock::new(&FILES_LOCK, OpenFiles::default()),
            order_max: AtomicU8::new(0),
            layout: Layout::new(topology, regime),
        }
    }

    fn open(&self, source: FileSource) -> Result<Arc<FileEntry>, TooManyFiles> {
        let (mut system, mut anon) = (None, None);
        let (backing, kind, access): (Arc<dyn Backing>, _, _) = match source {
            FileSource::System(file, access) => {
                let file = Arc::new(file);
                system = Some(Arc::clone(&file));
                (file, FileKind::File, access)
            }
            FileSource::Backing(backing, access) => (backing, FileKind::File, access),
            FileSource::Memory(memory, kind) => {
                let memory = Arc::new(memory);
                anon = Some(Arc::clone(&memory));
                (memory, kind, Access::ReadWrite)
            }
        };
        let resident = CounterSet::new(&self.layout);
        // Outside the lock: it may panic.
        let order = order_of_size(backing.page_size()).expect("the caller has checked it");
        let pages = pages_in(backing.len(), order);
        // Relaxed: the lock that publishes the file orders it.
        self.order_max.fetch_max(order.get(), Ordering::Relaxed);
        let mut open = self.open.write();
        let slot = match open.entries.len() {
            FileId::MAX => open.closed.pop_front(),
            unused => Some(unused),
        };
        let slot = slot.ok_or(TooManyFiles { max: FileId::MAX })?;
        let entry = Arc::new(FileEntry {
            id: FileId::new(slot, kind, access, order),
            size: FileSize::new(pages),
            backing,
            system,
            anon,
            readahead: Readahead::default(),
            credit: Credit::new(kind),
            is_random: AtomicBool::new(false),
            resident,
            sync_failures: SyncFailures::new(),
            rmap: Rmap::new(),
            gate: OnceLock::new(),
        });
        if slot == open.entries.len() {
            open.entries.push(None);
        }
        open.entries[slot] = Some(Arc::clone(&entry));
        Ok(entry)
    }

    /// Returns the highest order of a file that was ever opened.
    pub(super) fn order_max(&self) -> Order {
        // Relaxed: see the field.
        let order = Order::new(self.order_max.load(Ordering::Relaxed));
        order.expect("the order of a file")
    }

    /// Removes a file without resident pages.
    pub(super) fn close(&self, id: FileId) {
        let mut open = self.open.write();
        let entry = open.entries[id.slot()].take();
        debug_assert!(
            entry.is_some_and(|entry| entry.id == id),
            "{id:?} closed twice"
        );
        open.closed.push_back(id.slot());
    }

    /// Counts evicted pages, one run of a file's pages at a time.
    pub(super) fn note_evicted(&self, evicted: &[Evicted]) {
        for run in evicted.chunk_by(|a, b| a.key.file() == b.key.file()) {
            let count = i64::try_from(run.len()).expect("a cluster of pages");
            if let Some(entry) = self.get(run[0].key.file()) {
                entry.resident.add(ONLY, -count << entry.order().get());
            }
        }
    }

    /// Returns the files that are open or have resident pages.
    pub(super) fn all(&self) -> Vec<Arc<FileEntry>> {
        self.open.read().entries.iter().flatten().cloned().collect()
    }

    /// Returns the files whose logs hold pages up.
    pub(super) fn held_up(&self) -> Vec<Arc<FileEntry>> {
        let open = self.open.read();
        let entries = open.entries.iter().flatten();
        entries
            .filter(|entry| entry.is_held_up())
            .cloned()
            .collect()
    }

    /// Returns the number of pages of all open objects that have a slot in swap.
    pub(super) fn nr_places(&self) -> Pages {
        let open = self.open.read();
        let anon = open
            .entries
            .iter()
            .flatten()
            .filter_map(|entry| entry.anon());
        anon.map(Anon::nr_places).sum()
    }

    /// Returns the open file of a number; a file with resident pages is always open.
    pub(super) fn get(&self, id: FileId) -> Option<Arc<FileEntry>> {
        let open = self.open.read();
        open.entries
            .get(id.slot())?
            .clone()
            .filter(|entry| entry.id == id)
    }
}
