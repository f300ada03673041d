//! Guards of latched pages: shared ([`PageRead`]) and exclusive ([`PageWrite`]).
//!
//! A write latch does not make its page dirty: the first mutable access does, before a byte can
//! change, and reports it to write-back.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::Core;
use crate::cache;
use crate::units::PAGE_SIZE;

/// A page of a writable file, latched for reading. Writers and write-back wait.
pub struct PageRead<'m> {
    latched: cache::ReadLatch<'m>,
}

/// A page of a writable file, latched for writing. All other threads wait.
///
/// The first mutable access marks the page dirty, as does [`mark_dirty`](Self::mark_dirty). A page
/// that was only read under this latch is not written back.
pub struct PageWrite<'m> {
    core: &'m Core,
    latched: cache::WriteLatch<'m>,
}

impl<'m> PageRead<'m> {
    pub(super) fn new(_: &'m Core, latched: cache::ReadLatch<'m>) -> Self {
        Self { latched }
    }
}

impl<'m> PageWrite<'m> {
    pub(super) fn new(core: &'m Core, latched: cache::WriteLatch<'m>) -> Self {
        Self { core, latched }
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
        if self.latched.mark_dirty() {
            self.core.note_dirtied();
        }
    }

    /// Records that the page was changed as the log record with number `lsn` says: write-back waits
    /// until the log is durable up to it ([`WriteGate`](crate::WriteGate)). Of several, the highest
    /// counts; the lowest since the page was clean is its recovery LSN, where a redo of it would
    /// begin. Call it before the latch is released. 0 stands for no record. Marks the page dirty.
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
        if self.latched.set_lsn(lsn) {
            self.core.note_dirtied();
        }
    }
}

impl Deref for PageRead<'_> {
    type Target = [u8; PAGE_SIZE];
    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.latched
    }
}

impl Deref for PageWrite<'_> {
    type Target = [u8; PAGE_SIZE];
    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.latched
    }
}

impl DerefMut for PageWrite<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.mark_dirty();
        &mut self.latched
    }
}

impl fmt::Debug for PageRead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.latched.fmt(f)
    }
}

impl fmt::Debug for PageWrite<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.latched.fmt(f)
    }
}
