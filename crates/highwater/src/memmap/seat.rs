//! Seats: hazard-pointer records, each written by one reader at a time.
//!
//! A seat is [`SLOTS`] slots in cache lines of its own. It belongs to one memory permanently, and
//! is taken by one holder at a time. A thread keeps the seats that it has left, and takes one of
//! them for its next reader, without a store to shared memory. The module `borrow` explains the
//! slots.

use std::fmt;

use super::barrier::Barrier;
use super::reservation::Reservation;
use super::token::MemoryId;
#[cfg(not(loom))]
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Arc, CachePadded, LockClass, Rank, RwLock};
use crate::units::Pfn;

pub(super) use kept::{Former, find, leave, note_used, sit_down};

/// Announcements per seat. Chosen: fifteen numbers and the occupied flag fill a cache line; the
/// memory's id, which never changes, is in the next.
pub(super) const SLOTS: usize = if cfg!(loom) { 2 } else { 15 };

// A reader that has filled one slot is distinguished from one that has pinned.
const _: () = assert!(SLOTS > 1);

/// Maximum number of seats of one memory; readers beyond them pin. Chosen: a megabyte of them, and
/// a walk over all is still shorter than the I/O that reclaim is for.
const SEATS_MAX: usize = 4096;

/// A slot that announces nothing.
const EMPTY: u32 = u32::MAX;

// No frame has that number.
const _: () = assert!(Reservation::MAX.0 <= EMPTY as u64);

static SEATS_LOCK: LockClass = LockClass::new("seats", Rank::Leaf);

/// The seats of one memory, allocated on demand and never freed.
pub(super) struct Seats {
    memory: MemoryId,
    /// Each seat's `in_turn`.
    in_turn: usize,
    lines: RwLock<Vec<Arc<CachePadded<SeatLine>>>>,
}

#[repr(C)]
struct SeatLine {
    /// Written by: the seat's holder (announce: before a light barrier; clear; both release). Those
    /// of a seat of no memory, which has many holders and is never scanned, are only ever cleared.
    /// Read by: `retract` (acquire, after its heavy barrier). Publishes: that the frame that the
    /// slot announced before is no longer read.
    slots: [AtomicU32; SLOTS],
    /// Written by: threads that take or leave the seat. Read by: threads looking for a seat,
    /// `retract`. Publishes: that the slots are empty, and their frames are no longer read.
    is_taken: AtomicBool,
    /// The seat's memory.
    memory: MemoryId,
    /// Slots that a reader fills in turn with no more than a bare barrier: all, or none. [`SLOTS`]
    /// at most.
    in_turn: usize,
}

