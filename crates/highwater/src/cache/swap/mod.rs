//! The swap area: storage for anonymous pages that are not in frames.
//!
//! An area is a system file, or other storage, cut into *slots* of a page. A page gets a slot when
//! it is written out, and keeps it while the slot holds the page's current contents: a page that
//! was read in and not written to since can be evicted again without I/O.
//!
//! Invariant: a slot is in use if and only if it is the place of one page of one object, or one
//! thread is writing a page there (tests: `tests/swap.rs`, and
//! [`PageCache::check_invariants`](super::PageCache::check_invariants)).
//!
//! When storage fails, writes only a part, panics or is full, the page stays in its frame, and the
//! slot is free again.

mod slots;

#[cfg(all(test, loom))]
mod loom;

use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::backing::Backing;
use super::readahead::swapped::WaitingPages;
use super::system_file::FileBacking;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, LockClass, LockEvents, Mutex, Rank, Sequence, StatCell};
use crate::units::{Bytes, FilePage, PAGE_SIZE, Pages};
use slots::SwapSlots;

/// Class of the locks of swap areas.
static SWAP_LOCK: LockClass = LockClass::new("swap_slots", Rank::Leaf);

/// Slots on some storage, and event counts.
#[derive(Debug)]
pub struct SwapArea {
    storage: Arc<dyn Backing>,
    /// The same, if it is a file of the library's own.
    system: Option<Arc<FileBacking>>,
    /// As [`FileEntry::is_truthful`](super::FileEntry::is_truthful).
    is_truthful: bool,
    slots: Mutex<SwapSlots>,
    stats: SwapStats,
    /// Whether storage has ever refused a slot.
    /// Written by: writes that fail. Read by: those that do not. Publishes: nothing.
    has_refused: AtomicBool,
    /// Pages of all objects that were read ahead and wait for their first access.
    waiting: WaitingPages,
}

/// Event counts of an area, as `docs/stats.md` defines them.
#[derive(Debug, Default)]
pub(crate) struct SwapStats {
    pub(crate) pswpin: StatCell,
    pub(crate) pswpout: StatCell,
    pub(crate) swpout_zero: StatCell,
    pub(crate) swap_fail: StatCell,
    pub(crate) swap_read_failed: StatCell,
    pub(crate) swap_write_failed: StatCell,
}

/// Number of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SwapSlot(pub(super) u32);

impl SwapSlot {
    /// Returns the slot so many behind this one.
    pub(super) fn plus(self, slots: usize) -> Option<Self> {
        Some(Self(self.0.checked_add(u32::try_from(slots).ok()?)?))
    }
}

/// A slot without a page; freed when dropped.
#[derive(Debug)]
pub(super) struct FreshSlot<'a> {
    area: &'a SwapArea,
    slot: SwapSlot,
    /// Whether storage has refused the page.
    is_refused: bool,
}

impl SwapArea {
    /// Maximum number of slots: their numbers plus one fit 32 bits.
    pub const SLOTS_MAX: u64 = u32::MAX as u64 - 1;

    /// Creates an area of `size`, rounded down to whole pages, in a new unlinked file in the
    /// directory `dir`: no other process can open it, and it ends with this one. Its blocks are
    /// allocated as they are first written.
    ///
    /// # Errors
    ///
    /// Any error of the system.
    pub fn create(dir: &Path, size: Bytes) -> io::Result<Self> {
        let file = unnamed_file(dir)?;
        file.set_len(size.pages_floor().bytes().0)?;
        let file = Arc::new(FileBacking::new(file)?);
        Ok(Self {
            is_truthful: true,
            system: Some(Arc::clone(&file)),
            ..Self::on(file)
        })
    }

    /// Creates an area on other storage, with a slot for each whole page, but at most
    /// [`SLOTS_MAX`](Self::SLOTS_MAX).
    #[must_use]
    pub fn on(storage: Arc<dyn Backing>) -> Self {
        let whole = Bytes(storage.len()).pages_floor();
        let nr_slots = u32::try_from(whole.0.min(Self::SLOTS_MAX)).unwrap_or(u32::MAX - 1);
        Self {
            storage,
            system: None,
            is_truthful: false,
            slots: Mutex::new(&SWAP_LOCK, SwapSlots::new(nr_slots)),
            has_refused: AtomicBool::new(false),
            waiting: WaitingPages::default(),
            stats: SwapStats::default(),
        }
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn total(&self) -> Pages {
        Pages(self.slots.lock().nr_slots().into())
    }

    /// Returns the number of slots in use.
    #[must_use]
    pub fn used(&self) -> Pages {
        Pages(self.slots.lock().nr_used().into())
    }

    pub(crate) fn stats(&self) -> &SwapStats {
        &self.stats
    }

    /// Returns the contention of the locks of all areas so far.
    pub(super) fn lock_events() -> LockEvents {
        SWAP_LOCK.events()
    }

    /// Allocates a slot to write to; `None` if all are in use.
    pub(super) fn take(&self) -> Option<FreshSlot<'_>> {
        let slot = SwapSlot(self.slots.lock().take()?);
        Some(FreshSlot {
            area: self,
            slot,
            is_refused: false,
        })
    }

