//! The page cache: file pages in frames.
//!
//! A page is named by its [`PageKey`] (file and page number). The index finds the frame that holds
//! it; access to its bytes depends on the file's [`Access`]:
//!
//! - **read-only files** never change while they are open. A resident page's frame is *published*
//!   under its key, and a read borrows it ([`PageCache::try_read`]): no lock, no store to shared
//!   memory.
//! - **writable files** keep each resident page's frame behind a *latch*: [`ReadLatch`] and
//!   [`WriteLatch`] hold it shared or exclusive. A page that was written is *dirty* until
//!   write-back has written it to the file.
//!
//! A page has these states, each changed under the lock of its index shard:
//!
//! ```text
//! absent --begin_fill--> filling --finish--> resident --evict--> evicting --> absent
//!            (read the file)  \--abort--> absent     ^---- kept (borrowed, dirty) ---/
//! ```
//!
//! Filling and evicting exclude each other and themselves: one thread reads a page in, other
//! threads wait for it and then look it up again, whatever the result.
//!
//! The cache does not choose pages to evict, charge groups, or find free frames: reclaim, groups
//! and the manager do.

mod aligned;
mod anon;
mod area;
mod backing;
mod checkpoint;
mod dirty;
mod discard;
mod errseq;
mod file;
mod filling;
mod flags;
mod gather;
mod identity;
mod index;
mod key;
mod latch;
mod leaves;
mod lookup;
mod nodes;
mod outcome;
mod readahead;
mod resize;
mod rmap;
mod seal;
mod space;
mod swap;
mod system_file;
mod table;
mod times;
mod wal;
mod writeback;

#[cfg(all(test, not(loom)))]
mod gather_tests;
#[cfg(all(test, loom))]
mod index_loom;
#[cfg(all(test, loom))]
pub(crate) mod loom;
#[cfg(all(test, loom))]
mod table_loom;
#[cfg(all(test, not(loom)))]
mod tests;

use std::fmt;

pub use area::{AreaFlag, AreaSpec, VmArea};
pub use backing::{Backing, order_of_size, pages_in};
pub use checkpoint::DirtyLsn;
pub use dirty::{DirtyEvents, DirtyPressure};
pub use discard::Discard;
pub use errseq::{FailuresBefore, ToldOf};
pub use file::{FileEntry, TooManyFiles};
pub use filling::Filling;
pub use flags::{CREDIT_MAX, PageFlag};
pub(crate) use identity::FileIdentity;
pub use index::Presence;
pub use key::{Access, FileId, FileKind, PageKey};
pub use latch::{KeptForLatch, PageTurn, ReadLatch, TaskRead, TaskWrite, WriteLatch};
pub use outcome::{SyncError, WriteBackError, WriteBackOutcome, WrittenBack};
#[cfg(feature = "lab")]
pub use readahead::MarkRule;
pub use readahead::{READAHEAD_MAX, READAHEAD_USUAL, ReadPattern, Readahead, Window};
pub use resize::SyncTurn;
pub use rmap::{Deferred, EvictedFor, Referenced, RmapAccess, Unmapped, WasYoung};
pub use space::{RssMember, RssResidue, SpaceEntry, SpaceId};
pub use swap::SwapArea;
pub(crate) use swap::SwapSlot;
pub(crate) use swap::SwapStats;
pub use system_file::FileBacking;
pub use times::AccessTimes;
pub use wal::WriteGate;

use crate::memmap::{
    Frame, FrameMemory, FrameWrite, LATCH_LOCK, Pinned, Reader, Retracted, WriteRing, zeroed,
};
use crate::percpu::Regime;
use crate::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use crate::sync::{Arc, LockClass, LockEvents, Sequence, StatCell, TimeRecorder, Woken};
use crate::topology::Topology;
use crate::units::{GroupId, Order, Pages, Pfn};
use dirty::DirtyPages;
use file::FileTable;
use index::Index;
use space::Spaces;
use wal::PageLsns;

