//! Guards: lock-free read access to resident pages, by hazard pointers.
//!
//! A guard is a reader with a hazard-pointer record (seat). Each thread keeps the records that it
//! has used, so that entering again acquires none.

use super::Core;
use crate::memmap::{FrameMemory, Reader};

/// Protects the pages that are read under it from eviction. Cheap and short-lived: hold a guard for
/// one operation, not while waiting. Up to 15 pages are protected without a store to shared memory.
/// A guard is not `Send`:
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
    /// When the guard belongs to another manager.
    #[inline(always)]
    pub(super) fn assert_of(&self, core: &Core) {
        assert!(
            self.reader.is_of(&core.memory),
            "the guard is of another manager"
        );
    }
}
