//! Allocation and free: frames and blocks, one by one and in bulk.

use super::pcp::At;
use super::{AllocError, AllocFlags, FramePool, Pressure, Zeroing};
use crate::memmap::{Block, Frame};
use crate::percpu::OnCpu;
use crate::units::{CpuId, Order};

impl FramePool {
    /// Allocates a frame, from the list of the calling thread's CPU if that has one.
    ///
    /// # Cost
    ///
    /// A pop from the CPU's list. When it is empty, one visit to the back end brings many.
    ///
    /// # Errors
    ///
    /// When the back end has none to give; other CPUs' lists may still hold some
    /// ([`drain_all`](Self::drain_all)).
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::frame::FramePool;
    /// use highwater::{Bytes, Topology};
    ///
    /// let pool = FramePool::reserve(Bytes::mib(4), &Topology::detect())?;
    /// let mut frames = Vec::new();
    /// while let Ok(frame) = pool.alloc() {
    ///     frames.push(frame);
    /// }
    /// assert!(frames.len() > 900); // of 1,024; a small reserve stays
    /// frames.into_iter().for_each(|frame| pool.free(frame));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn alloc(&self) -> Result<Frame, AllocError> {
        self.alloc_with(AllocFlags::new())
    }

    /// Allocates a frame of zeros, as [`alloc`](Self::alloc).
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::frame::FramePool;
    /// use highwater::{Bytes, Topology};
    ///
    /// let pool = FramePool::reserve(Bytes::mib(4), &Topology::detect())?;
    /// let frame = pool.alloc_zeroed()?;
    /// assert_eq!(pool.bytes(&frame), &[0; 4096]);
    /// pool.free(frame);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn alloc_zeroed(&self) -> Result<Frame, AllocError> {
        self.alloc_with(AllocFlags::new().zero())
    }

    /// Allocates a frame as the flags say.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    #[inline]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn alloc_with(&self, flags: AllocFlags) -> Result<Frame, AllocError> {
        // One call out of line, so that the rest needs no stack frame.
        if !self.zeroes(flags)
            && let Some(frame) = self.lists.try_pop()
        {
            return Ok(frame);
        }
        self.alloc_otherwise(flags)
    }

    /// Continues when the fast path has no frame, or the frame is to be zeroed.
    #[cold]
    #[inline(never)]
    fn alloc_otherwise(&self, flags: AllocFlags) -> Result<Frame, AllocError> {
        match self.lists.pop() {
            Some(frame) => Ok(self.handed_out(frame, flags)),
            None => self.alloc_slow(At::Here, flags),
        }
    }

    #[inline]
    fn zeroes(&self, flags: AllocFlags) -> bool {
        flags.zeroed() || self.config.zeroing == Zeroing::OnAlloc
    }

    /// Like [`alloc`](Self::alloc), and returns the pressure it observed.
    ///
    /// # Errors
    ///
    /// As [`alloc`](Self::alloc).
    #[inline]
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn alloc_noting(&self, flags: AllocFlags) -> Result<(Frame, Pressure), AllocError> {
        // As in `alloc`.
        if !self.zeroes(flags)
            && let Some(frame) = self.lists.try_pop()
        {
            return Ok((frame, Pressure::None));
        }
        self.alloc_noting_otherwise(flags)
    }

    /// As [`alloc_otherwise`](Self::alloc_otherwise).
    #[cold]
    #[inline(never)]
    fn alloc_noting_otherwise(&self, flags: AllocFlags) -> Result<(Frame, Pressure), AllocError> {
        match self.lists.pop() {
            Some(frame) => Ok((self.handed_out(frame, flags), Pressure::None)),
            None => {
                let frame = self.alloc_slow(At::Here, flags)?;
                Ok((frame, self.stock.pressure()))
            }
        }
    }

    #[cold]
    fn alloc_slow(&self, at: At, flags: AllocFlags) -> Result<Frame, AllocError> {
        let frame = self.lists.alloc_slow(&self.stock, at, flags)?;
        Ok(self.handed_out(frame, flags))
    }

    #[inline]
    fn handed_out(&self, mut frame: Frame, flags: AllocFlags) -> Frame {
        if self.zeroes(flags) {
            self.zero(&mut frame);
        }
        frame
    }

    #[cold]
    fn zero(&self, frame: &mut Frame) {
        self.stock.memory.bytes_mut(frame).fill(0);
    }

    /// Allocates up to `count` frames and appends them to `out`; returns how many. If fewer than
    /// `count`, this CPU's list and the back end had no more; other CPUs' lists may still hold some
    /// ([`drain_all`](Self::drain_all)).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn alloc_bulk(
        &self,
        count: usize,
        flags: AllocFlags,
        out: &mut Vec<Frame>,
    ) -> usize {
        self.alloc_many(At::Here, count, flags, out)
    }

    fn alloc_many(&self, at: At, count: usize, flags: AllocFlags, out: &mut Vec<Frame>) -> usize {
        let before = out.len();
        // No more than this can be had.
        let managed = usize::try_from(self.managed().0).unwrap_or(usize::MAX);
        let count = count.min(managed);
        out.reserve(count);
        let end = before + count;
        while out.len() < end {
            let cached = match at {
                At::Here => self.lists.pop(),
                At::On(cpu) => self.lists.pop_on(cpu),
            };
            let missing = end - out.len();
            match cached {
                Some(frame) => out.push(frame),
                None => {
                    let brought = self
                        .lists
                        .alloc_many_slow(&self.stock, at, missing, flags, out);
                    if brought.is_err() {
                        break;
                    }
                }
            }
        }
        if self.zeroes(flags) {
            out[before..].iter_mut().for_each(|frame| self.zero(frame));
        }
        out.len() - before
    }

    /// Allocates 2^order contiguous frames.
    ///
    /// # Cost
    ///
    /// For orders 1 to 3 and huge blocks, the lock of the CPU's list; when it has none, and for
    /// other orders, one visit to the back end. Writes the words of all frames.
    ///
    /// # Errors
    ///
    /// When the back end has no such block; frames in lists, other CPUs' or of other orders, may
    /// keep one from merging ([`drain_all`](Self::drain_all)).
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn alloc_block(&self, order: Order, flags: AllocFlags) -> Result<Block, AllocError> {
        self.alloc_block_at(At::Here, order, flags)
    }

    /// Allocates a frame of an order for a page, and returns the pressure it observed.
    ///
    /// # Cost
    ///
    /// As [`alloc`](Self::alloc) for a single frame, as [`alloc_block`](Self::alloc_block) for a
    /// large one.
    ///
    /// # Errors
    ///
    /// As those.
    #[inline]
    pub(crate) fn alloc_for_page(
        &self,
        order: Order,
        flags: AllocFlags,
    ) -> Result<(Frame, Pressure), AllocError> {
        match order {
            Order::ZERO => self.alloc_noting(flags),
            _ => {
                let block = self.alloc_block(order, flags)?;
                Ok((block.into_frame(), self.stock.pressure()))
            }
        }
    }

    /// Frees a single or a large frame.
    ///
    /// # Panics
    ///
    /// When it belongs to another memory.
    pub(crate) fn free_of_page(&self, frame: Frame) {
        match frame.order() {
            Order::ZERO => self.free(frame),
            _ => self.free_block(frame.into_block()),
        }
    }

    fn alloc_block_at(&self, at: At, order: Order, flags: AllocFlags) -> Result<Block, AllocError> {
        let mut block = self.lists.alloc_block(&self.stock, at, order, flags)?;
        if self.zeroes(flags) {
            self.stock.memory.block_bytes_mut(&mut block).fill(0);
        }
        Ok(block)
    }

    /// Frees a frame, to the list of the calling thread's CPU.
    ///
    /// # Cost
    ///
    /// A push to the CPU's list. When that is full, one visit to the back end for many.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use highwater::frame::FramePool;
    /// use highwater::{Bytes, Topology};
    ///
    /// let pool = FramePool::reserve(Bytes::mib(4), &Topology::detect())?;
    /// let frame = pool.alloc()?;
    /// pool.free(frame); // to this CPU's list, from which the next allocation takes it
    /// let again = pool.alloc()?;
    /// pool.free(again);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn free(&self, frame: Frame) {
        // As in `alloc`.
        if self.config.zeroing == Zeroing::OnFree {
            self.free_otherwise(frame);
        } else if let Err(frame) = self.lists.try_push(frame) {
            self.free_otherwise(frame);
        }
    }

    /// Continues when the fast path refuses the frame, or the frame is to be zeroed.
    #[cold]
    #[inline(never)]
    fn free_otherwise(&self, frame: Frame) {
        let frame = self.handed_back(frame);
        if let Err(frame) = self.lists.push(frame) {
            self.lists.free_slow(&self.stock, At::Here, frame);
        }
    }

    /// Like [`free`](Self::free), but never blocks: if a lock is held, the free is deferred, and a
    /// later free that may wait completes it.
    ///
    /// # Panics
    ///
    /// When the frame belongs to another memory.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn free_non_blocking(&self, frame: Frame) {
        let frame = self.handed_back(frame);
        if let Err(frame) = self.lists.push(frame) {
            self.lists.free_unlooked(&self.stock, At::Here, frame);
        }
    }

    #[inline]
    fn handed_back(&self, mut frame: Frame) -> Frame {
        if self.config.zeroing == Zeroing::OnFree {
            self.zero(&mut frame);
        }
        frame
    }

    /// Frees many frames; `frames` is empty afterwards.
    ///
    /// # Panics
    ///
    /// When a frame belongs to another memory.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn free_bulk(&self, frames: &mut Vec<Frame>) {
        frames.drain(..).for_each(|frame| self.free(frame));
    }

    /// Frees a block.
    ///
    /// # Panics
    ///
    /// When the block belongs to another memory.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn free_block(&self, block: Block) {
        self.free_block_at(At::Here, block);
    }

    fn free_block_at(&self, at: At, mut block: Block) {
        // Also checks that it belongs to this memory.
        let bytes = self.stock.memory.block_bytes_mut(&mut block);
        if self.config.zeroing == Zeroing::OnFree {
            bytes.fill(0);
        }
        self.lists.free_block(&self.stock, at, block);
    }

    /// Returns the pool as the given CPU uses it.
    ///
    /// # Cost
    ///
    /// Where CPUs are those of the system
    /// ([`Regime::Restartable`](crate::percpu::Regime::Restartable)), each operation takes a lock
    /// and makes a system call: for tests, and for drains.
    #[cfg_attr(feature = "lab", visibility::make(pub))]
    pub(crate) fn at(&self, cpu: CpuId) -> OnCpu<&Self> {
        OnCpu { of: self, cpu }
    }

    pub(super) fn list_of(&self, cpu: CpuId) -> CpuId {
        // A CPU unknown when the pool was created shares a list; only locality suffers.
        CpuId::from_index(cpu.index() % self.config.nr_cpus)
    }
}

