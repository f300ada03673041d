//! Frames of real memory and the right to touch them.
//!
//! One bit per frame records whether it is free (module `free`), and one word, its *tag*, the right
//! to access its bytes:
//!
//! | free | tag | state | access to the bytes |
//! |---|---|---|---|
//! | yes | 0 | free | none |
//! | no | 0 | owned | the holder of the frame's [`Frame`] token, or of its [`Block`](super::Block), to read and write |
//! | no | another | published under that tag | any borrower, to read |
//! | no | 0 | latched (module `latched`) | holders of its latch |
//!
//! A *large frame* is 2^order neighbours that have one right: the tag and the latch of the first,
//! which is its number. A tag, and a latched frame's key, encode the order (module `token`), so
//! that the number of bytes is known with them.
//!
//! ```text
//! free --claim--> owned --publish(tag)--> published --retract(tag)--> owned --surrender--> free
//! ```
//!
//! `claim` moves the bit and `retract` the word by one atomic step, so that a token is made once in
//! any case; the allocator above works with bare numbers and cannot forge a right. Claiming and
//! surrendering touch the bit alone: 64 frames a word, 4,096 in two cache lines.
//!
//! Borrowing and retracting are a Dekker pair. A `Reader` announces the frame in a slot of its
//! own, passes a light barrier, and checks the tag; `retract` clears the tag, passes a heavy
//! barrier, and scans every slot. If the reader still saw the tag, its announcement lies before the
//! heavy barrier and the frame is reported as borrowed; otherwise it backs off. A
//! [`Pinned`](super::Pinned) borrow announces itself by a count in the frame, in the same protocol,
//! and may outlive a reader.
//!
//! Source: hazard pointers (M. Michael, 2004), with the asymmetric fence of membarrier(2).
//! Deviation: hazards name frames, not pointers; a retracted frame that is borrowed goes back to
//! its published state at once instead of waiting on a list, so that a stalled reader withholds at
//! most the frames in its slots and nothing has to be freed later.

use std::fmt;

use super::barrier::Barrier;
use super::free::FreeMap;
use super::reservation::{MapError, Reservation, memory_of_machine};
use super::seat::{Seat, Seats};
use super::token::{MemoryId, Origin, Token, order_of};
use super::words::zeroed;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{Latch, LatchQueues};
use crate::units::{Order, Pages, Pfn};

/// Tag of a frame that is not published.
const UNPUBLISHED: u64 = 0;

/// Maximum pins of one frame at once. Chosen: half of what a count holds, so that concurrent
/// threads that reach it cannot wrap the count before they have taken their pins back.
const PINS_MAX: u32 = if cfg!(test) { 1000 } else { 1 << 31 };

/// Frames cut from one [`Reservation`], with the right to each frame's bytes.
pub struct FrameMemory {
    /// Distinguishes the tokens of one memory from those of another.
    pub(super) id: MemoryId,
    pub(super) reservation: Reservation,
    pub(super) barrier: Barrier,
    pub(super) free: FreeMap,
    /// One for each frame, as `pins`: in a separate array, so that more tags share a cache line.
    ///
    /// Written by: threads that publish or retract (see the module's table). Read by: borrowers and
    /// `retract`. Publishes: the frame's bytes.
    tags: Box<[AtomicU64]>,
    /// Written by: pinners. Read by: `retract`. Publishes: nothing; keeps the tag from changing.
    pins: Box<[AtomicU32]>,
    pub(super) seats: Seats,
    /// By frame (module `latched`): its latch, and the key of its page beside it, as an access
    /// reads both.
    ///
    /// The key. Written by: the owner that latches the frame. Read by: any thread, which then
    /// checks the latch. Publishes: nothing.
    pub(super) latches: Box<[(Latch, AtomicU64)]>,
    /// Threads that wait for latches.
    pub(super) latch_queues: LatchQueues,
}

/// The exclusive right to one frame's bytes, or to those of 2^order neighbours, a *large frame*,
/// which is named by its first. Must be surrendered or published, never dropped.
#[must_use = "a frame that is dropped is lost"]
pub struct Frame {
    pfn: Pfn,
    origin: Origin,
}

