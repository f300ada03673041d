//! Growing and shrinking a file while its pages are in use.
//!
//! A shrink takes these steps:
//!
//! 1. The file's number of pages is lowered: from now on no access behind the new end succeeds, and
//!    no page there becomes dirty. An access looks at the number after it has latched its page; a
//!    fill looks at it after it has inserted its pages.
//! 2. Write-back leaves out the pages from the new end on, a partial last one included.
//! 3. The latch of each of these pages is taken and released: writers and write-back that began
//!    before have ended.
//! 4. The log is flushed up to the LSNs of these pages, and the storage is shortened. If one
//!    refuses, the steps are undone, and nothing is lost.
//! 5. The pages behind the end are zeroed and clean, and so is the rest of a partial last page. The
//!    caller evicts them; one that resists reads as storage does when the file grows again, and is
//!    found until then by all that search the file's pages, up to the length before.
//!
//! A growth leaves a partial last page out of write-back until storage has the new length: it would
//! write the part before the old end alone, and count the page as clean.
//!
//! Invariant: storage is never given a byte behind its end, so write-back cannot make a file
//! longer.
//!
//! **Fills beside a shrink.** A fill inserts its pages and then reads the number of pages; a shrink
//! lowers the number and then looks for pages, with a sequentially consistent fence in between on
//! both sides. So either the fill sees the lower number, and gives the pages up, or the shrink sees
//! the page, and waits for the fill. Checked by a model.
//!
//! A sync must not miss pages that write-back leaves out, so syncs and resizes of a file take
//! turns.

use std::io;
use std::time::Duration;

use super::backing::{Backing, guarded, pages_in};
use super::{FileEntry, PageCache, PageKey, Presence};
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Condvar, LockClass, Mutex, Rank};
use crate::units::{FilePage, Order, Pfn};

static TURNS_LOCK: LockClass = LockClass::new("file turns", Rank::Leaf);

/// The size of a file, and the turns of syncs and resizes.
#[derive(Debug)]
pub(super) struct FileSize {
    /// Written by: a resize. Read by: accesses and fills. Publishes: `pages_max`; for accesses and
    /// fills see the module.
    pages: AtomicU64,
    /// The most pages that it had before a shrink, also one that storage refused: pages up to here
    /// may still be in the cache, or dirty. 0 once none are. Written by: a shrink. Read by:
    /// searches for the file's pages. Publishes: nothing.
    pages_max: AtomicU64,
    /// The first page that write-back leaves out; `u64::MAX` but for a resize in progress. Written
    /// by: a resize. Read by: latch holders that are about to write a page back. Publishes: the
    /// storage's new length, when it is reset; otherwise ordered by the latches.
    left_out_from: AtomicU64,
    /// Resizes that have begun or ended: odd while one is in progress. Written by: these. Read by:
    /// fills. Publishes: nothing.
    version: AtomicU64,
    turns: Mutex<Turns>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Turns {
    syncs: u64,
    is_resizing: bool,
}

/// A sync's turn: no resize is in progress while it lives.
#[derive(Debug)]
pub struct SyncTurn<'f>(&'f FileSize);

/// A resize's turn: no sync and no other resize is in progress while it lives.
#[derive(Debug)]
struct ResizeTurn<'f>(&'f FileSize);

/// A resize that storage has taken, with the pages behind the end, to be evicted before it
/// [ends](PageCache::end_resize).
#[derive(Debug)]
pub struct Resized<'f> {
    pub behind: Vec<(Pfn, PageKey)>,
    file: &'f FileEntry,
    _turn: ResizeTurn<'f>,
}

/// A lowered number of pages, raised again when this is dropped, unless storage has taken the
/// length.
struct Lowered<'f> {
    size: &'f FileSize,
    before: Option<u64>,
}

impl Drop for Lowered<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Pairs with the load in `pages_max`. Write-back goes on with the end of the turn.
            self.size.pages.store(before, Ordering::Release);
        }
    }
}

impl Drop for SyncTurn<'_> {
    fn drop(&mut self) {
        self.0.turns.lock().syncs -= 1;
        self.0.ended.notify_all();
    }
}

impl Drop for ResizeTurn<'_> {
    fn drop(&mut self) {
        // Pairs with the load in `is_left_out`.
        self.0.left_out_from.store(u64::MAX, Ordering::Release);
        // Relaxed: see the field.
        self.0.version.fetch_add(1, Ordering::Relaxed);
        self.0.turns.lock().is_resizing = false;
        self.0.ended.notify_all();
    }
}

