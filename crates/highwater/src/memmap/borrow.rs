//! Borrowing published frames by hazard pointers, without a store to shared memory.
//!
//! A [`Reader`] holds a [`Seat`] (hazard record), whose slots no other thread writes. To borrow, it
//! writes the frame's number to a free slot, passes the light barrier, and checks that the frame
//! has the expected tag. `frames.rs` has the other half of the protocol and its argument.
//!
//! All borrows of a reader end together with the reader: the borrow checker ties every slice to the
//! reader, so slots are cleared only when no slice is left. A frame may be announced by several
//! slots; when all slots are used, duplicates are reused. When there are none, or there was no
//! seat, the borrow is counted in the frame (`pin`), once for each frame and reader, which is
//! correct and costs an atomic add on a shared line.
//!
//! A reader that checks a frame whose tag is gone announces it for an instant. A concurrent
//! eviction of that frame may find it borrowed, and leaves it for the next time.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use super::barrier::Barrier;
use super::frames::FrameMemory;
use super::seat::{self, Former, SLOTS, Seat, note_used};
use crate::sync::Arc;
use crate::units::Pfn;

/// Borrows the bytes of published frames; every borrow ends with the reader.
pub struct Reader<'m> {
    memory: &'m FrameMemory,
    /// Seat of this memory, or of none. Taken out when the reader ends, as is `pinned`: nothing is
    /// left to drop.
    seat: ManuallyDrop<Seat>,
    /// Slots in use, filled in turn; all slots once any was filled otherwise, or anything is
    /// pinned.
    used: Cell<usize>,
    /// Frames borrowed by pin because there was no seat or no slot left, each pinned once.
    pinned: ManuallyDrop<OnceCell<Box<RefCell<BTreeSet<Pfn>>>>>,
    /// Not `Send`: the reader's thread gets the seat.
    stays: PhantomData<*const ()>,
}

impl FrameMemory {
    /// Returns a reader, with a seat that this thread has left before if there is one. Without any
    /// (all are taken) each borrow pins.
    ///
    /// # Cost
    ///
    /// No store to shared memory. The first reader of a thread takes a seat (an atomic), and so
    /// does each of several at once.
    #[inline(always)]
    pub fn enter(&self) -> Reader<'_> {
        let seat = match seat::sit_down(self.id) {
            Ok(seat) => seat,
            Err(former) => self.find_seat(former),
        };
        Reader::new(self, seat)
    }

    #[cold]
    #[inline(never)]
    fn find_seat(&self, former: Former) -> Seat {
        seat::find(&self.seats, former).unwrap_or_else(Seat::of_nobody)
    }

    /// Returns a reader with a seat of this memory, or without one (each borrow then pins). This
    /// thread keeps the seat afterwards.
    ///
    /// # Panics
    ///
    /// When the seat belongs to another memory.
    pub fn reader(&self, seat: Option<Seat>) -> Reader<'_> {
        if let Some(seat) = &seat {
            assert!(seat.is_of(self.id), "the seat is of another memory");
        }
        note_used();
        Reader::new(self, seat.unwrap_or_else(Seat::of_nobody))
    }
}

impl<'m> Reader<'m> {
    #[inline(always)]
    fn new(memory: &'m FrameMemory, seat: Seat) -> Self {
        Self {
            memory,
            seat: ManuallyDrop::new(seat),
            used: Cell::new(0),
            pinned: ManuallyDrop::new(OnceCell::new()),
            stays: PhantomData,
        }
    }

    /// Returns whether it borrows from `memory`.
    #[inline(always)]
    #[must_use]
    pub fn is_of(&self, memory: &FrameMemory) -> bool {
        std::ptr::eq(self.memory, memory)
    }

    /// Returns the bytes of a frame, if it is published under `tag`.
    ///
    /// # Cost
    ///
    /// As [`borrow_likely`](Self::borrow_likely), plus a load; only the load if the frame is not
    /// published under `tag`.
    #[inline]
    pub fn borrow(&self, pfn: Pfn, tag: u64) -> Option<&[u8]> {
        if !self.memory.has_tag(pfn, tag) {
            return None;
        }
        self.borrow_likely(pfn, tag)
    }

    /// As [`borrow`](Self::borrow), for a frame that is very probably published under `tag`: it is
    /// announced without a check before.
    ///
    /// # Cost
    ///
    /// A store to this reader's own line and a load of the frame's word; also a fence, if the
    /// system has no membarrier. After 15 borrows also a search among them; once 15 frames are
    /// borrowed, an atomic add on the frame's word instead, and a search among the pinned ones.
    #[inline(always)]
    pub fn borrow_likely(&self, pfn: Pfn, tag: u64) -> Option<&[u8]> {
        let (memory, seat, used) = (self.memory, &*self.seat, self.used.get());
        if used >= seat.in_turn() {
            return self.borrow_beyond(pfn, tag);
        }
        seat.announce(used, pfn);
        Barrier::bare();
        // SAFETY: announced in this reader's seat before the barrier, until the reader's drop or
        // `take_seat`, which need the slices gone. The seat is of this memory: the seat of no
        // memory has no slots to fill in turn.
        let bytes = unsafe { memory.bytes_under(pfn, tag) };
        match bytes {
            Some(_) => self.used.set(used + 1),
            None => seat.clear(used),
        }
        bytes
    }

