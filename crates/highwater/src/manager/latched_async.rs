//! Latched reads and writes as futures: a task waits for storage, for the latch and for write-back
//! of dirty pages, and no thread does.
//!
//! A page is first found in a frame, or brought in by a [`TaskFault`], and then its latch is taken.
//! From its arrival until then the page stays in its frame: it is kept for the task, or the task is
//! in the latch's queue.

use std::task::{Context, Poll, ready};

use super::error::ReadError;
use super::fault_polled::TaskFault;
use super::flight::{Arrived, KeptPage};
use super::latched::{Owned, PageRead, PageWrite};
use super::mapping::Mapping;
use super::writeback::DirtyWait;
use crate::cache::{Access, PageTurn};
use crate::sync::LatchMode;
use crate::units::{MapPage, Pfn};

impl Mapping {
    /// As [`read_latched`](Self::read_latched), as a future: many reads can be in flight on one
    /// thread, and one that waits for a latch blocks none. The future is `Send` and needs no
    /// runtime; see [`read_async`](Self::read_async), which is the same for files that are only
    /// read.
    ///
    /// A future that waits for a latch is in the latch's queue until it is ready or dropped, and a
    /// page that has been read in for a future stays in memory. So poll the future when it is
    /// woken, and do not block a thread that has to poll it: calls that wait for latches, such as
    /// [`write`](Self::write), [`discard`](Self::discard), [`File::sync`](crate::File::sync) and
    /// [`File::set_len`](crate::File::set_len), wait for futures that are before them in a queue.
    ///
    /// Dropping the last future or guard of a file closes it, which blocks.
    ///
    /// # Cost
    ///
    /// As [`read_latched`](Self::read_latched) if the page is resident, plus up to eight increments
    /// of reference counts that the tasks share. Otherwise as [`ReadWait`](crate::ReadWait).
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let page = hw.block_on(map.read_latched_async(0))?;
    /// let sum = std::thread::spawn(move || page.iter().map(|&byte| u64::from(byte)).sum::<u64>());
    /// assert_eq!(sum.join().unwrap(), 7 * 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_latched_async<P: Into<MapPage>>(
        &self,
        page: P,
    ) -> impl Future<Output = Result<PageRead<'static, Owned>, ReadError>> + Send + use<P> {
        let mut task = TaskLatch::new(self, page.into(), LatchMode::Shared);
        std::future::poll_fn(move |context| {
            if task.is_new()
                && let Some(read) = task.map.latch_young(task.page)
            {
                return Poll::Ready(Ok(read.into_owned(&task.map)));
            }
            let latched = ready!(task.poll(context, PageTurn::poll_read))?;
            Poll::Ready(Ok(PageRead::owned(latched, &task.map)))
        })
    }

    /// As [`write`](Self::write), as a future: see
    /// [`read_latched_async`](Self::read_latched_async). Above the dirty limit, the task waits for
    /// write-back.
    ///
    /// # Cost
    ///
    /// As [`read_latched_async`](Self::read_latched_async). Without the background threads
    /// ([`Builder::background`](crate::Builder::background)), a poll above the dirty limit writes
    /// pages back itself.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Examples
    ///
    /// ```
    /// # use highwater::Manager;
    /// # let source = tempfile::NamedTempFile::new()?;
    /// # std::fs::write(source.path(), [7; 3 * 4096])?;
    /// # let hw = Manager::builder().build()?;
    /// # let file = hw.open_writable(source.path())?;
    /// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
    /// let transfer = async {
    ///     let mut from = map.write_async(0).await?; // in the order of pages: no deadlock
    ///     let mut to = map.write_async(1).await?;
    ///     from[0] -= 1;
    ///     to[0] += 1;
    ///     Ok::<(), highwater::ReadError>(())
    /// };
    /// hw.block_on(transfer)?;
    /// assert_eq!((map.read_latched(0)?[0], map.read_latched(1)?[0]), (6, 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_async<P: Into<MapPage>>(
        &self,
        page: P,
    ) -> impl Future<Output = Result<PageWrite<'static, Owned>, ReadError>> + Send + use<P> {
        let mut task = TaskLatch::new(self, page.into(), LatchMode::Exclusive);
        std::future::poll_fn(move |context| {
            ready!(task.poll_dirty_pages(context));
            let latched = ready!(task.poll(context, PageTurn::poll_write))?;
            Poll::Ready(Ok(PageWrite::owned(latched, &task.map)))
        })
    }
}