impl FileSize {
    pub(super) fn new(pages: u64) -> Self {
        Self {
            pages: AtomicU64::new(pages),
            pages_max: AtomicU64::new(0),
            left_out_from: AtomicU64::new(u64::MAX),
            version: AtomicU64::new(0),
            turns: Mutex::new(&TURNS_LOCK, Turns::default()),
            ended: Condvar::new(),
        }
    }

    #[inline]
    pub(super) fn pages(&self) -> u64 {
        // Relaxed: accesses and fills look again, as the module says.
        self.pages.load(Ordering::Relaxed)
    }

    /// Returns a number that no page of the file in the cache reaches.
    pub(super) fn pages_max(&self) -> u64 {
        // Pairs with the store in `lower`.
        let pages = self.pages.load(Ordering::Acquire);
        // Relaxed: published by the lower number.
        pages.max(self.pages_max.load(Ordering::Relaxed))
    }

    /// Lowers the number of pages. The caller has the turn.
    fn lower(&self, before: u64, after: u64) {
        debug_assert!(after <= before, "a shrink to more pages");
        // Relaxed, both: one thread at a time shrinks a file; published by the store below.
        let most = self.pages_max.load(Ordering::Relaxed).max(before);
        self.pages_max.store(most, Ordering::Relaxed);
        // Pairs with the load in `pages_max`.
        self.pages.store(after, Ordering::Release);
    }

    fn begin_resize(&self) -> ResizeTurn<'_> {
        let mut turns = self.turns.lock();
        // Terminates: every turn ends.
        while turns.is_resizing {
            self.ended.wait(&mut turns);
        }
        // Syncs that come now wait.
        turns.is_resizing = true;
        while turns.syncs > 0 {
            self.ended.wait(&mut turns);
        }
        // Relaxed: see the field.
        self.version.fetch_add(1, Ordering::Relaxed);
        ResizeTurn(self)
    }
}

impl FileEntry {
    /// Waits for a resize in progress, and keeps others out while the result lives.
    pub fn begin_sync(&self) -> SyncTurn<'_> {
        let mut turns = self.size.turns.lock();
        // Terminates: every turn ends.
        while turns.is_resizing {
            self.size.ended.wait(&mut turns);
        }
        turns.syncs += 1;
        SyncTurn(&self.size)
    }

    /// Waits for a resize in progress, but not longer than `at_most`: it may wait for a latch that
    /// the caller holds.
    pub fn wait_for_resize(&self, at_most: Duration) {
        let mut turns = self.size.turns.lock();
        if turns.is_resizing {
            self.size.ended.wait_for(&mut turns, at_most);
        }
    }

    /// Returns a number that stays the same until the next resize; `None` during a resize.
    #[must_use]
    pub fn size_version(&self) -> Option<u64> {
        // Relaxed: a fill that failed before its thread could see the change reports the failure.
        let version = self.size.version.load(Ordering::Relaxed);
        version.is_multiple_of(2).then_some(version)
    }

    /// Returns whether the file was being resized when `version` was taken, or has been since.
    #[must_use]
    pub fn is_resized_since(&self, version: Option<u64>) -> bool {
        version.is_none() || self.size_version() != version
    }

    /// Returns the number of pages to a thread that has inserted pages as filling: the pages behind
    /// it must be given up.
    #[must_use]
    pub fn pages_for_fill(&self) -> u64 {
        // SeqCst. Pairs with: the fence of `shrink`; with Acquire and Release each could miss the
        // other's store.
        fence(Ordering::SeqCst);
        self.size.pages()
    }

    /// Returns whether write-back leaves a page out for now. The page's exclusive latch is held.
    pub(super) fn is_left_out(&self, page: FilePage) -> bool {
        // Pairs with the store at the end of a resize.
        page.0 >= self.size.left_out_from.load(Ordering::Acquire)
    }
}

/// Returns the page that holds the end of `len` bytes, and its bytes before that.
fn end_of(len: u64, order: Order) -> (FilePage, usize) {
    let size = order.size() as u64;
    let within = usize::try_from(len % size).expect("less than a page");
    (FilePage(len / size), within)
}

