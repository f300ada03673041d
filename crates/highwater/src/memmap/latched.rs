//! Frames behind latches: bytes that change while others look at them.
//!
//! A frame that is *latched* has its right in its latch, under a key as a published frame under its
//! tag: the exclusive holder owns the frame, shared holders read it. A [`Glimpse`] reads without a
//! hold, and learns afterwards whether the bytes were those of one moment.
//!
//! A glimpse races with writers. It never faults, because frames stay mapped as long as the memory
//! exists, and it reads by instructions that the compiler cannot see into (module `racy`): for the
//! abstract machine they return arbitrary bytes and touch no memory, so that the plain writes of a
//! holder race with nothing. The processor reads the real bytes, and its memory model with the
//! fences of the latch says that an unchanged version means unchanged bytes.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::task::{Context, Poll};

use super::frames::{Frame, FrameMemory};
use super::racy;
use super::token::order_of;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{
    Arc, HeldLatch, Latch, LatchMode, LatchWait, LatchedData, LockClass, Rank, Seen, Untaken,
};
use crate::units::{Order, Pfn};

/// Class of every frame's latch.
pub static LATCH_LOCK: LockClass = LockClass::new("latch", Rank::Latch);

/// A reference to memory, borrowed by a thread or owned by a task.
///
/// # Safety
///
/// It is always the same memory, and exists as long as the reference.
pub unsafe trait MemoryRef: Deref<Target = FrameMemory> {}

// SAFETY: it is what a reference is.
unsafe impl MemoryRef for &FrameMemory {}

// SAFETY: a shared `Arc` names one value.
unsafe impl MemoryRef for Arc<FrameMemory> {}

/// A shared hold on a latched frame.
pub struct FrameRead<M: MemoryRef> {
    memory: M,
    pfn: Pfn,
    order: Order,
    held: HeldLatch,
}

/// An exclusive hold on a latched frame.
pub struct FrameWrite<M: MemoryRef> {
    memory: M,
    /// The frame's token, which the latch has at all other times.
    frame: ManuallyDrop<Frame>,
    data: LatchedData,
    held: HeldLatch,
}

/// An optimistic read of a latched frame.
#[derive(Clone, Copy)]
pub struct Glimpse<'m> {
    memory: &'m FrameMemory,
    pfn: Pfn,
    order: Order,
    seen: Seen,
}

/// A task that waits for the latch of a frame: its place in the queue, until dropped. The page
/// stays in the frame meanwhile.
#[derive(Debug)]
pub struct LatchTurn {
    memory: Arc<FrameMemory>,
    pfn: Pfn,
    key: u64,
    mode: LatchMode,
    /// Its place, once it waits.
    ticket: Option<u64>,
}

impl FrameMemory {
    /// Puts an owned frame behind its latch, under `key`.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another memory, or `key` is of another order.
    pub fn put_latched(&self, frame: Frame, key: u64) -> Pfn {
        assert_eq!(order_of(key), frame.order(), "{key} is no key of {frame:?}");
        let pfn = self.redeem(frame);
        let (latch, word) = self.slot(pfn);
        // Release. Pairs with: a thread that waits and finds another key: it knows what was done
        // with the page that it waited for, as that it is in its file.
        word.store(key, Ordering::Release);
        latch.put();
        pfn
    }

    fn slot(&self, pfn: Pfn) -> &(Latch, AtomicU64) {
        &self.latches[pfn.index()]
    }

    /// Returns whether a frame is latched at this moment.
    #[must_use]
    pub fn is_latched(&self, pfn: Pfn) -> bool {
        self.slot(pfn).0.is_present()
    }

