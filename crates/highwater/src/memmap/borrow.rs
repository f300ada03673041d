//! Borrowing published frames without a store to shared memory.
//!
//! A [`Seat`] is [`SLOTS`] announcement slots in lines of its own, written by its holder only. A
//! [`Reader`] sits on a seat and borrows: it writes the frame's number into a free slot, passes the
//! light barrier, and borrows if the frame's tag is still what it should be. The protocol's other
//! half and its argument are in `frames.rs`.
//!
//! All borrows of a reader end together, when the reader is done: the borrow checker ties every
//! slice to the reader, so slots are cleared only when no slice is left. A borrow of a frame that a
//! slot already announces needs no new slot. When the slots are full, or there was no seat, the
//! borrow is counted in the frame (`pin`), once for each frame and reader, which is correct and costs an
//! atomic add on a shared line.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;

use crossbeam_utils::CachePadded;

use super::barrier;
use super::frames::FrameMemory;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Arc, LockClass, Rank, RwLock};
use crate::units::{PAGE_SIZE, Pfn};

/// Announcements per seat. Chosen: fifteen numbers and the mark of occupation fill 64 bytes.
const SLOTS: usize = if cfg!(loom) { 2 } else { 15 };

/// The most seats that one memory has; readers beyond them pin. Chosen: half a megabyte of them,
/// and a walk over all is still shorter than the I/O that reclaim is for.
const SEATS_MAX: usize = 4096;

/// A slot that announces nothing. Frame numbers are stored plus one.
const EMPTY: u32 = 0;

static SEATS_LOCK: LockClass = LockClass::new("seats", Rank::Leaf);

/// Every seat of one memory. Seats are made when they are first needed and stay.
pub(super) struct Seats {
    lines: RwLock<Vec<Arc<CachePadded<SeatLine>>>>,
}

struct SeatLine {
    /// Written by: the seat's holder (announce: before a light barrier; clear; both release).
    /// Read by: `retract` (acquire, after its heavy barrier). Publishes: that what the slot announced
    /// before is read no more.
    slots: [AtomicU32; SLOTS],
    /// Written by: whoever takes or leaves the seat. Read by: those looking for a seat, `retract`.
    /// Publishes: that the slots are empty, and what they announced is read no more.
    is_taken: AtomicBool,
}

impl SeatLine {
    fn taken() -> Self {
        Self {
            slots: std::array::from_fn(|_| AtomicU32::new(EMPTY)),
            is_taken: AtomicBool::new(true),
        }
    }

    fn try_take(&self) -> bool {
        // Acquire. Pairs with: the release store of a seat's drop. Failure learns nothing.
        let taken =
            self.is_taken
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }
}

impl Seats {
    pub(super) fn new() -> Self {
        Self {
            lines: RwLock::new(&SEATS_LOCK, Vec::new()),
        }
    }

    /// Takes the first free seat, or makes one; `None` when there are too many.
    pub(super) fn take(seats: &Arc<Self>) -> Option<Seat> {
        let seat = |line: &Arc<_>| Seat {
            owner: Arc::clone(seats),
            line: Arc::clone(line),
        };
        let free = seats
            .lines
            .read()
            .iter()
            .find(|line| line.try_take())
            .map(seat);
        free.or_else(|| {
            let mut lines = seats.lines.write();
            if lines.len() >= SEATS_MAX {
                return None;
            }
            let line = Arc::new(CachePadded::new(SeatLine::taken()));
            lines.push(Arc::clone(&line));
            Some(Seat {
                owner: Arc::clone(seats),
                line,
            })
        })
    }

    /// Collects every announced frame. Called after the heavy barrier: a reader that saw its tag
    /// before the barrier had its seat in the list before, and its announcement in the slot.
    pub(super) fn collect_announced(&self, announced: &mut Vec<Pfn>) {
        announced.clear();
        for line in self.lines.read().iter() {
            // Acquire. Pairs with: the release store of a seat's drop, so that what was read from the
            // seat lies before whatever the new owner writes.
            if !line.is_taken.load(Ordering::Acquire) {
                continue;
            }
            for slot in &line.slots {
                // Acquire. Pairs with: the release store that clears a slot or announces the next
                // frame in it, so that the reader's last look at the bytes lies before whatever the
                // new owner writes.
                let pfn = slot.load(Ordering::Acquire);
                if pfn != EMPTY {
                    announced.push(Pfn(pfn - 1));
                }
            }
        }
    }
}

/// The right to one seat. Taking one may allocate; keep it for the next reader.
pub struct Seat {
    owner: Arc<Seats>,
    line: Arc<CachePadded<SeatLine>>,
}

impl Seat {
    #[inline]
    pub(super) fn is_of(&self, seats: &Arc<Seats>) -> bool {
        Arc::ptr_eq(&self.owner, seats)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Release. Pairs with: the acquire of `try_take`: the next holder finds empty slots.
        self.line.is_taken.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({:p})", Arc::as_ptr(&self.line))
    }
}

