//! Borrowing published frames without a store to shared memory.
//!
//! A [`Reader`] sits on a [`Seat`], whose announcement slots nobody else writes, and borrows: it writes the frame's number into
//! a free slot, passes the light barrier, and borrows if the frame's tag is what it should be. The protocol's other
//! half and its argument are in `frames.rs`.
//!
//! All borrows of a reader end together, when the reader is done: the borrow checker ties every
//! slice to the reader, so slots are cleared only when no slice is left. A frame may be announced by several slots; when all
//! slots are used, those that repeat another are used again. When there are none, or there was no seat, the
//! borrow is counted in the frame (`pin`), once for each frame and reader, which is correct and costs an
//! atomic add on a shared line.
//!
//! A reader that looks at a frame which does not have its tag any more announces it for an instant. Whoever evicts that frame just
//! then may find it borrowed, and leaves it for the next time.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use super::frames::FrameMemory;
use super::seat::{self, SLOTS, Seat};
use crate::sync::Arc;
use crate::units::{PAGE_SIZE, Pfn};

/// Borrows the bytes of published frames; every borrow ends when the reader does.
pub struct Reader<'m> {
    memory: &'m FrameMemory,
    /// Taken out when the reader ends, as is `pinned`: there is nothing left to drop.
    seat: ManuallyDrop<Option<Seat>>,
    /// Slots in use, filled from the front. Once all are, one of them may be empty. Without a seat, always all: so there is
    /// one while fewer are.
    used: Cell<usize>,
    /// Frames borrowed by pin because there was no seat or no slot left, each pinned once.
    pinned: ManuallyDrop<OnceCell<Box<RefCell<BTreeSet<Pfn>>>>>,
    /// A reader stays on its thread, which is the one that gets the seat.
    stays: PhantomData<*const ()>,
}

impl<'m> Reader<'m> {
    #[inline]
    pub(super) fn new(memory: &'m FrameMemory, seat: Option<Seat>) -> Self {
        let used = if seat.is_some() { 0 } else { SLOTS };
        Self::with(memory, seat, used)
    }

    /// As [`new`](Self::new), without a look whether there is a seat.
    #[inline]
    pub(super) fn seated(memory: &'m FrameMemory, seat: Seat) -> Self {
        Self::with(memory, Some(seat), 0)
    }

    #[inline]
    fn with(memory: &'m FrameMemory, seat: Option<Seat>, used: usize) -> Self {
        Self {
            memory,
            seat: ManuallyDrop::new(seat),
            used: Cell::new(used),
            pinned: ManuallyDrop::new(OnceCell::new()),
            stays: PhantomData,
        }
    }

    /// Whether it borrows from `memory`.
    #[inline]
    #[must_use]
    pub fn is_of(&self, memory: &FrameMemory) -> bool {
        std::ptr::eq(self.memory, memory)
    }

    /// The bytes of a frame, if it is published under `tag`.
    ///
    /// # Cost
    ///
    /// That of [`borrow_likely`](Self::borrow_likely) and a load; only the load where the frame is not.
    #[inline]
    pub fn borrow(&self, pfn: Pfn, tag: u64) -> Option<&[u8; PAGE_SIZE]> {
        if !self.memory.has_tag(pfn, tag) {
            return None;
        }
        self.borrow_likely(pfn, tag)
    }

    /// As [`borrow`](Self::borrow), for a frame that is very probably published under `tag`: it is announced without a look before.
    ///
    /// # Cost
    ///
    /// A store to this reader's own line and a load of the frame's word. After 15 borrows also a search among them; once
    /// 15 frames are borrowed, an atomic add on the frame's word instead, and a search among those held so.
    #[inline]
    pub fn borrow_likely(&self, pfn: Pfn, tag: u64) -> Option<&[u8; PAGE_SIZE]> {
        let used = self.used.get();
        if used >= SLOTS {
            return self.borrow_beyond(pfn, tag);
        }
        // SAFETY: fewer slots are used than there are, so there is a seat.
        let seat = unsafe { self.seat.as_ref().unwrap_unchecked() };
        seat.announce(used, pfn);
        self.memory.barrier.light();
        // SAFETY: announced in this reader's seat before the barrier, until the reader's drop or `take_seat`, which need the
        // slices gone.
        let bytes = unsafe { self.memory.bytes_under(pfn, tag) };
        match bytes {
            Some(_) => self.used.set(used + 1),
            None => seat.clear(used),
        }
        bytes
    }

    /// As [`borrow_likely`](Self::borrow_likely), when every slot is used, or there is no seat.
    #[cold]
    #[inline(never)]
    fn borrow_beyond(&self, pfn: Pfn, tag: u64) -> Option<&[u8; PAGE_SIZE]> {
        let Some(seat) = &*self.seat else {
            return self.borrow_by_pin(pfn, tag);
        };
        let announced = seat.announced();
        if announced.contains(&Some(pfn)) {
            // SAFETY: announced as above, by an earlier borrow.
            return unsafe { self.memory.bytes_under(pfn, tag) };
        }
        let is_spare = |&slot: &usize| {
            announced[slot].is_none() || announced[..slot].contains(&announced[slot])
        };
        let Some(spare) = (0..announced.len()).find(is_spare) else {
            return self.borrow_by_pin(pfn, tag);
        };
        seat.announce(spare, pfn);
        self.memory.barrier.light();
        // SAFETY: announced as above.
        let bytes = unsafe { self.memory.bytes_under(pfn, tag) };
        if bytes.is_none() {
            seat.clear(spare);
        }
        bytes
    }

    fn borrow_by_pin(&self, pfn: Pfn, tag: u64) -> Option<&[u8; PAGE_SIZE]> {
        let mut pinned = self.pinned.get_or_init(Box::default).borrow_mut();
        // Pinned before: it stays published. A pin for each read would be a leak until the reader ends.
        if !pinned.contains(&pfn) {
            if !self.memory.pin(pfn, tag) {
                return None;
            }
            pinned.insert(pfn);
        }
        // SAFETY: pinned, with the barrier that `pin` passes, until the reader's drop or `take_seat`, which need the slices gone.
        unsafe { self.memory.bytes_under(pfn, tag) }
    }

    /// Ends every borrow and gives the seat back, for the next reader. Later borrows pin.
    #[must_use]
    pub fn take_seat(&mut self) -> Option<Seat> {
        let seat = self.seat.take();
        self.end_borrows(seat.as_ref());
        seat
    }

    #[cold]
    #[inline(never)]
    fn end(&mut self) {
        let seat = self.take_seat();
        seat.into_iter().for_each(seat::leave);
    }

    fn end_borrows(&mut self, seat: Option<&Seat>) {
        let used = self.used.replace(SLOTS);
        if let Some(seat) = seat {
            seat.clear_first(used);
        }
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
    #[inline]
    fn drop(&mut self) {
        if self.used.get() > 1 {
            return self.end();
        }
        // SAFETY: the reader ends: nobody looks at it any more.
        let seat = unsafe { ManuallyDrop::take(&mut self.seat) };
        // SAFETY: fewer slots are used than there are, so there is a seat. Nor is anything pinned then.
        let seat = unsafe { seat.unwrap_unchecked() };
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
