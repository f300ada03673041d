//! Guards: the right to read resident pages without locks.
//!
//! A guard is a reader on a seat. Each thread keeps the seats that it has used, so that entering
//! again takes nothing from anybody.

use super::Core;
use crate::memmap::{FrameMemory, Reader};

/// Keeps the pages that are read under it where they are. Cheap; for short use: hold it for one
/// operation, not across waiting. Up to 15 pages are held without a store to shared memory. It
/// stays on its thread:
///
/// ```compile_fail,E0277
/// let hw = highwater::Manager::builder().build().unwrap();
/// let guard = hw.enter();
/// std::thread::scope(|scope| {
///     scope.spawn(move || drop(guard));
/// });
/// ```
#[derive(Debug)]
pub struct Guard<'m> {
    reader: Reader<'m>,
}

impl<'m> Guard<'m> {
    #[inline(always)]
    pub(super) fn new(memory: &'m FrameMemory) -> Self {
        Self {
            reader: memory.enter(),
        }
    }

    #[inline(always)]
    pub(super) fn reader(&self) -> &Reader<'m> {
        &self.reader
    }

    /// # Panics
    ///
    /// When the guard is of another manager.
    #[inline(always)]
    pub(super) fn assert_of(&self, core: &Core) {
        assert!(
            self.reader.is_of(&core.memory),
            "the guard is of another manager"
        );
    }
}
