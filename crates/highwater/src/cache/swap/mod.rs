//! The swap area: where the bytes of anonymous pages are while they are not in frames.
//!
//! An area is a file of the system, or other storage, cut into *slots* of a page. A page takes a
//! slot when it is written out, and keeps it as long as what lies there is what the page holds:
//! when it has been read in and not been written to since, it can leave its frame again without
//! I/O.
//!
//! Invariant: a slot is in use when, and only when, one page of one object has it as its place; or
//! one thread is writing a page there (tests: `tests/swap.rs`, and
//! [`PageCache::check_invariants`](super::PageCache::check_invariants)).
//!
//! Storage may refuse, fall short, panic or be full: what a slot was to take stays in its frame
//! then, and the slot is free again.

mod slots;

#[cfg(all(test, loom))]
mod loom;

use std::fs::{File, OpenOptions, remove_file};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::backing::{Backing, FileBacking};
use crate::sync::{Arc, LockClass, LockEvents, Mutex, Rank, Sequence, StatCell};
use crate::units::{Bytes, PAGE_SIZE, Pages};
use slots::Slots;

/// Class of the locks of swap areas.
static SWAP_LOCK: LockClass = LockClass::new("swap_slots", Rank::Leaf);

/// Slots on some storage, and what went to and came from them.
#[derive(Debug)]
pub struct SwapArea {
    storage: Arc<dyn Backing>,
    /// As [`FileEntry::is_truthful`](super::FileEntry::is_truthful).
    is_truthful: bool,
    slots: Mutex<Slots>,
    stats: SwapStats,
}

/// Event counts of an area. `docs/stats.md` says what moves each.
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
pub(super) struct Slot(pub(super) u32);

/// A slot that no page has yet; free again when dropped.
#[derive(Debug)]
pub(super) struct FreshSlot<'a> {
    area: &'a SwapArea,
    slot: Slot,
}

impl SwapArea {
    /// The most slots: their numbers plus one are 32 bits.
    pub const SLOTS_MAX: u64 = u32::MAX as u64 - 1;

    /// An area of `size`, rounded down to whole pages, in a new file of the directory `dir` that
    /// nobody else can open and that ends with the process. Its blocks are taken as they are first
    /// written.
    ///
    /// # Errors
    ///
    /// Whatever the system says.
    pub fn create(dir: &Path, size: Bytes) -> io::Result<Self> {
        let file = unnamed_file(dir)?;
        file.set_len(size.pages_floor().bytes().0)?;
        Ok(Self {
            is_truthful: true,
            ..Self::on(Arc::new(FileBacking::new(file)?))
        })
    }

    /// An area on other storage, with as many slots as that has whole pages, but at most
    /// [`SLOTS_MAX`](Self::SLOTS_MAX).
    #[must_use]
    pub fn on(storage: Arc<dyn Backing>) -> Self {
        let whole = Bytes(storage.len()).pages_floor();
        let nr_slots = u32::try_from(whole.0.min(Self::SLOTS_MAX)).unwrap_or(u32::MAX - 1);
        Self {
            storage,
            is_truthful: false,
            slots: Mutex::new(&SWAP_LOCK, Slots::new(nr_slots)),
            stats: SwapStats::default(),
        }
    }

    /// Slots in all.
    #[must_use]
    pub fn total(&self) -> Pages {
        Pages(self.slots.lock().nr_slots().into())
    }

    /// Slots in use.
    #[must_use]
    pub fn used(&self) -> Pages {
        Pages(self.slots.lock().nr_used().into())
    }

    pub(crate) fn stats(&self) -> &SwapStats {
        &self.stats
    }

    /// Contention of the locks of all areas so far.
    pub(super) fn lock_events() -> LockEvents {
        SWAP_LOCK.events()
    }

    /// Takes a slot to write to; `None` when all are in use.
    pub(super) fn take(&self) -> Option<FreshSlot<'_>> {
        let slot = Slot(self.slots.lock().take()?);
        Some(FreshSlot { area: self, slot })
    }

    /// Gives back the slot of a page that does not need it any more.
    pub(super) fn give_back(&self, slot: Slot) {
        self.slots.lock().give_back(slot.0);
    }

    /// Reads what lies in a slot. Fewer or more bytes than a page has is an error to the caller.
    pub(super) fn read(&self, slot: Slot, buf: &mut [u8]) -> io::Result<usize> {
        if !self.is_truthful {
            buf.fill(0);
        }
        let result = self.storage.read_page(slot.0.into(), buf);
        match result {
            Ok(PAGE_SIZE) => self.stats.pswpin.add(1),
            _ => self.stats.swap_read_failed.add(1),
        }
        result
    }

    pub(super) fn check_invariants(&self) {
        self.slots.lock().check_invariants();
    }
}

impl FreshSlot<'_> {
    /// Writes a page to the slot; returns how many bytes were taken.
    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let failed = CountsFailure(&self.area.stats);
        let taken = self.area.storage.write_page(self.slot.0.into(), bytes)?;
        if taken == bytes.len() {
            self.area.stats.pswpout.add(1);
            std::mem::forget(failed);
        }
        Ok(taken)
    }

    /// The slot is a page's from here on.
    pub(super) fn keep(self) -> Slot {
        let slot = self.slot;
        std::mem::forget(self);
        slot
    }
}

impl Drop for FreshSlot<'_> {
    fn drop(&mut self) {
        self.area.give_back(self.slot);
    }
}

/// Counts a write as failed unless it is forgotten: on an error, on a short write, and on a panic.
struct CountsFailure<'a>(&'a SwapStats);

impl Drop for CountsFailure<'_> {
    fn drop(&mut self) {
        self.0.swap_write_failed.add(1);
    }
}

/// A new file without a name in a directory.
fn unnamed_file(dir: &Path) -> io::Result<File> {
    static NAMES: Sequence = Sequence::new();

    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let unnamed = options.clone().custom_flags(libc::O_TMPFILE).open(dir);
    // Not every file system knows files without a name.
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