/// Borrows the bytes of published frames; every borrow ends when the reader does.
pub struct Reader<'m> {
    memory: &'m FrameMemory,
    seat: Option<Seat>,
    /// Slots in use, filled from the front.
    used: Cell<usize>,
    /// Frames borrowed by pin because the slots were full, each pinned once. Boxed: a reader that pins nothing, as most do,
    /// drops nothing.
    #[expect(
        clippy::box_collection,
        reason = "an empty box is dropped without a call"
    )]
    pinned: RefCell<Option<Box<BTreeSet<Pfn>>>>,
}

impl<'m> Reader<'m> {
    pub(super) fn new(memory: &'m FrameMemory, seat: Option<Seat>) -> Self {
        Self {
            memory,
            seat,
            used: Cell::new(0),
            pinned: RefCell::new(None),
        }
    }

    /// The bytes of a frame, if it is published under `tag`.
    ///
    /// # Cost
    ///
    /// Two loads of the frame's word and a store to this reader's own line. Once 15 frames are
    /// borrowed, an atomic add on the frame's word instead, and a search among those held so.
    #[inline]
    pub fn borrow(&self, pfn: Pfn, tag: u64) -> Option<&[u8; PAGE_SIZE]> {
        if !self.memory.has_tag(pfn, tag) {
            return None;
        }
        if !self.announce(pfn, tag) {
            return None;
        }
        // SAFETY: the frame is announced in this reader's seat, or pinned, and its tag was seen
        // afterwards; both last until the reader's drop or `take_seat`, which need the slices gone.
        Some(unsafe { self.memory.published_bytes(pfn) })
    }

    /// Makes sure that the frame stays published while this reader lives; false if its tag is not
    /// `tag` any more.
    #[inline]
    fn announce(&self, pfn: Pfn, tag: u64) -> bool {
        let Some(seat) = &self.seat else {
            return self.announce_by_pin(pfn, tag);
        };
        let slots = &seat.line.slots;
        let used = self.used.get();
        // Relaxed: only this reader writes its slots.
        if slots[..used]
            .iter()
            .any(|slot| slot.load(Ordering::Relaxed) == pfn.0 + 1)
        {
            return self.memory.has_tag(pfn, tag);
        }
        let Some(slot) = slots.get(used) else {
            return self.announce_by_pin(pfn, tag);
        };
        // The light barrier orders it before the second look at the tag. Release. Pairs with: the
        // acquire load of `collect_announced`: an earlier reader of this seat may have read a frame
        // by the same slot, and whoever sees this announcement no longer sees that the slot was cleared.
        slot.store(pfn.0 + 1, Ordering::Release);
        barrier::light();
        if self.memory.has_tag(pfn, tag) {
            self.used.set(used + 1);
            return true;
        }
        // Release. Pairs with: the acquire load of `collect_announced`; nothing was read.
        slot.store(EMPTY, Ordering::Release);
        false
    }

    #[cold]
    fn announce_by_pin(&self, pfn: Pfn, tag: u64) -> bool {
        let mut pinned = self.pinned.borrow_mut();
        let pinned = pinned.get_or_insert_default();
        // Pinned before: it stays published. A pin for each read would be a leak until the reader ends.
        if pinned.contains(&pfn) {
            return self.memory.has_tag(pfn, tag);
        }
        self.memory.pin(pfn, tag) && pinned.insert(pfn)
    }

    /// Ends every borrow and gives the seat back, for the next reader of this thread. Later borrows
    /// pin.
    #[inline]
    #[must_use]
    pub fn take_seat(&mut self) -> Option<Seat> {
        self.end_borrows();
        self.seat.take()
    }

    #[inline]
    fn end_borrows(&mut self) {
        if let Some(seat) = &self.seat {
            for slot in &seat.line.slots[..self.used.replace(0)] {
                // Release. Pairs with: the acquire load of `collect_announced`.
                slot.store(EMPTY, Ordering::Release);
            }
        }
        if self.pinned.get_mut().is_some() {
            self.unpin_all();
        }
    }

    #[cold]
    fn unpin_all(&mut self) {
        for pfn in self.pinned.take().into_iter().flat_map(|pinned| *pinned) {
            self.memory.unpin(pfn);
        }
    }
}

impl Drop for Reader<'_> {
    #[inline]
    fn drop(&mut self) {
        self.end_borrows();
    }
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("seat", &self.seat)
            .finish_non_exhaustive()
    }
}

/// A borrow counted in the frame itself: it may outlive readers and move between threads.
pub struct Pinned {
    memory: Arc<FrameMemory>,
    pfn: Pfn,
}

impl Pinned {
    /// Pins a frame, if it is published under `tag`.
    ///
    /// # Cost
    ///
    /// One atomic add on the frame's word, another on drop.
    ///
    /// # Panics
    ///
    /// When there is no such frame, or 2^31 pins of it were leaked.
    #[must_use]
    pub fn new(memory: Arc<FrameMemory>, pfn: Pfn, tag: u64) -> Option<Self> {
        memory.pin(pfn, tag).then(|| Self { memory, pfn })
    }

    /// The frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; PAGE_SIZE] {
        // SAFETY: the pin was taken and the tag seen afterwards by `new`; it lasts until drop.
        unsafe { self.memory.published_bytes(self.pfn) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.memory.unpin(self.pfn);
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({})", self.pfn)
    }
}