/// Result of [`FrameMemory::retract`].
#[derive(Debug, Default)]
pub struct Retracted {
    /// Frames without borrowers, now owned.
    pub frames: Vec<Frame>,
    /// Frames that are still borrowed: published as before.
    pub borrowed: Vec<Pfn>,
    /// Scratch: frames whose tags were cleared, and the tags.
    taken: Vec<(Pfn, u64)>,
    /// Scratch: every frame that some seat announces.
    announced: Vec<Pfn>,
}

impl FrameMemory {
    /// Reserves memory for `pages` frames, all free.
    ///
    /// # Errors
    ///
    /// Those of [`Reservation::new`], and [`MapError::AboveMachine`] for more than the machine has:
    /// all frames are meant to be used.
    ///
    /// # Panics
    ///
    /// After 2^29 - 1 memories were created in one process.
    pub fn new(pages: Pages) -> Result<Self, MapError> {
        Self::with_barrier(pages, Barrier::new())
    }

    pub(super) fn with_barrier(pages: Pages, barrier: Barrier) -> Result<Self, MapError> {
        if let Some(memory) = memory_of_machine()
            && pages <= Reservation::MAX
            && pages.bytes() > memory
        {
            let requested = pages.bytes();
            return Err(MapError::AboveMachine { requested, memory });
        }
        Ok(Self::over(Reservation::new(pages)?, barrier))
    }

    /// Creates a memory of no frames, for a manager that only accounts: nothing is mapped.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    #[must_use]
    pub fn without_frames() -> Self {
        Self::over(Reservation::empty(), Barrier::new())
    }

    fn over(reservation: Reservation, barrier: Barrier) -> Self {
        let count = u32::try_from(reservation.pages().0);
        let count = count.expect("a reservation has less than 2^32 pages");
        let id = MemoryId::next();
        Self {
            id,
            reservation,
            barrier,
            free: FreeMap::all(count),
            tags: zeroed(count as usize), // all `UNPUBLISHED`
            pins: zeroed(count as usize),
            latches: zeroed(count as usize),
            latch_queues: LatchQueues::new(),
            seats: Seats::new(id, barrier),
        }
    }

    /// Returns the id of this memory.
    #[must_use]
    pub const fn id(&self) -> MemoryId {
        self.id
    }

