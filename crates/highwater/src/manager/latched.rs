//! Guards of latched pages: shared ([`PageRead`]) and exclusive ([`PageWrite`]), of threads and of
//! tasks; and reads without a latch ([`OptimisticRead`]).
//!
//! A write latch does not make its page dirty: the first mutable access does, before a byte can
//! change, and reports it to write-back.

#![expect(private_bounds, reason = "the holds of a guard are a closed set")]

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::Core;
use super::mapping::Mapping;
use crate::cache::{PageCache, ReadLatch, TaskRead, TaskWrite, VmArea, WriteLatch};
use crate::memmap::{FrameMemory, Glimpse, MemoryRef};
use crate::sync::{Arc, MutexGuard};
use crate::units::MapPage;

/// How a guard keeps what its latch needs.
pub(super) trait GuardHold {
    /// Its reference to the memory of the latch.
    type Memory: MemoryRef;
    /// Returns the page cache.
    fn cache(&self) -> &PageCache;
    /// Tells write-back that a page has become dirty.
    fn note_dirtied(&self);
}

/// A thread's hold: it borrows the mapping. Guards stay with their thread: debug builds find a
/// thread that waits for itself by the latches that it has taken.
pub struct Borrowed<'m> {
    core: &'m Core,
    _stays: PhantomData<MutexGuard<'static, ()>>,
}

/// A task's hold on a latched page: [`PageRead`] and [`PageWrite`] with it own their mapping, may
/// be held across an `await`, and go to other threads. They come from
/// [`Mapping::read_latched_async`] and [`Mapping::write_async`].
///
/// Threads and tasks that latch the page otherwise wait until the guard is dropped: do not block a
/// thread on which its task has to run. Debug builds find no task that waits for itself.
///
/// [`Mapping::read_latched_async`]: crate::Mapping::read_latched_async
/// [`Mapping::write_async`]: crate::Mapping::write_async
///
/// # Examples
///
/// ```
/// # use highwater::Manager;
/// use highwater::{Owned, PageRead, PageWrite};
///
/// # let source = tempfile::NamedTempFile::new()?;
/// # std::fs::write(source.path(), [7; 3 * 4096])?;
/// # let hw = Manager::builder().build()?;
/// # let file = hw.open_writable(source.path())?;
/// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
/// let mut write: PageWrite<'static, Owned> = hw.block_on(map.write_async(0))?;
/// write[0] = 8;
/// let read: PageRead<'static, Owned> = write.downgrade();
/// let there = std::thread::spawn(move || read[0]);
/// assert_eq!(there.join().unwrap(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Owned(Mapping);

/// A page of a writable file, latched for reading. Writers and write-back wait.
///
/// A thread that holds it and waits for the same page in another way waits for itself for ever;
/// debug builds panic instead.
pub struct PageRead<'m, H: GuardHold = Borrowed<'m>> {
    // Before the hold, which may be its file's last handle.
    latched: ReadLatch<H::Memory>,
    hold: H,
    borrows: PhantomData<&'m ()>,
}

/// A page of a writable file, latched for writing. All others wait.
///
/// The first mutable access marks the page dirty, as does [`mark_dirty`](Self::mark_dirty). A page
/// that was only read under this latch is not written back.
pub struct PageWrite<'m, H: GuardHold = Borrowed<'m>> {
    // As above.
    latched: WriteLatch<H::Memory>,
    hold: H,
    borrows: PhantomData<&'m ()>,
}

/// A page of a writable file, read without a latch: [`Mapping::read_optimistic`].
///
/// The bytes may change, or the page may leave memory, while they are read. They are copied out,
/// and count only if [`validate`](Self::validate) returns true afterwards: then all bytes that were
/// copied before are those of one moment, between the beginning of the read and the validation.
/// Until then they may be torn, or another page's; nothing worse can happen.
///
/// [`Mapping::read_optimistic`]: crate::Mapping::read_optimistic
///
/// # Examples
///
/// A step of a descent with optimistic lock coupling: the child is trusted once its parent is known
/// to be unchanged.
///
/// ```
/// # use highwater::{Manager, Mapping};
/// /// Returns the page that byte 8 of the root names, or `None` if the caller has to start again.
/// fn child_of_root(map: &Mapping) -> Option<[u8; 8]> {
///     let root = map.read_optimistic(0)?;
///     let number = u64::from_le_bytes(root.array_at(8));
///     if !root.validate() {
///         return None; // the number means nothing
///     }
///     let child = map.read_optimistic(number)?;
///     if !root.validate() {
///         return None; // the child may belong to another parent now
///     }
///     let found = child.array_at(0);
///     child.validate().then_some(found)
/// }
/// # let source = tempfile::NamedTempFile::new()?;
/// # std::fs::write(source.path(), [0; 3 * 4096])?;
/// # let hw = Manager::builder().build()?;
/// # let file = hw.open_writable(source.path())?;
/// # let map = hw.space(&hw.root()).map_file(&file, 0..file.pages())?;
/// map.write(0)?[8..16].copy_from_slice(&2_u64.to_le_bytes());
/// map.write(2)?[..8].copy_from_slice(b"the leaf");
/// assert_eq!(child_of_root(&map).as_ref(), Some(b"the leaf"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct OptimisticRead<'m> {
    core: &'m Core,
    area: &'m VmArea,
    page: MapPage,
    glimpse: Glimpse<'m>,
}