/// The operations of [`FramePool`], from and to the list of one CPU.
impl OnCpu<&FramePool> {
    fn list(&self) -> CpuId {
        self.of.list_of(self.cpu)
    }

    /// As [`FramePool::alloc_with`].
    ///
    /// # Errors
    ///
    /// As [`FramePool::alloc`].
    pub fn alloc_with(&self, flags: AllocFlags) -> Result<Frame, AllocError> {
        let (pool, cpu) = (self.of, self.list());
        match pool.lists.pop_on(cpu) {
            Some(frame) => Ok(pool.handed_out(frame, flags)),
            None => pool.alloc_slow(At::On(cpu), flags),
        }
    }

    /// As [`FramePool::alloc_noting`].
    ///
    /// # Errors
    ///
    /// As [`FramePool::alloc`].
    pub fn alloc_noting(&self, flags: AllocFlags) -> Result<(Frame, Pressure), AllocError> {
        let (pool, cpu) = (self.of, self.list());
        match pool.lists.pop_on(cpu) {
            Some(frame) => Ok((pool.handed_out(frame, flags), Pressure::None)),
            None => {
                let frame = pool.alloc_slow(At::On(cpu), flags)?;
                Ok((frame, pool.stock.pressure()))
            }
        }
    }

    /// As [`FramePool::alloc_bulk`].
    pub fn alloc_bulk(&self, count: usize, flags: AllocFlags, out: &mut Vec<Frame>) -> usize {
        self.of.alloc_many(At::On(self.list()), count, flags, out)
    }

    /// As [`FramePool::alloc_block`].
    ///
    /// # Errors
    ///
    /// As [`FramePool::alloc_block`].
    pub fn alloc_block(&self, order: Order, flags: AllocFlags) -> Result<Block, AllocError> {
        self.of.alloc_block_at(At::On(self.list()), order, flags)
    }

    /// As [`FramePool::free`].
    ///
    /// # Panics
    ///
    /// When the frame belongs to another memory.
    pub fn free(&self, frame: Frame) {
        let (pool, cpu) = (self.of, self.list());
        let frame = pool.handed_back(frame);
        if let Err(frame) = pool.lists.push_on(cpu, frame) {
            pool.lists.free_slow(&pool.stock, At::On(cpu), frame);
        }
    }

    /// As [`FramePool::free_bulk`].
    ///
    /// # Panics
    ///
    /// When a frame belongs to another memory.
    pub fn free_bulk(&self, frames: &mut Vec<Frame>) {
        frames.drain(..).for_each(|frame| self.free(frame));
    }

    /// As [`FramePool::free_block`].
    ///
    /// # Panics
    ///
    /// When the block belongs to another memory.
    pub fn free_block(&self, block: Block) {
        self.of.free_block_at(At::On(self.list()), block);
    }
}