/// File pages in the frames of one memory.
pub struct PageCache {
    memory: Arc<FrameMemory>,
    index: Index,
    /// By frame: the group that pays for the page.
    /// Written by: the filler, and reparenting under the lruvec's lock. Read by: threads that have
    /// isolated the page. Publishes: nothing; isolation orders it.
    groups: Box<[AtomicU32]>,
    /// By frame: read since reclaim last scanned it. Dense, so that a hit touches few lines.
    /// Written by: readers (set, only when clear), reclaim (clear). Read by: reclaim. Publishes:
    /// nothing; a lost mark costs a page its second chance.
    young: Box<[AtomicBool]>,
    /// When the latest marked access to each page was, for policies that use the order.
    times: Option<AccessTimes>,
    dirty: DirtyPages,
    lsns: PageLsns,
    /// By frame: number of page table entries that name it. See the module `rmap`.
    /// Written by: threads that install (under a hold on the page) or clear. Read by: eviction.
    /// Publishes: when 0 in a frame that eviction has taken, that no entry names the frame.
    mapcounts: Box<[AtomicU32]>,
    /// Maximum of an entry's access count.
    young_max: u32,
    area_numbers: Sequence,
    rmap_times: TimeRecorder,
    /// By frame: its [`FrameFlags`](flags::FrameFlags).
    flags: Box<[AtomicU16]>,
    files: FileTable,
    /// Pages that were read ahead and evicted without an access.
    nr_unread: StatCell,
    spaces: Spaces,
    /// The swap area of swap-backed pages.
    swap: Option<Arc<SwapArea>>,
    /// The way to write several runs of direct files at once, if it is used.
    write_ring: Option<WriteRing>,
}

/// A page that was evicted.
#[derive(Debug)]
#[must_use = "the frame has to be freed and the page uncharged"]
pub struct Evicted {
    /// Its key.
    pub key: PageKey,
    /// Its frame.
    pub frame: Frame,
    /// The group that paid for it.
    pub group: GroupId,
}

/// Reason why a page was not evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is pinned or latched.
    Borrowed,
    /// It has to be written back first.
    Dirty,
    /// It is mapped: a fault came after its entries were cleared, if they were.
    Mapped,
    /// It is being filled or evicted by another thread, or the frame holds no page any more.
    Busy,
}

/// Results of [`PageCache::evict`], reused between batches.
#[derive(Debug, Default)]
pub struct EvictBatch {
    /// Pages that were evicted.
    pub evicted: Vec<Evicted>,
    /// Pages that stay, with the reason.
    pub kept: Vec<(Pfn, Kept)>,
    /// Tasks that wait for these pages, to wake once none of them is isolated.
    pub woken: Woken,
    retract: Vec<(Pfn, u64)>,
    retracted: Retracted,
}

impl PageCache {
    /// Creates an empty cache over the frames of `memory`.
    ///
    /// Files and spaces count on the CPUs of `topology`, in `regime`.
    ///
    /// # Panics
    ///
    /// When `memory` has more frames than `usize` counts.
    #[must_use]
    pub fn new(memory: Arc<FrameMemory>, topology: &Topology, regime: Regime) -> Self {
        let nr_frames = usize::try_from(memory.pages().0).expect("frames fit memory");
        Self {
            index: Index::new(memory.pages()),
            young: zeroed(nr_frames),
            times: None,
            dirty: DirtyPages::new(memory.pages()),
            lsns: PageLsns::new(memory.pages()),
            flags: zeroed(nr_frames),
            groups: zeroed(nr_frames),
            mapcounts: zeroed(nr_frames),
            young_max: 1,
            area_numbers: Sequence::new(),
            rmap_times: TimeRecorder::new(),
            spaces: Spaces::new(topology, regime),
            files: FileTable::new(topology, regime),
            nr_unread: StatCell::new(),
            swap: None,
            write_ring: None,
            memory,
        }
    }

    /// Sets how many accesses an entry counts between two scans: 1 by default, at most 3. Each
    /// costs a reader of the page a store.
    #[must_use]
    pub fn counting_accesses(mut self, young_max: u32) -> Self {
        self.young_max = young_max.clamp(1, CREDIT_MAX);
        self
    }

    /// Sets the way to write scattered pages of direct files back, many at once.
    #[must_use]
    pub(crate) fn writing_by(mut self, ring: Option<WriteRing>) -> Self {
        self.write_ring = ring;
        self
    }