impl<'m> Borrowed<'m> {
    fn of(core: &'m Core) -> Self {
        let _stays = PhantomData;
        Self { core, _stays }
    }
}

impl<'m> GuardHold for Borrowed<'m> {
    type Memory = &'m FrameMemory;

    #[inline(always)]
    fn cache(&self) -> &PageCache {
        &self.core.cache
    }

    fn note_dirtied(&self) {
        self.core.note_dirtied();
    }
}

impl GuardHold for Owned {
    type Memory = Arc<FrameMemory>;

    fn cache(&self) -> &PageCache {
        &self.0.core().cache
    }

    fn note_dirtied(&self) {
        self.0.core().note_dirtied();
    }
}

impl<'m> PageRead<'m> {
    #[inline]
    pub(super) fn new(core: &'m Core, latched: ReadLatch<&'m FrameMemory>) -> Self {
        Self::held(latched, Borrowed::of(core))
    }

    /// Begins an optimistic read of the page as it is.
    pub(super) fn glimpse(&self) -> Option<Glimpse<'m>> {
        let (key, pfn) = (self.latched.key(), self.latched.pfn());
        self.hold.core.cache.glimpse_at(key, pfn)
    }

    /// Gives the latch, of a page of `map`, to a task.
    pub(super) fn into_owned(self, map: &Mapping) -> PageRead<'static, Owned> {
        let latched = self.latched.into_owned(Arc::clone(&map.memory));
        PageRead::owned(latched, map)
    }
}

impl PageRead<'static, Owned> {
    pub(super) fn owned(latched: TaskRead, map: &Mapping) -> Self {
        Self::held(latched, Owned(map.clone()))
    }
}

impl<'m, H: GuardHold> PageRead<'m, H> {
    #[inline]
    fn held(latched: ReadLatch<H::Memory>, hold: H) -> Self {
        let borrows = PhantomData;
        Self {
            latched,
            hold,
            borrows,
        }
    }

    /// Turns the latch into a write latch, without releasing it in between.
    ///
    /// # Errors
    ///
    /// The read latch, still held, if another thread holds one too, or if the page is clean and
    /// dirty pages exceed their limit: then [`Mapping::write`](crate::Mapping::write) waits for
    /// write-back, once this latch is released. Two threads that both wait for an upgrade would
    /// deadlock, so there is none that waits.
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
    /// let read = map.read_latched(0)?;
    /// if read[0] == 7 {
    ///     match read.try_upgrade() {
    ///         Ok(mut write) => write[0] = 8, // unchanged since it was read
    ///         Err(read) => drop(read),       // others read it too: latch it for writing, look again
    ///     }
    /// }
    /// # assert_eq!(map.read_latched(0)?[0], 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_upgrade(self) -> Result<PageWrite<'m, H>, Self> {
        let Self { latched, hold, .. } = self;
        if !hold.cache().may_dirty_now(latched.key(), latched.pfn()) {
            return Err(Self::held(latched, hold));
        }
        match latched.try_upgrade() {
            Ok(latched) => Ok(PageWrite::held(latched, hold)),
            Err(latched) => Err(Self::held(latched, hold)),
        }
    }
}

impl<'m> PageWrite<'m> {
    pub(super) fn new(core: &'m Core, latched: WriteLatch<&'m FrameMemory>) -> Self {
        Self::held(latched, Borrowed::of(core))
    }
}

impl PageWrite<'static, Owned> {
    pub(super) fn owned(latched: TaskWrite, map: &Mapping) -> Self {
        Self::held(latched, Owned(map.clone()))
    }
}

impl<'m, H: GuardHold> PageWrite<'m, H> {
    fn held(latched: WriteLatch<H::Memory>, hold: H) -> Self {
        let borrows = PhantomData;
        Self {
            latched,
            hold,
            borrows,
        }
    }

    /// Marks the page dirty: it is written back before it is evicted, at the latest by the next
    /// sync. Without effect on a dirty page.
    ///
    /// # Cost
    ///
    /// For a clean page a few atomic adds: counts of the cache and of the group that pays for it.
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
    /// let mut page = map.write(0)?;
    /// if page[0] != 7 {
    ///     page[0] = 7; // not reached: the page stays clean
    /// }
    /// page.mark_dirty(); // written back by the next sync all the same
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn mark_dirty(&mut self) {
        if self.latched.mark_dirty(self.hold.cache()) {
            self.hold.note_dirtied();
        }
    }