    /// Returns the number of frames in the memory.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.reservation.pages()
    }

    /// Claims a free frame.
    ///
    /// # Cost
    ///
    /// One atomic instruction, on a word that it shares with 63 neighbours.
    ///
    /// # Panics
    ///
    /// When the frame is not free: its allocator handed it out twice.
    pub fn claim(&self, pfn: Pfn) -> Frame {
        let mut frame = None;
        self.free.take_all(&[pfn], |_| {
            // SAFETY: the right to the frame was in its bit, and has just been taken from there.
            frame = Some(unsafe { Frame::owned(pfn, self.id) });
        });
        frame.expect("it was free, or that panicked")
    }

    /// Frees an owned frame, for its allocator to hand out again.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another memory, or is a large one.
    pub fn surrender(&self, frame: Frame) -> Pfn {
        assert_eq!(frame.order(), Order::ZERO, "{frame:?} is freed as a block");
        let pfn = self.redeem(frame);
        self.free.put_all(&[pfn]);
        pfn
    }

    /// Publishes the frame's bytes for reading under `tag`.
    ///
    /// # Panics
    ///
    /// When `tag` is 0, which marks frames that are not published, or of another order than the
    /// frame, or when the frame belongs to another memory.
    pub fn publish(&self, frame: Frame, tag: u64) -> Pfn {
        assert!(is_tag(tag), "{tag} cannot be a tag");
        assert_eq!(order_of(tag), frame.order(), "{tag} is no tag of {frame:?}");
        let pfn = self.redeem(frame);
        // Release. Pairs with: the acquire load of `has_tag`, so that a borrower sees the bytes
        // that the owner wrote.
        self.tags[pfn.index()].store(tag, Ordering::Release);
        pfn
    }

    /// Retracts published frames: each of `batch` that is still published under its tag becomes
    /// owned if it is not borrowed, and stays published under that tag otherwise. Skips frames that
    /// are published under another tag by now, and repetitions within the batch.
    ///
    /// # Cost
    ///
    /// One heavy barrier (up to about 6 us) and one walk over the seats for the whole batch. No
    /// allocation while `out` has capacity for the batch. Does not block.
    ///
    /// If the system refuses membarrier(2), which it granted when the memory was created, the
    /// barrier is a visit to each CPU (some 20 us each if it is idle). If it refuses that too, the
    /// borrowers are unknown: all of the batch counts as borrowed, and a `tracing` event gives the
    /// reason.
    ///
    /// # Panics
    ///
    /// When a tag is 0, which marks frames that are not published, or when there is no such frame.
    /// Every frame is published as before then, and none is handed out.
    pub fn retract(&self, batch: &[(Pfn, u64)], out: &mut Retracted) {
        out.frames.clear();
        out.borrowed.clear();
        for &(pfn, tag) in batch {
            // Otherwise a frame that is owned already would get a second token.
            assert!(is_tag(tag), "{tag} cannot be a tag");
            let frames = self.tags.len();
            assert!(pfn.index() < frames, "{pfn} of {frames} frames");
        }
        out.frames.reserve(batch.len());
        out.borrowed.reserve(batch.len());
        let mut taken = Taken::from(self, batch, &mut out.taken);
        let passed = self.barrier.heavy();
        if let Err(error) = &passed {
            tracing::error!(%error, "no frame can be retracted");
        }
        self.seats.collect_announced(&mut out.announced);
        while let Some((pfn, tag)) = taken.first() {
            let is_announced = out.announced.contains(&pfn);
            let is_borrowed = passed.is_err() || is_announced || self.is_pinned(pfn);
            // No unwinding from here to the end of the round: the frame is in one place.
            taken.forget_first();
            if is_borrowed {
                self.put_back(pfn, tag);
                out.borrowed.push(pfn);
            } else {
                let origin = Origin::new(self.id, order_of(tag));
                out.frames.push(Frame { pfn, origin });
            }
        }
    }

    /// Publishes a frame again under the tag that was taken from it.
    pub(super) fn put_back(&self, pfn: Pfn, tag: u64) {
        // Release. Pairs with: the acquire load of `has_tag`, so that a borrower sees the bytes
        // that the owner wrote, which the thread that took the tag has acquired.
        self.tags[pfn.index()].store(tag, Ordering::Release);
    }

    /// Returns whether a frame is pinned; it stays so if its tag was cleared before.
    #[must_use]
    pub fn is_pinned(&self, pfn: Pfn) -> bool {
        // Acquire. Pairs with: the release decrement of `unpin`.
        self.pins[pfn.index()].load(Ordering::Acquire) > 0
    }

    /// Counts a borrow in the frame itself, if it is published under `tag`.
    ///
    /// # Panics
    ///
    /// When it is pinned [`PINS_MAX`] times: pins were leaked, and a count that wraps to zero would
    /// hand out a frame that is being read.
    pub(super) fn pin(&self, pfn: Pfn, tag: u64) -> bool {
        // Relaxed: the light barrier orders it before the check of the tag.
        let before = self.pins[pfn.index()].fetch_add(1, Ordering::Relaxed);
        if before >= PINS_MAX {
            self.unpin(pfn);
            panic!("{pfn} is pinned {before} times: pins were leaked");
        }
        self.barrier.light();
        if self.has_tag(pfn, tag) {
            return true;
        }
        self.unpin(pfn);
        false
    }

    pub(super) fn unpin(&self, pfn: Pfn) {
        // Release. Pairs with: the load of `is_pinned`, so that the bytes are read before they
        // can be written again.
        let before = self.pins[pfn.index()].fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "{pfn} unpinned more often than pinned");
    }

    /// Returns whether a frame is published under `tag` at this instant.
    #[inline(always)]
    pub(super) fn has_tag(&self, pfn: Pfn, tag: u64) -> bool {
        // Acquire. Pairs with: the release store of `publish`. The mark is refused: a frame that is
        // free or owned is published under nothing.
        let word = self.tags.get(pfn.index()).filter(|_| is_tag(tag));
        word.is_some_and(|word| word.load(Ordering::Acquire) == tag)
    }

    /// Returns the bytes of a frame, if it is published under `tag` at this instant.
    ///
    /// # Safety
    ///
    /// The frame was announced in a taken seat of this memory or pinned, and a light barrier passed
    /// after that, before this is called; it stays so for as long as the bytes are borrowed. A
    /// frame that does not exist need not be.
    #[inline(always)]
    pub(super) unsafe fn bytes_under(&self, pfn: Pfn, tag: u64) -> Option<&[u8]> {
        if !self.has_tag(pfn, tag) {
            return None;
        }
        // SAFETY: the frame has a word for its tag, so it is in the reservation, which has as many
        // frames as there are tags.
        let first = unsafe { self.reservation.frame_ptr_unchecked(pfn) };
        // SAFETY: the frame, of its tag's order, lies in the reservation, which `self` keeps
        // mapped; its tag was seen after it was announced or pinned and a barrier was passed: a
        // thread that takes the tag from now on finds that and does not own the frame (module
        // header), so no thread writes it.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), order_of(tag).size()) })
    }

    /// Returns the bytes of a frame that the caller keeps published under `tag`.
    ///
    /// # Safety
    ///
    /// For as long as the bytes are borrowed, the frame is published under `tag`: announced in a
    /// seat or pinned, and its tag seen afterwards.
    #[inline]
    pub(super) unsafe fn published_bytes(&self, pfn: Pfn, tag: u64) -> &[u8] {
        let first = self.reservation.frame_ptr(pfn);
        // SAFETY: the frame, of its tag's order, lies in the reservation, which `self` keeps
        // mapped; the caller keeps it published, and no thread writes a published frame.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), order_of(tag).size()) }
    }

    /// Returns the bytes of an owned frame: one page, or more of a large one.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another memory.
    #[must_use]
    #[inline]
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        self.check(frame);
        let first = self.reservation.frame_ptr(frame.pfn);
        // SAFETY: the frame lies in the reservation, which `self` keeps mapped; its only token is
        // borrowed for as long as the bytes are, so no thread can write them.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), frame.order().size()) }
    }

    /// Returns the bytes of an owned frame for writing.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another memory.
    #[must_use]
    #[inline]
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.check(frame);
        let first = self.reservation.frame_ptr(frame.pfn);
        // Release. Pairs with: the fence of an optimistic read, of a page that was latched in this
        // frame before (`Latch::is_unchanged`): it sees a write only if it sees that the page left.
        fence(Ordering::Release);
        // SAFETY: the frame lies in the reservation, which `self` keeps mapped; its only token is
        // borrowed exclusively for as long as the bytes are.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), frame.order().size()) }
    }

    /// Returns an owned frame's memory to the system; the frame reads as zeros afterwards.
    ///
    /// # Cost
    ///
    /// One system call.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another memory.
    pub fn decommit(&self, frame: &mut Frame) {
        self.check(frame);
        // SAFETY: the frame's only token is borrowed exclusively.
        _ = unsafe { self.reservation.release(frame.pfn, frame.order().pages()) };
    }

    #[inline]
    pub(super) fn check(&self, frame: &Frame) {
        let memory = frame.origin.memory();
        assert_eq!(memory, self.id, "{} is of another memory", frame.pfn);
    }

    /// Takes a seat, from which one reader at a time borrows. `None` when all are taken (4,096 of
    /// them).
    #[must_use]
    pub fn seat(&self) -> Option<Seat> {
        self.seats.take()
    }

    /// Returns the number of free frames at this moment; exact when quiescent.
    ///
    /// # Cost
    ///
    /// One load per 64 frames.
    #[must_use]
    pub fn count_free(&self) -> Pages {
        self.free.count()
    }

    /// Ends a token: its right passes to the caller.
    pub(super) fn redeem(&self, frame: Frame) -> Pfn {
        self.check(&frame);
        // Relaxed: only the token's holder may change the word now.
        debug_assert_eq!(
            self.tags[frame.pfn.index()].load(Ordering::Relaxed),
            UNPUBLISHED
        );
        let pfn = frame.pfn;
        std::mem::forget(frame);
        pfn
    }
}