impl PageCache {
    /// Changes the length of a file.
    ///
    /// # Errors
    ///
    /// Any error of the storage, or of the log; nothing has changed then.
    pub fn resize<'f>(&self, file: &'f FileEntry, len: u64) -> io::Result<Resized<'f>> {
        let turn = file.size.begin_resize();
        let old = file.backing().len();
        let behind = match len < old {
            true => self.shrink(file, len)?,
            false => self.grow(file, old, len)?,
        };
        Ok(Resized {
            behind,
            file,
            _turn: turn,
        })
    }

    /// Ends a resize, after the pages behind the end were evicted, as far as that was possible.
    ///
    /// # Cost
    ///
    /// After a shrink, that of looking for pages behind the end once more.
    pub fn end_resize(&self, resized: Resized<'_>) {
        let (id, size) = (resized.file.id(), &resized.file.size);
        let behind = size.pages()..size.pages_max();
        // A fill that begins there now gives itself up.
        if !behind.is_empty() && self.cached_in(id, behind).is_empty() {
            // Relaxed: no page is there to be missed.
            size.pages_max.store(0, Ordering::Relaxed);
        }
    }

    fn grow(&self, file: &FileEntry, old: u64, len: u64) -> io::Result<Vec<(Pfn, PageKey)>> {
        let backing = file.backing();
        let (last, within) = end_of(old, file.order());
        if within > 0 {
            // What is written there from now on becomes part of the file, and write-back would not
            // write it yet. Relaxed: a latch of the page is taken, or it is absent.
            file.size.left_out_from.store(last.0, Ordering::Relaxed);
            // What writers have left behind the end was never part of the file.
            self.cut(file, last, within);
        }
        set_len(backing, len)?;
        let pages = pages_in(backing.len(), file.order());
        // Pairs with the load in `pages_max`, for what a shrink before has published.
        file.size.pages.store(pages, Ordering::Release);
        Ok(Vec::new())
    }

    fn shrink(&self, file: &FileEntry, len: u64) -> io::Result<Vec<(Pfn, PageKey)>> {
        let size = &file.size;
        let (last, within) = end_of(len, file.order());
        let (before, after) = (size.pages(), pages_in(len, file.order()));
        size.lower(before, after);
        let mut lowered = Lowered {
            size,
            before: Some(before),
        };
        // Relaxed: see the field.
        size.left_out_from.store(last.0, Ordering::Relaxed);
        // SeqCst. Pairs with: the fence of `pages_for_fill`.
        fence(Ordering::SeqCst);
        let pages = self.cached_in(file.id(), last.0..before);
        let mut lsn = 0;
        for &(_, key) in &pages {
            lsn = lsn.max(self.settle(key));
        }
        if within > 0 {
            // Also if it is absent: a fill from now on sees what write-back leaves out.
            lsn = lsn.max(self.settle(PageKey::new(file.id(), last)));
        }
        // What storage is about to lose may be elsewhere by a record that is not durable.
        file.flush_log(lsn)?;
        set_len(file.backing(), len)?;
        lowered.before = None;
        if within > 0 {
            // It may have been read in meanwhile.
            self.cut(file, last, within);
        }
        let behind = |(_, key): &(Pfn, PageKey)| key.page().0 >= after;
        let pages: Vec<_> = pages.into_iter().filter(behind).collect();
        for &(_, key) in &pages {
            self.cut(file, key.page(), 0);
        }
        Ok(pages)
    }

    /// Waits for threads that are filling a page or have latched it. Returns the LSN of its last
    /// change, 0 if there was none since it was clean.
    fn settle(&self, key: PageKey) -> u64 {
        // Terminates: each further round means that another thread has evicted the page meanwhile
        // and read it in again, which happens at most once to a page behind the end.
        while let Presence::Resident(pfn) = self.lookup(key) {
            if let Some(_latch) = self.latch_exclusively(key, pfn) {
                return self.lsns.last(pfn);
            }
        }
        0
    }

    /// Zeroes the end of a page that is in the cache, from byte `from` on, after waiting for a fill
    /// of it. A page of which nothing is left is clean.
    fn cut(&self, file: &FileEntry, page: FilePage, from: usize) {
        let key = PageKey::new(file.id(), page);
        // Terminates: as in `settle`.
        while let Presence::Resident(pfn) = self.lookup(key) {
            let Some(mut latch) = self.latch_exclusively(key, pfn) else {
                continue;
            };
            latch.bytes_mut()[from..].fill(0);
            if from == 0 && self.is_dirty(pfn) {
                self.clear_dirty(pfn, key);
            }
            return;
        }
    }
}

/// Changes the length of storage, and checks that it has.
fn set_len(backing: &dyn Backing, len: u64) -> io::Result<()> {
    guarded(|| backing.set_len(len))?;
    match guarded(|| Ok(backing.len()))? {
        now if now == len => Ok(()),
        now => Err(io::Error::other(format!(
            "the storage was given a length of {len} bytes and has {now}"
        ))),
    }
}