    /// Records that the page is changed as the log record with number `lsn` says: write-back waits
    /// until the log is durable up to it ([`WriteGate`](crate::WriteGate)). Of several, the highest
    /// counts; the lowest since the page was clean is its recovery LSN, where a redo of it would
    /// begin. Call it before the change, for each record in order, and before the latch is released
    /// or downgraded: a checkpoint beside it looks at the LSNs without the latch. 0 stands for no
    /// record. Marks the page dirty.
    ///
    /// # Cost
    ///
    /// A few accesses to a cache line of the page. The first call of a manager allocates 16 bytes a
    /// frame.
    ///
    /// # Examples
    ///
    /// See [`WriteGate`](crate::WriteGate).
    pub fn set_lsn(&mut self, lsn: u64) {
        if self.latched.set_lsn(lsn, self.hold.cache()) {
            self.hold.note_dirtied();
        }
    }

    /// Turns the latch into a read latch, without releasing it in between: readers that wait before
    /// the first waiting writer come in, and no writer was there before. Later readers wait for
    /// that writer (a sync of the page is one), and so would this thread for itself: it does not
    /// latch the page again.
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
    /// let mut write = map.write(0)?;
    /// write[0] = 8;
    /// let read = write.downgrade();
    /// assert!(map.try_write(0).is_none());
    /// assert_eq!(read[0], 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "the latch is released otherwise"]
    pub fn downgrade(self) -> PageRead<'m, H> {
        PageRead::held(self.latched.downgrade(), self.hold)
    }
}

impl<'m> OptimisticRead<'m> {
    #[inline(always)]
    pub(super) fn new(
        core: &'m Core,
        area: &'m VmArea,
        page: MapPage,
        glimpse: Glimpse<'m>,
    ) -> Self {
        Self {
            core,
            area,
            page,
            glimpse,
        }
    }

    /// Copies the `N` bytes from `offset` on. They count once [`validate`](Self::validate) has
    /// returned true.
    ///
    /// # Cost
    ///
    /// Up to 64 bytes: a load for each 8 of them. No store to shared memory.
    ///
    /// # Panics
    ///
    /// When they are not all within the page.
    ///
    /// # Examples
    ///
    /// See [`OptimisticRead`].
    #[inline(always)]
    #[must_use]
    pub fn array_at<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.glimpse.copy_to(offset, &mut bytes);
        bytes
    }

    /// As [`array_at`](Self::array_at), for as many bytes as `into` has.
    ///
    /// # Panics
    ///
    /// When they are not all within the page.
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
    /// # drop(map.read_latched(1)?);
    /// let mut copy = [0; 4096];
    /// let page = map.read_optimistic(1).unwrap(); // in memory, and not held by a writer
    /// page.copy_to(0, &mut copy);
    /// assert!(page.validate());
    /// assert_eq!(copy, [7; 4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) {
        self.glimpse.copy_to(offset, into);
    }

    /// Returns whether the page has not changed or left memory since the read began: all bytes that
    /// were copied before this call are those of one moment. A writer that holds the page counts as
    /// a change; one that held it meanwhile and wrote nothing does not.
    ///
    /// # Cost
    ///
    /// A load.
    ///
    /// # Examples
    ///
    /// See [`OptimisticRead`].
    #[inline(always)]
    #[must_use = "bytes that are not valid mean nothing"]
    pub fn validate(&self) -> bool {
        self.glimpse.is_unchanged()
    }

    /// Latches the page for writing, if it has not changed since the read began: all bytes that
    /// were copied are valid then. `None` if it has, if another thread holds its latch, or if it is
    /// clean and dirty pages exceed their limit (see [`PageRead::try_upgrade`]). Does not wait.
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
    /// # drop(map.read_latched(1)?);
    /// let leaf = map.read_optimistic(1).unwrap();
    /// let [count] = leaf.array_at(0);
    /// let mut write = leaf.try_write().unwrap(); // `count` is valid
    /// write[0] = count + 1;
    /// assert!(!leaf.validate());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn try_write(self) -> Option<PageWrite<'m>> {
        let Self {
            core,
            area,
            page,
            glimpse,
        } = self;
        let key = area.key(page);
        if !core.cache.may_dirty_now(key, glimpse.pfn()) {
            return None;
        }
        let latched = core.cache.write_unchanged(glimpse)?;
        // A page that is cut off stays unchanged until the thread that does so takes its latch.
        (!area.is_cut_off(page)).then(|| PageWrite::new(core, latched))
    }
}

impl<H: GuardHold> Deref for PageRead<'_, H> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.latched
    }
}

impl<H: GuardHold> Deref for PageWrite<'_, H> {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.latched
    }
}

impl<H: GuardHold> DerefMut for PageWrite<'_, H> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.mark_dirty();
        self.latched.bytes_mut(self.hold.cache())
    }
}

impl<H: GuardHold> fmt::Debug for PageRead<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.latched.fmt(f)
    }
}

impl<H: GuardHold> fmt::Debug for PageWrite<'_, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.latched.fmt(f)
    }
}

impl fmt::Debug for OptimisticRead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OptimisticRead({:?})", self.area.key(self.page))
    }
}

impl fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Borrowed")
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owned")
    }
}