/// Frames whose tags were cleared, in order, each with its tag: unowned until it is known whether
/// they are borrowed. Those that are left on drop are published again as they were.
pub(super) struct Taken<'a> {
    memory: &'a FrameMemory,
    frames: &'a mut Vec<(Pfn, u64)>,
    /// Number of forgotten frames at the front.
    gone: usize,
}

impl<'a> Taken<'a> {
    /// Clears the tags of a batch that match.
    pub(super) fn from(
        memory: &'a FrameMemory,
        batch: &[(Pfn, u64)],
        frames: &'a mut Vec<(Pfn, u64)>,
    ) -> Self {
        frames.clear();
        frames.reserve(batch.len());
        let taken = Self {
            memory,
            frames,
            gone: 0,
        };
        for &(pfn, tag) in batch {
            let word = &memory.tags[pfn.index()];
            // Acquire. Pairs with: the release store of `publish`, for `put_back`. The heavy
            // barrier orders it before the scan of slots and pins. Failure learns nothing.
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            let exchanged = word.compare_exchange(tag, UNPUBLISHED, acquire, relaxed);
            if exchanged.is_ok() {
                taken.frames.push((pfn, tag));
            }
        }
        taken
    }

    pub(super) fn first(&self) -> Option<(Pfn, u64)> {
        self.frames.get(self.gone).copied()
    }