    /// Takes a frame's latch shared, if it is latched under `key` and that does not wait.
    ///
    /// # Errors
    ///
    /// The reason why it was not taken.
    #[inline]
    pub fn try_share(&self, pfn: Pfn, key: u64) -> Result<FrameRead<&Self>, Untaken> {
        let Some((latch, word)) = self.latches.get(pfn.index()) else {
            return Err(Untaken::Absent);
        };
        latch.try_shared()?;
        let read = FrameRead {
            memory: self,
            pfn,
            order: order_of(key),
            held: HeldLatch::note(latch),
        };
        // Relaxed: the latch orders it.
        match word.load(Ordering::Relaxed) == key {
            true => Ok(read),
            false => Err(Untaken::Absent),
        }
    }

    /// Takes a frame's latch exclusively, if it is latched under `key` and that does not wait.
    ///
    /// # Errors
    ///
    /// The reason why it was not taken.
    pub fn try_exclude(&self, pfn: Pfn, key: u64) -> Result<FrameWrite<&Self>, Untaken> {
        let (latch, word) = self.slot(pfn);
        latch.try_exclusive()?;
        let write = self.excluded(pfn);
        // Relaxed: the latch orders it.
        match word.load(Ordering::Relaxed) == key {
            true => Ok(write),
            false => Err(Untaken::Absent),
        }
    }

    /// Takes the latch of a frame that is about to be taken from it: fails if it is held, waited
    /// for or kept.
    pub fn try_exclude_idle(&self, pfn: Pfn) -> Option<FrameWrite<&Self>> {
        let (latch, _) = self.slot(pfn);
        latch.try_exclusive_to_retire().ok()?;
        Some(self.excluded(pfn))
    }

    /// Wraps an exclusive hold that this thread has just got.
    fn excluded(&self, pfn: Pfn) -> FrameWrite<&Self> {
        FrameWrite::of(self, pfn, HeldLatch::note(&self.slot(pfn).0))
    }

    /// As [`try_share`](Self::try_share), but waits for other holders; the page stays in the frame
    /// meanwhile. `None` if the frame is not latched under `key`.
    #[cold]
    pub fn share_later(&self, pfn: Pfn, key: u64) -> Option<FrameRead<&Self>> {
        let held = self.wait(pfn, key, LatchMode::Shared)?;
        let read = FrameRead {
            memory: self,
            pfn,
            order: order_of(key),
            held,
        };
        Some(read).filter(|_| self.has_key(pfn, key))
    }

    /// As [`try_exclude`](Self::try_exclude), but waits for other holders; the page stays in the
    /// frame meanwhile. `None` if the frame is not latched under `key`.
    #[cold]
    pub fn exclude_later(&self, pfn: Pfn, key: u64) -> Option<FrameWrite<&Self>> {
        drop(self.wait(pfn, key, LatchMode::Exclusive)?);
        Some(self.excluded(pfn)).filter(|_| self.has_key(pfn, key))
    }

    /// Returns whether this thread holds the latch of a frame that is latched under `key`: if it
    /// waited, it would wait for itself. False in release builds, which do not know it.
    #[must_use]
    pub fn is_held_here(&self, pfn: Pfn, key: u64) -> bool {
        HeldLatch::is_noted(&self.slot(pfn).0) && self.has_key(pfn, key)
    }

    /// Returns whether a latched frame, which this thread holds, is latched under `key`.
    fn has_key(&self, pfn: Pfn, key: u64) -> bool {
        // Relaxed: the latch orders it.
        self.slot(pfn).1.load(Ordering::Relaxed) == key
    }

    /// Waits for a latch, which this thread holds then; `None` if the frame was not latched under
    /// `key`.
    fn wait(&self, pfn: Pfn, key: u64, mode: LatchMode) -> Option<HeldLatch> {
        let (latch, word) = self.slot(pfn);
        // Acquire. Pairs with: `put_latched`, of another page.
        let is_wanted = || word.load(Ordering::Acquire) == key;
        let queues = (latch, &self.latch_queues);
        LatchWait::new(queues, pfn.index(), mode, is_wanted)
            .block(&LATCH_LOCK)
            .then(|| HeldLatch::note(latch))
    }

    /// Keeps a latched frame latched although it is not held, until [`unkeep`](Self::unkeep).
    pub fn keep(&self, pfn: Pfn) {
        self.slot(pfn).0.keep();
    }