impl SeatLine {
    fn taken(memory: MemoryId, in_turn: usize) -> Self {
        debug_assert!(in_turn <= SLOTS, "{in_turn} of {SLOTS} slots");
        Self {
            slots: std::array::from_fn(|_| AtomicU32::new(EMPTY)),
            is_taken: AtomicBool::new(true),
            memory,
            in_turn,
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
    pub(super) fn new(memory: MemoryId, barrier: Barrier) -> Self {
        Self {
            memory,
            in_turn: if barrier.is_bare() { SLOTS } else { 0 },
            lines: RwLock::new(&SEATS_LOCK, Vec::new()),
        }
    }

    /// Takes the first free seat, or allocates one; `None` if there are too many.
    pub(super) fn take(&self) -> Option<Seat> {
        let free = self
            .lines
            .read()
            .iter()
            .find(|line| line.try_take())
            .cloned();
        let line = free.or_else(|| {
            let mut lines = self.lines.write();
            if lines.len() >= SEATS_MAX {
                return None;
            }
            let line = SeatLine::taken(self.memory, self.in_turn);
            let line = Arc::new(CachePadded::new(line));
            lines.push(Arc::clone(&line));
            Some(line)
        });
        line.map(|line| Seat { line })
    }

    /// Collects every announced frame. Called after the heavy barrier: a reader that saw its tag
    /// before the barrier had its seat in the list before, and its announcement in the slot.
    pub(super) fn collect_announced(&self, announced: &mut Vec<Pfn>) {
        announced.clear();
        for line in self.lines.read().iter() {
            // Acquire. Pairs with: the release store of a seat's drop, so that reads under the seat
            // lie before the new owner's writes.
            if !line.is_taken.load(Ordering::Acquire) {
                continue;
            }
            for slot in &line.slots {
                // Acquire. Pairs with: the release store that clears a slot or announces the next
                // frame in it, so that the reader's last access to the bytes lies before the new
                // owner's writes.
                let pfn = slot.load(Ordering::Acquire);
                if pfn != EMPTY {
                    announced.push(Pfn(pfn));
                }
            }
        }
    }
}

/// The right to one seat. Taking one may allocate; keep it for the next reader.
pub struct Seat {
    line: Arc<CachePadded<SeatLine>>,
}

impl Seat {
    /// Returns a dummy seat of no memory, for readers that could not get one; never scanned.
    #[cold]
    pub(super) fn of_nobody() -> Self {
        let line = || Arc::new(CachePadded::new(SeatLine::taken(MemoryId::NONE, 0)));
        #[cfg(not(loom))]
        let line = || {
            static LINE: OnceLock<Arc<CachePadded<SeatLine>>> = OnceLock::new();
            Arc::clone(LINE.get_or_init(line))
        };
        Self { line: line() }
    }

    pub(super) fn is_of_nobody(&self) -> bool {
        self.is_of(MemoryId::NONE)
    }

    /// Returns the number of slots that a reader may fill in turn, each followed by
    /// [`Barrier::bare`].
    #[inline(always)]
    pub(super) fn in_turn(&self) -> usize {
        self.line.in_turn
    }

    #[inline(always)]
    pub(super) fn is_of(&self, memory: MemoryId) -> bool {
        self.line.memory == memory
    }

    /// Announces a frame by a slot. The frame that the slot announced before must not be read any
    /// more.
    #[inline(always)]
    pub(super) fn announce(&self, slot: usize, pfn: Pfn) {
        // The light barrier that follows orders it before the check of the tag. Release: an earlier
        // reader of this seat may have read a frame by the same slot; a scan that sees this
        // announcement does not see that the slot was cleared. Pairs with: the acquire load of
        // `collect_announced`.
        self.line.slots[slot].store(pfn.0, Ordering::Release);
    }

    /// Empties a slot: its frame is no longer read.
    #[inline(always)]
    pub(super) fn clear(&self, slot: usize) {
        // Release. Pairs with: the acquire load of `collect_announced`.
        self.line.slots[slot].store(EMPTY, Ordering::Release);
    }

    /// Empties the first `count` slots.
    pub(super) fn clear_first(&self, count: usize) {
        for slot in &self.line.slots[..count] {
            // Release. Pairs with: the acquire load of `collect_announced`.
            slot.store(EMPTY, Ordering::Release);
        }
    }

    /// Returns whether no slot announces anything.
    fn is_empty(&self) -> bool {
        self.announced() == [None; SLOTS]
    }

    /// Returns the announced frames, by slot.
    pub(super) fn announced(&self) -> [Option<Pfn>; SLOTS] {
        // Relaxed: only the holder writes the slots.
        let pfn = |slot: usize| self.line.slots[slot].load(Ordering::Relaxed);
        std::array::from_fn(|slot| Some(Pfn(pfn(slot))).filter(|&pfn| pfn != Pfn(EMPTY)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        debug_assert!(self.is_empty(), "{self:?} was left with a frame");
        // Release. Pairs with: the acquire of `try_take`: the next holder finds empty slots.
        self.line.is_taken.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seat({:p})", Arc::as_ptr(&self.line))
    }
}

/// The seats that a thread keeps.
#[cfg(not(loom))]
mod kept {
    use std::cell::{Cell, RefCell};
    use std::mem::ManuallyDrop;

    use crate::memmap::seat::{Seat, Seats};
    use crate::memmap::token::MemoryId;

    /// Maximum number of seats that a thread keeps, of all memories together, beside the one that
    /// it left last. Chosen: more readers at once in one thread are rare; they take a seat each
    /// time.
    const KEPT_MAX: usize = 16;

    thread_local! {
        /// The seat that was left last: most often that of the next reader. Its thread-local has no
        /// destructor, so that an access is one load; [`Others`] drops the seat. Afterwards it
        /// holds a seat of no memory.
        static LAST: Cell<Option<ManuallyDrop<Seat>>> = const { Cell::new(None) };
        static OTHERS: Others = const { Others(RefCell::new(Vec::new())) };
    }

    /// Seats that a thread keeps beside [`LAST`]; its destructor also releases that one.
    struct Others(RefCell<Vec<Seat>>);

    impl Drop for Others {
        fn drop(&mut self) {
            let last = LAST.replace(Some(ManuallyDrop::new(Seat::of_nobody())));
            drop(last.map(ManuallyDrop::into_inner));
        }
    }

    /// Registers the destructor that releases [`LAST`] when this thread ends.
    pub(in super::super) fn note_used() {
        // A failure means that the thread is ending.
        let _ = OTHERS.try_with(|_| ());
    }

    /// Takes the seat that this thread left last, if it belongs to that memory. Otherwise returns
    /// the former content, for [`find`].
    #[inline(always)]
    pub(in super::super) fn sit_down(memory: MemoryId) -> Result<Seat, Former> {
        match LAST.take() {
            Some(seat) if seat.is_of(memory) => Ok(ManuallyDrop::into_inner(seat)),
            last => Err(Former(last)),
        }
    }

    /// Result of [`sit_down`]: a seat of another memory; none if another reader of this thread has
    /// it.
    pub(in super::super) struct Former(Option<ManuallyDrop<Seat>>);

    /// Takes another of this thread's seats, or a free one. `None` if all are taken, or the thread
    /// is ending.
    pub(in super::super) fn find(seats: &Seats, former: Former) -> Option<Seat> {
        if former.0.is_some() {
            make_room(former.0);
        }
        let kept = OTHERS.try_with(|others| {
            let mut others = others.0.borrow_mut();
            let at = others.iter().rposition(|seat| seat.is_of(seats.memory));
            at.map(|at| others.swap_remove(at))
        });
        kept.ok()?.or_else(|| seats.take())
    }

    /// Returns a seat with empty slots to this thread.
    #[inline(always)]
    pub(in super::super) fn leave(seat: Seat) {
        debug_assert!(seat.is_empty(), "{seat:?} is left with a frame");
        let former = LAST.replace(Some(ManuallyDrop::new(seat)));
        if former.is_some() {
            make_room(former);
        }
    }

    #[cold]
    #[inline(never)]
    fn make_room(mut former: Option<ManuallyDrop<Seat>>) {
        let is_kept = OTHERS.try_with(|others| {
            let former = former.take().map(ManuallyDrop::into_inner);
            let Some(former) = former.filter(|former| !former.is_of_nobody()) else {
                return;
            };
            let mut others = others.0.borrow_mut();
            if others.len() >= KEPT_MAX {
                others.remove(0);
            }
            others.push(former);
        });
        // The thread is ending: the former one is the dummy and stays, and the seat is free for
        // another thread.
        if is_kept.is_err() {
            drop(LAST.replace(former).map(ManuallyDrop::into_inner));
        }
    }
}

/// In a model, threads keep no seats: one execution must not see those of another.
#[cfg(loom)]
mod kept {
    use crate::memmap::seat::{Seat, Seats};
    use crate::memmap::token::MemoryId;

    pub(in super::super) struct Former;

    pub(in super::super) fn note_used() {}

    pub(in super::super) fn sit_down(_: MemoryId) -> Result<Seat, Former> {
        Err(Former)
    }

    pub(in super::super) fn find(seats: &Seats, _: Former) -> Option<Seat> {
        seats.take()
    }

    pub(in super::super) fn leave(seat: Seat) {
        drop(seat);
    }
}