    /// Sets the swap area, if any. Call it before any memory object is opened.
    #[must_use]
    pub fn swapping_to(mut self, area: Option<SwapArea>) -> Self {
        self.swap = area.map(Arc::new);
        self
    }

    /// Returns the swap area; without one, swap-backed pages stay in memory.
    #[must_use]
    pub fn swap(&self) -> Option<&SwapArea> {
        self.swap.as_deref()
    }

    /// Borrows the bytes of a resident page of a read-only file.
    ///
    /// # Cost
    ///
    /// One load each of the index, the frame's word and the page's young mark; stores only to the
    /// reader's own line once the page is young.
    #[inline]
    pub fn try_read<'r>(&self, reader: &'r Reader<'_>, key: PageKey) -> Option<&'r [u8]> {
        debug_assert!(
            !key.file().is_writable(),
            "pages of writable files have latches"
        );
        self.index
            .find(key, |pfn| self.try_read_at(reader, key, pfn))
    }

    /// As [`try_read`](Self::try_read), for a page that [`lookup`](Self::lookup) found in a frame.
    #[inline]
    pub fn try_read_at<'r>(
        &self,
        reader: &'r Reader<'_>,
        key: PageKey,
        pfn: Pfn,
    ) -> Option<&'r [u8]> {
        let bytes = self.borrow_at(reader, key, pfn)?;
        self.mark_young(pfn);
        Some(bytes)
    }

    /// As [`try_read_at`](Self::try_read_at), for a caller that marks the access itself.
    #[inline]
    pub fn borrow_at<'r>(
        &self,
        reader: &'r Reader<'_>,
        key: PageKey,
        pfn: Pfn,
    ) -> Option<&'r [u8]> {
        reader.borrow(pfn, key.get())
    }

    /// Pins a page of a read-only file, if it is in that frame: the pin may outlive readers and
    /// threads. The caller marks the access.
    #[must_use]
    pub fn pin_at(&self, key: PageKey, pfn: Pfn) -> Option<Pinned> {
        Pinned::new(Arc::clone(&self.memory), pfn, key.get())
    }

    /// Tries to evict each of `candidates`, which the caller has isolated from their lists.
    ///
    /// # Cost
    ///
    /// Two index locks a page and one heavy barrier for all. Does not block and does no I/O.
    ///
    /// # Panics
    ///
    /// Never: a page under eviction keeps its key.
    pub fn evict(&self, candidates: &[Pfn], batch: &mut EvictBatch) {
        self.evict_leaving(candidates, batch, |_| ());
    }

    /// As [`evict`](Self::evict). Calls `leave` with the evicted pages before a lookup can find
    /// them absent: shadows that it leaves are in place when the pages are read in again.
    ///
    /// # Panics
    ///
    /// Never: a page under eviction keeps its key.
    pub fn evict_leaving(
        &self,
        candidates: &[Pfn],
        batch: &mut EvictBatch,
        leave: impl FnOnce(&[Evicted]),
    ) {
        batch.evicted.clear();
        batch.kept.clear();
        batch.retract.clear();
        // Tasks that wait for a latch are woken afterwards, too.
        let ((), woken) = Woken::held_by(|| self.take_frames(candidates, batch));
        batch.woken.append(woken);
        if !batch.retract.is_empty() {
            self.memory.retract(&batch.retract, &mut batch.retracted);
            for pfn in batch.retracted.borrowed.drain(..) {
                batch.woken.append(self.index.set_resident(pfn));
                batch.kept.push((pfn, Kept::Borrowed));
            }
            for frame in batch.retracted.frames.drain(..) {
                let key = self
                    .index
                    .key_of(frame.pfn())
                    .expect("retracted under its key");
                // Mapped by a reader that held the page before it was taken: it stays (module
                // `rmap`, 3).
                if self.mapcount(frame.pfn()) > 0 {
                    let pfn = self.memory.publish(frame, key.get());
                    batch.woken.append(self.index.set_resident(pfn));
                    batch.kept.push((pfn, Kept::Mapped));
                    continue;
                }
                batch.evicted.push(self.evicted(key, frame));
            }
        }
        // Before the pages leave the index: until then their files cannot be closed, nor their
        // numbers be reused.
        self.files.note_evicted(&batch.evicted);
        self.note_unread(&batch.evicted);
        leave(&batch.evicted);
        for evicted in &batch.evicted {
            batch.woken.append(self.index.remove(evicted.frame.pfn()));
        }
    }

    /// Counts the pages among `evicted` that were read ahead and never accessed.
    fn note_unread(&self, evicted: &[Evicted]) {
        for run in evicted.chunk_by(|a, b| a.key.file() == b.key.file()) {
            let is_unread = |page: &&Evicted| self.has_flag(page.frame.pfn(), PageFlag::Ahead);
            let unread = run.iter().filter(is_unread).count() as u64;
            if unread > 0 {
                self.nr_unread.add(unread);
                if let Some(file) = self.files.get(run[0].key.file()) {
                    file.note_ahead_unread(unread);
                }
            }
        }
    }

    /// Notes an access of a page; returns whether it is the first of a page that was read ahead
    /// under a policy that does not count it.
    pub fn note_access(&self, file: &FileEntry, pfn: Pfn) -> bool {
        if self.clear_flag(pfn, PageFlag::Ahead) {
            file.note_ahead_accessed();
        }
        self.clear_flag(pfn, PageFlag::Unread)
    }

    /// Returns how many pages were read ahead and evicted without an access.
    pub fn nr_unread(&self) -> u64 {
        self.nr_unread.get()
    }

    /// Begins the eviction of pages, and takes the frames that are behind latches.
    fn take_frames(&self, candidates: &[Pfn], batch: &mut EvictBatch) {
        for &pfn in candidates {
            let Some(key) = self.index.begin_evict(pfn) else {
                batch.kept.push((pfn, Kept::Busy));
                continue;
            };
            // Checked again once the frame is taken; here it spares the attempt.
            if self.mapcount(pfn) > 0 {
                batch.woken.append(self.index.set_resident(pfn));
                batch.kept.push((pfn, Kept::Mapped));
                continue;
            }
            if !key.file().is_writable() {
                batch.retract.push((pfn, key.get()));
                continue;
            }
            match self.take_from_latch(pfn) {
                Ok(frame) => batch.evicted.push(self.evicted(key, frame)),
                Err(kept) => {
                    batch.woken.append(self.index.set_resident(pfn));
                    batch.kept.push((pfn, kept));
                }
            }
        }
    }

    /// Takes the frame of a clean page of a writable file, if its latch is free and no thread waits
    /// for it.
    fn take_from_latch(&self, pfn: Pfn) -> Result<Frame, Kept> {
        let latch = self.memory.try_exclude_idle(pfn).ok_or(Kept::Borrowed)?;
        debug_assert!(
            !self.has_flag(pfn, PageFlag::Writeback),
            "{pfn} is under write-back without its latch"
        );
        if self.is_dirty(pfn) {
            return Err(Kept::Dirty);
        }
        // No thread installs while the exclusive latch is held.
        if self.mapcount(pfn) > 0 {
            return Err(Kept::Mapped);
        }
        latch.take().map_err(|_| Kept::Borrowed)
    }

    fn evicted(&self, key: PageKey, frame: Frame) -> Evicted {
        let group = self.group_of(frame.pfn());
        Evicted { key, frame, group }
    }

    /// Returns whether a page was read since the last call; clears the mark.
    pub fn test_and_clear_young(&self, pfn: Pfn) -> bool {
        let young = &self.young[pfn.index()];
        // Relaxed, both: a mark orders nothing, and losing one to a racing reader costs only a
        // second chance.
        let was_young = young.load(Ordering::Relaxed);
        if was_young {
            young.store(false, Ordering::Relaxed);
        }
        was_young
    }

    /// Clears every accessed mark of a page that this thread has filled and no other has found yet.
    pub fn forget_young(&self, pfn: Pfn) {
        self.test_and_clear_young(pfn);
        if self.take_touched(pfn) {
            self.referenced(pfn, RmapAccess::Snapshot, None);
        }
    }

    /// Marks a page as accessed since reclaim last scanned it.
    #[inline]
    pub fn mark_young(&self, pfn: Pfn) {
        let young = &self.young[pfn.index()];
        // Relaxed, both: as above. Stored only when clear, so that hits of a hot page share its
        // cache line instead of contending for it.
        if !young.load(Ordering::Relaxed) {
            self.note_time(pfn);
            young.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the group that pays for a page.
    #[must_use]
    pub fn group_of(&self, pfn: Pfn) -> GroupId {
        // Relaxed: the caller has isolated the page or holds its list's lock.
        GroupId(self.groups[pfn.index()].load(Ordering::Relaxed))
    }

    /// Charges a page to another group. The caller holds the lock of the page's list.
    pub fn set_group(&self, pfn: Pfn, group: GroupId) {
        // Relaxed: as in `group_of`.
        self.groups[pfn.index()].store(group.0, Ordering::Relaxed);
    }

    /// Returns the files that are open or have resident pages, memory objects included.
    pub(crate) fn open_files(&self) -> Vec<Arc<FileEntry>> {
        self.files.all()
    }

    /// Opens a space.
    #[must_use]
    pub fn open_space(&self) -> Arc<SpaceEntry> {
        self.spaces.open()
    }

    /// Closes a space without mappings. Returns the counts that are not back to zero; if reclaim
    /// may still be counting for the space, they are reported when a later space is opened or
    /// closed.
    pub fn close_space(&self, space: &Arc<SpaceEntry>) -> Option<RssResidue> {
        self.spaces.close(space)
    }

    /// Returns the number of spaces that were closed with pages still counted.
    #[must_use]
    pub fn nr_rss_residues(&self) -> u64 {
        self.spaces.nr_residues()
    }

    /// Returns the order of the frame that holds a page. The caller has isolated the page or holds
    /// its list's lock.
    #[must_use]
    pub fn order_of(&self, pfn: Pfn) -> Order {
        self.key_of(pfn).map_or(Order::ZERO, PageKey::order)
    }

    /// Returns the key of the page in a frame, if it is in the index at this moment.
    #[must_use]
    pub fn key_of(&self, pfn: Pfn) -> Option<PageKey> {
        self.index.key_of(pfn)
    }

    /// Returns the contention of the cache's lock classes so far.
    #[must_use]
    pub fn lock_events() -> [LockEvents; 4] {
        let (index, latch) = (&index::INDEX_LOCK, &LATCH_LOCK);
        let [index, latch, rmap] = [index, latch, &rmap::RMAP_LOCK].map(LockClass::events);
        [index, latch, rmap, SwapArea::lock_events()]
    }

    /// Checks that index, frames, latches and spaces agree. Requires quiescence.
    ///
    /// # Panics
    ///
    /// If they do not.
    pub fn check_invariants(&self) {
        let indexed = self.index.check_invariants();
        self.check_dirty();
        self.check_lsns();
        self.check_writeback();
        for pfn in (0..).map(Pfn).take(self.groups.len()) {
            let key = self.index.key_of(pfn);
            let is_latched = key.is_some_and(|key| key.file().is_writable());
            let holds_frame = self.memory.is_latched(pfn);
            assert_eq!(holds_frame, is_latched, "{pfn} holds {key:?}");
            assert!(
                is_latched || !self.is_dirty(pfn),
                "{pfn} is dirty and holds {key:?}"
            );
        }
        self.check_mappings();
        let in_use = self.memory.pages() - self.memory.count_free();
        assert!(
            Pages(indexed) <= in_use,
            "{indexed} pages in {in_use} frames"
        );
    }
}

impl Drop for PageCache {
    /// Frees the frames of pages that could not be evicted because their files refused them.
    fn drop(&mut self) {
        let nr_dirty = self.nr_dirty();
        if nr_dirty > Pages::ZERO {
            tracing::error!(
                dirty_pages = nr_dirty.0,
                "the cache ends with dirty pages that could not be written"
            );
        }
        for pfn in (0..).map(Pfn).take(self.groups.len()) {
            let latched = self.memory.try_exclude_idle(pfn);
            if let Some(Ok(frame)) = latched.map(FrameWrite::take) {
                self.memory.surrender_block(frame.into_block());
            }
        }
    }
}

impl fmt::Debug for PageCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageCache")
            .field("nr_dirty", &self.nr_dirty())
            .finish_non_exhaustive()
    }
}