    /// Undoes [`keep`](Self::keep).
    pub fn unkeep(&self, pfn: Pfn) {
        self.slot(pfn).0.unkeep();
    }

    /// Begins an optimistic read, if a frame is latched under `key` and not held exclusively.
    #[inline(always)]
    pub fn glimpse(&self, pfn: Pfn, key: u64) -> Option<Glimpse<'_>> {
        let (latch, word) = self.latches.get(pfn.index())?;
        let seen = latch.see()?;
        // Relaxed: as good as the bytes, until it is known that nothing has changed.
        (word.load(Ordering::Relaxed) == key).then_some(Glimpse {
            memory: self,
            pfn,
            order: order_of(key),
            seen,
        })
    }

    #[inline(always)]
    fn latched_ptr(&self, pfn: Pfn) -> NonNull<u8> {
        debug_assert!(pfn.index() < self.latches.len());
        // SAFETY: the frame has a latch, so it is in the reservation, which has as many frames.
        unsafe { self.reservation.frame_ptr_unchecked(pfn) }
    }
}

impl<M: MemoryRef> FrameRead<M> {
    /// Returns the bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let first = self.memory.latched_ptr(self.pfn);
        // SAFETY: the frame, of its key's order, lies in the reservation, which `memory` keeps
        // mapped; while it is held shared no thread has its token, nor gets it.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), self.order.size()) }
    }

    /// Returns the frame's number.
    #[must_use]
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Returns the key of the page.
    #[must_use]
    pub fn key(&self) -> u64 {
        // Relaxed: the latch orders it.
        self.memory.slot(self.pfn).1.load(Ordering::Relaxed)
    }

    /// Turns it into an exclusive hold, if there is no other holder.
    ///
    /// # Errors
    ///
    /// The hold as it was, if there is one.
    pub fn try_upgrade(self) -> Result<FrameWrite<M>, Self> {
        if !self.memory.slot(self.pfn).0.try_upgrade() {
            return Err(self);
        }
        let (memory, pfn, held) = self.into_parts();
        Ok(FrameWrite::of(memory, pfn, held))
    }

    /// Takes the hold apart. The latch stays held.
    fn into_parts(self) -> (M, Pfn, HeldLatch) {
        let read = ManuallyDrop::new(self);
        // SAFETY: the hold is not dropped, so that this field is moved out once.
        let memory = unsafe { ptr::read(&raw const read.memory) };
        // SAFETY: as above.
        let held = unsafe { ptr::read(&raw const read.held) };
        (memory, read.pfn, held)
    }
}

impl FrameRead<&FrameMemory> {
    /// Turns it into a hold by a task, which may go to other threads.
    ///
    /// # Panics
    ///
    /// When it is of another memory.
    #[must_use]
    pub fn into_owned(self, memory: Arc<FrameMemory>) -> FrameRead<Arc<FrameMemory>> {
        assert!(
            ptr::eq(self.memory, &raw const *memory),
            "the latch is of another memory"
        );
        let order = self.order;
        let (_, pfn, _noted) = self.into_parts();
        let held = HeldLatch::by_task();
        FrameRead {
            memory,
            pfn,
            order,
            held,
        }
    }
}

impl<M: MemoryRef> Drop for FrameRead<M> {
    #[inline]
    fn drop(&mut self) {
        let (latch, _) = self.memory.slot(self.pfn);
        latch.release_shared(&self.memory.latch_queues, self.pfn.index());
    }
}

impl<M: MemoryRef> FrameWrite<M> {
    /// Wraps an exclusive hold that the caller has just got.
    fn of(memory: M, pfn: Pfn, held: HeldLatch) -> Self {
        // Relaxed: the latch orders it.
        let order = order_of(memory.slot(pfn).1.load(Ordering::Relaxed));
        // SAFETY: the frame is latched under a key of this order, so that no token of it exists,
        // and the caller is the only holder of the latch. `FrameWrite` forgets the token, or ends
        // the latch.
        let frame = unsafe { Frame::owned_of_order(pfn, memory.id, order) };
        Self {
            memory,
            frame: ManuallyDrop::new(frame),
            data: LatchedData::Unchanged,
            held,
        }
    }