    /// Passes the first frame to the caller.
    pub(super) fn forget_first(&mut self) {
        self.gone += 1;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for (pfn, tag) in self.frames.drain(..).skip(self.gone) {
            self.memory.put_back(pfn, tag);
        }
    }
}

/// Returns whether a frame may be published under `tag`.
#[inline]
const fn is_tag(tag: u64) -> bool {
    tag != UNPUBLISHED
}

impl fmt::Debug for FrameMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameMemory")
            .field("pages", &self.pages())
            .finish_non_exhaustive()
    }
}

impl Frame {
    /// Returns the frame's number.
    #[must_use]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) const fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Returns the frame's order: 0 unless it is a large one.
    #[must_use]
    #[inline(always)]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn order(&self) -> Order {
        self.origin.order()
    }
}

impl Frame {
    pub(super) const fn memory(&self) -> MemoryId {
        self.origin.memory()
    }

    /// Creates the token of a frame.
    ///
    /// # Safety
    ///
    /// The frame of `memory` is owned, and there is no other token of it.
    pub(super) const unsafe fn owned(pfn: Pfn, memory: MemoryId) -> Self {
        let origin = Origin::of_single(memory);
        Self { pfn, origin }
    }

    /// Creates the token of a large frame.
    ///
    /// # Safety
    ///
    /// As [`owned`](Self::owned), for each of the 2^order frames.
    pub(super) unsafe fn owned_of_order(pfn: Pfn, memory: MemoryId, order: Order) -> Self {
        let origin = Origin::new(memory, order);
        Self { pfn, origin }
    }
}

/// Out of line, by value, so that `redeem` keeps the token in registers.
#[cold]
fn is_foreign(pfn: Pfn) -> ! {
    panic!("{pfn} is of another memory, or a large frame");
}

impl Token for Frame {
    type Home = MemoryId;

    #[inline]
    fn into_raw(self, home: MemoryId) -> u32 {
        let (pfn, origin) = (self.pfn, self.origin);
        std::mem::forget(self);
        if origin != Origin::of_single(home) {
            is_foreign(pfn);
        }
        pfn.0
    }

    /// # Safety
    ///
    /// As [`Token::from_raw`].
    #[inline]
    unsafe fn from_raw(raw: u32, home: MemoryId) -> Self {
        // SAFETY: the caller says that the number is a frame's whose token became that number: it
        // is owned, and this is its token again.
        unsafe { Self::owned(Pfn(raw), home) }
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.order() {
            Order::ZERO => write!(f, "Frame({})", self.pfn),
            order => write!(f, "Frame({}, order {})", self.pfn, order.get()),
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // Nothing unsound happens: the frame stays owned without an owner. It is a leak all the
        // same, and conservation checks would find it far from here.
        debug_assert!(
            std::thread::panicking(),
            "{} dropped: surrender or publish it",
            self.pfn
        );
    }
}