/// A task that latches a page.
struct TaskLatch {
    mode: LatchMode,
    page: MapPage,
    fault: TaskFault,
    /// Whether the page is a fault: it was in no frame, or has left the one where it was seen.
    is_missing: bool,
    /// The page, once the task has brought it in.
    kept: Option<KeptPage>,
    /// The task's place in the queue of the latch, once the page is in a frame.
    turn: Option<PageTurn>,
    /// Whether the task has been throttled as far as it needs to be.
    is_balanced: bool,
    throttled: Option<DirtyWait>,
    // Last, because it may be the file's last handle.
    map: Mapping,
}

impl TaskLatch {
    fn new(map: &Mapping, page: MapPage, mode: LatchMode) -> Self {
        Self {
            mode,
            page,
            fault: TaskFault::default(),
            is_missing: false,
            kept: None,
            turn: None,
            is_balanced: false,
            throttled: None,
            map: map.clone(),
        }
    }

    /// Returns whether it waits for nothing yet.
    fn is_new(&self) -> bool {
        self.turn.is_none() && !self.is_missing
    }

    /// Waits while dirty pages exceed their limit, before the page is asked for.
    fn poll_dirty_pages(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let kind = self.map.area().file().id().kind();
        if !self.is_balanced && !kind.is_swap_backed() {
            let core = self.map.core();
            ready!(core.poll_dirty_pages(&mut self.throttled, context));
        }
        self.is_balanced = true;
        Poll::Ready(())
    }

    /// Latches the page, by `poll_turn`.
    fn poll<L>(
        &mut self,
        context: &mut Context<'_>,
        poll_turn: impl Fn(&mut PageTurn, &mut Context<'_>) -> Poll<Option<L>>,
    ) -> Poll<Result<L, ReadError>> {
        self.fault.end_announcement(self.map.core());
        // Terminates: the fault counts the rounds.
        loop {
            if self.turn.is_none() {
                let pfn = ready!(self.find(context))?;
                let key = self.map.area().key(self.page);
                let cache = &self.map.core().cache;
                self.turn = Some(cache.wait_for_latch(key, pfn, self.mode));
            }
            let turn = self.turn.as_mut().expect("it was found");
            let latched = ready!(poll_turn(turn, context));
            let pfn = turn.pfn();
            self.turn = None;
            if let Some(latched) = latched {
                self.settle(pfn);
                self.map.check_held(self.page, Access::ReadWrite)?;
                return Poll::Ready(Ok(latched));
            }
            // It is leaving the frame: the fault waits for the end of that.
            self.is_missing = true;
            self.kept = None;
            self.fault.note_round(self.map.area().key(self.page))?;
        }
    }

    /// Finds the page in a frame, or brings it in.
    fn find(&mut self, context: &mut Context<'_>) -> Poll<Result<Pfn, ReadError>> {
        let Self { map, page, .. } = self;
        if !self.is_missing {
            if let Some(pfn) = map.frame_of(*page)? {
                return Poll::Ready(Ok(pfn));
            }
            self.is_missing = true;
        }
        if !self.fault.is_afloat() && map.area().is_hole(*page) {
            return Poll::Ready(Err(ReadError::Unmapped { page: *page }));
        }
        match ready!(self.fault.poll(map, *page, context))? {
            Arrived::Kept(kept) => {
                let pfn = kept.pfn();
                self.kept = Some(kept);
                Poll::Ready(Ok(pfn))
            }
            Arrived::Found(pfn) => Poll::Ready(Ok(pfn)),
            Arrived::Pinned(_) => unreachable!("pages of a writable file have latches"),
        }
    }

    /// Maps the page, which is latched, and records the access.
    fn settle(&mut self, pfn: Pfn) {
        let (core, area) = (self.map.core(), self.map.area());
        let is_here = |_, at| (at == pfn).then_some(());
        let is_mapped = core.cache.hold_by_entry(area, self.page, is_here).is_some();
        let mut is_first = self.kept.take().is_some() && !core.reclaim.counts_first_access();
        if !is_mapped {
            core.cache.install(area, self.page, pfn);
            is_first |= core.cache.note_access(area.file(), pfn);
        }
        if is_first {
            core.cache.forget_young(pfn);
        }
    }
}

impl Drop for TaskLatch {
    fn drop(&mut self) {
        self.map.core().end_dirty_wait(&mut self.throttled);
        self.fault.end(&self.map, self.page);
    }
}

impl Mapping {
    /// Returns the frame of a resident page of a writable file, unless the page has a readahead
    /// mark.
    fn frame_of(&self, page: MapPage) -> Result<Option<Pfn>, ReadError> {
        self.check(page, Access::ReadWrite)?;
        let (cache, area) = (&self.core().cache, self.area());
        let by_entry = area.frame_of(page);
        if by_entry.is_some() {
            return Ok(by_entry);
        }
        let key = area.key(page);
        match cache.is_marked_ahead(key) {
            true => Ok(None),
            false => Ok(cache.find_latched(key)),
        }
    }
}