    /// Returns the frame, to read.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// Returns the bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes(&self.frame)
    }

    /// Returns the bytes, to write: the version changes with the release.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.data = LatchedData::Changed;
        self.memory.bytes_mut(&mut self.frame)
    }

    /// Returns the key of the page.
    #[must_use]
    pub fn key(&self) -> u64 {
        // Relaxed: the latch orders it.
        self.memory.slot(self.frame.pfn()).1.load(Ordering::Relaxed)
    }

    /// Takes the frame out of its latch.
    ///
    /// # Errors
    ///
    /// The hold as it was, if a thread waits for it or the frame is kept.
    pub fn take(self) -> Result<Frame, Self> {
        let pfn = self.frame.pfn();
        if !self.memory.slot(pfn).0.retire() {
            return Err(self);
        }
        let (_, frame, _) = self.into_parts();
        Ok(frame)
    }

    /// Turns it into a shared hold.
    pub fn downgrade(self) -> FrameRead<M> {
        let (pfn, order) = (self.frame.pfn(), self.frame.order());
        let (latch, _) = self.memory.slot(pfn);
        latch.downgrade(self.data, &self.memory.latch_queues, pfn.index());
        let (memory, frame, held) = self.into_parts();
        // The latch has its right again.
        std::mem::forget(frame);
        FrameRead {
            memory,
            pfn,
            order,
            held,
        }
    }

    /// Takes the hold apart. The latch stays as it is.
    fn into_parts(self) -> (M, Frame, HeldLatch) {
        let mut write = ManuallyDrop::new(self);
        // SAFETY: the hold is not dropped, so that this field is moved out once.
        let frame = unsafe { ManuallyDrop::take(&mut write.frame) };
        // SAFETY: as above.
        let memory = unsafe { ptr::read(&raw const write.memory) };
        // SAFETY: as above.
        let held = unsafe { ptr::read(&raw const write.held) };
        (memory, frame, held)
    }
}

impl FrameWrite<&FrameMemory> {
    /// Turns it into a hold by a task, which may go to other threads.
    ///
    /// # Panics
    ///
    /// When it is of another memory.
    #[must_use]
    pub fn into_owned(self, memory: Arc<FrameMemory>) -> FrameWrite<Arc<FrameMemory>> {
        assert!(
            ptr::eq(self.memory, &raw const *memory),
            "the latch is of another memory"
        );
        let data = self.data;
        let (_, frame, _noted) = self.into_parts();
        FrameWrite {
            memory,
            frame: ManuallyDrop::new(frame),
            data,
            held: HeldLatch::by_task(),
        }
    }
}

impl<M: MemoryRef> Drop for FrameWrite<M> {
    #[inline]
    fn drop(&mut self) {
        let pfn = self.frame.pfn();
        let (latch, _) = self.memory.slot(pfn);
        latch.release_exclusive(self.data, &self.memory.latch_queues, pfn.index());
    }
}

impl LatchTurn {
    /// Begins to wait for the latch of a frame that is latched under `key`.
    pub fn new(memory: Arc<FrameMemory>, pfn: Pfn, key: u64, mode: LatchMode) -> Self {
        Self {
            memory,
            pfn,
            key,
            mode,
            ticket: None,
        }
    }