    /// Frees the slot of a page.
    pub(super) fn give_back(&self, slot: SwapSlot) {
        self.slots.lock().give_back(slot.0);
    }

    /// Reads a slot. Fewer or more bytes than a page has is an error to the caller.
    pub(super) fn read(&self, slot: SwapSlot, buf: &mut [u8]) -> io::Result<usize> {
        if !self.is_truthful {
            buf.fill(0);
        }
        let result = self.storage.read_page(FilePage(slot.0.into()), buf);
        match result {
            Ok(PAGE_SIZE) => self.stats.pswpin.add(1),
            _ => self.stats.swap_read_failed.add(1),
        }
        result
    }

    /// As [`read`](Self::read), for neighbouring slots; returns the number of bytes read,
    /// contiguous from the start.
    pub(super) fn read_run(&self, first: SwapSlot, bufs: &mut [&mut [u8]]) -> io::Result<usize> {
        if !self.is_truthful {
            bufs.iter_mut().for_each(|buf| buf.fill(0));
        }
        let result = self.storage.read_pages(FilePage(first.0.into()), bufs);
        let whole = *result.as_ref().unwrap_or(&0) / PAGE_SIZE;
        self.note_read(whole.min(bufs.len()), bufs.len());
        result
    }

    /// Counts a read of `pages` pages that `whole` of them came from.
    pub(super) fn note_read(&self, whole: usize, pages: usize) {
        debug_assert!(whole <= pages, "{whole} pages of {pages}");
        self.stats.pswpin.add(whole as u64);
        self.stats.swap_read_failed.add(u64::from(whole < pages));
    }

    /// Returns the number of pages of all objects that wait for their first access.
    pub(super) fn waiting(&self) -> &WaitingPages {
        &self.waiting
    }

    /// Returns whether the area is a file of the library's own.
    pub(super) fn has_file(&self) -> bool {
        self.system.is_some()
    }

    /// Returns the file and the offset of a slot, if the area is a file of the library's own.
    pub(super) fn place_in_file(&self, slot: SwapSlot) -> Option<(&File, u64)> {
        let system = self.system.as_ref()?;
        let page = FilePage(slot.0.into());
        Some((system.file_of(page), system.offset_of(page)))
    }

    pub(super) fn check_invariants(&self) {
        self.slots.lock().check_invariants();
    }
}

impl FreshSlot<'_> {
    /// Writes a page to the slot; returns the number of bytes written.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let failed = CountsFailure(&self.area.stats);
        // Until it has been written, also by a panic.
        self.is_refused = true;
        let taken = self
            .area
            .storage
            .write_page(FilePage(self.slot.0.into()), bytes)?;
        if taken == bytes.len() {
            self.is_refused = false;
            self.area.stats.pswpout.add(1);
            std::mem::forget(failed);
        }
        Ok(taken)
    }

    /// Assigns the slot to a page.
    pub(super) fn keep(self) -> SwapSlot {
        let slot = self.slot;
        // Relaxed: a cluster that is trusted again a little later is used a little later.
        if self.area.has_refused.load(Ordering::Relaxed) {
            self.area.slots.lock().note_taken(slot.0);
        }
        std::mem::forget(self);
        slot
    }
}

impl Drop for FreshSlot<'_> {
    fn drop(&mut self) {
        match self.is_refused {
            true => {
                // Relaxed: see `keep`.
                self.area.has_refused.store(true, Ordering::Relaxed);
                self.area.slots.lock().give_back_failed(self.slot.0);
            }
            false => self.area.give_back(self.slot),
        }
    }
}

/// Counts a write as failed unless it is forgotten: on an error, on a short write, and on a panic.
struct CountsFailure<'a>(&'a SwapStats);

impl Drop for CountsFailure<'_> {
    fn drop(&mut self) {
        self.0.swap_write_failed.add(1);
    }
}

/// Creates an unlinked file in a directory.
fn unnamed_file(dir: &Path) -> io::Result<File> {
    static NAMES: Sequence = Sequence::new();

    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let unnamed = options.clone().custom_flags(libc::O_TMPFILE).open(dir);
    // Not every file system supports `O_TMPFILE`.
    match unnamed {
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            return Err(error);
        }
        Ok(file) => return Ok(file),
        Err(_) => {}
    }
    let name = format!(".highwater-swap-{}-{}", std::process::id(), NAMES.next());
    let path = dir.join(name);
    let file = options.create_new(true).open(&path)?;
    remove_file(&path)?;
    Ok(file)
}
