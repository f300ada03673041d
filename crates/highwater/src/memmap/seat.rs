//! Seats: announcement slots that one reader at a time writes.
//!
//! A seat is [`SLOTS`] slots in lines of its own. It belongs to one memory for ever, and is taken
//! by one holder at a time. A thread keeps the seats that it has left, and takes one of them for
//! its next reader: that one costs nobody else anything. What the slots are for: module `borrow`.

use std::fmt;

use crossbeam_utils::CachePadded;

use super::barrier::Barrier;
use super::frames::MemoryId;
#[cfg(not(loom))]
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Arc, LockClass, Rank, RwLock};
use crate::units::Pfn;

pub(super) use kept::{Former, find, leave, note_used, sit_down};

/// Announcements per seat. Chosen: fifteen numbers and the mark of occupation fill a cache line;
/// whose seat it is, which never changes, lies in the next.
pub(super) const SLOTS: usize = if cfg!(loom) { 2 } else { 15 };

// A reader that has filled one slot is told from one that has pinned.
const _: () = assert!(SLOTS > 1);

/// The most seats that one memory has; readers beyond them pin. Chosen: a megabyte of them,
/// and a walk over all is still shorter than the I/O that reclaim is for.
const SEATS_MAX: usize = 4096;

/// A slot that announces nothing.
const EMPTY: u32 = u32::MAX;

// No frame has that number.
const _: () = assert!(super::Reservation::MAX.0 <= EMPTY as u64);

static SEATS_LOCK: LockClass = LockClass::new("seats", Rank::Leaf);

/// Every seat of one memory. Seats are made when they are first needed and stay.
pub(super) struct Seats {
    memory: MemoryId,
    /// Of each.
    in_turn: usize,
    lines: RwLock<Vec<Arc<CachePadded<SeatLine>>>>,
}

#[repr(C)]
struct SeatLine {
    /// Written by: the seat's holder (announce: before a light barrier; clear; both release). Those
    /// of nobody's seat, which has many holders and which nobody looks at, are only ever cleared.
    /// Read by: `retract` (acquire, after its heavy barrier). Publishes: that what the slot
    /// announced before is read no more.
    slots: [AtomicU32; SLOTS],
    /// Written by: whoever takes or leaves the seat. Read by: those looking for a seat, `retract`.
    /// Publishes: that the slots are empty, and what they announced is read no more.
    is_taken: AtomicBool,
    /// Whose seat it is.
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

    /// Takes the first free seat, or makes one; `None` when there are too many.
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
            // Acquire. Pairs with: the release store of a seat's drop, so that what was read from
            // the seat lies before whatever the new owner writes.
            if !line.is_taken.load(Ordering::Acquire) {
                continue;
            }
            for slot in &line.slots {
                // Acquire. Pairs with: the release store that clears a slot or announces the next
                // frame in it, so that the reader's last look at the bytes lies before whatever the
                // new owner writes.
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
    /// A seat that is of no memory, for who finds no other: nobody looks at its slots.
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

    /// Slots that a reader may fill in turn, each followed by [`Barrier::bare`].
    #[inline(always)]
    pub(super) fn in_turn(&self) -> usize {
        self.line.in_turn
    }

    #[inline(always)]
    pub(super) fn is_of(&self, memory: MemoryId) -> bool {
        self.line.memory == memory
    }

    /// Announces a frame by a slot. What the slot announced before must not be read any more.
    #[inline(always)]
    pub(super) fn announce(&self, slot: usize, pfn: Pfn) {
        // The light barrier that follows orders it before the look at the tag.
        // Release. Pairs with: the acquire load of `collect_announced`: an earlier reader of this
        // seat may have read a frame by the same slot; a scan that sees this announcement does not
        // see that the slot was cleared.
        self.line.slots[slot].store(pfn.0, Ordering::Release);
    }

    /// Empties a slot: what it announced is read no more.
    #[inline(always)]
    pub(super) fn clear(&self, slot: usize) {
        // Release. Pairs with: the acquire load of `collect_announced`.
        self.line.slots[slot].store(EMPTY, Ordering::Release);
    }

    /// Empties the first so many slots.
    pub(super) fn clear_first(&self, count: usize) {
        for slot in &self.line.slots[..count] {
            // Release. Pairs with: the acquire load of `collect_announced`.
            slot.store(EMPTY, Ordering::Release);
        }
    }

    /// Whether no slot announces anything.
    fn is_empty(&self) -> bool {
        self.announced() == [None; SLOTS]
    }

    /// What the slots announce, in their order.
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

    use super::{MemoryId, Seat, Seats};

    /// Seats that a thread keeps, of all memories together, beside the one that it left last.
    /// Chosen: more readers at once in one thread are rare; they take a seat each time.
    const KEPT_MAX: usize = 16;

    thread_local! {
        /// The seat that was left last: most often that of the next reader. Nothing of it is
        /// dropped when the thread ends, so that looking here is one load; [`Others`] does that.
        /// Once it has, a seat of nobody lies here.
        static LAST: Cell<Option<ManuallyDrop<Seat>>> = const { Cell::new(None) };
        static OTHERS: Others = const { Others(RefCell::new(Vec::new())) };
    }

    /// What a thread keeps beside [`LAST`]; when the thread ends, that too is given back.
    struct Others(RefCell<Vec<Seat>>);

    impl Drop for Others {
        fn drop(&mut self) {
            let last = LAST.replace(Some(ManuallyDrop::new(Seat::of_nobody())));
            drop(last.map(ManuallyDrop::into_inner));
        }
    }

    /// Has what this thread is going to leave in [`LAST`] given back when it ends.
    pub(in super::super) fn note_used() {
        // A failure says that it is ending.
        let _ = OTHERS.try_with(|_| ());
    }

    /// Takes the seat that this thread left last, if it is of that memory. Else, what lay in its
    /// place, for [`find`].
    #[inline(always)]
    pub(in super::super) fn sit_down(memory: MemoryId) -> Result<Seat, Former> {
        match LAST.take() {
            Some(seat) if seat.is_of(memory) => Ok(ManuallyDrop::into_inner(seat)),
            last => Err(Former(last)),
        }
    }

    /// What [`sit_down`] found: a seat of another memory; none when another reader of this thread
    /// has it.
    pub(in super::super) struct Former(Option<ManuallyDrop<Seat>>);

    /// Takes another of this thread's seats, or a free one. `None` when all are taken, or when the
    /// thread is ending.
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

    /// Gives a seat of which all slots are empty back to this thread.
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
        // The thread is ending: the former is nobody's and stays, and the seat is free for another
        // thread.
        if is_kept.is_err() {
            drop(LAST.replace(former).map(ManuallyDrop::into_inner));
        }
    }
}

/// In a model, threads keep no seats: what one execution leaves behind must not be seen by the
/// next.
#[cfg(loom)]
mod kept {
    use super::{MemoryId, Seat, Seats};

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