    /// Returns the frame's number.
    #[must_use]
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Takes the latch shared, or has the task woken when it may be free; `None` if the frame is
    /// not latched under the key.
    pub fn poll_share(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<FrameRead<Arc<FrameMemory>>>> {
        debug_assert_eq!(self.mode, LatchMode::Shared);
        if self.ticket.is_none() {
            match self.memory.try_share(self.pfn, self.key) {
                Ok(read) => return Poll::Ready(Some(read.into_owned(Arc::clone(&self.memory)))),
                Err(Untaken::Absent) => return Poll::Ready(None),
                Err(Untaken::Held) => {}
            }
        }
        self.poll_hold(context).map(|is_held| {
            is_held.then(|| FrameRead {
                memory: Arc::clone(&self.memory),
                pfn: self.pfn,
                order: order_of(self.key),
                held: HeldLatch::by_task(),
            })
        })
    }

    /// As [`poll_share`](Self::poll_share), exclusively.
    pub fn poll_exclude(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<FrameWrite<Arc<FrameMemory>>>> {
        debug_assert_eq!(self.mode, LatchMode::Exclusive);
        if self.ticket.is_none() {
            match self.memory.try_exclude(self.pfn, self.key) {
                Ok(write) => return Poll::Ready(Some(write.into_owned(Arc::clone(&self.memory)))),
                Err(Untaken::Absent) => return Poll::Ready(None),
                Err(Untaken::Held) => {}
            }
        }
        self.poll_hold(context).map(|is_held| {
            is_held
                .then(|| FrameWrite::of(Arc::clone(&self.memory), self.pfn, HeldLatch::by_task()))
        })
    }

    fn poll_hold(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        self.wait(|wait| Pin::new(wait).poll(context))
    }

    /// Goes on with the wait for a moment.
    fn wait<R>(&mut self, poll: impl FnOnce(&mut LatchWait<'_, &dyn Fn() -> bool>) -> R) -> R {
        let (latch, word) = self.memory.slot(self.pfn);
        // Acquire. Pairs with: `put_latched`, of another page.
        let is_wanted = || word.load(Ordering::Acquire) == self.key;
        let queues = (latch, &self.memory.latch_queues);
        let is_wanted: &dyn Fn() -> bool = &is_wanted;
        let wait = LatchWait::new(queues, self.pfn.index(), self.mode, is_wanted);
        let mut wait = wait.resumed(self.ticket.take());
        let polled = poll(&mut wait);
        self.ticket = wait.suspend();
        polled
    }
}

impl Drop for LatchTurn {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            // The place is left, and given to the next.
            self.wait(|wait| wait.leave());
        }
    }
}

impl<'m> Glimpse<'m> {
    /// Returns the frame's number.
    #[must_use]
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Copies bytes from `offset` on. They are arbitrary unless nothing has changed afterwards.
    ///
    /// # Panics
    ///
    /// When they are not all within the page.
    #[inline(always)]
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) {
        let len = self.order.size();
        let fits = into.len() <= len && offset <= len - into.len();
        assert!(fits, "{} bytes from {offset} of a page", into.len());
        let page = self.memory.latched_ptr(self.pfn);
        // SAFETY: the offset is within the frame, which was latched under a key of its order. Its
        // frames may be others' by now, but stay mapped.
        let from = unsafe { page.add(offset) };
        // SAFETY: the bytes lie in the frame, which stays mapped as long as the memory exists.
        unsafe { racy::copy(from, into) }
    }

    /// Returns whether the bytes have not changed since it began.
    #[inline(always)]
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.memory.slot(self.pfn).0.is_unchanged(self.seen)
    }

    /// Takes the latch exclusively, if it is free and the bytes have not changed since it began.
    #[must_use]
    pub fn try_exclude(self) -> Option<FrameWrite<&'m FrameMemory>> {
        let (latch, _) = self.memory.slot(self.pfn);
        let is_held = latch.try_exclusive_since(self.seen);
        is_held.then(|| self.memory.excluded(self.pfn))
    }
}

impl<M: MemoryRef> fmt::Debug for FrameRead<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameRead({})", self.pfn)
    }
}

impl<M: MemoryRef> fmt::Debug for FrameWrite<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameWrite({})", self.frame.pfn())
    }
}

impl fmt::Debug for Glimpse<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Glimpse({})", self.pfn)
    }
}