    /// As [`borrow_likely`](Self::borrow_likely), if no slot can be filled in turn: the barrier is
    /// an instruction, all slots were filled, or there is no seat.
    #[cold]
    #[inline(never)]
    fn borrow_beyond(&self, pfn: Pfn, tag: u64) -> Option<&[u8]> {
        let (seat, used) = (&*self.seat, self.used.get());
        if used < SLOTS && !seat.is_of_nobody() {
            let bytes = self.borrow_by_slot(used, pfn, tag)?;
            self.used.set(used + 1);
            return Some(bytes);
        }
        self.used.set(SLOTS);
        let announced = seat.announced();
        if announced.contains(&Some(pfn)) || self.has_pinned(pfn) {
            // SAFETY: announced as above, or pinned with the barrier that `pin` passes, by an
            // earlier borrow. A pin, too, lasts until the reader's drop or `take_seat`.
            return unsafe { self.memory.bytes_under(pfn, tag) };
        }
        let is_spare = |&slot: &usize| {
            announced[slot].is_none() || announced[..slot].contains(&announced[slot])
        };
        let spare = (0..announced.len()).find(is_spare);
        match spare.filter(|_| !seat.is_of_nobody()) {
            Some(spare) => self.borrow_by_slot(spare, pfn, tag),
            None => self.borrow_by_pin(pfn, tag),
        }
    }

    /// Announces by a slot that protects nothing else, of a seat of this memory.
    fn borrow_by_slot(&self, slot: usize, pfn: Pfn, tag: u64) -> Option<&[u8]> {
        self.seat.announce(slot, pfn);
        self.memory.barrier.light();
        // SAFETY: announced as in `borrow_likely`.
        let bytes = unsafe { self.memory.bytes_under(pfn, tag) };
        if bytes.is_none() {
            self.seat.clear(slot);
        }
        bytes
    }

    /// Returns whether this reader has pinned it before: a pin for each read would be a leak until
    /// the reader ends.
    fn has_pinned(&self, pfn: Pfn) -> bool {
        let pinned = self.pinned.get();
        pinned.is_some_and(|pinned| pinned.borrow().contains(&pfn))
    }

    fn borrow_by_pin(&self, pfn: Pfn, tag: u64) -> Option<&[u8]> {
        let mut pinned = self.pinned.get_or_init(Box::default).borrow_mut();
        if !self.memory.pin(pfn, tag) {
            return None;
        }
        let is_new = pinned.insert(pfn);
        debug_assert!(is_new, "{pfn} was looked for");
        // SAFETY: pinned, with the barrier that `pin` passes, until the reader's drop or
        // `take_seat`, which need the slices gone.
        unsafe { self.memory.bytes_under(pfn, tag) }
    }

    /// Ends every borrow and returns the seat, for the next reader. Later borrows pin.
    #[must_use]
    pub fn take_seat(&mut self) -> Option<Seat> {
        let seat = std::mem::replace(&mut *self.seat, Seat::of_nobody());
        self.end_borrows(&seat);
        Some(seat).filter(|seat| !seat.is_of_nobody())
    }

    /// Ends the reader.
    ///
    /// # Safety
    ///
    /// The reader is not used any more.
    #[cold]
    #[inline(never)]
    unsafe fn end(&mut self) {
        // SAFETY: the caller's promise.
        let seat = unsafe { ManuallyDrop::take(&mut self.seat) };
        self.end_borrows(&seat);
        if !seat.is_of_nobody() {
            seat::leave(seat);
        }
    }

    fn end_borrows(&mut self, seat: &Seat) {
        seat.clear_first(self.used.replace(SLOTS));
        for pfn in self
            .pinned
            .take()
            .into_iter()
            .flat_map(|pinned| pinned.take())
        {
            self.memory.unpin(pfn);
        }
    }
}

impl Drop for Reader<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.used.get() > 1 {
            // SAFETY: it is being dropped.
            return unsafe { self.end() };
        }
        // SAFETY: the reader ends and is not used any more.
        let seat = unsafe { ManuallyDrop::take(&mut self.seat) };
        seat.clear(0);
        seat::leave(seat);
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
    tag: u64,
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
        memory.pin(pfn, tag).then(|| Self { memory, pfn, tag })
    }

    /// Returns the frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the pin was taken and the tag seen afterwards by `new`; it lasts until drop.
        unsafe { self.memory.published_bytes(self.pfn, self.tag) }
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
